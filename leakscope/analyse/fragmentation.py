"""Free memory that cannot be used: what of it is in pieces, which blocks pin the pieces, and whether a request still fits.

The rules are those of PyTorch's caching allocator (c10/cuda/CUDACachingAllocator.cpp, the same from 2.0 to 2.14): a request is
served only from a free block of the same device, stream, pool and size class; free blocks of different segments never merge;
empty_cache gives back segments that are wholly free, and whole free pages of expandable ones.

    fit(blocks, code, request)             does a request fit, and if not, although there is enough?
    pinned(blocks, code)                   segments that are partly free, with the blocks that keep them
    pinned_by(blocks, owner, code)         the same by owner: what each node of a graph keeps from being given back
    rounding(blocks, code)                 sizes at which rounding wastes most
    segment_map(blocks, code)              the segments for a picture, those with most free pieces first
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from leakscope.heap.blocks import ALLOCATED, DEFAULT_POOL, FREE, Blocks
from leakscope.heap.device_codes import device_name
from leakscope.heap.graph import Array

LEAST_BLOCK = 512  # bytes; kMinBlockSize
SMALL_REQUEST = 1 << 20  # kSmallSize: up to here the small pool serves
SMALL_PAGE, LARGE_PAGE = 2 << 20, 20 << 20  # kSmallBuffer, kLargeBuffer: of segments, and of expandable segments' pages
LARGE_REQUEST, ROUND_LARGE = 10 << 20, 2 << 20  # kMinLargeAlloc, kRoundLarge: from here a request has its own segment


class Fit(NamedTuple):
    """A request against the free memory of an allocator; all in bytes.

    eligible: free blocks of its stream, pool and size class. `free_bytes` is all that the allocator of the device has free.
    """

    request_bytes: int  # rounded as the allocator does
    driver_bytes: int  # what it takes from the driver where no free block serves
    free_bytes: int
    eligible_bytes: int
    largest_eligible_bytes: int
    other_stream_bytes: int  # free, and of the right pool and class, but another stream's
    other_pool_bytes: int  # free, but in another pool: a CUDA graph's or a MemPool's
    other_class_bytes: int  # free, but for small requests where this is a large one, or the other way round

    @property
    def fits(self) -> bool:
        """True if a free block serves it."""
        return self.largest_eligible_bytes >= self.request_bytes

    @property
    def is_fragmented(self) -> bool:
        """True if enough is free, but no piece that may serve is large enough."""
        return not self.fits and self.free_bytes >= self.request_bytes


class Pinned(NamedTuple):
    """A segment that is partly free: `rows` of the blocks in use keep `kept_bytes` from being given back."""

    segment: int
    kept_bytes: int
    used_bytes: int
    rows: Array


class PinnedBy(NamedTuple):
    """What one owner keeps: its blocks in partly free segments, their bytes, and the share of free memory that they pin."""

    owner: int  # node of a graph; -1: none is known
    kept_bytes: int
    used_bytes: int
    rows: Array


class Rounded(NamedTuple):
    """`block_count` blocks for which `requested_bytes` were asked and `block_bytes` taken, and what that wastes together."""

    requested_bytes: int
    block_bytes: int
    block_count: int
    wasted_bytes: int


def rounded(request: int) -> int:
    """Return the bytes that a block for `request` takes at least."""
    return max(LEAST_BLOCK, -(-request // LEAST_BLOCK) * LEAST_BLOCK)


def driver_bytes(request: int) -> int:
    """Return the bytes of the segment that a request needs where no free block serves it."""
    size = rounded(request)
    if size <= SMALL_REQUEST:
        return SMALL_PAGE
    return LARGE_PAGE if size < LARGE_REQUEST else -(-size // ROUND_LARGE) * ROUND_LARGE


def fit(blocks: Blocks, device: int, request: int, stream: int = 0, pool: tuple[int, int] = DEFAULT_POOL) -> Fit:
    """Compare a request of `request` bytes with what is free on a device (a code of graph.device)."""
    size = rounded(request)
    free = (blocks.state == FREE) & (blocks.device == device)
    own_pool = blocks.pool == (blocks.pools.index(pool) if pool in blocks.pools else len(blocks.pools))
    own_class = blocks.segments.is_large[blocks.segment] == (size > SMALL_REQUEST)
    own_stream = blocks.stream == np.uint64(stream)
    eligible = free & own_pool & own_class & own_stream

    def total(picked: Array) -> int:
        return int(blocks.size_bytes[picked].sum())

    return Fit(size, driver_bytes(request), total(free), total(eligible), int(blocks.size_bytes[eligible].max(initial=0)),
               total(free & own_pool & own_class & ~own_stream), total(free & ~own_pool), total(free & own_pool & ~own_class))


def fit_of_oom(blocks: Blocks) -> tuple[int, Fit] | None:
    """Return the device (its code) and the fit of the request that ran out of memory.

    None where none was recorded. A map of a later moment (`is_last` false: heap/memory_pickle.py) counts only if nothing but
    frees happened since, and the request does not fit even now: pieces only grew, and what was freed since was not free then.
    """
    oom = blocks.info.get("oom")
    if not isinstance(oom, dict):
        return None
    if not isinstance(oom.get("requested_bytes"), int) or oom["requested_bytes"] <= 0:
        return None
    device, stream, pool = oom.get("device"), oom.get("stream"), oom.get("pool")
    # an agent writes the name, a pickle the allocator's number
    code = next((code for code, ordinal in zip(blocks.device_codes, blocks.device_ordinals, strict=True)
                 if device in (ordinal, device_name(code))), None)
    if code is None or device is None:
        return None
    name = (pool[0], pool[1]) if isinstance(pool, (list, tuple)) and len(pool) == 2 else DEFAULT_POOL
    found = fit(blocks, code, oom["requested_bytes"], stream if isinstance(stream, int) and stream >= 0 else 0, name)
    if oom.get("is_last") is False:
        freed = oom.get("freed_since_bytes")
        if not isinstance(freed, int) or found.fits:
            return None
        free = max(0, found.free_bytes - freed)
        found = found._replace(free_bytes=free, eligible_bytes=min(found.eligible_bytes, free))
    return code, found


def largest_free(blocks: Blocks, device: int) -> int:
    """Return the largest free block of a device, whoever may use it; 0: nothing is free."""
    return int(blocks.size_bytes[(blocks.state == FREE) & (blocks.device == device)].max(initial=0))


def stuck(blocks: Blocks) -> Array:
    """Return (B,) u8: free bytes of each block that empty_cache cannot return.

    In ordinary segments all that is free beside a block in use; in expandable ones what is no whole page. PyTorch's counter
    `inactive_split` leaves the latter out.
    """
    counts = np.diff(blocks.segments.first_block)
    free = np.where(blocks.state == FREE, blocks.size_bytes, 0).astype("u8")
    free[(counts == 1)[blocks.segment] & ~blocks.segments.is_expandable[blocks.segment]] = 0
    page = np.where(blocks.segments.is_large, LARGE_PAGE, SMALL_PAGE).astype("u8")[blocks.segment]
    start = blocks.address - blocks.segments.address[blocks.segment]
    end = start + blocks.size_bytes
    first, last = (start + page - np.uint64(1)) // page * page, end // page * page
    whole = np.where(last > first, last - np.minimum(first, last), 0).astype("u8")
    is_expandable = blocks.segments.is_expandable[blocks.segment]
    found: Array = np.where(is_expandable & (blocks.state == FREE), free - whole, free)
    return found


def pinned(blocks: Blocks, device: int) -> list[Pinned]:
    """Return the segments of a device that are partly free, those that keep most first."""
    kept, used = (np.bincount(blocks.segment, sizes, len(blocks.segments)).astype("u8")
                  for sizes in (stuck(blocks), np.where(blocks.is_used, blocks.size_bytes, 0)))
    rows = np.flatnonzero((kept > 0) & (used > 0) & (blocks.segments.device == device))
    rows = rows[np.lexsort((used[rows], -kept[rows].astype("i8")))]
    first = blocks.segments.first_block
    found = []
    for row in rows.tolist():
        span = np.arange(first[row], first[row + 1])
        found.append(Pinned(row, int(kept[row]), int(used[row]), span[blocks.is_used[span]]))
    return found


def pinned_by(blocks: Blocks, owner: Array, device: int) -> list[PinnedBy]:
    """Return who pins free memory, most first; `owner` (B,) is a node for each block, -1 for none (Ownership.owner).

    What a segment keeps is shared among its blocks in use by their bytes.
    """
    kept = np.bincount(blocks.segment, stuck(blocks), len(blocks.segments))
    used_bytes = np.where(blocks.is_used, blocks.size_bytes, 0).astype("f8")
    used = np.bincount(blocks.segment, used_bytes, len(blocks.segments))
    share = used_bytes * (kept / np.maximum(used, 1))[blocks.segment]
    rows = np.flatnonzero((share > 0) & (blocks.device == device))
    names, inverse = np.unique(owner[rows], return_inverse=True)
    by_name = np.argsort(inverse, kind="stable")
    parts = np.split(rows[by_name], np.cumsum(np.bincount(inverse, minlength=len(names)))[:-1]) if len(names) else []
    found = [PinnedBy(int(name), round(float(share[part].sum())), int(blocks.size_bytes[part].sum()), part)
             for name, part in zip(names, parts, strict=True)]
    return sorted(found, key=lambda each: -each.kept_bytes)


def rounding(blocks: Blocks, device: int, most: int = 10) -> list[Rounded]:
    """Return the sizes at which rounding wastes most, most first; [] where it is not known what was asked for."""
    if not blocks.knows_requested:
        return []
    rows = (blocks.state == ALLOCATED) & (blocks.device == device) & (blocks.size_bytes > blocks.requested_bytes)
    pairs = np.stack((blocks.requested_bytes[rows], blocks.size_bytes[rows]), axis=1)
    sizes, counts = np.unique(pairs, axis=0, return_counts=True)
    found = [Rounded(int(asked), int(size), int(count), int(size - asked) * int(count))
             for (asked, size), count in zip(sizes, counts, strict=True)]
    return sorted(found, key=lambda each: (-each.wasted_bytes, each.requested_bytes))[:most]


def segment_map(blocks: Blocks, device: int) -> list[tuple[int, Array]]:
    """Return (segment, rows of its blocks in the order of their addresses), those with most free memory in pieces first."""
    pieces = np.bincount(blocks.segment, stuck(blocks), len(blocks.segments))
    rows = np.flatnonzero(blocks.segments.device == device)
    first = blocks.segments.first_block
    found = []
    for row in rows[np.lexsort((blocks.segments.address[rows], -pieces[rows]))].tolist():
        span = np.arange(first[row], first[row + 1])
        found.append((row, span[np.argsort(blocks.address[span], kind="stable")]))
    return found
