"""The allocator that stands in for a GPU's: its books, its block map and the waterfall agree after whatever was done."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fixtures.standin.allocator import MIB, Allocator, OutOfMemory
from fixtures.standin.allocator_forms import record
from leakscope.heap.blocks import Blocks, Totals

VERSIONS = [(2, minor) for minor in range(15)]
SIZES = st.sampled_from([1, 512, 513, 100_000, MIB, MIB + 1, 3 * MIB, 9 * MIB, 10 * MIB, 16 * MIB, 21 * MIB, 45 * MIB])
ACTIONS = st.one_of(
    st.tuples(st.just("allocate"), SIZES, st.integers(0, 1), st.booleans()),
    st.tuples(st.just("free"), st.integers(0, 99)), st.tuples(st.just("free"), st.integers(0, 99)),
    st.tuples(st.just("record_stream"), st.integers(0, 99), st.integers(0, 2)),
    st.tuples(st.just("synchronize"), st.sampled_from([None, 1, 2])),
    st.tuples(st.just("adopt"), st.integers(0, 30), SIZES), st.tuples(st.just("empty_cache")), st.tuples(st.just("workspace")))


def carried_out(device, actions):
    live, pool = [], device.new_pool()
    for name, *values in actions:
        if name == "allocate":
            try:
                live.append(device.allocate(values[0], values[1], pool if values[2] else None))
            except OutOfMemory:
                assert device.oom["requested_bytes"] >= values[0]
        elif name == "adopt":
            if has_room(device, values[1]):  # in a few MiB, so that memory that was handed out again is met
                new = device.adopt(0x10000 + values[0] * MIB, values[1])
                live = [*(address for address in live if address in device._live and address != new), new]
        elif name in ("free", "record_stream"):
            if live:
                address = live[values[0] % len(live)]
                device.free(live.pop(values[0] % len(live))) if name == "free" else device.record_stream(address, values[1])
        else:
            getattr(device, name)(*values)
        yield name


def has_room(device, size):
    return device.current("reserved_bytes") + size + device.outside_bytes <= device.capacity_bytes


@settings(max_examples=25, deadline=None)
@given(st.lists(ACTIONS, max_size=25), st.booleans(), st.sampled_from(VERSIONS), st.sampled_from([None, 8 * MIB]))
@example([("adopt", 0, 1), ("record_stream", 0, 1), ("adopt", 0, 1)], False, (2, 0), None)
@example([("adopt", 0, 1), ("record_stream", 0, 1), ("free", 0), ("adopt", 0, MIB)], False, (2, 13), None)
@example([("allocate", 1, 0, False)], True, (2, 0), None)
def test_the_waterfall_adds_up_after_whatever_was_done(actions, is_expandable, version, max_split):
    device = Allocator(capacity_bytes=900 * MIB, outside_bytes=100 * MIB, torch=version, is_expandable=is_expandable,
                       max_split_bytes=max_split)
    for _ in carried_out(device, actions):
        stats, blocks = device.stats(), Blocks.of(record([device]))
        current = {name.removesuffix(".all.current"): value for name, value in stats.items() if name.endswith(".all.current")}
        sums = blocks.totals(1)
        assert sums.reserved == current["reserved_bytes"] == blocks.segments.total_bytes.sum()
        assert sums.allocated == current["allocated_bytes"]
        assert sums.pending == current["active_bytes"] - current["allocated_bytes"]
        assert sums.inactive_split == current["inactive_split_bytes"]
        assert sums.releasable == current["reserved_bytes"] - current["active_bytes"] - current["inactive_split_bytes"] >= 0
        assert sums.rounding >= 0
        assert Totals(*map(sum, zip(*blocks.by_pool(1).values()))) == sums if len(blocks) else sums.reserved == 0
        order = blocks.address.argsort()
        ends = blocks.address + blocks.size_bytes
        assert (ends[order][:-1] <= blocks.address[order][1:]).all()
        if device.is_expandable:
            assert sums.inactive_split == 0


def test_smaller_free_blocks_do_not_serve_a_larger_request():
    """8 x 16 MiB, then 4 x 32 MiB: twice the memory is held (pytorch/devlogs 2026-06-01)."""
    held = {}
    for is_expandable in (False, True):
        device = Allocator(is_expandable=is_expandable)
        for address in [device.allocate(16 * MIB) for _ in range(8)]:
            device.free(address)
        for _ in range(4):
            device.allocate(32 * MIB)
        assert device.current("allocated_bytes") == 128 * MIB
        held[is_expandable] = device.current("reserved_bytes")
    assert held == {False: 256 * MIB, True: 140 * MIB}  # the last of 7 pages of 20 MiB is used in part


@pytest.mark.parametrize(("size", "held", "taken"), [
    (1, 2 * MIB, 512), (513, 2 * MIB, 1024), (MIB, 2 * MIB, MIB), (MIB + 1, 20 * MIB, MIB + 512),
    (9 * MIB, 20 * MIB, 9 * MIB), (11 * MIB, 12 * MIB, 12 * MIB), (20 * MIB + 1, 22 * MIB, 20 * MIB + 512)])
def test_sizes_are_rounded_as_pytorch_does(size, held, taken):
    device = Allocator()
    device.allocate(size)
    assert (device.current("reserved_bytes"), device.current("allocated_bytes")) == (held, taken)
    assert device.current("requested_bytes") == size


def test_a_block_that_another_stream_uses_waits_for_it():
    device = Allocator()
    address = device.allocate(4 * MIB)
    device.record_stream(address, 7)
    device.free(address)
    blocks = Blocks.of(record([device]))
    assert blocks.pending_by_stream(1) == {0: 4 * MIB}
    device.synchronize(3)
    assert device.current("active_bytes") == 4 * MIB
    device.synchronize(7)
    assert device.current("active_bytes") == 0 and device.current("reserved_bytes") == 20 * MIB


def test_the_segments_of_a_graph_stay_until_it_is_released():
    device = Allocator()
    pool = device.new_pool()
    device.free(device.allocate(30 * MIB, pool=pool))
    device.empty_cache()
    assert Blocks.of(record([device])).by_pool(1)[pool].releasable == 30 * MIB
    device.release_pool(pool)
    device.empty_cache()
    assert device.current("reserved_bytes") == 0


def test_out_of_memory_gives_the_cache_back_first_and_says_what_was_asked_for():
    device = Allocator(capacity_bytes=100 * MIB, outside_bytes=10 * MIB, recording="trace")
    device.free(device.allocate(60 * MIB))
    kept = device.allocate(70 * MIB)
    assert device.books.counters["num_alloc_retries"] == 1
    with pytest.raises(OutOfMemory):
        device.allocate(40 * MIB, frames=[("serve.py", 12, "embed")])
    assert device.oom["requested_bytes"] == 40 * MIB and device.oom["free_bytes"] == 20 * MIB
    assert device.snapshot()["device_traces"][0][-1]["action"] == "oom"
    device.free(kept)


def test_one_workspace_for_each_thread_and_stream():
    device = Allocator()
    for thread, stream in ((0, 0), (0, 0), (1, 0), (1, 1)):
        device.workspace(thread, stream)
    assert device.current("allocated_bytes") == 3 * 33_554_432


def test_real_memory_is_shown_as_a_block_until_its_owner_dies():
    class Owner:
        pass

    device, owner = Allocator(), Owner()
    device.adopt(0x5000, 1000, owner=owner)
    blocks = Blocks.of(record([device]))
    assert (blocks.address[0], blocks.size_bytes[0], blocks.state[0]) == (0x5000, 1000, 0)
    assert device.stats()["num_device_alloc"] == 0  # nothing was asked of a driver
    del owner
    assert device.current("allocated_bytes") == 0 == device.current("reserved_bytes")


def test_what_it_writes_says_that_it_is_simulated_and_names_this_process(tmp_path):
    device = Allocator(recording="state")
    device.allocate(MIB)
    device.write(str(tmp_path))
    said, seen = (json.loads((tmp_path / name).read_text()) for name in ("device.json", "nvml.json"))
    assert said["simulated"] is True and seen["simulated"] is True
    assert said["segments"][0]["blocks"][0]["frames"] == 0 and said["frames"][0][0][2].startswith("test_what_it_writes")
    assert seen["devices"][0]["used_bytes"] == device.outside_bytes + 2 * MIB
    assert {path.name for path in tmp_path.iterdir()} == {"device.json", "nvml.json"}
