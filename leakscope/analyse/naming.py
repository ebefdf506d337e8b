"""From edge numbers to words: path text, steps, and the owner that a person can search for."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from leakscope.heap import layout
from leakscope.heap.graph import Edge, HeapGraph
from leakscope.model import CycleStep, Path, Step

_KIND = {name: code for code, name in enumerate(layout.NODE_KINDS)}
_FOREVER = {_KIND["module"]: "a module lives for ever", _KIND["type"]: "a class lives as long as its module"}
# Slots that only lead on to the next named thing: an instance's dict, a function's tuple of cells, the frame of a generator.
_FRAMES = frozenset({"gi_frame", "cr_frame", "ag_frame"})  # up to 3.10 the variables are in it
_SILENT = frozenset({"__dict__", "__closure__"}) | _FRAMES
_CALLEE_SLOTS = frozenset({"func", "_func", "callback", "_callback", "fn", "function", "target", "_target", "__func__",
                           "__wrapped__"})
_MOST_CALLEE_EDGES = 32  # ours: a threading.Timer has 20
# How the two kinds of functools.lru_cache hold their entries (agent/holders.py).
_CACHE_ENTRIES = frozenset({"cache key", "cache[*]"})
_NAMED_IN_CYCLES = frozenset(_KIND[kind] for kind in ("frame", "generator", "function", "type"))
_MOST_STEPS = 6  # of an owner; a longer one is named from its nearest class instead


def _is_silent(edge: Edge) -> bool:
    return edge.kind == layout.CONTENTS or edge.kind == layout.INTERNAL and edge.text in _SILENT


def edge_text(edge: Edge, merged: bool = True) -> str:
    """One edge as a person writes it; with `merged` an entry of a list or a masked key is `[*]`."""
    if _is_silent(edge):
        return ""
    if edge.kind in (layout.ATTRIBUTE, layout.LOCAL, layout.INTERNAL):
        return f".{edge.text}"
    if edge.kind == layout.KEY:
        return "[*]" if merged and edge.text[:1] != "'" else f"[{edge.text}]"
    if edge.kind == layout.INDEX:
        return "[*]" if merged else f"[{edge.text}]"
    return {layout.ELEMENT: "[*]", layout.KEY_OBJECT: ".keys()[*]", layout.CELL: f".<closure>.{edge.text}",
            layout.TYPE: ".__class__", layout.STACK: f".<stack {edge.text}>", layout.STORAGE: ".<storage>"}.get(edge.kind, ".?")


def short_label(graph: HeapGraph, node: int) -> str:
    """The label of a node without its place in the source: `parse()` of `parse() at app.py:12`."""
    label = graph.text(int(graph.label[node]))
    return label.split(" at ")[0]


def _slots(graph: HeapGraph, node: int) -> Iterator[Edge]:
    """What an object holds by name, the attributes in its dict and the variables of its closure among it."""
    for edge in graph.edges_from(node, _MOST_CALLEE_EDGES):
        if edge.kind == layout.INTERNAL and edge.text in _SILENT:
            yield from graph.edges_from(edge.target, _MOST_CALLEE_EDGES)
        else:
            yield edge


def _callee(graph: HeapGraph, node: int, deeper: bool = True) -> str:
    """The function that an object such as a timer, a bound method or a registered callback will call, if a slot says so."""
    for edge in _slots(graph, node):
        if edge.text not in _CALLEE_SLOTS or edge.kind not in (layout.ATTRIBUTE, layout.INTERNAL, layout.CELL):
            continue
        called = [each.target for each in graph.edges_from(edge.target, 1)] if edge.kind == layout.CELL else [edge.target]
        for target in called:
            if graph.label[target]:
                return short_label(graph, target)
            if deeper and (name := _callee(graph, target, False)):
                return name
    return ""


def _node_text(graph: HeapGraph, edge: Edge, following: Edge | None) -> str:
    """What is added for the node that an edge leads to: suspended functions, tasks, callbacks."""
    kind, label = int(graph.kind[edge.target]), short_label(graph, edge.target)
    if kind in (_KIND["frame"], _KIND["generator"], _KIND["task"]) and label:
        return "" if _is_silent(edge) else f" {label}"
    if kind == _KIND["cache"] and label and not label.endswith(f"{edge.text}()"):
        return f" {label}"
    calls = kind in (_KIND["object"], _KIND["thread"]) or kind == _KIND["function"] and "<locals>" in label
    if not calls or _is_silent(edge):
        return ""
    text = f" {label}" if kind != _KIND["function"] and label and label not in edge.text else ""
    name = _callee(graph, edge.target) if following and following.text not in _CALLEE_SLOTS else ""
    is_told = name == label or name.removesuffix("()").rpartition(".")[2] == edge.text  # a function that wraps its namesake
    return f"{text}({name})" if name and not is_told else text


def root_text(graph: HeapGraph, root_row: int, node: int) -> str:
    """How a path begins: `serve`, `thread 'feed-eu' drain()`, `context of MainThread`."""
    if root_row < 0 or root_row >= len(graph.root_kind):
        name, callee = graph.node_name(node).split(" at ")[0], "" if graph.label[node] else _callee(graph, node)
        return f"{name}({callee})" if callee else name
    kind = layout.ROOT_KINDS[int(graph.root_kind[root_row])]
    label = graph.text(int(graph.root_label[root_row]))
    name = short_label(graph, node)
    if kind == "module":
        return (name or label).removeprefix("module ")
    if not name and (callee := _callee(graph, node)) and not callee.endswith(label.rpartition(" ")[2]):
        name = callee
    if not name and int(graph.kind[node]) == _KIND["exception"]:
        name = graph.types[graph.type_id[node]].qualname
    return " ".join(part for part in (label or kind, name if name != label else "") if part)


def path_text(graph: HeapGraph, start: str, edges: Sequence[int], merged: bool = True) -> str:
    """The whole path in one line."""
    decoded = [graph.edge(number) for number in edges]
    parts = [start]
    for edge, following in zip(decoded, [*decoded[1:], None]):
        parts.append(edge_text(edge, merged))
        parts.append(_node_text(graph, edge, following))
    return "".join(parts)


def _status(graph: HeapGraph, node: int, is_root: bool) -> tuple[str, tuple[str, ...]]:
    kind = int(graph.kind[node])
    if kind in _FOREVER:
        return "no", (_FOREVER[kind],)
    if graph.state[node] == layout.STATES.index("ended"):
        return "yes", (f"this {graph.types[graph.type_id[node]].qualname} has ended",)
    if is_root and kind == _KIND["frame"]:
        return "no", ("this function is running",)
    return "unknown", ()


def _steps(graph: HeapGraph, first: int, start: str, decoded: Sequence[Edge], merged: bool) -> tuple[Step, ...]:
    """One step for each node that a person would name."""
    nodes = [first, *(edge.target for edge in decoded)]
    steps: list[Step] = []
    pending = ""
    for number, node in enumerate(nodes):
        text = edge_text(decoded[number], merged) if number < len(decoded) else ""
        name = graph.node_name(node)
        if number == 0 and start not in name:
            name = start
        if number and _is_silent(decoded[number - 1]) and steps:
            # an instance and its dict, a function and its cells are one thing to a person
            pending = text
            last = steps[-1]
            steps[-1] = Step(last.name, last.type, last.edge + pending, last.status, last.reasons)
            continue
        status, reasons = _status(graph, node, number == 0)
        steps.append(Step(name, graph.type_name(node), text, status, reasons))
    return tuple(steps)


def is_stdlib(module: str) -> bool:
    """True for a module of the standard library, by its name."""
    return module.partition(".")[0] in sys.stdlib_module_names and module != "__main__"


def owner_text(graph: HeapGraph, first: int, start: str, root_kind: str, decoded: Sequence[Edge]) -> str:
    """What the path leads to, as the name of an owner that can be searched for. It is named from
    the nearest holder that the program itself named: a module, a class, a variable of a running or suspended function, or an
    instance of a class of the same package as the root (Eclipse MAT skips `java.*` in the same way).
    """
    nodes = [first, *(edge.target for edge in decoded)]
    package = start.partition(".")[0] if root_kind == "module" else "__main__"
    tail, nearest = "", ""
    for number in range(len(decoded) - 1, -1, -1):
        edge, node = decoded[number], nodes[number]
        tail = edge_text(edge) + tail
        if number and _is_silent(decoded[number - 1]):
            continue
        named = decoded[number + 1] if edge.text in _FRAMES and number + 1 < len(decoded) else edge
        holder = _holder_name(graph, node, named, number, _has_named(decoded[number:]))
        if not holder:
            continue
        is_instance = int(graph.kind[node]) == _KIND["object"]
        module = graph.types[graph.type_id[node]].module
        if not is_instance or module.partition(".")[0] == package and not _is_attribute_of_module(decoded[:number], root_kind):
            return _trimmed(nearest if nearest and (holder + tail).count(".") > _MOST_STEPS else holder + tail)
        if not is_stdlib(module):
            nearest = nearest or holder + tail
    whole = start + tail
    return _trimmed(nearest if nearest and whole.count(".") > _MOST_STEPS else whole)


def _end_of_owner(graph: HeapGraph, decoded: Sequence[Edge]) -> int:
    """How many edges lead to the owner: up to the last entry of a collection, else up to the last key that the program's code
    names; all where there is neither.
    """
    numbers = [number for number in range(len(decoded) - 1, 0, -1)
               if graph.types[graph.type_id[decoded[number].source]].qualname != "tuple"]
    for number in numbers:
        if _is_entry(decoded[number]):
            return number
    return next((number for number in numbers if decoded[number].kind == layout.KEY), len(decoded))


def _is_entry(edge: Edge) -> bool:
    """True for an entry of a collection, but not for one under a key that the program's code names."""
    if edge.kind == layout.INTERNAL:
        return edge.text in _CACHE_ENTRIES
    return edge.kind in (layout.INDEX, layout.ELEMENT, layout.KEY_OBJECT) or edge.kind == layout.KEY and edge.text[:1] != "'"


