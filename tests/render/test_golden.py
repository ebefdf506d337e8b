"""Every face of five reports, whole. How to renew the files: see golden.py."""

from __future__ import annotations

import dataclasses
import io

import pytest

from leakscope.model import Confidence, Finding, Rule, Verdict, VerdictClass
from leakscope.render import _pictures, html, json, markdown, terminal
from tests.render import h200
from tests.render.devices import gpu_leak
from tests.render.golden import assert_golden
from tests.render.reports import ALL as OF_HOST

ALL = {**OF_HOST, "gpu-leak": gpu_leak}


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


def test_a_finding_of_which_almost_nothing_is_known_has_every_face():
    bare = Finding(Rule("LS201", "native-growth", "Native memory grows"), Confidence.LOW, "native", "", None, "")
    verdict = Verdict(VerdictClass.NATIVE_LEAK, Confidence.LOW, "Memory outside Python objects grew by 9.0 MiB.")
    report = dataclasses.replace(ALL["no-leak"](), findings=(bare,), verdict=verdict, series=(), snapshots=(), layers=())
    stream = io.StringIO()
    terminal.render(report, stream)
    for text in (html.text_of(report), markdown.text_of(report), json.text_of(report)):
        assert "native-growth" in text
    assert "NATIVE LEAK" in stream.getvalue()
    assert "``" not in markdown.text_of(report)


@pytest.fixture(scope="module")
def two_hours(tmp_path_factory):
    """Two simulated hours of a server on an H200, through the whole pipeline."""
    return h200.report(tmp_path_factory.mktemp("h200"))


@pytest.mark.parametrize(("suffix", "text_of"), [("html", html.text_of), ("md", markdown.text_of), ("json", json.text_of)])
def test_two_simulated_hours_on_a_device_are_told_as_agreed(two_hours, suffix, text_of):
    assert_golden(f"h200-simulated.{suffix}", text_of(two_hours))


def test_the_last_words_on_two_simulated_hours_are_as_agreed(two_hours):
    stream = io.StringIO()
    terminal.render(two_hours, stream, "leakscope-report/report.html")
    assert_golden("h200-simulated.txt", stream.getvalue())
