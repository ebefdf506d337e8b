"""Native memory in use grows, and no Python object accounts for it.

malloc reports how much it has handed out and not got back (mallinfo2); of Python's own allocator it is counted in its
arenas. When that rises by more than the Python objects of the snapshots explain, an extension module, a C library or a
missing Py_DECREF keeps memory that Python cannot see.

**Found by** the trend of malloc's memory in use, less what the objects of the snapshots take, over the judged window and
still in its second half. Who keeps it is known from samples: with `--native` those of malloc and mmap name the library, its
function and the Python function that called it; without it those of Python's own allocators name the function that made
blocks which no object of the last snapshot is or has.

This is class 25 of the classes of device growth as well: a library of operators that keeps host memory (pytorch#190493: a
string for every call) shows here, with the memory of the device flat.

**Remedy.** Look for handles that are opened and never closed (sessions, images, cursors, parsers), for buffers that C code
returned and that have to be freed, and for the library's known leaks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from leakscope.analyse import layers, memory
from leakscope.analyse.layers import Points
from leakscope.case import Case
from leakscope.detectors import _layers
from leakscope.model import Dismissed, Finding, Location, Rule
from leakscope.units import bytes_text, count_text

RULE = Rule("LS301", "native-growth", "Native memory in use grows outside Python objects")
REMEDY = "Free or close what native code hands out (handles, buffers, sessions); look for a missing Py_DECREF or free."
KEEPER_SHARE = 0.25  # of the growth: what keeps less is not the one to name; ours


@dataclass(frozen=True)
class _Keeper:
    """Who keeps the memory, as far as samples say."""

    owner: str = "native memory (malloc)"
    sites: tuple[Location, ...] = ()
    count: int | None = None
    reasons: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()


def detect(case: Case) -> Iterator[Finding | Dismissed]:
    """Yield at most one finding: that of the function that keeps most."""
    native, total = case.layer("native"), case.layer("total")
    growth = memory.sustained_points(_handed_out(case), case.window, native, total)
    if growth is None:
        return
    keeper = _sampled_natively(case, growth.bytes) or _loose(case, growth.bytes) or _unknown(case)
    reasons = [f"{_who(case)} {bytes_text(growth.bytes)} more in use that no Python object accounts for",
               f"it still grew in the second half of the run: {bytes_text(growth.tail_bytes, signed=True)}"]
    yield _layers.finding(case, RULE, growth, "native", keeper.owner, "malloc block", (*keeper.reasons, *reasons),
                          keeper.doubts, REMEDY, object_count=keeper.count, site=next(iter(keeper.sites), None),
                          sites=keeper.sites)


def _handed_out(case: Case) -> Points:
    """What malloc and pymalloc have handed out, where both are known; else what malloc has."""
    return memory.sums(case.program_timeline, "malloc_used_bytes", "arena_used_bytes") or layers.column(
        case.program_timeline, "malloc_used_bytes")


def _who(case: Case) -> str:
    """The allocator whose blocks grew."""
    by_malloc, by_python = (memory.change_of(case.program_timeline, case.window, name) or 0.0
                            for name in ("malloc_used_bytes", "arena_used_bytes"))
    return "malloc has" if by_malloc >= by_python else "Python's own allocator has"


def _sampled_natively(case: Case, growth_bytes: int) -> _Keeper | None:
    """The native function that keeps most, by the samples of malloc and mmap."""
    found = next(iter(case.native_growth or ()), None)
    if found is None or found.growth_bytes < KEEPER_SHARE * growth_bytes:
        return None
    caller = f", called by {found.callers[0].function}()" if found.callers else ""
    return _Keeper(found.name + caller, found.callers, found.growth_count,
                   (f"{found.name} has about {bytes_text(found.growth_bytes)} more in use, in {count_text(found.growth_count)} "
                    "blocks: estimated from sampled native allocations",))


def _loose(case: Case, growth_bytes: int) -> _Keeper | None:
    """The function that made most of the blocks of Python's allocators that no object is or has."""
    if not case.can_compare or not case.loose_growth:
        return None
    whole = case.loose_growth.total()
    (file, function, line), size = case.loose_growth.most_common(1)[0]
    if size < KEEPER_SHARE * growth_bytes:
        return None
    sites = tuple(Location(function, file, line, round(size / whole, 4))
                  for (file, function, line), size in case.loose_growth.most_common(5))
    return _Keeper(f"native memory allocated by {function}()", sites, None,
                   (f"blocks made in {function}() that no object accounts for take {bytes_text(size)} more: estimated from "
                    "sampled allocations",),
                   ("the C function that keeps them is not known; leakscope run --native names it",))


def _unknown(case: Case) -> _Keeper:
    if case.native_growth is None:
        return _Keeper(doubts=("the function that allocates it is not known; leakscope run --native names it",))
    return _Keeper(doubts=("the sampled native allocations show no function that keeps so much",))
