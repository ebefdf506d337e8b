"""Pictures of a device: bars that add up, nothing outside of its box."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leakscope.render import _device_charts as charts
from leakscope.report import DeviceChapter, DeviceOwner, DeviceTerm, SegmentPart, SegmentRow
from tests.render.devices import GIB, gpu_leak
from tests.render.reports import MIB

STATES = tuple(charts.STATE_WORDS)
RECT = re.compile(r'<rect class="([^"]+)" x="([\d.-]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)"')
PARTS = st.lists(st.builds(SegmentPart, st.sampled_from(STATES), st.integers(1, 1 << 36),
                           st.sampled_from([None, 0, 1, 7]), st.booleans()), min_size=1, max_size=60)


def chapter(*growths: int | None, total: int | None = None) -> DeviceChapter:
    return DeviceChapter("cuda:0", total_bytes=total, terms=tuple(
        DeviceTerm(name, None if growth is None else 100 * MIB, growth)
        for name, growth in zip(("outside", "allocated_owned", "workspaces", "inactive_split"), growths)))


def rects(picture: str) -> list[tuple[str, float, float]]:
    """(class, from, to) of each bar."""
    found = [(kind, float(x), float(x) + float(width)) for kind, x, _, width, _ in RECT.findall(picture)]
    assert all(-0.06 <= start <= end <= 1000.06 for _, start, end in found)
    return found


def test_each_bar_of_the_waterfall_begins_where_the_one_before_ended_and_the_sum_is_the_last():
    rows = charts.waterfall(chapter(100 * MIB, 300 * MIB, 0, -200 * MIB))
    assert [rects(row.bar) for row in rows] == [
        [("step grown", 0.0, 250.0)], [("step blamed", 250.0, 1000.0)], [], [("step shrunk", 500.0, 1000.0)],
        [("step sum", 0.0, 500.0)]]
    assert [row.growth_bytes for row in rows] == [100 * MIB, 300 * MIB, 0, -200 * MIB, 200 * MIB]
    assert rows[-1].end_bytes == 600 * MIB and rows[-1].name == "used by this process"


@given(st.lists(st.one_of(st.none(), st.integers(-(1 << 38), 1 << 38)), min_size=4, max_size=4))
def test_any_growths_fall_inside_their_boxes_and_add_up(growths):
    rows = charts.waterfall(chapter(*growths))
    if all(growth is None for growth in growths):
        assert rows == []
        return
    assert rows[-1].growth_bytes == sum(growth or 0 for growth in growths)
    ends = [re.findall(r'x1="([\d.-]+)"', row.bar) for row in rows[:-1]]
    assert all(before[1] == after[0] for before, after in zip(ends, ends[1:]))
    for row in rows:
        rects(row.bar)
        assert "nan" not in row.bar and "inf" not in row.bar


def test_a_term_that_was_not_measured_makes_the_sum_that_of_the_others():
    rows = charts.waterfall(chapter(None, 64 * MIB, 0, 0))
    assert (rows[0].growth_bytes, rows[0].end_bytes) == (None, None)
    assert (rows[-1].name, rows[-1].end_bytes) == ("all of what was measured", 364 * MIB)


def test_the_bar_of_the_device_is_as_wide_as_its_memory():
    parts = charts.level_parts(chapter(0, 100 * MIB, 0, 0, total=1000 * MIB))
    assert [size for _, _, size in parts] == [100 * MIB, 200 * MIB, 100 * MIB, 100 * MIB, 500 * MIB]
    assert rects(charts.level_bar(chapter(0, 100 * MIB, 0, 0, total=1000 * MIB)))[-1] == ("level rest", 500.0, 1000.0)
    assert charts.level_bar(chapter(None, None)) == ""


@given(PARTS)
@settings(max_examples=40, deadline=None)
def test_the_parts_of_a_segment_add_up_to_it_however_many_there_are(parts):
    row = SegmentRow(sum(part.size_bytes for part in parts), 0, "", False, tuple(parts))
    thin = row.thinned(9)
    assert sum(part.size_bytes for part in thin) == row.size_bytes
    assert len(thin) <= 2 * 9 + 1
    assert any(part.is_pinning for part in thin) == any(part.is_pinning for part in parts)
    bars = [bar for bar in rects(charts.segment_bar(row, ())) if bar[0] != "pin"]
    assert len(bars) == len(row.thinned(charts.MOST_PARTS))
    assert bars[0][1] == 0.0 and bars[-1][2] == pytest.approx(1000.0, abs=0.2)


def test_neighbours_of_one_kind_are_one_and_a_large_part_stays_what_it_is():
    small = tuple(SegmentPart(("owned", "free")[index % 2], 512, 0 if index % 2 == 0 else None) for index in range(4_000))
    row = SegmentRow(64 * MIB, 0, "", False, (*small[:2_000], SegmentPart("owned", 62 * MIB, 3), *small[2_000:]))
    large = [part for part in row.thinned(charts.MOST_PARTS) if part.size_bytes > MIB]
    assert large == [SegmentPart("owned", 62 * MIB, 3)]
    same = SegmentRow(30, 0, "", False, (SegmentPart("free", 10), SegmentPart("free", 20)))
    assert same.thinned(9) == (SegmentPart("free", 30),)


def test_a_block_is_told_with_its_size_its_owner_and_what_it_keeps():
    owners = gpu_leak().devices[0].owners
    row = SegmentRow(512 * MIB, 0, "", False, (SegmentPart("owned", 2 * MIB, 1, True), SegmentPart("free", 510 * MIB)))
    picture = charts.segment_bar(row, owners)
    assert "<title>2.0 MiB, held by serve.client._tensor_cache[*], keeps the segment</title>" in picture
    assert 'segment of 512.0 MiB: 510.0 MiB free in 1 piece, 1 piece in use, 1 of them keep the free ones' in picture
    assert [kind for kind, _, _ in rects(picture)] == ["block o1", "pin", "block free"]


def test_the_bar_of_an_owner_marks_what_grew():
    picture = charts.owner_bar(DeviceOwner("a", 2 * GIB, GIB), 4 * GIB)
    assert rects(picture) == [("step grown", 0.0, 500.0), ("step blamed", 250.0, 500.0)]
    assert rects(charts.owner_bar(DeviceOwner("a", GIB, 3 * GIB), GIB))[-1] == ("step blamed", 0.0, 1000.0)
    assert len(rects(charts.owner_bar(DeviceOwner("a", GIB, None), GIB))) == 1
