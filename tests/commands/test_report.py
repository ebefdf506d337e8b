"""leakscope report: the report of a session, made again."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from leakscope import session as sessions
from leakscope.commands import _make_report
from leakscope.commands.report import command, output_of
from leakscope.errors import LeakScopeError, SessionError, UsageError


@pytest.fixture
def run_folder(tmp_path):
    """What `leakscope run -o run` leaves when no agent reported in: a session without evidence."""
    session = sessions.create(tmp_path / "run" / "session", ["python", "-I", "job.py"], {})
    session.write_info(state="complete", duration_s=1.5, exit_code=0)
    return tmp_path / "run"


@pytest.fixture
def asked(monkeypatch):
    """What the command asks of make_report, which has its own tests."""
    calls = []
    monkeypatch.setattr(_make_report, "make_report", lambda *arguments: calls.append(arguments))
    return calls


def report(*arguments):
    return CliRunner().invoke(command, [str(argument) for argument in arguments], catch_exceptions=False, standalone_mode=False)


def failure(*arguments) -> LeakScopeError:
    result = CliRunner().invoke(command, [str(argument) for argument in arguments], standalone_mode=False)
    assert isinstance(result.exception, LeakScopeError)
    return result.exception


def test_the_report_of_a_run_lies_beside_its_session(run_folder, asked):
    for named in (run_folder, run_folder / "session"):
        report(named)
        session, place, formats = asked.pop()[:3]
        assert (session.path.resolve(), place) == ((run_folder / "session").resolve(), run_folder.resolve())
        assert formats == ("html", "markdown", "json", "terminal")


def test_the_report_of_a_session_with_another_name_lies_in_it(tmp_path):
    assert output_of(tmp_path / "nightly") == (tmp_path / "nightly").resolve()


def test_the_folder_and_the_formats_can_be_chosen(run_folder, tmp_path, asked):
    report(run_folder, "-o", tmp_path / "else", "--format", "json, md,json,markdown")
    assert asked[0][1:3] == (tmp_path / "else", ("json", "markdown"))


def test_a_session_without_evidence_still_has_a_report_and_a_second_one_replaces_it(run_folder):
    (run_folder / "report.html").write_text("old")
    result = report(run_folder)
    assert "insufficient-evidence" in result.stdout
    assert json.loads((run_folder / "report.json").read_text())["verdict"]["class"] == "insufficient-evidence"
    assert (run_folder / "report.html").read_text().startswith("<!doctype html>")
    assert (run_folder / "report.md").read_text().startswith("# LeakScope")


def test_a_format_that_nobody_makes_is_named(run_folder, asked):
    error = failure(run_folder, "--format", "html,pdf")
    assert isinstance(error, UsageError) and "'pdf'" in error.sentence and "html,md,json,terminal" in error.hint


def test_no_format_at_all_is_a_mistake(run_folder, asked):
    assert isinstance(failure(run_folder, "--format", ","), UsageError)


def test_a_folder_that_is_no_session_is_named(tmp_path, asked):
    error = failure(tmp_path)
    assert isinstance(error, SessionError) and str(tmp_path) in error.sentence


def test_a_folder_that_is_missing_is_named(tmp_path, asked):
    assert "nowhere" in failure(tmp_path / "nowhere").sentence


def test_a_file_where_the_folder_should_be_is_refused_before_any_work(run_folder, tmp_path, asked):
    (tmp_path / "taken").write_text("mine")
    error = failure(run_folder, "-o", tmp_path / "taken")
    assert isinstance(error, UsageError) and error.hint
    assert (tmp_path / "taken").read_text() == "mine"
    assert asked == []


def test_a_list_of_known_leaks_goes_into_the_report_and_a_wrong_one_is_refused(run_folder, tmp_path, asked):
    entry = '[[leak]]\nid = "a"\npath = ["app.Cache"]\nexplanation = "It stays."\nreference = "A-1"\n'
    (tmp_path / "known.toml").write_text(entry)
    report(run_folder, "--known", tmp_path / "known.toml")
    assert [leak.id for leak in asked[0][4].leaks] == ["a"]
    assert "no-such.toml" in failure(run_folder, "--known", tmp_path / "no-such.toml").sentence
