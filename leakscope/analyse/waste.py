"""What is wasted, package by package: containers that hold nothing, and texts that are there more than once (both ideas are of
Eclipse MAT's component report).

This is no finding: it says where a program could be smaller, not where it leaks.
"""

from __future__ import annotations

import numpy as np

from leakscope.analyse.naming import is_stdlib
from leakscope.analyse.paths import Tree
from leakscope.heap import layout
from leakscope.heap.graph import Array, HeapGraph
from leakscope.model import Waste

KINDS = ("dict", "list", "set")  # an empty tuple or frozenset is one object for the whole process
HOLDERS_ABOVE = 8  # how far up the owner is looked for: an instance, its dict, a container or two; ours
LEAST_BYTES = 16 << 10  # of one package and kind; less is not worth a row; ours
MOST_ROWS = 20
STDLIB = "standard library"
_NAMED = [layout.NODE_KINDS.index(name) for name in ("module", "type", "function")]


def wasted(graph: HeapGraph, tree: Tree) -> list[Waste]:
    """Return what packages waste, most bytes first.

    The owner is the nearest object on the path from the root whose class, or whose own name, belongs to a package.

    Args:
        tree: a path to every node (analyse/paths.py); what it does not reach is left out.
    """
    shown = [row for row in (*_empty_containers(graph, tree), *_repeated_texts(graph, tree)) if row.size_bytes >= LEAST_BYTES]
    return sorted(shown, key=lambda row: (-row.size_bytes, row.package, row.what))[:MOST_ROWS]


def _empty_containers(graph: HeapGraph, tree: Tree) -> list[Waste]:
    kinds = np.array([KINDS.index(name.full) if name.full in KINDS else -1 for name in graph.types] or [-1])
    nodes = np.flatnonzero((kinds[graph.type_id] >= 0) & (graph.length == 0) & (tree.depth >= 0))
    packages: list[str] = []
    owner = _owners(graph, tree, nodes, packages)
    kind = kinds[graph.type_id[nodes]]
    groups = owner * len(KINDS) + kind
    count = np.bincount(groups, minlength=0)
    size = np.bincount(groups, weights=graph.shallow_bytes[nodes].astype(np.float64))
    return [Waste(packages[group // len(KINDS)], f"empty {KINDS[group % len(KINDS)]}", int(count[group]), int(size[group]))
            for group in np.flatnonzero(count).tolist()]


def _repeated_texts(graph: HeapGraph, tree: Tree) -> list[Waste]:
    """Equal str or bytes under objects of one package: all but the largest of each are counted."""
    nodes = np.array([node for row in graph.duplicates for node in row], np.int64)
    text = np.repeat(np.arange(len(graph.duplicates)), [len(row) for row in graph.duplicates])
    is_reached = tree.depth[nodes] >= 0
    nodes, text = nodes[is_reached], text[is_reached]
    packages: list[str] = []
    owner = _owners(graph, tree, nodes, packages)
    size = graph.shallow_bytes[nodes].astype(np.int64)
    order = np.lexsort((-size, text, owner))
    owner, text, size, nodes = owner[order], text[order], size[order], nodes[order]
    is_again = np.zeros(len(nodes), bool)
    is_again[1:] = (owner[1:] == owner[:-1]) & (text[1:] == text[:-1])
    found: dict[tuple[int, int], list[int]] = {}
    for row in np.flatnonzero(is_again).tolist():
        counted = found.setdefault((int(owner[row]), int(graph.type_id[nodes[row]])), [0, 0])
        counted[0] += 1
        counted[1] += int(size[row])
    return [Waste(packages[package], f"repeated {graph.types[kind].full}", count, size_bytes)
            for (package, kind), (count, size_bytes) in found.items()]


def _owners(graph: HeapGraph, tree: Tree, nodes: Array, packages: list[str]) -> Array:
    """(len(nodes),) row of `packages`, which is filled here; the first is for those whose owner is not near."""
    packages.append("elsewhere")
    by_type = np.array([_row(packages, name.module) for name in graph.types] or [0])
    by_label = np.zeros(len(graph.strings), np.int64)
    named = np.isin(graph.kind, _NAMED)
    for label in np.unique(graph.label[named]).tolist():
        by_label[label] = _row(packages, graph.strings[label].removeprefix("module ").removeprefix("class "))
    owner, above = np.zeros(len(nodes), np.int64), tree.parent[nodes].astype(np.int64)
    for _ in range(HOLDERS_ABOVE):
        open_rows = np.flatnonzero((owner == 0) & (above >= 0))
        at = above[open_rows]
        owner[open_rows] = np.where(named[at], by_label[graph.label[at]], by_type[graph.type_id[at]])
        above[open_rows] = tree.parent[at]
    return owner


def _row(packages: list[str], name: str) -> int:
    """The row of the package that a module, class or function belongs to; 0 for builtins and containers of the library."""
    top = name.partition(".")[0].removesuffix("()")
    if top in ("", "builtins", "collections", "_collections", "weakref", "types", "functools"):
        return 0
    package = STDLIB if is_stdlib(top) else top
    if package not in packages:
        packages.append(package)
    return packages.index(package)
