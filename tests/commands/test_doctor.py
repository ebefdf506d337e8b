"""The doctor looks at this machine and at the interpreters it is given."""

from __future__ import annotations

import json
import platform
import re
import shutil
import sys
from pathlib import Path

import pytest

from leakscope.cli import main
from leakscope.commands import _nvml, doctor
from leakscope.commands._interpreter import Check, checks
from leakscope.inject import _probes
from leakscope.inject._capabilities import COMPILED, FALLBACK
from tests.agent.staged import interpreter
from tests.commands.drivers import Driver


def answer(**changes: object) -> dict[str, object]:
    return {"version": [3, 12, 1], "implementation": "cpython", "has_ctypes": True, "has_fork": True, "has_tracemalloc": True,
            "has_torch": False, "has_sitecustomize": False, **changes}


def test_every_interpreter_gets_its_part_of_the_answer(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    other = tmp_path / "other-python"
    other.symlink_to(sys.executable)
    assert main(["doctor", "--json", "--python", str(other)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["this machine", sys.executable, str(other), "probe"]
    assert {"leakscope run", "memory limit", "disk", "graphviz", "ptrace", "compiler", "analyses"} <= {
        each["what"] for each in found["this machine"]}
    assert [each["python"] for each in found["probe"]] == [sys.executable, str(other)]
    assert found[sys.executable][0]["detail"].startswith("cpython 3.")


def test_the_table_says_the_same_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"ok +leakscope run  the agent can be staged", printed)
    assert sys.executable in printed
    assert re.search(r"walk +frames +names +snapshot +sampler +native", printed)


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No probe but those that a test puts there."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(_probes, "AGENT_FOLDER", shutil.copytree(
        _probes.AGENT_FOLDER, tmp_path / "agent", ignore=shutil.ignore_patterns("__pycache__", "*.so")))
    return tmp_path / "cache" / "leakscope" / "probes"


def test_without_a_probe_the_twin_in_python_does_it_and_the_hint_builds_one(
        capsys: pytest.CaptureFixture[str], empty_cache: Path) -> None:
    assert main(["doctor", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["probe"]
    assert {name: found[name] for name in FALLBACK} == FALLBACK
    assert (found["why_not"], found["hint"]) == (f"No probe is built for CPython {platform.python_version()}.",
                                                 f"leakscope doctor --build-probe {sys.executable}")


def test_the_walk_in_python_works_where_there_can_be_no_probe(capsys: pytest.CaptureFixture[str], empty_cache: Path) -> None:
    old = interpreter("3.9")
    assert main(["doctor", "--json", "--python", old]) == 0
    found = json.loads(capsys.readouterr().out)["probe"][1]
    assert {name: found[name] for name in FALLBACK} == FALLBACK
    assert (found["why_not"], found["hint"]) == (
        f"The probe knows CPython 3.10 and later, and '{old}' is {found['version']}.", None)


@pytest.mark.slow
def test_a_probe_is_built_tried_and_found_by_every_later_run(
        capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, empty_cache: Path) -> None:
    quickly = tuple(flag for flag in _probes.FLAGS if flag != "-O2")
    monkeypatch.setattr(_probes, "FLAGS", quickly)
    newest = interpreter("newest")
    assert main(["doctor", "--build-probe", newest]) == 0
    assert "works, and every later `leakscope run` uses it" in capsys.readouterr().out
    target = _probes.look_at(newest)
    assert _probes.staged_at(target.text, target.soabi) in _probes.built()
    assert main(["doctor", "--json"]) == 0
    found = [each for each in json.loads(capsys.readouterr().out)["probe"] if each["python"] == newest][0]
    assert (found["why_not"], {name: found[name] for name in COMPILED}) == (None, COMPILED)


def test_a_probe_that_does_not_work_in_its_interpreter_is_not_kept(
        capsys: pytest.CaptureFixture[str], empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_nonsense(target: _probes.Interpreter, binary: Path) -> Path:
        binary.parent.mkdir(parents=True)
        binary.write_bytes(b"no shared object")
        return binary

    monkeypatch.setattr(_probes, "compile_for", compile_nonsense)
    assert main(["doctor", "--build-probe", sys.executable]) == 1
    said = capsys.readouterr().err
    assert f"leakscope: The probe for CPython {platform.python_version()} was built, and does not work there (" in said
    assert "hint: " in said and "Traceback" not in said
    assert _probes.built() == {} and list(empty_cache.iterdir()) == []


@pytest.mark.parametrize(("variables", "python", "code", "sentence"), [
    ({"CC": "no-such-cc"}, sys.executable, 1, "There is no C compiler 'no-such-cc', which CC names."),
    ({"XDG_CACHE_HOME": "/proc/none"}, sys.executable, 1, "The probe cannot be written to '/proc/none/leakscope/probes'"),
    ({}, "no-such-python", 2, "There is no interpreter 'no-such-python'."),
])
def test_a_probe_that_cannot_be_built_is_one_sentence_and_a_hint(
        capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], python: str, code: int,
        sentence: str) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert main(["doctor", "--build-probe", python]) == code
    said = capsys.readouterr().err
    assert said.startswith(f"leakscope: {sentence}") and len(said.splitlines()) == 2 and "\n  hint: " in said


@pytest.mark.parametrize(("changes", "is_good"), [
    ({}, True), ({"version": [3, 9, 0]}, True), ({"version": [3, 8, 19]}, False), ({"version": [3, 15, 0]}, False),
    ({"implementation": "pypy"}, False),
])
def test_the_agent_fits_cpython_3_9_to_3_14(changes: dict[str, object], is_good: bool) -> None:
    first = checks("python", answer(**changes))[0]
    assert (first.what, first.is_good) == ("interpreter", is_good)


def nvml_line() -> Check:
    (found,) = [each for each in doctor.machine() if each.what == "NVML"]
    return found


def test_a_device_whose_driver_cannot_be_asked_gets_the_command_that_helps(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(_nvml, "DEVICE_FILES", (str(tmp_path),))
    assert (nvml_line().is_good, nvml_line().hint) == (None, "pip install leakscope-forensics[gpu]")
    monkeypatch.setitem(sys.modules, "pynvml", Driver().module)
    assert nvml_line().detail == "driver 580.159.03: what a device is used for is read, by process"


def test_a_machine_without_a_device_lacks_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(_nvml, "DEVICE_FILES", (str(tmp_path / "none"),))
    assert (nvml_line().is_good, nvml_line().detail) == (True, "there is no NVIDIA device here")


@pytest.mark.parametrize(("python", "sentence"), [
    ("no-such-python", "There is no interpreter 'no-such-python'."),
    ("/bin/true", "'/bin/true' does not answer as a Python 3 interpreter does."),
])
def test_what_is_no_interpreter_is_a_mistake(capsys: pytest.CaptureFixture[str], python: str, sentence: str) -> None:
    assert main(["doctor", "--python", python]) == 2
    assert capsys.readouterr().err.startswith(f"leakscope: {sentence}\n  hint: ")
