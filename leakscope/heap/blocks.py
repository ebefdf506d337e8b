"""The block map of a caching allocator as arrays: what each piece of device memory is, and sums of it.

Source of the form: PyTorch's `torch.cuda.memory._snapshot()["segments"]`, versions 2.0 to 2.14 (torch/csrc/cuda/Module.cpp,
c10/cuda/CUDACachingAllocator.cpp); from 2.11 PyTorch writes the same for XPU. Every key may be missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from leakscope.heap.device_codes import device_code

Array = NDArray[Any]
Frame = tuple[str, int, str]  # file, line, function

STATES = ("allocated", "pending", "free")
ALLOCATED, PENDING, FREE = range(3)
# The data say active_pending_free, PyTorch's own docstring active_awaiting_free: both are read.
_STATES = {"active_allocated": ALLOCATED, "active_pending_free": PENDING, "active_awaiting_free": PENDING, "inactive": FREE}
DEFAULT_POOL = (0, 0)
NO_SITE = -1
MOST_BYTES = 1 << 48  # of a block or segment: addresses of x86-64 and ARM have 48 bits


class Totals(NamedTuple):
    """Bytes of one device or pool at the moment of a snapshot; `requested` is None where the allocator did not say.

    reserved = allocated + pending + inactive_split + releasable, exactly: each block is one of the four.
    """

    reserved: int
    allocated: int
    pending: int
    inactive_split: int  # free, in a segment that is partly used: empty_cache cannot return it
    releasable: int  # free segments, and all that is free in expandable ones, as memory_stats counts it
    requested: int | None

    @property
    def rounding(self) -> int | None:
        """What rounding adds to what was asked for; None where that is not known."""
        return None if self.requested is None else self.allocated - self.requested


@dataclass(frozen=True, eq=False)
class Segments:
    """What was taken from the driver: G rows. The blocks of row g are first_block[g] .. first_block[g + 1]."""

    address: Array  # (G,) u8
    total_bytes: Array  # (G,) u8
    stream: Array  # (G,) u8
    is_large: Array  # (G,) bool: serves requests of more than 1 MiB
    is_expandable: Array  # (G,) bool
    pool: Array  # (G,) u4, row of Blocks.pools
    device: Array  # (G,) u1, code as in HeapGraph.device
    first_block: Array  # (G + 1,) i8

    def __len__(self) -> int:
        return len(self.address)


@dataclass(frozen=True, eq=False)
class Change:
    """What happened to blocks between two snapshots, as masks over the blocks in use (allocated or pending)."""

    kept: Array  # (B,) bool over the later snapshot: the same address, size and allocation frames as before
    new: Array  # (B,) bool over the later one
    gone: Array  # (B0,) bool over the earlier one


@dataclass(frozen=True, eq=False)
class Blocks:
    """One snapshot of the allocators of all devices of a process: B blocks in the order of their segments."""

    address: Array  # (B,) u8
    size_bytes: Array  # (B,) u8, as handed out
    requested_bytes: Array  # (B,) u8, as asked for; 0 for free blocks; size_bytes where it is not known
    state: Array  # (B,) u1, row of STATES
    device: Array  # (B,) u1, code as in HeapGraph.device
    stream: Array  # (B,) u8, the stream that the segment belongs to
    segment: Array  # (B,) u4, row of segments
    pool: Array  # (B,) u4, row of pools
    site: Array  # (B,) i4, row of frames; -1: not recorded
    segments: Segments
    pools: tuple[tuple[int, int], ...]  # row 0 is (0, 0), the ordinary pool; all others are private
    frames: tuple[tuple[Frame, ...], ...]  # innermost first, as PyTorch gives them
    info: dict[str, Any]  # devices.json without segments and frames
    knows_requested: bool

    def __len__(self) -> int:
        return len(self.address)

    @classmethod
    def of(cls, record: dict[str, Any]) -> Blocks:
        """Return the blocks of a devices.json (or of `heap.memory_pickle.read`).

        Blocks without an address (PyTorch 2.0, 2.1) are laid one behind another from the start of their segment, as they lie.
        What cannot be read (a size that is no number) counts as not there.
        """
        segments = [each for each in _list(record.get("segments")) if isinstance(each, dict)]
        rows = [[each for each in _list(segment.get("blocks")) if isinstance(each, dict)] for segment in segments]
        blocks = [block for row in rows for block in row]
        counts = np.fromiter(map(len, rows), "i8", len(rows))
        first = np.concatenate(([0], np.cumsum(counts))).astype("i8")
        of_segment = np.repeat(np.arange(len(rows), dtype="u4"), counts)
        pools, pool = _pools(segments)
        table = Segments(
            address=_numbers(segments, "address"), total_bytes=_totals(segments, rows), stream=_numbers(segments, "stream"),
            is_large=np.array([each.get("segment_type") != "small" for each in segments], bool),
            is_expandable=np.array([each.get("is_expandable") is True for each in segments], bool),
            pool=pool, device=_devices(segments, record), first_block=first)
        size = _sizes(blocks, "size")
        state = _states(blocks)
        requested, knows_requested = _requested(blocks, size, state)
        frames = tuple(tuple(map(_frame, _list(stack))) for stack in _list(record.get("frames")))
        site = _numbers(blocks, "frames", "i4", NO_SITE)
        site[(site >= len(frames)) | (site < 0)] = NO_SITE
        return cls(
            address=_addresses(blocks, size, table, of_segment), size_bytes=size, requested_bytes=requested, state=state,
            device=table.device[of_segment], stream=table.stream[of_segment], segment=of_segment, pool=pool[of_segment],
            site=site, segments=table, pools=pools, frames=frames, knows_requested=knows_requested,
            info={name: value for name, value in record.items() if name not in ("segments", "frames")})

    @property
    def has_map(self) -> bool:
        """False where the allocator gives no block map (cudaMallocAsync, MPS): then nothing can be said about blocks."""
        return len(self.segments) > 0

    @property
    def is_used(self) -> Array:
        """(B,) bool: allocated, or waiting for another stream."""
        used: Array = self.state != FREE
        return used

    @property
    def device_codes(self) -> tuple[int, ...]:
        """The codes of the devices that have segments."""
        return tuple(int(code) for code in np.unique(self.segments.device))

    @property
    def device_ordinals(self) -> tuple[int | None, ...]:
        """The number that the allocator gives each of `device_codes`; None: none is known."""
        names = {device_code(str(device.get("name"))): device.get("ordinal") for device in _list(self.info.get("devices"))
                 if isinstance(device, dict)}
        first = _first_code(self.info)
        return tuple(names.get(code, code - first) for code in self.device_codes)

    def holding(self, addresses: Array) -> Array:
        """Return (K,) i8 the block that contains each address, -1 for none; O((B + K) log B).

        What sub-allocators and other processes show does not begin where a block does (knowledge page "gpu", 1.5).
        """
        if not len(self):
            return np.full(len(addresses), -1, np.int64)
        order = np.argsort(self.address, kind="stable")
        near = np.argsort(addresses, kind="stable")  # neighbours are looked up one after the other
        place = np.searchsorted(self.address[order], addresses[near], side="right").astype(np.int64) - 1
        rows = order[np.maximum(place, 0)]
        inside = (place >= 0) & (self.address[rows] > 0)  # 0: nobody said where it lies
        inside[inside] = addresses[near[inside]] - self.address[rows[inside]] < self.size_bytes[rows[inside]]
        found = np.empty(len(addresses), np.int64)
        found[near] = np.where(inside, rows, -1)
        return found

    def totals(self, device: int | None = None, pool: int | None = None) -> Totals:
        """Return the sums over a device and a pool (row of `pools`); None: over all."""
        picked = np.ones(len(self), bool)
        if device is not None:
            picked &= self.device == device
        if pool is not None:
            picked &= self.pool == pool
        allocated, pending, free = (picked & (self.state == state) for state in range(len(STATES)))
        stuck = free & self.is_split
        requested = self._sum(allocated, self.requested_bytes) if self.knows_requested else None
        return Totals(self._sum(picked), self._sum(allocated), self._sum(pending), self._sum(stuck), self._sum(free & ~stuck),
                      requested)

    @property
    def is_split(self) -> Array:
        """(B,) bool: shares its segment with other blocks. Expandable segments give back free pages, so they do not count,
        in PyTorch's `inactive_split` neither."""
        counts = np.diff(self.segments.first_block)
        shared: Array = ((counts > 1) & ~self.segments.is_expandable)[self.segment]
        return shared

    def pending_by_stream(self, device: int) -> dict[int, int]:
        """Return the bytes that wait for other streams, by the stream they belong to, most first."""
        return self._by(self.stream, (self.state == PENDING) & (self.device == device))

    def by_site(self, picked: Array) -> dict[int, int]:
        """Return the bytes of the picked blocks (B,) bool by row of `frames` (-1: not recorded), most first."""
        return self._by(self.site, picked)

    def by_pool(self, device: int) -> dict[tuple[int, int], Totals]:
        """Return the sums of each pool of a device, the ordinary one too."""
        rows = np.unique(self.segments.pool[self.segments.device == device])
        return {self.pools[row]: self.totals(device, int(row)) for row in rows}

    def since(self, earlier: Blocks) -> Change:
        """Compare with an earlier snapshot of the same process.

        Addresses are used again, so a block is the same one only if its size and its allocation frames are too; where one of
        the two has no frames, address and size decide.
        """
        used, before = self.is_used, earlier.is_used
        kept, still = np.zeros(len(self), bool), np.zeros(len(earlier), bool)
        known = {stack: row for row, stack in enumerate(earlier.frames)}
        site = np.array([known.get(stack, -2) for stack in self.frames] + [NO_SITE], "i4")[self.site]  # of earlier.frames
        for code in np.unique(self.device):
            old = np.flatnonzero(before & (earlier.device == code))
            old = old[np.argsort(earlier.address[old], kind="stable")]
            mine = np.flatnonzero(used & (self.device == code))
            if not len(old) or not len(mine):
                continue
            found = np.minimum(np.searchsorted(earlier.address[old], self.address[mine]), len(old) - 1)
            match = old[found]
            same = (earlier.address[match] == self.address[mine]) & (earlier.size_bytes[match] == self.size_bytes[mine])
            is_unknown = (site[mine] == NO_SITE) | (earlier.site[match] == NO_SITE)
            same &= is_unknown | (site[mine] == earlier.site[match])
            kept[mine[same]] = True
            still[match[same]] = True
        return Change(kept, used & ~kept, before & ~still)

    def _sum(self, picked: Array, sizes: Array | None = None) -> int:
        return int((self.size_bytes if sizes is None else sizes)[picked].sum())

    def _by(self, column: Array, picked: Array) -> dict[int, int]:
        values, inverse = np.unique(column[picked], return_inverse=True)
        sums = np.zeros(len(values), "u8")
        np.add.at(sums, inverse, self.size_bytes[picked])
        order = np.argsort(sums, kind="stable")[::-1]
        return {int(values[row]): int(sums[row]) for row in order}


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else ()


