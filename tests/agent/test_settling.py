"""The settle step: when it comes, what is collected and in which thread, and what is said where it cannot be."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from leakscope.agent import settling
from leakscope.agent.settling import Settle
from tests.agent.staged import OLDEST_AND_NEWEST, Stage, python  # noqa: F401

SECOND = 1_000_000_000


class Recorder:
    """What a Settle asks of its recorder."""

    def __init__(self) -> None:
        self.files = self.snapshots = self
        self.is_busy = False
        self.taken: list[dict[str, Any]] = []
        self.notes: list[str] = []

    def take(self, kind: str, _row: object = None, is_waited: bool = True, more: Any = None) -> None:
        assert kind == "settle"
        self.taken.append(more["settle"])

    def note(self, sentence: str) -> None:
        self.notes.append(sentence)


class Program:
    """Feeds a Settle with rows, ten a second, of a program that is busy or waits."""

    def __init__(self, settle: Settle) -> None:
        self.settle = settle
        self.row = {"t_ns": 0, "cpu_ns": 0, "py_blocks": 1000, "work_count": 0}

    def goes_on(self, seconds: float, busy: float = 0.0, **a_row: int) -> None:
        for _ in range(round(seconds * 10)):
            more = {"t_ns": SECOND // 10, "cpu_ns": round(busy * SECOND / 10), **a_row}
            self.row = {name: value + more.get(name, 0) for name, value in self.row.items()}
            self.settle.look(self.row)


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def test_the_step_comes_once_the_pause_has_lasted_and_again_after_the_next_load(recorder: Recorder) -> None:
    program = Program(Settle(recorder, 3.0, False, None))
    program.goes_on(5, busy=0.9)
    program.goes_on(2.5)
    assert recorder.taken == []
    program.goes_on(20)
    assert recorder.taken == [{"quiet_s": 3.0, "collected": False}]
    program.goes_on(5, busy=0.5, work_count=2)
    program.goes_on(4)
    assert len(recorder.taken) == 2 and recorder.notes == []


def test_timers_are_no_load(recorder: Recorder) -> None:
    program = Program(Settle(recorder, 3.0, False, None))
    program.goes_on(1, busy=0.9)
    program.goes_on(20, busy=0.01)
    assert len(recorder.taken) == 1


@pytest.mark.parametrize("going_on", [{"busy": 0.2}, {"work_count": 1}, {"py_blocks": 30}])
def test_a_program_that_never_pauses_has_no_step(recorder: Recorder, going_on: dict[str, Any]) -> None:
    program = Program(Settle(recorder, 3.0, False, None))
    program.goes_on(30, **going_on)
    assert recorder.taken == []


def test_without_settle_there_is_no_step(recorder: Recorder) -> None:
    for wait_s in (None, 0):
        Program(Settle(recorder, wait_s, True, lambda: pytest.fail("nobody asked to collect"))).goes_on(60)
    assert recorder.taken == []


def test_the_step_waits_for_a_snapshot_under_way(recorder: Recorder) -> None:
    program = Program(Settle(recorder, 3.0, False, None))
    recorder.is_busy = True
    program.goes_on(5)
    recorder.is_busy = False
    program.goes_on(1)
    assert len(recorder.taken) == 1 and recorder.taken[0]["quiet_s"] > 4


def test_the_main_thread_is_asked_to_collect_before_the_snapshot(recorder: Recorder) -> None:
    asked: list[int] = []
    settle = Settle(recorder, 3.0, True, lambda: asked.append(1))
    program = Program(settle)
    program.goes_on(5)
    assert asked == [1] and recorder.taken == []
    settle.collect()
    program.goes_on(1)
    assert recorder.taken == [{"quiet_s": pytest.approx(5, abs=0.2), "collected": True}]


def test_a_load_that_comes_before_the_collection_puts_the_step_off(recorder: Recorder) -> None:
    asked: list[int] = []
    settle = Settle(recorder, 3.0, True, lambda: asked.append(1))
    program = Program(settle)
    program.goes_on(3.2)
    program.goes_on(1, work_count=1)
    settle.collect()
    program.goes_on(2)
    assert recorder.taken == [] and asked == [1]
    program.goes_on(2)
    settle.collect()
    program.goes_on(1)
    assert [each["collected"] for each in recorder.taken] == [True] and asked == [1, 1]


def test_a_main_thread_that_does_not_come_leaves_a_note(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settling, "_COLLECT_NS", 0)
    settle = Settle(recorder, 3.0, True, lambda: None)
    Program(settle).goes_on(5)
    assert [each["collected"] for each in recorder.taken] == [False]
    assert recorder.notes == ["Nothing was collected in the settle step: the main thread ran no Python for 0 s, and finalizers "
                              "have to run there."]
    monkeypatch.setattr(settling, "collect", lambda: pytest.fail("it came too late"))
    settle.collect()


def test_settle_in_a_busy_program_says_so(recorder: Recorder) -> None:
    Settle(recorder, None, False, None).now(2, True, SECOND)
    assert recorder.taken == [{"quiet_s": 0.0, "collected": True}]
    assert recorder.notes == ["leakscope.settle() waited 2 s, but the program was busy meanwhile: what was under way counts as "
                              "left."]


SERVER = """
import asyncio, glob, os, sys, threading, time
class Noisy:
    def __init__(self): self.me = self
    def __del__(self): print("finalized in", threading.current_thread().name, flush=True); loop.call_soon(done.set)
