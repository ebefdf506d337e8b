"""What holds what: trees of best names, retained bytes, unreachable cycles, other holders of one snapshot."""

from __future__ import annotations

import sys
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leakscope.analyse import kernel, naming
from leakscope.analyse.dominators import device_name, dominators, retained_by_device
from leakscope.analyse.paths import Tree, best_tree, path_to
from leakscope.analyse.reachability import garbage, held_from_outside
from leakscope.analyse.sites import is_library_label
from leakscope.heap import layout
from leakscope.heap.graph import HeapGraph
from leakscope.heap.roots import RANK
from leakscope.model import Path

Array = NDArray[Any]

MOST_HOLDERS = 500  # who else holds an object is looked for among so many; ours: a shared string has millions

_MODULE, _TASK = layout.ROOT_KINDS.index("module"), layout.ROOT_KINDS.index("task")
_CONTEXT, _FRAME = layout.ROOT_KINDS.index("contextvar"), layout.ROOT_KINDS.index("frame")
_OF_TASK = "context of Task "  # how the agent calls the context of a pending task
# Modules that keep a book of what is running, to join it at the exit: whoever started it is the better name.
_BOOKS = {"module threading", "module concurrent.futures.thread", "module concurrent.futures.process",
          "module multiprocessing.process", "module multiprocessing.util"}
_STEP = 4  # between the ranks of two kinds of roots; modules come in that many ranks
_AFTER_FRAMES = _STEP * (RANK["frame"] + 1) + 1


def _module_rank(name: str) -> int:
    """The application's modules before libraries', libraries' before the standard library's, and of those `_sqlite3` last."""
    top = name.removeprefix("module ").partition(".")[0]
    if top in ("__main__", "__mp_main__"):
        return 0
    return 1 if top not in sys.stdlib_module_names else 3 if top.startswith("_") else 2


def _is_of_task(graph: HeapGraph) -> Array:
    """(R,) bool: contexts of pending tasks."""
    rows = [row for row, text in enumerate(graph.strings) if text.startswith(_OF_TASK)]
    is_of_task: Array = (graph.root_kind == _CONTEXT) & np.isin(graph.root_label, rows)
    return is_of_task


def root_ranks(graph: HeapGraph) -> Array:
    """(R,) the order in which roots are followed: heap/roots.py, with modules split in four, contexts of threads before those
    of tasks, which are copies of them, and frames of the program before those of libraries, whose calls come and go; between
    them the books of what is running.
    """
    ranks = np.empty(len(graph.root_kind), np.int32)
    for row, (kind, node) in enumerate(zip(graph.root_kind.tolist(), graph.root_node.tolist())):
        name = graph.node_name(node)
        if kind == _MODULE:
            ranks[row] = _AFTER_FRAMES if name in _BOOKS else _module_rank(name)
        elif kind == _FRAME and is_library_label(name):
            ranks[row] = _AFTER_FRAMES + 1
        else:
            ranks[row] = _STEP * (RANK[layout.ROOT_KINDS[kind]] + 1)
    ranks[_is_of_task(graph)] += 1
    return ranks


def growth_tree(graph: HeapGraph) -> Tree:
    """The tree for comparing snapshots: a pending task is named by who holds it, and is a root only where nobody does; so is
    its context.
    """
    ranks = root_ranks(graph)
    return best_tree(graph, ranks, claimed_first=(graph.root_kind != _TASK) & ~_is_of_task(graph))


def holder_tree(graph: HeapGraph) -> Tree:
    """The tree for "why is this alive": the nearest root that a person would name claims first, tasks among them."""
    return best_tree(graph, root_ranks(graph))


def path(graph: HeapGraph, tree: Tree, node: int, merged: bool = True, is_owner: bool = False) -> Path | None:
    """The path to a node in words (analyse/naming.py, name_path); None where the tree does not reach it."""
    if tree.depth[node] < 0:
        return None
    return naming.name_path(graph, int(tree.start[node]), int(tree.root[node]), path_to(tree, node),
                            kind_of_root(tree, node), merged, is_owner)


