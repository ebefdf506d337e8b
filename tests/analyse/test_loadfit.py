"""Memory that a larger load takes is told from memory that each request leaves (simulated series with a known law)."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from leakscope.analyse import loadfit
from leakscope.analyse.layers import Window
from leakscope.analyse.loadfit import LoadFit, load_fit

MIB, GIB = 1 << 20, 1 << 30
BATCHES, LENGTHS = (1, 2, 4, 8, 16), (256, 512, 1024, 2048)


def quadratic(batch: int, tokens: int) -> float:
    return 4 * GIB * batch / 16 * (tokens / 2048) ** 2


def linear(batch: int, tokens: int) -> float:
    return 4 * GIB * batch / 16 * (tokens / 2048)


def series(law: Callable[[int, int], float] = quadratic, left: float = 0, count: int = 400, noise: float = 0.005,
           loads: Callable[[random.Random, int], tuple[int, int]] | None = None, seed: int = 3) -> list[dict[str, Any]]:
    """A row a second, three requests each; memory is seen at any moment of a request. `left`: bytes that a request leaves."""
    draw, rows, peak = random.Random(seed), [], 0.0
    for second in range(count):
        batch, tokens = loads(draw, second) if loads else (draw.choice(BATCHES), draw.choice(LENGTHS))
        done = 3 * (second + 1)
        held = 8 * GIB + left * done
        peak = max(peak, held + law(batch, tokens))
        seen = held + draw.choice((0.0, 0.4, 0.8, 1.0, 1.0)) * law(batch, tokens)
        rows.append({"t_ns": second * 10**9, "work_count": done, "load_batch": batch, "load_tokens": tokens,
                     "cuda0_allocated_bytes": round(seen * (1 + draw.uniform(-noise, noise))),
                     "cuda0_allocated_peak_bytes": round(peak)})
    return rows


def window(rows: list[dict[str, Any]]) -> Window:
    return Window(0.0, rows[-1]["t_ns"] / 1e9)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer draws: what is asked of the bounds here needs no more."""
    monkeypatch.setattr(loadfit, "SAMPLES", 30)


@cache
def usual(left: float = 0, limit: int | None = 16 * GIB) -> LoadFit:
    """The fit of the usual series; most tests look at the same one."""
    return fit(series(left=left), limit)


def fit(rows: list[dict[str, Any]], limit: int | None = 16 * GIB) -> LoadFit:
    found = load_fit(rows, window(rows), "cuda:0", limit)
    assert found is not None
    return found


@pytest.mark.parametrize(("law", "powers"), [(quadratic, (1.0, 2.0)), (linear, (1.0, 1.0))])
def test_the_law_of_the_load_is_found(law: Callable[[int, int], float], powers: tuple[float, float]) -> None:
    found = fit(series(law))
    assert found.is_good and found.batch_power is not None and found.token_power is not None
    for power, estimate in zip(powers, (found.batch_power, found.token_power)):
        assert estimate.low <= power <= estimate.high and estimate.high - estimate.low < 0.6
    assert found.base.value == pytest.approx(8 * GIB, rel=0.05)
    assert not found.grows_per_unit


