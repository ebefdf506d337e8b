"""report.md: what a ticket takes."""

from __future__ import annotations

import re

import pytest

from leakscope.render import markdown
from tests.render.devices import gpu_leak, hostile_devices
from tests.render.reports import ALL, HOSTILE, KNOWN, delayed_garbage, hostile, large, python_leak, with_known


def without_code(text: str) -> str:
    """The text as a Markdown reader sees it: without fences and code spans."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)", "", text)


@pytest.mark.parametrize("name", ALL)
def test_a_text_for_a_ticket_holds_no_html_and_every_chapter(name):
    text = markdown.text_of(ALL[name]())
    assert not re.search(r"<\w", without_code(text))
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == [
        "Where the growth went", "Suspects", "Looked at and dismissed", "Not measured", "Environment"]


def test_the_trace_is_drawn_root_first_with_its_suspect_edges_underlined():
    text = markdown.text_of(python_leak())
    trace = text[text.index("```text\n") + 8:]
    assert trace[:trace.index("\n```")].splitlines() == [
        "|- NO      module serve .store   (a module lives for ever)",
        "|                       ~~~~~~",
        "|- UNKNOWN serve.SessionStore ._by_id",
        "|                             ~~~~~~~",
        "|- UNKNOWN dict [str:36]",
        "|               ~~~~~~~~",
        "`- YES     serve.Session   (its socket is closed)",
    ]


def test_a_known_leak_and_the_name_after_a_rename_are_told():
    text = markdown.text_of(with_known(python_leak()))
    assert f"- Known: {KNOWN}" in text.replace("\\", "")
    assert "(after a rename still `LS1s-5ZB6W3QXK2M4TNPA`)" in text


def test_a_cycle_is_drawn_with_its_way_back():
    assert "|- StreamParser .response -> Response\n`- Response .parser -> back to StreamParser" in markdown.text_of(
        delayed_garbage())


def test_names_are_code_so_that_a_ticket_does_not_make_them_bold():
    assert "`serve.SessionStore._by_id` (dict) grew" in markdown.text_of(python_leak())
    sentence = markdown.escaped("see __main__.Ranker.seen, *args and <locals>.")
    assert sentence == "see `__main__.Ranker.seen`, `*args` and `<locals>`."


def test_a_device_is_told_by_its_terms_its_owners_and_its_caches():
    text = markdown.text_of(gpu_leak())
    assert "\n## Device cuda:0\n" in text
    for row in ("| Tensors that Python holds | +12.4 GiB | 73.6 GiB |", "| **Used by this process** | +16.9 GiB | 86.4 GiB |",
                "| `serve.client._tensor_cache[*]` | 12.0 GiB | +12.0 GiB | 6 348 | `EmbeddingClient.embed` (`serve.py:61`) |",
                "| 12 -> 412 |", "the largest free block has 720.0 MiB"):
        assert row in text


def test_a_table_cell_with_a_bar_stays_one_cell():
    assert markdown.cell("a | b") == "a `\\|` b"


def test_a_code_span_holds_backticks():
    assert markdown.code("a`b") == "`` a`b ``"


@pytest.mark.parametrize("made", [hostile, hostile_devices])
def test_hostile_names_make_no_markup(made):
    text = markdown.text_of(made())
    assert not re.search(r"<[!/\w]", without_code(text))
    assert not re.search(r"^# @all", text, re.MULTILINE)
    assert "](javascript" not in without_code(text)
    assert "\x1b" not in text
    assert HOSTILE[:20] in text


def test_a_large_report_is_cut_to_what_a_ticket_takes_and_says_so():
    text = markdown.text_of(large())
    assert len(text) <= markdown.LIMIT
    assert text.count("```") % 2 == 0
    assert "more are in report.json" in text or "cut here" in text


def test_a_report_of_one_endless_name_is_cut_too():
    text = markdown.text_of(hostile("name " * 30_000))
    assert len(text) <= markdown.LIMIT
    assert "..." in text
