"""Growth by path over several snapshots: what piles up, and under which owner.

The idea is LeakCanary's heap growth (shark, "ObjectGrowthDetector") and BLeak's LeakShare (Vilk & Berger, PLDI 2018): give
every object the path by which a person would name it, merge siblings (`[*]`), and compare the counts of the same path over
snapshots. An *accumulator* is a path whose number of children per instance rises in every interval; growth is split into
more entries (blamed here) and larger entries (blamed further down), so only the true place of a branch is blamed.

Everything is work on the columns of a breadth-first tree: O(nodes), no Python loop over nodes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leakscope.analyse import kernel, naming
from leakscope.analyse.paths import Tree
from leakscope.heap import layout
from leakscope.heap.graph import HeapGraph, TypeName

Array = NDArray[Any]

FOLDED_DEPTH = 400  # nodes further down share the class of the path above them; ours, deeper names help nobody
LEAST_ENTRIES = 5  # fewer additional objects are start-up, whatever they weigh; ours
TUPLE_PLACES = 8  # longer tuples are lists that cannot change; ours
TYPE_STEPS, TYPE_SHARE = 12, 0.5  # how far below an entry its class is looked for, and with what part of the bytes; ours
_FUNCTION = layout.NODE_KINDS.index("function")
_SPEAKING_KINDS = frozenset(layout.NODE_KINDS.index(kind) for kind in ("exception", "function", "generator", "task", "type"))
_VOLATILE = re.compile(r"0x[0-9a-fA-F]+|[0-9a-fA-F]{8}-[0-9a-fA-F-]{27}|\d+")


def masked_text(text: str) -> str:
    """Return a name with numbers, addresses and UUIDs replaced by `*`, so that siblings share it."""
    return _VOLATILE.sub("*", text)


def hash64(text: str) -> int:
    """Return 64 bits that are the same for a text in every process."""
    return int.from_bytes(blake2b(text.encode("utf-8", "replace"), digest_size=8).digest(), "little")


@dataclass(eq=False)
class PathTable:
    """The path classes of one snapshot, C of them, sorted by `key`.

    `parent` is a row of this table or -1 (a root). `subtree_bytes` counts what hangs below the members in the tree, members
    included, once each. `example` is the member nearest to the root. `class_of` is (N,), -1 where no root reaches; it is
    empty once the snapshot is no longer needed.
    """

    key: Array  # (C,) u8, equal for the same path in every snapshot
    parent: Array  # (C,) i8
    count: Array  # (C,) i8 members
    shallow_bytes: Array
    subtree_bytes: Array
    length: Array  # (C,) i8 sum of the members' container lengths
    example: Array  # (C,) i8 node
    class_of: Array  # (N,) i4
    device_bytes: dict[int, Array] = field(default_factory=dict)  # of each device's code: its part of subtree_bytes

    @cached_property
    def _by_class(self) -> tuple[Array, Array]:
        return kernel.order_by(self.class_of, len(self.key))

    def members(self, row: int) -> Array:
        """The nodes of a class, ascending."""
        order, start = self._by_class
        found: Array = order[int(start[row]):int(start[row + 1])]
        return found

    def nodes_of(self, rows: Iterable[int]) -> Array:
        """The nodes of several classes, ascending."""
        parts = [self.members(int(row)) for row in rows]
        found: Array = np.sort(np.concatenate(parts)).astype(np.int64) if parts else np.zeros(0, np.int64)
        return found

    def up_from(self, row: int) -> Iterator[int]:
        """A class and those above it, up to the root; nothing for -1."""
        while row >= 0:
            yield row
            row = int(self.parent[row])

    def without_nodes(self) -> PathTable:
        """The same without the part that is as long as the heap."""
        return replace(self, class_of=np.zeros(0, np.int32))


# What tells an edge from its siblings: its name, its name where that is shown, its place in a short tuple; else nothing.
_NAMING = np.zeros(32, np.uint8)
_NAMING[[layout.ATTRIBUTE, layout.LOCAL, layout.CELL, layout.INTERNAL]] = kernel.BY_NAME
_NAMING[layout.KEY] = kernel.BY_SHOWN_NAME  # shown keys are quoted; masked ones say type and length, and stand for any entry
_NAMING[layout.INDEX] = kernel.BY_PLACE  # the places of a small tuple mean something, those of a list do not


def _root_tokens(graph: HeapGraph, tree: Tree, nodes: Array) -> Array:
    """Tokens of root nodes: by kind and label, c-held and garbage ones by their type."""
    types = np.fromiter((hash64(f"unheld|{name.full}") for name in graph.types), np.uint64, len(graph.types))
    tokens: Array = types[graph.type_id[nodes]]
    for row in np.flatnonzero((tree.root[nodes] >= 0) & (tree.root[nodes] < len(graph.root_kind))).tolist():
        node = int(nodes[row])
        root = int(tree.root[node])
        kind, text = int(graph.root_kind[root]), graph.text(int(graph.root_label[root]))
        name = graph.node_name(node) if kind != layout.ROOT_KINDS.index("module") else ""
        tokens[row] = hash64(f"{kind}|{masked_text(text)}|{masked_text(name)}")
    return tokens


def path_table(graph: HeapGraph, tree: Tree) -> PathTable:
    """Return the path classes of a snapshot under a breadth-first tree of it (analyse/paths.py)."""
    count, texts = graph.node_count, graph.strings
    order, _ = kernel.order_by(tree.depth, int(tree.depth.max(initial=-1)) + 1)
    token, key = np.zeros(count, np.uint64), np.zeros(count, np.uint64)
    roots = np.flatnonzero((tree.depth >= 0) & (tree.parent < 0))
    token[roots] = _root_tokens(graph, tree, roots)
    kernel.active.path_keys(
        order, tree.parent, tree.parent_edge, kernel.column(graph.edge_label, "<u4"), tree.depth,
        kernel.column(graph.type_id, "<u4"), np.fromiter((hash64(masked_text(text)) for text in texts), np.uint64, len(texts)),
        np.fromiter((text[:1] == "'" for text in texts), np.uint8, len(texts)),
        np.fromiter((name.full == "tuple" for name in graph.types), np.uint8, len(graph.types)), _NAMING, TUPLE_PLACES,
        FOLDED_DEPTH, token, key)
    return _summed(graph, tree, order, key)


def _summed(graph: HeapGraph, tree: Tree, order: Array, key: Array) -> PathTable:
    """Sum members, bytes and lengths by key; a folded path (a linked list) counts what hangs below its first member only."""
    class_of = np.empty(graph.node_count, np.int32)
    size = kernel.active.classify(order, key, class_of)
    numbers = class_of[order]
    example = np.empty(size, np.int64)
    example[numbers[::-1]] = order[::-1]  # the first one is written last
    keys = key[example]
    sorted_rows = np.argsort(keys, kind="stable")
    place = np.empty(size + 1, np.int32)
    place[sorted_rows], place[-1] = np.arange(size), -1
    class_of = place[class_of]  # -1 stays -1
    example = example[sorted_rows]
    sums = [np.zeros(size, np.int64) for _ in range(4)]
    kernel.active.class_sums(order, tree.parent, class_of, kernel.column(graph.shallow_bytes, "<u8"),
                             kernel.column(graph.length, "<u4"), *sums)
    above = tree.parent[example]
    return PathTable(keys[sorted_rows], np.where(above >= 0, class_of[above], -1).astype(np.int64), sums[0], sums[1], sums[2],
                     sums[3], example, class_of, _by_device(graph, tree, order, class_of, size))


def _by_device(graph: HeapGraph, tree: Tree, order: Array, class_of: Array, size: int) -> dict[int, Array]:
    """(C,) the bytes below each class on each device that holds any, by its code."""
    found = {}
    for code in np.unique(graph.device).tolist() if graph.device.any() else []:
        if code:
            sums = [np.zeros(size, np.int64) for _ in range(4)]
            mine = np.where(graph.device == code, graph.shallow_bytes, 0)
            kernel.active.class_sums(order, tree.parent, class_of, kernel.column(mine, "<u8"),
                                     kernel.column(graph.length, "<u4"), *sums)
            found[code] = sums[2]
    return found


@dataclass(eq=False)
class Accumulation:
    """One place where objects pile up, in terms of the last snapshot.

    `owner_node` is an example of the holder (-1: the roots themselves pile up), `member_node` one of what piles up;
    `counts` are the entries and `sizes_bytes` what they keep in every snapshot; `growth_bytes` is what the additional
    entries account for; `is_buffer`: it is no entries but one object that gets larger; `is_branch`: it is not the object
    itself, but what hangs below it, spread over many paths (analyse/branches.py), and counted in bytes as a buffer is;
    `is_moved`: it is a buffer that was found at other paths before (analyse/moved.py).
    """

    owner_node: int
    member_node: int
    counts: tuple[int, ...]
    sizes_bytes: tuple[int, ...]
    growth_bytes: int
    leaked_type: str
    owner_count: int
    owner_class: int
    member_classes: tuple[int, ...] = ()
    is_buffer: bool = False
    is_branch: bool = False
    is_moved: bool = False
    notes: list[str] = field(default_factory=list)


@dataclass(eq=False)
class Growth:
    """Path classes of the last snapshot and their numbers in each of the K snapshots: arrays (K, C).

    `device_bytes`: of each device's code, its part of `subtree_bytes`; empty on a host-only process.
    """

    table: PathTable
    count: Array
    shallow_bytes: Array
    subtree_bytes: Array
    length: Array
    device_bytes: dict[int, Array] = field(default_factory=dict)


def align(tables: list[PathTable]) -> Growth:
    """Look the path classes of the last snapshot up in all; 0 where a path did not exist."""
    last = tables[-1]

    def rows(columns: list[Array | None]) -> Array:
        found = np.zeros((len(tables), len(last.key)), np.int64)
        for number, (table, column) in enumerate(zip(tables, columns)):
            place = np.minimum(np.searchsorted(table.key, last.key), len(table.key) - 1)
            known = table.key[place] == last.key
            if column is not None:
                found[number, known] = column[place[known]]
        return found

    def named(name: str) -> Array:
        return rows([getattr(table, name) for table in tables])

    return Growth(last, named("count"), named("shallow_bytes"), named("subtree_bytes"), named("length"),
                  {code: rows([table.device_bytes.get(code) for table in tables])
                   for code in sorted({code for table in tables for code in table.device_bytes})})


def _rises(values: Array) -> Array:
    """(C,) bool: columns of (K, C) whose values never fall and rise in all intervals but at most one of every four."""
    steps = np.diff(values, axis=0)
    stalls = (steps <= 0).sum(axis=0)
    rising: Array = (steps >= 0).all(axis=0) & (values[-1] > values[0]) & (stalls <= (len(values) - 1) // 4)
    return rising


def _attributed(growth: Growth) -> tuple[Array, Array]:
    """Return for each class whether its number per holder rises, and the bytes that the additional members account for."""
    count = growth.count.astype(np.float64)
    parent = growth.table.parent
    holders = np.where(parent >= 0, count[:, np.maximum(parent, 0)], 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        fan_out = np.where(holders > 0, count / holders, 0.0)
        # a holder that was not there yet had no entries; but that it now has its few attributes is no growth of them
        fan_out = np.where((holders > 0) | (fan_out[-1] >= LEAST_ENTRIES), fan_out, fan_out[-1])
        unit = np.where(count > 0, growth.subtree_bytes / count, np.inf)
    more = np.maximum(fan_out[-1] - fan_out[0], 0.0) * holders[-1]
    smallest = np.minimum(unit[0], unit[-1])
    attributed: Array = np.where(more > 0, more * np.where(np.isfinite(smallest), smallest, 0.0), 0.0)
    more_entries = growth.count[-1] - growth.count[0] >= LEAST_ENTRIES
    return _rises(growth.count) & _rises(fan_out) & more_entries, attributed


def accumulations(graph: HeapGraph, growth: Growth, least_bytes: int) -> list[Accumulation]:
    """Return where objects pile up in the last snapshot `graph`, most bytes first.

    Only places that account for at least `least_bytes`; entries of one holder are put together (a key and its value).
    """
    table = growth.table
    rises, attributed = _attributed(growth)
    entries: dict[int, list[int]] = {}
    for row in np.flatnonzero(rises & (attributed > 0)).tolist():
        holder = int(table.parent[row])
        entries.setdefault(holder if holder >= 0 else -1 - row, []).append(row)
    found = []
    for holder, rows in entries.items():
        bytes_more = sum(float(attributed[row]) for row in rows)
        if holder >= 0:
            bytes_more += max(0, int(growth.shallow_bytes[-1, holder] - growth.shallow_bytes[0, holder]))
        if bytes_more >= least_bytes:
            found.append(_accumulation(graph, growth, max(holder, -1), rows, bytes_more, attributed))
    found += _buffers(graph, growth, least_bytes, {each.owner_class for each in found})
    return sorted(found, key=lambda each: (-each.growth_bytes, each.owner_class))


def _accumulation(graph: HeapGraph, growth: Growth, holder: int, rows: list[int], bytes_more: float,
                  attributed: Array) -> Accumulation:
    table = growth.table
    main = max(rows, key=lambda row: (float(attributed[row]), -row))
    counts, sizes = growth.count[:, main], growth.subtree_bytes[:, rows].sum(axis=1)
    owner = int(table.example[holder]) if holder >= 0 else -1
    owner_count = int(table.count[holder]) if holder >= 0 else 1
    return Accumulation(owner, int(table.example[main]), tuple(counts.tolist()), tuple(sizes.tolist()), int(bytes_more),
                        leaked_type(graph, table, rows), owner_count, holder, tuple(rows))


def _buffers(graph: HeapGraph, growth: Growth, least_bytes: int, taken: set[int]) -> list[Accumulation]:
    """Single objects that get larger: a bytearray, a string, an array, a list of what is counted elsewhere."""
    shallow = growth.shallow_bytes
    steady = growth.count[-1] <= growth.count[0] * 1.1
    larger = _rises(shallow) & (shallow[-1] - shallow[0] >= least_bytes) & steady & (growth.count[0] > 0)
    found = []
    for row in np.flatnonzero(larger).tolist():
        if row in taken:
            continue
        node = int(growth.table.example[row])
        lengths = growth.length[:, row]
        counts = lengths if lengths[-1] > lengths[0] else shallow[:, row]
        found.append(Accumulation(node, node, tuple(counts.tolist()), tuple(shallow[:, row].tolist()),
                                  int(shallow[-1, row] - shallow[0, row]), dominant_type(graph, growth.table, row),
                                  int(growth.count[-1, row]), row, (), True))
    return found


@dataclass(eq=False)
class Containers:
    """The containers of one snapshot by address: (K,) each; `type_key` says the same type in every snapshot."""

    address: Array
    type_key: Array
    length: Array
    node: Array


def containers(graph: HeapGraph) -> Containers:
    """Return the containers that hold something."""
    nodes = np.flatnonzero((graph.length > 0) & (graph.address > 0))
    nodes = nodes[np.argsort(graph.address[nodes], kind="stable")]
    keys = np.fromiter((hash64(name.full) for name in graph.types), np.uint64, len(graph.types))
    return Containers(graph.address[nodes], keys[graph.type_id[nodes]], graph.length[nodes].astype(np.int64), nodes)


def same_containers(tables: list[Containers], most: int = 40) -> list[tuple[int, tuple[int, ...]]]:
    """Return (node of the last snapshot, length in each) of the containers that got longer in every interval.

    A container is the same where address and type are: an address alone is used again within seconds. This finds a pile whose
    path changes from one snapshot to the next, such as one that is held by whatever function is running. Longest growth first.
    """
    last = tables[-1]
    if len(tables) < 2 or not len(last.node):
        return []
    lengths = []
    for table in tables[:-1]:
        if not len(table.node):
            return []
        place = np.minimum(np.searchsorted(table.address, last.address), len(table.node) - 1)
        same = (table.address[place] == last.address) & (table.type_key[place] == last.type_key)
        lengths.append(np.where(same, table.length[place], -1))
    found = np.array([*lengths, last.length])
    rising = np.flatnonzero((found[0] >= 0) & _rises(found))
    rising = rising[np.lexsort((last.node[rising], found[0, rising] - found[-1, rising]))][:most]
    return [(int(last.node[each]), tuple(found[:, each].tolist())) for each in rising]


def of_container(graph: HeapGraph, table: PathTable, node: int, counts: tuple[int, ...],
                 kept_bytes: int) -> Accumulation | None:
    """Return the accumulation in one container whose entries together keep `kept_bytes`; None if it has no entries."""
    edges = graph.edge_target[graph.edge_start[node]:graph.edge_start[node + 1]]
    rows, members = np.unique(table.class_of[edges], return_counts=True)
    if not len(edges) or rows[0] < 0:
        return None
    unit = kept_bytes / max(1, counts[-1])
    main = int(rows[members.argmax()])
    sizes = tuple(int(unit * count) for count in counts)
    return Accumulation(node, int(edges[table.class_of[edges] == main][0]), counts, sizes, sizes[-1] - sizes[0],
                        leaked_type(graph, table, rows.tolist()), 1, int(table.class_of[node]), tuple(rows.tolist()))


def below_classes(table: PathTable, rows: list[int]) -> Array:
    """(C,) bool: path classes at or below `rows`."""
    inside = np.zeros(len(table.key), bool)
    inside[rows] = True
    while True:  # classes are few: follow parents until nothing changes
        more = inside | ((table.parent >= 0) & inside[np.maximum(table.parent, 0)])
        if (more == inside).all():
            return more
        inside = more


def dominant_type(graph: HeapGraph, table: PathTable, row: int) -> str:
    """The most frequent type among the members of a path class."""
    return _dominant(graph, table, row).full


def _dominant(graph: HeapGraph, table: PathTable, row: int) -> TypeName:
    return graph.types[int(np.bincount(graph.type_id[table.members(row)]).argmax())]


def leaked_type(graph: HeapGraph, table: PathTable, rows: list[int]) -> str:
    """What a person would say piles up: the entries, or the instances of a class in them where entries are plain containers.

    An entry that is a tuple of a request and its body is "requests" to a person, and a callback in a tuple, or the key of a
    selector, stands for the connection behind it. So from the entry with most bytes follow the heaviest child for as long as
    most of the bytes hang on it, and name the first class of the program or of a library; else a task or an error on the way;
    else the first class of any kind.
    """
    row = max(rows, key=lambda each: (int(table.subtree_bytes[each]), -each))
    often = [each for each in rows if 2 * table.count[each] >= max(table.count[rows])]
    entry = max(often, key=lambda each: (int(table.subtree_bytes[each]), -each))
    if _speaks(graph, table, entry):
        return _dominant(graph, table, entry).full
    whole, named, speaking = int(table.subtree_bytes[row]), "", ""
    for _ in range(TYPE_STEPS):
        name = _dominant(graph, table, row)
        if name.module != "builtins":
            if not naming.is_stdlib(name.module):
                return name.full
            named = named or name.full
        if graph.kind[table.example[row]] in _SPEAKING_KINDS - {_FUNCTION}:
            speaking = speaking or name.full
        children = np.flatnonzero(table.parent == row)
        if not len(children):
            break
        row = int(children[np.argmax(table.subtree_bytes[children])])
        if table.subtree_bytes[row] < TYPE_SHARE * whole:
            break
    return speaking or named or _dominant(graph, table, entry).full


def _speaks(graph: HeapGraph, table: PathTable, row: int) -> bool:
    """True for entries that say themselves what they are: instances of a class that is no container, errors, functions."""
    name, node = _dominant(graph, table, row), int(table.example[row])
    if int(graph.kind[node]) in _SPEAKING_KINDS:
        return True
    return name.module != "builtins" and not (naming.is_stdlib(name.module) and graph.length[node])


def type_totals(graph: HeapGraph) -> dict[str, tuple[int, int]]:
    """Return (objects, shallow bytes) by full type name."""
    count, size = np.zeros(len(graph.types), np.int64), np.zeros(len(graph.types), np.int64)
    kernel.active.sums_by(kernel.column(graph.type_id, "<u4"), kernel.column(graph.shallow_bytes, "<u8"), count, size)
    totals: dict[str, tuple[int, int]] = {}
    for row in np.flatnonzero(count).tolist():
        name = graph.types[row].full
        before = totals.get(name, (0, 0))
        totals[name] = (before[0] + int(count[row]), before[1] + int(size[row]))
    return totals
