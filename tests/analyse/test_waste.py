"""Empty containers and repeated texts are counted for the package whose objects hold them."""

from __future__ import annotations

import numpy as np

from leakscope.analyse import retention, waste
from leakscope.model import Waste
from tests.heaps import heap

HEAP = """
module shop
shop .orders -> orders:list
orders [*] -> order:shop.Order x{n}
order .lines -> list x{n} 56B
order .tags -> tags:set x{n} 216B
tags {*} -> str x{n}
module app
app .stock -> stock:dict
stock [*] -> collections.defaultdict x{n} 64B
stock [*] -> dict x{n} 64B
module asyncio
asyncio .tasks -> tasks:list
tasks [*] -> asyncio.locks.Event x{n}
"""


def told(**numbers):
    graph = heap(HEAP, **numbers)
    return waste.wasted(graph, retention.growth_tree(graph))


def test_an_empty_container_counts_for_the_package_of_its_owner():
    assert told(n=500) == [Waste("app", "empty dict", 500, 32_000), Waste("shop", "empty list", 500, 28_000)]


def test_containers_that_hold_something_and_little_waste_are_no_row():
    assert all(row.what != "empty set" for row in told(n=500))
    assert told(n=5) == []


def test_an_owner_of_the_standard_library_is_called_so():
    graph = heap("module asyncio\nasyncio .x -> list\nmodule app\napp .events -> events:list\n"
                 "events [*] -> event:asyncio.locks.Event x400\nevent ._waiters -> dict x400 64B")
    assert waste.wasted(graph, retention.growth_tree(graph)) == [Waste("standard library", "empty dict", 400, 25_600)]


def test_garbage_has_no_owner():
    graph = heap("garbage dict x400 64B")
    assert waste.wasted(graph, retention.growth_tree(graph)) == [Waste("elsewhere", "empty dict", 400, 25_600)]


REPEATED = """
module shop
shop .orders -> orders:list
orders [*] -> order:shop.Order x{n}
order .city -> city:str x{n} 100B
module app
app .names -> names:list
names [*] -> name:str x{n} 100B
names [*] -> raw:bytes x{n} 200B
"""


def repeated(equal, n=400):
    """The waste of a heap in which the texts of a group are equal; `equal` names the group by type, size and place."""
    graph = heap(REPEATED, n=n)
    groups = {}
    for node in np.flatnonzero(graph.shallow_bytes >= 100).tolist():
        kind = graph.types[graph.type_id[node]].full
        if kind in ("str", "bytes"):
            groups.setdefault(equal(kind, int(graph.shallow_bytes[node]), node), []).append(node)
    graph.duplicates = [rows for rows in groups.values() if len(rows) > 1]
    return waste.wasted(graph, retention.growth_tree(graph))


def test_of_equal_texts_of_a_package_all_but_one_are_waste():
    assert repeated(lambda kind, _size, _node: kind) == [
        Waste("app", "repeated bytes", 399, 79_800), Waste("app", "repeated str", 399, 39_900),
        Waste("shop", "repeated str", 399, 39_900)]


def test_pairs_of_equal_texts_count_once_each():
    assert repeated(lambda kind, _size, node: (kind, node // 2) if kind == "bytes" else node) == [
        Waste("app", "repeated bytes", 200, 40_000)]


def test_texts_of_different_packages_and_texts_that_differ_are_no_waste():
    assert repeated(lambda _kind, _size, node: node) == []
    assert repeated(lambda kind, _size, node: (kind, node % 400)) == []  # one of each under app, one under shop
