"""What the driver said of a session's devices comes into the timeline of each process, with who else was there."""

from __future__ import annotations

from types import SimpleNamespace

from leakscope.commands import _device_use
from tests.devices import GIB, MIB

TIMELINE = [{"t_ns": second * 10**9, "cuda0_reserved_bytes": (200 + 20 * second) * MIB} for second in range(20)]
SAID = SimpleNamespace(devices={"devices": [{"name": "cuda:0", "ordinal": 0, "uuid": "GPU-1"}]})


def session(*rows):
    return SimpleNamespace(device_use=lambda: list(rows), info={})


def row(second):
    return {"t_ns": second * 10**9, "names": {"99": "python3.11"}, "devices": [
        {"index": 0, "uuid": "GPU-1", "used_bytes": 9 * GIB, "total_bytes": 80 * GIB,
         "processes": [[7, (700 + 20 * second) * MIB], [99, (1 + second) * 100 * MIB]]}]}


def test_the_columns_of_a_device_come_with_how_well_they_are_known_and_who_else_uses_it():
    used = _device_use.of_process(session(*map(row, range(20))), SimpleNamespace(pid=7), TIMELINE, [SAID])
    assert used.timeline[5]["cuda0_process_bytes"] == 800 * MIB and used.timeline[5]["cuda0_used_bytes"] == 9 * GIB
    assert used.quality == {"cuda:0": "exact"}
    (other,) = used.uses["cuda:0"].other_processes
    assert (other.pid, other.name, other.last_bytes) == (99, "python3.11", 2000 * MIB)


def test_where_the_driver_was_not_asked_the_timeline_stays_as_it_was():
    used = _device_use.of_process(session(), SimpleNamespace(pid=7), TIMELINE, [SAID])
    assert used.timeline == TIMELINE and used.uses == {} and used.quality == {}
