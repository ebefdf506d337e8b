"""What can be said of one accumulation: its path, its shape, its bound, what it retains, where it was allocated."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leakscope.analyse import naming, retention
from leakscope.analyse.growth import Accumulation, Growth, PathTable, below_classes
from leakscope.analyse.paths import Tree
from leakscope.analyse.retention import Retention
from leakscope.analyse.sites import Wanted
from leakscope.analyse.trend import Slope
from leakscope.heap import layout
from leakscope.heap.graph import HeapGraph
from leakscope.model import Layer, Path

Array = NDArray[Any]

_KIND = {name: code for code, name in enumerate(layout.NODE_KINDS)}
_STATE_ENDED = layout.STATES.index("ended")
# Registries that live as long as the interpreter, as their path texts begin or contain; names of the standard library.
_REGISTRIES = re.compile(r"finalize\._registry|\bloggerDict\b|^logging\.(_handlers|_handlerList|root)\b|^gc\.callbacks\b"
                         r"|^atexit\b|^signal\b|^sys\.\w*hook\w*\b|^threading\._(threading_atexits|active)\b"
                         r"|^codecs\b|^warnings\.\w+|\b_exithandlers\b")
_TASK_TYPES = re.compile(r"(?:^|\.)(?:Task|Future|coroutine|generator|async_generator)$")
_CALLABLE_TYPES = frozenset({"function", "method", "builtin_function_or_method", "functools.partial", "partial",
                             "weakref.WeakMethod", "method-wrapper"})
_AGE = re.compile(r"(?:^|_)(?:ttl|expir\w*|max_age|lifetime)(?:$|_)", re.IGNORECASE)


def pile_path(graph: HeapGraph, tree: Tree, pile: Accumulation) -> Path | None:
    """The path to what piles up: owner first, then the entry; roots that pile up are named by themselves."""
    found = retention.path(graph, tree, pile.member_node)
    if found is None:
        return None
    if pile.owner_node < 0:
        return Path(found.steps, found.root_kind, found.text, naming_of_root(graph, tree, pile, found))
    owner = retention.path(graph, tree, pile.owner_node, is_owner=True)
    return found if owner is None else Path(found.steps, found.root_kind, found.text, owner.owner)


def naming_of_root(graph: HeapGraph, tree: Tree, pile: Accumulation, found: Path) -> str:
    """What to call roots that pile up: `atexit callbacks`, `threads in drain()`, the type where only C code holds them."""
    kind, name = found.root_kind, naming.short_label(graph, pile.member_node)
    if kind in ("atexit", "signal"):
        return f"{kind} callbacks"
    if kind in ("frame", "thread-local"):
        return f"threads in {name}" if name else "threads"
    if kind == "task":
        return name or "pending asyncio tasks"
    if kind == "c-held":
        return f"native code holding {graph.type_name(pile.member_node)}"
    return found.text


def edges_up(tree: Tree, node: int, most: int) -> list[int]:
    """The node and up to `most` nodes above it in the tree."""
    nodes = [node]
    while len(nodes) <= most and tree.parent[nodes[-1]] >= 0:
        nodes.append(int(tree.parent[nodes[-1]]))
    return nodes


def _around(tree: Tree, pile: Accumulation) -> list[int]:
    """The container of a pile and the two nodes above it; none where the roots themselves pile up."""
    return [] if pile.owner_node < 0 else edges_up(tree, pile.owner_node, 2)


def shape(graph: HeapGraph, tree: Tree, pile: Accumulation, path: Path) -> str:
    """One of the shapes of detectors/_piles.py."""
    if path.root_kind == "c-held":
        return "c-held"
    above = edges_up(tree, pile.member_node, 2)
    if any(graph.kind[node] == _KIND["cache"] for node in above[1:]):
        return "cache"
    if path.root_kind in ("atexit", "signal") or _REGISTRIES.search(path.text) and not path.text.startswith("__main__"):
        return "registry"
    if pile.owner_node < 0:
        return "roots"
    if pile.is_buffer:
        return "container" if pile.is_branch else "buffer"
    return _shape_of_member(graph, pile)


def _shape_of_member(graph: HeapGraph, pile: Accumulation) -> str:
    member = pile.member_node
    inside = [member] if graph.kind[member] else [member, *(edge.target for edge in graph.edges_from(member, 8))]
    if any(graph.kind[node] == _KIND["exception"] or graph.type_name(node) == "traceback" for node in inside[:4]):
        return "exception"
    if graph.kind[member] in (_KIND["task"], _KIND["generator"]) or _TASK_TYPES.search(pile.leaked_type):
        return "task"
    if pile.leaked_type in _CALLABLE_TYPES:
        return "listener"
    return "container"


def declared_bound(graph: HeapGraph, tree: Tree, pile: Accumulation) -> tuple[int, str] | None:
    """The limit that the container, or the object around it, declares, and what it is called; None if there is none."""
    limits = {address: (limit, what) for address, limit, what in graph.bounds}
    limits |= {cache["address"]: (cache["maxsize"], "maxsize") for cache in graph.caches if cache.get("maxsize") is not None}
    return next((limits[address] for node in _around(tree, pile) if (address := int(graph.address[node])) in limits), None)


def cache_of(graph: HeapGraph, tree: Tree, pile: Accumulation) -> dict[str, Any] | None:
    """What a functools cache counts itself (names.json, caches), if that is what the pile is in."""
    addresses = {int(graph.address[node]) for node in _around(tree, pile)}
    return next((cache for cache in graph.caches if cache["address"] in addresses), None)


def expires_by_age(graph: HeapGraph, tree: Tree, pile: Accumulation) -> bool:
    """True if the object around the container has an attribute that speaks of the age of entries, such as `ttl`."""
    return any(_AGE.search(edge.text) for node in _around(tree, pile)[1:]
               if graph.kind[node] == _KIND["object"] for edge in graph.edges_from(node, 32) if edge.kind == layout.ATTRIBUTE)


def hidden_native_growth(layers: Sequence[Layer], least_bytes: int) -> int:
    """The growth of native memory in use that is worth explaining by objects which hide theirs; else 0."""
    growth = {layer.name: layer.growth_bytes or 0 for layer in layers}
    native = growth.get("native", 0)
    return native if native >= max(least_bytes, 0.4 * growth.get("total", 0)) else 0


def hides_native(graph: HeapGraph, pile: Accumulation) -> bool:
    """True if the members, or what they hold at once, are objects of extension modules that may own native memory.

    A tensor with an autograd graph holds the tensors saved for the backward pass, which no Python object shows (the names of
    the saved ones are never asked for: that may run hooks of the program).
    """
    if pile.is_buffer:
        return False
    if carries_autograd(graph, pile):
        return True
    held = (edge.target for edge in graph.edges_from(pile.member_node, 32) if edge.kind != layout.TYPE)  # a class hides nothing
    candidates = [pile.member_node, *held]
    return any(_is_extension_type(graph, node) and not _shows_its_memory(graph, node) for node in candidates)


def _shows_its_memory(graph: HeapGraph, node: int) -> bool:
    """True if the native memory of an object is in the graph, as a tensor's storage is: then it hides none."""
    return any(graph.kind[edge.target] == _KIND["storage"] for edge in graph.edges_from(node, 16))


