"""torch: a storage keeps the Python object that once showed it (`tensor.untyped_storage()`) for as long as it lives itself.

torch calls this the preservation of the PyObject (torch/csrc/StorageMethods.cpp): the one reference that is left is that of
the storage, from C++, which no Python object shows. Without this edge such an object looked as if C code held it, and with it
the memory that its tensors hold: nothing that retains the tensors would have retained their bytes.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from leakscope.heap import layout
from leakscope.heap.graph import Array, HeapGraph

LIBRARY = "torch"
WORD = "wrapper"
_TYPE = ("torch.storage", "UntypedStorage")


def expand(graph: HeapGraph) -> HeapGraph:
    """Return the graph with an edge from each storage that a tensor shows to the object that shows the storage itself.

    Where that object alone shows a storage, nobody knows who holds which: it is left as it is. O(E) where there are any.
    """
    kinds = [row for row, name in enumerate(graph.types) if (name.module, name.qualname) == _TYPE]
    wrappers = np.flatnonzero(np.isin(graph.type_id, kinds)) if kinds else np.zeros(0, np.int64)
    if not len(wrappers):
        return graph
    numbers, holders = graph.edge_numbers(wrappers)
    shows = graph.edge_label[numbers] >> layout.EDGE_KIND_SHIFT == layout.STORAGE
    storages, wrappers = graph.edge_target[numbers[shows]].astype(np.int64), holders[shows]
    shown = np.bincount(graph.edge_target, minlength=graph.node_count)[storages]
    by_itself = np.bincount(storages, minlength=graph.node_count)[storages]
    others = shown > by_itself
    return _with_edges(graph, storages[others], wrappers[others]) if others.any() else graph


def _with_edges(graph: HeapGraph, holders: Array, held: Array) -> HeapGraph:
    """Return the graph with one more edge from each of `holders` to its part of `held`."""
    order = np.argsort(holders, kind="stable")
    holders, held = holders[order], held[order]
    place = graph.edge_start[holders + 1].astype(np.int64)
    label = layout.edge_label(layout.INTERNAL, len(graph.strings))
    more = np.bincount(holders, minlength=graph.node_count)
    return replace(
        graph, strings=[*graph.strings, WORD],
        edge_target=np.insert(graph.edge_target, place, held.astype(graph.edge_target.dtype)),
        edge_label=np.insert(graph.edge_label, place, np.uint32(label)),
        edge_start=graph.edge_start + np.concatenate(([0], np.cumsum(more))).astype(graph.edge_start.dtype))
