"""Growth and the work that was done: how much a unit of work leaves behind, and whether the load explains the growth.

Both read the timeline. A rate per unit of work is the slope of memory over the count of units (Theil and Sen, see trend.py):
it does not change with the traffic, so two runs can be compared by it. Memory that only follows the load goes up with it and
comes down with it, so that at equal load it is equal, whenever one looks: that is asked by the slope over time of all pairs of
moments with the same load, which is Theil's and Sen's slope given a covariate (Libiseller and Grimvall 2002, Environmetrics 13,
do the like with the Mann-Kendall test). A load that never came down explains nothing: a leak whose tasks pile up has just such
a "load".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Any, NamedTuple

from leakscope.analyse import layers
from leakscope.analyse.layers import Points, Window
from leakscope.analyse.trend import NORMAL_975, Slope, theil_sen, thinned, value_at

Sample = dict[str, Any]

LEAST_UNITS = 10  # of work in the window: fewer are no count to divide by; ours
LEAST_RATE_POINTS = 3  # two make a line through anything
LEAST_LOAD_POINTS = 12  # moments at which memory and load are known; ours
COVARIATES = ("inflight_count", "tasks", "threads", "fds")  # columns that say how much is under way, the most direct first
PACES = {"work_count": "work pace", "cpu_ns": "processor load"}  # columns that count up, and what they are a second
PACE_SHARE = 0.05  # of the window: the pace is taken over this much of it; ours
EQUAL_LOAD = 0.1  # of the range of the load: two moments this near have equal load; ours
COMES_DOWN = 0.5  # of its range a load has to fall, after it rose by as much, to be one; ours
STEADY_FLOOR = 0.1  # of its range: the least load of the last third is no more above that of the first; MemLab's cut-off 0.1
LEAST_APART = 1 / 3  # of the window: moments that are compared at equal load are so far apart; ours
LEAST_PAIRS = 20  # of such moments; ours
EXPLAINS = 0.5  # of the growth a load has to explain, and of that the interval of the rest may reach; MemLab's cut-off 0.5
BLOCKS = 24  # medians of so many parts of the window stand for it: neighbouring samples say the same thing; ours

_UNITS = ("request", "step", "task", "item")


class WorkRate(NamedTuple):
    """What a unit of work leaves behind: `slope` in bytes a unit with its interval, `units` done in the window."""

    slope: Slope
    units: int
    units_per_s: float


class LoadShare(NamedTuple):
    """The part of a growth that a load explains.

    `covariate`: its column, or one of PACES. `bytes_per_unit`: memory that one more of it takes. `explained_ratio`: of the
    growth in the window, at least 0. `rest`: bytes (or what the points count) a second at equal load, with its interval.
    """

    covariate: str
    bytes_per_unit: float
    explained_ratio: float
    rest: Slope
    is_explained: bool


def rate_per_work(points: Iterable[tuple[float, float]], timeline: Sequence[Sample], window: Window) -> WorkRate | None:
    """Return the slope of any (seconds, bytes or count) points over the units of work done; None where no work was counted."""
    done = layers.column(timeline, "work_count")
    inside = window.inside(points)
    if len(done) < 2 or len(inside) < LEAST_RATE_POINTS:
        return None
    pairs = [(value_at(done, t_s), y) for t_s, y in inside]
    units, length_s = pairs[-1][0] - pairs[0][0], inside[-1][0] - inside[0][0]
    slope = theil_sen(pairs)
    if units < LEAST_UNITS or slope is None or length_s <= 0:
        return None
    return WorkRate(slope, round(units), units / length_s)


def unit_of(sources: Sequence[str]) -> str:
    """Return the word for a unit of work of process.json's `work_sources`: request, step, task, item, or `unit of work`."""
    found = {next((unit for unit in _UNITS if source.endswith(unit + "s")), "unit of work") for source in sources}
    return found.pop() if len(found) == 1 else "unit of work"


def explained_by_load(points: Sequence[tuple[float, float]], timeline: Sequence[Sample], window: Window) -> LoadShare | None:
    """Return which load explains most of the growth of (seconds, bytes) points in a window, and what it leaves.

    None where the points do not grow or never came down again, are too few, or nothing in the timeline went up and came down:
    the tasks of a leak rise for ever and explain nothing, and neither does a load whose floor rises.
    """
    inside = window.inside(points)
    growth = layers.change(inside, window)
    if growth is None or growth <= 0 or not comes_down(_by_block(inside, window, median), Window(0.0, float(BLOCKS))):
        return None
    found = [share for name, load in _loads(timeline, window) if (share := _share(name, inside, load, growth, window))]
    return max(found, key=lambda share: (share.is_explained, share.explained_ratio), default=None)


