"""What is made once for all workers of a test run: a program that ran, a snapshot that was taken, as files in a folder.

    folder = once("no_leak", make)     # make(folder) fills it, in the first worker that asks; the others wait and read
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

VARIABLE = "LEAKSCOPE_TESTS_SHARED"  # the folder of this run; tests/conftest.py makes and removes it
_DONE = "done.of.once"


def once(key: str, make: Callable[[Path], object]) -> Path:
    """Return the folder that `make` has filled; where it failed before, it is tried again."""
    # letters alone: a file below a long number is not named, as that might be anybody's
    name = hashlib.sha256(key.encode()).hexdigest()[:24].translate(str.maketrans("0123456789", "ghijklmnop"))
    folder = Path(os.environ[VARIABLE]) / name
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / _DONE).exists():
            folder.mkdir(exist_ok=True)
            make(folder)
            (folder / _DONE).touch()
    return folder
