"""Who is held by whom: reachability, and what CPython's collector would find to be garbage, without collecting."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from weakref import WeakKeyDictionary

import numpy as np

from leakscope.analyse import kernel
from leakscope.heap.graph import Array, HeapGraph


def reachable(edge_start: Array, edge_target: Array, sources: Array, edge_allowed: Array | None = None) -> Array:
    """Return (N,) bool: the nodes in `sources` and all that can be reached from them.

    Args:
        edge_start, edge_target: edges in compressed rows, (N + 1,) and (E,).
        sources: rows of nodes.
        edge_allowed: (E,) bool, the edges that may be used; all if None.

    Raises:
        ValueError: the arrays do not belong to one graph.
    """
    start, target = kernel.edges(edge_start, edge_target)
    seen = np.zeros(max(len(start) - 1, 0), dtype=np.uint8)
    starts = kernel.nodes(sources)
    kernel.active.reach(start, target, starts, kernel.mask(edge_allowed), seen, np.empty(len(starts), dtype=np.uint8))
    return seen.view(np.bool_)


def once_per_graph(mask_of: Callable[[HeapGraph], Array]) -> Callable[[HeapGraph], Array]:
    """Keep what a function finds for as long as the graph lives; nobody may write into it."""
    known: WeakKeyDictionary[HeapGraph, Array] = WeakKeyDictionary()

    @wraps(mask_of)
    def kept(graph: HeapGraph) -> Array:
        if graph not in known:
            known[graph] = mask_of(graph)
            known[graph].flags.writeable = False
        return known[graph]

    return kept


@once_per_graph
def held_from_outside(graph: HeapGraph) -> Array:
    """Return (N,) bool: nodes that something outside the edges of the graph holds.

    Named roots, immortal objects, objects with more references than the graph explains, and nodes without a count that no edge
    holds. At one instant 0.5 to 2.6 % of a healthy heap have unexplained references (types, interned strings, objects that C
    code holds): compare snapshots before calling it a leak. A count that is too low says nothing: the target went on while it
    was looked at.
    """
    held = held_by_c(graph).copy()
    held[graph.root_node] = True
    return held


@once_per_graph
def held_by_c(graph: HeapGraph) -> Array:
    """Return (N,) bool: the same without the named roots, which may be no holders but only places where one looks."""
    held = np.empty(graph.node_count, dtype=np.uint8)
    kernel.active.outside(kernel.nodes(graph.edge_target), kernel.column(graph.refcount, "<u4"),
                          kernel.column(graph.address, "<u8"), held)
    return held.view(np.bool_)


@once_per_graph
def garbage(graph: HeapGraph) -> Array:
    """Return (N,) bool: nodes that nothing outside holds, directly or through others.

    As CPython finds it (deduce_unreachable in gcmodule.c): take the internal references off each count; what has some left is
    held from outside, and so is all that can be reached from it. The rest is garbage, whether or not the collector ran.
    An object whose count fell to 0 while the walk looked at it needs no collector: it and what it holds are no garbage.
    """
    died = (graph.refcount == 0) & (graph.address != 0)
    return ~reachable(graph.edge_start, graph.edge_target, np.flatnonzero(held_from_outside(graph) | died))


def tracked_count(graph: HeapGraph, mask: Array) -> int:
    """Return how many of the nodes of `mask` (N,) bool are of types that the collector tracks."""
    tracked = [row for row, name in enumerate(graph.types) if "g" in name.flags]
    return int(np.isin(graph.type_id[mask], tracked).sum())
