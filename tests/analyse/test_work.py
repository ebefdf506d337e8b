"""Growth per unit of work, and growth that the load explains: simulated minutes of servers, sampled ten times a second."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

from leakscope.analyse.layers import Window, column, private_memory
from leakscope.analyse.work import (
    LoadShare,
    WorkRate,
    comes_down,
    explained_by_load,
    is_load,
    pace,
    rate_per_work,
    unit_of,
)

MIB = 1 << 20
WINDOW = Window(10.0, 60.0)
Curve = Callable[[float], float]


def minute(memory: Curve, **columns: Curve) -> list[dict[str, Any]]:
    """A minute of a process with noisy memory; `memory` in bytes, and other columns, by seconds."""
    rng = random.Random(3)
    return [{"t_ns": round(t * 1e8), "anon_bytes": 100 * MIB + memory(t / 10) + rng.gauss(0, 0.2 * MIB),
             **{name: curve(t / 10) for name, curve in columns.items()}} for t in range(601)]


def explained(timeline: list[dict[str, Any]]) -> LoadShare | None:
    return explained_by_load(column(timeline, "anon_bytes"), timeline, WINDOW)


def waves(t: float) -> float:
    """A load between 10 and 90 that stands higher at the end of the window than at its start."""
    return round(50 - 40 * math.sin((t - 35) / 5))


def test_memory_that_follows_the_requests_under_way_is_explained_by_them() -> None:
    found = explained(minute(lambda t: MIB * waves(t), inflight_count=waves))
    assert found is not None and found.is_explained
    assert found.covariate == "inflight_count" and abs(found.bytes_per_unit - MIB) < 0.1 * MIB
    assert found.explained_ratio > 0.9 and found.rest.low is not None and found.rest.low <= 0


def test_a_leak_under_a_load_that_comes_and_goes_is_not_explained() -> None:
    found = explained(minute(lambda t: MIB * waves(t) + 0.4 * MIB * t, inflight_count=waves))
    assert found is None or not found.is_explained


def test_memory_that_falls_at_equal_load_leaves_nothing_to_explain() -> None:
    found = explained(minute(lambda t: MIB * (waves(t) - 0.3 * t), inflight_count=waves))
    assert found is not None and found.rest.high is not None and found.rest.high < 0 and found.is_explained


def test_a_slow_leak_under_a_large_load_is_not_explained() -> None:
    found = explained(minute(lambda t: MIB * waves(t) + 0.1 * MIB * t, inflight_count=waves))
    assert found is not None and not found.is_explained and found.rest.low is not None and found.rest.low > 0


def test_tasks_that_pile_up_explain_nothing() -> None:
    assert explained(minute(lambda t: MIB * t, tasks=lambda t: round(10 * t))) is None


def test_tasks_that_pile_up_under_a_load_that_comes_and_goes_explain_nothing() -> None:
    assert explained(minute(lambda t: MIB * (t + waves(t) / 4), tasks=lambda t: round(t + waves(t) / 4))) is None


def test_a_few_tasks_that_pile_up_under_a_large_load_explain_nothing() -> None:
    found = explained(minute(lambda t: MIB * (0.15 * t + waves(t)), tasks=lambda t: round(0.15 * t) + waves(t)))
    assert found is None or not found.is_explained


def test_a_leak_in_one_late_burst_is_not_explained_by_the_burst() -> None:
    def burst(t: float) -> float:
        return 100 if 45 < t < 50 or t > 53 else 2

    assert explained(minute(lambda t: 50 * MIB if t > 45 else 0, inflight_count=burst)) is None


def test_memory_that_follows_the_pace_of_work_is_explained_by_it() -> None:
    done = [0.0]
    for t in range(601):
        done.append(done[-1] + 10 * waves(t / 10))
    found = explained(minute(lambda t: MIB * waves(t), work_count=lambda t: round(done[round(t * 10)])))
    assert found is not None and found.is_explained and found.covariate == "work pace"


def test_processor_load_explains_where_nothing_is_counted() -> None:
    spent = [0.0]
    for t in range(601):
        spent.append(spent[-1] + waves(t / 10) * 1e6)
    found = explained(minute(lambda t: MIB * waves(t), cpu_ns=lambda t: spent[round(t * 10)]))
    assert found is not None and found.is_explained and found.covariate == "processor load"


def test_memory_that_does_not_grow_needs_no_explanation() -> None:
    assert explained(minute(lambda t: -MIB * t, inflight_count=waves)) is None


def test_a_load_comes_down_and_has_a_steady_floor() -> None:
    times = [t / 10 for t in range(100, 601)]
    assert is_load([(t, waves(t)) for t in times], WINDOW)
    assert not is_load([(t, t) for t in times], WINDOW)
    assert not is_load([(t, 7.0) for t in times], WINDOW)
    assert not is_load([(t, waves(t) + t) for t in times], WINDOW)
    assert not comes_down([(10.0, 1.0), (20.0, 9.0), (30.0, 1.0)], WINDOW)  # too few moments to say so


def memory_per_work(timeline: list[dict[str, Any]]) -> WorkRate | None:
    return rate_per_work(private_memory(timeline), timeline, WINDOW)


def test_a_unit_of_work_leaves_what_it_leaves_whatever_the_pace() -> None:
    def done(t: float) -> float:
        return round(20 * t + 40 * math.sin(t / 4))

    found = memory_per_work(minute(lambda t: 46 * 1024 * done(t), work_count=done))
    assert found is not None and found.slope.low is not None and found.slope.high is not None
    assert found.slope.low < 46 * 1024 < found.slope.high and found.slope.high < 1.1 * found.slope.low
    assert found.units == done(60) - done(10) and found.units_per_s == found.units / 50


def test_a_pile_of_snapshots_has_a_rate_per_unit_of_work() -> None:
    timeline = minute(lambda t: 0, work_count=lambda t: round(t * t))
    found = rate_per_work([(t, 3 * t * t) for t in (12.0, 20.0, 35.0, 58.0)], timeline, WINDOW)
    assert found is not None and abs(found.slope.value - 3) < 0.1 and found.slope.low is None


def test_there_is_no_rate_without_a_count_or_with_too_little_work() -> None:
    assert memory_per_work(minute(lambda t: MIB * t)) is None
    assert memory_per_work(minute(lambda t: MIB * t, work_count=lambda t: round(t / 10))) is None


def test_the_pace_is_that_of_the_moments_before() -> None:
    found = pace(minute(lambda t: 0, work_count=lambda t: 10 * min(t, 30)), "work_count", WINDOW)
    assert [round(rate) for t, rate in found if round(t, 1) in (20.0, 45.0)] == [10, 0]


def test_a_unit_of_work_is_called_after_what_counts_it() -> None:
    assert unit_of(["uvicorn requests"]) == "request"
    assert unit_of(["torch optimizer steps"]) == "step"
    assert unit_of(["leakscope.tick"]) == unit_of([]) == unit_of(["uvicorn requests", "celery tasks"]) == "unit of work"
