"""What stays when the load pauses: which snapshots were taken in a pause, and how much of a growth outlives it.

MemLab's settle check (facebook/memlab): what is under way when one looks is no leak, and it is gone once the program has had
nothing to do for a while. Its cut-offs are used here: under 0.1 of the growth left, it was under way; over 0.5, it stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from leakscope.analyse import layers
from leakscope.heap import layout
from leakscope.units import seconds_text

Sample = dict[str, Any]

GONE, STAYS = 0.1, 0.5  # MemLab's settle check
NATURAL_PAUSE_S = 10.0  # a pause nobody asked for counts from this length; ours: keep-alive and timers are over by then
REST_S = 3.0  # a snapshot in such a pause is one of it from this long after its beginning; ours
REST_CPU_NS = 100_000_000  # of processor time after a snapshot in a pause are no load yet; ours (as agent/settling.py)
END_CPU_NS = 500_000_000  # of processor time behind the last pause are no load: a program takes itself apart; ours
LEAST_GROWTH_SHARE = 0.25  # of all its growth a pile must have before the pause, else the pause says nothing of it; ours


class Rung(NamedTuple):
    """A snapshot in a pause. `position`: among the snapshots given; `is_natural`: nobody asked for the pause."""

    position: int
    t_s: float
    quiet_s: float
    is_collected: bool
    is_natural: bool


class Settled(NamedTuple):
    """The pauses that have a snapshot, in time order."""

    rungs: tuple[Rung, ...]

    @property
    def last(self) -> Rung:
        """The newest."""
        return self.rungs[-1]


def settle_of(snapshots: Sequence[Mapping[str, Any]], timeline: Sequence[Sample]) -> Settled | None:
    """Return which of the snapshots (done.json, in time order) were taken in a pause; None if none was.

    One of kind "settle" was; another is one where the timeline shows a pause of NATURAL_PAUSE_S around it.
    """
    pauses = quiet_stretches(timeline)
    rungs = [rung for position, done in enumerate(snapshots) if (rung := _rung(position, done, pauses))]
    return Settled(tuple(rungs)) if rungs else None


def _rung(position: int, done: Mapping[str, Any], pauses: Sequence[layers.Window]) -> Rung | None:
    t_s = float(done.get("t_ns", 0)) / 1e9
    if done.get("kind") == "settle":
        settle = done.get("settle") or {}
        quiet_s = float(settle.get("quiet_s", 0.0))
        # 0: the program asked for the snapshot and was busy all the same
        return Rung(position, t_s, quiet_s, bool(settle.get("collected")), False) if quiet_s > 0 else None
    if done.get("kind") == "exit":
        return None
    pause = next((each for each in pauses if each.start_s + REST_S <= t_s <= each.end_s), None)
    if pause is None or pause.length_s < NATURAL_PAUSE_S:
        return None
    return Rung(position, t_s, t_s - pause.start_s, False, True)


def surviving_share(counts: Sequence[float], settled: Settled | None) -> float | None:
    """Return which part of a growth before the last pause is still there in it: 0 all gone, 1 all of it, at most 1.

    Args:
        counts: objects or bytes in each snapshot, of the same snapshots as given to `settle_of`.

    None where there was no pause, or too little had grown before it. An earlier pause is the level to grow from if there is
    one: there nothing was under way.
    """
    if settled is None:
        return None
    pauses = {rung.position for rung in settled.rungs}
    for rung in reversed(settled.rungs):
        share = _share_at(counts, rung.position, pauses)
        if share is not None:
            return share
    return None


def _share_at(counts: Sequence[float], position: int, pauses: set[int]) -> float | None:
    """The same for one snapshot in a pause."""
    before = [number for number in range(min(position, len(counts))) if number not in pauses]
    if position >= len(counts) or not before:
        return None
    first = next((counts[number] for number in range(before[-1]) if number in pauses), counts[0])
    grown = counts[before[-1]] - first
    if grown <= 0 or grown < LEAST_GROWTH_SHARE * (max(counts) - first):
        return None
    return min(1.0, max(0.0, (counts[position] - first) / grown))


def pauses(timeline: Sequence[Sample], snapshots: Sequence[Mapping[str, Any]]) -> list[layers.Window]:
    """Return the pauses that somebody asked for and that came, in time order: from their beginning to the next load.

    Args:
        snapshots: done.json of all, in time order.
    """
    found: list[layers.Window] = []
    for rung in _asked(snapshots):
        start = max(rung.t_s - rung.quiet_s, found[-1].end_s if found else 0.0)
        later = [row for row in timeline if row["t_ns"] / 1e9 > rung.t_s and row.get("cpu_ns") is not None]
        still = [row for row in later if _is_rest(later[0], row)]
        end = still[-1]["t_ns"] / 1e9 if still else rung.t_s
        if end > start:
            found.append(layers.Window(start, end))
    return found


def _asked(snapshots: Iterable[Mapping[str, Any]]) -> list[Rung]:
    """The snapshots in pauses that somebody asked for."""
    return [rung for position, done in enumerate(snapshots) if (rung := _rung(position, done, ())) is not None]


def _is_rest(first: Sample, row: Sample) -> bool:
    """True if there was no load between two samples. What a collection or a snapshot took does not count as one."""
    quiet_ns = layout.QUIET_CPU * (row["t_ns"] - first["t_ns"]) + REST_CPU_NS
    return bool(row["cpu_ns"] - first["cpu_ns"] <= quiet_ns and row.get("work_count") == first.get("work_count"))


class LoadClock:
    """Time in which there was load: pauses are cut out, so that growth is not called slower for a pause in it."""

    def __init__(self, rests: Sequence[layers.Window]) -> None:
        self.rests = tuple(rests)

    def at(self, t_s: float) -> float:
        """Return the seconds of load up to a time of the session."""
        return layers.time_without(t_s, self.rests)

    def window(self, window: layers.Window) -> layers.Window:
        """Return a window by this clock."""
        return layers.Window(self.at(window.start_s), self.at(window.end_s))

    def points(self, points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
        """Return points by this clock, without those in pauses."""
        return [(self.at(t_s), y) for t_s, y in points if not self.rests_at(t_s)]

    def rests_at(self, t_s: float) -> bool:
        """True if there is no load at a time of the session."""
        return any(rest.start_s < t_s < rest.end_s for rest in self.rests)

    def load_ratio(self, window: layers.Window) -> float:
        """Return the part of a window in which there was load: a rate a second of load times this is one a second."""
        inside = self.window(window)
        return inside.length_s / window.length_s if window.length_s > 0 else 1.0


def up_to_the_end_of_load(timeline: Sequence[Sample], snapshots: Sequence[Mapping[str, Any]]) -> Sequence[Sample]:
    """Return the samples up to the pause with which the load ended for good; all of them where it did not end so.

    A pause between two loads, or before the first, stays: there is growth behind it. Only a pause that somebody asked for is
    looked at (`snapshots`: done.json of all, in time order).
    """
    for rung in _asked(snapshots):
        at = next((number for number, row in enumerate(timeline) if row["t_ns"] / 1e9 > rung.t_s - rung.quiet_s), 0)
        later = next((row for row in timeline if row["t_ns"] / 1e9 > rung.t_s), None)
        if at > 1 and (later is None or _is_end_of_load(timeline[0], timeline[at], later, timeline[-1])):
            return timeline[:at]
    return timeline


def _is_end_of_load(first: Sample, start: Sample, later: Sample, last: Sample) -> bool:
    """True if hardly any work was done behind a pause."""
    if start.get("work_count") is not None and last.get("work_count") is not None:
        after = last["work_count"] - start["work_count"]
        return bool(after <= GONE * start["work_count"])
    if any(row.get("cpu_ns") is None for row in (first, start, later, last)):
        return True
    after = last["cpu_ns"] - later["cpu_ns"]
    return bool(after <= min(GONE * (start["cpu_ns"] - first["cpu_ns"]), END_CPU_NS))


def why_none(asked_s: float, timeline: Sequence[Sample]) -> str:
    """Return why a run with --settle has no snapshot of a pause, as the end of a sentence."""
    longest = longest_quiet_s(timeline)
    if longest < asked_s:
        return f"the load never paused for {seconds_text(asked_s)}; its longest pause was {seconds_text(longest)}"
    return f"the load paused for {seconds_text(longest)}, but no snapshot was taken then"


def longest_quiet_s(timeline: Sequence[Sample]) -> float:
    """Return the length of the longest pause in seconds."""
    return max((each.length_s for each in quiet_stretches(timeline)), default=0.0)


def quiet_stretches(timeline: Sequence[Sample]) -> list[layers.Window]:
    """Return when the program had nothing to do (agent/format.py, is_quiet: the same that the agent goes by).

    Empty where the timeline does not have the processor time (`cpu_ns`).
    """
    found: list[layers.Window] = []
    start: Sample | None = None
    before: Sample | None = None
    for row in timeline:
        if row.get("cpu_ns") is None:
            continue
        if before is None or start is None or not layout.is_quiet(start, before, row):
            _close(found, start, before)
            start = row
        before = row
    _close(found, start, before)
    return found


def _close(found: list[layers.Window], start: Sample | None, end: Sample | None) -> None:
    if start is not None and end is not None and end["t_ns"] > start["t_ns"]:
        found.append(layers.Window(start["t_ns"] / 1e9, end["t_ns"] / 1e9))
