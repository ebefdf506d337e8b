"""PyTorch's memory pickles beside a report, and reports on such a pickle."""

from __future__ import annotations

import json

import pytest

from fixtures.standin.allocator import MIB, Allocator
from fixtures.standin.allocator_forms import record
from leakscope import session as sessions
from leakscope.commands import _memory_snapshot
from leakscope.errors import LeakScopeError
from leakscope.heap import memory_pickle


@pytest.fixture
def session(tmp_path):
    return sessions.create(tmp_path / "run" / "session", ["python", "serve.py"], {})


def held(size, **more):
    device = Allocator()
    device.allocate(size)
    return record([device]) | more


def process(session, pid, *said):
    """A process whose snapshots have these devices.json; None: none."""
    folder = session.path / str(pid)
    for number, each in enumerate(said, 1):
        place = folder / "snapshots" / f"{number:04}"
        place.mkdir(parents=True)
        (place / "done.json").write_text(json.dumps({"format": 1, "t_ns": number}))
        if each is not None:
            (place / "devices.json").write_text(json.dumps(each))
    (folder / "process.json").write_text(json.dumps({"format": 1, "pid": pid, "role": "main" if pid == 1 else "spawn"}))


def sizes(path):
    return [segment.get("total_size", 0) // MIB for segment in memory_pickle.read(path)["segments"]]


def test_the_last_map_of_each_process_lies_beside_the_report(session, tmp_path):
    process(session, 1, held(30 * MIB), held(40 * MIB), None)
    process(session, 2, held(50 * MIB))
    process(session, 3, None)
    written = _memory_snapshot.write_beside(session, tmp_path)
    assert [path.name for path in written] == ["memory_snapshot.pickle", "memory_snapshot.2.pickle"]
    assert [sizes(path) for path in written] == [[40], [50]]


def test_the_moment_at_which_the_device_ran_out_comes_first(session, tmp_path):
    oom = {"device": 0, "requested_bytes": 99 * MIB, "free_bytes": 5, "total_bytes": 7}
    process(session, 1, held(30 * MIB), held(60 * MIB, oom=oom), held(40 * MIB))
    written = _memory_snapshot.write_beside(session, tmp_path)
    assert sizes(written[0]) == [60]
    assert memory_pickle.read(written[0])["oom"]["requested_bytes"] == 99 * MIB


def test_without_a_device_nothing_is_written(session, tmp_path):
    process(session, 1, None, None)
    assert _memory_snapshot.write_beside(session, tmp_path) == []
    assert not list(tmp_path.glob("*.pickle"))


def test_a_damaged_or_later_record_is_no_map(session, tmp_path):
    process(session, 1, held(30 * MIB) | {"format": 99}, {"format": 1, "segments": [3, {"blocks": [None]}], "frames": [[[]]]})
    assert [sizes(path) for path in _memory_snapshot.write_beside(session, tmp_path)] == [[0]]


def test_a_place_that_cannot_be_written_is_said_in_a_sentence(session, tmp_path):
    process(session, 1, held(30 * MIB))
    with pytest.raises(LeakScopeError, match="cannot be written") as caught:
        _memory_snapshot.write_beside(session, tmp_path / "none")
    assert caught.value.hint
