"""The last words of a run."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest

from leakscope.render import terminal
from tests.render.devices import gpu_leak, hostile_devices
from tests.render.reports import ALL, KNOWN, hostile, large, python_leak, with_known


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def said(report, stream=None, report_file="out/report.html"):
    stream = stream or io.StringIO()
    terminal.render(report, stream, report_file)
    return stream.getvalue()


@pytest.mark.parametrize("report", [*ALL.values(), hostile, large, gpu_leak, hostile_devices])
def test_there_are_at_most_twelve_lines_and_the_last_names_the_report(report):
    lines = said(report()).splitlines()
    assert len(lines) <= 12
    assert lines[-1] == "  report     out/report.html"
    assert all(len(line) <= 122 for line in lines)


def test_without_a_file_the_last_line_is_left_out():
    assert "report.html" not in said(python_leak(), report_file="")


def test_a_stream_that_is_no_terminal_gets_plain_text():
    assert "\x1b" not in said(python_leak())


def test_a_terminal_gets_colour_and_no_line_is_wider_than_it(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured = said(python_leak(), Terminal())
    assert "\x1b[1;31mLEAK\x1b[0m" in coloured
    monkeypatch.setenv("NO_COLOR", "1")
    plain = said(python_leak(), Terminal())
    assert "\x1b[1;31m" not in plain and "\x1b[31m" not in plain
    monkeypatch.setenv("TERM", "dumb")
    lines = said(python_leak(), Terminal()).splitlines()
    assert "\x1b" not in "".join(lines)


def test_a_narrow_terminal_cuts_the_middle_of_a_path(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("NO_COLOR", "1")
    import re
    lines = [re.sub(r"\x1b\[[\d;]*m", "", line) for line in said(python_leak(), Terminal()).splitlines()]
    assert all(len(line) <= 60 for line in lines)
    assert any(line.startswith("  held by    module serve .store") and "..." in line and line.endswith("serve.Session")
               for line in lines)


def test_escape_sequences_in_a_name_do_not_reach_the_terminal():
    assert "\x1b" not in said(hostile())


def test_a_stream_of_ascii_takes_names_in_other_letters():
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    terminal.render(hostile("модуль.Класс"), stream, "out/report.html")
    stream.flush()
    assert rb"\u043c" in raw.getvalue()


def test_a_cycle_is_named_by_its_attributes():
    assert "StreamParser.response -> Response.parser -> StreamParser" in said(ALL["delayed-garbage"]())


def test_a_run_without_evidence_says_what_to_run_next():
    assert "leakscope run --every 1s -- python job.py" in said(ALL["insufficient-evidence"]())


def test_a_known_leak_is_told_in_the_last_words():
    assert f"  known      {KNOWN}" in said(with_known(python_leak()))


def test_what_to_do_is_wrapped_and_not_cut_in_its_middle():
    report = python_leak()
    remedy = "Store the text of the exception, " + "and let its traceback go, " * 6 + "at once."
    lines = said(replace(report, findings=(replace(report.findings[0], remedy=remedy), *report.findings[1:]))).splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("  remedy"))
    assert " ".join(line[13:] for line in lines[first:first + 2]) == remedy


def test_of_the_caches_the_blamed_one_is_told_else_the_one_that_grew_most():
    report = gpu_leak()
    assert "  cache      serve.client._tensor_cache 12 -> 6 348 entries" in said(report)
    blamed = replace(report.findings[0], owner="flashinfer.prefill.get_batch_prefill_module")
    assert "  cache      flashinfer.prefill....h_prefill_module() 12 -> 412 entries; argument 3" in said(
        replace(report, findings=(blamed,)))
