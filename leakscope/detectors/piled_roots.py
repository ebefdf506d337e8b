"""Threads, their frames and thread-locals, pending tasks or registered callbacks whose number rises: each keeps its local
variables alive for as long as it exists.

**Found by** the number of such roots of the same name rising in every interval.

**Remedy.** End threads (a sentinel in their queue, a pool of fixed size); give tasks a timeout; register callbacks once.
"""

from __future__ import annotations

from collections.abc import Iterator

from leakscope.case import Case
from leakscope.detectors._piles import detect_shape
from leakscope.model import Dismissed, Finding, Rule

RULE = Rule("LS108", "piled-up-threads-or-contexts", "Threads, tasks or callbacks of the interpreter pile up")
REMEDY = "End them: a pool of fixed size, a sentinel for each worker, a timeout for each task."


def detect(case: Case) -> Iterator[Finding | Dismissed]:
    """Yield the piles of this shape."""
    yield from detect_shape(case, "roots", RULE, REMEDY)
