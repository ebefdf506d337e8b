"""Where the memory of a device went: the terms of its account, each over time, with its growth (knowledge page "gpu", 5.1).

    used      = outside + reserved                       outside: context, modules, libraries; what torch's allocator has not
    reserved  = active + inactive_split + releasable
    active    = allocated + pending                      pending: freed, but another stream has to pass first
    allocated = owned + workspaces + unowned             the parts of a join (analyse/ownership.py), known at snapshots

`terms(...)` gives a Term for each of TERMS; their growths add up to that of the device. A term that was not measured has
growth_bytes None and no points. `Term.growth` is None unless the growth matters, is no chance and goes on.
"""

from __future__ import annotations

from typing import NamedTuple

from leakscope.analyse.layers import Points
from leakscope.analyse.trend import Slope

TERMS = ("outside", "allocated_owned", "workspaces", "allocated_unowned", "pending", "inactive_split", "releasable")
WHOLES = ("used", "reserved", "active", "allocated")


class TermGrowth(NamedTuple):
    """Growth that goes on, shaped as memory.Sustained: `bytes` in the window, `tail_bytes` in its second half.

    `is_steady`: the slope of the second half is above zero with 95 % confidence. `slope` in bytes a second; `per_work` in
    bytes a unit of work, None where no work was counted: prefer it where it is there.
    """

    bytes: int
    tail_bytes: int
    is_steady: bool
    slope: Slope
    per_work: Slope | None = None


class Term(NamedTuple):
    """One term of a device over time: `growth_bytes` in the judged window (None: not measured), `points` (seconds, bytes).

    `growth`: as above; None where it did not grow enough, may be chance, or has ended: then `has_ended` says that it grew
    enough and levelled off (warm-up, high water). `is_interpolated`: known at snapshots alone, the points between are lines.
    """

    name: str
    growth_bytes: int | None = None
    points: Points = []
    growth: TermGrowth | None = None
    has_ended: bool = False
    is_interpolated: bool = False
