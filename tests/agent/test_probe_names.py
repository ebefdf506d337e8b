"""What the probe shows of a name is what agent/names.py shows, letter by letter; and no value of the target ever leaves it."""

from __future__ import annotations

import functools
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leakscope.agent.names import Names, file_name
from tests.agent.probes import probe_for
from tests.agent.twins import take


@functools.cache
def probe() -> Any:
    (path,) = probe_for(sys.executable).glob("_probe.*.so")
    spec = importlib.util.spec_from_file_location("_probe", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def shown(kind: str, text: object, words: frozenset[str]) -> str:
    """What names.py shows."""
    names: Any = Names()
    names.constants.update(words)
    if kind == "given":
        return str(names.given(text))
    if kind == "file":
        return str(file_name(text))
    row = {"key": names.key, "attribute": names.attribute, "dotted": names.dotted}[kind](text)
    return str(names.strings[row])


KINDS = ("key", "attribute", "dotted", "given", "file")
PARTS = ("orders", "feed", "feed-", "Thread", "asyncio", "_", "-", " (", ")", "run", ".", "..", "<locals>", "<lambda>",
         "0", "12", "123456", "/", "\\", "usr", "site-packages", "python3.11", ".py", "<string>", "<frozen ", ">", " ", "@",
         "é", "\u540d\u524d", "\u00b2", "\u0663", "\x00", "\ud800", "maxsize", "?", "", "x" * 59, "y" * 70)
texts = st.one_of(st.lists(st.sampled_from(PARTS), max_size=6).map("".join), st.text(max_size=80),
                  st.text("ab_1.- (", max_size=70))


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(KINDS), texts, st.frozensets(texts, max_size=4), st.booleans())
def test_texts_are_shown_as_names_py_shows_them(kind: str, text: str, words: frozenset[str], is_known: bool) -> None:
    known = words | {text, text.rstrip("0123456789-_")} if is_known else words
    assert probe().mask(kind, text, known) == shown(kind, text, known)


@pytest.mark.parametrize("key", (
    None, True, False, 5, 1 << 80, 2.5, 1j, b"secret", ("secret", 2), frozenset({"secret"}), len, "".join, str, Path, Names.key,
    lambda: 0, type("Odd.Name", (), {}), object(), Path("secret"), type("Meta", (type,), {})("Made", (), {}),
    type("Text", (str,), {})("secret")))
def test_keys_that_are_no_text(key: object) -> None:
    assert probe().mask("key", key, frozenset()) == shown("key", key, frozenset())
    assert "secret" not in probe().mask("key", key, frozenset())


def test_many_keys_that_are_no_words_share_a_row_for_each_length(tmp_path: Path) -> None:
    twins = take(sys.executable, "KEEP = {'user%d' % n: n for n in range(100_000)}\nboth()\n", tmp_path)
    assert len(twins.native.strings) < 60_000
    assert not [text for text in twins.native.strings if "user1" in text]


def test_a_planted_secret_is_in_no_file_of_a_snapshot(tmp_path: Path) -> None:
    twins = take(sys.executable, '''
import os, threading
SECRET = os.environ.get("NOWHERE", "") + "s3cr3t" + str(90)[:0] + "".join(("-of-", "alice"))
class Holder:
    pass
holder = Holder()
setattr(holder, SECRET, 1)
KEEP = {SECRET: SECRET, (SECRET,): 1, SECRET.encode(): [SECRET]}
threading.current_thread().name = SECRET
made = type(SECRET, (), {SECRET: 1})
made.__module__ = SECRET
space = {"__name__": SECRET}
exec(compile("def run():\\n    pass\\n", "/home/app/x.py", "exec"), space)
run = space["run"]
run.__name__ = run.__qualname__ = SECRET
both()
''', tmp_path)
    for path in twins.native.folder.iterdir():
        content = path.read_bytes()
        assert b"s3cr3t-of" not in content and "s3cr3t-of".encode("utf-32-le") not in content, path.name
