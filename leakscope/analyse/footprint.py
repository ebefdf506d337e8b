"""What our own snapshots do to the memory that we measure, and how it is kept out of the account.

A walk in place needs some 250 bytes for each object while it runs. Allocators keep part of that afterwards, and the program
then grows into it without the process getting larger. So where walks are large beside the growth, resident memory says
little, and the program's memory is put together from meters that a finished walk leaves alone: what malloc has handed out,
and the blocks of pymalloc, at the size that blocks have in the snapshots. What allocators keep free is then not told apart
from what our walks left there.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple

from leakscope.analyse.layers import Points, Window, column, private_memory, shared_memory, time_without, with_shares
from leakscope.analyse.trend import value_at

Sample = dict[str, Any]

WALK_BYTES = 250  # of one object in the Python walk, measured on CPython 3.11 (agent/recorder.py budgets with the same)
NEGLIGIBLE_BYTES = 4 << 20
NEGLIGIBLE_SHARE = 0.25  # of the growth; both ours
LEAST_POINTS = 6
LEAST_BLOCKS = 5000  # additional blocks whose mean size means something; ours
# What memory that a walk took and gave back can leave raised.
_MOVED_BY_WALKS = ("rss_bytes", "pss_bytes", "uss_bytes", "anon_bytes", "malloc_free_bytes", "malloc_arena_bytes",
                   "arena_bytes")


class ProgramMemory(NamedTuple):
    """Private memory of the program over time; `is_estimated`: put together from allocator meters, not from the kernel's."""

    points: Points
    is_estimated: bool


def program_memory(timeline: Sequence[Sample], disturbance_bytes: int, block_bytes: float | None) -> ProgramMemory:
    """Return the memory of the program without our walks.

    Args:
        timeline: without their steps already (`without_own_steps`).
        disturbance_bytes: what walks in place may have left behind.
        block_bytes: the mean size of a pymalloc block in the snapshots; None if not known.
    """
    direct = private_memory(timeline)
    grown = direct[-1][1] - direct[0][1] if direct else 0.0
    if disturbance_bytes <= max(NEGLIGIBLE_BYTES, NEGLIGIBLE_SHARE * grown) or block_bytes is None:
        return ProgramMemory(direct, False)
    points = [(sample["t_ns"] / 1e9, float(sample["malloc_used_bytes"] + sample["py_blocks"] * block_bytes + shared))
              for sample, shared in zip(timeline, shared_memory(timeline))
              if "malloc_used_bytes" in sample and "py_blocks" in sample]
    return ProgramMemory(points, True) if len(points) >= LEAST_POINTS else ProgramMemory(direct, False)


def block_bytes(known: Sequence[tuple[int, int]]) -> float | None:
    """Return the bytes of one more block of pymalloc, from (blocks, bytes in them) of the snapshots in time order.

    What is added need not be like what was there: where enough blocks were added, their own mean counts, else that of all. None
    for no snapshot.
    """
    if not known:
        return None
    added = known[-1][0] - known[0][0]
    if added >= LEAST_BLOCKS:
        return min(512.0, max(16.0, (known[-1][1] - known[0][1]) / added))  # obmalloc's smallest and largest block
    return median(size / blocks for blocks, size in known)


def without_tracing(timeline: Sequence[Sample]) -> list[Sample]:
    """Return the timeline without the tables of tracemalloc, which are there only while a window is open."""
    cleaned = [dict(sample) for sample in timeline]
    for sample in cleaned:
        for name in ("rss_bytes", "anon_bytes", "malloc_used_bytes"):
            if name in sample:
                sample[name] -= sample.get("tracemalloc_overhead_bytes", 0)
    return cleaned


def without_own_steps(timeline: Sequence[Sample], pauses: Sequence[Window]) -> list[Sample]:
    """Return the timeline without what our own walks left behind in the process.

    A walk in place needs memory, and allocators keep part of it afterwards: a step that no line of the program made. So in
    every column that a walk can move only the growth between the pauses counts, and across them the program's own pace goes on.
    """
    cleaned = [with_shares(sample) for sample in timeline]
    for name in _MOVED_BY_WALKS:
        points = column(timeline, name)
        steps = _own_steps(points, pauses)
        for sample in cleaned:
            if sample.get(name) is not None:
                sample[name] -= sum(step for end_s, step in steps if sample["t_ns"] / 1e9 >= end_s)
    return cleaned


def _own_steps(points: Points, pauses: Sequence[Window]) -> list[tuple[float, float]]:
    """(end of the pause, change across it beyond the pace of the program) for each pause."""
    between = [(later[1] - earlier[1]) / (later[0] - earlier[0]) for earlier, later in zip(points, points[1:])
               if later[0] > earlier[0] and not any(pause.start_s < later[0] and pause.end_s > earlier[0] for pause in pauses)]
    pace = max(0.0, sum(between) / len(between)) if between else 0.0
    steps = []
    for pause in pauses:
        before = [point for point in points if point[0] <= pause.start_s + 1e-3]
        after = [point for point in points if point[0] >= pause.end_s]
        if before and after:
            steps.append((after[0][0], after[0][1] - before[-1][1] - pace * (after[0][0] - before[-1][0])))
    return steps


def late_share(points: Points, window: Window, late: float, pauses: Sequence[Window] = ()) -> tuple[float, float] | None:
    """Return the growth of a series over a window, and which share of it fell into its last part `late` (0 to 1).

    Time that the program spent in our `pauses` does not count. None where there are too few points in the window, or the series
    did not grow.
    """
    points = [(time_without(t_s, pauses), value) for t_s, value in points if window.start_s <= t_s <= window.end_s]
    window = Window(time_without(window.start_s, pauses), time_without(window.end_s, pauses))
    if len(points) < LEAST_POINTS:
        return None
    # the middle of three: one sample alone may be a request under way
    smooth = [(mid[0], sorted((before[1], mid[1], after[1]))[1]) for before, mid, after in zip(points, points[1:], points[2:])]
    whole = smooth[-1][1] - smooth[0][1]
    border = value_at(smooth, window.end_s - late * window.length_s)  # no sample is taken during a walk
    return (whole, (smooth[-1][1] - border) / whole) if whole > 0 else None


def growth_around(points: Points, start_s: float, middle_s: float) -> tuple[float, float] | None:
    """Return how much a series grew from `start_s` to `middle_s`, and from there to its end; None with few points on a side."""
    points = [point for point in points if point[0] >= start_s]
    before = [value for t_s, value in points if t_s <= middle_s]
    after = [value for t_s, value in points if t_s > middle_s]
    if len(before) < 3 or len(after) < 3:
        return None
    middle = before[-1]
    return middle - before[0], sorted(after[-3:])[1] - middle
