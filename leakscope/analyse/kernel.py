"""Which inner loops are in use: those in C where they were built, else their twin in Python. Both give the same results."""

from __future__ import annotations

from types import ModuleType

import numpy as np

from leakscope.analyse import _graph_python
from leakscope.heap.graph import Array

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
