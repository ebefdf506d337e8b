"""The agent is staged as a copy, and the target's environment changes in one variable only."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from leakscope import session as sessions
from leakscope.errors import LeakScopeError
from leakscope.inject import _probes, environment
from tests.agent.staged import python

__all__ = ["python"]


def staged(folder: Path) -> Path:
    session = sessions.create(folder / "session", ["python"], {"sites": "off"})
    return environment.stage(session, session.info["options"])


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_this_machine_can_run_commands() -> None:
    assert environment.usable() is None


def test_the_python_files_of_the_agent_are_copied_and_nothing_else_where_there_is_no_probe(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_probes, "built", dict)
    boot = staged(tmp_path)
    original = {name for name in files(environment.AGENT_FOLDER) if name.endswith(".py") and not name.startswith("boot")}
    assert files(boot / "_leakscope_agent") == original
    assert (boot / "sitecustomize.py").read_text() == (environment.AGENT_FOLDER / "boot" / "sitecustomize.py").read_text()


def in_the_cache(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str = "binary") -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    path = _probes.cached(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_every_probe_goes_along_to_where_its_interpreter_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = in_the_cache(tmp_path, monkeypatch, "3.10.13-cpython-310-x86_64-linux-gnu")
    in_the_cache(tmp_path, monkeypatch, "3.10.14-cpython-310-x86_64-linux-gnu")
    kept.with_name("3.12.1-cpython-312-x86_64-linux-gnu-0123456789abcdef.so").write_text("of other sources")
    agent = staged(tmp_path) / "_leakscope_agent"
    assert {name for name in files(agent) if name.startswith("probes/")} == {
        f"probes/{version}/_probe.cpython-310-x86_64-linux-gnu.so" for version in ("3.10.13", "3.10.14")}


def test_a_cached_probe_of_another_user_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = in_the_cache(tmp_path, monkeypatch, "3.7.1-cpython-307-anything")
    assert "probes/3.7.1/_probe.cpython-307-anything.so" in _probes.built()
    monkeypatch.setattr(os, "geteuid", lambda: kept.stat().st_uid + 1)
    assert "probes/3.7.1/_probe.cpython-307-anything.so" not in _probes.built()


# What a probe has to answer, without being one: it says which file was loaded.
STAND_IN = "version = {version!r}\nwalk = {walk!r}\n"
QUESTION = """
import sys, types
package = types.ModuleType("_leakscope_agent")
package.__path__ = sys.argv[1:]
sys.modules["_leakscope_agent"] = package
from _leakscope_agent import probe
print(probe.why_not() or probe._probe.walk, package.__path__ == sys.argv[1:])
"""


@pytest.mark.parametrize(("there", "answer"), [
    ({}, "There is no probe for this interpreter."),
    ({"probes/{own}/_probe.py": "{own}"}, "probes/{own}/_probe.py"),
    ({"_probe.py": "{own}"}, "_probe.py"),
    ({"_probe.py": "3.1.4"}, "The probe was built for CPython 3.1.4, not for this one."),
    ({"_probe.py": "3.1.4", "probes/{own}/_probe.py": "{own}"}, "probes/{own}/_probe.py"),
    ({"probes/3.1.4/_probe.py": "3.1.4"}, "There is no probe for this interpreter."),
])
def test_an_interpreter_takes_the_probe_of_its_own_version_and_no_other(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: dict[str, str], answer: str) -> None:
    monkeypatch.setattr(_probes, "built", dict)
    own = _probes.look_at(sys.executable).text
    agent = staged(tmp_path) / "_leakscope_agent"
    for name, version in there.items():
        path = agent / name.format(own=own)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(STAND_IN.format(version=version.format(own=own), walk=name.format(own=own)))
    done = subprocess.run([sys.executable, "-I", "-c", QUESTION, str(agent)], capture_output=True, text=True, timeout=60)
    assert done.stdout == f"{answer.format(own=own)} True\n", done.stderr


def test_an_interpreter_finds_the_probe_of_its_own_soabi_only(tmp_path: Path, python: str) -> None:
    own = _probes.look_at(python).soabi
    for soabi in {own, "cpython-36m-x86_64-linux-gnu", "cpython-399-x86_64-linux-gnu", "cpython-313t-x86_64-linux-gnu"}:
        (tmp_path / _probes.file_name(soabi)).write_text("")
    question = "import sys, importlib.machinery as m; print(m.PathFinder.find_spec('_probe', sys.argv[1:]).origin)"
    found = subprocess.run([python, "-I", "-c", question, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert found.stdout.strip() == str(tmp_path / _probes.file_name(own))


def test_the_options_lie_beside_the_hook(tmp_path: Path) -> None:
    options = json.loads((staged(tmp_path) / "options.json").read_text())
    assert options["sites"] == "off"
    assert options["session"] == str(tmp_path / "session")


@pytest.mark.parametrize(("before", "after"), [
    (None, "/s/boot"), ("", "/s/boot:/s/boot"), ("/mine:/yours", "/s/boot:/mine:/yours"),
])
def test_the_boot_folder_comes_first_and_nothing_else_changes(before: str | None, after: str) -> None:
    given = {"LANG": "C"} if before is None else {"LANG": "C", "PYTHONPATH": before}
    assert environment.bring_in(Path("/s/boot"), given) == {"LANG": "C", "PYTHONPATH": after}


@pytest.mark.parametrize(("before", "after"), [
    (None, "{}/libleakscope_native.so"), ("", "{}/libleakscope_native.so"), ("/mine.so", "{}/libleakscope_native.so:/mine.so"),
])
def test_the_staged_sampler_of_native_memory_is_preloaded_before_others(
        tmp_path: Path, before: str | None, after: str) -> None:
    (tmp_path / environment.PRELOADED).write_text("")
    given = {} if before is None else {"LD_PRELOAD": before}
    assert environment.bring_in(tmp_path, given)["LD_PRELOAD"] == after.format(tmp_path)


def test_native_memory_that_cannot_be_sampled_is_said_before_the_command_starts(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = sessions.create(tmp_path / "a b" / "session", ["python"], {"native": True})
    monkeypatch.setattr(_probes, "preloaded", lambda: None)
    with pytest.raises(LeakScopeError, match="was not built when leakscope was installed"):
        environment.stage(session, {"native": True})
    monkeypatch.setattr(_probes, "preloaded", lambda: tmp_path / "x.so")
    with pytest.raises(LeakScopeError, match="LD_PRELOAD cannot hold the folder '.*a b.*'"):
        environment.stage(session, {"native": True})


def test_a_folder_that_pythonpath_cannot_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LeakScopeError, match="PYTHONPATH cannot hold the folder"):
        staged(tmp_path / "a:b")


def test_an_agent_that_cannot_be_copied_is_refused_with_the_systems_reason(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: object, target: object, **more: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shutil, "copystat", full)
    with pytest.raises(LeakScopeError, match="cannot be copied to .*: .*No space left on device"):
        staged(tmp_path)


def test_a_python_with_this_environment_reports_in_and_finds_its_own_sitecustomize(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('mine')\n")
    boot = staged(tmp_path)
    done = subprocess.run([sys.executable, "-c", "print('program')"], capture_output=True, text=True, timeout=120,
                          env=environment.bring_in(boot, {**os.environ, "PYTHONPATH": str(tmp_path)}))
    assert (done.stdout, done.stderr) == ("mine\nprogram\n", "")
    (process,) = sessions.open(tmp_path).processes()
    assert (process.role, process.status) == ("main", "complete")
