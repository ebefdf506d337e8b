"""What a HeapGraph answers about one snapshot."""

from __future__ import annotations

import numpy as np
import pytest

from leakscope.agent import format as layout
from leakscope.heap.graph import TypeName
from tests.heaps import heap

SHOP = """
    module app
    app .cache -> cache:dict
    cache ['last'] -> order:shop.Order
    order [3] -> items:list
    app .order -> order
    order <storage> -> memory:storage 1MiB
"""


@pytest.fixture
def shop():
    return heap(SHOP, t_s=2.5)


def test_what_a_node_holds_comes_in_the_order_of_the_snapshot_with_its_names(shop):
    assert [(edge.kind, edge.text, edge.target) for edge in shop.edges_from(0)] == [
        (layout.ATTRIBUTE, "cache", 1), (layout.ATTRIBUTE, "order", 2)]
    assert [edge.text for edge in shop.edges_from(2)] == ["3", ""]


def test_who_holds_a_node_is_found_from_the_other_end(shop):
    assert [(shop.node_name(edge.source), edge.text) for edge in shop.edges_to(2)] == [
        ("module app", "order"), ("dict", "'last'")]
    assert shop.edges_to(0) == [] and len(shop.edges_to(2, 1)) == 1


def test_of_a_holder_of_many_only_so_many_edges_are_looked_at(shop):
    assert [edge.text for edge in shop.edges_from(0, 1)] == ["cache"] and len(shop.edges_from(0, 9)) == 2


def test_edges_keep_their_holder_number_by_number(shop):
    assert [shop.holder(number) for number in range(5)] == [0, 0, 1, 2, 2]
    edges, holders = shop.edge_numbers(np.array([4, 2, 0]))
    assert edges.tolist() == [3, 4, 0, 1] and holders.tolist() == [2, 2, 0, 0]
    assert shop.edge(2).source == 1 and (shop.node_count, shop.edge_count) == (5, 5)


def test_a_node_is_found_by_its_address_and_one_without_an_address_is_not(shop):
    assert all(shop.index_of[int(shop.address[node])] == node for node in range(4))
    assert shop.address[4] == 0 and 0 not in shop.index_of


def test_types_are_called_by_their_module_but_for_builtins(shop):
    assert [shop.type_name(node) for node in range(4)] == ["module", "dict", "shop.Order", "list"]
    assert TypeName("", "Thing").full == "Thing"


def test_the_time_of_a_snapshot_is_in_seconds(shop):
    assert shop.t_s == 2.5
