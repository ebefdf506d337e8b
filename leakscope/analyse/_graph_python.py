"""The inner loops of the graph analyses in plain Python: what they mean, and what is used where _graph.c was not built.

Results are identical to those of _graph.c, and so are the calls. Arrays: `edge_start (N + 1,) u8`, `edge_target (E,) u4` (the
edges of node i are edge_start[i] .. edge_start[i + 1]), nodes `u4`, masks `u1`. Results are written into arrays of the caller.

Raises everywhere:
    ValueError: arrays do not belong to one graph, or hold something that is no node of it.
"""

from __future__ import annotations

import numpy as np

from leakscope.analyse._columns_python import border, class_sums, classify, order_by, outside, path_keys, sums_by
from leakscope.heap import layout
from leakscope.heap.graph import Array

__all__ = ["border", "class_sums", "classify", "components", "dominators", "expand", "order_by", "outside", "path_keys",
           "reach", "retained", "sums_by"]


def reach(
    edge_start: Array, edge_target: Array, sources: Array, edge_allowed: Array | None, seen: Array, fresh: Array,
) -> None:
    """Mark in `seen` (N,) u1 all that can be reached from `sources`, one after the other.

    What is marked already is not entered. `fresh` (S,) u1 says which sources were not yet marked when it was their turn.
    `edge_allowed` (E,) u1 or None: the edges that may be used.
    """
    node_count = _check(edge_start, edge_target, sources)
    wrong_mask = edge_allowed is not None and len(edge_allowed) != len(edge_target)
    if len(seen) != node_count or len(fresh) != len(sources) or wrong_mask:
        raise ValueError("an array is of another length than the graph")
    start, target, marked = edge_start.tolist(), edge_target.tolist(), seen.tolist()
    allowed = None if edge_allowed is None else edge_allowed.tolist()
    for turn, source in enumerate(sources.tolist()):
        fresh[turn] = not marked[source]
        stack = [] if marked[source] else [source]
        marked[source] = 1
        while stack:
            node = stack.pop()
            for edge in range(start[node], start[node + 1]):
                held = target[edge]
                if not marked[held] and (allowed is None or allowed[edge]):
                    marked[held] = 1
                    stack.append(held)
    seen[:] = marked


def components(edge_start: Array, edge_target: Array, allowed: Array | None, component: Array) -> int:
    """Write the strongly connected component of each node into `component` (N,) i4 and return how many there are.

    Numbered in reverse topological order: an edge between two components goes from the higher number to the lower one.
    `allowed` (N,) u1 or None: the nodes to look at; the others get -1. Tarjan 1972, iterative.
    """
    node_count = _check(edge_start, edge_target)
    if len(component) != node_count or (allowed is not None and len(allowed) != node_count):
        raise ValueError("an array is of another length than the graph")
    start, target = edge_start.tolist(), edge_target.tolist()
    low = [0] * node_count if allowed is None else [0 if inside else -1 for inside in allowed.tolist()]  # 0: not visited
    found, count, clock = [-1] * node_count, 0, 0
    waiting: list[int] = []
    for first in range(node_count):
        if low[first]:
            continue
        path: list[tuple[int, int, int]] = []  # node, its next edge, when it was entered
        entering = first
        while True:
            clock += 1
            low[entering] = clock
            waiting.append(entering)
            node, first_edge, entered = entering, start[entering], clock
            entering = -1
            while True:
                for edge in range(first_edge, start[node + 1]):
                    held = target[edge]
                    if not low[held]:
                        entering = held
                        break
                    if found[held] < 0 and 0 < low[held] < low[node]:
                        low[node] = low[held]
                if entering >= 0:
                    path.append((node, edge + 1, entered))
                    break
                if low[node] == entered:
                    while True:
                        member = waiting.pop()
                        found[member] = count
                        if member == node:
                            break
                    count += 1
                if not path:
                    break
                left = node
                node, first_edge, entered = path.pop()
                if found[left] < 0 and low[left] < low[node]:
                    low[node] = low[left]
            if entering < 0:
                break
    component[:] = found
    return count


def dominators(edge_start: Array, edge_target: Array, roots: Array, idom: Array) -> None:
    """Write the immediate dominator of each node into `idom` (N,) i4.

    N stands for the virtual root that holds the roots, -1 for nodes that were not reached.

    Semi-NCA: L. Georgiadis, "Linear-Time Algorithms for Dominators and Related Problems", Princeton 2005.
    """
    node_count = _check(edge_start, edge_target, roots)
    if len(idom) != node_count:
        raise ValueError("an array is of another length than the graph")
    start, target = edge_start.tolist(), edge_target.tolist()
    number, node_of, parent = _preorder(start, target, roots.tolist())
    holders: list[list[int]] = [[] for _ in node_of]
    for above in range(1, len(node_of)):
        for edge in range(start[node_of[above]], start[node_of[above] + 1]):
            holders[number[target[edge]]].append(above)
    for root in roots.tolist():
        holders[number[root]].append(0)
    semi, best, ancestor = parent[:], parent[:], parent[:]
    for low in range(len(node_of) - 1, 0, -1):
        for holder in holders[low]:
            candidate = holder if holder <= low else _least(holder, low, ancestor, best)
            if candidate < semi[low]:
                semi[low] = candidate
        best[low] = semi[low]
    for low in range(1, len(node_of)):
        above = parent[low]
        while above > semi[low]:
            above = parent[above]
        parent[low] = above
    node_of[0] = node_count
    idom[:] = [node_of[parent[low]] if low else -1 for low in number]


