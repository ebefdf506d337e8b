"""Series that rise in steps: a module that is loaded, a communicator that is made."""

from __future__ import annotations

from typing import NamedTuple

from leakscope.analyse.layers import Points


class Step(NamedTuple):
    """One rise: when it had come, and by how much."""

    t_s: float
    rise: float


def steps(points: Points, least: float) -> list[Step]:
    """Return the rises of at least `least` that stay: no later value lies half of the step below the new level.

    A rise that two samples in a row share is one step (the samples fell into it).
    """
    found: list[Step] = []
    lowest_after = float("inf")
    floors = []  # lowest value from each point on
    for _, value in reversed(points):
        lowest_after = min(lowest_after, value)
        floors.append(lowest_after)
    floors.reverse()
    level, place = (floors[0], 0) if floors else (0.0, 0)
    while place < len(points):
        rise = floors[place] - level
        if rise >= least:
            if place + 1 < len(points) and floors[place + 1] - floors[place] >= rise / 2 > 0:
                place += 1  # the middle of one step
                rise = floors[place] - level
            found.append(Step(points[place][0], rise))
        level = floors[place]
        place += 1
    return found
