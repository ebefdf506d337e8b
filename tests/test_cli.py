"""The command line: every error is one sentence and a hint, with the exit code that is written down."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

import leakscope
from leakscope import cli, plugins
from leakscope.errors import LeakScopeError, UsageError

ROOT = Path(leakscope.__file__).parent.parent


def raising(error: BaseException) -> click.Command:
    @click.command()
    def command() -> None:
        raise error

    return command


@pytest.mark.parametrize(("error", "code", "said"), [
    (LeakScopeError("It is so.", "do this"), 1, "leakscope: It is so.\n  hint: do this\n"),
    (UsageError("Not so."), 2, "leakscope: Not so.\n"),
    (click.BadParameter("wrong"), 2, "leakscope: Invalid value: wrong.\n  hint: leakscope anything --help\n"),
    (KeyboardInterrupt(), 130, "\nleakscope: Stopped by Ctrl-C.\n"),
    (ZeroDivisionError("division"), 70, "leakscope: An error in leakscope itself: ZeroDivisionError: division\n"
                                        "  hint: run again with LEAKSCOPE_DEBUG=1 to see the traceback\n"),
])
def test_an_error_has_its_sentence_and_its_exit_code(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
                                                     error: BaseException, code: int, said: str) -> None:
    monkeypatch.delenv("LEAKSCOPE_DEBUG", raising=False)
    monkeypatch.setattr(cli.group, "get_command", lambda _context, _name: raising(error))
    assert cli.main(["anything"]) == code
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", said)


def test_the_traceback_is_shown_when_asked_for(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("LEAKSCOPE_DEBUG", "1")
    monkeypatch.setattr(cli.group, "get_command", lambda _context, _name: raising(ZeroDivisionError("division")))
    assert cli.main(["anything"]) == 70
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_every_command_is_listed_and_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    overview = capsys.readouterr().out
    for name in plugins.load("leakscope.commands", ("command",)):
        assert f"\n  {name} " in overview
        assert cli.main([name, "--help"]) == 0
        assert capsys.readouterr().out.startswith("Usage: leakscope ")


@pytest.mark.parametrize("code", ["0", "1", "2", "3", "70", "128+N"])
def test_the_exit_codes_are_written_down_in_the_help(capsys: pytest.CaptureFixture[str], code: str) -> None:
    cli.main(["--help"])
    assert any(line.strip().startswith(f"{code} ") for line in capsys.readouterr().out.splitlines())


@pytest.mark.parametrize("name", ["rn", "_say", "nothing", "a.b"])
def test_an_unknown_command_is_a_mistake(capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert cli.main([name]) == 2
    assert capsys.readouterr().err.startswith(f"leakscope: No such command '{name}'.\n  hint: ")


def test_without_anything_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 0
    assert "Start here: leakscope run -- python serve.py" in capsys.readouterr().out


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"leakscope {leakscope.__version__}\n"


def test_a_reader_that_has_gone_away_is_no_error(tmp_path: Path) -> None:
    script = f"{sys.executable} -m leakscope explain 2>err | true; cat err"
    done = subprocess.run(["/bin/bash", "-c", script], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True,
                          capture_output=True, timeout=120)
    assert (done.stdout, done.stderr) == ("", "")


def test_what_run_needs_before_the_target_starts_is_light() -> None:
    heavy = ("numpy", "jinja2", "rich", "graphviz", "leakscope.render", "leakscope.detectors", "asyncio")
    program = f"import sys, leakscope.cli, leakscope.commands.run; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True,
                          capture_output=True, timeout=120)
    assert done.stdout == "[]\n"
