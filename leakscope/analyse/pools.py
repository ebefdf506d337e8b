"""What pins free memory: objects alone in pools of pymalloc that are nearly empty, and at the top of glibc's heaps.

pymalloc serves each size, a multiple of 16 bytes up to 512, from pools of its own, and gives an arena back only when all of its
pools are empty (CPython Objects/obmalloc.c). So one small object that lives long, left over from a burst of others, keeps the
pool for objects of its size alone and the arena for good. An object's pool is known from its address. Bodies of lists and dicts
have no address in a snapshot: a pool may be fuller than it looks here, and agent/_probe/arenas.c counts what is really in use.

glibc gives memory of an arena back from the top of its heap alone (malloc/arena.c, heap_trim), so the highest block that lives
keeps everything below it. Heaps of threads begin at multiples of 64 MiB.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from leakscope.analyse.layers import BLOCK_STEP_BYTES, SMALL_OBJECT_BYTES, TWO_BLOCKS
from leakscope.heap import layout
from leakscope.heap.graph import Array, HeapGraph

POOL_BITS, POOL_BITS_BEFORE_310 = 14, 12  # 16 KiB since CPython 3.10 (its radix tree of arenas), one page before
SPARSE = 4  # a pool of which less than one part in so many is in use is nearly empty, as in arenas.c
HEAP_BITS = 26  # glibc malloc/arena.c, HEAP_MAX_SIZE on 64-bit machines
MAPPED_BYTES = 128 << 10  # malloc.c, DEFAULT_MMAP_THRESHOLD: larger blocks are mappings of their own
MAIN_HEAP_END = 0x7000_0000_0000  # the main arena is the program break, far below where mappings lie on Linux
_NO_BLOCKS = tuple(layout.NODE_KINDS.index(kind) for kind in ("storage", "mapping", "module", "type", "code"))


class Pinned(NamedTuple):
    """Pools in which objects were seen: how many, how many nearly empty; `nodes`: the objects in those, first of each pool;
    `types`: (type, how many of those pools an object of it sits in), most first."""

    pool_count: int
    sparse_count: int
    nodes: Array
    types: list[tuple[str, int]]


def pool_bits(python: str) -> int:
    """Return the bits of an address within its pool, for a version such as "3.11.7"."""
    parts = python.split(".")
    minor = int(parts[1]) if len(parts) > 1 and parts[1].isdigit() else 10
    return POOL_BITS if minor >= 10 else POOL_BITS_BEFORE_310


def pinned(graph: HeapGraph, python: str) -> Pinned:
    """Look at the pools of one snapshot; `python`: the version of the interpreter that it is of."""
    bits = pool_bits(python)
    small = (graph.device == 0) & (graph.address != 0) & (graph.shallow_bytes > 0) & (graph.shallow_bytes <= SMALL_OBJECT_BYTES)
    small &= ~np.isin(graph.kind, _NO_BLOCKS)
    nodes = np.flatnonzero(small)
    order = nodes[np.argsort(graph.address[nodes], kind="stable")]
    pools, first, count = np.unique(graph.address[order] >> np.uint64(bits), return_index=True, return_counts=True)
    if not len(pools):
        return Pinned(0, 0, nodes, [])
    blocks = -(-graph.shallow_bytes[order].astype(np.int64) // BLOCK_STEP_BYTES) * BLOCK_STEP_BYTES
    used = np.add.reduceat(blocks, first)
    sparse = used * SPARSE < 1 << bits
    inside = np.repeat(sparse, count)
    types = graph.type_id[order[inside]]
    # an object of a type counts once for each pool, however many of it sit there
    pairs = np.unique(np.repeat(np.arange(len(pools)), count)[inside] * len(graph.types) + types)
    totals = np.bincount(pairs % len(graph.types), minlength=len(graph.types))
    rows = [(graph.types[row].full, int(totals[row])) for row in np.argsort(-totals, kind="stable")[:5].tolist() if totals[row]]
    return Pinned(len(pools), int(sparse.sum()), order[first[sparse]], rows)


def heap_tops(graph: HeapGraph) -> Array:
    """Return the highest object that malloc gave in each heap of a thread's arena, as far as objects show: nodes.

    Only objects of one block count, such as str, bytes and tuple, and only where no mapping of their own is made for them.
    """
    inside = (graph.shallow_bytes > SMALL_OBJECT_BYTES) & (graph.shallow_bytes < MAPPED_BYTES) & (graph.device == 0)
    inside &= (graph.address >= MAIN_HEAP_END) & ~np.isin(graph.kind, _NO_BLOCKS)
    inside &= ~np.fromiter((name.qualname in TWO_BLOCKS for name in graph.types), bool, len(graph.types))[graph.type_id]
    nodes = np.flatnonzero(inside)
    order = nodes[np.argsort(graph.address[nodes], kind="stable")]
    heaps = graph.address[order] >> np.uint64(HEAP_BITS)
    return order[np.flatnonzero(np.append(heaps[1:] != heaps[:-1], True))] if len(order) else order
