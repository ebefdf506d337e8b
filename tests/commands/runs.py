"""Running leakscope as a process of its own, for the tests of what a person, a shell or a supervisor sees."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import leakscope
from leakscope import session as sessions

ROOT = Path(leakscope.__file__).parent.parent
LEAKSCOPE = [sys.executable, "-m", "leakscope"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
DEADLINE_S = 120.0

def run(folder: Path, *arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run leakscope to its end."""
    return subprocess.run([*LEAKSCOPE, *arguments], cwd=folder, env=more.pop("env", ENVIRONMENT), text=True,
                          capture_output=True, timeout=DEADLINE_S, stdin=more.pop("stdin", subprocess.DEVNULL), **more)


def observe(folder: Path, *command: str, options: tuple[str, ...] = (), **more: Any) -> subprocess.CompletedProcess[str]:
    """Run a command under `leakscope run` into `folder`/out."""
    return run(folder, "run", "-o", "out", "--format", "json", *options, "--", *command, **more)


def until(is_so: Callable[[], Any], what: str) -> Any:
    """Poll until `is_so` answers, and return its answer."""
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        answer = is_so()
        if answer:
            return answer
        time.sleep(0.02)
    raise AssertionError(f"waited {DEADLINE_S:g} s for {what}")


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def opened(folder: Path) -> sessions.Session:
    return sessions.open(folder / "out")