def test_growth_with_a_growing_load_is_explained_by_it() -> None:
    found = fit(series(loads=lambda draw, second: (1 + second // 25, draw.choice(LENGTHS))))
    assert found.is_explained and not found.grows_per_unit and found.growth_bytes > 0
    assert "which explains the growth; nothing certain is left per request" in found.sentence("on cuda:0", "request")


def test_what_each_request_leaves_remains_at_equal_load() -> None:
    found = usual(2 * MIB)
    assert found.grows_per_unit and not found.is_explained
    assert found.per_unit.low <= 2 * MIB <= found.per_unit.high and found.per_unit.value == pytest.approx(2 * MIB, rel=0.15)
    assert "on top of it each request leaves" in found.sentence("on cuda:0", "request")


def test_a_leak_under_a_growing_load_is_not_explained_away() -> None:
    found = fit(series(left=4 * MIB, loads=lambda draw, second: (1 + second // 25, draw.choice(LENGTHS))))
    assert found.grows_per_unit and not found.is_explained


def test_a_little_that_is_left_is_not_told() -> None:
    found = usual(20_000)
    assert not found.grows_per_unit


@pytest.mark.parametrize("seed", range(3))
def test_noise_alone_gives_no_claim(seed: int) -> None:
    rows = series(law=lambda batch, tokens: 0.0, noise=0.05, seed=seed)
    found = load_fit(rows, window(rows), "cuda:0", 16 * GIB)
    if found is not None:  # memory may fall with the load
        assert not found.is_good and not found.grows_per_unit and not found.is_explained
        assert found.sentence("on cuda:0", "request") == "" and found.too_large_batch is None


def test_a_load_that_only_rises_with_the_requests_is_not_told_from_them() -> None:
    found = load_fit(rows := series(linear, loads=lambda draw, second: (1 + second, 1024)), window(rows), "cuda:0")
    assert found is not None and not found.is_separable and not found.is_good and not found.grows_per_unit


def test_the_batch_that_would_not_fit_is_foretold_with_its_bounds() -> None:
    found = usual(limit=14 * GIB)
    assert found.too_large_batch is not None
    low, high = found.too_large_batch.low, found.too_large_batch.high
    assert low <= 24 <= high and high - low < 4  # 8 GiB + 4 GiB * batch / 16 at 2048 tokens
    assert "tokens would no longer fit (" in found.sentence("on cuda:0", "request")


@pytest.mark.parametrize("limit", [None, 9 * GIB, 200 * GIB])
def test_nothing_is_foretold_without_a_limit_beyond_it_or_far_from_what_was_seen(limit: int | None) -> None:
    assert usual(limit=limit).too_large_batch is None


def test_with_one_of_the_two_the_other_is_not_asked() -> None:
    rows = series(linear, loads=lambda draw, second: (draw.choice(BATCHES), 1024))
    for row in rows:
        del row["load_tokens"]
    found = fit(rows, 14 * GIB)
    assert found.is_good and found.token_power is None and found.most_tokens is None
    assert "tokens" not in found.sentence("on cuda:0", "request")


def test_memory_that_stays_at_its_high_water_is_no_growth_per_request() -> None:
    rows = series(loads=lambda draw, second: (draw.choice(BATCHES[:1 + second // 40]), draw.choice(LENGTHS)))
    for row in rows:
        row["anon_bytes"] = row["cuda0_allocated_peak_bytes"]
    found = load_fit(rows, window(rows))
    assert found is None or not found.grows_per_unit


def test_growth_per_request_that_has_ended_is_not_told() -> None:
    rows = series(left=8 * MIB)
    later = series()
    for number in range(150, len(rows)):
        for name in ("cuda0_allocated_bytes", "cuda0_allocated_peak_bytes"):
            rows[number][name] = later[number][name] + 8 * MIB * 450
    assert not fit(rows, 32 * GIB).grows_per_unit


def test_host_memory_is_fitted_where_no_device_is_named() -> None:
    rows = [{"anon_bytes": row["cuda0_allocated_bytes"], **{name: value for name, value in row.items() if "cuda" not in name}}
            for row in series()]
    found = load_fit(rows, window(rows))
    assert found is not None and found.is_good and found.sentence("of the process", "request").startswith("Peak memory of the")


def test_a_peak_belongs_to_the_largest_load_since_memory_was_measured() -> None:
    rows = [{"t_ns": second * 10**9, "work_count": second, "load_batch": batch, "load_tokens": 8}
            for second, batch in enumerate((1, 2, 9, 3, 4))]
    for second, (held, peak) in {0: (10, 10), 3: (12, 50), 4: (20, 50)}.items():
        rows[second] |= {"cuda0_allocated_bytes": held, "cuda0_allocated_peak_bytes": peak}
    found = loadfit._rows(rows, Window(0.0, 9.0), "cuda:0", None)
    assert [(size, batch) for _, size, _, batch, _ in found] == [(10, 1), (50, 9), (20, 4)]


def test_what_was_measured_while_a_unit_was_under_way_belongs_to_it() -> None:
    held = [10, 80, 90, 11, 10, 40, 12]  # two units; the second row of each says nothing of the load yet
    rows: list[dict[str, Any]] = [{"t_ns": second * 10**9, "anon_bytes": size} for second, size in enumerate(held)]
    rows[3] |= {"work_count": 1, "load_batch": 9}
    rows[6] |= {"work_count": 2, "load_batch": 4}
    found = loadfit._rows(rows, Window(0.0, 9.0), None, None)
    assert [(size, batch) for _, size, _, batch, _ in found] == [(90, 9), (40, 4)]


@pytest.mark.parametrize("spoil", [
    lambda rows: [{**row, "load_batch": 8, "load_tokens": 512} for row in rows],  # always the same
    lambda rows: [{name: value for name, value in row.items() if not name.startswith("load")} for row in rows],
    lambda rows: [{name: value for name, value in row.items() if not name.startswith("cuda")} for row in rows],
    lambda rows: rows[:30],
    lambda rows: [],
])
def test_without_a_load_or_memory_or_time_there_is_no_fit(spoil: Callable[[Any], Any]) -> None:
    rows = spoil(series())
    assert load_fit(rows, Window(0.0, 400.0), "cuda:0") is None


def test_one_session_gives_one_answer() -> None:
    assert fit(series(left=2 * MIB)) == usual(2 * MIB)


@pytest.mark.parametrize("seed", range(2))
def test_bounds_hold_for_other_traffic(seed: int) -> None:
    found = fit(series(left=MIB, seed=seed, noise=0.002))
    assert found.is_good and found.per_unit.low * 0.9 <= MIB <= found.per_unit.high * 1.1
