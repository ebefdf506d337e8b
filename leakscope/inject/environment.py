"""The way in at the start of a process: a staged copy of the agent on PYTHONPATH, brought up by its sitecustomize.

The target sees nothing of where leakscope lives and of what it depends on: the agent is copied, not imported.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from leakscope.agent import command
from leakscope.errors import LeakScopeError
from leakscope.inject import _probes
from leakscope.inject._probes import AGENT_FOLDER
from leakscope.session import Session

STAGED_NAME = "_leakscope_agent"
HOOK = "sitecustomize.py"
PRELOADED = "libleakscope_native.so"  # as agent/native_sites.py knows it


def usable() -> str | None:
    """Return why a command cannot be observed from its start on this machine, or None."""
    if sys.platform == "win32":
        return "leakscope run needs POSIX signals and process groups, which Windows does not have"
    if not (AGENT_FOLDER / "boot" / HOOK).is_file():
        return f"this installation of leakscope lacks {AGENT_FOLDER / 'boot' / HOOK}"
    return None


def stage(session: Session, options: Mapping[str, Any]) -> Path:
    """Copy the agent to the session's boot folder, write its options, and return the boot folder.

    Which interpreters the command will start is not known yet, so every probe that there is goes along; an interpreter finds
    the one of its own version and SOABI, and no other. Where it finds none, the agent says so.

    Raises:
        LeakScopeError: it cannot be written, PYTHONPATH or LD_PRELOAD cannot name the folder, or there is no sampler of
            native memory where the options want one.
    """
    boot = session.boot_folder
    preloaded = _preloaded(boot) if options.get("native") else None
    if os.pathsep in str(boot):
        raise LeakScopeError(f"PYTHONPATH cannot hold the folder '{boot}', because its name contains '{os.pathsep}'.",
                             "leakscope run -o DIR -- COMMAND, with another DIR")
    try:
        shutil.copytree(AGENT_FOLDER, boot / STAGED_NAME, ignore=shutil.ignore_patterns(*_probes.LEFT_BEHIND))
        _probes.put(boot / STAGED_NAME)
        if preloaded:
            shutil.copyfile(preloaded, boot / PRELOADED)
        shutil.copyfile(AGENT_FOLDER / "boot" / HOOK, boot / HOOK)
        session.write_options(dict(options))
    except OSError as error:
        # shutil.Error bears no reason of its own, but a list of (from, to, reason) of the files that failed
        reason = error.strerror or (error.args[0][0][2] if isinstance(error, shutil.Error) else error)
        raise LeakScopeError(f"The agent cannot be copied to '{boot}': {reason}.",
                             "leakscope run -o DIR -- COMMAND, with a DIR that you may write to") from error
    return boot


def bring_in(boot: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return `environment` with the boot folder first on PYTHONPATH, and the sampler of native memory, if it was staged, in
    LD_PRELOAD; nothing else is changed.

    The agent takes the folder out again when it comes up, so that the target sees the PYTHONPATH it was given. The folder
    twice stands for a PYTHONPATH that was set and empty (agent/children.py reads and writes it so, too).
    """
    before = environment.get("PYTHONPATH")
    rest = [] if before is None else [before or str(boot)]
    changed = {**environment, "PYTHONPATH": os.pathsep.join([str(boot), *rest])}
    if (boot / PRELOADED).exists():
        changed["LD_PRELOAD"] = ":".join(filter(None, [str(boot / PRELOADED), environment.get("LD_PRELOAD")]))
    return changed


def _preloaded(boot: Path) -> Path:
    """Return the sampler of native memory, which is the same for all interpreters."""
    found = _probes.preloaded()
    if found is None:
        raise LeakScopeError("The sampler of native memory was not built when leakscope was installed.",
                             f"leakscope doctor --build-probe {sys.executable}, or leakscope run without --native")
    if any(each in str(boot) for each in " :\t"):
        raise LeakScopeError(f"LD_PRELOAD cannot hold the folder '{boot}', because its name contains a space or a colon.",
                             "leakscope run --native -o DIR -- COMMAND, with another DIR")
    return found


def masked(argv: Sequence[str]) -> list[str]:
    """Return a command as it may be written down, by the rules that the agent keeps to in the target."""
    return list(command.masked(argv))
