"""Where the memory of a device went: the terms of its account, each over time, with its growth (knowledge page "gpu", 5.1).

    used      = outside + reserved                       outside: context, modules, libraries; what torch's allocator has not
    reserved  = active + inactive_split + releasable
    active    = allocated + pending                      pending: freed, but another stream has to pass first
    allocated = owned + workspaces + unowned             the parts of a join (analyse/ownership.py), known at snapshots

`terms(...)` gives a Term for each of TERMS; their growths add up to that of the device. A term that was not measured has
growth_bytes None and no points. `Term.growth` is None unless the growth matters, is no chance and goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from leakscope.analyse import layers, work
from leakscope.analyse.coverage import CLAIM_BYTES
from leakscope.analyse.layers import Points, Window
from leakscope.analyse.ownership import Owned
from leakscope.analyse.trend import Slope, chance_of_trend, largest_step, level, theil_sen, value_at

Sample = dict[str, Any]

TERMS = ("outside", "allocated_owned", "workspaces", "allocated_unowned", "pending", "inactive_split", "releasable")
WHOLES = ("used", "reserved", "active", "allocated")
# Timeline columns of the wholes; "used" is what NVML says this process uses of the device (analyse/device_use.py).
COLUMNS = {"used": "process_bytes", "reserved": "reserved_bytes", "active": "active_bytes", "allocated": "allocated_bytes"}
PARTS = ("allocated_owned", "workspaces", "allocated_unowned")  # of what is allocated: known at snapshots

LEAST_BYTES = 64 << 20  # growth of a term that matters, where the memory of the device is not known; knowledge page, 5.1
LEAST_SHARE = 0.01  # ... else so much of the device: 64 MiB is that of a device of 6.4 GiB, smaller ones are judged by less
CHANCE = 0.01  # that a series without a trend rises so (Mann and Kendall); knowledge page, 5.1
PLATEAU_SHARE = 0.5  # of the overall pace: a last third below it has levelled off; knowledge page, 5.1
START_UP_SHARE = 0.5  # of a growth in one step, in the first half of the window: that is start-up, a model is loaded; ours
STALLS = 4  # of so many intervals between snapshots one may bring no growth, as in analyse/growth.py; ours


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


class Judged(NamedTuple):
    """Whether a series grows: its growth in bytes (None: not measured), that which goes on, whether it has ended."""

    growth_bytes: int | None = None
    growth: TermGrowth | None = None
    has_ended: bool = False


def least_growth(total_bytes: int | None) -> int:
    """The growth in bytes that matters on a device with so much memory."""
    return LEAST_BYTES if total_bytes is None else max(CLAIM_BYTES, int(LEAST_SHARE * total_bytes))


def judged(points: Points, window: Window, total_bytes: int | None, timeline: Sequence[Sample] = ()) -> Judged:
    """Put a series to the growth test of the knowledge page "gpu", 5.1: enough, no chance, no plateau.

    Args:
        window: after the start-up (`after_start_up`).
        total_bytes: the memory of the device, None: not known.
        timeline: for the growth per unit of work.
    """
    grown = layers.change(points, window)
    if grown is None:
        return Judged()
    inside = window.inside(points)
    slope = theil_sen(inside)
    if grown < least_growth(total_bytes) or slope is None:
        return Judged(int(grown))
    if slope.value <= 0 or chance_of_trend(inside) >= CHANCE:
        return Judged(int(grown), None, slope.value <= 0)  # one step that is kept has no slope
    if not _goes_on(points, window, grown, slope):
        return Judged(int(grown), None, True)
    late = theil_sen(window.tail.inside(points))
    done = work.rate_per_work(points, timeline, window)
    return Judged(int(grown), TermGrowth(int(grown), int(layers.change(points, window.tail) or 0),
                                         late is not None and late.is_positive, slope, done.slope if done else None))


def _goes_on(points: Points, window: Window, grown: float, slope: Slope) -> bool:
    """True if the last third grows by half of the overall pace: by its slope, or where it rises in steps by its level."""
    third = Window(window.end_s - window.length_s / 3, window.end_s)
    late, edge = theil_sen(third.inside(points)), layers.EDGE_SHARE * window.length_s
    if late is not None and late.value >= PLATEAU_SHARE * slope.value:
        return True
    before, last = level(points, third.start_s - edge, third.start_s), level(points, third.end_s - edge, third.end_s)
    return before is not None and last is not None and last - before >= PLATEAU_SHARE * grown / 3


def after_start_up(points: Points, window: Window, total_bytes: int | None) -> Window:
    """Return the window without a start-up that is still in it: one step that is most of the growth, with more to come after.

    Where nothing goes on after the step, it is the growth, and the window stays: then it has ended.
    """
    step = largest_step(window.inside(points))
    if step is None or step.share_ratio < START_UP_SHARE:
        return window
    later = Window(step.x + layers.EDGE_SHARE * window.length_s, window.end_s)
    if later.start_s > window.tail.start_s or judged(points, later, total_bytes).growth is None:
        return window
    return later


def wholes(timeline: Sequence[Sample], prefix: str) -> dict[str, Points]:
    """Return the course of each of WHOLES; empty where it was not measured. `prefix`: of the columns, such as `cuda0_`."""
    return {name: layers.column(timeline, prefix + column) for name, column in COLUMNS.items()}


def courses(timeline: Sequence[Sample], prefix: str, seen: Sequence[tuple[float, Owned]]) -> dict[str, Points]:
    """Return the course of each of TERMS. At every sample at which all of them are known they add up to what is used.

    Args:
        seen: (seconds, what is allocated on the device) at the snapshots, oldest first: blocks without an owner and workspaces
            are taken from there, on straight lines between them and on along their slope; all else that is allocated is owned.
    """
    found: dict[str, Points] = {name: [] for name in TERMS}
    lines = {name: values for name in PARTS[1:] if (values := _line(seen, name))}
    for sample in timeline:
        t_s, part = sample["t_ns"] / 1e9, _of_sample(sample, prefix)
        for name in ("outside", "pending", "inactive_split", "releasable"):
            if part.get(name) is not None:
                found[name].append((t_s, part[name]))
        if "allocated" in part and len(seen) > 1:
            left = part["allocated"]
            for name, line in lines.items():
                value = min(left, max(0.0, _on(line, t_s)))
                found[name].append((t_s, value))
                left -= value
            found["allocated_owned"].append((t_s, left))
    return found


def _of_sample(sample: Sample, prefix: str) -> dict[str, float]:
    """The terms of one sample, as far as their parts were measured, and what is allocated."""
    known = {name: float(value) for name, column in COLUMNS.items() if (value := sample.get(prefix + column)) is not None}
    split = sample.get(prefix + "inactive_split_bytes")
    found = {"allocated": known["allocated"]} if "allocated" in known else {}
    if "used" in known and "reserved" in known:
        found["outside"] = known["used"] - known["reserved"]
    if "active" in known and "allocated" in known:
        found["pending"] = known["active"] - known["allocated"]
    if split is not None:
        found["inactive_split"] = float(split)
        if "reserved" in known and "active" in known:
            found["releasable"] = known["reserved"] - known["active"] - float(split)
    return found


def _line(seen: Sequence[tuple[float, Owned]], name: str) -> Points:
    """The bytes of a part at the snapshots; empty where it was not told apart in all of them."""
    are_known = all(owned.workspace_bytes is not None for _, owned in seen)
    if len(seen) < 2 or name == "workspaces" and not are_known:
        return []
    if name == "workspaces":
        return [(t_s, float(owned.workspace_bytes or 0)) for t_s, owned in seen]
    # where one snapshot did not tell workspaces apart, they count as unowned in all
    return [(t_s, float(owned.without_owner_bytes + (0 if are_known else owned.workspace_bytes or 0))) for t_s, owned in seen]


def _on(line: Points, t_s: float) -> float:
    """The value of a line at a moment; outside of it along its slope."""
    slope = theil_sen(line)
    if slope is None or line[0][0] <= t_s <= line[-1][0]:
        return value_at(line, t_s)
    edge = line[0] if t_s < line[0][0] else line[-1]
    return edge[1] + slope.value * (t_s - edge[0])


def rises_at_snapshots(seen: Sequence[tuple[float, Owned]], name: str) -> bool:
    """True if a part of what is allocated never fell from one snapshot to the next, and rose in nearly all of the intervals."""
    values = [value for _, value in _line(seen, name)]
    rises = [later - sooner for sooner, later in zip(values, values[1:])]
    stalls = sum(rise <= 0 for rise in rises)
    return bool(rises) and min(rises) >= 0 and values[-1] > values[0] and stalls <= len(rises) // STALLS