def carries_autograd(graph: HeapGraph, pile: Accumulation) -> bool:
    """True if the members, or what they hold at once, are tensors with an autograd graph behind them."""
    if pile.is_buffer or graph.kind[pile.member_node] in (_KIND["type"], _KIND["function"], _KIND["module"]):
        return False
    near = [pile.member_node, *(edge.target for edge in graph.edges_from(pile.member_node, 32))]
    return any(edge.text == "grad_fn" for node in near for edge in graph.edges_from(node, 16))


def _is_extension_type(graph: HeapGraph, node: int) -> bool:
    name = graph.types[graph.type_id[node]]
    top = name.module.partition(".")[0]
    return "h" not in name.flags and top not in ("builtins", "", "numpy", "_io") and not naming.is_stdlib(name.module)


def share_of_growth(slope: Slope | None, times_s: Sequence[float], growth_bytes: int) -> float | None:
    """The part of a growth of memory, at so many bytes a second, between the snapshots that a pile accounts for, at most 1."""
    if slope is None or slope.value <= 0 or len(times_s) < 2:
        return None
    total = slope.value * (times_s[-1] - times_s[0])
    return min(1.0, growth_bytes / total) if total > 0 else None


class Proof:
    """Numbers of one pile in the last snapshot."""

    def __init__(self, graph: HeapGraph, table: PathTable, kept: Retention, pile: Accumulation) -> None:
        self.graph, self.table, self.pile = graph, table, pile
        self.members = np.array([pile.member_node]) if pile.is_buffer else table.nodes_of(pile.member_classes)
        self.retained_bytes = kept.of(self.members)
        owner = np.array([pile.owner_node]) if pile.owner_node >= 0 and pile.owner_count == 1 else self.members
        self.frees_bytes = sum(kept.of(owner).values())
        states = graph.state[self.members]
        self.ended_ratio = float((states == _STATE_ENDED).mean()) if len(states) else 0.0

    @cached_property
    def below(self) -> Array:
        """Nodes below the members in the tree of paths."""
        inside = below_classes(self.table, list(self.pile.member_classes) or [self.pile.owner_class])
        return self.table.nodes_of(np.flatnonzero(inside).tolist())

    def layer(self, hidden_bytes: int) -> str:
        """Where most of the bytes on the host lie."""
        nodes = self.below
        sizes, kinds = self.graph.shallow_bytes[nodes].view(np.int64), self.graph.kind[nodes]
        devices = self.graph.device[nodes]
        parts = Counter({"python": int(sizes[(kinds != _KIND["storage"]) & (kinds != _KIND["mapping"]) & (devices == 0)].sum()),
                         "native": hidden_bytes + int(sizes[(kinds == _KIND["storage"]) & (devices == 0)].sum()),
                         "mapped": int(sizes[kinds == _KIND["mapping"]].sum())})
        return parts.most_common(1)[0][0]

    def wanted(self) -> Wanted:
        """The members and what hangs below them, to ask for where they were made."""
        return Wanted(self.below, self.members, self.pile.owner_node)


def node_growth(growth: Growth, pile: Accumulation) -> int:
    """How many objects more there are at and below the members than in the first snapshot."""
    inside = below_classes(growth.table, list(pile.member_classes) or [pile.owner_class])
    return int((growth.count[-1, inside] - growth.count[0, inside]).sum())
