"""What caches are keyed by, and how they grow: functools caches and tables of the program over the compared snapshots.

The agent says of each position of the keys how many different values it has had, and how they are compared (names.json,
"caches" and "tables"). Of the positions that differ from entry to entry the deepest is named: not "argument 1, a tuple" but
"item 1 of argument 1, integers 17 to 4096". A position whose objects are compared by identity and that is new in every key
makes a cache that no later call can use.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from leakscope.analyse import retention
from leakscope.analyse.paths import Tree
from leakscope.heap import layout
from leakscope.heap.graph import Array, HeapGraph
from leakscope.model import CacheRow

VARIES = 0.9  # of the entries: a position with as many values makes the keys differ; ours
ALSO_VARIES = 0.1  # another argument with so many values is said as well; ours
LEAST_VALUES = 4  # fewer different values are settings, not shapes; ours
LEAST_POINTS, CORRELATED = 5, 0.9  # of a correlation; knowledge page "gpu", class 5
BY_ELIMINATION = 0.5  # positions that explain less than this of the entries leave what could not be read; ours
MOST_ROWS = 200  # of a report; ours
# Whose cache it is, by its module: read from the names alone.
LIBRARIES = ("flashinfer", "triton", "torch", "transformers", "vllm", "sglang", "sentence_transformers", "cudnn", "cupy", "jax",
             "deep_gemm", "flash_attn", "xformers", "diffusers", "numba", "tensorrt", "cutlass")
# What the name of an argument says of its numbers.
_NAMES = ((re.compile(r"seq|len|token|kv|qo|num_q|max_q|max_k|prompt|context|ctx", re.I), "token counts"),
          (re.compile(r"batch|^bs$|(^|_)b$", re.I), "batch sizes"),
          (re.compile(r"shape|size|dim|width|height|numel|^[mnk]$|rows|cols", re.I), "sizes"))
_CACHE = layout.NODE_KINDS.index("cache")
_CONTAINERS = {"tuple", "frozenset", "list", "torch.Size"}


@dataclass(frozen=True)
class Seen:
    """A cache or table in one snapshot; hits and misses are None for a table."""

    name: str
    kind: str  # functools | table
    address: int
    node: int
    size: int
    hits: int | None
    misses: int | None
    bound: int | None
    keys: Mapping[str, Any]
    arguments: tuple[str, ...]


class Varying(NamedTuple):
    """Which position of the keys differs: in words, how it is compared, its row of "positions", how many values it has."""

    text: str
    by: str  # value | identity
    place: int
    distinct: int


class Correlation(NamedTuple):
    """The bytes that a value keeps on a device go along with a number of its key (Pearson's r)."""

    device: str
    r: float
    bytes_per_unit: float
    place: int
    points: int


class Examined(Protocol):
    """What a case has to answer."""

    @property
    def readings(self) -> Sequence[Any]: ...
    @property
    def retention(self) -> retention.Retention: ...
    @property
    def last(self) -> HeapGraph: ...
    @property
    def can_compare(self) -> bool: ...


def seen(graph: HeapGraph, tree: Tree) -> tuple[Seen, ...]:
    """Return the caches and tables of a snapshot; a table is called by its owner."""
    rows = [("functools", row) for row in graph.caches] + [("table", row) for row in graph.tables]
    listed = np.flatnonzero((graph.kind == _CACHE) | (graph.length > 0))
    nodes = _nodes(graph, [int(row.get("address", 0)) for _, row in rows], listed)
    found = []
    for kind, row in rows:
        node, keys = nodes.get(int(row.get("address", 0)), -1), row.get("keys")
        name = str(row.get("name", ""))
        if kind == "table":
            path = retention.path(graph, tree, node, is_owner=True) if node >= 0 else None
            if path is None or path.root_kind == "garbage":
                continue
            name = path.owner
        size = row.get("size") if kind == "table" else row.get("currsize")
        found.append(Seen(name, kind, int(row.get("address", 0)), node, int(size or 0), row.get("hits"), row.get("misses"),
                          row.get("maxsize"), keys if isinstance(keys, dict) else {}, tuple(row.get("arguments") or ())))
    return tuple(found)


def _nodes(graph: HeapGraph, addresses: list[int], among: Array) -> dict[int, int]:
    """Nodes by address, without a table of all addresses; `among`: the nodes that may be meant."""
    wanted = np.unique(np.array([each for each in addresses if each], np.uint64))
    if not len(wanted):
        return {}
    known = graph.address[among]
    place = np.minimum(np.searchsorted(wanted, known), len(wanted) - 1)
    found = among[wanted[place] == known]
    return {int(graph.address[node]): int(node) for node in found.tolist()}


# --- which part of the key varies ----------------------------------------------------------------------------------------


def varying(one: Seen) -> Varying | None:
    """Return the position that makes the keys of a cache differ; None where nothing is known or nothing does."""
    positions = _positions(one.keys)
    looked = int(one.keys.get("looked") or max((sum(each["types"].values()) for each in positions), default=0))
    if looked < LEAST_VALUES or not positions:
        return None
    most = max(each["distinct"] for each in positions)
    if most < max(LEAST_VALUES, BY_ELIMINATION * looked):
        unread = [place for place, each in enumerate(positions) if each.get("opaque", 0) >= VARIES * looked]
        if len(unread) != 1:
            return _best(one, positions, [place for place, each in enumerate(positions) if each["distinct"] == most], looked
                         ) if most >= LEAST_VALUES else None
        where, kind = _where(one, positions[unread[0]]), _main_type(positions[unread[0]])
        text = f"{where}, objects of type {kind}, which their own code compares: the other parts of the keys explain too little"
        return Varying(text, "value", unread[0], looked)
    return _best(one, positions, [place for place, each in enumerate(positions) if each["distinct"] >= VARIES * most], looked)


def _positions(keys: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The positions with all that is needed; an old session has none."""
    rows = keys.get("positions")
    if not isinstance(rows, list):
        return []
    return [{**each, "at": each.get("at", [place]), "types": each.get("types") or {}, "distinct": each.get("distinct") or 0}
            for place, each in enumerate(rows) if isinstance(each, dict)]


def _best(one: Seen, positions: list[dict[str, Any]], places: list[int], looked: int) -> Varying:
    def order(place: int) -> tuple[bool, bool, bool, int, int]:
        each = positions[place]
        is_identity = each.get("identity", 0) >= VARIES * looked
        return (not is_identity, _main_type(each) in _CONTAINERS or _is_whole(positions, place), not each.get("shown"),
                -each["distinct"], place)

    place = min(places, key=order)
    chosen = positions[place]
    by = "identity" if chosen.get("identity", 0) >= VARIES * looked and chosen["distinct"] >= VARIES * looked else "value"
    text = f"{_where(one, chosen)}, {_what(one, chosen, by)}"
    others = [_where(one, each) for each in positions if len(each["at"]) == 1 and each["at"][:1] != chosen["at"][:1]
              and each["distinct"] >= max(LEAST_VALUES, ALSO_VARIES * looked)]
    return Varying(text + (f"; {_and(others[:2])} too" if others else ""), by, place, chosen["distinct"])


def _is_whole(positions: list[dict[str, Any]], place: int) -> bool:
    """True for an object whose parts have positions of their own."""
    path = positions[place]["at"]
    return any(len(each["at"]) > len(path) and each["at"][:len(path)] == path for each in positions)


def _main_type(position: Mapping[str, Any]) -> str:
    types = position["types"]
    return str(max(types, key=lambda each: types[each])) if types else "?"


def _where(one: Seen, position: Mapping[str, Any]) -> str:
    """`argument 3 (seq_len)`, `item 1 of argument 2`, `the key`."""
    path = position["at"]
    if not path:
        return "the key"
    text = _first(one, path[0])
    for step in path[1:]:
        text = f"item {step + 1} of {text}" if isinstance(step, int) else f"field `{str(step)[1:]}` of {text}"
    return text


def _first(one: Seen, step: int | str) -> str:
    if isinstance(step, str):
        return "an argument by keyword" if step == "?=" else f"argument `{step.rstrip('=')}`"
    if one.kind == "table":
        return f"item {step + 1} of the key"
    name = one.arguments[step] if step < len(one.arguments) else ""
    return f"argument {step + 1} (`{name}`)" if name else f"argument {step + 1}"


def _what(one: Seen, position: Mapping[str, Any], by: str) -> str:
    kind, distinct = _main_type(position), position["distinct"]
    if by == "identity":
        return f"a new {kind} in each of {distinct} entries, compared by identity"
    shown, total = position.get("shown", 0), position["types"].get("int", 0)
    if position.get("min") is not None and position.get("max") is not None:
        most = "" if not shown or shown == total else ", and others that are not shown"
        return f"integers {position['min']} to {position['max']}{most}{_looks_like(one, position)}"
    return f"{distinct} different values of type {kind}"


def _looks_like(one: Seen, position: Mapping[str, Any]) -> str:
    path = position["at"]
    words = [str(step) for step in path if isinstance(step, str)]
    if path and isinstance(path[0], int) and path[0] < len(one.arguments):
        words.append(one.arguments[path[0]])
    for pattern, what in _NAMES:
        if any(pattern.search(word.strip(".=")) for word in words):
            return f", looks like {what}"
    is_wide = position["min"] >= 1 and position["max"] >= 64 and position["distinct"] >= 8
    return ", looks like lengths or token counts" if is_wide and position["max"] < 1 << 18 else ""


def _and(parts: Sequence[str]) -> str:
    return f"{' and '.join(parts)} {'vary' if len(parts) > 1 else 'varies'}"


# --- over the snapshots --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class History:
    """A cache over the compared snapshots: `seen` of each (None: not there), its sizes, and which part of the key varies."""

    seen: tuple[Seen | None, ...]
    sizes: tuple[int | None, ...]
    varying: Varying | None

    @property
    def last(self) -> Seen:
        """The newest one."""
        return next(each for each in reversed(self.seen) if each is not None)

    @property
    def growth(self) -> int:
        """How many entries more than in the first snapshot; what was not there had none."""
        return (self.sizes[-1] or 0) - (self.sizes[0] or 0)

    def counted(self, name: str) -> tuple[int | None, ...]:
        """`hits` or `misses` in each snapshot."""
        return tuple(None if each is None else getattr(each, name) for each in self.seen)

    @property
    def misses(self) -> tuple[int, ...]:
        """Entries that were made so far in each snapshot, those that were thrown out again among them; of a table its size."""
        return tuple(int(size or 0) if each is None or each.misses is None else each.misses
                     for each, size in zip(self.seen, self.sizes))

    @property
    def library(self) -> str:
        """Whose it is."""
        top = self.last.name.partition(".")[0]
        return top if top in LIBRARIES else ""


def histories(case: Examined) -> list[History]:
    """Return the caches and tables of the last compared snapshot over all of them, those that grew most first."""
    if not case.readings:
        return []
    by_name = [_by_name(reading.caches) for reading in case.readings]
    found = []
    for one in case.readings[-1].caches:
        row = [_same(known.get((one.kind, one.name), ()), one) for known in by_name[:-1]]
        sizes = [_size(reading, one) if each is None and one.kind == "table" else None if each is None else each.size
                 for reading, each in zip(case.readings, row)]
        found.append(History((*row, one), (*sizes, one.size), varying(one)))
    return sorted(found, key=lambda each: (-(each.misses[-1] - each.misses[0]), -each.growth, each.last.name))


def _by_name(caches: Sequence[Seen]) -> dict[tuple[str, str], list[Seen]]:
    found: dict[tuple[str, str], list[Seen]] = {}
    for each in caches:
        found.setdefault((each.kind, each.name), []).append(each)
    return found


def _same(known: Sequence[Seen], one: Seen) -> Seen | None:
    """The one of that name; of several the one at the same address."""
    at_home = [each for each in known if each.address == one.address]
    return at_home[0] if at_home else known[0] if len(known) == 1 else None


def _size(reading: Any, one: Seen) -> int | None:
    """How long a table was before it was long enough to be listed; None where it was not there."""
    addresses = reading.containers.address
    place = int(np.searchsorted(addresses, np.uint64(one.address)))
    return int(reading.containers.length[place]) if place < len(addresses) and int(addresses[place]) == one.address else None


def rows(case: Examined) -> list[CacheRow]:
    """The caches of a case, those that grew most first; empty tables and caches with nothing in them are left out."""
    return [_row(case, each) for each in histories(case) if each.last.size][:MOST_ROWS]


def _row(case: Examined, found: History) -> CacheRow:
    one = found.last
    misses = found.counted("misses")
    thrown = tuple(None if missed is None or size is None else max(0, missed - size)
                   for missed, size in zip(misses, found.sizes))
    name = f"{one.name}()" if one.kind == "functools" else one.name
    return CacheRow(name, one.kind, found.sizes, found.counted("hits"), misses, thrown, one.bound,
                    found.varying.text if found.varying else "", found.varying.by if found.varying else "",
                    kept_bytes(case, one), found.library, one.node)


def kept_bytes(case: Examined, one: Seen) -> dict[str, int]:
    """What a cache of the last snapshot retains, by device; devices without any are left out."""
    kept = case.retention.of(np.array([one.node])) if one.node >= 0 else {}
    return {device: size for device, size in kept.items() if size}


# --- keys and bytes ------------------------------------------------------------------------------------------------------


def correlations(case: Examined, one: Seen) -> Iterator[Correlation]:
    """Yield the positions of the keys whose number goes along with the bytes that the value keeps, best first."""
    samples = one.keys.get("samples")
    if not isinstance(samples, list) or not samples:
        return
    nodes = _nodes(case.last, [int(address) for _, address in samples], np.arange(case.last.node_count))
    found = []
    for device, kept in case.retention.retained_bytes.items():
        points = [(numbers, float(kept[nodes[address]])) for numbers, address in samples if address in nodes]
        for place in range(len(samples[0][0])):
            pairs = [(float(numbers[place]), size) for numbers, size in points if numbers[place] is not None]
            line = pearson(pairs)
            if line is not None and line[0] > CORRELATED and line[1] > 0:
                found.append(Correlation(device, line[0], line[1], place, len(pairs)))
    yield from sorted(found, key=lambda each: (each.device == "host", -each.r, each.place))


def pearson(pairs: Sequence[tuple[float, float]]) -> tuple[float, float] | None:
    """Return Pearson's r and the slope of (x, y) pairs; None for too few or where one of them does not vary."""
    if len({x for x, _ in pairs}) < LEAST_POINTS:
        return None
    count = len(pairs)
    mean_x, mean_y = sum(x for x, _ in pairs) / count, sum(y for _, y in pairs) / count
    both = sum((x - mean_x) * (y - mean_y) for x, y in pairs)
    spread_x, spread_y = sum((x - mean_x) ** 2 for x, _ in pairs), sum((y - mean_y) ** 2 for _, y in pairs)
    return None if spread_y <= 0 else (both / math.sqrt(spread_x * spread_y), both / spread_x)


def spearman(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Return Spearman's rank correlation of (x, y) pairs, ties sharing their rank; None for fewer than three different x."""
    if len({x for x, _ in pairs}) < 3 or len({y for _, y in pairs}) < 2:
        return None
    ranked = list(zip(_ranks([x for x, _ in pairs]), _ranks([y for _, y in pairs])))
    mean = (len(pairs) + 1) / 2
    both = sum((x - mean) * (y - mean) for x, y in ranked)
    return both / math.sqrt(sum((x - mean) ** 2 for x, _ in ranked) * sum((y - mean) ** 2 for _, y in ranked))


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(values)
    first = {value: order.index(value) for value in set(values)}
    return [first[value] + (order.count(value) + 1) / 2 for value in values]
