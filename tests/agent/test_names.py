"""What may be shown, and what is masked."""

from __future__ import annotations

import os
import types

import pytest

from leakscope.agent import format as layout
from leakscope.agent.names import Names, file_name


def program():
    table = {}
    table["orders"] = 1
    table["alice@example.org"] = 2
    table["card-4242424242424242"] = 3
    table["feed-"] = 4
    return [word for word in ("eu", "report")], frozenset() | {"nested words"}


@pytest.fixture
def names() -> Names:
    made = Names()
    made.learn_code(program.__code__)
    return made


@pytest.mark.parametrize(("key", "shown"), [
    ("orders", "'orders'"),
    ("nested words", "'nested words'"),
    ("eu", "'eu'"),
    ("alice", "str:5"),
    ("alice@example.org", "str:17"),  # a constant, but it does not look like a name
    ("card-4242424242424242", "str:21"),
    ("", "str:0"),
    (b"abcd", "bytes:4"),
    (7, "int"), (1.5, "float"), (2j, "complex"), (None, "None"), (True, "True"),
    (("a", 1), "tuple:2"), (frozenset("abc"), "frozenset:3"),
    (int, "int"), (types.SimpleNamespace, "SimpleNamespace"), (program, "program"), (object(), "object"),
])  # fmt: skip
def test_a_key_is_shown_only_if_it_is_a_word_of_the_program(names, key, shown):
    assert names.strings[names.key(key)] == shown


def test_a_key_that_is_a_str_of_its_own_type_is_not_asked(names):
    class Text(str):
        def __hash__(self):
            raise RuntimeError("code of the target ran")

    assert names.strings[names.key(Text("orders"))].endswith("Text")


@pytest.mark.parametrize(("name", "shown"), [
    ("_by_id", "_by_id"), ("größe", "größe"), (".0", ".0"),
    ("no identifier", "str:13"), ("user_123456", "str:11"), ("a" * 61, "str:61"),
])  # fmt: skip
def test_an_attribute_is_shown_if_it_is_an_identifier(names, name, shown):
    assert names.strings[names.attribute(name)] == shown


@pytest.mark.parametrize(("name", "shown"), [
    ("MainThread", "'MainThread'"), ("Thread-12", "'Thread-12'"), ("Thread-12 (drain)", "'Thread-12 (drain)'"),
    ("Task-3", "'Task-3'"), ("ThreadPoolExecutor-0_1", "'ThreadPoolExecutor-0_1'"), ("asyncio_0", "'asyncio_0'"),
    ("orders", "'orders'"), ("orders-7", "'orders-7'"), ("report_0", "'report_0'"), ("feed-3", "'feed-3'"),
    ("alice", "str:5"), ("alice-7", "str:7"), ("orders-4242424242", "str:17"), ("Thread-1 (a b)", "str:14"), (7, "int"),
])  # fmt: skip
def test_the_name_of_a_thread_is_shown_if_the_program_or_the_library_chose_it(names, name, shown):
    assert names.given(name) == shown


@pytest.mark.parametrize(("name", "shown"), [
    ("shop.Order", "shop.Order"), ("f.<locals>.<lambda>", "f.<locals>.<lambda>"), ("a b.c", "str:3.c"),
    (3, "?"), ("?", "?"),
])  # fmt: skip
def test_dotted_names_are_masked_part_by_part(names, name, shown):
    assert names.strings[names.dotted(name)] == shown


def test_files_are_shown_without_what_leads_to_them():
    assert file_name(os.path.join(os.getcwd(), "app", "views.py")) == os.path.join("app", "views.py")
    assert file_name("/srv/env/lib/python3.11/site-packages/aiohttp/web.py") == "site-packages/aiohttp/web.py"
    assert file_name("/usr/lib/python3.11/asyncio/tasks.py") == "python3.11/asyncio/tasks.py"
    assert file_name("/home/alice/projects/shop/app.py") == os.path.join("shop", "app.py")
    assert file_name("<string>") == "<string>"
    assert file_name("<frozen importlib._bootstrap>") == "<frozen importlib._bootstrap>"
    assert file_name("<generated for alice>") == "<generated>"
    assert file_name("alice's secret") == "?"


def test_a_place_names_function_file_and_line(names):
    place = names.place(program.__code__, 99)
    assert place.startswith("program() at ")
    assert place.endswith("test_names.py:99")


def test_a_row_is_given_once(names):
    assert names.row("a") == names.row("a") != names.row("b")
    assert names.strings[0] == ""
    assert names.local_label("x") == layout.edge_label(layout.LOCAL, names.row("x"))


def test_quoted_words_of_the_programs_own_sources_are_its_words(tmp_path):
    (tmp_path / "app.py").write_text("CACHE = {'tenants': {}, \"rates\": {}}\n")
    module = types.ModuleType("app")
    module.__file__ = str(tmp_path / "app.py")
    made = Names()
    made.learn_sources([module])
    assert made.strings[made.key("tenants")] == "'tenants'"
    assert made.strings[made.key("rates")] == "'rates'"
    assert made.strings[made.key("others")] == "str:6"
