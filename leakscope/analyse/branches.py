"""Growth that is spread below one object: a trie, a tree, nested dicts by key.

Where short keys are shown, every path of a trie is a class of its own, and each of thousands of classes grew by next to
nothing: no place has entries that pile up. What no accumulation explains (analyse/growth.py) is followed from the roots down
for as long as most of it hangs below one child, or below an attribute or variable of its own; the container where it spreads
over many entries is the owner of all of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leakscope.analyse.coverage import CLAIM_BYTES
from leakscope.analyse.growth import Accumulation, Growth, PathTable, below_classes
from leakscope.heap import layout
from leakscope.heap.graph import HeapGraph

Array = NDArray[Any]

TRUNK_SHARE = 0.5  # of the growth hangs below one child: it is followed there; ours
_ENTRIES = (layout.KEY, layout.KEY_OBJECT, layout.INDEX, layout.ELEMENT)


def branches(graph: HeapGraph, growth: Growth, found: Sequence[Accumulation],
             least_bytes: int = CLAIM_BYTES) -> list[Accumulation]:
    """Return where growth of `least_bytes` or more that `found` does not explain is spread below one container.

    Its bytes rise in every interval and the path stays, one for one. What it is made of says the type that grew most below.
    """
    table = growth.table
    rest = growth.subtree_bytes[-1] - growth.subtree_bytes[0] - _explained(table, found)
    return [_branch(graph, growth, row, int(rest[row])) for row in _spreading(graph, growth, rest, least_bytes)]


def _explained(table: PathTable, found: Sequence[Accumulation]) -> Array:
    """(C,) the growth that accumulations at or below each class account for."""
    explained = np.zeros(len(table.key), np.int64)
    for pile in found:
        row = pile.owner_class if pile.owner_class >= 0 else next(iter(pile.member_classes), -1)
        explained[list(table.up_from(row))] += pile.growth_bytes
    return explained


def _spreading(graph: HeapGraph, growth: Growth, rest: Array, least_bytes: int) -> Iterator[int]:
    """The classes at which the walk down from the roots stops, and that grew as a pile does."""
    table = growth.table
    children: dict[int, list[int]] = {}
    for row in np.flatnonzero(rest >= TRUNK_SHARE * least_bytes).tolist():  # less is neither a trunk nor spread
        children.setdefault(int(table.parent[row]), []).append(row)
    left = list(children.get(-1, ()))
    while left:
        row = left.pop()
        below = children.get(row, [])
        is_tree = _has_its_kind(graph, table, row, below)
        if is_tree or _holds_entries(graph, int(table.example[row])):
            below = [] if is_tree else [child for child in below if rest[child] >= TRUNK_SHARE * rest[row]]
            if not below and rest[row] >= least_bytes and _grows(growth, row):
                yield row
        left += below


def _holds_entries(graph: HeapGraph, node: int) -> bool:
    """True for containers: what they hold are entries, and no attributes or variables that have names of their own."""
    kinds = graph.edge_label[graph.edge_start[node]:graph.edge_start[node + 1]] >> layout.EDGE_KIND_SHIFT
    return bool(2 * np.isin(kinds, _ENTRIES).sum() > len(kinds))


def _has_its_kind(graph: HeapGraph, table: PathTable, row: int, below: Sequence[int]) -> bool:
    """True for a node of a tree that has no container: several of its attributes hold objects of its own type."""
    if graph.length[table.example[row]]:
        return False
    types = graph.type_id[table.example[[row, *below]]]
    return bool((types[1:] == types[0]).sum() > 1)


def _grows(growth: Growth, row: int) -> bool:
    """True for a path that was there from the start, as often as now, and below which there is more in every snapshot."""
    count, size = growth.count[:, row], growth.subtree_bytes[:, row]
    return bool(count[0] > 0 and (count == count[0]).all() and (np.diff(size) > 0).all())


def _branch(graph: HeapGraph, growth: Growth, row: int, grown_bytes: int) -> Accumulation:
    table = growth.table
    inside = np.flatnonzero(below_classes(table, [row]))
    more = growth.shallow_bytes[-1, inside] - growth.shallow_bytes[0, inside]
    types = graph.type_id[table.example[inside]].astype(np.int64)
    most = int(np.bincount(types, weights=np.maximum(more, 0)).argmax())
    node, sizes = int(table.example[row]), tuple(growth.subtree_bytes[:, row].tolist())
    return Accumulation(node, node, sizes, sizes, grown_bytes, graph.types[most].full, int(table.count[row]), row,
                        is_buffer=True, is_branch=True)
