"""Block maps of every version of torch become the same arrays, and two of them are compared by what the blocks are."""

from __future__ import annotations

import numpy as np
import pytest

from fixtures.standin.allocator import MIB, Allocator
from fixtures.standin.allocator_forms import record
from leakscope.heap.blocks import ALLOCATED, FREE, PENDING, Blocks


def segment(*blocks, address=1 << 30, **more):
    return {"device": 0, "address": address, "total_size": sum(block["size"] for block in blocks), "stream": 0,
            "segment_type": "large", "blocks": list(blocks), **more}


def block(size, state="active_allocated", **more):
    return {"size": size, "state": state, **more}


def test_blocks_without_an_address_lie_behind_each_other():
    blocks = Blocks.of({"segments": [segment(block(512), block(1024, "inactive")), segment(block(2048), address=1 << 33)]})
    assert blocks.address.tolist() == [1 << 30, (1 << 30) + 512, 1 << 33]
    assert blocks.segment.tolist() == [0, 0, 1]


def test_a_segment_without_blocks_moves_no_address():
    rows = segment(block(512)), segment(address=7), segment(block(1024), address=1 << 33), segment()
    blocks = Blocks.of({"segments": list(rows)})
    assert blocks.address.tolist() == [1 << 30, 1 << 33]
    assert np.diff(blocks.segments.first_block).tolist() == [1, 0, 1, 0]


@pytest.mark.parametrize(("state", "code"), [("active_allocated", ALLOCATED), ("active_pending_free", PENDING),
                                             ("active_awaiting_free", PENDING), ("inactive", FREE), ("of_2.20", ALLOCATED)])
def test_both_spellings_of_a_state_are_read_and_an_unknown_one_counts_as_in_use(state, code):
    assert Blocks.of({"segments": [segment(block(512, state))]}).state.tolist() == [code]


@pytest.mark.parametrize("minor", range(15))
def test_every_version_gives_the_same_sums_and_addresses(minor):
    device, newest = Allocator(torch=(2, minor), recording="state"), Allocator(torch=(2, 14), recording="state")
    found = []
    for each in (device, newest):
        pool = each.new_pool()
        kept = [each.allocate(size, stream, pool if stream else None, [("a.py", size, "f")])
                for stream in (0, 1) for size in (100, 3 * MIB, 30 * MIB)]
        each.record_stream(kept[1], 9)
        for address in kept[:2]:
            each.free(address)
        found.append(Blocks.of(record([each])))
    mine, theirs = found
    assert mine.totals() == theirs.totals()
    assert mine.address.tolist() == theirs.address.tolist()
    assert [mine.frames[row][0] for row in mine.site if row >= 0] == [theirs.frames[row][0] for row in theirs.site if row >= 0]
    assert mine.pools == (((0, 0), (1, 0)) if minor else ((0, 0),))  # 2.0 does not tell private pools


def test_what_cannot_be_read_counts_as_not_there():
    odd = [None, {"size": "9", "state": []}, {"size": -1}, {"size": 1 << 70}, {"size": (1 << 64) - 1}]
    record = {"segments": [None, 7, {"blocks": 3}, {"blocks": odd, "device": "x", "segment_pool_id": "no", "stream": None}],
              "frames": [None, [["a.py", 1, "f"], 3]], "devices": [None, {}, {"name": "tpu:9", "ordinal": 0}]}
    blocks = Blocks.of(record)
    assert blocks.size_bytes.tolist() == [0, 0, 0, 0] and blocks.frames == ((), (("a.py", 1, "f"), ("", 0, "")))
    assert blocks.totals().reserved == 0 and blocks.totals().requested is None


def test_nothing_is_no_map():
    blocks = Blocks.of({})
    assert not blocks.has_map and len(blocks) == 0 and blocks.totals().reserved == 0 and blocks.device_codes == ()


def test_free_pieces_of_a_partly_used_segment_are_split_and_whole_segments_are_releasable():
    blocks = Blocks.of({"segments": [
        segment(block(512), block(1536, "inactive")), segment(block(4096, "inactive"), address=1 << 33),
        segment(block(512), block(1536, "inactive"), address=1 << 34, is_expandable=True)]})
    totals = blocks.totals()
    assert (totals.allocated, totals.inactive_split, totals.releasable) == (1024, 1536, 4096 + 1536)
    assert totals.reserved == totals.allocated + totals.pending + totals.inactive_split + totals.releasable


def test_rounding_is_told_only_where_all_blocks_say_what_was_asked_for():
    known = Blocks.of({"segments": [segment(block(512, requested_size=12), block(512, "inactive"))]})
    assert known.totals().rounding == 500
    unknown = Blocks.of({"segments": [segment(block(512, requested_size=12), block(512))]})
    assert unknown.totals().rounding is None and unknown.requested_bytes.tolist() == [512, 512]


def test_devices_are_told_apart_by_name():
    record = {"segments": [segment(block(512)), segment(block(1024), address=1 << 33, device=1)]}
    assert Blocks.of(record).device.tolist() == [1, 2]
    assert Blocks.of(record | {"provider": "xpu"}).device.tolist() == [128, 129]
    blocks = Blocks.of(record | {"devices": [{"name": "xpu:1", "ordinal": 1}]})
    assert blocks.device.tolist() == [1, 129] and blocks.totals(129).reserved == 1024


def test_a_block_at_a_used_address_is_new_unless_size_and_frames_are_the_same():
    def at(*sizes_and_frames, frames):
        return Blocks.of({"frames": [[[name, 1, "f"]] for name in frames],
                          "segments": [segment(*(block(size, frames=row) for size, row in sizes_and_frames))]})

    before = at((512, 0), (512, 1), (1024, 0), (512, -1), frames="ab")
    after = at((512, 1), (512, 1), (512, 1), (512, 0), (512, 0), frames="ba")
    change = after.since(before)
    assert change.kept.tolist() == [True, False, False, False, True]  # "a" is row 1 now; the last had no frames before
    assert change.new.tolist() == [False, True, True, True, False]
    assert change.gone.tolist() == [False, True, True, False]
    assert after.since(Blocks.of({})).new.all() and Blocks.of({}).since(before).gone.all()


def test_free_blocks_neither_come_nor_go():
    before = Blocks.of({"segments": [segment(block(512, "inactive"), block(512))]})
    after = Blocks.of({"segments": [segment(block(512), block(512, "inactive"))]})
    change = after.since(before)
    assert (change.new.tolist(), change.gone.tolist(), change.kept.any()) == ([True, False], [False, True], False)


def test_bytes_by_origin_come_with_the_largest_first():
    rows = block(512, frames=0), block(2048, frames=1), block(1024, frames=0), block(64, frames=9)
    blocks = Blocks.of({"frames": [[["a.py", 1, "f"]], [["b.py", 2, "g"]]], "segments": [segment(*rows)]})
    assert list(blocks.by_site(blocks.is_used).items()) == [(1, 2048), (0, 1536), (-1, 64)]
