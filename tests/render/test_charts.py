"""Charts: axes, gaps, bars."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakscope.model import Layer
from leakscope.render import _charts
from leakscope.report import Series, SnapshotMark
from tests.render.reports import MIB, python_leak

FINITE = st.floats(-1e15, 1e15)


def ticks(svg: str) -> list[str]:
    return re.findall(r'class="tick[^>]*>([^<]+)<', svg)


def test_memory_is_labelled_in_one_unit_and_time_in_seconds():
    svg = _charts.timeline(python_leak().series[:1], (), None)
    assert ticks(svg) == ["0", "10 s", "20 s", "30 s", "40 s", "50 s", "0", "100 MiB", "200 MiB", "300 MiB", "400 MiB"]


@pytest.mark.parametrize("end, labels", [(0.4, ["0", "0.1 s"]), (240, ["0", "30 s", "1 min"]), (7200, ["0", "15 min"]),
                                         (200_000, ["0", "12 h"])])
def test_the_time_axis_fits_the_length_of_the_run(end, labels):
    svg = _charts.timeline((Series("rss_bytes", "bytes", ((0.0, 1.0), (end, 2.0))),), (), None)
    assert ticks(svg)[:len(labels)] == labels


def test_a_line_is_broken_where_it_was_not_measured_while_others_were():
    every = tuple((float(t), 100.0) for t in range(30))
    holes = tuple(point for point in every if not 10 < point[0] < 20)
    svg = _charts.timeline((Series("rss_bytes", "bytes", every), Series("pss_bytes", "bytes", holes)), (), None)
    assert svg.count('class="line s0"') == 1
    assert svg.count('class="line s1"') == 2


def test_a_slower_sampler_is_no_gap():
    times = [index * 0.1 for index in range(50)] + [5.0 + index for index in range(20)]
    svg = _charts.timeline((Series("rss_bytes", "bytes", tuple((t, 1.0) for t in times)),), (), None)
    assert svg.count('class="line s0"') == 1


def test_a_column_that_is_measured_less_often_has_no_gap_for_that():
    every = tuple((index * 0.1, 1.0) for index in range(100)) + tuple((10.0 + t, 1.0) for t in range(60))
    svg = _charts.timeline((Series("rss_bytes", "bytes", every), Series("pss_bytes", "bytes", every[::7])), (), None)
    assert svg.count('class="line s1"') == 1 and 'class="dot' not in svg


def test_a_count_that_never_changes_takes_no_plot():
    still = Series("fds", "count", ((0.0, 5.0), (1.0, 5.0)))
    assert "File descriptors" not in _charts.timeline((*python_leak().series[:1], still), (), None)
    assert _charts.still_text((still,)) == "File descriptors 5"


def test_a_pause_of_the_whole_sampler_is_a_gap():
    times = [float(t) for t in (*range(20), *range(60, 80))]
    svg = _charts.timeline((Series("rss_bytes", "bytes", tuple((t, 1.0) for t in times)),), (), None)
    assert svg.count('class="line s0"') == 2


def test_snapshots_are_numbered_and_told():
    svg = _charts.timeline(python_leak().series, python_leak().snapshots, None)
    assert svg.count('class="mark"') == 6
    assert "<title>snapshot 6 (exit) at 59.0 s: 684 900 objects, pause 11.2 ms</title>" in svg


def test_a_limit_near_the_memory_is_drawn_and_a_far_one_is_not():
    assert "limit 500.0 MiB" in _charts.timeline(python_leak().series, (), 500 * MIB)
    assert "limit" not in _charts.timeline(python_leak().series, (), 8192 * MIB)


def test_many_points_are_thinned_but_no_peak_is_lost():
    points = tuple((float(t), 5.0 if t != 54_321 else 900.0) for t in range(100_000))
    values = _charts.timeline_values((Series("rss_bytes", "bytes", points),))[0]["points"]
    assert len(values) < 1_000
    assert [54_321.0, 900] in values
    assert values[0][0] == 0 and values[-1][0] == 99_999


@given(st.lists(st.tuples(FINITE, FINITE), min_size=1, max_size=20), st.sampled_from(["bytes", "count"]))
def test_any_samples_make_a_picture_of_finite_numbers(points, unit):
    svg = _charts.timeline((Series("x", unit, tuple(sorted(points))),), (SnapshotMark(points[0][0], "exit", 1, 0.0),), None)
    assert "nan" not in svg and "inf" not in svg


@given(FINITE, FINITE, st.sampled_from(["bytes", "count"]), st.sampled_from([2, 5]))
def test_the_ticks_of_an_axis_enclose_its_values(one, other, unit, wanted):
    low, high = sorted((one, other))
    found = _charts.value_ticks(low, high, unit, wanted)
    slack = 1e-6 * max(abs(low), abs(high), 1)
    assert found[0] <= low + slack and found[-1] >= high - slack
    assert 2 <= len(found) <= 3 * wanted + 2


def test_the_parts_of_the_bar_are_as_wide_as_they_grew():
    svg = _charts.layer_bar((Layer("total", 100), Layer("python", 75), Layer("native", 25), Layer("mapped", -10),
                             Layer("cuda:0", 500)), "python")
    assert re.findall(r'<rect class="([^"]+)" x="([\d.]+)" y="0" width="([\d.]+)"', svg) == [
        ("part blamed", "0.0", "748.0"), ("part p1", "750.0", "248.0")]


def test_a_sparkline_ends_at_its_last_value():
    assert 'cx="78.0" cy="3.0"' in _charts.sparkline((0, 5, 10))
    assert _charts.sparkline((4,)) == ""
    assert 'cy="18.0"' in _charts.sparkline((0, 0))
