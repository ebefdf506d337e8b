"""What of a command may be shown, and what will be started for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from leakscope.commands._command import find, masked
from leakscope.errors import UsageError


@pytest.mark.parametrize(("typed", "shown"), [
    ("python x.py", "python x.py"),
    ("/usr/local/bin/python3.12 -u -X dev x.py --port 80 -v", "python3.12 -u -X *** x.py --port *** -v"),
    ("python -m shop.serve --db=secret secret", "python -m shop.serve --db=*** ***"),
    ("python -Im shop.serve", "python -Im shop.serve"),
    ("python -c secret secret", "python -c *** ***"),
    ("python gone.py", "python ***"),
    ("uvicorn shop.app:app --workers 2", "uvicorn shop.app:app --workers ***"),
    ("python -m uvicorn shop.app:make()", "python -m uvicorn shop.app:make()"),
    ("gunicorn -k secret shop:app secret:99 -b0.0.0.0:80", "gunicorn -k *** shop:app *** -b***"),
    ("curl user:password", "curl ***"),
    ("env TOKEN=secret python x.py secret", "env *** python x.py ***"),
    ("python x.py data.csv x.py", "python x.py *** ***"),
    ("torchrun --nproc-per-node=2 x.py", "torchrun --nproc-per-node=*** x.py"),
    ("python x.py -----BEGIN", "python x.py ***"),
    ("python x.py -psecret", "python x.py -p***"),
    ("", ""),
])
def test_names_are_shown_and_values_are_masked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: str, shown: str) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("x.py", "data.csv"):
        (tmp_path / name).write_text("")
    assert masked(typed.split()) == shown.split()


def test_a_script_elsewhere_is_shown_by_its_name_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "x.py").write_text("")
    monkeypatch.chdir(tmp_path / "here")
    assert masked(["python", str(tmp_path / "x.py")]) == ["python", "x.py"]


def test_a_script_without_an_interpreter_is_run_by_the_shell_as_a_shell_would(tmp_path: Path) -> None:
    script = tmp_path / "go"
    script.write_text("echo go\n")
    script.chmod(0o755)
    assert find([str(script), "1"]).argv == ["/bin/sh", str(script), "1"]


def test_the_command_keeps_the_name_it_was_called_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "serve"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = find(["serve", "--now"])
    assert (found.path, found.argv) == (str(script), ["serve", "--now"])


def test_a_command_with_a_typing_mistake_gets_the_nearest_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gunicorn").write_text("#!/bin/sh\n")
    (tmp_path / "gunicorn").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError) as caught:
        find(["gunicron", "app:app"])
    assert caught.value.hint == "leakscope run -- gunicorn app:app"
