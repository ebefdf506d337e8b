"""What of a command may be written down: one table for the agent and for the host."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from leakscope.agent import command
from leakscope.inject import environment

TRUTH = [
    ("python x.py", "python x.py"),
    ("/usr/local/bin/python3.12 -u -X dev x.py --port 80 -v", "python3.12 -u -X *** x.py --port *** -v"),
    ("python -W ignore x.py --token secret", "python -W *** x.py --token ***"),
    ("python -Wsecret -Xsecret x.py", "python -W*** -X*** x.py"),
    ("python -uWsecret -Zsecret x.py", "python -uW*** -Z*** x.py"),
    ("python --check-hash-based-pycs never x.py", "python --check-hash-based-pycs *** x.py"),
    ("python -m shop.serve --db=secret secret", "python -m shop.serve --db=*** ***"),
    ("python -m app --token=abc --port 80 name", "python -m app --token=*** --port *** ***"),
    ("python -Im shop.serve", "python -Im shop.serve"),
    ("python -mshop.serve -m secret", "python -mshop.serve -m ***"),
    ("python -m se-cret", "python -m ***"),
    ("python -c secret secret", "python -c *** ***"),
    ("python -c -secret -m secret", "python -c *** -m ***"),
    ("python -cpass -m secret", "python -c*** -m ***"),
    ("python - -m secret", "python - -m ***"),
    ("python gone.py -m secret", "python *** -m ***"),
    ("python x.py -m secret", "python x.py -m ***"),
    ("python x.py python -m secret", "python x.py *** -m ***"),
    ("python folder -m secret", "python folder -m ***"),
    ("python x.py data.csv x.py", "python x.py *** ***"),
    ("python x.py -----BEGIN", "python x.py ***"),
    ("python x.py -psecret -p=secret -p secret", "python x.py -p*** -p*** -p ***"),
    ("python x.py --a/secret --secret:1=x -1secret", "python x.py *** *** ***"),
    ("python x.py -- secret", "python x.py -- ***"),
    ("uvicorn shop.app:app --workers 2", "uvicorn shop.app:app --workers ***"),
    ("uvicorn --reload shop.app:app", "uvicorn --reload shop.app:app"),
    ("uvicorn --header user:secret shop.app:app user:secret", "uvicorn --header *** shop.app:app ***"),
    ("python -m uvicorn shop.app:make()", "python -m uvicorn shop.app:make()"),
    ("gunicorn -k secret shop:app secret:99 -b0.0.0.0:80", "gunicorn -k *** shop:app *** -b***"),
    ("curl user:password", "curl ***"),
    ("curl folder", "curl ***"),
    ("env TOKEN=secret python x.py secret", "env *** python x.py ***"),
    ("torchrun --nproc-per-node=2 x.py", "torchrun --nproc-per-node=*** x.py"),
    ("", ""),
]


@pytest.mark.parametrize("masked", [command.masked, environment.masked], ids=["agent", "host"])
@pytest.mark.parametrize(("typed", "shown"), TRUTH)
def test_names_are_shown_and_values_are_masked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, masked, typed, shown) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for name in ("x.py", "data.csv"):
        (tmp_path / name).write_text("")
    assert masked(typed.split()) == shown.split()


def test_a_script_elsewhere_is_shown_by_its_name_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "x.py").write_text("")
    monkeypatch.chdir(tmp_path / "here")
    assert command.masked(["python", str(tmp_path / "x.py")]) == ["python", "x.py"]


def test_a_command_is_masked_also_where_the_working_directory_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "x.py").write_text("")
    monkeypatch.chdir(tmp_path / "here")
    os.rmdir(tmp_path / "here")
    assert command.masked(["python", str(tmp_path / "x.py"), "secret"]) == ["python", "x.py", "***"]


@pytest.mark.parametrize("name", ["python", "/usr/bin/python3", "python3.13t", "pypy3"])
def test_an_interpreter_is_known_by_its_name(name: str) -> None:
    assert command.is_python(name)


@pytest.mark.parametrize("name", ["pythonic", "ipython", "python-config", "perl"])
def test_what_only_sounds_like_an_interpreter_is_none(name: str) -> None:
    assert not command.is_python(name)
