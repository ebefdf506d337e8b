"""Objects that show a storage are kept by it, where a tensor shows it too."""

from __future__ import annotations

from typing import Any

import numpy as np

from leakscope.analyse.reachability import garbage, held_by_c
from leakscope.analyse.retention import Retention
from leakscope.heap.expanders.torch_storages import expand
from leakscope.heap.graph import HeapGraph
from tests.heaps import heap

SHOWN = """
    module app
    app .store -> store:dict
    store [*] -> tensor:torch.Tensor x{n}
    tensor <storage> -> memory:storage x{n} 1MiB
    garbage wrapper:torch.storage.UntypedStorage x{n} refs+1
    wrapper <storage> -> memory
"""


def nodes(graph: HeapGraph, name: str) -> Any:
    return [node for node in range(graph.node_count) if graph.type_name(node).endswith(name)]


def test_memory_whose_storage_was_shown_once_is_still_retained_by_who_holds_the_tensors() -> None:
    plain = heap(SHOWN, n=20)
    (store,) = [edge.target for edge in plain.edges_from(nodes(plain, "module")[0]) if edge.text == "store"]
    assert Retention(plain).of(np.array([store])).get("host", 0) < 20 << 20
    graph = expand(plain)
    assert Retention(graph).of(np.array([store]))["host"] >= 20 << 20
    assert not held_by_c(graph)[nodes(graph, "UntypedStorage")].any() and not garbage(graph).any()
    assert sorted(edge.text for node in nodes(graph, "storage") for edge in graph.edges_from(node)) == ["wrapper"] * 20


def test_a_storage_that_no_tensor_shows_stays_held_by_c() -> None:
    plain = heap("""
        garbage wrapper:torch.storage.UntypedStorage x3 refs+1
        wrapper <storage> -> memory:storage x3 1MiB
    """)
    assert expand(plain) is plain and held_by_c(plain)[nodes(plain, "UntypedStorage")].all()


def test_a_heap_without_such_objects_is_left_alone() -> None:
    plain = heap("module app\napp .x -> x:list")
    assert expand(plain) is plain