def _frame(row: Any) -> Frame:
    """A frame of devices.json; what cannot be read is empty."""
    if isinstance(row, (list, tuple)) and len(row) == 3 and isinstance(row[1], int):
        return str(row[0]), row[1], str(row[2])
    return "", 0, ""


def _numbers(rows: Sequence[dict[str, Any]], key: str, dtype: str = "u8", absent: int = 0) -> Array:
    """Return a key of each row as a column; `absent` where it is not there or no number of that size."""
    try:
        return np.fromiter(map(itemgetter(key), rows), dtype, len(rows))
    except (KeyError, TypeError, ValueError, OverflowError):
        limits = np.iinfo(dtype)
        return np.array([value if isinstance(value := row.get(key), int) and limits.min <= value <= limits.max else absent
                         for row in rows], dtype)


def _sizes(rows: Sequence[dict[str, Any]], key: str) -> Array:
    """Return a key of each row as bytes; more than any device has is damage, and counts as not there."""
    sizes = _numbers(rows, key)
    return np.where(sizes < MOST_BYTES, sizes, 0).astype("u8")


def _states(blocks: Sequence[dict[str, Any]]) -> Array:
    """The state of each block; one of a state that we do not know is in use for all we know."""
    try:
        return np.fromiter((_STATES[block["state"]] for block in blocks), "u1", len(blocks))
    except (KeyError, TypeError):
        return np.fromiter((_STATES.get(str(block.get("state")), ALLOCATED) for block in blocks), "u1", len(blocks))


