"""A test in a process of its own: a walk sees the heap of a small program there; of all that pytest holds it takes seconds."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def alone(test: Callable[[Path], None]) -> Callable[[Path], None]:
    """Decorate a test whose only argument is tmp_path; it fails with the traceback of the other process."""

    @functools.wraps(test)
    def in_a_process(tmp_path: Path) -> None:
        code = f"import pathlib, {test.__module__} as m; m.{test.__name__}.__wrapped__(pathlib.Path({str(tmp_path)!r}))"
        ran = subprocess.run([sys.executable, "-X", "faulthandler", "-c", code], cwd=ROOT, text=True, capture_output=True,
                             timeout=120)
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", ""), ran.stdout + ran.stderr

    return in_a_process
