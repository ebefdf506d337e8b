"""Why no agent reported in: what the command's processes are, and which of them Python keeps from loading the agent."""

from __future__ import annotations

import os
import re
import shutil
import struct
from dataclasses import dataclass
from pathlib import Path

from leakscope.commands._command import Command, is_python, shebang, typed
from leakscope.model import Gap

CLAIM = "anything about this process"
LOST_CLAIM = "anything about this run"

_FLAGS = re.compile(r"-([bBdEiIOPqsSuvx]+)[mc]?")
_ROOTED = {"docker", "podman", "kubectl", "ssh", "systemd-run", "flatpak"}
_RESETTING = {"sudo", "su", "doas", "runuser", "pkexec"}


@dataclass(frozen=True)
class Seen:
    """A process of the observed tree, as /proc shows it. The arguments are looked at and not kept in the session."""

    pid: int
    argv: tuple[str, ...]
    executable: str
    user_id: int
    has_boot: bool | None  # is the boot folder on its PYTHONPATH? None: not readable

    @property
    def name(self) -> str:
        """What the process is called; a title that the program gave itself is no name, it may hold anything."""
        title = self.argv[0] if self.argv else ""
        return os.path.basename(title if shutil.which(title) else self.executable) or "a process"

    @property
    def is_python(self) -> bool:
        """True if it runs a Python interpreter."""
        return is_python(self.executable)


def tree(pid: int, boot: Path) -> list[Seen]:
    """Return the process and its descendants; [] where there is no /proc or it has ended."""
    found, waiting = [], [pid]
    while waiting:
        each = waiting.pop(0)
        try:
            for thread in os.listdir(f"/proc/{each}/task"):
                waiting += map(int, Path(f"/proc/{each}/task/{thread}/children").read_text("ascii").split())
            argv = os.fsdecode(Path(f"/proc/{each}/cmdline").read_bytes()).split("\0")[:-1]
            executable = os.readlink(f"/proc/{each}/exe").removesuffix(" (deleted)") if argv else ""
            user_id = os.stat(f"/proc/{each}").st_uid
            if _takes_a_snapshot(each):
                continue
        except (OSError, ValueError):
            continue
        found.append(Seen(each, tuple(argv), executable, user_id, _has_boot(each, boot)))
    return found


def _takes_a_snapshot(pid: int) -> bool:
    """True for the forked copy of an observed process that walks its heap: no signal announces its end (proc(5), stat)."""
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return int(fields[38 - 3]) == 0


def as_started(pid: int, command: Command) -> Seen:
    """Return what the command is by its file alone, for one that ended before anybody could look."""
    interpreter = shebang(command.path)
    argv = [*interpreter, *command.argv] if interpreter else command.argv
    if interpreter and os.path.basename(interpreter[0]) == "env" and len(interpreter) > 1:
        argv = [*interpreter[1].removeprefix("-S").split(), *command.argv]
    return Seen(pid, tuple(argv), os.path.realpath(argv[0]) if "/" in argv[0] else argv[0], os.getuid(), True)


def gap(process: Seen) -> Gap:
    """Return why this process has no agent, and what to do, as a gap of the report."""
    why, command = (_why_python if process.is_python else _why_other)(process, process.name)
    return Gap(CLAIM, f"No agent reported in from process {process.pid} ({process.name}): {why}.", command)


def lost(session: Path) -> Gap:
    """Return what to say of a session whose folder somebody removed while it was being written."""
    return Gap(LOST_CLAIM, f"The folder '{session}' was removed while the command ran, with what had been recorded in it.",
               "leakscope run -o DIR -- COMMAND, with a DIR that the command leaves alone")


def _why_python(process: Seen, name: str) -> tuple[str, str]:
    for letter, what in (("I", "which ignores PYTHONPATH"), ("E", "which ignores PYTHONPATH"),
                         ("S", "which leaves out sitecustomize")):
        if letter in _python_flags(process.argv):
            return f"it runs with -{letter}, {what}", f"start it without -{letter}: leakscope run -- {name} ..."
    if process.user_id != os.getuid():
        user = _user_name(process.user_id)
        return f"it belongs to user '{user}'", f"sudo -u {user} leakscope run -- ..."
    if process.has_boot is False:
        return ("its PYTHONPATH was replaced on the way",
                "keep PYTHONPATH in the script that starts it, or run leakscope inside: leakscope run -- python ...")
    return "it is Python, but ended or failed before the agent was up", "leakscope doctor --python PATH"


def _why_other(process: Seen, name: str) -> tuple[str, str]:
    if name in _RESETTING:
        return "it starts commands in a fresh environment", f"{name} ... leakscope run -- python ..."
    if name in _ROOTED:
        return "it starts commands where this machine's files are not seen", f"{name} ... leakscope run -- python ..."
    if _is_static(process.executable):
        return "it is a statically linked program, not Python", typed("python", "...")
    return "it is not Python and started none", typed("python", "...")


def _python_flags(argv: tuple[str, ...]) -> str:
    """Return the letters of the interpreter's own options, `IS` for `python -I -S x.py -E`."""
    letters, words = "", iter(argv[1:])
    for word in words:
        match = _FLAGS.fullmatch(word)
        if match:
            letters += match[1]
        if word in ("-X", "-W"):
            next(words, None)
        elif not match or word.endswith(("m", "c")):
            break
    return letters


def _has_boot(pid: int, boot: Path) -> bool | None:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return None
    return any(each.startswith(b"PYTHONPATH=") and os.fsencode(boot) in each for each in environment.split(b"\0"))


def _user_name(user_id: int) -> str:
    import pwd  # POSIX alone has it, and `run` is to say itself what Windows lacks

    try:
        return pwd.getpwuid(user_id).pw_name
    except KeyError:
        return str(user_id)


def _is_static(path: str) -> bool:
    """True for an ELF file without an interpreter segment (PT_INTERP, elf(5))."""
    try:
        with open(path, "rb") as file:
            head = file.read(4096)
    except OSError:
        return False
    if head[:4] != b"\x7fELF" or len(head) < 64:
        return False
    order = "<" if head[5] == 1 else ">"
    start = struct.unpack_from(f"{order}Q", head, 32) if head[4] == 2 else struct.unpack_from(f"{order}I", head, 28)  # e_phoff
    size, count = struct.unpack_from(f"{order}HH", head, 54 if head[4] == 2 else 42)  # e_phentsize, e_phnum
    places = range(start[0], min(start[0] + size * count, len(head) - 4), size)
    return 3 not in (struct.unpack_from(f"{order}I", head, place)[0] for place in places)
