"""The programs of fixtures/programs, each run as a user would: the leak is named, and the mended twin is not accused."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = ROOT / "fixtures" / "programs"
TRUTH = json.loads((PROGRAMS / "truth.json").read_text())
LEAKS = sorted(TRUTH)
TWINS = sorted(path.stem for path in PROGRAMS.glob("*_ok.py"))
CLAIMS = {"python-leak", "delayed-garbage", "native-leak", "gpu-leak", "fragmentation"}


def observe(program: Path, out: Path, *arguments: str) -> dict[str, Any]:
    """Run a program under `leakscope run` and return its report.json."""
    done = subprocess.run([sys.executable, "-m", "leakscope", "run", "-o", str(out), "--",
                           sys.executable, str(program), *arguments],
                          cwd=ROOT, text=True, capture_output=True, stdin=subprocess.DEVNULL)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1, f"the program prints one line, but this came out:\n{done.stdout}"
    return json.loads((out / "report.json").read_text())


def names(finding: dict[str, Any]) -> str:
    """Everything by which a finding names its owner."""
    cycle = " -> ".join(f"{step['type']}.{step['edge'].lstrip('.')}" for step in finding["cycle"])
    return "\n".join([finding["owner"], finding["path_text"], cycle])


def test_every_leak_has_a_program_and_a_twin():
    assert LEAKS == sorted(path.stem for path in PROGRAMS.glob("*.py") if not path.stem.endswith("_ok"))
    assert {f"{name}_ok" for name in LEAKS} <= set(TWINS)


@pytest.mark.slow
@pytest.mark.parametrize("name", LEAKS)
def test_the_leak_is_named(name, tmp_path):
    truth = TRUTH[name]
    report = observe(PROGRAMS / f"{name}.py", tmp_path / "out")
    assert report["verdict"]["class"] in truth["class"], report["verdict"]["sentence"]
    first = report["findings"][0]
    if truth["owner"]:
        assert re.search(truth["owner"], names(first)), f"{truth['owner']} is not what was named:\n{names(first)}"
    if truth["type"]:
        assert re.search(truth["type"], first["leaked_type"]), f"{first['leaked_type']} is not {truth['type']}"


@pytest.mark.slow
@pytest.mark.parametrize("name", TWINS)
def test_the_mended_twin_is_not_accused(name, tmp_path):
    report = observe(PROGRAMS / f"{name}.py", tmp_path / "out")
    assert report["verdict"]["class"] not in CLAIMS, report["verdict"]["sentence"]
