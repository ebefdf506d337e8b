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
from leakscope.inject import environment


def staged(folder: Path) -> Path:
    session = sessions.create(folder / "session", ["python"], {"sites": "off"})
    return environment.stage(session, session.info["options"])


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_this_machine_can_run_commands() -> None:
    assert environment.usable() is None


def test_the_agent_is_copied_whole_without_bytecode(tmp_path: Path) -> None:
    boot = staged(tmp_path)
    original = {name for name in files(environment.AGENT_FOLDER) if "__pycache__" not in name and not name.startswith("boot")}
    assert files(boot / "_leakscope_agent") == original
    assert (boot / "sitecustomize.py").read_text() == (environment.AGENT_FOLDER / "boot" / "sitecustomize.py").read_text()


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
