"""Why objects are alive: one entry for each distinct holder of the objects asked for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from leakscope.analyse import naming, retention
from leakscope.analyse.components import cycles
from leakscope.analyse.paths import path_to
from leakscope.analyse.reachability import garbage
from leakscope.heap.graph import Array, HeapGraph
from leakscope.model import CycleStep, Path

MOST_NAMED = 5000  # objects whose path is put into words one by one; ours


@dataclass(frozen=True)
class Holder:
    """What keeps `count` objects of one type alive, and `retained_bytes` with them; `cycle` only for garbage."""

    type: str
    path: Path
    count: int
    retained_bytes: int
    cycle: tuple[CycleStep, ...] = ()


def of_type(graph: HeapGraph, name: str) -> Array:
    """Nodes whose type is `name`: `module.Class`, `Class`, or the end of it after a dot."""
    rows = [row for row, known in enumerate(graph.types) if known.full == name or known.full.endswith(f".{name}")
            or known.qualname == name]
    return np.flatnonzero(np.isin(graph.type_id, rows))


def at_address(graph: HeapGraph, address: int) -> Array:
    """The node with this id() in the target, or none."""
    return np.flatnonzero((graph.address == address) & (address != 0))


def type_names(graph: HeapGraph) -> list[str]:
    """Every type of the snapshot, by full name."""
    return sorted({known.full for known in graph.types})


def holders(graph: HeapGraph, nodes: Array) -> list[Holder]:
    """Return who holds `nodes`, most objects first. Paths that read the same with entries as `[*]` are one holder."""
    tree = retention.holder_tree(graph)
    kept = retention.Retention(graph)
    groups: dict[str, list[int]] = {}
    paths: dict[str, Path] = {}
    for node in nodes[:MOST_NAMED].tolist():
        edges = path_to(tree, node)
        start = naming.root_text(graph, int(tree.root[node]), int(tree.start[node]))
        text = naming.path_text(graph, start, edges)
        groups.setdefault(text, []).append(node)
        if text not in paths:
            found = retention.path(graph, tree, node, merged=False)
            assert found is not None  # every node has a place in the tree
            paths[text] = found
    entries = []
    for text, members in groups.items():
        retained = sum(kept.of(np.array(members)).values())
        cycle = _cycle(graph, int(tree.start[members[0]])) if paths[text].root_kind == "garbage" else ()
        entries.append(Holder(graph.type_name(members[0]), paths[text], len(members), retained, cycle))
    return sorted(entries, key=lambda entry: (-entry.count, entry.path.text))


def _cycle(graph: HeapGraph, node: int) -> tuple[CycleStep, ...]:
    """The cycle that the start of a garbage path belongs to."""
    inside = garbage(graph)
    for cycle in cycles(graph, inside):
        if cycle.edges and node in cycle.nodes:
            return naming.name_cycle(graph, cycle.edges)
    return ()


