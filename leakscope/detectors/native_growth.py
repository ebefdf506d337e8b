"""Native memory in use grows, and no Python object accounts for it.

malloc reports how much it has handed out and not got back (mallinfo2). When that rises by more than the Python objects of
the snapshots explain, an extension module, a C library or a missing Py_DECREF keeps memory that Python cannot see.

**Found by** the trend of malloc's memory in use, less what the objects of the snapshots take, over the judged window and
still in its second half.

**Remedy.** Look for handles that are opened and never closed (sessions, images, cursors, parsers), for buffers that C code
returned and that have to be freed, and for the library's known leaks; then run with the native sampler to get the function.
"""

from __future__ import annotations

from collections.abc import Iterator

from leakscope.analyse import memory
from leakscope.case import Case
from leakscope.model import Confidence, Dismissed, Finding, Rule
from leakscope.units import bytes_text

RULE = Rule("LS301", "native-growth", "Native memory in use grows outside Python objects")
REMEDY = "Free or close what native code hands out (handles, buffers, sessions); look for a missing Py_DECREF or free."


def detect(case: Case) -> Iterator[Finding | Dismissed]:
    """Yield at most one finding: nothing here says which of several native owners it is."""
    native, total = case.layer("native"), case.layer("total")
    growth = memory.sustained(case.program_timeline, case.window, "malloc_used_bytes", native, total)
    if growth is None:
        return
    reasons = [f"malloc has {bytes_text(growth.bytes)} more in use that no Python object accounts for",
               f"it still grew in the second half of the run: {bytes_text(growth.tail_bytes, signed=True)}"]
    share = memory.ratio(growth.bytes, case.layer("total"))
    if share is not None:
        reasons.append(f"it accounts for {share:.0%} of the growth of the process")
    yield Finding(RULE, Confidence.MEDIUM if growth.is_steady else Confidence.LOW, "native", "native memory (malloc)", None,
                  "malloc block", pid=int(case.info.get("pid", 0)), growth_bytes={"host": growth.bytes},
                  share_of_growth_ratio=share, reasons=tuple(reasons),
                  doubts=("the function that allocates it is not known: native allocations were not sampled",),
                  remedy=REMEDY, fingerprint="")
