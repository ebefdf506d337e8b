"""Passes over columns: path classes, sums, order; the same in C and in Python."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leakscope.analyse import _graph_python, growth, kernel, retention
from leakscope.heap.graph import HeapGraph
from tests.analyse.graphs import chain
from tests.heaps import heap

pytestmark = pytest.mark.usefixtures("loops")
EACH = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)


def table_of(graph: HeapGraph) -> growth.PathTable:
    return growth.path_table(graph, retention.growth_tree(graph))


def classes(graph: HeapGraph) -> dict[str, int]:
    """How many objects there are in the class of each type; a type in several classes is named once for each."""
    table = table_of(graph)
    return {f"{graph.type_name(int(node))}#{row}": int(table.count[row]) for row, node in enumerate(table.example)}


def test_entries_of_one_container_are_one_class_and_its_named_keys_are_not():
    graph = heap("""
        module app
        app .cache -> cache:dict
        cache [*] -> order:shop.Order x300
        cache ['first'] -> first:shop.First
        cache ['last'] -> last:shop.Last
    """)
    assert sorted(classes(graph).values()) == [1, 1, 1, 1, 300]


def test_places_of_a_tuple_tell_entries_apart_and_those_of_a_list_do_not():
    graph = heap("""
        module app
        app .rows -> rows:list
        rows [*] -> row:tuple x50
        row [0] -> str x50
        row [1] -> bytes x50
    """)
    assert sorted(classes(graph).values()) == [1, 1, 50, 50, 50]


def test_a_path_is_the_same_in_every_snapshot_whatever_its_strings_are_numbered():
    before = heap("module app\napp .a -> one:dict\napp .cache -> cache:dict\ncache [*] -> order:shop.Order x3")
    after = heap("module app\napp .cache -> cache:dict\ncache [*] -> order:shop.Order x9")
    first, last = table_of(before), table_of(after)
    assert set(last.key) < set(first.key)
    assert sorted(growth.align([first, last]).count.T.tolist()) == [[1, 1], [1, 1], [3, 9]]


def test_a_linked_list_is_one_class_that_keeps_all_its_bytes():
    graph = heap("""
        module app
        app .head -> n0:app.Node 100B
        n0 .next -> n1:app.Node 100B
        n1 .next -> n2:app.Node 100B
        n2 .next -> n3:app.Node 100B
        n3 .next -> n4:app.Node 100B
    """)
    table = table_of(graph)
    row = int(table.count.argmax())
    assert table.count[row] == 4 and table.subtree_bytes[row] == 400 and table.shallow_bytes[row] == 400
    assert [int(node) for node in table.members(row)] == [2, 3, 4, 5]


def test_rows_are_sorted_by_a_small_number_and_those_without_one_left_out():
    order, start = kernel.order_by(np.array([2, -1, 0, 2, 0, -1], np.int32), 4)
    assert order.tolist() == [2, 4, 0, 3] and start.tolist() == [0, 2, 2, 4, 4]


def test_a_list_of_a_million_links_has_as_many_levels(loops):
    length = 1_000_000 if loops is not _graph_python else 10_000
    order, start = kernel.order_by(np.arange(length, dtype=np.int32), length)
    assert (order == np.arange(length)).all() and len(start) == length + 1


def test_only_claimed_nodes_that_hold_an_unclaimed_one_are_on_the_border(loops):
    start, target = chain(5)
    found = np.empty(5, np.uint8)
    loops.border(start, target, np.array([0, 0, -1, -1, 0], np.int32), found)
    assert found.tolist() == [0, 1, 0, 0, 0]


@EACH
@given(st.data())
def test_both_kinds_of_passes_find_the_same(loops, data):
    count = data.draw(st.integers(1, 7))
    edges = data.draw(st.lists(st.tuples(
        st.integers(0, count - 1), st.sampled_from([".a", "['k']", "[str:4]", "[1]", "[2]", "~v", "{c}", "{*}", "<type>"]),
        st.integers(0, count - 1)), max_size=14))
    types = data.draw(st.lists(st.sampled_from(["tuple", "list", "app.Node"]), min_size=count, max_size=count))
    lines = [f"garbage n{node}:{kind} {data.draw(st.integers(1, 99))}B" for node, kind in enumerate(types)]
    lines += [f"n{source} {edge} -> n{target}" for source, edge, target in edges]
    graph = heap("\n".join([*lines, "root module n0 app"]))
    found = table_of(graph)
    active, kernel.active = kernel.active, _graph_python
    try:
        twin = table_of(graph)
    finally:
        kernel.active = active
    for name in ("key", "parent", "count", "shallow_bytes", "subtree_bytes", "length", "example", "class_of"):
        assert getattr(found, name).tolist() == getattr(twin, name).tolist(), name


def arguments(name: str) -> list[object]:
    """A call of a pass that is right, on a graph of two nodes and one edge."""
    node, one = np.array([0, 1], np.uint32), np.zeros(2, np.uint64)
    parent, edge = np.array([-1, 0], np.int32), np.array([-1, 0], np.int64)
    sums = [np.zeros(2, np.int64) for _ in range(4)]
    byte, row = np.zeros(2, np.uint8), np.zeros(2, np.int32)
    return {
        "outside": [node[1:], node, one, byte], "border": [np.array([0, 1, 1], np.uint64), node[1:], row, byte],
        "order_by": [row, node.copy(), np.zeros(2, np.uint64)],
        "path_keys": [node, parent, edge, node[:1], row, node, one, byte, byte, np.zeros(32, np.uint8), 8, 400, one.copy(),
                      one.copy()],
        "classify": [node, one, row], "class_sums": [node, parent, row, one, node, *sums],
        "sums_by": [node, one, *sums[:2]]}[name]


# The arrays of each pass whose length follows from nothing else: of edges, of chosen nodes, of groups.
PASSES = {"outside": {0}, "border": set(), "order_by": {2}, "path_keys": {0, 3, 8}, "classify": {0}, "class_sums": {0},
          "sums_by": set()}  # fmt: skip


@pytest.mark.parametrize("name", PASSES)
def test_a_pass_refuses_arrays_of_another_length(loops, name):
    getattr(loops, name)(*arguments(name))
    for place, value in enumerate(arguments(name)):
        if isinstance(value, np.ndarray) and place not in PASSES[name]:
            call = arguments(name)
            call[place] = np.concatenate((value, value, value[:1]))
            with pytest.raises(ValueError, match="graph|length"):
                getattr(loops, name)(*call)


@pytest.mark.parametrize(("name", "place"), [
    ("outside", 0), ("border", 1), ("order_by", 0), ("path_keys", 0), ("path_keys", 1), ("path_keys", 2), ("path_keys", 5),
    ("classify", 0), ("class_sums", 0), ("class_sums", 1), ("class_sums", 2), ("sums_by", 0)])
def test_a_pass_refuses_rows_that_are_not_there(loops, name, place):
    call = arguments(name)
    value = call[place]
    assert isinstance(value, np.ndarray)
    call[place] = np.full_like(value, 9)
    with pytest.raises(ValueError, match="graph|length"):
        getattr(loops, name)(*call)
