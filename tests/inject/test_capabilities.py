"""What the agent can do in an interpreter is found out by doing it there, and what goes wrong there is said, not passed on."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from leakscope.inject import _capabilities, _probes
from tests.agent.probes import probe_for
from tests.agent.staged import python

__all__ = ["python"]


def test_the_probe_does_everything_in_every_interpreter_that_can_have_one(python: str) -> None:
    (binary,) = probe_for(python).glob("_probe.*.so")
    found = _capabilities.of(_probes.look_at(python), binary)
    assert found.failures() == []


def test_what_is_no_probe_is_said_to_be_none_and_python_does_the_work(tmp_path: Path) -> None:
    (tmp_path / "probe.so").write_bytes(b"no shared object")
    found = _capabilities.of(_probes.look_at(sys.executable), tmp_path / "probe.so")
    assert (found.cells["walk"], found.cells["names"], found.cells["frames"]) == ("Python", "Python", "Python")
    assert found.why_not and found.failures() == [found.why_not]


@pytest.mark.parametrize(("program", "reason"), [
    ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "it ended the interpreter by signal 11"),
    ("raise SystemExit('no such thing')", "no such thing"),
])
def test_an_interpreter_that_ends_during_the_check_is_said_to(
        monkeypatch: pytest.MonkeyPatch, program: str, reason: str) -> None:
    monkeypatch.setattr(_capabilities, "_CHECK", program)
    found = _capabilities.of(_probes.look_at(sys.executable))
    assert {found.cells[name] for name in _capabilities.COLUMNS[:-1]} == {reason}
    assert reason in found.failures()[0]