def _holder_name(graph: HeapGraph, node: int, edge: Edge, number: int, is_named: bool) -> str:
    """What a holder is called at the start of an owner; empty for one that a person would look past."""
    kind, label = int(graph.kind[node]), short_label(graph, node)
    if edge.kind == layout.TYPE:
        return ""
    if kind in (_KIND["module"], _KIND["type"]) or kind == _KIND["function"] and is_named:
        return label.removeprefix("module ").removeprefix("class ").removesuffix("()")
    has_variables = kind == _KIND["generator"] or kind == _KIND["frame"] and number == 0
    if edge.kind == layout.LOCAL and has_variables and edge.text[:1] != ".":  # `.0`: what a generator expression goes through
        return f"{label.removesuffix('()')}.<locals>"  # a frame inside a path belongs to a traceback: it is over
    if kind == _KIND["object"] and is_named and graph.types[graph.type_id[node]].module != "builtins":
        return graph.type_name(node)
    return ""


def _is_attribute_of_module(before: Sequence[Edge], root_kind: str) -> bool:
    """True for `app.store` itself: there the module's name says more than the class."""
    return root_kind == "module" and sum(bool(edge_text(edge)) for edge in before) <= 1


def _has_named(edges: Sequence[Edge]) -> bool:
    return any(edge.kind in (layout.ATTRIBUTE, layout.LOCAL, layout.CELL) and not _is_silent(edge) for edge in edges)


