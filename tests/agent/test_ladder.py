"""When snapshots are taken and which are kept, with a clock of our own."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leakscope.agent.ladder import Ladder

SECOND = 1_000_000_000


class Run:
    """A program of `duration_s` seconds whose walks take `walk_s` each; remembers what was taken and what was on disk."""

    def __init__(self, ladder: Ladder, duration_s: float, walk_s: float = 0.01) -> None:
        self.taken: list[int] = []
        self.disk: dict[int, int] = {}
        self.most_on_disk = 0
        now, index = 0, 0
        while now <= duration_s * SECOND:
            if ladder.is_due(now):
                index += 1
                self.taken.append(now)
                self.disk[index] = now
                self.most_on_disk = max(self.most_on_disk, len(self.disk))
                ended = now + int(walk_s * SECOND)
                ladder.postponed(now, ended)
                for dropped in ladder.taken(index, now):
                    del self.disk[dropped]
                now = ended
            now = max(now + 1, ladder.next_ns)

    @property
    def seconds(self) -> list[float]:
        return [time / SECOND for time in self.disk.values()]


def test_a_script_of_five_seconds_is_looked_at_from_the_first_second_on() -> None:
    run = Run(Ladder(), 5.0)
    assert [round(time / SECOND, 1) for time in run.taken] == [0.8, 1.2, 1.7, 2.3, 3.2, 4.4]


def test_where_snapshots_are_cheap_a_script_of_two_seconds_has_five() -> None:
    run = Run(Ladder(is_native=True), 2.0)
    assert [round(time / SECOND, 1) for time in run.taken] == [0.4, 0.6, 0.8, 1.1, 1.6]


def test_after_long_imports_the_times_grow_from_their_end() -> None:
    ladder = Ladder(is_native=True)
    ladder.warmed(5 * SECOND)
    ladder.next_ns = int(5.3 * SECOND)
    run = Run(ladder, 9.0)
    assert [round(time / SECOND, 1) for time in run.taken] == [5.3, 5.5, 5.7, 6.0, 6.3, 6.8, 7.5, 8.5]
    ladder.warmed(3600 * SECOND)  # what a server imports after an hour begins nothing anew
    ladder.postponed(3601 * SECOND, 3601 * SECOND)
    assert ladder.next_ns > 4800 * SECOND


def test_a_native_walk_rests_by_what_it_took_from_the_program_not_by_how_long_it_lasted() -> None:
    ladder = Ladder(is_native=True)
    ladder.postponed(100 * SECOND, 103 * SECOND, cost_ns=SECOND // 1000)  # a child walked for 3 s; the pause was 1 ms
    assert round(ladder.next_ns / SECOND) == 138  # the growing step
    ladder.postponed(100 * SECOND, 103 * SECOND, cost_ns=2 * SECOND)
    assert ladder.next_ns == (103 + 66) * SECOND


def test_a_server_of_five_days_is_looked_at_a_few_dozen_times() -> None:
    run = Run(Ladder(), 5 * 86400, walk_s=2.0)
    assert 20 < len(run.taken) < 80
    assert len(run.disk) == 6
    assert 5 * 86400 - run.seconds[-1] <= 4 * 3600  # killed at any time, the last snapshot is not days old


@given(keep=st.integers(2, 10), duration_s=st.floats(1, 40_000), walk_s=st.floats(0.001, 20),
       warmup_s=st.none() | st.floats(0, 600), every_s=st.none() | st.floats(0.5, 600))
@settings(max_examples=150, deadline=None)
def test_the_first_after_the_warm_up_and_the_last_are_kept_whatever_happens(
        keep: int, duration_s: float, walk_s: float, warmup_s: float | None, every_s: float | None) -> None:
    warmup_ns, every_ns = (None if seconds is None else int(seconds * SECOND) for seconds in (warmup_s, every_s))
    ladder = Ladder(keep, warmup_ns, every_ns)
    run = Run(ladder, duration_s, walk_s)
    kept = list(run.disk.values())
    assert run.most_on_disk <= keep + 1 and len(kept) <= keep
    if run.taken:
        assert kept[0] == run.taken[0] and kept[-1] == run.taken[-1]
        assert kept == sorted(kept)
    if warmup_s is not None:
        assert all(time >= int(warmup_s * SECOND) for time in run.taken)


@pytest.mark.parametrize("duration_s", [60, 600, 7200, 86400, 5 * 86400])
def test_the_kept_ones_are_spread_over_the_run(duration_s: int) -> None:
    times = Run(Ladder(), duration_s).seconds
    gaps = [later - earlier for earlier, later in zip(times, times[1:], strict=False)]
    assert len(times) == 6
    assert max(gaps) <= 0.5 * duration_s and max(gaps) / min(gaps) < 8


def test_a_fixed_period_keeps_even_gaps() -> None:
    times = Run(Ladder(every_ns=10 * SECOND), 1000, walk_s=0.01).seconds
    gaps = [later - earlier for earlier, later in zip(times, times[1:], strict=False)]
    assert max(gaps) / min(gaps) <= 4


def test_slow_walks_leave_the_program_most_of_its_time() -> None:
    run = Run(Ladder(), 3600, walk_s=3.0)
    rests = [later - earlier - 3 * SECOND for earlier, later in zip(run.taken, run.taken[1:], strict=False)]
    assert all(rest >= 1.5 * SECOND for rest in rests)
    assert all(rest >= 60 * SECOND for rest, begun in zip(rests, run.taken, strict=False) if begun > 60 * SECOND)


def test_what_was_taken_during_the_warm_up_goes_first() -> None:
    ladder = Ladder(keep=3)
    for index, second in enumerate((1, 2, 3)):
        assert ladder.taken(index, second * SECOND) == []
    ladder.warmed(2 * SECOND)
    assert ladder.taken(3, 4 * SECOND) == [0]
    assert ladder.taken(4, 5 * SECOND) == [2]  # from now on the first after the warm-up stays
    assert [index for _, index in ladder.kept] == [1, 3, 4]


def test_a_full_disk_thins_down_to_the_first_and_the_last() -> None:
    ladder = Ladder()
    for index in range(5):
        ladder.taken(index, index * SECOND)
    assert [ladder.thin() for _ in range(4)] == [1, 3, 2, None]
