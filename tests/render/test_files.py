"""A report is written whole or not at all."""

from __future__ import annotations

import os

import pytest

from leakscope.errors import LeakScopeError
from leakscope.render import html, json, markdown
from leakscope.render._files import write_text
from tests.render.reports import no_leak


def test_a_folder_that_is_missing_is_made(tmp_path):
    write_text(tmp_path / "a" / "b" / "report.md", "text\n")
    assert (tmp_path / "a" / "b" / "report.md").read_bytes() == b"text\n"


def test_a_report_replaces_the_one_before_and_leaves_nothing_else(tmp_path):
    write_text(tmp_path / "report.md", "one")
    write_text(tmp_path / "report.md", "two")
    assert [path.name for path in tmp_path.iterdir()] == ["report.md"]
    assert (tmp_path / "report.md").read_text() == "two"


def test_a_write_that_fails_leaves_the_old_report(tmp_path, monkeypatch):
    write_text(tmp_path / "report.md", "old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(LeakScopeError, match="report.md cannot be written: No space left on device") as caught:
        write_text(tmp_path / "report.md", "new")
    assert caught.value.hint
    assert [path.name for path in tmp_path.iterdir()] == ["report.md"]
    assert (tmp_path / "report.md").read_text() == "old"


def test_letters_that_utf_8_does_not_have_are_replaced(tmp_path):
    write_text(tmp_path / "report.md", "a\ud800b")
    assert (tmp_path / "report.md").read_bytes() == b"a?b"


@pytest.mark.parametrize("renderer", [html, json, markdown])
def test_a_renderer_says_in_a_sentence_where_it_cannot_write(renderer, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LeakScopeError, match="cannot be written"):
        renderer.render(no_leak(), tmp_path / "file" / f"report{renderer.SUFFIX}")
