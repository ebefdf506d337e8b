"""Bytes beside objects whose type has no __sizeof__ for them."""

import io
import sys

from leakscope.agent import sizes


class Page(io.StringIO):
    """A class of the program that derives from one in C."""


def test_a_text_that_was_read_again_counts_four_bytes_a_letter_beside_its_file() -> None:
    page = Page("x" * 10_000)
    page.read(1)
    beside = sizes.beside(Page)
    assert beside is not None
    assert 40_000 < beside(page) < 50_000


def test_a_text_that_is_only_appended_to_counts_where_it_is_one_string() -> None:
    page = io.StringIO()
    for _ in range(10):
        page.write("x" * 1000)
    beside = sizes.beside(io.StringIO)
    assert beside is not None
    # Up to 3.11 it is a list of strings, which the collector knows: a node of its own.
    assert 10_000 < beside(page) < 20_000 if sys.version_info >= (3, 12) else beside(page) < 100


def test_a_class_without_such_a_base_has_nothing_beside_it() -> None:
    class StringIO:
        """Only called so."""

    assert sizes.beside(StringIO) is None
