"""Words and numbers."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakscope.model import Rate
from leakscope.render import _text
from tests.render.reports import MIB, python_leak


@pytest.mark.parametrize("sentence, names", [
    ("serve.Store._by_id (dict) grew by 1.9 GiB, 2.1 per request.", ["serve.Store._by_id"]),
    ("Call SessionStore.close(), or error.with_traceback(None).", ["SessionStore.close()", "error.with_traceback(None)"]),
    ("See app.py:12, e.g. module.function.<locals>.seen[*] and __init__.",
     ["app.py:12", "module.function.<locals>.seen[*]", "__init__"]),
    ("It rose from 12 to 3 120 in 38.0 s; a limit of 4096.", []),
])
def test_names_of_the_program_are_told_from_words(sentence, names):
    assert [text for is_name, text in _text.prose(sentence) if is_name and text != "e.g"] == names


@given(st.text())
def test_no_letter_of_a_sentence_is_lost(sentence):
    assert "".join(text for _, text in _text.prose(sentence)) == sentence


@pytest.mark.parametrize("rate, text", [
    (Rate(3.4 * MIB, 3.3 * MIB, 3.5 * MIB), "+3.4 MiB/s (95 % interval: 3.3 MiB to 3.5 MiB)"),
    (Rate(200.0), "+11.7 KiB/min"),
    (Rate(2.0, 1.0, 3.0), "+7.0 KiB/h (95 % interval: 3.5 KiB to 10.5 KiB)"),
    (Rate(0.0), "0 B/h"),
])
def test_a_rate_is_told_in_a_readable_unit_of_time(rate, text):
    assert _text.rate_text(rate) == text


def test_controls_and_reversals_are_spelled_out_and_letters_kept():
    assert _text.printable("a\x1b[0m\u202eб\n") == "a\\x1b[0m\\u202eб\n"


def test_a_report_is_cleaned_in_every_place_and_keeps_its_types():
    report = python_leak()
    assert _text.cleaned(report) == report


def test_a_long_text_loses_its_middle():
    assert _text.clip("abcdefghij", 7) == "ab...ij"
    assert _text.clip("abc", 7) == "abc"


def test_what_lets_go_is_named_with_what_it_frees():
    assert _text.frees_text(python_leak().findings[0]) == (
        "168.0 MiB of the 174.0 MiB it retains, if serve.SessionStore._by_id lets go")


@pytest.mark.parametrize("column, word", [("rss_bytes", "RSS"), ("cuda0_allocated_bytes", "cuda:0 allocated"),
                                          ("gc_collections2", "Gc collections2"), ("threads", "Threads")])
def test_a_column_of_the_timeline_has_a_name_for_people(column, word):
    assert _text.series_word(column) == word


def test_backticks_around_a_name_are_not_shown_and_others_are():
    assert _text.unticked("argument 3 (`seq_len`) and `a b` or ``") == "argument 3 (seq_len) and `a b` or ``"


def test_a_limit_that_is_reached_at_once_is_not_reached_in_no_time() -> None:
    verdict = dataclasses.replace(python_leak().verdict, hours_until_oom=0.0, memory_limit_bytes=None)
    assert _text.clock_text(verdict) == "less than a minute until the limit"
