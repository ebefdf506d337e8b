"""What piles up on a device: how the growth of a pile is split, and which of the classes of the knowledge page it is.

Objects are small beside the tensors' memory that they hold. So a pile is one of a device where most of its growth lies there,
and its class follows from what holds the tensors: a cache of functools (class 2), an exception, a finished task or a thread
(12), tensors with an autograd graph behind them (9), the key and value cache of a language model (22), else a container (1).
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, NamedTuple

import numpy as np

from leakscope.analyse import evidence
from leakscope.analyse.growth import Accumulation, Growth
from leakscope.analyse.paths import Tree
from leakscope.heap import layout
from leakscope.heap.device_codes import device_code, device_name
from leakscope.heap.graph import Array, HeapGraph

HOST = "host"
TENSORS, CACHE, AUTOGRAD, KEPT_FRAMES, KV_CACHE = "tensors", "tensor-cache", "autograd", "kept-frames", "kv-cache"
C_HELD = "c-held"
MOST_UP = 8  # nodes above what piles up that are looked at: error -> traceback -> frame -> local -> list; ours
MOST_DOWN = 3  # levels below it in which its kind is looked for: record -> output -> cache -> layer; ours
MOST_LOOKED = 200  # objects that are looked at below it, and keys of a cache; ours
# Types of key and value caches: (module, class), as regular expressions on the whole dotted module and the class name. The
# names are those of transformers.cache_utils (4.36 to 5.x), of vLLM's and SGLang's pools, and what others call theirs.
KV_TYPES = tuple((re.compile(module), re.compile(name)) for module, name in (
    (r"(^|\.)cache_utils$", r"(Cache|CacheLayer|Layer)$"),
    (r"(^|\.)(kv_?cache\w*|memory_pool|block_manager\w*)$", r"(KVCache|KVPool|Cache)$"),
    (r".", r"(KVCache|KeyValueCache|PastKeyValues|DynamicCache|StaticCache|InferenceParams)\w*$"),
))
_GRAPH_NODE = re.compile(r"(Backward\w*\d*|AccumulateGrad)$")  # torch/csrc/autograd: how it names the nodes of its graph
_ERRORS = frozenset(layout.NODE_KINDS.index(kind) for kind in ("exception",))
_STORAGE = layout.NODE_KINDS.index("storage")


def growth_by_device(graph: HeapGraph, growth: Growth, pile: Accumulation) -> dict[str, int]:
    """Return the growth of a pile in bytes by device, `host` first; the parts add up to `pile.growth_bytes`.

    Its entries are split as what hangs below them has grown: what one more entry keeps on each device.
    """
    if not growth.device_bytes:
        return {HOST: pile.growth_bytes}
    if pile.is_buffer and not pile.is_branch:
        name = device_name(int(graph.device[pile.member_node]))
        return {HOST: 0, name: pile.growth_bytes}
    rows = list(pile.member_classes) or [pile.owner_class]
    whole = max(0, _grown(growth.subtree_bytes, rows))
    found = {HOST: pile.growth_bytes}
    for code, values in growth.device_bytes.items():
        part = min(whole, max(0, _grown(values, rows)))
        if whole and part:
            found[device_name(code)] = int(pile.growth_bytes * part / whole)
    found[HOST] = max(0, pile.growth_bytes - sum(size for name, size in found.items() if name != HOST))
    return found


def _grown(values: Array, rows: list[int]) -> int:
    return int((values[-1, rows] - values[0, rows]).sum())


def main_device(growth: dict[str, int]) -> str:
    """The device on which most of a growth lies; `host` where no more lies anywhere else."""
    return max(growth, key=lambda name: (growth[name], name == HOST))


def device_of_member(graph: HeapGraph, pile: Accumulation) -> str:
    """The device on which the tensors lie that pile up, or that each entry holds; `host` where they are the host's."""
    near = [pile.member_node, *(edge.target for edge in graph.edges_from(pile.member_node, 32))]
    shown = (edge.target for node in near for edge in graph.edges_from(node, 16) if edge.kind == layout.STORAGE)
    return next((device_name(code) for node in shown if (code := int(graph.device[node]))), HOST)


def shape(graph: HeapGraph, tree: Tree, pile: Accumulation, host_shape: str) -> str:
    """The class of a pile whose bytes lie on a device; `host_shape`: what it would be on the host (analyse/evidence.py)."""
    if host_shape == C_HELD:
        return C_HELD
    if host_shape == "cache":
        return CACHE
    if kv_type(graph, tree, pile):
        return KV_CACHE
    if host_shape in ("exception", "task", "roots") or _under_an_error(graph, tree, pile):
        return KEPT_FRAMES
    return AUTOGRAD if evidence.carries_autograd(graph, pile) else TENSORS


def _under_an_error(graph: HeapGraph, tree: Tree, pile: Accumulation) -> bool:
    """True if what piles up hangs on an exception or its traceback."""
    above = evidence.edges_up(tree, pile.member_node, MOST_UP)[1:]
    return any(int(graph.kind[node]) in _ERRORS or graph.type_name(node) == "traceback" for node in above)


