"""The agent is staged as a copy, and the target's environment changes in one variable only."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import sysconfig
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


def test_every_probe_goes_along_under_the_name_that_its_interpreter_imports(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    kept = _probes.cached("cpython-310-x86_64-linux-gnu")
    kept.parent.mkdir(parents=True)
    kept.write_text("binary")
    kept.with_name("cpython-312-x86_64-linux-gnu-0123456789abcdef.so").write_text("of other sources")
    there = files(staged(tmp_path) / "_leakscope_agent")
    assert "_probe.cpython-310-x86_64-linux-gnu.so" in there
    assert not [name for name in there if "312" in name and "312" not in sysconfig.get_config_var("SOABI")]


def test_a_cached_probe_of_another_user_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kept = _probes.cached("cpython-307-anything")
    kept.parent.mkdir(parents=True)
    kept.write_text("binary")
    assert "cpython-307-anything" in _probes.built()
    monkeypatch.setattr(os, "geteuid", lambda: kept.stat().st_uid + 1)
    assert "cpython-307-anything" not in _probes.built()


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
