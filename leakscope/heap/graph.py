"""One snapshot of a heap as arrays. Node = index 0..N-1; address = id() in the target; the two are never mixed."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from leakscope.agent import format as layout
from leakscope.heap.blocks import Blocks

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
    `info` is done.json of the snapshot; `sites`, `bounds`, `caches` and `tables` are those of its names.json, `devices` is its
    devices.json. The columns `sample_*` (SAMPLED_COLUMNS) are empty where nothing was sampled.

    `storage_node`, `storage_address`: (K,) the storages whose data address is known; empty where the walk did not say.
    `block_site`: (N,) row of `sites` for storages whose block was recorded by a device's allocator, 0 for all others; empty
    where none was. `stand_in_node`: storages of the host that count as those of a simulated device.
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
    duplicates: list[list[int]] = field(default_factory=list)  # nodes of texts with the same content
    tables: list[dict[str, Any]] = field(default_factory=list)
    info: dict[str, Any] = field(default_factory=dict)
    devices: dict[str, Any] | None = None
    sample_node: Array = field(default_factory=lambda: _empty("sample_node"))
    sample_site: Array = field(default_factory=lambda: _empty("sample_site"))
    sample_bytes: Array = field(default_factory=lambda: _empty("sample_bytes"))
    sample_weight: Array = field(default_factory=lambda: _empty("sample_weight"))
    sample_ns: Array = field(default_factory=lambda: _empty("sample_ns"))
    storage_node: Array = field(default_factory=lambda: np.zeros(0, "<u4"))
    storage_address: Array = field(default_factory=lambda: np.zeros(0, "<u8"))
    block_site: Array = field(default_factory=lambda: np.zeros(0, "<u4"))
    stand_in_node: Array = field(default_factory=lambda: np.zeros(0, "<i8"))

    @classmethod
    def empty(cls, devices: dict[str, Any] | None = None) -> HeapGraph:
        """A graph without nodes: that of a map of device memory alone, of which nobody knows the objects."""
        columns: dict[str, Any] = {name: np.zeros(int(name == "edge_start"), dtype)
                                   for name, dtype in layout.COLUMNS.items()}
        return cls(**columns, strings=[""], types=[], devices=devices)

    @cached_property
    def blocks(self) -> Blocks | None:
        """What the allocators of the devices hold, from `devices`; None where nothing was said."""
        return None if self.devices is None else Blocks.of(self.devices)

    def load(self) -> HeapGraph:
        """Itself: it stands where a snapshot on disk may stand, too (heap/load.py)."""
        return self

    @property
    def is_host(self) -> Array:
        """(N,) bool: what takes memory of the host; so do its storages that count as those of a simulated device."""
        on_host: Array = self.device == 0
        on_host[self.stand_in_node] = True
        return on_host

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
        return Edge(self.holder(number), int(self.edge_target[number]), kind, text)

    def holder(self, number: int) -> int:
        """The node that an edge leaves."""
        return int(np.searchsorted(self.edge_start, np.uint64(number), side="right")) - 1

    def edge_numbers(self, nodes: Array) -> tuple[Array, Array]:
        """The numbers of all edges that leave `nodes`, and the node that each leaves."""
        first = self.edge_start[nodes].astype(np.int64)
        count = self.edge_start[np.asarray(nodes, np.int64) + 1].astype(np.int64) - first
        skipped = np.cumsum(count) - count
        return np.arange(int(count.sum())) + np.repeat(first - skipped, count), np.repeat(nodes, count)

    def edges_from(self, node: int, most: int | None = None) -> list[Edge]:
        """What a node holds, in the order of the snapshot, at most `most` of it: a container may hold millions."""
        first, end = int(self.edge_start[node]), int(self.edge_start[node + 1])
        return [self.edge(number) for number in range(first, end if most is None else min(end, first + most))]

    def edges_to(self, node: int, most: int | None = None) -> list[Edge]:
        """Who holds a node, in the order of the snapshot, at most `most` of them. Looks through all edges."""
        return [self.edge(number) for number in np.flatnonzero(self.edge_target == node)[:most].tolist()]