def kv_type(graph: HeapGraph, tree: Tree, pile: Accumulation) -> str:
    """The type of the key and value cache that piles up, or that the piling tensors belong to; empty where there is none."""
    near = evidence.edges_up(tree, pile.member_node, MOST_DOWN)
    level, seen = [pile.member_node], 0
    for _ in range(MOST_DOWN):
        level = [edge.target for node in level for edge in graph.edges_from(node, 8) if edge.kind != layout.TYPE]
        level = level[:MOST_LOOKED - seen]
        seen += len(level)
        near += level
    return next((graph.type_name(node) for node in near if is_kv_type(graph, node)), "")


def is_kv_type(graph: HeapGraph, node: int) -> bool:
    """True if a node is an instance of a type in KV_TYPES."""
    name = graph.types[int(graph.type_id[node])]
    return graph.kind[node] == 0 and any(module.search(name.module) and cls.search(name.qualname) for module, cls in KV_TYPES)


class Autograd(NamedTuple):
    """The graphs that hang on what piles up: nodes in all, the most frequent ones, and bytes on the device that are not the
    piling tensors' own."""

    node_count: int
    names: tuple[tuple[str, int], ...]
    saved_bytes: int


def autograd(graph: HeapGraph, members: Array, below: Array, device: str) -> Autograd:
    """Return what of the autograd graph hangs below the members of a pile (both: nodes)."""
    is_node = np.fromiter((bool(_GRAPH_NODE.search(name.qualname)) for name in graph.types), bool, len(graph.types))
    types = graph.type_id[below]
    rows = Counter(types[is_node[types]].tolist())
    names = tuple((graph.types[row].qualname, count) for row, count in rows.most_common(3))
    numbers, _ = graph.edge_numbers(members)
    own = np.unique(graph.edge_target[numbers])
    stored = below[(graph.kind[below] == _STORAGE) & (graph.device[below] == device_code(device))]
    saved = np.setdiff1d(stored, own)
    return Autograd(rows.total(), names, int(graph.shallow_bytes[saved].sum()))


# --- caches --------------------------------------------------------------------------------------------------------------


class FirstArgument(NamedTuple):
    """What stands first in the keys of a cache: the type of all of them, how many different objects, whether it is a module
    of torch.nn: then the cache decorates a method, and keeps `self`."""

    type: str
    object_count: int
    is_module: bool


def first_argument(graph: HeapGraph, cache_node: int) -> FirstArgument | None:
    """Return it where it is an instance of a class; None for keys of numbers, strings and the like, or where none was seen."""
    firsts = {first for key in _keys(graph, cache_node) if (first := _first_of(graph, key)) is not None}
    types = {int(graph.type_id[node]) for node in firsts}
    if len(types) != 1:
        return None
    name = graph.types[types.pop()]
    if name.module in ("builtins", ""):
        return None
    return FirstArgument(name.full, len(firsts), name.module.startswith("torch.nn") or _is_module(graph, min(firsts)))


def _is_module(graph: HeapGraph, node: int) -> bool:
    """True for an instance of a subclass of torch.nn.Module: by what its constructor sets, in a __dict__ or not."""
    edges = graph.edges_from(node, 64)
    edges += [edge for each in edges if each.text == "__dict__" for edge in graph.edges_from(each.target, 64)]
    return {"_parameters", "_modules"} <= {edge.text.strip("'") for edge in edges}


def _keys(graph: HeapGraph, cache_node: int) -> list[int]:
    """Some keys of a cache: the key objects of its dict."""
    edges = graph.edges_from(cache_node, MOST_LOOKED)
    inner = [edge for each in edges if graph.length[each.target] for edge in graph.edges_from(each.target, MOST_LOOKED)]
    return [edge.target for edge in (*edges, *inner) if edge.kind == layout.KEY_OBJECT][:MOST_LOOKED]


def _first_of(graph: HeapGraph, key: int) -> int | None:
    """The first element of a key that is a tuple or functools' own list of arguments; the key itself where it is neither."""
    if not graph.length[key]:
        return key
    return next((edge.target for edge in graph.edges_from(key, 8) if edge.kind == layout.INDEX and edge.text == "0"), None)


def cache_node(graph: HeapGraph, tree: Tree, pile: Accumulation) -> int | None:
    """The node of the functools cache that a pile is in."""
    kind = layout.NODE_KINDS.index("cache")
    return next((node for node in evidence.edges_up(tree, pile.member_node, 3) if graph.kind[node] == kind), None)


def varying_argument(cache: dict[str, Any] | None) -> str:
    """Which argument makes the keys of a cache differ, by their statistics (names.json, caches, keys); "" where not known."""
    keys = (cache or {}).get("keys")
    positions = keys.get("positions") if isinstance(keys, dict) else None
    if not isinstance(positions, list) or not positions or not all(isinstance(each, dict) for each in positions):
        return ""
    positions = [each for each in positions if len(each.get("at", [0])) == 1]  # not what lies inside of an argument
    distinct = [each.get("distinct") or 0 for each in positions] or [0]
    place = distinct.index(max(distinct))
    if distinct[place] < 2:
        return ""
    types = positions[place].get("types") or {}
    name = max(types, key=lambda each: types[each]) if types else "value"
    low, high = positions[place].get("min"), positions[place].get("max")
    span = f" from {low} to {high}" if low is not None and high is not None else ""
    at = positions[place].get("at", [place])[0]
    argument = at + 1 if isinstance(at, int) else f"`{at.rstrip('=')}`"
    return f"argument {argument} varies: {distinct[place]} different values of type {name}{span}"
