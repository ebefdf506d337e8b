"""Why an object is alive, in the words of its best-named root: one breadth-first tree over the whole snapshot.

A shortest path is often a silly one (through `sys.modules`, a class, `__globals__`). So roots are followed in the order in
which a person would name them (PerfView's root priorities), and edges that lead from anywhere to anywhere wait for a second
pass.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from leakscope.analyse import kernel
from leakscope.analyse.components import components
from leakscope.analyse.reachability import held_from_outside
from leakscope.heap import layout
from leakscope.heap.graph import Array, HeapGraph

# Which of several edges of the same level names a node best.
_KIND_ORDER = (layout.ATTRIBUTE, layout.KEY, layout.INDEX, layout.LOCAL, layout.CELL, layout.CONTENTS, layout.ELEMENT,
               layout.INTERNAL, layout.STORAGE, layout.KEY_OBJECT, layout.STACK, layout.UNKNOWN, layout.TYPE)
# Edges of little interest, as attribute, key or slot: every function holds its module, every class its bases.
_SECOND_PASS = {
    "__globals__", "__builtins__", "__mro__", "__bases__", "__base__", "__subclasses__", "__module__", "__class__",
    "__objclass__", "__loader__", "__spec__", "__type_params__", "f_back", "f_globals",
    "f_builtins", "f_code", "gi_code", "cr_code",
    "__defaults__",  # the registry of multiprocessing.util is one, besides its own name
    "<state>",  # of a C module: what it keeps has a better name in Python
    "old_excepthook", "old_sys_excepthook",  # sys.excepthook as each threading.Thread has found it
}
_KINDS = 32
_C_HELD, _GARBAGE = layout.ROOT_KINDS.index("c-held"), layout.ROOT_KINDS.index("garbage")
# What a person would not begin a story with.
_CONTAINERS = {"dict", "list", "tuple", "set", "frozenset", "cell", "method", "getset_descriptor", "member_descriptor",
               "wrapper_descriptor", "traceback"}


@dataclass(frozen=True, eq=False)
class Tree:
    """One path to every node.

    `parent_edge` (N,) int64: number of the edge that leads to the node; -1 where a path begins.
    `parent` (N,) int32: the node where that edge begins; -1 where a path begins.
    `root` (N,) int32: row of the named root; -1 for what only C code holds and for garbage.
    `depth` (N,) int32: edges on the path.
    `start` (N,) int32: the node where the path begins.
    `kind` (N,) uint8: position in format.ROOT_KINDS of what is at the start, "c-held" and "garbage" among them.
    """

    parent_edge: Array
    parent: Array
    root: Array
    depth: Array
    start: Array
    kind: Array


def best_tree(graph: HeapGraph, ranks: Array, claimed_first: Array | None = None) -> Tree:
    """Return a path to every node, by the best root that reaches it, then the fewest edges, then the best-named last edge.

    Phases: every root claims its own node. In the order of their rank roots claim breadth first what is left, without edges
    of little interest (types, `__globals__`, `f_back` ...), then with them. Then follows what only C code holds, from those
    that no other such object holds, and then garbage in the same way. Independent of addresses and, but for sets, of hash
    seeds.

    Args:
        ranks: (R,) ints; roots of a lower rank are followed first.
        claimed_first: (R,) bool; a root that is False here is one only where no other root leads to it without a detour.

    Time: linear in edges, plus sorting the names.
    """
    claims = _Claims(graph)
    rows = _rows_by_name(graph, ranks)
    at_once = np.ones(len(rows), dtype=bool) if claimed_first is None else np.asarray(claimed_first, dtype=bool)[rows]
    claims.begin(graph.root_node[rows[at_once]], rows[at_once])
    claims.expand_by_rank(ranks, 0)
    late = rows[~at_once]
    late = late[claims.root[graph.root_node[late]] < 0]
    late = late[np.unique(graph.root_node[late], return_index=True)[1]]
    tops = claims.tops(graph.root_node[late].astype(np.int64))
    claims.begin(graph.root_node[late[tops]], late[tops])
    claims.expand_by_rank(ranks, 0)
    claims.expand_by_rank(ranks, 1)
    first_of_c = claims.begin_unnamed(np.flatnonzero(held_from_outside(graph) & (claims.root < 0)))
    first_of_garbage = claims.begin_unnamed(np.flatnonzero(claims.root < 0))
    return claims.tree(first_of_c, first_of_garbage)


def path_to(tree: Tree, node: int) -> list[int]:
    """Return the edge numbers of the path to a node, root first; empty for the root itself."""
    edges = []
    while (edge := int(tree.parent_edge[node])) >= 0:
        edges.append(edge)
        node = int(tree.parent[node])
    return edges[::-1]


def _rows_by_name(graph: HeapGraph, ranks: Array) -> Array:
    """Rows of roots by rank, then by what they are called, so that the order in the snapshot does not matter."""
    names = [(graph.strings[label], graph.node_name(node))
             for label, node in zip(graph.root_label.tolist(), graph.root_node.tolist(), strict=True)]
    return np.array(sorted(range(len(names)), key=lambda row: (ranks[row], names[row], row)), dtype=np.int64)


class _Claims:
    """Who has claimed which node so far. Roots without a name get numbers from R on."""

    def __init__(self, graph: HeapGraph) -> None:
        self.graph = graph
        self.start, self.target = kernel.edges(graph.edge_start, graph.edge_target)
        self.parent_edge = np.full(graph.node_count, -1, dtype=np.int64)
        self.parent = np.full(graph.node_count, -1, dtype=np.int32)
        self.root = np.full(graph.node_count, -1, dtype=np.int32)
        self.depth = np.full(graph.node_count, -1, dtype=np.int32)
        self.begun: list[Array] = []  # nodes of roots without a name
        self.next_root = len(graph.root_node)
        texts = graph.strings
        self.string_order = np.empty(len(texts), dtype=np.uint32)
        self.string_order[sorted(range(len(texts)), key=texts.__getitem__)] = np.arange(len(texts))
        self.string_pass = np.array([text.strip("'") in _SECOND_PASS for text in texts], dtype=np.uint8)
        self.kinds = np.zeros((3, _KINDS), dtype=np.uint8)
        self.kinds[0, list(_KIND_ORDER)] = np.arange(len(_KIND_ORDER))
        self.kinds[1, layout.TYPE] = 1
        self.kinds[2, [layout.ATTRIBUTE, layout.KEY, layout.INTERNAL, layout.LOCAL, layout.CELL, layout.KEY_OBJECT]] = 1

    def begin(self, nodes: Array, roots: Array) -> None:
        """Let `roots` claim their own `nodes`; the first of several for one node has it."""
        first = np.unique(nodes, return_index=True)[1]
        self.root[nodes[first]] = roots[first]
        self.depth[nodes[first]] = 0

    def expand_by_rank(self, ranks: Array, last_pass: int) -> None:
        """Let the named roots claim what they lead to, one rank after the other."""
        border = self._border()
        rank = np.asarray(ranks)[self.root[border]]
        for each in np.unique(rank):
            self._expand(border[rank == each], last_pass)

    def begin_unnamed(self, candidates: Array) -> int:
        """Let the outermost of `candidates`, and what they lead to, be claimed by roots without a name; returns the first."""
        first = self.next_root
        tops = candidates[self.tops(candidates)]
        self.begin(tops, np.arange(first, first + len(tops)))
        self.begun.append(tops)
        self.next_root += len(tops)
        for last_pass in (0, 1):
            border = self._border()
            self._expand(border[self.root[border] >= first], last_pass)
        return first

    def tops(self, candidates: Array) -> Array:
        """Positions of those unclaimed `candidates` that no other one leads to; of several in a cycle the best-named one."""
        free = self.root < 0
        if not len(candidates):
            return np.zeros(0, dtype=np.int64)
        component = components(self.start, self.target, free)
        types = self.graph.types
        by_name = sorted(range(len(types)), key=lambda row: (
            "h" not in types[row].flags, types[row].full in _CONTAINERS, types[row]))
        place = np.empty(len(types), dtype=np.int64)
        place[by_name] = np.arange(len(types))
        order = np.lexsort((candidates, place[self.graph.type_id[candidates]], -component[candidates].astype(np.int64)))
        seen = (~free).view(np.uint8)
        fresh = np.empty(len(candidates), dtype=np.uint8)
        kernel.active.reach(self.start, self.target, kernel.nodes(candidates[order]), None, seen, fresh)
        return np.sort(order[fresh.astype(bool)])

    def tree(self, first_of_c: int, first_of_garbage: int) -> Tree:
        """The finished tree: numbers of roots without a name become -1."""
        named = len(self.graph.root_node)
        starts = np.concatenate((self.graph.root_node, *self.begun)).astype(np.int32)
        kinds = np.full(len(starts), _GARBAGE, dtype=np.uint8)
        kinds[:named] = self.graph.root_kind
        kinds[first_of_c:first_of_garbage] = _C_HELD
        root = np.where(self.root < named, self.root, -1).astype(np.int32)
        return Tree(self.parent_edge, self.parent, root, self.depth, starts[self.root], kinds[self.root])

    def _border(self) -> Array:
        """Claimed nodes that hold an unclaimed one, nearest to their root first."""
        holds_unclaimed = np.empty(self.graph.node_count, dtype=np.uint8)
        kernel.active.border(self.start, self.target, self.root, holds_unclaimed)
        holders = np.flatnonzero(holds_unclaimed)
        border: Array = holders[np.argsort(self.depth[holders], kind="stable")]
        return border

    def _expand(self, frontier: Array, last_pass: int) -> None:
        if len(frontier):
            kernel.active.expand(
                self.start, self.target, np.ascontiguousarray(self.graph.edge_label, dtype=np.uint32), self.string_order,
                self.string_pass, self.kinds, last_pass, kernel.nodes(frontier), self.parent_edge, self.parent, self.root,
                self.depth)
