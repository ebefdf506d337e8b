"""The processes of one session beside each other: who belongs to whom, which children pile up, which pages are shared.

A forked worker begins with all pages of its parent, shared until one of the two writes to them; CPython writes to every
object that it only looks at, because it counts references in it (cpython #39511, gc.freeze). So the pages of a worker
become its own one after the other, its unique set size rises, and nothing leaks: what was shared at the fork is all that
can be copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from leakscope.analyse.layers import Points, Window, change, column, private_memory
from leakscope.analyse.memory import going_on

Sample = dict[str, Any]
Samples = Sequence[Sample]

LEAST_CHILDREN = 8  # more of them at the end than at the start are a pile; a pool of workers is there from its start; ours
ALIVE_S = 2.0  # a process with a sample so close to the end of the run was alive then: samples come every second at most


@dataclass(frozen=True, eq=False)
class Relative:
    """Another process of the session: its process.json and its samples."""

    info: dict[str, Any]
    timeline: Sequence[Sample] = field(default=())

    @property
    def pid(self) -> int:
        """Its process number."""
        return int(self.info.get("pid", 0))


class Piled(NamedTuple):
    """Child processes that pile up over a window: how many more, how many of all have ended and were not waited for;
    `is_ended`: it is those that pile up."""

    more: int
    in_all: int
    ended: int
    tail_more: int
    is_ended: bool
    is_steady: bool


def piled_children(timeline: Sequence[Sample], window: Window) -> Piled | None:
    """Return the pile of child processes; None where they do not pile up, or only in the first half of the window."""
    children, ended = column(timeline, "children"), column(timeline, "children_ended")
    more, more_ended = change(children, window), change(ended, window)
    if more is None or more_ended is None or more < LEAST_CHILDREN:
        return None
    late = going_on(children, window, more)
    if late is None:
        return None
    tail_more, slope = late
    return Piled(round(more), round(children[-1][1]), round(ended[-1][1]), round(tail_more), more_ended >= more / 2,
                 slope.is_positive)


def children_of(pid: int, family: Sequence[Relative]) -> list[Relative]:
    """The recorded processes whose parent is `pid`."""
    return [each for each in family if each.info.get("parent") == pid]


def alive_at(relatives: Sequence[Relative], t_s: float) -> list[Relative]:
    """Those that had samples until then."""
    return [each for each in relatives if each.timeline and each.timeline[-1]["t_ns"] / 1e9 >= t_s - ALIVE_S]


def own_bytes(timeline: Sequence[Sample]) -> int | None:
    """What would be free without the process, by its last measure: its unique set size; else its anonymous memory."""
    for name in ("uss_bytes", "anon_bytes"):
        points = column(timeline, name)
        if points:
            return int(points[-1][1])
    return None


def total_growth(family: Sequence[Relative], window: Window) -> int | None:
    """The growth of the memory of the processes together over a window; one that came later counts in full, one that has gone
    not at all. None where nothing was measured."""
    sizes = [column(each.timeline, "pss_bytes") or private_memory(each.timeline) for each in family]
    known = [grown for points in sizes if (grown := _growth(points, window)) is not None]
    return int(sum(known)) if known else None


def _growth(points: Points, window: Window) -> float | None:
    inside = window.inside(points)
    if not inside or inside[-1][0] < window.end_s - ALIVE_S:
        return None
    came_later = points[0][0] > window.start_s
    return inside[-1][1] if came_later else change(points, window)


class Copied(NamedTuple):
    """Pages that were shared with other processes and became a process's own; `left_bytes` are still shared at the end."""

    bytes: int
    left_bytes: int


def copied_pages(timeline: Sequence[Sample]) -> Copied | None:
    """Return the anonymous pages that were shared at first and are the process's own by now; None where that is not known.

    It is what the shared part of anonymous memory lost: that cannot grow but by a fork.
    """
    shared = [(sample["t_ns"] / 1e9, sample["anon_bytes"] - sample["uss_bytes"]) for sample in timeline
              if "uss_bytes" in sample and "anon_bytes" in sample]
    elsewhere = [(sample["t_ns"] / 1e9, sample["anon_bytes"] - sample["pss_anon_bytes"]) for sample in timeline
                 if "pss_anon_bytes" in sample and "anon_bytes" in sample]
    points = elsewhere or shared
    if len(points) < 2:
        return None
    most = max(value for _, value in points)
    return Copied(max(0, int(most - points[-1][1])), max(0, int(points[-1][1])))