def _loads(timeline: Sequence[Sample], window: Window) -> list[tuple[str, Points]]:
    """The covariates that are loads: they rose and came down again, and their floor stayed."""
    found = [(name, layers.column(timeline, name)) for name in COVARIATES]
    found += [(name, pace(timeline, column, window)) for column, name in PACES.items()]
    inside = [(name, window.inside(load)) for name, load in found]
    return [(name, load) for name, load in inside if is_load(load, window)]


def pace(timeline: Sequence[Sample], name: str, window: Window) -> Points:
    """Return how much a column that counts up rose a second, each time over the PACE_SHARE of the window before."""
    done = layers.column(timeline, name)
    span_s = PACE_SHARE * window.length_s
    if len(done) < 2 or span_s <= 0:
        return []
    return [(t_s, (count - value_at(done, t_s - span_s)) / span_s) for t_s, count in done if t_s - span_s >= done[0][0]]


def is_load(points: Points, window: Window) -> bool:
    """True if a number comes down, and its floor does not rise in the window."""
    if not comes_down(points, window):
        return False
    floor = theil_sen(_by_block(points, window, min))
    return floor is not None and not floor.is_positive


def comes_down(points: Points, window: Window) -> bool:
    """True if a number rose and came down again by half of its range, and is at the end of the window as low as at first."""
    if len(points) < LEAST_LOAD_POINTS:
        return False
    values = [y for _, y in points]
    size = max(values) - min(values)
    if size <= 0 or _largest_return(values) < COMES_DOWN * size:
        return False
    third = window.length_s / 3
    first = [y for t, y in points if t <= window.start_s + third]
    last = [y for t, y in points if t >= window.end_s - third]
    return bool(first and last) and min(last) <= min(first) + STEADY_FLOOR * size


def _largest_return(values: Sequence[float]) -> float:
    """The largest fall that came after a rise as large."""
    best, low, high, rise = 0.0, values[0], values[0], 0.0
    for value in values:
        if value >= high:
            high, rise = value, value - low
        best = max(best, min(rise, high - value))
        if value < low:
            low = high = value
    return best


def _share(name: str, points: Points, load: Points, growth: float, window: Window) -> LoadShare | None:
    """What one load explains of the growth of points."""
    first, last = load[0][0], load[-1][0]
    known = thinned([(t_s, y) for t_s, y in points if first <= t_s <= last])
    if len(known) < LEAST_LOAD_POINTS:
        return None
    moments = [(t_s, y, value_at(load, t_s)) for t_s, y in known]
    loads = [each for _, _, each in moments]
    size = max(loads) - min(loads)
    slopes = [(y2 - y1) / (c2 - c1) for number, (_, y1, c1) in enumerate(moments) for _, y2, c2 in moments[number + 1:]
              if abs(c2 - c1) >= COMES_DOWN * size]
    rest = _at_equal_load(moments, EQUAL_LOAD * size, LEAST_APART * window.length_s)
    moved = layers.change(list(zip((t_s for t_s, _, _ in moments), loads)), window)
    if size <= 0 or not slopes or rest is None or moved is None:
        return None
    unit = median(slopes)
    explained = min(1.0, max(0.0, unit * moved / growth))
    has_none_left = rest.low is not None and rest.low <= 0
    is_known_well = rest.high is not None and rest.high * window.length_s <= EXPLAINS * growth
    return LoadShare(name, unit, explained, rest, explained >= EXPLAINS and has_none_left and is_known_well)


def _at_equal_load(moments: Sequence[tuple[float, float, float]], tolerance: float, apart_s: float) -> Slope | None:
    """The slope over time of what was measured at equal load; None where that did not come back."""
    slopes = sorted((y2 - y1) / (t2 - t1) for number, (t1, y1, c1) in enumerate(moments) for t2, y2, c2 in moments[number + 1:]
                    if t2 - t1 >= apart_s and abs(c2 - c1) <= tolerance)
    if len(slopes) < LEAST_PAIRS:
        return None
    count = min(BLOCKS, len(moments))
    # Kendall's statistic over all pairs, as in trend.theil_sen; here as a part of those that are left
    half = NORMAL_975 * math.sqrt(count * (count - 1) * (2 * count + 5) / 18) / (count * (count - 1))
    low, high = (round((len(slopes) - 1) * part) for part in (0.5 - half, 0.5 + half))
    return Slope(median(slopes), slopes[max(0, low)], slopes[min(len(slopes) - 1, high)])


def _by_block(points: Points, window: Window, choose: Callable[[list[float]], float]) -> Points:
    """One point for each part of the window: the middle of the part, and what `choose` makes of its values."""
    blocks: dict[int, list[float]] = {}
    for t_s, y in points:
        blocks.setdefault(min(BLOCKS - 1, int((t_s - window.start_s) / window.length_s * BLOCKS)), []).append(y)
    return [(float(number), choose(values)) for number, values in sorted(blocks.items())]
