"""Memory that was freed stays with the allocator, and that part grows: fragmentation, not a leak of objects.

glibc's malloc keeps one arena for each of many threads and gives memory back only from the top of an arena; a few small
blocks that live long pin everything below them. The program has freed the memory, the process still has it.

**Found by** the trend of malloc's free memory (mallinfo2) while the memory in use does not account for the growth.

**Remedy.** `MALLOC_ARENA_MAX=2`, or `MALLOC_TRIM_THRESHOLD_`/`malloc_trim(0)` at quiet moments, or jemalloc by LD_PRELOAD;
fewer threads that allocate large pieces; large buffers that are reused.
"""

from __future__ import annotations

from collections.abc import Iterator

from leakscope.analyse import memory
from leakscope.case import Case
from leakscope.detectors import _layers
from leakscope.model import Dismissed, Finding, Rule
from leakscope.units import bytes_text

RULE = Rule("LS302", "allocator-retention", "Freed memory stays with the allocator, and grows")
REMEDY = "Set MALLOC_ARENA_MAX=2, call malloc_trim(0) at quiet moments, or preload jemalloc; reuse large buffers."


def detect(case: Case) -> Iterator[Finding | Dismissed]:
    """Yield at most one finding."""
    growth = memory.sustained(case.program_timeline, case.window, "malloc_free_bytes", case.layer("allocator-retained"),
                              case.layer("total"))
    if growth is None or growth.bytes <= case.disturbance_bytes:  # our own walks may have left as much
        return
    reasons = [f"{bytes_text(growth.bytes)} more were freed by the program and kept by malloc",
               f"it still grew in the second half of the run: {bytes_text(growth.tail_bytes, signed=True)}"]
    doubts = ("what pins the arenas is not known: native allocations were not sampled",)
    yield _layers.finding(case, RULE, growth, "allocator-retained", "glibc malloc arenas", "free malloc memory", reasons,
                          doubts, REMEDY)
