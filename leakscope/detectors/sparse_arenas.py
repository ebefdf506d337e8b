"""Freed memory stays in pymalloc's arenas, and that part grows: a few small objects pin them.

The interpreter's allocator for small objects serves each size from pools of its own and gives an arena (1 MiB, 256 KiB
before CPython 3.10) back only when nothing in it is in use. A burst of objects that leaves a survivor here and there leaves
its arenas; the next burst of another size needs new ones. Free room of the same size is used again, so one burst alone is a
high water.

**Found by** what the arenas take less what of them is in use (counted by an arena allocator of the agent), when that grows
to the end while the peaks of use do not account for it. What pins the arenas is told from the addresses of small objects:
types and owners of those in pools that are nearly empty.

**Remedy.** Let what lives long be made at the start, or copied into few large pieces (one list, an array, bytes) when a
burst ends; make bursts smaller. `PYTHONMALLOC=malloc`, with jemalloc preloaded, lets the room of one size serve others.
"""

from __future__ import annotations

from collections.abc import Iterator

from leakscope.analyse import coverage, layers, memory, pools
from leakscope.analyse.layers import KEPT
from leakscope.analyse.memory import Sustained
from leakscope.case import Case
from leakscope.detectors import _layers
from leakscope.model import Dismissed, Finding, Rule
from leakscope.units import bytes_text, count_text

RULE = Rule("LS304", "sparse-arenas", "Arenas of small objects stay almost empty, and become more")
REMEDY = ("Make what lives long before the burst, or copy it out of it into few large pieces; try PYTHONMALLOC=malloc with "
          "jemalloc preloaded.")


def detect(case: Case) -> Iterator[Finding | Dismissed]:
    """Yield at most one finding, or the high water that was dismissed."""
    free = memory.difference(case.program_timeline, "arena_bytes", "arena_used_bytes")
    for growth in _layers.kept(case, "pymalloc", free, coverage.term_of(case.layers, KEPT, "pymalloc"), "arena_bytes"):
        yield growth if isinstance(growth, Dismissed) else _judged(case, growth)


def _judged(case: Case, growth: Sustained) -> Finding | Dismissed:
    peak = memory.peak_growth(layers.column(case.program_timeline, "arena_used_bytes"), case.window)
    high_water = _layers.peaked(case, "pymalloc", growth, peak, "arena_bytes")
    if high_water is not None:
        return high_water
    reasons = [f"arenas of small objects take {bytes_text(growth.bytes)} more that no object uses",
               f"it still grew in the second half of the run: {bytes_text(growth.tail_bytes, signed=True)}"]
    more_reasons, doubts, owner = _pins(case)
    return _layers.finding(case, RULE, growth, KEPT, owner or "pymalloc arenas", "free room between small objects",
                           [*reasons, *more_reasons], doubts, REMEDY)


def _pins(case: Case) -> tuple[list[str], tuple[str, ...], str]:
    """What sits in the nearly empty pools: reasons, doubts, and the owner of most of it ("": none is most)."""
    reasons = []
    last = next((sample for sample in reversed(case.program_timeline) if sample.get("arena_pools")), None)
    if last is not None:
        reasons.append(f"{count_text(last.get('arena_sparse_pools', 0))} of {count_text(last['arena_pools'])} pools in use are "
                       "less than a quarter full")
    if not case.compared:
        return reasons, ("what pins the arenas is not known: there is no snapshot",), ""
    found = pools.pinned(case.last, str(case.info.get("python", "")))
    if not found.sparse_count:
        return reasons, ("what pins the arenas is not known: it is no object that a snapshot shows",), ""
    name, count = found.types[0]
    reasons.append(f"in {count_text(found.sparse_count)} pools hardly anything but objects such as {name} "
                   f"({count_text(count)} pools) keeps the arena")
    best, part = _layers.main_owner(case, found.nodes.tolist())
    if best:
        reasons.append(f"{part:.0%} of them are held by {best}")
        return reasons, ("bodies of lists and dicts are not seen in the pools",), f"pymalloc arenas pinned by {best}"
    return reasons, ("bodies of lists and dicts are not seen in the pools", "no single owner holds most of them"), ""
