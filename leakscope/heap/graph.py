"""One snapshot of a heap as arrays. Node = index 0..N-1; address = id() in the target; the two are never mixed."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from leakscope.agent import format as layout

Array = NDArray[Any]


class TypeName(NamedTuple):
    """A type of the target: `module`, `qualname`, and the flags of names.json ("h" heap type, "g" tracked, "d" __dict__)."""

    module: str
    qualname: str
    flags: str = ""

    @property
    def full(self) -> str:
        """`module.qualname`; builtins without their module."""
        return self.qualname if self.module in ("builtins", "") else f"{self.module}.{self.qualname}"


class Edge(NamedTuple):
    """One edge, decoded: indices of holder and held, a kind of format.EDGE_KINDS by position, and its text."""

    source: int
    target: int
    kind: int
    text: str


def _empty(column: str) -> Array:
    return np.zeros(0, layout.SAMPLED_COLUMNS[column])


@dataclass(eq=False)
class HeapGraph:
    """One snapshot (shapes and units: agent/format.py, COLUMNS).

    Edges are in compressed rows: those of node i are `edge_target[edge_start[i]:edge_start[i + 1]]`.
    `info` is done.json of the snapshot; `sites`, `bounds` and `caches` are those of its names.json. The columns `sample_*`
    (SAMPLED_COLUMNS) are empty where nothing was sampled.
    """

    address: Array
    type_id: Array
    shallow_bytes: Array
    refcount: Array
    length: Array
    kind: Array
    state: Array
    device: Array
    birth: Array
    site_id: Array
    label: Array
    edge_start: Array
    edge_target: Array
    edge_label: Array
    root_node: Array
    root_kind: Array
    root_label: Array
    strings: list[str]
    types: list[TypeName]
    sites: list[dict[str, Any] | None] = field(default_factory=lambda: [None])
    bounds: list[tuple[int, int, str]] = field(default_factory=list)
    caches: list[dict[str, Any]] = field(default_factory=list)
    info: dict[str, Any] = field(default_factory=dict)
    sample_node: Array = field(default_factory=lambda: _empty("sample_node"))
    sample_site: Array = field(default_factory=lambda: _empty("sample_site"))
    sample_bytes: Array = field(default_factory=lambda: _empty("sample_bytes"))
    sample_weight: Array = field(default_factory=lambda: _empty("sample_weight"))
    sample_ns: Array = field(default_factory=lambda: _empty("sample_ns"))

    @property
    def node_count(self) -> int:
        """N."""
        return len(self.address)

    @property
    def edge_count(self) -> int:
        """E."""
        return len(self.edge_target)

    @property
    def t_s(self) -> float:
        """When the snapshot was taken, in seconds since the session started."""
        return float(self.info.get("t_ns", 0)) / 1e9

    @cached_property
    def edge_source(self) -> Array:
        """(E,) u4: the holder of each edge."""
        counts: Array = np.diff(self.edge_start.astype(np.int64))
        return np.repeat(np.arange(self.node_count, dtype=np.uint32), counts)

    @cached_property
    def _incoming(self) -> tuple[Array, Array]:
        """Edge numbers sorted by the node they point to, and where each node's begin: ((E,), (N + 1,))."""
        order = np.argsort(self.edge_target, kind="stable").astype(np.uint32)
        counts = np.bincount(self.edge_target, minlength=self.node_count)
        return order, np.concatenate(([0], np.cumsum(counts)))

    @cached_property
    def index_of(self) -> dict[int, int]:
        """Node by address; nodes without an address are left out."""
        return {address: node for node, address in enumerate(self.address.tolist()) if address}

    def type_name(self, node: int) -> str:
        """`module.qualname` of the type of a node."""
        return self.types[int(self.type_id[node])].full

    def text(self, string: int) -> str:
        """A row of the string table."""
        return self.strings[string]

    def node_name(self, node: int) -> str:
        """What a person calls the node: its label, else the short name of its type."""
        label = int(self.label[node])
        return self.strings[label] if label else self.types[self.type_id[node]].qualname

    def edge(self, number: int) -> Edge:
        """Edge by its number 0..E-1, decoded."""
        code = int(self.edge_label[number])
        kind, value = code >> layout.EDGE_KIND_SHIFT, code & layout.EDGE_VALUE_MASK
        text = str(value) if kind in (layout.INDEX, layout.STACK) else self.strings[value]
        return Edge(int(self.edge_source[number]), int(self.edge_target[number]), kind, text)

    def edges_from(self, node: int) -> list[Edge]:
        """What a node holds, in the order of the snapshot."""
        return [self.edge(number) for number in range(int(self.edge_start[node]), int(self.edge_start[node + 1]))]

    def edges_to(self, node: int) -> list[Edge]:
        """Who holds a node."""
        order, start = self._incoming
        return [self.edge(int(number)) for number in order[start[node]:start[node + 1]]]
