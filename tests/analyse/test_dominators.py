"""Immediate dominators and retained bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leakscope.analyse.dominators import dominators, retained, retained_by_device
from tests.analyse.graphs import chain, closure, rows, small
from tests.heaps import heap

pytestmark = pytest.mark.usefixtures("loops")
EACH = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=80)


@EACH
@given(small(), st.sets(st.integers(0, 8)))
def test_a_node_dominates_what_cannot_be_reached_without_it(held, wanted):
    roots = {node for node in wanted if node < len(held)}
    idom = dominators(*rows(held), np.array(sorted(roots), dtype=np.uint32))
    reached = closure(held, roots)
    assert set(np.flatnonzero(idom >= 0)) == reached
    for node in reached:
        above, chain_above = node, set()
        while above != len(held):
            chain_above.add(above)
            above = int(idom[above])
        assert chain_above == {other for other in reached if node not in closure(held, roots, without=other)}


@EACH
@given(small(), st.sets(st.integers(0, 8)))
def test_retained_is_what_is_lost_when_the_node_is_taken_out(held, wanted):
    roots = {node for node in wanted if node < len(held)}
    sizes = np.array([1 << node for node in range(len(held))], dtype=np.uint64)
    total = retained(dominators(*rows(held), np.array(sorted(roots), dtype=np.uint32)), sizes)
    reached = closure(held, roots)
    for node in range(len(held)):
        lost = reached - closure(held, roots, without=node)
        assert int(total[node]) == sum(1 << each for each in lost)


def test_a_list_of_a_million_links_is_dominated_link_by_link():
    idom = dominators(*chain(1_000_000), np.array([0]))
    assert idom[0] == 1_000_000 and (idom[1:] == np.arange(999_999)).all()
    assert retained(idom, np.ones(1_000_000))[:2].tolist() == [1_000_000, 999_999]


def test_a_root_that_another_root_holds_is_dominated_by_neither():
    assert dominators(*rows([[1], [2], []]), np.array([0, 1])).tolist() == [3, 3, 1]


def test_the_cache_retains_its_orders_but_not_what_others_hold_too():
    graph = heap("""
        module app
        app .cache -> cache:dict 100B
        cache [*] -> order:shop.Order x300 1KiB
        order .shop -> shop:shop.Shop 5KiB
        app .shop -> shop
        order .items -> list x300 10B""")
    idom = dominators(graph.edge_start, graph.edge_target, graph.root_node)
    assert retained_by_device(graph, idom)["host"][1] == 100 + 300 * (1024 + 10)


def test_bytes_are_retained_on_the_device_where_they_lie():
    graph = heap("""
        module app
        app .weights -> tensor:torch.Tensor 80B
        tensor <storage> -> storage:storage 4MiB on cuda:1""")
    found = retained_by_device(graph, dominators(graph.edge_start, graph.edge_target, graph.root_node))
    assert {device: int(total[1]) for device, total in found.items()} == {"host": 80, "cuda:1": 4 << 20}


def test_dominators_that_are_no_tree_of_this_graph_are_refused(loops):
    with pytest.raises(ValueError, match="node"):
        loops.retained(np.array([5], dtype=np.int32), np.ones(1, dtype=np.uint64), np.zeros(1, dtype=np.uint64))
