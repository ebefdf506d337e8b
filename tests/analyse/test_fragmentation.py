"""Free memory that does not serve: tried on the simulated allocator, whose own refusals are the truth."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.standin.allocator import MIB, Allocator, OutOfMemory
from fixtures.standin.allocator_forms import record
from leakscope.analyse import fragmentation
from leakscope.heap.blocks import Blocks

CUDA0 = 1


def seen(device):
    return Blocks.of(record([device]))


def holes(count=8, size=16 * MIB):
    """`count` free blocks that never become one."""
    device = Allocator(capacity_bytes=count * size + 100 * MIB, outside_bytes=50 * MIB)
    for address in [device.allocate(size) for _ in range(count)]:
        device.free(address)
    return device


def test_enough_is_free_and_no_piece_is_large_enough():
    found = fragmentation.fit(seen(holes()), CUDA0, 32 * MIB)
    assert found.is_fragmented and not found.fits
    assert (found.free_bytes, found.eligible_bytes, found.largest_eligible_bytes) == (128 * MIB, 128 * MIB, 16 * MIB)


def test_a_request_that_is_larger_than_all_that_is_free_is_not_fragmentation():
    found = fragmentation.fit(seen(holes()), CUDA0, 129 * MIB)
    assert not found.is_fragmented and not found.fits


def test_free_memory_of_another_stream_pool_or_size_class_does_not_serve():
    device = Allocator()
    pool = device.new_pool()
    for address in (device.allocate(30 * MIB, stream=7), device.allocate(40 * MIB, pool=pool), device.allocate(1000)):
        device.free(address)
    found = fragmentation.fit(seen(device), CUDA0, 25 * MIB)
    assert found.is_fragmented and found.largest_eligible_bytes == 0
    assert (found.other_stream_bytes, found.other_pool_bytes, found.other_class_bytes) == (30 * MIB, 40 * MIB, 2 * MIB)
    assert fragmentation.fit(seen(device), CUDA0, 25 * MIB, stream=7).fits
    assert fragmentation.fit(seen(device), CUDA0, 25 * MIB, pool=pool).fits
    assert not fragmentation.fit(seen(device), CUDA0, 25 * MIB, pool=(9, 9)).fits
    assert fragmentation.fit(seen(device), CUDA0, 100).fits


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([300, MIB, 3 * MIB, 12 * MIB, 40 * MIB]), st.booleans()), max_size=20),
       st.sampled_from([400, 2 * MIB, 11 * MIB, 30 * MIB]))
def test_what_fits_is_what_the_allocator_serves_without_the_driver(sizes, request_bytes):
    device = Allocator()
    for address in [device.allocate(size) for size, is_freed in sizes if is_freed or device.allocate(size)]:
        device.free(address)
    found, held = fragmentation.fit(seen(device), CUDA0, request_bytes), device.current("reserved_bytes")
    device.allocate(request_bytes)
    assert device.current("reserved_bytes") - held == (0 if found.fits else found.driver_bytes)


def test_the_request_that_ran_out_of_memory_is_read_from_the_record():
    device = holes()
    kept = [device.allocate(12 * MIB) for _ in range(8)]  # so that nothing can be given back
    with pytest.raises(OutOfMemory):
        device.allocate(180 * MIB)
    code, found = fragmentation.fit_of_oom(seen(device))
    assert code == CUDA0 and found.request_bytes == 180 * MIB and not found.is_fragmented
    assert kept and fragmentation.fit_of_oom(seen(holes())) is None
    device.oom["device"] = "cuda:0"  # as an agent writes it
    assert fragmentation.fit_of_oom(seen(device)) == (code, found)
    device.oom["is_last"] = False
    assert fragmentation.fit_of_oom(seen(device)) is None  # the map is of a later moment


@pytest.mark.parametrize(("freed", "is_told", "is_fragmented"), [(None, False, False), (0, True, True), (90, True, True),
                                                                 (100, True, False)])
def test_what_was_freed_after_the_request_was_not_free_then(freed, is_told, is_fragmented):
    device = holes()  # 128 MiB in pieces of 16
    device.oom = {"device": 0, "requested_bytes": 32 * MIB, "is_last": False,
                  "freed_since_bytes": freed if freed is None else freed * MIB}
    found = fragmentation.fit_of_oom(seen(device))
    assert (found is not None) is is_told
    assert not is_told or (found[1].is_fragmented, found[1].free_bytes) == (is_fragmented, (128 - freed) * MIB)


def test_a_request_that_would_fit_now_says_nothing_of_then():
    device = holes()
    device.oom = {"device": 0, "requested_bytes": 16 * MIB, "is_last": False, "freed_since_bytes": 16 * MIB}
    assert fragmentation.fit_of_oom(seen(device)) is None


@pytest.mark.parametrize("oom", [None, 3, {}, {"requested_bytes": "x"}, {"requested_bytes": 5, "device": 4},
                                 {"requested_bytes": -1}])
def test_a_record_of_an_oom_that_cannot_be_read_is_none(oom):
    blocks = Blocks.of(record([holes()]) | {"oom": oom})
    assert fragmentation.fit_of_oom(blocks) is None


def partly_free():
    """Two segments of 20 MiB: 2 MiB keep 18 MiB, 3 + 9 MiB keep 8 MiB; and one that is wholly in use."""
    device = Allocator(recording="state")
    one = [device.allocate(size, frames=[("serve.py", size, "f")]) for size in (2 * MIB, 18 * MIB)]
    two = [device.allocate(size, frames=[("serve.py", size, "f")]) for size in (3 * MIB, 8 * MIB, 9 * MIB)]
    device.allocate(22 * MIB)
    device.free(one[1])
    device.free(two[1])
    return device


def test_segments_are_pinned_by_what_is_in_use_in_them():
    blocks = seen(partly_free())
    found = fragmentation.pinned(blocks, CUDA0)
    assert [(each.kept_bytes, each.used_bytes, len(each.rows)) for each in found] == [
        (18 * MIB, 2 * MIB, 1), (8 * MIB, 12 * MIB, 2)]
    assert sum(each.kept_bytes for each in found) == blocks.totals().inactive_split


def test_what_is_pinned_is_shared_among_the_owners_by_their_bytes():
    blocks = seen(partly_free())
    owner = np.where(blocks.size_bytes == 2 * MIB, 7, np.where(blocks.size_bytes == 9 * MIB, 8, -1))
    found = fragmentation.pinned_by(blocks, owner, CUDA0)
    assert [(each.owner, each.kept_bytes, each.used_bytes) for each in found] == [
        (7, 18 * MIB, 2 * MIB), (8, 6 * MIB, 9 * MIB), (-1, 2 * MIB, 3 * MIB)]


def test_nothing_is_pinned_where_nothing_is_free():
    blocks = Blocks.of({})
    assert fragmentation.pinned(blocks, CUDA0) == fragmentation.pinned_by(blocks, blocks.address, CUDA0) == []
    assert fragmentation.rounding(blocks, CUDA0) == [] and fragmentation.segment_map(blocks, CUDA0) == []
    assert fragmentation.largest_free(blocks, CUDA0) == 0 and not fragmentation.fit(blocks, CUDA0, 5).is_fragmented


def test_expandable_segments_keep_only_what_is_no_whole_page():
    device = Allocator(is_expandable=True)
    for address in [device.allocate(30 * MIB) for _ in range(4)][1:3]:
        device.free(address)
    blocks = seen(device)  # used 0-30 and 90-120, free 30-90: the pages at 40 and 60 can go
    assert blocks.totals().inactive_split == 0 and blocks.totals().releasable == 60 * MIB
    assert [each.kept_bytes for each in fragmentation.pinned(blocks, CUDA0)] == [20 * MIB]
    held = device.current("reserved_bytes")
    device.empty_cache()
    assert held - device.current("reserved_bytes") == 40 * MIB


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([300, MIB, 3 * MIB, 12 * MIB, 40 * MIB]), st.booleans()), max_size=20), st.booleans())
def test_what_is_not_stuck_is_what_the_allocator_gives_back(sizes, is_expandable):
    device = Allocator(is_expandable=is_expandable)
    for address in [device.allocate(size) for size, is_freed in sizes if is_freed or device.allocate(size)]:
        device.free(address)
    blocks, held = seen(device), device.current("reserved_bytes")
    free = int(blocks.size_bytes[~blocks.is_used].sum())
    device.empty_cache()
    assert held - device.current("reserved_bytes") == free - int(fragmentation.stuck(blocks).sum())


def test_rounding_names_the_sizes_that_waste_most():
    device = Allocator()
    for _ in range(3):
        device.allocate(513)
    device.allocate(1)
    device.allocate(1024)
    assert fragmentation.rounding(seen(device), CUDA0) == [(513, 1024, 3, 1533), (1, 512, 1, 511)]
    assert fragmentation.rounding(seen(device), CUDA0, 1)[0].block_count == 3


def test_the_map_shows_the_segments_with_most_pieces_first_and_their_blocks_by_address():
    blocks = seen(partly_free())
    found = fragmentation.segment_map(blocks, CUDA0)
    assert [blocks.size_bytes[rows].tolist() for _, rows in found] == [
        [2 * MIB, 18 * MIB], [3 * MIB, 8 * MIB, 9 * MIB], [22 * MIB]]
    assert all(blocks.size_bytes[rows].sum() == blocks.segments.total_bytes[row] for row, rows in found)


def test_devices_are_not_mixed():
    first, second = holes(), Allocator(ordinal=1)
    second.free(second.allocate(64 * MIB))
    blocks = Blocks.of(record([first, second]))
    assert fragmentation.largest_free(blocks, 1) == 16 * MIB and fragmentation.largest_free(blocks, 2) == 64 * MIB
    assert fragmentation.fit(blocks, 2, 32 * MIB).fits and not fragmentation.fit(blocks, 1, 32 * MIB).fits
