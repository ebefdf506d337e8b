"""What the tests of the commands share."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.commands.runs import DEADLINE_S, ENVIRONMENT, LEAKSCOPE


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start leakscope with a command as the head of its own process group; whatever is left of it is killed at the end."""
    started: list[subprocess.Popen[str]] = []

    def start_one(*command: str, options: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        process = subprocess.Popen([*LEAKSCOPE, "run", "-o", "out", "--format", "json", *options, "--", *command], cwd=tmp_path,
                                   env=ENVIRONMENT, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, start_new_session=True)
        started.append(process)
        return process

    yield start_one
    for process in started:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.communicate(timeout=DEADLINE_S)
