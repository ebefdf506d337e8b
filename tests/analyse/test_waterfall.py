"""The account of a device: terms that add up, and growth that is told from noise, start-up and plateaus. All simulated."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.standin.allocator import Allocator
from fixtures.standin.allocator_forms import record
from leakscope.analyse.devices import devices_of, names_of
from leakscope.analyse.layers import Window
from leakscope.analyse.ownership import Owned, join
from leakscope.analyse.waterfall import TERMS, Judged, after_start_up, courses, judged, least_growth
from leakscope.heap.blocks import Blocks
from tests.heaps import heap

MIB, GIB = 1 << 20, 1 << 30
H200_BYTES = 141 * 10**9
SECONDS = 100
WINDOW = Window(20.0, 100.0)


def points(course: Any) -> list[tuple[float, float]]:
    return [(float(t), float(course(t))) for t in range(SECONDS + 1)]


def growth_of(course: Any, total: int | None = 16 * GIB, **more: Any) -> Judged:
    return judged(points(course), WINDOW, total, **more)


def sample(t_s: float, prefix: str = "cuda0_", **values: int) -> dict[str, Any]:
    return {"t_ns": int(t_s * 1e9), **{f"{prefix}{name}_bytes": value for name, value in values.items()}}


SIZES = st.integers(0, 1 << 40)


@given(st.lists(st.tuples(SIZES, SIZES, SIZES, SIZES, SIZES), min_size=1, max_size=12),
       st.lists(st.tuples(SIZES, SIZES, SIZES), min_size=2, max_size=5))
def test_the_terms_add_up_to_what_is_used_at_every_sample(rows, snapshots):
    timeline = []
    for number, (allocated, pending, split, free, outside) in enumerate(rows):
        reserved = allocated + pending + split + free
        timeline.append(sample(number, allocated=allocated, active=allocated + pending, inactive_split=split,
                               reserved=reserved, process=reserved + outside))
    seen = [(2.0 * number, Owned(sum(each), each[0], each[1], 1, 0, each[2])) for number, each in enumerate(snapshots)]
    found = courses(timeline, "cuda0_", seen)
    for number, row in enumerate(timeline):
        values = [found[name][number][1] for name in TERMS]
        assert sum(values) == pytest.approx(row["cuda0_process_bytes"], rel=1e-9, abs=1)
        assert min(values) >= 0


@given(st.lists(st.sampled_from(["allocated", "active", "reserved", "inactive_split", "process"]), unique=True))
def test_a_term_whose_parts_were_not_measured_is_not_there(measured):
    timeline = [sample(t, **dict.fromkeys(measured, 1000 * MIB)) for t in range(30)]
    (device,) = devices_of(timeline, Window(5, 29), [], {"cuda:0": "exact"}) or (None,) if measured else (None,)
    if device is None:
        return
    known = {name for name, term in device.terms.items() if term.growth_bytes is not None}
    needs = {"outside": {"process", "reserved"}, "pending": {"active", "allocated"}, "inactive_split": {"inactive_split"},
             "releasable": {"reserved", "active", "inactive_split"}}
    assert known == {name for name, parts in needs.items() if parts <= set(measured)}
    assert {name for name, value in device.layer.terms.items() if value is None} == set(TERMS) - known


def test_memory_that_no_meter_gave_is_unknown_and_not_nothing():
    (device,) = devices_of([sample(t, allocated=MIB) for t in range(30)], Window(5, 29), [], {})
    assert device.terms["outside"].growth_bytes is None and device.use_quality == "unknown"
    assert any("NVML" in text for text in device.unmeasured) and device.measure == "allocated"


# --- growth ----------------------------------------------------------------------------------------------------------


def test_a_steady_growth_goes_on():
    found = growth_of(lambda t: (500 + 10 * t) * MIB)
    assert found.growth is not None and found.growth.is_steady and not found.has_ended
    assert found.growth.slope.value == pytest.approx(10 * MIB)
    assert found.growth.bytes > found.growth.tail_bytes > 0


def test_a_growth_that_levels_off_has_ended():
    found = growth_of(lambda t: 500 * MIB + 800 * MIB * (1 - math.exp(-t / 15)), total=8 * GIB)
    assert found.growth is None and found.has_ended and found.growth_bytes > 64 * MIB


def test_ups_and_downs_are_no_growth():
    found = growth_of(lambda t: (900 + 400 * math.sin(2.3 * t)) * MIB)
    assert found.growth is None and not found.has_ended


def test_a_growth_below_one_percent_of_the_device_does_not_matter():
    assert growth_of(lambda t: 3 * t * MIB, total=16 * GIB).growth is not None
    assert growth_of(lambda t: 3 * t * MIB, total=H200_BYTES).growth is None
    assert growth_of(lambda t: 3 * t * MIB, total=None).growth is not None
    assert growth_of(lambda t: 0.5 * t * MIB, total=None).growth is None


def test_a_small_device_is_judged_by_its_own_size():
    assert least_growth(256 * MIB) == 256 * MIB // 100 and least_growth(None) == 64 * MIB
    assert growth_of(lambda t: t * MIB / 10, total=256 * MIB).growth is not None


def test_a_staircase_that_goes_on_is_a_growth():
    assert growth_of(lambda t: (t // 25) * 200 * MIB).growth is not None


def test_one_step_that_stays_has_ended():
    found = growth_of(lambda t: (300 if t > 45 else 0) * MIB, total=8 * GIB)
    assert found.growth is None


def test_growth_is_told_per_unit_of_work_where_it_was_counted():
    timeline = [{"t_ns": int(t * 1e9), "work_count": 5 * t} for t in range(SECONDS + 1)]
    found = growth_of(lambda t: 10 * t * MIB, timeline=timeline)
    assert found.growth.per_work.value == pytest.approx(2 * MIB)


def test_a_model_that_is_loaded_late_is_start_up():
    course = points(lambda t: (14 * GIB if t > 30 else 0) + 10 * t * MIB)
    window = after_start_up(course, WINDOW, 40 * GIB)
    assert 30 < window.start_s < 50
    assert judged(course, WINDOW, 40 * GIB).growth_bytes > 14 * GIB > judged(course, window, 40 * GIB).growth_bytes


def test_a_step_after_which_nothing_comes_is_the_growth_itself():
    course = points(lambda t: (14 * GIB if t > 30 else 0))
    assert after_start_up(course, WINDOW, 80 * GIB) == WINDOW


# --- parts at snapshots ----------------------------------------------------------------------------------------------


def timeline_of(allocated: Any) -> list[dict[str, Any]]:
    return [sample(t, allocated=int(allocated(t)), active=int(allocated(t)), reserved=int(allocated(t)), inactive_split=0)
            for t in range(SECONDS + 1)]


def device_of(allocated: Any, parts: list[tuple[int, int, int, int]]) -> Any:
    """`parts`: (seconds, owned, workspaces, unowned) in MiB."""
    class One:
        def __init__(self, owned: Owned) -> None:
            self.owned = owned
            self.is_by_block = True

        def of_device(self, name: str) -> Owned:
            return self.owned

    class Map:
        has_map = True
        info = {"devices": [{"name": "cuda:0", "ordinal": 0, "total_bytes": 8 * GIB}], "backend": "native"}

    seen = [(float(t), Map(), One(Owned((a + b + c) * MIB, a * MIB, b * MIB, 1, 0, c * MIB))) for t, a, b, c in parts]
    (device,) = devices_of(timeline_of(allocated), WINDOW, seen, {})
    return device


def test_what_grows_is_the_part_that_grew_between_the_snapshots():
    device = device_of(lambda t: (100 + 10 * t) * MIB, [(30, 350, 8, 42), (60, 650, 8, 42), (90, 950, 8, 42)])
    grown = {name: term.growth_bytes for name, term in device.terms.items()}
    assert grown["allocated_owned"] > 600 * MIB and grown["workspaces"] == grown["allocated_unowned"] == 0
    assert device.terms["allocated_owned"].growth is not None and device.terms["allocated_unowned"].growth is None
    assert device.explained_ratio == 1.0 and device.info["total_bytes"] == 8 * GIB and device.about["backend"] == "native"


def test_blocks_without_an_owner_are_told_apart_from_tensors():
    device = device_of(lambda t: (100 + 10 * t) * MIB, [(30, 350, 8, 42), (60, 350, 8, 342), (90, 350, 8, 642)])
    assert device.terms["allocated_unowned"].growth is not None and device.terms["allocated_unowned"].is_interpolated
    assert device.terms["allocated_owned"].growth is None and device.explained_ratio == pytest.approx(0, abs=0.05)


def test_a_part_that_fell_between_two_snapshots_does_not_grow():
    parts = [(30, 350, 8, 42), (50, 350, 8, 342), (70, 580, 8, 200), (90, 350, 8, 642)]
    device = device_of(lambda t: (100 + 10 * t) * MIB, parts)
    assert device.terms["allocated_unowned"].growth is None


def test_one_snapshot_tells_no_parts():
    device = device_of(lambda t: (100 + 10 * t) * MIB, [(30, 350, 8, 42)])
    assert device.terms["allocated_owned"].growth_bytes is None and device.wholes["allocated"].growth is not None


def test_what_is_used_stands_for_the_device_only_where_it_is_well_known():
    timeline = [sample(t, allocated=GIB, active=GIB, reserved=GIB, inactive_split=0, process=GIB + 10 * t * MIB)
                for t in range(SECONDS + 1)]
    (known,), (vague,) = (devices_of(timeline, WINDOW, [], {"cuda:0": quality}) for quality in ("exact", "approximate"))
    assert known.growth is not None and known.measure == "used" and known.terms["outside"].growth is not None
    assert vague.growth is None and vague.measure == "reserved"


def test_what_others_use_is_not_there_for_the_process():
    timeline = [sample(t, allocated=GIB, reserved=GIB, process=2 * GIB, used=5 * GIB) for t in range(SECONDS)]
    class Map:
        has_map = False
        info = {"devices": [{"name": "cuda:0", "total_bytes": 8 * GIB}]}
    class Nothing:
        is_by_block = False
        def of_device(self, name: str) -> None:
            return None
    (device,) = devices_of(timeline, WINDOW, [(1.0, Map(), Nothing())], {"cuda:0": "exact"})
    assert device.limit_bytes == 5 * GIB


@pytest.mark.parametrize(("columns", "names"), [
    (["cuda0_allocated_bytes", "cuda11_ooms", "rss_bytes"], ["cuda:0", "cuda:11"]), (["xpu1_reserved_bytes"], ["xpu:1"]),
    (["mps0_allocated_bytes"], ["mps:0"]), (["cuda_x", "pinned_held_bytes"], [])])
def test_devices_are_those_of_the_columns(columns, names):
    assert names_of([{"t_ns": 0, **dict.fromkeys(columns, 1)}]) == names


def test_a_device_that_only_a_snapshot_names_is_one():
    assert names_of([], [{"name": "cuda:1"}, {"name": "meta"}, {}]) == ["cuda:1"]


# --- with the allocator that stands in for a GPU's -------------------------------------------------------------------------


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["allocate", "free", "lose", "workspace", "empty_cache"]),
                          st.integers(1, 40 * MIB)), min_size=8, max_size=40))
def test_the_terms_of_a_simulated_allocator_add_up_to_what_the_process_uses(actions):
    allocator, live, timeline, seen = Allocator(), [], [], []
    graph = heap("module app\napp .t -> t:torch.Tensor\nt <storage> -> storage 1KiB")
    allocator.allocate(1)  # so that there is a map of blocks at every snapshot
    for number, (what, size) in enumerate(actions):
        if what in ("allocate", "lose"):
            address = allocator.allocate(size)
            live += [address] * (what == "allocate")  # what is lost stays allocated, and no tensor lies in it
        elif what == "free" and live:
            allocator.free(live.pop(size % len(live)))
        elif what == "workspace":
            allocator.workspace(thread=size % 3)
        elif what == "empty_cache":
            allocator.empty_cache()
        values = {name: allocator.current(f"{name}_bytes") for name in ("allocated", "active", "reserved", "inactive_split")}
        timeline.append(sample(number, process=values["reserved"] + allocator.outside_bytes, **values))
        if number % 4 == 3:
            graph.storage_address, graph.storage_node = np.array(live, "u8"), np.full(len(live), 2, "u4")
            blocks = Blocks.of(record([allocator]))
            seen.append((float(number), blocks, join(graph, blocks)))
    (device,) = devices_of(timeline, Window(0, len(actions)), seen, {"cuda:0": "exact"})
    for number, row in enumerate(timeline):
        parts = {name: dict(term.points)[float(number)] for name, term in device.terms.items()}
        assert sum(parts.values()) == pytest.approx(row["cuda0_process_bytes"], abs=1)
        assert parts["outside"] == allocator.outside_bytes
    for t_s, _, ownership in seen:  # at a snapshot nothing is a line: the parts are those of the join
        owned, parts = ownership.of_device("cuda:0"), {name: dict(term.points)[t_s] for name, term in device.terms.items()}
        assert (parts["allocated_owned"], parts["workspaces"], parts["allocated_unowned"]) == (
            owned.owned_bytes, owned.workspace_bytes, owned.without_owner_bytes)


def test_where_one_snapshot_does_not_tell_workspaces_apart_none_does():
    seen = [(0.0, Owned(10 * MIB, 4 * MIB, 2 * MIB, 1, 0, 4 * MIB)), (9.0, Owned(12 * MIB, 4 * MIB, None, None, None, 8 * MIB))]
    found = courses([sample(t, allocated=12 * MIB) for t in range(10)], "cuda0_", seen)
    assert found["workspaces"] == [] and found["allocated_unowned"][0][1] == 6 * MIB