def _requested(blocks: Sequence[dict[str, Any]], size: Array, state: Array) -> tuple[Array, bool]:
    """What each block in use was asked for, and whether all of them say so; PyTorch 2.0 has it in the history of a block."""
    is_used = state != FREE
    try:
        asked = np.minimum(np.fromiter(map(itemgetter("requested_size"), blocks), "u8", len(blocks)), size)
    except (KeyError, TypeError, ValueError, OverflowError):
        said = [{"size": block.get("requested_size", _oldest(block))} for block in blocks]
        if any(not isinstance(said[row]["size"], int) for row in np.flatnonzero(is_used)):
            return np.where(is_used, size, 0), False
        asked = np.minimum(_sizes(said, "size"), size)
    return np.where(is_used, asked, 0), True


def _oldest(block: dict[str, Any]) -> Any:
    history = _list(block.get("history"))
    return history[0].get("real_size") if history and isinstance(history[0], dict) else None


def _totals(segments: Sequence[dict[str, Any]], rows: Sequence[Sequence[dict[str, Any]]]) -> Array:
    """The bytes of each segment; where it does not say, the sum of its blocks."""
    total = _sizes(segments, "total_size")
    for number in np.flatnonzero(total == 0):
        total[number] = _sizes(rows[int(number)], "size").sum()
    return total