def _trimmed(text: str) -> str:
    """An owner without the entries at its end: `serve.store._by_id[*]` is owned by `serve.store._by_id`."""
    while text.endswith("[*]"):
        text = text[:-3]
    return text.removesuffix(".keys()")


def name_path(graph: HeapGraph, first: int, root_row: int, edges: Sequence[int], root_kind: str, merged: bool = True,
              is_owner: bool = False) -> Path:
    """Return a path in words. `first` is its first node, `root_row` a row of the root columns or -1, `edges` root first.

    The owner of what the path leads to is the last collection on it; with `is_owner` it is what the path leads to itself.
    """
    decoded = [graph.edge(number) for number in edges]
    start = root_text(graph, root_row, first)
    owner = owner_text(graph, first, start, root_kind, decoded if is_owner else decoded[:_end_of_owner(graph, decoded)])
    return Path(_steps(graph, first, start, decoded, merged), root_kind, path_text(graph, start, edges, merged), owner)


def name_cycle(graph: HeapGraph, edges: Sequence[int]) -> tuple[CycleStep, ...]:
    """Return a cycle in words, an instance and its dict as one; `edges` are its edge numbers in order, closed."""
    decoded = [graph.edge(number) for number in edges]
    # A dict and a closure belong to their holder, and so does a cell.
    starts = [number for number in range(len(decoded)) if decoded[number].kind != layout.CONTENTS
              and not (_is_silent(decoded[number - 1]) and decoded[number - 1].kind != layout.CONTENTS)]
    steps = []
    for place, number in enumerate(starts):
        end = starts[(place + 1) % len(starts)]
        count = (end - number) % len(decoded) or len(decoded)
        taken = [decoded[(number + step) % len(decoded)] for step in range(count)]
        node = decoded[number].source
        named = int(graph.kind[node]) in _NAMED_IN_CYCLES and graph.label[node]
        label, type_name = short_label(graph, node), graph.types[graph.type_id[node]].qualname
        name = type_name if not named else label if label.startswith(type_name) else f"{type_name} {label}"
        steps.append(CycleStep(name, "".join(edge_text(edge) for edge in taken) or ".?"))
    return tuple(steps)
