"""Empty containers are counted for the package whose objects hold them."""

from __future__ import annotations

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


def wasted(**numbers):
    graph = heap(HEAP, **numbers)
    return waste.empty_containers(graph, retention.growth_tree(graph))


def test_an_empty_container_counts_for_the_package_of_its_owner():
    assert wasted(n=500) == [Waste("app", "empty dict", 500, 32_000), Waste("shop", "empty list", 500, 28_000)]


def test_containers_that_hold_something_and_little_waste_are_no_row():
    assert all(row.what != "empty set" for row in wasted(n=500))
    assert wasted(n=5) == []


def test_an_owner_of_the_standard_library_is_called_so():
    graph = heap("module asyncio\nasyncio .x -> list\nmodule app\napp .events -> events:list\n"
                 "events [*] -> event:asyncio.locks.Event x400\nevent ._waiters -> dict x400 64B")
    assert waste.empty_containers(graph, retention.growth_tree(graph)) == [Waste("standard library", "empty dict", 400, 25_600)]


def test_garbage_has_no_owner():
    graph = heap("garbage dict x400 64B")
    assert waste.empty_containers(graph, retention.growth_tree(graph)) == [Waste("elsewhere", "empty dict", 400, 25_600)]
