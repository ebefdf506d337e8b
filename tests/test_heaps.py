"""The heap DSL itself: what its lines mean."""

from __future__ import annotations

import pytest

from leakscope.agent import format as layout
from tests.heaps import heap, series

SHOP = """
module app
app .cache -> cache:dict
cache [*] -> order:shop.Order x300 1KiB
order .items -> list x300
order .shop -> shop:shop.Shop
shop .orders -> cache
"""


def test_the_example_of_the_architecture_has_300_orders_under_one_dict():
    graph = heap(SHOP)
    cache = graph.edges_from(0)[0].target
    assert graph.type_name(cache) == "dict" and graph.length[cache] == 300
    orders = [edge.target for edge in graph.edges_from(cache)]
    assert {graph.type_name(order) for order in orders} == {"shop.Order"}
    assert {int(graph.shallow_bytes[order]) for order in orders} == {1024}
    assert graph.strings[graph.root_label[0]] == "module app"


def test_as_many_held_as_holders_are_held_one_for_one_and_a_single_one_is_shared():
    graph = heap(SHOP)
    lists = [node for node in range(graph.node_count) if graph.type_name(node) == "list"]
    assert len(lists) == 300 and all(len(graph.edges_to(node)) == 1 for node in lists)
    shop = next(node for node in range(graph.node_count) if graph.type_name(node) == "shop.Shop")
    assert len(graph.edges_to(shop)) == 300


def test_reference_counts_are_explained_by_edges_and_roots_unless_told_otherwise():
    graph = heap("""
        module app
        app .a -> a:app.A refs+1
        app .b -> a
        root task a
        garbage b:app.B
        app .c -> c:app.C immortal""")
    assert [int(count) for count in graph.refcount] == [1, 4, 0, layout.IMMORTAL]


@pytest.mark.parametrize("edge, kind, text", [
    (".name", layout.ATTRIBUTE, "name"), ("['orders']", layout.KEY, "'orders'"), ("['a key']", layout.KEY, "'a key'"),
    ("[str:17]", layout.KEY, "str:17"), ("[3]", layout.INDEX, "3"), ("{*}", layout.ELEMENT, ""),
    ("~local", layout.LOCAL, "local"),
    ("{cell}", layout.CELL, "cell"), ("{}", layout.CONTENTS, ""), ("<__globals__>", layout.INTERNAL, "__globals__"),
    ("<type>", layout.TYPE, ""), ("<storage>", layout.STORAGE, ""), ("<?>", layout.UNKNOWN, ""),
    ("[^'key']", layout.KEY_OBJECT, "'key'"), ("$2", layout.STACK, "2"), ("[*]", layout.ELEMENT, ""),
])
def test_every_way_to_write_an_edge_gives_its_kind_and_text(edge, kind, text):
    graph = heap(f"module app\napp {edge} -> thing:app.Thing")
    assert graph.edge(0)[2:] == (kind, text)


def test_a_star_is_an_index_in_a_list_a_key_in_a_dict_and_an_element_in_a_set():
    graph = heap("""
        module app
        app .l -> l:list
        l [*] -> int x2
        app .d -> d:dict
        d [*] -> int
        app .s -> s:set
        s [*] -> int""")
    named = {graph.type_name(edge.source): (edge.kind, edge.text) for edge in map(graph.edge, range(graph.edge_count))}
    assert named["list"] == (layout.INDEX, "1")
    assert named["dict"] == (layout.KEY, "str:8")
    assert named["set"] == (layout.ELEMENT, "")


def test_an_object_keeps_its_address_in_every_heap_of_a_series():
    small, large = series("module app\napp .seen -> seen:list\nseen [*] -> app.Item x{n}", n=[2, 5])
    assert set(small.address.tolist()) < set(large.address.tolist())
    assert [small.t_s, large.t_s] == [0, 10]


def test_a_node_carries_all_that_is_said_of_it():
    graph = heap("""
        garbage t:_asyncio.Task 4KiB state ended birth 3 site make@app.py:7 addr 0x7f00 len 9 'task one'
        t <tensor> -> s:storage 1GiB on cuda:1
        bound t 10 maxlen
        lru t app.lookup max none size 4 hits 1 misses 4""")
    assert graph.node_name(0) == "task one" and graph.address.tolist() == [0x7F00, 0]
    assert (graph.shallow_bytes[0], graph.state[0], graph.birth[0], graph.length[0]) == (4096, 2, 3, 9)
    assert graph.sites[graph.site_id[0]]["frames"] == [["app.py", 7, "make"]]
    assert (graph.device[1], graph.shallow_bytes[1]) == (2, 1 << 30)
    assert graph.bounds == [(0x7F00, 10, "maxlen")] and graph.caches[0]["maxsize"] is None
    assert [layout.NODE_KINDS[kind] for kind in graph.kind] == ["task", "storage"]


@pytest.mark.parametrize("line, reason", [
    ("nobody .x -> app.X", "no handle yet"), ("module app\nbroken", "no edge"),
    ("module app\napp !x -> app.X", "no edge"), ("garbage a:A x2\ngarbage b:B x3\na .b -> b", "evenly"),
    ("garbage a:A shiny", "says nothing"), ("garbage a:A\ngarbage a:B", "taken"),
])
def test_a_line_that_means_nothing_is_refused_with_the_line(line, reason):
    with pytest.raises(ValueError, match=f"heap line .*{reason}"):
        heap(line)
