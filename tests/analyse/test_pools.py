"""Pools of small objects, told from their addresses."""

from __future__ import annotations

import numpy as np

from leakscope.analyse import pools
from tests.heaps import heap

POOL = 1 << pools.POOL_BITS


def scattered(step, count=40, size=64):
    """Objects of one list, so many bytes apart, with others of the heap out of the way."""
    graph = heap(f"module app\napp .kept -> kept:list 4KiB\nkept [*] -> one:app.Survivor x{count} {size}B")
    survivors = np.flatnonzero([graph.type_name(node) == "app.Survivor" for node in range(graph.node_count)])
    graph.address[survivors] = 0x7F0000000000 + step * np.arange(count, dtype=np.uint64)
    return graph


def test_one_survivor_in_each_pool_pins_it():
    found = pools.pinned(scattered(POOL), "3.11.7")
    assert (found.pool_count, found.sparse_count, found.types) == (40, 40, [("app.Survivor", 40)])
    assert len(found.nodes) == 40


def test_full_pools_are_not_sparse():
    found = pools.pinned(scattered(64, count=POOL // 64), "3.11.7")
    assert (found.pool_count, found.sparse_count, found.types) == (1, 0, [])


def test_pools_are_smaller_before_310():
    assert pools.pinned(scattered(POOL // 4), "3.9.18").pool_count == 40
    assert pools.pinned(scattered(POOL // 4), "3.10.13").pool_count == 10


def test_large_objects_and_those_without_an_address_sit_in_no_pool():
    assert pools.pinned(scattered(POOL, size=600), "3.11.7").pool_count == 0
    graph = scattered(POOL)
    graph.address[:] = 0
    assert pools.pinned(graph, "3.11.7").pool_count == 0


def test_the_highest_object_of_each_heap_of_a_thread():
    graph = scattered(1 << 20, count=130, size=600)
    tops = pools.heap_tops(graph)
    assert graph.address[tops].tolist() == [0x7F0000000000 + (place << 20) for place in (63, 127, 129)]


def test_what_lies_in_the_main_arena_or_is_a_mapping_is_at_the_top_of_no_heap():
    assert len(pools.heap_tops(scattered(1 << 20, size=200_000))) == 0
    graph = scattered(1 << 20, size=600)
    graph.address[:] -= np.uint64(0x200000000000)
    assert len(pools.heap_tops(graph)) == 0