def _preorder(start: list[int], target: list[int], roots: list[int]) -> tuple[list[int], list[int], list[int]]:
    """Depth-first numbers from 1 (0: not reached), the node of each number, and the number it was reached from."""
    number, node_of, parent = [0] * (len(start) - 1), [-1], [0]
    for root in roots:
        if number[root]:
            continue
        entering, above = root, 0
        path: list[tuple[int, int]] = []
        while True:
            number[entering] = len(node_of)
            path.append((len(node_of), start[entering]))
            node_of.append(entering)
            parent.append(above)
            entering = -1
            while path and entering < 0:
                above, first_edge = path.pop()
                for edge in range(first_edge, start[node_of[above] + 1]):
                    if not number[target[edge]]:
                        entering = target[edge]
                        path.append((above, edge + 1))
                        break
            if entering < 0:
                break
    return number, node_of, parent


def _least(low: int, done: int, ancestor: list[int], best: list[int]) -> int:
    """The least semi on the path from `low` up to the last number above `done`, compressing the path."""
    path = []
    while ancestor[low] > done:
        path.append(low)
        low = ancestor[low]
    for below in reversed(path):
        if best[low] < best[below]:
            best[below] = best[low]
        ancestor[below] = ancestor[low]
        low = below
    return best[low]


def retained(idom: Array, sizes: Array, bytes_out: Array) -> None:
    """Write into `bytes_out` (N,) u8 the `sizes` (N,) u8 of each node and all that it dominates; 0 for unreached nodes."""
    above, total = idom.tolist(), sizes.tolist()
    node_count = len(above)
    if len(total) != node_count or len(bytes_out) != node_count or any(not -1 <= each <= node_count for each in above):
        raise ValueError("an array is of another length than the graph, or holds no node of it")
    missing = [0] * (node_count + 1)
    for node, holder in enumerate(above):
        if holder < 0:
            total[node] = 0
        else:
            missing[holder] += 1
    for node in range(node_count):
        while missing[node] == 0:
            missing[node] = -1  # passed on
            if not 0 <= above[node] < node_count:
                break
            total[above[node]] += total[node]
            node = above[node]
            missing[node] -= 1
    bytes_out[:] = total


def expand(edge_start: Array, edge_target: Array, edge_label: Array, string_order: Array, string_pass: Array, kinds: Array,
           last_pass: int, frontier: Array, parent_edge: Array, parent: Array, root: Array, depth: Array) -> None:
    """Claim, breadth first from `frontier`, all nodes that nobody has claimed (`root` < 0), for the root of who reaches them.

    A level is complete before the next one starts: of several edges of one level into a node the one wins whose kind comes
    first, then whose text does, then whose holder did.

    Args:
        edge_label: (E,) u4 as in agent/format.py.
        string_order: (S,) u4, place of each string in alphabetical order.
        string_pass: (S,) u1, the first pass in which an edge of that name may be used.
        kinds: (3, 32) u1, for each kind its order, its first pass, and whether its value is a string.
        last_pass: edges of a later pass are left alone.
        frontier: claimed nodes, u4, in rising `depth`.
        parent_edge, parent, root, depth: (N,) i8, i4, i4, i4; read and extended. `parent` is the holder at `parent_edge`.
    """
    if _check(edge_start, edge_target, frontier) != len(parent_edge) or len(edge_label) != len(edge_target):
        raise ValueError("an array is of another length than the graph")
    start, target = edge_start.tolist(), edge_target.tolist()
    kind, value = edge_label >> layout.EDGE_KIND_SHIFT, edge_label & layout.EDGE_VALUE_MASK
    named = kinds[2][kind].astype(bool) & (value < len(string_order))
    value = np.where(named, value, 0)
    allowed = ((kinds[1][kind] <= last_pass) & ~(named & (string_pass[value] > last_pass))).tolist()
    text_order = np.where(named, string_order[value], edge_label & layout.EDGE_VALUE_MASK)
    order = (kinds[0][kind].astype(np.int64) << 32 | text_order).tolist()
    edge_of, holder_of, root_of, depth_of = parent_edge.tolist(), parent.tolist(), root.tolist(), depth.tolist()
    mine, coming, found = bytearray(len(root_of)), frontier.tolist()[::-1], list[int]()
    while coming or found:
        level = depth_of[found[0] if found else coming[-1]]
        holders = []
        while coming and depth_of[coming[-1]] <= level:
            holders.append(coming.pop())
        holders += found
        found = []
        for holder in holders:
            if root_of[holder] < 0:
                continue
            for edge in range(start[holder], start[holder + 1]):
                held = target[edge]
                settled = root_of[held] >= 0 and not (mine[held] and depth_of[held] == level + 1)
                if settled or not allowed[edge]:
                    continue
                if root_of[held] < 0:
                    mine[held] = 1
                    found.append(held)
                elif order[edge] >= order[edge_of[held]]:
                    continue
                edge_of[held], holder_of[held], root_of[held], depth_of[held] = edge, holder, root_of[holder], level + 1
    parent_edge[:], parent[:], root[:], depth[:] = edge_of, holder_of, root_of, depth_of


def _check(edge_start: Array, edge_target: Array, nodes: Array | None = None) -> int:
    """Return N of a graph whose arrays belong together."""
    node_count = len(edge_start) - 1
    rises = node_count >= 0 and edge_start[0] == 0 and not np.any(edge_start[1:] < edge_start[:-1])
    if not rises or edge_start[-1] != len(edge_target) or (len(edge_target) and edge_target.max() >= node_count):
        raise ValueError("edge_start and edge_target are not the edges of one graph")
    if nodes is not None and len(nodes) and nodes.max() >= node_count:
        raise ValueError("an array holds something that is no node of the graph")
    return node_count
