"""The probe under the address and undefined-behaviour sanitizers: they end the interpreter at the first mistake."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from leakscope.inject import _capabilities, _probes
from tests.agent.probes import ROOT, SANITIZERS, probe_for, reports_of_sanitizers, sanitizing


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


@pytest.mark.slow
def test_the_comparison_with_the_walk_in_python_is_clean_under_the_sanitizers(tmp_path: Path) -> None:
    probe_for(sys.executable, *SANITIZERS)
    version = ".".join(map(str, sys.version_info[:2]))
    files = [f"tests/agent/test_probe_{name}.py" for name in ("twin", "roots", "names", "libraries")]
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-k", version, *files],
                          cwd=ROOT, env={**os.environ, **sanitizing(tmp_path)}, capture_output=True, text=True, timeout=250)
    assert reports_of_sanitizers(tmp_path) == ""
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-3000:] + done.stderr[-1000:]
