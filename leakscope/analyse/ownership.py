"""Who owns each block of a device's allocator: blocks joined to the storages of the object graph, by address.

The method is that of the knowledge page "gpu", 1.5: blocks sorted by address, the base of each storage looked up by bisection,
and taken to lie in the block that contains it, since sub-allocators and views of other processes do not begin where a block
does. A block without a storage is a cuBLAS workspace if it has exactly the size of one (they are made by the same allocator,
one for each thread and stream, and hold no tensor); else C++ code alone holds it.

    join(graph, blocks) -> Ownership
    Ownership.owner                      (B,) i8  storage node of the graph that lies in each block, -1 for none
    Ownership.kind                       (B,) u1  row of KINDS for each block
    Ownership.of_device("cuda:0")        -> Owned: bytes owned, of workspaces (and how many), of private pools, unowned
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from leakscope.heap.graph import Array, HeapGraph

if TYPE_CHECKING:
    from leakscope.analyse.blocks import Blocks

KINDS = ("free", "pending", "owned", "workspace", "private-pool", "unowned")
FREE, PENDING, OWNED, WORKSPACE, PRIVATE, UNOWNED = range(6)
# torch's cuBLAS workspaces (aten/src/ATen/cuda/CublasHandlePool.cpp): 4096 KiB x 2 + 16 KiB x 8, and 32 MiB from sm90 on.
WORKSPACE_BYTES = (8_519_680, 33_554_432)


class Owned(NamedTuple):
    """What is allocated on one device, in bytes: `private_bytes` and `unowned_bytes` are what no storage lies in."""

    allocated_bytes: int = 0
    owned_bytes: int = 0
    workspace_bytes: int = 0
    workspace_count: int = 0
    private_bytes: int = 0
    unowned_bytes: int = 0
    unowned_count: int = 0

    @property
    def without_owner_bytes(self) -> int:
        """The term `allocated_unowned`: in private pools or not."""
        return self.private_bytes + self.unowned_bytes


@dataclass(frozen=True, eq=False)
class Ownership:
    """The join of one snapshot. Where the allocator gave no map of its blocks, only sums are known: `is_by_block` False."""

    owner: Array
    kind: Array
    devices: Mapping[str, Owned] = field(default_factory=dict)
    is_by_block: bool = True

    def of_device(self, name: str) -> Owned | None:
        """The sums of one device; None where it was not seen."""
        return self.devices.get(name)


def join(graph: HeapGraph, blocks: Blocks) -> Ownership:
    """Return who owns the blocks; O((B + K) log B) for B blocks and K storages."""
    count = len(blocks.address)
    return Ownership(np.full(count, -1, np.int64), np.zeros(count, np.uint8))
