"""Who is held by whom: reachability, and what CPython's collector would find to be garbage, without collecting."""

from __future__ import annotations

import numpy as np

from leakscope.analyse import kernel
from leakscope.heap.graph import Array, HeapGraph
from leakscope.heap.layout import IMMORTAL


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


def surplus(graph: HeapGraph) -> Array:
    """Return (N,) int64: references to each node that the graph does not explain.

    0 where the count says nothing: immortal objects, and nodes that are no objects (address 0). Less than 0 is counted as 0:
    the target went on while it was looked at. At one instant 0.5 to 2.6 % of a healthy heap have a surplus (types, interned
    strings, objects that C code holds): compare snapshots before calling it a leak.
    """
    incoming = np.bincount(graph.edge_target, minlength=graph.node_count).astype(np.int64)
    counted = (graph.refcount != IMMORTAL) & (graph.address != 0)
    return np.where(counted, np.maximum(graph.refcount.astype(np.int64) - incoming, 0), 0)


def held_from_outside(graph: HeapGraph) -> Array:
    """Return (N,) bool: nodes that something outside the edges of the graph holds.

    Named roots, immortal objects, objects with a surplus, and nodes without a count that no edge holds.
    """
    held = surplus(graph) > 0
    held |= (graph.refcount == IMMORTAL) & (graph.address != 0)
    without_count = graph.address == 0
    if without_count.any():
        held |= without_count & (np.bincount(graph.edge_target, minlength=graph.node_count) == 0)
    held[graph.root_node] = True
    return held


def garbage(graph: HeapGraph) -> Array:
    """Return (N,) bool: nodes that nothing outside holds, directly or through others.

    As CPython finds it (deduce_unreachable in gcmodule.c): take the internal references off each count; what has some left is
    held from outside, and so is all that can be reached from it. The rest is garbage, whether or not the collector ran.
    An object whose count fell to 0 while the walk looked at it needs no collector: it and what it holds are no garbage.
    """
    died = (graph.refcount == 0) & (graph.address != 0)
    return ~reachable(graph.edge_start, graph.edge_target, np.flatnonzero(held_from_outside(graph) | died))


def held_by_c(graph: HeapGraph) -> Array:
    """Return (N,) bool: nodes that no named root reaches, but C code does: those with a surplus, and what they hold."""
    named = reachable(graph.edge_start, graph.edge_target, graph.root_node)
    return reachable(graph.edge_start, graph.edge_target, np.flatnonzero(held_from_outside(graph) & ~named)) & ~named
