"""When the snapshots of a session are packed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from leakscope import session as sessions
from leakscope.agent import format as layout
from leakscope.commands import _packing
from leakscope.commands._packing import Packing
from leakscope.heap import columns
from leakscope.heap.load import load
from tests.commands.runs import observe
from tests.heap.test_load import written
from tests.heaps import series

GROWING = "import time\nkept = []\nfor _ in range(30):\n    kept.append(bytearray(9))\n    time.sleep(0.1)"


@pytest.fixture
def session(tmp_path: Path) -> sessions.Session:
    """A session of one process with three snapshots."""
    made = sessions.create(tmp_path / "session", ["serve.py"], {})
    folder = made.path / "7"
    for graph in series("module app\napp .cache -> cache:dict\ncache [*] -> order:shop.Order x{n}", n=[3, 6, 9]):
        snapshot = folder / layout.SNAPSHOT_FOLDER / f"{graph.info['index']:04}"
        snapshot.mkdir(parents=True)
        written(graph, snapshot)
    (folder / layout.PROCESS_FILE).write_text(json.dumps({"format": 1, "pid": 7, "role": "main"}))
    return made


def raw(session: sessions.Session) -> list[bool]:
    return [snapshot.raw_bytes > 0 for snapshot in session.snapshots()]


def test_while_the_target_runs_a_large_snapshot_that_is_not_the_newest_is_packed(session, monkeypatch):
    monkeypatch.setattr(_packing, "_LARGE_BYTES", 1)
    packing = Packing(session)
    for left in ([False, True, True], [False, False, True], [False, False, True]):
        packing.look()
        if packing._thread:
            packing._thread.join()
        assert raw(session) == left


def test_small_ones_wait_for_the_end(session):
    packing = Packing(session)
    packing.look()
    assert raw(session) == [True, True, True]
    packing.finish()
    assert raw(session) == [False, False, False] and [load(each.path).node_count for each in session.snapshots()] == [5, 8, 11]


def test_a_full_disk_ends_the_packing_and_nothing_else(session, monkeypatch):
    calls = []

    def full(folder: Path) -> bool:
        calls.append(folder)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(columns, "pack", full)
    Packing(session).finish()
    assert len(calls) == 1 and raw(session) == [True, True, True]


def test_after_a_run_its_snapshots_are_packed_and_the_report_can_be_made_again(tmp_path: Path) -> None:
    done = observe(tmp_path, "python", "-c", GROWING, options=("--every", "1s"))
    assert done.returncode == 0, done.stderr
    found = sessions.open(tmp_path / "out").snapshots()
    assert found and not any(each.raw_bytes for each in found) and all(load(each.path).node_count for each in found)
