"""What lies on a device, by the path that leads to it: storages of a snapshot gathered by path class, and their growth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from leakscope.analyse.growth import PathTable
from leakscope.heap import layout
from leakscope.heap.graph import Array, HeapGraph

MOST_NAMED = 400  # path classes that are named, those with most bytes: a name takes about a millisecond; ours
_STORAGE = layout.NODE_KINDS.index("storage")


class Held(NamedTuple):
    """The storages at one path: their bytes, what they have more than in an earlier snapshot (None: not known), their nodes."""

    path: str
    bytes: int
    growth_bytes: int | None
    nodes: Array


def by_path(graph: HeapGraph, table: PathTable, before: PathTable | None, code: int,
            name: Callable[[int], str]) -> tuple[list[Held], int]:
    """Return the storages on a device by path, most bytes first, and how many path classes have no name here.

    Each storage counts once, at its best-named path, so the bytes add up to what Python holds on the device.

    Args:
        table: the paths of this snapshot, with its nodes.
        before: those of an earlier snapshot, None where there is none.
        code: of the device, as in HeapGraph.device.
        name: the path of a node in words; path classes of the same words are one.
    """
    nodes = np.flatnonzero((graph.kind == _STORAGE) & (graph.device == code))
    if not len(nodes):
        return [], 0
    order = np.argsort(table.class_of[nodes], kind="stable")
    classes, first = np.unique(table.class_of[nodes[order]], return_index=True)
    members = np.split(nodes[order], first[1:])
    sizes = [int(graph.shallow_bytes[mine].sum()) for mine in members]
    named: dict[str, list[int]] = {}
    places = sorted(range(len(members)), key=lambda place: -sizes[place])
    for place in places[:MOST_NAMED]:
        named.setdefault(name(int(members[place][0])), []).append(place)
    found = [Held(path, sum(sizes[place] for place in own), _growth(table, before, code, classes[own].tolist()),
                  np.concatenate([members[place] for place in own])) for path, own in named.items()]
    return sorted(found, key=lambda each: (-each.bytes, each.path)), len(places[MOST_NAMED:])


def _growth(table: PathTable, before: PathTable | None, code: int, rows: Sequence[int]) -> int | None:
    """What these path classes have more on the device than before."""
    if before is None or min(rows) < 0:
        return None
    after, old = table.device_bytes.get(code), before.device_bytes.get(code)
    grown = 0
    for row in rows:
        place = int(np.searchsorted(before.key, table.key[row]))
        was_there = place < len(before.key) and before.key[place] == table.key[row]
        grown += int(after[row]) if after is not None else 0
        grown -= int(old[place]) if old is not None and was_there else 0
    return grown


def holders(owner: Array, rows_of: dict[int, int]) -> dict[int, int]:
    """Return the row in `rows_of` of each block whose storage has one; `owner`: (B,) node of each block, -1 for none."""
    return {row: rows_of[node] for row, node in enumerate(owner.tolist()) if node in rows_of}
