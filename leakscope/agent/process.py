"""What process.json says: which process this is, how it came to be, and its command with the values masked."""

import os
import sys

from . import format as fmt
from . import jsontext
from .command import masked
from .thread import SYSTEM_NAME, read_small


def describe(recorder):
    """Return process.json as a dict."""
    described = {
        "format": fmt.FORMAT,
        "pid": recorder.pid,
        "parent": recorder.parent,
        "role": recorder.role,
        "python": ".".join(map(str, sys.version_info[:3])),
        "implementation": sys.implementation.name,
        "platform": sys.platform,
        "argv": masked(_command()),
        "started_ns": recorder.begun_ns - recorder.started_ns,
        "start_ticks": start_ticks(),
        "own_thread_names": [SYSTEM_NAME],
        "sites": _sites(recorder),
        "walk": "python" if recorder.snapshots.why_not_native else "native",
        "modules_count": len(sys.modules),
    }
    if recorder.snapshots.why_not_native:
        described["why_not_native"] = recorder.snapshots.why_not_native
    return described


def _sites(recorder):
    asked = recorder.options.get("sites") or "off"
    return "off" if asked == "sampled" and not recorder.sampler.is_on else asked


def role(session, own_name, earlier):
    """Return "exec" when a folder of the same process is there, "main" for the session's first process, else "spawn".

    Args:
        own_name: name of this process's folder.
        earlier: names of the older folders of the same pid.
    """
    for name in earlier:
        try:
            before = jsontext.read(read_small(os.path.join(session, name, fmt.PROCESS_FILE)).decode())
        except Exception:
            continue
        # A pid can be used again; the time at which the kernel began the process cannot.
        if before.get("start_ticks") == start_ticks():
            return "exec"
    others = [name for name in os.listdir(session) if name[:1].isdigit() and name != own_name]
    return "spawn" if others else "main"


def start_ticks():
    """Return when the kernel began this process, in ticks since boot (field 22 of /proc/self/stat); 0 when unknown."""
    try:
        return int(read_small("/proc/self/stat").rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0


def _command():
    try:
        words = read_small("/proc/self/cmdline", 1 << 20).split(b"\0")[:-1]
        return [word.decode("utf-8", "replace") for word in words]
    except OSError:
        return list(getattr(sys, "orig_argv", sys.argv))
