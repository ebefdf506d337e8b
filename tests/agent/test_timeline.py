"""One row: which columns, from where, and what is left out."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import sys
import threading
import time
import tracemalloc
from typing import Any

import pytest

from leakscope.agent import timeline
from leakscope.agent.format import SAMPLE_COLUMNS
from leakscope.agent.timeline import Gauge, Timeline


def made(notes: list[str] | None = None) -> Timeline:
    return Timeline(time.monotonic_ns(), time.monotonic_ns(), (notes if notes is not None else []).append)


def test_a_row_has_only_columns_of_the_format_and_the_important_ones() -> None:
    row = made().row(is_whole=True)
    assert {name for name in row if not re.match(r"cuda\d+_", name)} <= set(SAMPLE_COLUMNS)
    assert {"t_ns", "rss_bytes", "pss_bytes", "uss_bytes", "anon_bytes", "py_blocks", "gc_count0", "gc_collections2",
            "threads", "fds", "modules", "page_faults_minor"} <= set(row)
    assert all(type(value) is int for value in row.values())
    assert 0 < row["uss_bytes"] <= row["rss_bytes"]


def test_numbers_follow_the_process() -> None:
    line = made()
    before = line.row(is_whole=True)
    block, handles = bytearray(64 << 20), [os.open("/dev/null", os.O_RDONLY) for _ in range(5)]
    block[::4096] = b"x" * len(block[::4096])
    release = threading.Event()
    thread = threading.Thread(target=release.wait)
    thread.start()
    try:
        after = line.row(is_whole=True)
    finally:
        release.set()
        thread.join()
        [os.close(handle) for handle in handles]
    assert after["rss_bytes"] - before["rss_bytes"] > 60 << 20
    assert after["anon_bytes"] - before["anon_bytes"] > 60 << 20
    assert after["fds"] - before["fds"] == 5
    assert after["threads"] - before["threads"] == 1
    assert after["page_faults_minor"] > before["page_faults_minor"]
    if "malloc_used_bytes" in after:
        assert after["malloc_used_bytes"] - before["malloc_used_bytes"] > 60 << 20
        assert after["malloc_mmapped_bytes"] - before["malloc_mmapped_bytes"] > 60 << 20


def test_the_collectors_pauses_are_clocked_and_the_callback_is_taken_out_again() -> None:
    line, before = made(), gc.callbacks[:]
    line.begin()
    line.begin()
    try:
        gc.collect()
        row = line.row()
    finally:
        line.end()
    assert row["gc_pause_ns"] > 0
    assert gc.callbacks == before


def test_tasks_are_counted_only_where_asyncio_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def count() -> int:
        tasks = [asyncio.ensure_future(asyncio.sleep(30)) for _ in range(7)]
        row: dict[str, int] = {}
        timeline._read_tasks(row)
        [task.cancel() for task in tasks]
        return row["tasks"]

    assert asyncio.run(count()) >= 8
    monkeypatch.delitem(sys.modules, "asyncio.tasks")
    row: dict[str, int] = {}
    timeline._read_tasks(row)
    assert row == {}


def test_tracemalloc_is_read_only_while_it_traces() -> None:
    row: dict[str, int] = {}
    timeline._read_tracemalloc(row)
    assert row == {}
    tracemalloc.start()
    try:
        timeline._read_tracemalloc(row)
    finally:
        tracemalloc.stop()
    assert set(row) == {"tracemalloc_bytes", "tracemalloc_overhead_bytes"}


def test_a_gauge_that_fails_is_given_up_with_one_note_and_the_others_go_on() -> None:
    notes: list[str] = []
    line = made(notes)

    def fails(row: dict[str, Any]) -> None:
        raise RuntimeError("Set changed size during iteration")

    line.gauges.insert(0, Gauge("broken", fails))
    rows = [line.row() for _ in range(6)]
    expected = ["The gauge 'broken' cannot be read here, so its columns are missing."]
    assert [note for note in notes if "broken" in note] == expected
    assert all("rss_bytes" in row for row in rows)


def test_a_dear_gauge_is_read_more_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 10**12, 20_000_000))  # each look at the clock: 20 ms later
    monkeypatch.setattr(timeline, "thread_time_ns", lambda: next(clock))
    reads: list[int] = []
    gauge = Gauge("dear", lambda row: reads.append(1))
    for tenth in range(0, 100):
        gauge.read({}, tenth * 100_000_000)
    assert len(reads) == 5  # 20 ms of 2 s is the 1 % it may take
    gauge.read({}, 0, is_due=True)
    assert len(reads) == 6


def test_rows_come_closer_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    line = made()
    now = time.monotonic_ns()
    line._begun_ns = now
    for seconds, expected in ((1, 0.1), (31, 0.5), (301, 1.0), (86400, 1.0)):
        monkeypatch.setattr(timeline, "monotonic_ns", lambda seconds=seconds: now + seconds * 1_000_000_000)
        assert line.interval_s() == expected
