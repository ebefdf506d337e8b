"""Graphs as arrays for tests of the analyses: from lists, by chance, and long ones."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st


def rows(held: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """(edge_start, edge_target) of a graph given as what each node holds."""
    start = np.cumsum([0, *map(len, held)]).astype(np.uint64)
    return start, np.array([node for each in held for node in each], dtype=np.uint32)


def chain(length: int) -> tuple[np.ndarray, np.ndarray]:
    """A linked list: node i holds node i + 1."""
    start = np.append(np.arange(length), length - 1).astype(np.uint64)
    return start, np.arange(1, length, dtype=np.uint32)


@st.composite
def small(draw: st.DrawFn, most: int = 9) -> list[list[int]]:
    """What each node holds, in a graph of up to `most` nodes; self-edges and double edges among them."""
    count = draw(st.integers(1, most))
    return draw(st.lists(st.lists(st.integers(0, count - 1), max_size=4), min_size=count, max_size=count))


def closure(held: list[list[int]], sources: set[int], without: int = -1) -> set[int]:
    """What can be reached from `sources` if the node `without` is taken out: by brute force."""
    found = sources - {without}
    while more := {node for each in found for node in held[each]} - found - {without}:
        found |= more
    return found
