"""Straight lines through noisy series: slopes with intervals, plateaus, and growth that never paused.

The slope is that of Theil (1950) and Sen (1968): the median of the slopes of all pairs of points; its interval comes from
the distribution of Kendall's statistic, as in Hollander & Wolfe, Nonparametric Statistical Methods, section 9.3. It
shrugs off the spikes that requests, collections and our own snapshots leave in a memory series.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from leakscope.model import Rate

MOST_POINTS = 120  # pairs grow with the square; 120 evenly picked points give 7140 slopes, ours, tuned for speed
STEP_PART = 0.1  # of the time: what rises within it is a step; ours
LEAST_POINTS_OF_A_STEP = 12  # with fewer any growth is a step; ours
NORMAL_975 = 1.96  # two-sided 95 %


class Slope(NamedTuple):
    """Units of y a unit of x; `low` and `high` bound it with 95 % confidence, None where there are under five points."""

    value: float
    low: float | None
    high: float | None

    @property
    def is_positive(self) -> bool:
        """True if the whole interval is above zero."""
        return self.value > 0 and (self.low is None or self.low > 0)

    @property
    def rate(self) -> Rate:
        """The same for a report."""
        return Rate(self.value, self.low, self.high)

    def times(self, factor: float) -> Slope:
        """Return the slope over a unit of x that is so many of the old ones."""
        low, high = (None if bound is None else bound * factor for bound in (self.low, self.high))
        return Slope(self.value * factor, low, high)


def thinned(points: Sequence[tuple[float, float]], most: int = MOST_POINTS) -> list[tuple[float, float]]:
    """Return at most `most` of the points, evenly picked, first and last among them."""
    if len(points) <= most:
        return list(points)
    step = (len(points) - 1) / (most - 1)
    return [points[round(number * step)] for number in range(most)]


def theil_sen(points: Sequence[tuple[float, float]]) -> Slope | None:
    """Return the slope through (x, y) points; None for fewer than two different x."""
    kept = thinned(points)
    slopes = sorted((y2 - y1) / (x2 - x1) for number, (x1, y1) in enumerate(kept) for x2, y2 in kept[number + 1:]
                    if x2 != x1)
    if not slopes:
        return None
    count = len(kept)
    if count < 5:
        return Slope(median(slopes), None, None)
    spread = NORMAL_975 * math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    low = max(0, round((len(slopes) - spread) / 2))
    high = min(len(slopes) - 1, round((len(slopes) + spread) / 2))
    return Slope(median(slopes), slopes[low], slopes[high])


def chance_of_trend(points: Sequence[tuple[float, float]]) -> float:
    """Return how probable it is that points without a trend rise as these do; 1 where they do not rise.

    Mann's and Kendall's test (Mann 1945, Econometrica 13; Kendall 1975), two-sided, with the correction for ties and for
    continuity, over at most MOST_POINTS of the points.
    """
    values = [y for _, y in thinned(points)]
    count = len(values)
    score = sum((later > sooner) - (later < sooner) for number, sooner in enumerate(values) for later in values[number + 1:])
    ties = Counter(values).values()
    variance = (count * (count - 1) * (2 * count + 5) - sum(tie * (tie - 1) * (2 * tie + 5) for tie in ties)) / 18
    if score <= 0 or variance <= 0:
        return 1.0
    return math.erfc((score - 1) / math.sqrt(2 * variance))


def grew_in_every_interval(values: Sequence[float], tolerance: float = 0.0) -> bool:
    """True if each value is above the one before it by more than `tolerance` (a value, not a ratio)."""
    return len(values) >= 2 and all(later - earlier > tolerance for earlier, later in zip(values, values[1:]))


def level(points: Sequence[tuple[float, float]], start: float, end: float) -> float | None:
    """Return the median y of the points with start <= x <= end; None where there are none."""
    values = [y for x, y in points if start <= x <= end]
    return median(values) if values else None


def value_at(points: Sequence[tuple[float, float]], x: float) -> float:
    """Return the y at an x, on the line between the two points around it; before the first and after the last: theirs."""
    place = bisect_left(points, (x,))
    if place == 0 or place == len(points):
        return points[min(place, len(points) - 1)][1]
    (x1, y1), (x2, y2) = points[place - 1], points[place]
    return y2 if x2 <= x1 else y1 + (y2 - y1) * (x - x1) / (x2 - x1)


def slowing_ratio(points: Sequence[tuple[float, float]]) -> float | None:
    """Return the slope of the last third over the slope of the first third: about 1 for a leak, near 0 for a plateau.

    None where one of the thirds has fewer than two points or the first does not rise.
    """
    if len(points) < 3:
        return None
    first_x, last_x = points[0][0], points[-1][0]
    third = (last_x - first_x) / 3
    # with a handful of points a third may hold one alone: then its neighbour joins
    first = [point for point in points if point[0] <= first_x + third]
    last = [point for point in points if point[0] >= last_x - third]
    first = first if len(first) > 1 else list(points[:2])
    last = last if len(last) > 1 else list(points[-2:])
    early, late = theil_sen(first), theil_sen(last)
    if early is None or late is None or early.value <= 0:
        return None
    return late.value / early.value


class Step(NamedTuple):
    """The largest rise of a series within a short time: when it began, by how much, and its part of the whole growth."""

    x: float
    rise: float
    share_ratio: float


def largest_step(points: Sequence[tuple[float, float]], part: float = STEP_PART) -> Step | None:
    """Return the largest rise within `part` of the range of x; None where the series did not grow from end to end."""
    kept = thinned(points)
    if len(kept) < LEAST_POINTS_OF_A_STEP or kept[-1][1] <= kept[0][1]:
        return None
    width = part * (kept[-1][0] - kept[0][0])
    best, first = (0.0, kept[0][0]), 0
    for number, (x, y) in enumerate(kept):
        while first < number - 1 and x - kept[first][0] > width:
            first += 1
        best = max(best, (y - kept[first][1], kept[first][0]))
    return Step(best[1], best[0], min(1.0, best[0] / (kept[-1][1] - kept[0][1])))
