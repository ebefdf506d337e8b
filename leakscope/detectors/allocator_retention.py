"""Memory that was freed stays with malloc, and that part grows: fragmentation, not a leak of objects.

glibc's malloc keeps an arena for each of many threads and gives memory back only from the top of an arena; a few small blocks
that live long pin everything below them. The program has freed the memory, the process still has it. What a program once had
in use and freed stays as well, and is used again: such a high water is no leak and is dismissed.

**Found by** the trend of malloc's free memory (mallinfo2), while the peaks of its memory in use do not account for it; and by
the number of its arenas.

**Remedy.** Many arenas: `MALLOC_ARENA_MAX=2`, or fewer threads that allocate large pieces. Few: `malloc_trim(0)` at quiet
moments, `MALLOC_TRIM_THRESHOLD_=131072`, which also keeps glibc from raising its threshold for mappings (M_MMAP_THRESHOLD), or
jemalloc by LD_PRELOAD. Large buffers that are used again help in both cases.
"""

from __future__ import annotations

from collections.abc import Iterator

from leakscope.analyse import coverage, layers, memory, pools
from leakscope.analyse.layers import KEPT
from leakscope.analyse.memory import Sustained
from leakscope.case import Case
from leakscope.detectors import _layers
from leakscope.model import Dismissed, Finding, Rule
from leakscope.units import bytes_text

RULE = Rule("LS302", "allocator-retention", "Freed memory stays with the allocator, and grows")
MANY_ARENAS = 3  # arenas more than at the start, or in all beside the main one: then they are what keeps it; ours
FOR_ARENAS = "Set MALLOC_ARENA_MAX=2, or let fewer threads allocate; malloc_trim(0) at quiet moments gives it back at once."
FOR_HOLES = ("Call malloc_trim(0) at quiet moments, set MALLOC_TRIM_THRESHOLD_=131072 (blocks of 128 KiB and more are mappings "
             "then), or preload jemalloc; reuse large buffers.")


def detect(case: Case) -> Iterator[Finding | Dismissed]:
    """Yield at most one finding, or the high water that was dismissed."""
    for growth in _layers.kept(case, "malloc", layers.column(case.program_timeline, "malloc_free_bytes"), _grown(case),
                              "malloc_arena_bytes"):
        yield growth if isinstance(growth, Dismissed) else _judged(case, growth)


def _judged(case: Case, growth: Sustained) -> Finding | Dismissed:
    used = memory.difference(case.program_timeline, "malloc_used_bytes", "malloc_mmapped_bytes")
    peak = memory.peak_growth(used, case.window)
    high_water = _layers.peaked(case, "malloc", growth, peak, "malloc_arena_bytes")
    if high_water is not None:
        return high_water
    arenas, more = _arenas(case)
    reasons = [f"{bytes_text(growth.bytes)} more were freed by the program and kept by malloc",
               f"it still grew in the second half of the run: {bytes_text(growth.tail_bytes, signed=True)}"]
    if peak is not None:
        reasons.append(f"the peak of what is in use rose by {bytes_text(max(0.0, peak))} only")
    has_many = max(more, arenas - 1) >= MANY_ARENAS
    if has_many:
        reasons.append(_arena_words(case, arenas, more))
    pins = _pins(case) if has_many else ""
    reasons += [pins] if pins else []
    doubts = ["peaks of use between two samples are not seen"]
    if not pins:
        doubts.insert(0, "which live blocks pin the free ones is not known: most blocks of malloc have no owner in a snapshot")
    return _layers.finding(case, RULE, growth, KEPT, "glibc malloc arenas", "free malloc memory", reasons, doubts,
                           FOR_ARENAS if has_many else FOR_HOLES)


def _pins(case: Case) -> str:
    """What sits at the top of the heaps of threads; "" where no snapshot shows it."""
    tops = pools.heap_tops(case.last).tolist() if case.compared else []
    owner, part = _layers.main_owner(case, tops)
    if len(tops) < MANY_ARENAS or not owner:
        return ""
    return f"in {part:.0%} of {len(tops)} heaps of threads the highest object, which keeps all below it, is held by {owner}"


def _grown(case: Case) -> int | None:
    known = coverage.term_of(case.layers, KEPT, "malloc")
    return case.layer(KEPT) if known is None else known


def _arenas(case: Case) -> tuple[int, int]:
    """How many arenas there are, and how many more than at the start of the window; 0 where that is not known."""
    points = layers.column(case.program_timeline, "malloc_arenas")
    more = layers.change(points, case.window)
    return (round(points[-1][1]) if points else 0), round(more or 0)


def _arena_words(case: Case, arenas: int, more: int) -> str:
    threads = layers.change(layers.column(case.program_timeline, "threads"), case.window)
    beside = f", {threads:.0f} more threads" if threads and threads >= 1 else ""
    return f"malloc has {arenas} arenas, {more} more than at the start of the judged part{beside}: each keeps its own"
