"""Tasks, futures, coroutines or suspended generators that pile up: finished ones that a container still keeps, with their
results and exceptions, or ones that wait for something that never happens, with all their local variables.

**Found by** a growing pile of such objects; the share that has ended is said.

**Remedy.** For finished ones: `task.add_done_callback(container.discard)` or a `TaskGroup`. For waiting ones: a timeout
(`asyncio.timeout`), cancel the loser of a race, close generators (`aclose`) when their consumer goes.
"""

from __future__ import annotations

from collections.abc import Iterator

from leakscope.case import Case
from leakscope.detectors._piles import detect_shape
from leakscope.model import Dismissed, Finding, Rule

RULE = Rule("LS105", "piled-up-tasks", "Tasks, futures or suspended generators pile up")
REMEDY = ("Discard finished tasks (add_done_callback(container.discard)); give waiting ones a timeout or cancel them; "
          "close generators.")


def detect(case: Case) -> Iterator[Finding | Dismissed]:
    """Yield the piles of this shape."""
    yield from detect_shape(case, "task", RULE, REMEDY)
