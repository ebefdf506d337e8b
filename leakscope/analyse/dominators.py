"""What would be freed: immediate dominators and retained bytes.

A node dominates another if every path from the roots to that one goes through it: let go of the first, and the second goes too.
"""

from __future__ import annotations

import numpy as np

from leakscope.analyse import kernel
from leakscope.heap.device_codes import device_name as device_name
from leakscope.heap.graph import Array, HeapGraph


def dominators(edge_start: Array, edge_target: Array, roots: Array) -> Array:
    """Return (N,) int32: the immediate dominator of each node; N stands for the virtual root above `roots`, -1: not reached.

    Semi-NCA: L. Georgiadis, "Linear-Time Algorithms for Dominators and Related Problems", Princeton 2005.

    Raises:
        ValueError: the arrays do not belong to one graph.
    """
    start, target = kernel.edges(edge_start, edge_target)
    idom = np.empty(max(len(start) - 1, 0), dtype=np.int32)
    kernel.active.dominators(start, target, kernel.nodes(roots), idom)
    return idom


def retained(idom: Array, sizes: Array) -> Array:
    """Return (N,) uint64: `sizes` of each node and all that it dominates; 0 for nodes that were not reached.

    Any size will do: bytes, or ones to count objects.
    """
    total = np.empty(len(idom), dtype=np.uint64)
    kernel.active.retained(np.ascontiguousarray(idom, dtype=np.int32), np.ascontiguousarray(sizes, dtype=np.uint64), total)
    return total


def retained_by_device(graph: HeapGraph, idom: Array) -> dict[str, Array]:
    """Return the retained bytes (N,) uint64 of each node by device; `host` is always there."""
    return {device_name(device): retained(idom, np.where(graph.device == device, graph.shallow_bytes, 0))
            for device in sorted({0, *np.unique(graph.device).tolist()})}
