"""Growth of memory that has no objects: is it large enough, is it still going on, is it steady."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from leakscope.analyse import layers
from leakscope.analyse.layers import Window
from leakscope.analyse.trend import theil_sen

Sample = dict[str, Any]

LEAST_BYTES = 4 << 20  # less is noise of allocators and of our own snapshots; ours, tuned on healthy programs
LEAST_SHARE = 0.4  # of the growth of the process
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


def sustained(timeline: Sequence[Sample], window: Window, name: str, growth: int | None, total: int | None) -> Sustained | None:
    """Return the growth of a layer if it matters and goes on; `name` is the column whose course stands for it."""
    if growth is None or growth < max(LEAST_BYTES, LEAST_SHARE * (total or 0)):
        return None
    tail = Window((window.start_s + window.end_s) / 2, window.end_s)
    points = [point for point in layers.column(timeline, name) if point[0] >= tail.start_s]
    tail_growth, slope = layers.change(points, tail), theil_sen(points)
    if tail_growth is None or slope is None or tail_growth < LEAST_TAIL_SHARE * growth or slope.value <= 0:
        return None
    return Sustained(growth, int(tail_growth), slope.is_positive)
