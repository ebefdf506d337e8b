"""Every face of four reports, whole. How to renew the files: see golden.py."""

from __future__ import annotations

import io

import pytest

from leakscope.render import _pictures, html, json, markdown, terminal
from tests.render.golden import assert_golden
from tests.render.reports import ALL


@pytest.fixture(autouse=True)
def without_graphviz(monkeypatch):
    """Its drawings differ between versions; test_pictures.py looks at them."""
    monkeypatch.setattr(_pictures, "program", lambda: None)


@pytest.mark.parametrize("name", ALL)
def test_the_page_is_as_agreed(name):
    assert_golden(f"{name}.html", html.text_of(ALL[name]()))


@pytest.mark.parametrize("name", ALL)
def test_the_ticket_text_is_as_agreed(name):
    assert_golden(f"{name}.md", markdown.text_of(ALL[name]()))


@pytest.mark.parametrize("name", ALL)
def test_the_machine_face_is_as_agreed(name):
    assert_golden(f"{name}.json", json.text_of(ALL[name]()))


@pytest.mark.parametrize("name", ALL)
def test_the_last_words_are_as_agreed(name):
    stream = io.StringIO()
    terminal.render(ALL[name](), stream, "leakscope-report/report.html")
    assert_golden(f"{name}.txt", stream.getvalue())
