"""Large objects that are made anew, larger each time, and are found at another path in every snapshot.

`table = concat([table, rows])` makes one array of all so far. A snapshot that falls into the call finds it among the variables
of a library, the next one at its attribute: no path has it in all snapshots. So the largest object of a type is compared
instead, without those whose size never changes, such as the weights of a model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leakscope.analyse.coverage import CLAIM_BYTES
from leakscope.analyse.growth import Accumulation, Growth
from leakscope.heap.graph import HeapGraph

Array = NDArray[Any]
Large = dict[str, tuple[tuple[int, int], ...]]  # of each type: (bytes, node), largest first

LEAST_LARGE_BYTES = 64 << 10  # smaller objects are no large ones; ours
MOST_LARGE = 1000  # large objects that are kept of a snapshot; ours


def large_objects(graph: HeapGraph) -> Large:
    """Return the large objects of a snapshot that lie in host memory, by full type name."""
    nodes = np.flatnonzero((graph.shallow_bytes >= LEAST_LARGE_BYTES) & (graph.device == 0))
    nodes = nodes[np.argsort(-graph.shallow_bytes[nodes].astype(np.int64), kind="stable")][:MOST_LARGE]
    found: dict[str, list[tuple[int, int]]] = {}
    for node in nodes.tolist():
        found.setdefault(graph.type_name(node), []).append((int(graph.shallow_bytes[node]), node))
    return {name: tuple(rows) for name, rows in found.items()}


def moved(growth: Growth, snapshots: Sequence[Large], found: Sequence[Accumulation]) -> list[Accumulation]:
    """Return the large objects of the last snapshot that were smaller in each one before, and not always at this path.

    Where `found` has something on the path of an object, that says it better.
    """
    taken = {row for pile in found for row in (pile.owner_class, *pile.member_classes)}
    piles = []
    for name, rows in snapshots[-1].items():
        kept = set.intersection(*({size for size, _ in each.get(name, ())} for each in snapshots))
        sizes = tuple(next((size for size, _ in each.get(name, ()) if size not in kept), 0) for each in snapshots)
        if not all(0 < sooner < later for sooner, later in zip(sizes, sizes[1:])) or sizes[-1] - sizes[0] < CLAIM_BYTES:
            continue
        node = next(node for size, node in rows if size == sizes[-1])
        row = int(growth.table.class_of[node])
        if row >= 0 and not growth.count[:, row].all() and taken.isdisjoint(growth.table.up_from(row)):
            piles.append(Accumulation(node, node, sizes, sizes, sizes[-1] - sizes[0], name, 1, row, is_buffer=True,
                                      is_moved=True))
    return piles
