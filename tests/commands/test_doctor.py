"""The doctor looks at this machine and at the interpreters it is given."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from leakscope.cli import main
from leakscope.commands._interpreter import checks


def answer(**changes: object) -> dict[str, object]:
    return {"version": [3, 12, 1], "implementation": "cpython", "has_ctypes": True, "has_fork": True, "has_tracemalloc": True,
            "has_torch": False, "has_nvml": False, "has_sitecustomize": False, **changes}


def test_every_interpreter_gets_its_part_of_the_answer(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    other = tmp_path / "other-python"
    other.symlink_to(sys.executable)
    assert main(["doctor", "--json", "--python", str(other)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["this machine", sys.executable, str(other)]
    assert {"leakscope run", "memory limit", "disk", "graphviz", "ptrace"} <= {each["what"] for each in found["this machine"]}
    assert found[sys.executable][0]["detail"].startswith("cpython 3.")


def test_the_table_says_the_same_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    printed = capsys.readouterr().out
    assert "ok    leakscope run  the agent can be staged" in printed
    assert sys.executable in printed


@pytest.mark.parametrize(("changes", "is_good"), [
    ({}, True), ({"version": [3, 9, 0]}, True), ({"version": [3, 8, 19]}, False), ({"version": [3, 15, 0]}, False),
    ({"implementation": "pypy"}, False),
])
def test_the_agent_fits_cpython_3_9_to_3_14(changes: dict[str, object], is_good: bool) -> None:
    first = checks("python", answer(**changes))[0]
    assert (first.what, first.is_good) == ("interpreter", is_good)


def test_torch_without_nvml_gets_the_command_that_adds_it() -> None:
    (nvml,) = [each for each in checks("py", answer(has_torch=True)) if each.what == "NVML"]
    assert (nvml.is_good, nvml.hint) == (None, "py -m pip install nvidia-ml-py")


@pytest.mark.parametrize(("python", "sentence"), [
    ("no-such-python", "There is no interpreter 'no-such-python'."),
    ("/bin/true", "'/bin/true' does not answer as a Python 3 interpreter does."),
])
def test_what_is_no_interpreter_is_a_mistake(capsys: pytest.CaptureFixture[str], python: str, sentence: str) -> None:
    assert main(["doctor", "--python", python]) == 2
    assert capsys.readouterr().err.startswith(f"leakscope: {sentence}\n  hint: ")
