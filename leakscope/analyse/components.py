"""Strongly connected components, and the cycles that show what keeps them together."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from leakscope.analyse import kernel
from leakscope.heap import layout
from leakscope.heap.graph import Array, HeapGraph

# What an edge costs in a cycle that is to be read by a person; ours. The cheapest cycle is shown.
_COST = {
    layout.CONTENTS: 1, layout.ATTRIBUTE: 2, layout.LOCAL: 2, layout.CELL: 2, layout.KEY: 3, layout.INDEX: 3, layout.ELEMENT: 3,
    layout.STORAGE: 4, layout.STACK: 4, layout.KEY_OBJECT: 5, layout.INTERNAL: 5, layout.UNKNOWN: 7, layout.TYPE: 40,
}
_INTERNAL_COST = {"__self__": 3, "__func__": 3, "__wrapped__": 3, "callback": 3, "__globals__": 40, "__mro__": 40,
                  "__bases__": 40, "__objclass__": 50}
_NO_INSTANCE = {layout.NODE_KINDS.index(kind) for kind in ("module", "type", "function", "code", "weakref")}
_START_TYPES = 8  # types of a component that a search starts from
_MOST_EDGES = 30_000  # looked at in all searches of one component: a cycle worth showing is short


@dataclass(frozen=True, eq=False)
class Cycle:
    """Components that consist of the same types, and one cycle out of them.

    `nodes` are the rows of all their members, `count` is how many components there are, `edges` are the edge numbers of the
    cycle, in order and closed; empty where the shortest one is too long to be found, such as a ring of 50 000 links.
    """

    nodes: Array
    count: int
    edges: tuple[int, ...]


def components(edge_start: Array, edge_target: Array, allowed: Array | None = None) -> Array:
    """Return (N,) int32: the strongly connected component of each node, -1 for nodes outside `allowed` (N,) bool.

    Numbered in reverse topological order: an edge between two components goes from the higher number to the lower.
    Tarjan, "Depth-First Search and Linear Graph Algorithms", 1972.

    Raises:
        ValueError: the arrays do not belong to one graph.
    """
    start, target = kernel.edges(edge_start, edge_target)
    component = np.empty(max(len(start) - 1, 0), dtype=np.int32)
    kernel.active.components(start, target, kernel.mask(allowed), component)
    return component


def cycles(graph: HeapGraph, mask: Array, most: int = 50) -> list[Cycle]:
    """Return the cycles among the nodes of `mask` (N,) bool, those with most members first, at most `most`.

    Components of the same types are one Cycle, and so are those whose shown cycle reads the same. The cycle shown is the
    shortest in which attributes count less than anonymous edges and instances less than the dicts between them.
    """
    component = components(graph.edge_start, graph.edge_target, mask)
    found: dict[tuple[tuple[str, int, str], ...], Cycle] = {}
    for nodes, count, example in _shapes(graph, component)[:most]:
        edges, text = _best_cycle(graph, component, example)
        same = found.get(text)
        found[text] = Cycle(np.concatenate((same.nodes, nodes)), same.count + count, same.edges) if same else (
            Cycle(nodes, count, edges))
    return sorted(found.values(), key=lambda cycle: -len(cycle.nodes))


def _shapes(graph: HeapGraph, component: Array) -> list[tuple[Array, int, Array]]:
    """(all members, number of components, members of one) of the cyclic components of each set of types, most members first."""
    inside = np.flatnonzero(component >= 0)
    size = np.bincount(component[inside])
    cyclic = size > 1
    edges, holders = graph.edge_numbers(inside)
    cyclic[component[holders[graph.edge_target[edges] == holders]]] = True
    members = inside[cyclic[component[inside]]]
    if not len(members):
        return []
    members = members[np.argsort(component[members], kind="stable")]
    row = np.unique(component[members], return_inverse=True)[1].astype(np.uint64)
    pairs = np.unique(row << np.uint64(32) | graph.type_id[members].astype(np.uint64))
    starts = np.flatnonzero(np.diff(pairs >> np.uint64(32), prepend=np.uint64(2**32 - 1)) != 0)
    signature = np.add.reduceat(_mixed(pairs & np.uint64(0xFFFFFFFF)), starts)
    shape = np.unique(signature, return_inverse=True)[1]
    order = np.argsort(shape[row], kind="stable")
    groups = np.split(members[order], np.flatnonzero(np.diff(shape[row][order])) + 1)
    shapes = []
    for group in groups:
        numbers = np.unique(component[group])
        smallest = numbers[np.argmin(size[numbers])]
        shapes.append((group, len(numbers), group[component[group] == smallest]))
    return sorted(shapes, key=lambda found: (-len(found[0]), int(found[0][0])))


def _mixed(values: Array) -> Array:
    """Values spread over 64 bits, so that sums of different sets differ (the finalizer of splitmix64)."""
    with np.errstate(over="ignore"):
        values = (values + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        values = (values ^ values >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ values >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    mixed: Array = values ^ values >> np.uint64(31)
    return mixed


def _best_cycle(graph: HeapGraph, component: Array, nodes: Array) -> tuple[tuple[int, ...], tuple[tuple[str, int, str], ...]]:
    """The cheapest cycle through one of the first nodes of each type, as edge numbers and as it reads."""
    first_of_type = {graph.type_name(int(node)): int(node) for node in nodes[::-1]}
    starts = sorted(first_of_type.items(), key=lambda item: (not is_instance(graph, item[1]), item))[:_START_TYPES]
    best: tuple[int, tuple[tuple[str, int, str], ...], tuple[int, ...]] | None = None
    left = _MOST_EDGES
    for _, start in starts:
        cost, edges, left = _cheapest(graph, component, start, left)
        if edges:
            edges = _turned(graph, edges)
            candidate = (cost, _as_read(graph, edges), edges)
            best = min(best, candidate) if best else candidate
    return (best[2], best[1]) if best else ((), ())


def _cheapest(graph: HeapGraph, component: Array, start: int, left: int) -> tuple[int, tuple[int, ...], int]:
    """Cost and edges of the cheapest way from `start` back to itself within its component (Dijkstra).

    `left` is how many edges may be looked at; what is left of it is returned too.
    """
    inside = int(component[start])
    cost: dict[int, int] = {}
    came_by: dict[int, int] = {}
    waiting: list[tuple[int, int, int]] = [(0, start, -1)]
    while waiting and left > 0:
        so_far, node, edge = heapq.heappop(waiting)
        if edge >= 0:
            if node in cost:
                continue
            cost[node], came_by[node] = so_far, edge
            if node == start:
                return so_far, _way_back(graph, came_by, start), left
        first, end = int(graph.edge_start[node]), int(graph.edge_start[node + 1])
        left -= end - first
        for number in range(first, min(end, first + _MOST_EDGES)):
            held = int(graph.edge_target[number])
            if component[held] == inside and held not in cost:
                heapq.heappush(waiting, (so_far + _edge_cost(graph, number, held), held, number))
    return 0, (), left


def _way_back(graph: HeapGraph, came_by: dict[int, int], start: int) -> tuple[int, ...]:
    edges = [came_by[start]]
    while (holder := graph.holder(edges[-1])) != start:
        edges.append(came_by[holder])
    return tuple(reversed(edges))


def _edge_cost(graph: HeapGraph, number: int, held: int) -> int:
    _, _, kind, text = graph.edge(number)
    cost = _INTERNAL_COST.get(text, _COST[kind]) if kind == layout.INTERNAL else _COST[kind]
    return cost + (not is_instance(graph, held))


def is_instance(graph: HeapGraph, node: int) -> bool:
    """True for an instance of a class of the program, as against containers, functions, classes and modules."""
    return "h" in graph.types[int(graph.type_id[node])].flags and int(graph.kind[node]) not in _NO_INSTANCE


def _as_read(graph: HeapGraph, edges: tuple[int, ...]) -> tuple[tuple[str, int, str], ...]:
    decoded = [graph.edge(number) for number in edges]
    return tuple((graph.type_name(edge.source), edge.kind, edge.text if edge.kind != layout.INDEX else "*") for edge in decoded)


def _turned(graph: HeapGraph, edges: tuple[int, ...]) -> tuple[int, ...]:
    """The same cycle from another start: an instance if there is one, the first by name of type and edge."""
    turns = [edges[step:] + edges[:step] for step in range(len(edges))]
    return min(turns, key=lambda turn: (not is_instance(graph, graph.holder(turn[0])), _as_read(graph, turn), turn))
