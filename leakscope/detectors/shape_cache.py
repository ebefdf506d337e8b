"""A cache of compiled kernels or graphs has an entry for each length or shape, and memory outside PyTorch grows with it.

A kernel or a cuDNN graph that is compiled for one number of tokens is loaded into the device and as a rule never unloaded:
the memory lies outside of PyTorch's allocator, and stays also where the cache throws entries out. Most caches of FlashInfer
are not of this kind (data types and head sizes make a handful of entries); which are is read from the keys, not from names.

**Found by** a functools cache, or a table keyed by numbers and tuples, whose entries (those thrown out again counted) go on
growing, whose keys differ by values and not by identity, and with whose misses the memory outside PyTorch's allocator rises:
Spearman's rank correlation over the snapshots is at least 0.8. Where only the cache grows, it is no claim about the device.

**Remedy.** Pad or bucket lengths, so that few shapes occur; a kernel that takes the length as a number; upgrade.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from leakscope.analyse import cachekeys
from leakscope.analyse.cachekeys import History
from leakscope.analyse.devices import Device
from leakscope.analyse.trend import value_at
from leakscope.analyse.waterfall import TermGrowth
from leakscope.case import Case
from leakscope.detectors import _caches, _devices
from leakscope.detectors._devices import Cause
from leakscope.model import Dismissed, Finding, Rule
from leakscope.units import bytes_text

RULE = Rule("LS404", "shape-keyed-cache", "A cache of kernels or graphs has an entry for each shape")
REMEDY = "Pad or bucket what varies, so that few different values occur, or use a kernel that takes it as a plain number."
LEAST_RANK = 0.8  # Spearman's correlation of misses and memory outside; knowledge page "gpu", class 4
HIGH_SNAPSHOTS = 5  # with fewer any two series that rise go together; ours


class _Suspect(NamedTuple):
    found: History
    rank: float
    each_bytes: float


def detect(case: Case) -> Iterator[Finding | Dismissed]:
    """Yield at most one finding a device: that of the cache that fits best."""
    for device, growth in _devices.grown(case, "outside"):
        suspects = _suspects(case, device)
        if suspects:
            yield _finding(case, device, growth, suspects)


def _suspects(case: Case, device: Device) -> list[_Suspect]:
    points = device.terms["outside"].points
    outside = [value_at(points, t_s) for t_s in case.times_s]
    found = []
    for each in _caches.histories(case):
        misses = [float(count) for count in each.misses]
        rank = cachekeys.spearman(list(zip(misses, outside)))
        is_by_shape = each.varying is not None and each.varying.by == "value" and _is_of_shapes(each)
        if rank is not None and rank >= LEAST_RANK and is_by_shape and _caches.goes_on(case, each):
            found.append(_Suspect(each, rank, (outside[-1] - outside[0]) / (misses[-1] - misses[0])))
    return sorted(found, key=lambda one: (not one.found.library, one.found.last.kind == "table", -one.rank))


def _is_of_shapes(found: History) -> bool:
    """True if what varies are integers that were shown: lengths and shapes are, accounts and times are not."""
    positions = found.last.keys.get("positions") or []
    place = found.varying.place if found.varying else -1
    return 0 <= place < len(positions) and bool(positions[place].get("shown"))


def _finding(case: Case, device: Device, growth: TermGrowth, suspects: Sequence[_Suspect]) -> Finding:
    best, found = suspects[0], suspects[0].found
    per_entry = f"{bytes_text(best.each_bytes)} outside PyTorch per entry"
    rank = f"memory outside PyTorch rises with its misses: rank correlation {best.rank:.2f} over {len(found.sizes)} snapshots"
    others = [_caches.name_of(each.found) for each in suspects[1:3]]
    doubts = [f"{' and '.join(others)} grew in the same time"] if others else []
    if len(found.sizes) < HIGH_SNAPSHOTS:
        doubts.append(f"only {len(found.sizes)} snapshots")
    reasons = (*_caches.reasons(found), per_entry, rank, *_jit(case))
    cause = Cause("outside", growth.bytes, found.last.name, "cache entry", reasons, doubts,
                  is_direct=len(found.sizes) >= HIGH_SNAPSHOTS, correlates=True, count=found.last.size)
    return _devices.finding(case, device, RULE, cause, _caches.advice(case, device, found, REMEDY))


def _jit(case: Case) -> Iterator[str]:
    """That compiled libraries were loaded in the same time."""
    points = _devices.column(case, "jit_libraries")
    if len(points) > 1 and points[-1][1] > points[0][1]:
        yield f"JIT-compiled libraries that are loaded: {points[0][1]:.0f} -> {points[-1][1]:.0f}"
