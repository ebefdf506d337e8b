"""What an interpreter offers to the agent: asked of the interpreter itself, without importing anything of the target's."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass
from typing import Any

from leakscope.errors import UsageError

OLDEST, NEWEST = (3, 9), (3, 14)
_PATIENCE_S = 30

# Runs in any Python 3; -I, so that the working directory and PYTHONPATH do not matter, as little as in doctor's question.
_QUESTION = """
import importlib.util, json, os, sys
def has(name):
    try:
        return importlib.util.find_spec(name) is not None
    except Exception:
        return False
print(json.dumps({
    "version": list(sys.version_info[:3]), "implementation": sys.implementation.name, "executable": sys.executable,
    "free_threaded": not getattr(sys, "_is_gil_enabled", lambda: True)(),
    "has_ctypes": has("_ctypes"), "has_fork": hasattr(os, "fork"), "has_tracemalloc": has("_tracemalloc"),
    "has_torch": has("torch"), "has_sitecustomize": has("sitecustomize"),
}))
"""


@dataclass(frozen=True)
class Check:
    """One line of the doctor: what was looked at, whether it works (None: works in part), and what that means."""

    what: str
    is_good: bool | None
    detail: str
    hint: str = ""


def ask(python: str) -> dict[str, Any]:
    """Return what the interpreter `python` says of itself.

    Raises:
        UsageError: it is not found, does not start, or is no Python 3.
    """
    path = shutil.which(python)
    if path is None:
        raise UsageError(f"There is no interpreter '{python}'.", "leakscope doctor --python /path/to/python")
    try:
        done = subprocess.run([path, "-I", "-c", _QUESTION], capture_output=True, timeout=_PATIENCE_S, stdin=subprocess.DEVNULL)
        answer = json.loads(done.stdout)
        assert isinstance(answer, dict)
        return answer
    except (OSError, ValueError, AssertionError, subprocess.SubprocessError) as error:
        raise UsageError(f"'{python}' does not answer as a Python 3 interpreter does.", f"{path} --version") from error


def checks(python: str, answer: dict[str, Any]) -> list[Check]:
    """Return what the agent can do in this interpreter."""
    version = tuple(answer["version"])
    text = f"{answer['implementation']} {'.'.join(map(str, version))}{' free-threaded' * bool(answer.get('free_threaded'))}"
    fits = OLDEST <= version[:2] <= NEWEST and answer["implementation"] == "cpython"
    found = [
        Check("interpreter", fits, text, "" if fits else f"the agent runs in CPython {_dotted(OLDEST)} to {_dotted(NEWEST)}"),
        _optional("ctypes", answer["has_ctypes"], "allocator counters are read", "absent: no allocator counters (mallinfo2)"),
        _optional("fork", answer["has_fork"], "forked children are followed", "absent: only spawned children are followed"),
        _optional("tracemalloc", answer["has_tracemalloc"], "--sites tracemalloc works", "absent: no --sites tracemalloc"),
        _optional("torch", answer["has_torch"], "device memory is read", "not installed: no device memory"),
    ]
    if answer["has_sitecustomize"]:
        found.append(Check("sitecustomize", True, "this interpreter has its own, and it still runs"))
    return found


def _optional(what: str, is_there: bool, good: str, bad: str, hint: str = "") -> Check:
    """Return a check of something that leakscope uses where it is there."""
    return Check(what, True if is_there else None, good if is_there else bad, hint)


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


