"""Growth of memory that has no objects: is it large enough, is it still going on, is it steady."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from leakscope.analyse import layers
from leakscope.analyse.layers import Points, Window
from leakscope.analyse.trend import Slope, level, theil_sen

Sample = dict[str, Any]

LEAST_BYTES = 4 << 20  # less is noise of allocators and of our own snapshots; ours, tuned on healthy programs
LEAST_SHARE = 0.4  # of the growth of the process
HIGH_WATER_SHARE = 0.8  # of the growth of what is held: if the peaks of use rose by as much, they explain it; ours
HIGH_WATER_BYTES = 8 << 20  # less that stays with an allocator is not worth a word; ours
LEAST_TAIL_SHARE = 0.2  # of this growth has to fall into the second half of the window: 0.5 is a straight line; ours


class Sustained(NamedTuple):
    """Growth that goes on; `is_steady`: the slope of the second half is above zero with 95 % confidence."""

    bytes: int
    tail_bytes: int
    is_steady: bool


def change_of(timeline: Sequence[Sample], window: Window, name: str) -> float | None:
    """The change of one column over a window; None where it was not measured."""
    return layers.change(layers.column(timeline, name), window)


def ratio(part: int, whole: int | None) -> float | None:
    """A share between 0 and 1; None where the whole did not grow."""
    return min(1.0, max(0.0, part / whole)) if whole and whole > 0 else None


def difference(timeline: Sequence[Sample], name: str, less: str) -> Points:
    """One column less another, where both were measured."""
    return [(sample["t_ns"] / 1e9, float(sample[name] - sample[less])) for sample in timeline
            if sample.get(name) is not None and sample.get(less) is not None]


def sums(timeline: Sequence[Sample], *names: str) -> Points:
    """The sum of some columns where the first was measured; of the others, which may be read at other times, the last value."""
    known: dict[str, float] = {}
    points = []
    for sample in timeline:
        known.update((name, sample[name]) for name in names if sample.get(name) is not None)
        if sample.get(names[0]) is not None and len(known) == len(names):
            points.append((sample["t_ns"] / 1e9, float(sum(known.values()))))
    return points


def sustained(timeline: Sequence[Sample], window: Window, name: str, growth: int | None, total: int | None) -> Sustained | None:
    """Return the growth of a layer if it matters and goes on; `name` is the column whose course stands for it."""
    return sustained_points(layers.column(timeline, name), window, growth, total)


def sustained_points(points: Points, window: Window, growth: int | None, total: int | None) -> Sustained | None:
    """The same with the course itself."""
    if growth is None or growth < max(LEAST_BYTES, LEAST_SHARE * (total or 0)):
        return None
    late = going_on(points, window, growth)
    return None if late is None else Sustained(growth, int(late[0]), late[1].is_positive)


def going_on(points: Points, window: Window, growth: float) -> tuple[float, Slope] | None:
    """Return what of a growth fell into the second half of a window, and the slope there; None where it does not go on."""
    late = [point for point in points if point[0] >= window.tail.start_s]
    tail_growth, slope = layers.change(late, window.tail), theil_sen(late)
    if tail_growth is None or slope is None or tail_growth < LEAST_TAIL_SHARE * growth or slope.value <= 0:
        return None
    return tail_growth, slope


class HighWater(NamedTuple):
    """Free memory that stays with an allocator: `bytes` at the end, and since when no more has come."""

    bytes: int
    since_s: float


def peak_growth(used: Points, window: Window) -> float | None:
    """How far the peak of what was in use within the window lies above its level at the start; None where not measured."""
    inside = window.inside(used)
    if len(inside) < 2:
        return None
    first = level(inside, window.start_s, max(window.start_s + layers.EDGE_SHARE * window.length_s, inside[0][0]))
    return None if first is None else max(value for _, value in inside) - first


def high_water(free: Points, window: Window) -> HighWater | None:
    """Return what an allocator keeps free at the end, if it came once and not bit by bit; None where it is little.

    What came in the judged window has to have come in its first half; or it was there before.
    """
    if not free:
        return None
    end = level(free, window.end_s - layers.EDGE_SHARE * window.length_s, window.end_s) or free[-1][1]
    risen = end - min(value for _, value in free)
    if risen < HIGH_WATER_BYTES:
        return None
    tail = layers.change(free, window.tail)
    if tail is not None and tail >= LEAST_TAIL_SHARE * risen:
        return None
    return HighWater(int(end), next(t_s for t_s, value in free if value >= end - 0.1 * risen))
