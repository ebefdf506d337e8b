"""Blocks of a device that no storage of the object graph lies in: what becomes more of them, by size and by place."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from leakscope.analyse.devices import Seen
from leakscope.analyse.ownership import PRIVATE, UNOWNED
from leakscope.heap.blocks import NO_SITE, Frame
from leakscope.heap.graph import Array

MOST_SIZES, MOST_SITES = 5, 5  # that are told; ours


@dataclass(frozen=True)
class SizeGrowth:
    """Blocks of one size: how many more there are, and their bytes in all."""

    size_bytes: int
    count: int

    @property
    def bytes(self) -> int:
        return self.size_bytes * self.count


@dataclass(frozen=True)
class SiteGrowth:
    """What one place keeps more: its stack, innermost frame first; () where it was not recorded."""

    frames: tuple[Frame, ...]
    bytes: int


@dataclass(frozen=True)
class Growth:
    """What grew between two snapshots of blocks without an owner, most bytes first."""

    bytes: int
    count: int
    sizes: tuple[SizeGrowth, ...]
    sites: tuple[SiteGrowth, ...]

    @property
    def recorded_ratio(self) -> float:
        """The part of the bytes whose place is known."""
        known = sum(each.bytes for each in self.sites if each.frames)
        return min(1.0, known / self.bytes) if self.bytes > 0 else 0.0


def growth(first: Seen, last: Seen, code: int) -> Growth:
    """Return what the later of two snapshots has more of, on the device with this code of graph.device."""
    before, after = _picked(first, code), _picked(last, code)
    sizes = _by_size(last, after)
    sizes.subtract(_by_size(first, before))
    sites = _by_site(last, after)
    sites.subtract(_by_site(first, before))
    more = [SizeGrowth(size, count) for size, count in sizes.items() if count > 0]
    placed = [SiteGrowth(frames, size) for frames, size in sites.items() if size > 0]
    total = int(last.blocks.size_bytes[after].sum()) - int(first.blocks.size_bytes[before].sum())
    return Growth(total, int(after.sum()) - int(before.sum()),
                  tuple(sorted(more, key=lambda each: -each.bytes)[:MOST_SIZES]),
                  tuple(sorted(placed, key=lambda each: -each.bytes)[:MOST_SITES]))


def _picked(seen: Seen, code: int) -> Array:
    """(B,) bool: allocated on the device, no storage and no workspace lies in it."""
    kind = seen.ownership.kind
    picked: Array = (seen.blocks.device == code) & ((kind == UNOWNED) | (kind == PRIVATE))
    return picked


def _by_size(seen: Seen, picked: Array) -> Counter[int]:
    values, counts = np.unique(seen.blocks.size_bytes[picked], return_counts=True)
    return Counter(dict(zip(values.tolist(), counts.tolist())))


def _by_site(seen: Seen, picked: Array) -> Counter[tuple[Frame, ...]]:
    found: Counter[tuple[Frame, ...]] = Counter()
    for row, size in seen.blocks.by_site(picked).items():
        found[() if row == NO_SITE else seen.blocks.frames[row]] += size
    return found