def _addresses(blocks: Sequence[dict[str, Any]], size: Array, table: Segments, of_segment: Array) -> Array:
    given = _numbers(blocks, "address")
    end = np.cumsum(size, dtype="u8")
    start = end - size
    of_first = np.concatenate((start, [0]))[np.minimum(table.first_block[:-1], len(size))].astype("u8")
    laid: Array = table.address[of_segment] + (start - of_first[of_segment])
    return np.where(given == 0, laid, given)


def _pools(segments: Sequence[dict[str, Any]]) -> tuple[tuple[tuple[int, int], ...], Array]:
    rows: dict[tuple[int, int], int] = {DEFAULT_POOL: 0}
    column = np.zeros(len(segments), "u4")
    for number, segment in enumerate(segments):
        name = _list(segment.get("segment_pool_id"))
        if len(name) == 2 and all(isinstance(part, int) for part in name):
            column[number] = rows.setdefault((name[0], name[1]), len(rows))
    return tuple(rows), column


def _devices(segments: Sequence[dict[str, Any]], record: dict[str, Any]) -> Array:
    """The code of the device of each segment; what is named nowhere is one of CUDA's (ROCm's are called so too), or XPU's."""
    codes = {device["ordinal"]: device_code(str(device.get("name"))) for device in _list(record.get("devices"))
             if isinstance(device, dict) and isinstance(device.get("ordinal"), int)}
    first = _first_code(record)
    ordinals = _numbers(segments, "device", "u1").tolist()
    return np.array([min(codes.get(ordinal) or first + ordinal, 255) for ordinal in ordinals], "u1")


def _first_code(record: dict[str, Any]) -> int:
    return device_code("xpu:0" if record.get("provider") == "xpu" else "cuda:0")
