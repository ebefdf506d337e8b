"""Pinned host memory that PyTorch keeps free for the next transfer, and that becomes more.

Page-locked memory is slow to get, so PyTorch's host allocator keeps what was freed, and rounds sizes up to powers of two
(up to twice of what was asked). It lies in the memory of the host, mostly as shared pages, and counts for the process.

**Found by** what is held, when that is 1 GiB or more and one and a half times of what is in use. Growth is a finding; a
level that stays is dismissed with its size.

**Remedy.** Smaller prefetch. torch 2.12 can give it back (`torch.accelerator.empty_host_cache()`), torch 2.13 can bound it
(`pinned_max_cached_size_mb`) and round less (`pinned_max_round_threshold_mb`).
"""

from __future__ import annotations

from collections.abc import Iterator

from leakscope.analyse import layers, memory
from leakscope.case import Case
from leakscope.detectors import _devices, _layers
from leakscope.model import Dismissed, Finding, Rule
from leakscope.units import bytes_text, count_text

RULE = Rule("LS420", "pinned-cache", "Pinned host memory is kept though it is not in use, and grows")
LEAST_BYTES, LEAST_RATIO = 1 << 30, 1.5  # held, and held over in use; knowledge page, 5.2, class 20
LAYER = "pinned"


def detect(case: Case) -> Iterator[Finding | Dismissed]:
    """Yield at most one finding, or the level that stays."""
    held = layers.column(case.program_timeline, "pinned_held_bytes")
    used = layers.column(case.program_timeline, "pinned_used_bytes")
    if not held or not used or held[-1][1] < max(LEAST_BYTES, LEAST_RATIO * used[-1][1]):
        return
    free = memory.difference(case.program_timeline, "pinned_held_bytes", "pinned_used_bytes")
    grown = layers.change(free, case.window)
    growth = memory.sustained_points(free, case.window, None if grown is None else int(grown), None)
    reasons = [f"{bytes_text(held[-1][1])} of pinned host memory are held and {bytes_text(used[-1][1])} are in use",
               *_calls(case), *_shared(case, grown)]
    if growth is None or growth.bytes < _devices.LEAST_BYTES:
        yield Dismissed("pinned host memory", f"{_devices.HIGH_WATER}: {'; '.join(reasons)}; the free part grows no more", "",
                        max(0, int(grown or 0)))
        return
    doubts = ("how much of it is rounding up to powers of two, and how much is free blocks, is not told apart",)
    yield _layers.finding(case, RULE, growth, LAYER, "PyTorch's cache of pinned host memory", "pinned block",
                          (*reasons, f"the free part grew by {bytes_text(growth.bytes)}, in the second half by "
                           f"{bytes_text(growth.tail_bytes)}"), doubts, _remedy(case))


def _calls(case: Case) -> Iterator[str]:
    allocs, frees = (memory.change_of(case.program_timeline, case.window, name) for name in ("pinned_allocs", "pinned_frees"))
    if allocs:
        yield f"{count_text(allocs)} times new memory was pinned, {count_text(frees or 0)} times some was given back"


def _shared(case: Case, grown: float | None) -> Iterator[str]:
    shared = memory.change_of(case.program_timeline, case.window, "shmem_bytes")
    if shared and grown and shared >= _devices.LEAST_SHARE * grown > 0:
        yield f"the shared part of resident memory, where pinned pages count, grew by {bytes_text(shared)}"


def _remedy(case: Case) -> str:
    return " ".join(_devices.remedy(case, device, "pinned") for device in case.devices[:1])
