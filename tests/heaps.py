"""The heap DSL: a few lines of text become a HeapGraph, so that a test shows the heap it is about.

    module app                                  a module that is a root; its handle is "app"
    app .cache -> cache:dict                    HOLDER EDGE -> NODE; "cache" is a new handle, dict its type
    cache [*] -> order:shop.Order x300 1KiB     300 orders of 1 KiB, all held by the one dict
    order .items -> list x300                   no handle needed; holder and held both x300: one for one
    order .shop -> shop:shop.Shop               no multiplier: all 300 hold the same one
    shop .orders -> cache                       a known handle: only an edge
    # a comment

NODE is `HANDLE:TYPE` or `TYPE` (new), or a known HANDLE, then any of:

    x300            so many objects. n holders and n held: one for one; n and n*k: k each; one and n: all of them;
                    n and one: shared
    100B 4KiB 1GiB  shallow bytes of each (default 64 B)
    refs+1          a reference more than the graph explains (C code holds it); `refs 7` sets the whole count
    immortal        the reference count says nothing
    state ended     or `state live`
    addr 0x7f00     address of the first (default: made from the handle, so every heap built from it has the same)
    len 5           entries (default: counted from the edges of a container)
    kind task       node kind (default: from the type)
    on cuda:0       where the bytes lie
    data 0x7f00     of storages: where their data begin, one behind the other (`blocks` says it, too)
    birth 3         epoch of birth
    site f@app.py:7 allocation site: function, file, line
    'a label'       what a person calls the node

EDGE:  .name attribute   ['text'] or [str:17] key   [3] index   [^'text'] key object   ~name local   $2 evaluation stack
       [*] whatever the holder has: index, key str:8 or element   {*} element   {name} closure cell   {} cell contents
       <name> internal   <type>   <storage>   <?> unknown

Lines:  module NAME NODE-WORDS                a module root
        root KIND NODE LABEL                  root of another kind: `root frame main thread 'MainThread'`; a new node
                                              gets the type of KIND: frame, _asyncio.Task ...
        garbage NODE                          nodes that nothing holds; with refs+1: held by C code alone
        set HANDLE NODE-WORDS                 say more of known nodes
        samples HANDLE N WEIGHT PLACE [< PLACE ...] [bytes N] [at SECONDS]
                                              N allocation samples spread over known nodes, each for so many bytes:
                                              `samples order 3 512KiB make@app.py:7 < main@app.py:9 at 12`, innermost
                                              frame first; HANDLE - stands for blocks of no known object
        bound HANDLE LIMIT WHAT               a declared limit: `bound cache 4096 maxsize`
        lru HANDLE NAME max N size N hits N misses N        a functools cache; max none: without a limit
        device cuda:0 80GiB [native]          a device with so much memory, and the backend of its allocator
        segment cuda:0 20MiB [pool 1]         what the allocator took from the driver; what no line fills of it is free
        blocks HANDLE [frames PLACE < PLACE]  a block of that segment for each storage of a handle, which then lies in it
        block 8519680B [pending|free] [frames PLACE]        a block in which no storage lies

The reference count of a node is the number of its incoming edges and roots, plus refs+. `heap(text, n=300)` replaces
`{n}`; `series(text, n=[100, 200, 300])` gives one graph for each, 10 s apart.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from leakscope.agent import format as layout
from leakscope.heap.columns import STORAGE_COLUMNS
from leakscope.heap.device_codes import device_code
from leakscope.heap.devices import joined
from leakscope.heap.graph import HeapGraph, TypeName
from leakscope.units import parse_size

ATOMS = {"int", "str", "bytes", "float", "complex", "bool", "bytearray"}
SEQUENCES = {"list", "tuple", "collections.deque"}
MAPPINGS = {"dict", "collections.OrderedDict", "collections.defaultdict"}
SETS = {"set", "frozenset"}
KIND_OF_TYPE = {
    "module": "module", "type": "type", "abc.ABCMeta": "type", "function": "function", "code": "code", "frame": "frame",
    "generator": "generator", "coroutine": "generator", "async_generator": "generator", "_asyncio.Task": "task",
    "asyncio.Task": "task", "weakref": "weakref", "weakref.ReferenceType": "weakref", "storage": "storage",
    "mapping": "mapping", "thread": "thread", "functools._lru_cache_wrapper": "cache",
}
ROOT_TYPE = {"module": "module", "frame": "frame", "task": "_asyncio.Task", "thread-local": "dict",
             "contextvar": "Context", "event-loop": "asyncio.EventLoop", "interpreter": "dict"}
NAMELESS = {"{*}": layout.ELEMENT, "{}": layout.CONTENTS, "<type>": layout.TYPE, "<storage>": layout.STORAGE,
            "<?>": layout.UNKNOWN}
NO_ADDRESS = ("storage", "mapping", "thread")
FIRST_SEGMENT = 0x7F00_0000_0000
EDGE_LINE = re.compile(r"(\S+)\s+(\S.*?)\s*->\s*(\S.*)")
WORD = re.compile(r"'[^']*'|\S+")


@dataclass
class Node:
    """One object while the heap is being written down."""

    type: str
    address: int
    bytes: int = 64
    extra: int = 0
    refs: int | None = None
    state: int = 0
    data: int = 0
    length: int | None = None
    kind: str = ""
    device: int = 0
    birth: int = 0
    site: int = 0
    label: str = ""


def heap(text: str, t_s: float = 0.0, info: dict[str, Any] | None = None, **numbers: object) -> HeapGraph:
    """Return the heap that `text` describes, taken at `t_s`; `info` is added to its done.json.

    Raises:
        ValueError: a line means nothing; the line is in it.
    """
    for name, value in numbers.items():
        text = text.replace("{" + name + "}", str(value))
    writing = Writing()
    for line in text.splitlines():
        line = re.sub(r"(^|\s)#.*", "", line).strip()
        if line:
            try:
                writing.read(line)
            except (ValueError, KeyError, IndexError) as error:
                raise ValueError(f"heap line {line!r}: {error}") from error
    return writing.graph({"t_ns": int(t_s * 1e9), "format": layout.FORMAT, **(info or {})})


def series(text: str, every_s: float = 10.0, **numbers: list[object]) -> list[HeapGraph]:
    """Return one heap for each position of the lists in `numbers`, `every_s` apart."""
    rounds = [dict(zip(numbers, values, strict=True)) for values in zip(*numbers.values(), strict=True)]
    return [heap(text, t_s=step * every_s, info={"index": step + 1}, **values) for step, values in enumerate(rounds)]


class Writing:
    """The heap so far."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.handles: dict[str, list[int]] = {}
        self.ordinals: dict[str, int] = {}  # of each origin: how many nodes are named after it
        self.edges: list[list[tuple[int, int]]] = []  # of each node: (label code, target)
        self.roots: list[tuple[int, int, int]] = []
        self.strings: dict[str, int] = {"": 0}
        self.sites: list[dict[str, Any] | None] = [None]
        self.bounds: list[tuple[int, int, str]] = []
        self.caches: list[dict[str, Any]] = []
        self.samples: list[tuple[int, int, int, int, int]] = []  # as in format.SAMPLED_COLUMNS
        self.said: dict[str, Any] = {}  # devices.json

    def read(self, line: str) -> None:
        """Take in one line."""
        words = WORD.findall(line)
        match = EDGE_LINE.fullmatch(line)
        if words[0] == "module" and not match:
            self.root("module", f"{words[1]}:module", f"module {words[1]}", ["'module " + words[1] + "'", *words[2:]])
        elif words[0] == "root":
            self.root(words[1], words[2], line.split(None, 3)[3] if len(words) > 3 else "", [])
        elif words[0] == "garbage":
            self.node(words[1:], "garbage")
        elif words[0] == "set":
            self.describe([self.nodes[each] for each in self.handles[words[1]]], words[2:])
        elif words[0] == "bound":
            self.bounds += [(self.nodes[each].address, int(words[2]), words[3]) for each in self.handles[words[1]]]
        elif words[0] == "samples":
            self.sample(words[1], int(words[2]), parse_size(words[3]), words[4:])
        elif words[0] == "lru":
            self.cache(words)
        elif words[0] in ("device", "segment", "block", "blocks") and not match:
            self.allocator(words)
        elif match:
            self.link(*match.groups())
        else:
            raise ValueError("is no edge, module, root, garbage, set, samples, bound, lru, device, segment or block")

    def root(self, kind: str, name: str, label: str, words: list[str]) -> None:
        handle, _, type_name = name.partition(":")
        new = handle not in self.handles
        spec = [f"{handle}:{type_name or ROOT_TYPE.get(kind, 'object')}" if new else handle, *words]
        code = layout.ROOT_KINDS.index(kind)
        self.roots += [(node, code, self.string(label)) for node in self.node(spec, handle)]

    def node(self, words: list[str], origin: str) -> list[int]:
        """Return the nodes that NODE words mean, new ones written down; `origin` names those without a handle."""
        name, words = words[0], words[1:]
        if name in self.handles:
            if words:
                raise ValueError(f"{name!r} is known already: say more of it with a line 'set {name} ...'")
            return self.handles[name]
        handle, colon, type_name = name.rpartition(":")
        if colon and handle in self.handles:
            raise ValueError(f"the handle {handle!r} is taken")
        multipliers = [word for word in words if re.fullmatch(r"x\d+", word)]
        count = int(multipliers[0][1:]) if multipliers else 1
        origin = handle or origin
        used = self.ordinals.get(origin, 0)
        self.ordinals[origin] = used + count
        first = len(self.nodes)
        self.nodes += [Node(type_name, address_of(origin, used + ordinal)) for ordinal in range(count)]
        self.edges += [[] for _ in range(count)]
        fresh = list(range(first, first + count))
        if handle:
            self.handles[handle] = fresh
        self.describe(self.nodes[first:], [word for word in words if word not in multipliers])
        return fresh

    def describe(self, nodes: list[Node], words: list[str]) -> None:
        """Set what NODE words say on `nodes`."""
        rest = iter(words)
        for word in rest:
            if word.startswith("'"):
                values: dict[str, Any] = {"label": word[1:-1]}
            elif word == "immortal":
                values = {"refs": layout.IMMORTAL}
            elif match := re.fullmatch(r"refs\+(\d+)", word):
                values = {"extra": int(match[1])}
            elif word in ("refs", "len", "birth"):
                values = {{"len": "length"}.get(word, word): int(next(rest))}
            elif word == "state":
                values = {"state": layout.STATES.index(next(rest))}
            elif word == "kind":
                values = {"kind": next(rest)}
            elif word == "on":
                values = {"device": device_code(next(rest))}
            elif word == "data":
                at = int(next(rest), 16)
                for node in nodes:
                    node.data, at = at, at + rounded(node.bytes)
                continue
            elif word == "site":
                values = {"site": self.site(next(rest))}
            elif word == "addr":
                first = int(next(rest), 16)
                for ordinal, node in enumerate(nodes):
                    node.address = first + 16 * ordinal
                continue
            elif re.fullmatch(r"\d+(\.\d+)?([KMGT]i)?B", word):
                values = {"bytes": parse_size(word)}
            else:
                raise ValueError(f"{word!r} says nothing about a node")
            for node in nodes:
                vars(node).update(values)

    def link(self, holder: str, edge: str, spec: str) -> None:
        """Take in HOLDER EDGE -> NODE."""
        if holder not in self.handles:
            raise ValueError(f"{holder!r} is no handle yet")
        sources = self.handles[holder]
        targets = self.node(WORD.findall(spec), f"{holder} {edge}")
        if len(sources) == 1:
            pairs = [(sources[0], target) for target in targets]
        elif len(targets) == 1:
            pairs = [(source, targets[0]) for source in sources]
        elif len(targets) % len(sources) == 0:
            each = len(targets) // len(sources)
            pairs = [(sources[number // each], target) for number, target in enumerate(targets)]
        else:
            raise ValueError(f"{len(sources)} holders cannot share {len(targets)} nodes evenly")
        for source, target in pairs:
            self.edges[source].append((self.code(edge, source), target))

    def code(self, edge: str, source: int) -> int:
        """The label code of an EDGE as written."""
        inner = edge[1:-1]
        if edge == "[*]":
            holder = self.nodes[source].type
            if holder in SEQUENCES:
                return layout.edge_label(layout.INDEX, len(self.edges[source]))
            return self.named(layout.KEY, "str:8") if holder in MAPPINGS else layout.edge_label(layout.ELEMENT)
        if edge in NAMELESS:
            return layout.edge_label(NAMELESS[edge])
        if edge[0] == "$":
            return layout.edge_label(layout.STACK, int(edge[1:]))
        if edge[0] == "[" and inner.isdigit():
            return layout.edge_label(layout.INDEX, int(inner))
        if edge[:2] == "[^":
            return self.named(layout.KEY_OBJECT, inner[1:])
        if edge[0] in ".~":
            return self.named(layout.ATTRIBUTE if edge[0] == "." else layout.LOCAL, edge[1:])
        for opening, closing, kind in (("[", "]", layout.KEY), ("{", "}", layout.CELL), ("<", ">", layout.INTERNAL)):
            if edge[0] == opening and edge[-1] == closing:
                return self.named(kind, inner)
        raise ValueError(f"{edge!r} is no edge")

    def named(self, kind: int, text: str) -> int:
        return layout.edge_label(kind, self.string(text))

    def string(self, text: str) -> int:
        return self.strings.setdefault(text, len(self.strings))

    def sample(self, handle: str, count: int, weight: int, words: list[str]) -> None:
        """Spread samples over the nodes of a handle."""
        frames = [word for place, word in enumerate(words) if place % 2 == 0 and (not place or words[place - 1] == "<")]
        given = dict(zip(words[2 * len(frames) - 1::2], words[2 * len(frames)::2], strict=True))
        nodes = [layout.NO_NODE] if handle == "-" else self.handles[handle]
        for number in range(count):
            self.samples.append((nodes[number * len(nodes) // count % len(nodes)], self.site(*frames),
                                 int(given.get("bytes", 64)), weight, int(float(given.get("at", 0)) * 1e9)))

    def site(self, *places: str) -> int:
        """Row of the site whose frames are `function@file:line`, innermost first."""
        frames = []
        for text in places:
            function, _, place = text.partition("@")
            file, _, line = place.rpartition(":")
            frames.append([file, int(line), function])
        row = {"frames": frames, "bytes": 0, "count": 0}
        if row not in self.sites:
            self.sites.append(row)
        return self.sites.index(row)

    def cache(self, words: list[str]) -> None:
        given = dict(zip(words[3::2], words[4::2], strict=True))
        for node in self.handles[words[1]]:
            self.caches.append({
                "address": self.nodes[node].address, "name": words[2],
                "maxsize": None if given.get("max", "none") == "none" else int(given["max"]),
                "currsize": int(given.get("size", 0)), "hits": int(given.get("hits", 0)),
                "misses": int(given.get("misses", 0))})

    def allocator(self, words: list[str]) -> None:
        """Take in a line of a device's allocator."""
        said = self.said or {"format": 1, "provider": "recorded", "simulated": False, "backend": "native", "recording": "off",
                             "settings": {}, "devices": [], "segments": [], "frames": [], "libraries": [], "notes": []}
        self.said = said
        if words[0] in ("device", "segment") and words[1] not in [device["name"] for device in said["devices"]]:
            said["devices"].append({"name": words[1], "ordinal": int(words[1].partition(":")[2] or 0)})
        if words[0] == "device":
            said["devices"][-1]["total_bytes"] = parse_size(words[2])
            said["backend"] = words[3] if len(words) > 3 else "native"
        elif words[0] == "segment":
            said["segments"].append({"device": int(words[1].partition(":")[2] or 0), "total_size": parse_size(words[2]),
                                     "address": FIRST_SEGMENT + (len(said["segments"]) << 38), "stream": 0, "blocks": [],
                                     "segment_pool_id": (0, int(words[4]) if "pool" in words else 0)})
        else:
            frames = [word for word in words[words.index("frames") + 1:] if word != "<"] if "frames" in words else []
            row = -1
            if frames:
                said["frames"].append(self.sites[self.site(*frames)]["frames"])  # type: ignore[index]
                row = len(said["frames"]) - 1
            nodes = [self.nodes[each] for each in self.handles[words[1]]] if words[0] == "blocks" else [None]
            state = {"pending": "active_pending_free", "free": "inactive"}.get(words[2] if len(words) > 2 else "")
            for node in nodes:
                size = rounded(parse_size(words[1]) if node is None else node.bytes)
                self.block(node, size, state or "active_allocated", row)

    def block(self, node: Node | None, size: int, state: str, frames: int) -> None:
        """Lay a block behind the last one of the last segment."""
        segment = self.said["segments"][-1]
        at = segment["address"] + sum(block["size"] for block in segment["blocks"])
        if at + size > segment["address"] + segment["total_size"]:
            raise ValueError("the segment is full")
        segment["blocks"].append({"address": at, "size": size, "requested_size": size, "state": state, "frames": frames})
        if node is not None:
            node.data = at

    def graph(self, info: dict[str, Any]) -> HeapGraph:
        """The finished HeapGraph, every column set."""
        nodes = self.nodes
        types = {name: row for row, name in enumerate(dict.fromkeys(node.type for node in nodes))}
        kinds = [node.kind or kind_of(node.type) for node in nodes]
        degrees = [len(edges) for edges in self.edges]
        codes = [code for edges in self.edges for code, _ in edges]
        targets = np.array([target for edges in self.edges for _, target in edges], dtype="<u4")
        references = np.append(targets, [node for node, _, _ in self.roots]).astype(np.int64)
        refcounts = [int(seen) + node.extra if node.refs is None else node.refs
                     for seen, node in zip(np.bincount(references, minlength=len(nodes)), nodes, strict=True)]
        for number, node in enumerate(nodes):
            if kinds[number] in NO_ADDRESS:
                node.address, refcounts[number] = 0, layout.IMMORTAL
        containers = SEQUENCES | MAPPINGS | SETS
        columns = {
            "address": [node.address for node in nodes], "type_id": [types[node.type] for node in nodes],
            "shallow_bytes": [node.bytes for node in nodes], "refcount": refcounts,
            "length": [(len(edges) if node.type in containers else 0) if node.length is None else node.length
                       for node, edges in zip(nodes, self.edges, strict=True)],
            "kind": [layout.NODE_KINDS.index(kind) for kind in kinds], "state": [node.state for node in nodes],
            "device": [node.device for node in nodes], "birth": [node.birth for node in nodes],
            "site_id": [node.site for node in nodes], "label": [self.string(node.label) for node in nodes],
            "edge_start": np.cumsum([0, *degrees]), "edge_target": targets, "edge_label": codes,
            "root_node": [node for node, _, _ in self.roots], "root_kind": [kind for _, kind, _ in self.roots],
            "root_label": [label for _, _, label in self.roots],
        }
        info = {"node_count": len(nodes), "edge_count": len(codes), "root_count": len(self.roots), **info}
        stored = [number for number, node in enumerate(nodes) if node.data]
        graph = HeapGraph(**{name: np.array(values, dtype=layout.COLUMNS[name]) for name, values in columns.items()},
                          strings=list(self.strings), types=[type_row(name) for name in types], sites=self.sites,
                          bounds=self.bounds, caches=self.caches, info=info, **self.sampled(),
                          storage_node=np.array(stored, STORAGE_COLUMNS["storage_node"]),
                          storage_address=np.array([nodes[number].data for number in stored],
                                                   STORAGE_COLUMNS["storage_address"]))
        return joined(graph, self.finished()) if self.said else graph

    def finished(self) -> dict[str, Any]:
        """devices.json, with the free rest of each segment."""
        for segment in self.said["segments"]:
            used = sum(block["size"] for block in segment["blocks"])
            if used < segment["total_size"]:
                segment["blocks"].append({"address": segment["address"] + used, "size": segment["total_size"] - used,
                                          "requested_size": 0, "state": "inactive", "frames": -1})
        return self.said

    def sampled(self) -> dict[str, Any]:
        """The columns of the samples."""
        columns = zip(*self.samples, strict=True) if self.samples else [()] * len(layout.SAMPLED_COLUMNS)
        return {name: np.array(values, dtype=dtype)
                for (name, dtype), values in zip(layout.SAMPLED_COLUMNS.items(), columns, strict=True)}


def rounded(size: int) -> int:
    """The size of a block that an allocator hands out for so many bytes."""
    return -(-size // 512) * 512


def address_of(origin: str, ordinal: int) -> int:
    """An address that depends on nothing but the name, so that an object keeps it from one heap to the next."""
    return (zlib.crc32(origin.encode()) << 22 | ordinal) << 4


def kind_of(type_name: str) -> str:
    if type_name.endswith(("Error", "Exception")):
        return "exception"
    return KIND_OF_TYPE.get(type_name, "object")


def type_row(name: str) -> TypeName:
    module, _, qualname = name.rpartition(".")
    if name in ATOMS:
        return TypeName("builtins", name, "")
    return TypeName(module, qualname, "hgd") if module else TypeName("builtins", name, "g")
