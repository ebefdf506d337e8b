"""What a snapshot says of nodes beyond their edges."""

from __future__ import annotations

import collections
import functools
import json

from leakscope.agent import walk
from tests.agent.alone import alone


class Box:
    def __init__(self, capacity):
        self.capacity = capacity
        self.items = {}


def bounds(folder):
    walk.take(str(folder / "0001"), 1, "manual", 0)
    return json.loads((folder / "0001" / "names.json").read_text())["bounds"]


@alone
def test_limits_are_known_by_the_attribute_that_states_them(tmp_path):
    box, queue = Box(77), collections.deque(maxlen=12)

    @functools.lru_cache(maxsize=33)
    def cached():
        return 1

    found = bounds(tmp_path)
    assert [id(box), 77, "capacity"] in found
    assert [id(queue), 12, "maxlen"] in found
    assert [id(cached), 33, "maxsize"] in found


@alone
def test_what_is_no_positive_number_is_no_limit(tmp_path):
    boxes = [Box(None), Box(0), Box(-1), Box("many"), Box(True)]
    found = bounds(tmp_path)
    assert not {address for address, _, _ in found} & {id(box) for box in boxes}
