"""Pauses of the load: found in the timeline, snapshots in them, and what outlives them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from leakscope.analyse.layers import Window
from leakscope.analyse.settle import (
    LoadClock,
    pauses,
    quiet_stretches,
    settle_of,
    surviving_share,
    up_to_the_end_of_load,
    why_none,
)

MS = 1_000_000


def rows(*parts: tuple[float, int], **columns: Sequence[float]) -> list[dict[str, Any]]:
    """A timeline of (seconds, CPU milliseconds a second) parts, ten rows a second; `columns` for each part, held in it."""
    found: list[dict[str, Any]] = []
    t_ns = cpu_ns = 0
    for number, (seconds, busy_ms) in enumerate(parts):
        for _ in range(round(seconds * 10)):
            found.append({"t_ns": t_ns, "cpu_ns": cpu_ns, **{name: values[number] for name, values in columns.items()}})
            t_ns, cpu_ns = t_ns + 100 * MS, cpu_ns + busy_ms * MS // 10
    return found


def snapshot(t_s: float, kind: str = "ladder", **settle: Any) -> dict[str, Any]:
    return {"t_ns": round(t_s * 1e9), "kind": kind, **({"settle": settle} if settle else {})}


def test_a_program_that_waits_is_quiet_between_two_loads() -> None:
    (pause,) = [each for each in quiet_stretches(rows((5, 700), (12, 5), (5, 900))) if each.length_s > 1]
    assert pause.start_s == pytest.approx(5.0, abs=0.11) and pause.end_s == pytest.approx(16.9, abs=0.11)


def test_work_done_without_processor_time_is_no_pause() -> None:
    timeline = rows((20, 1))
    for number, row in enumerate(timeline):
        row["work_count"] = number // 3
    assert max(each.length_s for each in quiet_stretches(timeline)) < 1


def test_a_loop_that_keeps_what_it_makes_and_sleeps_is_no_pause() -> None:
    timeline = rows((20, 5))
    for number, row in enumerate(timeline):
        row["py_blocks"] = 5000 + 10 * number
    assert max(each.length_s for each in quiet_stretches(timeline)) < 5


def test_a_counter_that_is_not_in_every_row_does_not_end_a_pause() -> None:
    timeline = rows((20, 5))
    for row in timeline[::2]:
        row["work_count"] = 7
    assert [round(each.length_s) for each in quiet_stretches(timeline)] == [20]


def test_a_timeline_without_processor_time_shows_no_pause() -> None:
    assert quiet_stretches([{"t_ns": second * 1000 * MS} for second in range(20)]) == []


def test_a_snapshot_of_kind_settle_is_one_in_a_pause() -> None:
    settled = settle_of([snapshot(1), snapshot(9, "settle", quiet_s=5.0, collected=True)], [])
    assert settled is not None
    rung = settled.last
    assert (rung.position, rung.quiet_s, rung.is_collected, rung.is_natural) == (1, 5.0, True, False)


def test_a_snapshot_after_a_settle_that_was_not_quiet_is_none() -> None:
    assert settle_of([snapshot(1), snapshot(9, "settle", quiet_s=0.0, collected=False)], []) is None


def test_a_ladder_snapshot_in_a_long_natural_pause_is_one_in_a_pause() -> None:
    timeline = rows((5, 700), (14, 5), (5, 900))
    settled = settle_of([snapshot(3), snapshot(6), snapshot(15), snapshot(23)], timeline)
    assert settled is not None and [rung.position for rung in settled.rungs] == [2]  # at 6 s the pause was too young
    assert settled.last.is_natural and settled.last.quiet_s == pytest.approx(10, abs=0.2)


def test_a_short_natural_pause_and_the_exit_are_none() -> None:
    assert settle_of([snapshot(8)], rows((5, 700), (6, 5), (5, 900))) is None
    assert settle_of([snapshot(15, "exit")], rows((5, 700), (14, 5))) is None


def share(counts: Sequence[float], *settles: int) -> float | None:
    snapshots = [snapshot(number, "settle", quiet_s=5.0, collected=False) if number in settles else snapshot(number)
                 for number in range(len(counts))]
    return surviving_share(counts, settle_of(snapshots, []))


def test_what_was_under_way_is_gone_after_the_pause_and_a_leak_is_not() -> None:
    assert share([100, 600, 1100, 100], 3) == 0.0
    assert share([100, 600, 1100, 1100], 3) == 1.0
    assert share([100, 600, 1100, 400], 3) == pytest.approx(0.3)


def test_the_level_of_an_earlier_pause_is_the_one_to_grow_from() -> None:
    assert share([100, 500, 200, 700, 450], 2, 4) == pytest.approx(0.5)


def test_a_pause_before_the_growth_says_nothing_of_it() -> None:
    assert share([100, 110, 105, 1000, 2000], 2) is None
    assert share([100, 500, 900]) is None
    assert share([500, 400, 300, 300], 3) is None


def seconds_of_load(timeline: list[dict[str, Any]], *settles: float) -> float:
    snapshots = [snapshot(t_s, "settle", quiet_s=5.0, collected=False) for t_s in settles]
    return float(up_to_the_end_of_load(timeline, snapshots)[-1]["t_ns"] / 1e9)


def test_a_pause_at_the_end_is_no_load() -> None:
    assert seconds_of_load(rows((30, 700), (8, 5), (1, 300)), 35.5) == pytest.approx(30.4, abs=0.2)
    assert seconds_of_load(rows((30, 9), (8, 5), (2, 5), work_count=(90, 90, 90)), 35.5) == pytest.approx(30.4, abs=0.2)


def test_a_pause_before_the_load_or_between_two_does_not_end_it() -> None:
    assert seconds_of_load(rows((3, 900), (8, 5), (30, 300)), 9.5) == pytest.approx(40.9, abs=0.2)
    assert seconds_of_load(rows((20, 700), (8, 5), (10, 700), (8, 5)), 26.0, 44.0) == pytest.approx(38.9, abs=0.2)
    assert seconds_of_load(rows((9, 900), (8, 5), (9, 20), work_count=(0, 0, 50)), 15.0) == pytest.approx(25.9, abs=0.2)


def test_without_a_pause_all_is_load() -> None:
    assert seconds_of_load(rows((30, 700))) == pytest.approx(29.9)


def test_a_pause_lasts_from_its_beginning_to_the_next_load() -> None:
    timeline = rows((10, 700), (8, 5), (10, 700), (6, 5))
    found = pauses(timeline, [snapshot(2), snapshot(15, "settle", quiet_s=4.5, collected=True),
                              snapshot(33, "settle", quiet_s=5.0, collected=True)])
    assert [(round(rest.start_s, 1), round(rest.end_s)) for rest in found] == [(10.5, 18), (28.0, 34)]
    assert pauses(timeline, [snapshot(15)]) == []


def test_the_clock_of_the_load_stands_still_in_pauses() -> None:
    clock = LoadClock([Window(10.0, 18.0), Window(30.0, 40.0)])
    assert [clock.at(t_s) for t_s in (5.0, 12.0, 18.0, 20.0, 50.0)] == [5.0, 10.0, 10.0, 12.0, 32.0]
    assert clock.points([(9.0, 1.0), (12.0, 2.0), (19.0, 3.0)]) == [(9.0, 1.0), (11.0, 3.0)]
    assert clock.window(Window(0.0, 40.0)) == Window(0.0, 22.0) and clock.load_ratio(Window(0.0, 40.0)) == 0.55
    assert LoadClock([]).at(7.0) == 7.0 and LoadClock([]).load_ratio(Window(3.0, 9.0)) == 1.0


def test_why_there_is_no_snapshot_of_a_pause() -> None:
    assert why_none(30.0, rows((20, 700), (3, 5), (5, 700))) == (
        "the load never paused for 30.0 s; its longest pause was 3.0 s")
    assert why_none(2.0, rows((20, 700), (3, 5))) == "the load paused for 2.9 s, but no snapshot was taken then"
