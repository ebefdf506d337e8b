"""Slopes through noisy series."""

from __future__ import annotations

import random

from leakscope.analyse.trend import chance_of_trend, grew_in_every_interval, level, slowing_ratio, theil_sen, thinned


def test_the_slope_of_a_line_is_exact():
    slope = theil_sen([(x, 3.0 * x + 7.0) for x in range(20)])
    assert slope is not None
    assert (slope.value, slope.low, slope.high) == (3.0, 3.0, 3.0)


def test_a_third_of_the_points_may_be_spikes():
    points = [(float(x), 2.0 * x + (500.0 if x % 3 == 0 and x < 60 else 0.0)) for x in range(100)]
    slope = theil_sen(points)
    assert slope is not None
    assert abs(slope.value - 2.0) < 0.5


def test_noise_without_a_trend_has_an_interval_around_zero():
    rng = random.Random(1)
    slope = theil_sen([(float(x), rng.gauss(100, 10)) for x in range(200)])
    assert slope is not None
    assert not slope.is_positive


def test_a_slope_can_be_told_for_another_unit():
    assert theil_sen([(float(x), 3.0 * x) for x in range(20)]).times(0.5) == (1.5, 1.5, 1.5)
    assert theil_sen([(0.0, 0.0), (1.0, 2.0)]).times(10) == (20.0, None, None)


def test_one_point_has_no_slope():
    assert theil_sen([(1.0, 5.0)]) is None
    assert theil_sen([(1.0, 5.0), (1.0, 7.0)]) is None


def test_few_points_have_a_slope_without_an_interval():
    slope = theil_sen([(0.0, 0.0), (1.0, 2.0), (2.0, 4.0)])
    assert slope == (2.0, None, None)
    assert slope.is_positive


def test_thinning_keeps_the_first_and_the_last_point():
    points = [(float(x), 0.0) for x in range(1000)]
    kept = thinned(points, 10)
    assert len(kept) == 10
    assert (kept[0], kept[-1]) == (points[0], points[-1])


def test_growth_in_every_interval_means_every_one():
    assert grew_in_every_interval([1, 2, 3])
    assert not grew_in_every_interval([1, 2, 2, 3])
    assert not grew_in_every_interval([5])


def test_a_plateau_has_a_ratio_near_zero_and_a_line_of_one():
    assert slowing_ratio([(float(x), float(x)) for x in range(7)]) == 1.0
    plateau = slowing_ratio([(0.0, 0.0), (1.0, 80.0), (2.0, 95.0), (3.0, 99.0), (4.0, 100.0), (5.0, 100.0)])
    assert plateau is not None
    assert plateau < 0.1


def test_what_did_not_rise_at_first_has_no_ratio():
    assert slowing_ratio([(0.0, 5.0), (1.0, 5.0), (2.0, 9.0)]) is None


def test_a_level_is_the_median_of_a_stretch():
    assert level([(0.0, 1.0), (1.0, 100.0), (2.0, 3.0), (9.0, 50.0)], 0.0, 2.0) == 3.0
    assert level([(0.0, 1.0)], 5.0, 6.0) is None


def test_noise_rises_by_chance_and_a_line_does_not():
    rng = random.Random(3)
    noise = [(float(x), rng.gauss(100, 10)) for x in range(100)]
    assert chance_of_trend(noise) > 0.01 and chance_of_trend([(float(x), 2.0 * x) for x in range(20)]) < 1e-6
    assert chance_of_trend([(x, y + x / 2) for x, y in noise]) < 0.01


def test_what_falls_or_stands_still_does_not_rise_at_all():
    assert chance_of_trend([(float(x), -x) for x in range(20)]) == chance_of_trend([(float(x), 7.0) for x in range(20)]) == 1.0
    assert chance_of_trend([]) == chance_of_trend([(0.0, 1.0)]) == 1.0