async def main():
    global loop, done
    loop, done = asyncio.get_running_loop(), asyncio.Event()
    Noisy()
    await done.wait()
    deadline = time.monotonic() + 60
    while not glob.glob(f"{os.environ['SESSION']}/{os.getpid()}/snapshots/*/done.json") and time.monotonic() < deadline:
        await asyncio.sleep(0.02)
if "FORKS" in os.environ and os.fork():
    os.wait()
    sys.exit()
asyncio.run(main())
"""


@OLDEST_AND_NEWEST
def test_a_loop_that_waits_for_ever_is_woken_and_collects_in_its_own_thread(python: str, tmp_path: Path) -> None:  # noqa: F811
    stage = Stage(tmp_path, {"settle_s": 0.5, "settle_collect": True, "every_s": 600})
    done = stage.run(python, "-c", SERVER, SESSION=str(stage.session))
    assert (done.stdout, done.stderr) == ("finalized in MainThread\n", "")
    (process,) = stage.processes
    assert {"quiet_s", "collected"} == set(next(each["settle"] for each in process.snapshots if each["kind"] == "settle"))
    assert process.notes == []


def test_a_forked_child_settles_by_itself(tmp_path: Path) -> None:
    stage = Stage(tmp_path, {"settle_s": 0.5, "settle_collect": True, "every_s": 600})
    done = stage.run(sys.executable, "-c", SERVER, FORKS="1", SESSION=str(stage.session))
    assert done.stdout == "finalized in MainThread\n"
    child = next(process for process in stage.processes if process.role == "fork")
    assert [each["settle"]["collected"] for each in child.snapshots if each["kind"] == "settle"] == [True]


IN_SCRIPT = """
import leakscope
leakscope.tick(3)
leakscope.settle(0.3, collect=True)
leakscope.settle("banana")
print("done")
"""


def test_settle_in_a_script_waits_and_takes_a_snapshot(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    root = str(Path(settling.__file__).parents[2])
    assert stage.run(sys.executable, "-c", IN_SCRIPT, PYTHONPATH=root).stdout == "done\n"
    (process,) = stage.processes
    assert [each.get("settle") for each in process.snapshots if each["kind"] == "settle"] == [
        {"quiet_s": 0.3, "collected": True}]
    assert process.rows[-1]["work_count"] == 3 and process.json("process.json")["work_sources"] == ["leakscope.tick"]
    assert process.notes == ["leakscope.settle() was given a str that is no number of seconds, so nothing was done."]


def test_the_main_thread_that_waits_elsewhere_is_left_alone() -> None:
    thread = threading.Thread(target=settling.wake_loop)  # pytest runs no loop
    thread.start()
    thread.join()
    settling.wake_loop()
