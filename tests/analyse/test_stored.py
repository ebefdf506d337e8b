"""Storages of a device by the path that leads to them."""

from __future__ import annotations

from leakscope.analyse import retention, stored
from leakscope.analyse.growth import path_table
from leakscope.heap.device_codes import device_code
from tests.heaps import heap

MIB = 1 << 20
CODE = device_code("cuda:0")
TEXT = """
    module app
    app .cache -> cache:dict
    cache [*] -> tensor:torch.Tensor x{n}
    tensor <storage> -> kept:storage x{n} 2MiB on cuda:0
    app .weights -> weights:torch.Tensor
    weights <storage> -> fixed:storage 64MiB on cuda:0
    app .host -> host:torch.Tensor
    host <storage> -> ram:storage 1GiB
"""


def held(graph, before=None):
    tree = retention.growth_tree(graph)
    table = None if before is None else path_table(before, retention.growth_tree(before)).without_nodes()
    return stored.by_path(graph, path_table(graph, tree), table, CODE,
                          lambda node: retention.path(graph, tree, node).text)


def test_storages_are_gathered_by_path_with_their_bytes_and_their_growth():
    found, unnamed = held(heap(TEXT, n=30), heap(TEXT, n=10))
    assert [(each.path, each.bytes, each.growth_bytes, len(each.nodes)) for each in found] == [
        ("app.weights.<storage>", 64 * MIB, 0, 1), ("app.cache[*].<storage>", 60 * MIB, 40 * MIB, 30)]
    assert unnamed == 0


def test_a_path_that_was_not_there_before_had_nothing_and_without_an_earlier_snapshot_no_growth_is_known():
    (only, *_), _ = held(heap(TEXT, n=30), heap("module app"))
    assert only.growth_bytes == 64 * MIB
    assert [each.growth_bytes for each in held(heap(TEXT, n=30))[0]] == [None, None]


def test_a_process_without_storages_there_has_none():
    assert held(heap("module app")) == ([], 0)


def test_only_the_largest_path_classes_are_named_and_the_others_counted(monkeypatch):
    monkeypatch.setattr(stored, "MOST_NAMED", 1)
    found, unnamed = held(heap(TEXT, n=3))
    assert ([each.path for each in found], unnamed) == (["app.weights.<storage>"], 1)


def test_blocks_get_the_row_of_the_owner_of_their_storage():
    graph = heap(TEXT, n=2)
    nodes = held(graph)[0][1].nodes
    owner = nodes.repeat(2)
    owner[1] = -1
    assert stored.holders(owner, {int(nodes[0]): 4}) == {0: 4}
