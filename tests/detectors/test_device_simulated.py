"""The detectors on what a simulated allocator writes while a program runs on it: its own books, not series drawn by hand."""

from __future__ import annotations

from fixtures.standin.allocator import MIB, Allocator, OutOfMemory
from fixtures.standin.allocator_forms import record
from leakscope.agent.devices import _COLUMNS
from leakscope.case import Case
from leakscope.model import Confidence, Finding
from tests.detectors.cases import detected
from tests.heaps import heap

GIB, SECONDS, SNAPSHOTS = 1 << 30, 60, (15, 25, 35, 45, 55)


def ran(work, text="module app", **options):
    """The case of a program that calls work(device, second) once a second."""
    device = Allocator(**{"capacity_bytes": 6 * GIB, **options})
    rows, graphs = [], []
    for second in range(SECONDS):
        work(device, second)
        stats = device.stats()
        row = {f"cuda0_{name}": stats[key] for name, *keys in _COLUMNS for key in map(".".join, keys) if key in stats}
        rows.append({"t_ns": second * 10**9, "modules": 300, "rss_bytes": 900 * MIB, "anon_bytes": 800 * MIB,
                     "cuda0_process_bytes": device.outside_bytes + stats["reserved_bytes.all.current"], **row})
        if second in SNAPSHOTS:
            graphs.append(heap(text, t_s=second))
            graphs[-1].devices = record([device])
    return Case(graphs, rows, {"pid": 7, "packages": {"torch": "2.13.0"}}, use_quality={"cuda:0": "exact"})


def findings(case):
    return {each.rule.code: each for each in detected(case)[0] if isinstance(each, Finding)}


def mosaic(device, second):
    """Each request has a stream of its own, and leaves a small result in the segment of its large buffer."""
    device.free(device.allocate(40 * MIB, stream=second))
    device.allocate(1100 * 1024, stream=second, frames=[("serve.py", 9, "keep")])


def test_long_lived_blocks_in_large_segments_are_fragmentation():
    found = findings(ran(mosaic, recording="state"))
    assert "LS413" in found and found["LS413"].confidence is not Confidence.LOW
    assert found["LS413"].site.function == "keep" and "expandable_segments:True" in found["LS413"].remedy
    assert any("streams: a free piece serves only" in reason for reason in found["LS413"].reasons)


def test_with_expandable_segments_the_same_program_is_not_and_is_not_told_to_turn_them_on():
    found = findings(ran(mosaic, recording="state", is_expandable=True))
    assert "LS413" not in found and all("expandable_segments:True" not in each.remedy for each in found.values())


def test_buffers_of_one_size_that_come_and_go_are_nothing():
    def work(device, second):
        for address in [device.allocate(40 * MIB) for _ in range(10)]:
            device.free(address)

    assert findings(ran(work)) == {}


def test_frees_that_wait_for_a_stream_that_is_never_waited_for_are_deferred():
    def work(device, second):
        address = device.allocate(30 * MIB, frames=[("feed.py", 4, "send")])
        device.record_stream(address, 7)
        device.free(address)

    found = findings(ran(work, recording="state"))
    assert list(found) == ["LS415"] and found["LS415"].confidence is Confidence.HIGH
    assert found["LS415"].site.function == "send"


def test_the_same_with_a_wait_now_and_then_is_nothing():
    def work(device, second):
        address = device.allocate(30 * MIB)
        device.record_stream(address, 7)
        device.free(address)
        if second % 4 == 0:
            device.synchronize(7)

    assert findings(ran(work)) == {}


def test_captures_that_fail_leave_their_pools():
    def work(device, second):
        pool = device.new_pool()  # never released
        device.free(device.allocate(30 * MIB, pool=pool))

    found = findings(ran(work))
    assert list(found) == ["LS407"] and found["LS407"].object_count >= 30
    assert "#190348" in found["LS407"].remedy


def test_a_workspace_for_each_new_thread_is_told_as_such():
    found = findings(ran(lambda device, second: device.workspace(thread=second)))
    assert list(found) == ["LS408"] and "usually not a leak" in found["LS408"].doubts[0]


def test_blocks_that_no_tensor_lies_in_are_those_of_c():
    found = findings(ran(lambda device, second: device.allocate(25 * MIB, frames=[("ddp.py", 3, "bucket")]), recording="state"))
    assert list(found) == ["LS410"] and found["LS410"].owner.endswith("bucket()")


def test_out_of_memory_with_enough_free_memory_in_pieces_is_told_with_its_numbers():
    def work(device, second):
        if second == 10:
            holes = [device.allocate(16 * MIB) for _ in range(50)]
            for address in holes:
                device.free(address)
        if second == 54:
            device.capacity_bytes = device.outside_bytes + device.current("reserved_bytes")
            pairs = [(device.allocate(14 * MIB), device.allocate(2 * MIB)) for _ in range(50)]  # one of each in a segment
            for large, _ in pairs:
                device.free(large)
            try:
                device.allocate(200 * MIB)
            except OutOfMemory:
                pass

    found = findings(ran(work))
    assert "LS413" in found and found["LS413"].reasons[0].startswith("the device ran out of memory for 200.0 MiB while ")
