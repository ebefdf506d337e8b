"""The probe under the address and undefined-behaviour sanitizers: they end the interpreter at the first mistake."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from leakscope.inject import _capabilities, _probes
from tests.agent.probes import SANITIZERS, probe_for, reports_of_sanitizers, sanitizing


@pytest.mark.slow
@pytest.mark.parametrize("allocator", ("pymalloc", "malloc"))
def test_every_capability_is_clean_under_the_sanitizers(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allocator: str) -> None:
    (binary,) = probe_for(sys.executable, *SANITIZERS).glob("_probe.*.so")
    for name, value in {**sanitizing(tmp_path), "PYTHONMALLOC": allocator}.items():
        monkeypatch.setenv(name, value)
    found = _capabilities.of(_probes.look_at(sys.executable), binary)
    assert reports_of_sanitizers(tmp_path) == ""
    assert found.failures() == []
