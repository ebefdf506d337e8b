"""What our own walks do to the measured memory is kept out of the account."""

from __future__ import annotations

from leakscope.analyse import footprint, layers
from leakscope.analyse.layers import Window
from tests.detectors.cases import MIB, timeline


def test_what_our_own_walk_left_behind_is_taken_off():
    samples = timeline(40, anon_bytes=lambda t: 50 * MIB + t * MIB + (8 * MIB if t > 12 else 0), shmem_bytes=0)
    samples = [sample for sample in samples if not 10e9 < sample["t_ns"] < 13e9]
    cleaned = footprint.without_own_steps(samples, [Window(10.0, 13.0)])
    trend = layers.memory_trend(layers.private_memory(cleaned), Window(0.0, 40.0))
    assert trend is not None
    assert abs(trend.growth_bytes / MIB - 35) < 2
    assert samples[-1]["anon_bytes"] - cleaned[-1]["anon_bytes"] == 8 * MIB


def test_small_walks_leave_the_kernel_as_the_meter():
    samples = timeline(40, anon_bytes=lambda t: 50 * MIB + t * MIB, shmem_bytes=0)
    assert not footprint.program_memory(samples, 15_000 * footprint.WALK_BYTES, 64.0).is_estimated


def test_large_walks_are_replaced_by_the_meters_of_the_allocators():
    # the process never gets larger: it grows into what a walk of a million objects left behind
    samples = timeline(40, anon_bytes=300 * MIB, shmem_bytes=0, malloc_used_bytes=lambda t: 20 * MIB + t * MIB / 2,
                       malloc_free_bytes=0, py_blocks=lambda t: 1_000_000 + t * 8192)
    memory = footprint.program_memory(samples, 1_000_000 * footprint.WALK_BYTES, 64.0)
    assert memory.is_estimated
    trend = layers.memory_trend(memory.points, Window(0.0, 40.0))
    assert trend is not None
    assert abs(trend.slope.value / MIB - 1.0) < 0.05


def test_the_share_of_growth_in_the_last_part_of_a_run():
    window = Window(0.0, 60.0)
    seconds = [float(t) for t in range(61)]
    steady = footprint.late_share([(t, 1000 + 100 * t) for t in seconds], window, 0.35)
    ended = footprint.late_share([(t, 1000 + 100 * min(t, 30)) for t in seconds], window, 0.35)
    assert steady is not None
    assert abs(steady[1] - 0.35) < 0.05
    assert ended is not None
    assert ended[1] == 0
    assert footprint.late_share([(t, 1000.0) for t in seconds], window, 0.35) is None


def test_the_tables_of_tracemalloc_are_not_the_programs():
    samples = timeline(10, malloc_used_bytes=30 * MIB)
    samples[0]["tracemalloc_overhead_bytes"] = 10 * MIB
    cleaned = footprint.without_tracing(samples)
    assert (cleaned[0]["malloc_used_bytes"], cleaned[1]["malloc_used_bytes"]) == (20 * MIB, 30 * MIB)
    assert samples[0]["malloc_used_bytes"] == 30 * MIB


def test_time_in_our_pauses_is_no_time_in_which_the_program_stood_still():
    # it grew to 30 s, was walked for 20 s, and ended soon after
    points = [(float(t), 100.0 * t) for t in range(31)] + [(50.0 + t, 3000 + 100.0 * t) for t in range(6)]
    share = footprint.late_share(points, Window(0.0, 55.0), 0.35, [Window(30.0, 50.0)])
    assert share is not None
    assert abs(share[1] - 0.35) < 0.05


def test_growth_before_and_after_the_second_of_two_snapshots():
    points = [(float(t), 10.0 * t) for t in range(20)]
    assert footprint.growth_around(points, 2.0, 10.0) == (80.0, 80.0)
    assert footprint.growth_around(points, 2.0, 18.0) is None


def test_the_size_of_a_block_is_that_of_the_blocks_that_were_added():
    assert footprint.block_bytes([(100_000, 6_000_000), (200_000, 36_000_000)]) == 300.0
    assert footprint.block_bytes([(100_000, 6_000_000), (101_000, 8_000_000)]) == (60 + 8_000_000 / 101_000) / 2
    assert footprint.block_bytes([]) is None
