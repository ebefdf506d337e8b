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
from typing import Any, NamedTuple

import numpy as np

from leakscope.heap import layout
from leakscope.heap.blocks import ALLOCATED as _STATE_ALLOCATED
from leakscope.heap.blocks import PENDING as _STATE_PENDING
from leakscope.heap.blocks import Blocks
from leakscope.heap.device_codes import device_code, device_name
from leakscope.heap.graph import Array, HeapGraph

KINDS = ("free", "pending", "owned", "workspace", "private-pool", "unowned")
FREE, PENDING, OWNED, WORKSPACE, PRIVATE, UNOWNED = range(6)
# torch's cuBLAS workspaces (aten/src/ATen/cuda/CublasHandlePool.cpp): 4096 KiB x 2 + 16 KiB x 8, and 32 MiB from sm90 on.
WORKSPACE_BYTES = (8_519_680, 33_554_432)
BLOCK_STEP_BYTES = 512  # c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize: what a request is rounded up to
_STORAGE = layout.NODE_KINDS.index("storage")


class Owned(NamedTuple):
    """What is allocated on one device, in bytes. `private_bytes`, `unowned_bytes`: no storage lies in it; `private_bytes` is in
    pools of CUDA graphs or of the program. None: not told apart, and `unowned_bytes` is all that has no storage.
    """

    allocated_bytes: int
    owned_bytes: int
    workspace_bytes: int | None
    workspace_count: int | None
    private_bytes: int | None
    unowned_bytes: int

    @property
    def without_owner_bytes(self) -> int:
        """The term `allocated_unowned`: in private pools or not."""
        return (self.private_bytes or 0) + self.unowned_bytes


@dataclass(frozen=True, eq=False)
class Ownership:
    """The join of one snapshot. Where the allocator gave no map of its blocks, or the walk no addresses of storages, only sums
    are known: `is_by_block` is False then, and no block has an owner.
    """

    owner: Array
    kind: Array
    devices: Mapping[str, Owned] = field(default_factory=dict)
    is_by_block: bool = True

    def of_device(self, name: str) -> Owned | None:
        """The sums of one device; None where it was not seen."""
        return self.devices.get(name)


def join(graph: HeapGraph, blocks: Blocks) -> Ownership:
    """Return who owns the blocks; O((B + K) log B) for B blocks and K storages."""
    owner = np.full(len(blocks), -1, np.int64)
    kind = np.where(blocks.state == _STATE_PENDING, PENDING, FREE).astype(np.uint8)
    is_by_block = blocks.has_map and (len(graph.storage_node) > 0 or not _stored(graph).any())
    if is_by_block:
        _give(graph, blocks, owner)
        allocated = blocks.state == _STATE_ALLOCATED
        kind[allocated] = np.where(blocks.pool[allocated] != 0, PRIVATE, UNOWNED)
        kind[allocated & _is_workspace(blocks)] = WORKSPACE
        kind[allocated & (owner >= 0)] = OWNED
        owner[~allocated] = -1
    names = [device_name(code) for code in blocks.device_codes]
    names += [name for each in blocks.info.get("devices") or [] if (name := _name_of(each)) and name not in names]
    return Ownership(owner, kind, {name: found for name in names if (found := _sums(graph, blocks, kind, name, is_by_block))},
                     is_by_block)


def _stored(graph: HeapGraph) -> Array:
    """(N,) bool: storages that lie on any device."""
    stored: Array = (graph.kind == _STORAGE) & (graph.device > 0)
    return stored


def _give(graph: HeapGraph, blocks: Blocks, owner: Array) -> None:
    """Write the storage that lies in each block; the largest, where a sub-allocator put several into one."""
    rows = blocks.holding(graph.storage_address)
    rows, nodes = rows[rows >= 0], graph.storage_node[rows >= 0].astype(np.int64)
    by_size = np.argsort(graph.shallow_bytes[nodes], kind="stable")
    owner[rows[by_size]] = nodes[by_size]  # what is written last stays


def _is_workspace(blocks: Blocks) -> Array:
    """(B,) bool: of exactly the size of a cuBLAS workspace, as the device says, or as torch has them by default."""
    found = np.zeros(len(blocks), bool)
    known = {}
    for each in blocks.info.get("devices") or []:
        if (name := _name_of(each)) and isinstance(size := each.get("cublas_workspace_bytes"), int) and size > 0:
            known[device_code(name)] = (size, -(-size // BLOCK_STEP_BYTES) * BLOCK_STEP_BYTES)
    for code in blocks.device_codes:
        sizes = known.get(code, WORKSPACE_BYTES)
        for size in sizes:
            found |= (blocks.device == code) & ((blocks.size_bytes == size) | (blocks.requested_bytes == size))
    return found


def _sums(graph: HeapGraph, blocks: Blocks, kind: Array, name: str, is_by_block: bool) -> Owned | None:
    """The sums of one device; None where nobody said what is allocated there."""
    code = device_code(name)
    mine = blocks.device == code
    if is_by_block:
        parts = [int(blocks.size_bytes[mine & (kind == row)].sum()) for row in (OWNED, WORKSPACE, PRIVATE, UNOWNED)]
        return Owned(sum(parts), parts[0], parts[1], int((mine & (kind == WORKSPACE)).sum()), parts[2], parts[3])
    allocated = int(blocks.size_bytes[mine & (blocks.state == _STATE_ALLOCATED)].sum()) if blocks.has_map else None
    if allocated is None:
        allocated = _counted(blocks, name)
    if allocated is None:
        return None
    stored = int(graph.shallow_bytes[(graph.kind == _STORAGE) & (graph.device == code)].sum())
    owned = min(stored, allocated)
    return Owned(allocated, owned, None, None, None, allocated - owned)


def _counted(blocks: Blocks, name: str) -> int | None:
    """What the allocator's own counter says is allocated on a device."""
    for each in blocks.info.get("devices") or []:
        if _name_of(each) == name and isinstance(stats := each.get("stats"), dict):
            value = stats.get("allocated_bytes.all.current", stats.get("allocated_bytes"))
            return value if isinstance(value, int) else None
    return None


def _name_of(device: Any) -> str:
    """The name of an entry of devices.json; empty for what is none."""
    name = device.get("name") if isinstance(device, dict) else None
    return name if isinstance(name, str) and device_code(name) else ""
