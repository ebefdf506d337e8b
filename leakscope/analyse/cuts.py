"""If an owner lets go of what it holds: what is freed, who else holds it, and whom the newest of it hang on.

"Clearing X frees 1.90 of 1.95 GiB" is MemLab's what-if: dominators with the suspect edge removed. For one question at a time
that is one walk over the edges that does not pass the owner: what it does not reach any more is freed. Where little is, the
other holders are looked for among those of the newest entries, since old ones have accidental holders (MemLab's vote of the
newest cohort), and cut as well, the most frequent one first: MemLab's layers of retainers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from leakscope.analyse import kernel, naming, retention
from leakscope.analyse.growth import Accumulation, PathTable, below_classes
from leakscope.analyse.paths import Tree
from leakscope.analyse.reachability import garbage, held_by_c
from leakscope.analyse.retention import Retention
from leakscope.heap import layout
from leakscope.heap.graph import Array, HeapGraph

MOST_NEWEST = 1000  # entries that vote, MemLab's leak_report
MOST_HOLDERS = 3  # who else holds it that are named, and cut one after the other; ours
POINT_SHARE = 0.7  # of the entries hang on one object: Eclipse MAT's accumulation point
MOST_LEVELS = 64  # of dominators that are climbed; ours
OWN_SHARE = 0.5  # of its bytes are freed: the owner alone is enough; knowledge page, section 2.1, bit C
HOLDER_SHARE = 0.25  # of the newest entries are held by somebody: then that is a holder of the pile; ours
# Not holders: what every object of a kind refers to from anywhere.
_NO_HOLD = frozenset({layout.TYPE, layout.STACK})
_TASK = layout.ROOT_KINDS.index("task")


@dataclass(frozen=True)
class Holder:
    """Somebody else who holds entries of a pile: `votes` of `of` of the newest entries."""

    name: str
    votes: int
    of: int


@dataclass(frozen=True)
class Cut:
    """What happens if the owner lets go: `freed_bytes` of the `kept_bytes` that its entries keep.

    `others` hold entries as well, most votes first; `with_others_bytes`: what is freed if they let go, too; None where
    nobody else was found. `point`: another object that all of it hangs on, by its owner's name; "" where there is none or the
    owner is enough.
    """

    kept_bytes: int
    freed_bytes: int
    others: tuple[Holder, ...] = ()
    with_others_bytes: int | None = None
    point: str = ""

    @property
    def ratio(self) -> float | None:
        """The part that is freed; None where the entries keep nothing."""
        return min(1.0, self.freed_bytes / self.kept_bytes) if self.kept_bytes > 0 else None

    def share_of(self, growth_bytes: int) -> int:
        """The pile's part of its growth: what others hold as well is shared between all of them (BLeak's LeakShare)."""
        return growth_bytes if self.is_enough else growth_bytes // (1 + len(self.others))

    @property
    def is_enough(self) -> bool:
        """True if the owner alone frees at least half."""
        return (self.ratio or 0.0) >= OWN_SHARE


def cut(graph: HeapGraph, tree: Tree, table: PathTable, pile: Accumulation, kept_by: Retention,
        newest: Array | None = None) -> Cut:
    """Return what is freed if every holder of the pile lets go of its entries.

    Args:
        kept_by: the dominators of the snapshot, asked only where the owner alone frees little.
        newest: the entries that vote on who else holds the pile; its last ones in the snapshot if None.
    """
    members = table.nodes_of(pile.member_classes) if pile.member_classes else np.array([pile.member_node])
    owners = table.members(pile.owner_class).astype(np.int64) if pile.owner_node >= 0 else np.zeros(0, np.int64)
    if pile.owner_node >= 0 and not len(owners):
        owners = np.array([pile.owner_node])
    below = _below(table, pile, members)
    roots = _roots(graph)
    if pile.owner_node < 0:  # the entries are roots themselves
        roots = np.setdiff1d(roots, members, assume_unique=True)
    freed = _freed(graph, roots, owners, below)
    kept = int(graph.shallow_bytes[below].sum())
    result = Cut(kept, freed)
    if result.is_enough or pile.is_buffer:
        return result
    others: list[Holder] = []
    blocked, most = owners, freed
    voters = (members if newest is None else newest)[-MOST_NEWEST:]
    inside = np.zeros(graph.node_count, bool)
    inside[below] = True
    for holder, nodes in _holders(graph, tree, table, voters, inside, owners)[:MOST_HOLDERS]:
        others.append(holder)
        blocked = np.concatenate([blocked, nodes])
        most = _freed(graph, roots, blocked, below)
        if most >= OWN_SHARE * kept:
            break
    return Cut(kept, freed, tuple(others), most if others else None, _point(graph, tree, kept_by.idom, members, inside, owners))


def _roots(graph: HeapGraph) -> Array:
    """The nodes that are held whoever lets go: named roots but pending tasks, of which asyncio keeps only a weak list."""
    held = held_by_c(graph) | garbage(graph)
    held[graph.root_node[graph.root_kind != _TASK]] = True
    return np.flatnonzero(held)


def _below(table: PathTable, pile: Accumulation, members: Array) -> Array:
    if not pile.member_classes:
        return members
    return table.nodes_of(np.flatnonzero(below_classes(table, list(pile.member_classes))).tolist())


def _freed(graph: HeapGraph, roots: Array, blocked: Array, below: Array) -> int:
    """The bytes of `below` that no root reaches without passing a node of `blocked`, which themselves stay."""
    start, target = kernel.edges(graph.edge_start, graph.edge_target)
    seen = np.zeros(graph.node_count, np.uint8)
    seen[blocked] = 1
    starts = kernel.nodes(roots)
    lasting = graph.edge_label >> layout.EDGE_KIND_SHIFT != layout.STACK  # a call's own stack holds nothing after the call
    kernel.active.reach(start, target, starts, kernel.mask(lasting), seen, np.empty(len(starts), np.uint8))
    return int(graph.shallow_bytes[below[seen[below] == 0]].sum())


def _point(graph: HeapGraph, tree: Tree, idom: Array, members: Array, inside: Array, owners: Array) -> str:
    """The name of the lowest object that dominates most of the entries; "" for none but the pile itself or its owner.

    Eclipse MAT descends from the top for as long as one child keeps 0.7; from below it is the same object, found sooner.
    """
    count = graph.node_count
    nodes, sizes = members, np.ones(len(members), np.int64)
    for _ in range(MOST_LEVELS):
        nodes = idom[nodes].astype(np.int64)
        is_known = (nodes >= 0) & (nodes < count)
        if not is_known.any():
            return ""
        nodes, place = np.unique(nodes[is_known], return_inverse=True)
        sizes = np.bincount(place, weights=sizes[is_known]).astype(np.int64)
        best = int(nodes[np.argmax(sizes)])
        if sizes.max() >= POINT_SHARE * len(members) and not inside[best]:
            found = None if best in owners.tolist() else retention.path(graph, tree, best, is_owner=True)
            return found.owner if found is not None else ""
    return ""


def _holders(graph: HeapGraph, tree: Tree, table: PathTable, voters: Array, inside: Array,
             owners: Array) -> list[tuple[Holder, Array]]:
    """Who holds the voters from outside the pile, by path, most votes first, each with its nodes."""
    wanted = np.zeros(graph.node_count, bool)
    wanted[voters] = True
    edges = np.flatnonzero(wanted[graph.edge_target])
    kinds = graph.edge_label[edges] >> layout.EDGE_KIND_SHIFT
    edges = edges[~np.isin(kinds, list(_NO_HOLD))]
    sources = np.searchsorted(graph.edge_start, edges.astype(np.uint64), side="right") - 1
    is_other = ~inside[sources] & ~np.isin(sources, owners) & (table.class_of[sources] >= 0)
    edges, sources = edges[is_other], sources[is_other]
    rows = table.class_of[sources]
    found = []
    for row in np.unique(rows).tolist():
        mine = rows == row
        votes = len(np.unique(graph.edge_target[edges[mine]]))
        if votes >= HOLDER_SHARE * len(voters):
            node, edge = int(sources[mine][0]), graph.edge(int(edges[mine][0]))
            path = retention.path(graph, tree, node)
            if path is not None:
                name = naming.path_text(graph, path.text, []) + naming.edge_text(edge)
                found.append((Holder(name, votes, len(voters)), np.unique(sources[mine])))
    return sorted(found, key=lambda each: (-each[0].votes, each[0].name))