def kind_of_root(tree: Tree, node: int) -> str:
    """One of format.ROOT_KINDS for the root that a node hangs on."""
    return layout.ROOT_KINDS[int(tree.kind[node])]


class Retention:
    """Dominators of one snapshot: what would be freed if one node let go.

    The virtual root holds every named root, and what only C code or unreachable cycles hold.
    """

    def __init__(self, graph: HeapGraph) -> None:
        self.graph = graph

    @cached_property
    def idom(self) -> Array:
        """(N,) i4 immediate dominator; N: the virtual root; -1: not reached."""
        roots = np.flatnonzero(held_from_outside(self.graph) | garbage(self.graph))
        return dominators(self.graph.edge_start, self.graph.edge_target, roots)

    @cached_property
    def retained_bytes(self) -> dict[str, Array]:
        """(N,) u8 for each device that holds anything."""
        return retained_by_device(self.graph, self.idom)

    def of(self, nodes: Array) -> dict[str, int]:
        """Retained bytes by device of several nodes together, those inside one another counted once."""
        inside = np.zeros(self.graph.node_count + 1, bool)
        inside[nodes] = True
        dominator = self.idom[nodes]
        top = nodes[~inside[np.where(dominator >= 0, dominator, self.graph.node_count)]]
        return {device: int(values[top].sum()) for device, values in self.retained_bytes.items() if values[top].any()}


def entries(graph: HeapGraph, node: int) -> Array:
    """What a node holds, each once."""
    held: Array = np.unique(graph.edge_target[graph.edge_start[node]:graph.edge_start[node + 1]]).astype(np.int64)
    return held


def garbage_bytes(graph: HeapGraph) -> dict[str, int]:
    """What unreachable cycles keep, themselves included, by device; `host` is always there."""
    inside = garbage(graph)
    sizes, devices = graph.shallow_bytes[inside], graph.device[inside]
    return {device_name(code): int(sizes[devices == code].sum()) for code in sorted({0, *np.unique(devices).tolist()})}


def below(graph: HeapGraph, nodes: Array, inside: Array) -> Array:
    """What can be reached from `nodes` without leaving the (N,) bool `inside`, the nodes themselves included."""
    start, target = kernel.edges(graph.edge_start, graph.edge_target)
    seen = (~inside).view(np.uint8)
    kernel.active.reach(start, target, kernel.nodes(nodes), None, seen, np.empty(len(nodes), np.uint8))
    return np.flatnonzero(seen.view(np.bool_) & inside)


def own_bytes(graph: HeapGraph, node: int, others: list[int], most_nodes: int = 2000) -> int:
    """What can be reached from a node without passing `others`, up to a number of nodes: a measure for what it keeps itself."""
    seen, queue, total = set(others), [node], 0
    while queue and len(seen) < most_nodes:
        each = queue.pop()
        total += int(graph.shallow_bytes[each])
        for edge in graph.edges_from(each, most_nodes):
            if edge.target not in seen and edge.kind != layout.TYPE and edge.text != "__globals__":
                seen.add(edge.target)
                queue.append(edge.target)
    return total


def other_holders(graph: HeapGraph, tree: Tree, node: int, most: int = 3) -> list[str]:
    """Who else refers to a node, apart from the path of the tree: owners by name."""
    names: list[str] = []
    for edge in graph.edges_to(node, MOST_HOLDERS):
        if edge.kind == layout.TYPE or edge.source == tree.parent[node]:
            continue
        held_by = path(graph, tree, edge.source)
        if held_by is None or tree_contains(tree, edge.source, node):
            continue
        name = naming.path_text(graph, held_by.text, []) + naming.edge_text(edge)
        if name not in names:
            names.append(name)
        if len(names) == most:
            break
    return names


def tree_contains(tree: Tree, node: int, ancestor: int) -> bool:
    """True if `ancestor` lies on the tree's path to `node`."""
    while node != ancestor and tree.parent[node] >= 0:
        node = int(tree.parent[node])
    return node == ancestor
