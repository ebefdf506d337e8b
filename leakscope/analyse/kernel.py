"""Which inner loops are in use: those in C where they were built, else their twin in Python. Both give the same results."""

from __future__ import annotations

from types import ModuleType

import numpy as np

from leakscope.analyse import _graph_python
from leakscope.analyse._columns_python import ANY, BY_NAME, BY_PLACE, BY_SHOWN_NAME
from leakscope.heap.graph import Array

__all__ = ["ANY", "BY_NAME", "BY_PLACE", "BY_SHOWN_NAME", "active", "column", "edges", "mask", "nodes", "order_by"]

try:
    from leakscope.analyse import _graph
except ImportError:  # no compiler when it was installed
    active: ModuleType = _graph_python
else:
    active = _graph


def edges(edge_start: Array, edge_target: Array) -> tuple[Array, Array]:
    """The two arrays of edges as the inner loops want them; no copy where they are so already."""
    return np.ascontiguousarray(edge_start, dtype=np.uint64), np.ascontiguousarray(edge_target, dtype=np.uint32)


def nodes(rows: Array) -> Array:
    """Node numbers as the inner loops want them."""
    return np.ascontiguousarray(rows, dtype=np.uint32)


def mask(chosen: Array | None) -> Array | None:
    """A boolean mask as bytes, or None."""
    return None if chosen is None else np.ascontiguousarray(chosen, dtype=np.bool_).view(np.uint8)


def column(values: Array, dtype: str) -> Array:
    """A column as the inner loops want it; no copy where it is so already."""
    return np.ascontiguousarray(values, dtype=dtype)


def order_by(values: Array, groups: int) -> tuple[Array, Array]:
    """Return the rows of `values` (N,) i4 by value, those of -1 left out, and where each of the values 0 .. groups - 1 begins.

    (M,) u4 and (groups + 1,) u8; in time linear in N + groups.
    """
    order, start = np.empty(int((values >= 0).sum()), np.uint32), np.empty(groups + 1, np.uint64)
    active.order_by(column(values, "<i4"), order, start)
    return order, start
