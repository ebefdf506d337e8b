"""What is kept of a snapshot to compare it with later ones, so that only the last of several large graphs stays in memory."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from leakscope.analyse import cachekeys, cohorts, growth, layers, moved, ownership, retention, sites
from leakscope.analyse.paths import Tree
from leakscope.heap.blocks import Blocks
from leakscope.heap.graph import HeapGraph


@dataclass(frozen=True, eq=False)
class Reading:
    """Sums of one snapshot: by layer, by type, by path, by container, by allocation site (all blocks, and those of no
    object); its large objects; bytes of unreachable cycles by device; who was there; the blocks of its devices with their
    owners; its caches and tables with what their keys look like."""

    totals: layers.HeapTotals
    types: dict[str, tuple[int, int]]
    table: growth.PathTable
    containers: growth.Containers
    places: Counter[sites.Place]
    loose: Counter[sites.Place]
    large: moved.Large
    garbage_bytes: dict[str, int]
    identities: cohorts.Identities
    blocks: tuple[Blocks, ownership.Ownership] | None = None
    caches: tuple[cachekeys.Seen, ...] = ()

    @classmethod
    def of(cls, graph: HeapGraph, tree: Tree, is_last: bool) -> Reading:
        """Read a snapshot under its growth tree; of all but the last the nodes themselves are not needed any more."""
        table = growth.path_table(graph, tree)
        blocks = graph.blocks
        return cls(layers.heap_totals(graph), growth.type_totals(graph), table if is_last else table.without_nodes(),
                   growth.containers(graph), sites.live_places(graph), sites.loose_places(graph),
                   moved.large_objects(graph), retention.garbage_bytes(graph), cohorts.identities(graph),
                   None if blocks is None else (blocks, ownership.join(graph, blocks)), cachekeys.seen(graph, tree))
