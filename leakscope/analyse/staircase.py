"""Series that rise in steps: a module that is loaded, a communicator that is made."""

from __future__ import annotations

from typing import NamedTuple

from leakscope.analyse.layers import Points

QUIET_PART = 0.25  # of a step: what comes before and after it is less; ours, tuned on simulated staircases with noise


class Step(NamedTuple):
    """One rise: when it had come, and by how much."""

    t_s: float
    rise: float


def steps(points: Points, least: float) -> list[Step]:
    """Return the rises of at least `least` that stay, where it is quiet before and after: a slope has no steps.

    A rise counts from the lowest value to come, so that a peak is none; two samples in a row may share one.
    """
    floors = [value for _, value in points]
    for place in range(len(floors) - 2, -1, -1):
        floors[place] = min(floors[place], floors[place + 1])
    rises = [0.0, *(later - earlier for earlier, later in zip(floors, floors[1:])), 0.0]
    found, place = [], 1
    while place < len(rises) - 1:
        width = 2 if rises[place + 1] > QUIET_PART * rises[place] else 1
        rise = sum(rises[place:place + width])
        around = max(rises[place - 1], *rises[place + width:place + width + 1], 0.0)
        if rise >= least and around <= QUIET_PART * rise:
            found.append(Step(points[place + width - 1][0], rise))
            place += width
        else:
            place += 1
    return found
