"""The command that a person typed: where it is, and what will run it."""

from __future__ import annotations

import difflib
import os
import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

from leakscope.errors import UsageError

_PYTHON = re.compile(r"(python|pypy)\d*(\.\d+)?t?")


@dataclass(frozen=True)
class Command:
    """What to start: the file `path` with the arguments `argv` (the first is the name it is called by)."""

    path: str
    argv: list[str]


def find(argv: list[str]) -> Command:
    """Return what to start for a command as it was typed.

    Raises:
        UsageError: there is none, it is not found, it is a folder or not executable.
    """
    if not argv or not argv[0]:
        raise UsageError("There is no command to run.", "leakscope run -- python serve.py")
    name = argv[0]
    path = name if "/" in name else shutil.which(name)
    if path is None:
        raise UsageError(f"There is no command '{name}' on PATH.", _hint_for_missing(argv))
    _check_file(Path(path), argv)
    if _has_no_interpreter(path):  # a shell runs such a file itself, and so does execvp (POSIX, exec family)
        return Command("/bin/sh", ["/bin/sh", path, *argv[1:]])
    return Command(path, argv)


def _check_file(path: Path, argv: list[str]) -> None:
    if path.is_dir():
        hint = typed("python", *argv) if (path / "__main__.py").is_file() else f"ls {path}"
        raise UsageError(f"'{path}' is a folder, not a command.", hint)
    if not path.exists():
        raise UsageError(f"There is no file '{path}'.", _hint_for_missing(argv))
    if not os.access(path, os.X_OK) or (path.suffix == ".py" and _has_no_interpreter(str(path))):
        hint = typed("python", *argv) if path.suffix in (".py", ".pyz", ".pyc") else f"chmod +x {shlex.quote(str(path))}"
        raise UsageError(f"The file '{path}' cannot be started as a command.", hint)
    interpreter = shebang(str(path))
    if interpreter and not os.path.exists(interpreter[0]):
        raise UsageError(f"The file '{path}' asks for the interpreter '{interpreter[0]}', which is not there.",
                         f"head -1 {shlex.quote(str(path))}")


def _hint_for_missing(argv: list[str]) -> str:
    """Return the command that was most probably meant."""
    name = argv[0]
    if name.startswith("-") or (name.endswith(".py") and os.path.exists(name)):
        return typed("python", *argv)
    if "/" not in name and os.access(name, os.X_OK) and not os.path.isdir(name):
        return typed(f"./{name}", *argv[1:])
    folder, stem = os.path.split(name)
    folders = [folder] if folder else os.environ.get("PATH", os.defpath).split(os.pathsep)
    names = {each for part in folders if os.path.isdir(part) for each in os.listdir(part)}
    close = difflib.get_close_matches(stem, sorted(names), 1, 0.7)
    if close:
        return typed(os.path.join(folder, close[0]), *argv[1:])
    return "leakscope run -- COMMAND, with a command that your shell finds too"


def typed(*argv: str) -> str:
    """Return how a person types `leakscope run` with this command."""
    return f"leakscope run -- {shlex.join(argv)}"


def shebang(path: str) -> list[str]:
    """Return the interpreter and its argument in the first line of a script; [] if it is none."""
    try:
        with open(path, "rb") as file:
            first = file.readline(256)
    except OSError:
        return []
    return os.fsdecode(first[2:]).strip().split(None, 1) if first.startswith(b"#!") else []


def _has_no_interpreter(path: str) -> bool:
    """True for a text file without #!, which the kernel does not start (ENOEXEC)."""
    try:
        with open(path, "rb") as file:
            head = file.read(256)
    except OSError:
        return False
    return not head.startswith(b"#!") and b"\0" not in head


def is_python(name: str) -> bool:
    """True if a file of this name is a Python interpreter."""
    return _PYTHON.fullmatch(os.path.basename(name)) is not None
