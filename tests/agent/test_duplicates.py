"""Which texts are in memory more than once: the same by both walks on every Python, and nothing of what they hold."""

from __future__ import annotations

import json

import pytest

from leakscope.agent import duplicates
from tests.agent import twins
from tests.agent.walking import WAYS, taken

PROGRAM = '''
class Text(str): pass
letters = "planted-secret-" * 4
def again(text): return "".join(list(text))
KEPT = {
    "letters": [again(letters) for _ in range(3)],
    "wide": [again(letters + "\\u0416") for _ in range(2)],
    "hashed": [again(letters + "h") for _ in range(2)],
    "bytes": [bytes(list(letters.encode())) for _ in range(2)],
    "short": [again(letters[:31]) for _ in range(2)],
    "least": [again(letters[:32]) for _ in range(2)],
    "long": [again("x" * (1 << 20) + "y") for _ in range(2)],
    "other": [again(letters[:-1] + last) for last in "ab"],
    "derived": [Text(letters + "d") for _ in range(2)],
}
hash(KEPT["hashed"][0])
del letters
'''
EQUAL = {"letters": 3, "wide": 2, "hashed": 2, "bytes": 2, "least": 2}


@pytest.mark.parametrize("version", WAYS)
def test_exact_texts_of_some_length_with_the_same_content_are_one_list(version):
    snapshot = taken(version, PROGRAM + "snapshot()")
    groups = [set(rows) for rows in snapshot.names["duplicates"]]
    assert all(len(rows) > 1 for rows in groups)
    found = {}
    for name in ("letters", "wide", "hashed", "bytes", "short", "least", "long", "other", "derived"):
        nodes = set(snapshot.follow(snapshot.module(), "attribute KEPT", f"key '{name}'", "index"))
        assert len(nodes) > 1
        within = [rows for rows in groups if rows & nodes]
        if within:
            assert len(within) == 1 and nodes <= within[0]  # a constant of the program may be one more
            found[name] = len(nodes)
    assert found == EQUAL
    assert "planted" not in json.dumps(snapshot.names["duplicates"])


@pytest.mark.parametrize("version", twins.VERSIONS)
def test_both_walks_find_the_same_texts_equal(version):
    found = twins.taken(version, PROGRAM + "both()")
    native, twin = ({frozenset(side.address[rows].tolist()) for rows in side.names["duplicates"]}
                    for side in (found.native, found.twin))
    assert len(native) > 20 and native == twin


def test_what_is_looked_at_and_written_is_bounded(monkeypatch):
    texts = [letter * 40 for letter in "aabbccdd"]
    texts = ["".join(list(text)) for text in texts]
    assert duplicates.groups(texts) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    monkeypatch.setattr(duplicates, "MOST_ROWS", 3)
    assert duplicates.groups(texts) == [[0, 1], [2, 3]]
    monkeypatch.setattr(duplicates, "MOST_READ_BYTES", 100)
    assert duplicates.groups([1, *texts]) == [[1, 2]]
