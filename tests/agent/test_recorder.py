"""Life of a recorded process: rows, ladder, budgets, the end."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from pathlib import Path

import pytest

from leakscope.agent.recorder import Recorder
from tests.agent.staged import OLDEST_AND_NEWEST, Stage, python, until  # noqa: F401

SLEEP = "import time; time.sleep({})"
GROW = """
import time
kept = []
for number in range(30):
    kept.append([[] for _ in range(5000)])
    time.sleep(0.05)
print(len(kept))
"""


def test_a_short_script_leaves_rows_and_snapshots_and_an_end(python: str, tmp_path: Path) -> None:  # noqa: F811
    stage = Stage(tmp_path)
    assert stage.run(python, "-c", GROW).stdout == "30\n"
    (process,) = stage.processes
    assert process.role == "main" and process.json("exit.json")["reason"] == "exit"
    assert [snapshot["kind"] for snapshot in process.snapshots][0] == "ladder"
    assert process.snapshots[-1]["kind"] == "exit"
    assert len(process.rows) >= 8 and process.rows[-1]["py_blocks"] > process.rows[0]["py_blocks"]
    assert process.snapshots[0]["sample"]["rss_bytes"] > 0
    assert process.notes == []


def test_a_script_of_a_moment_is_not_held_up_by_a_snapshot(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.run(sys.executable, "-c", "print(1)")
    (process,) = stage.processes
    assert process.snapshots == [] and len(process.rows) >= 1 and process.has_exit
    assert "packages" not in process.json("process.json")  # its folders were not read for that


def test_what_a_program_puts_into_sys_modules_does_not_keep_snapshots_away(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.run(sys.executable, "-c", "import sys, _leakscope_agent\nclass Name(str):\n    __hash__ = str.__hash__\n"
              "    def __eq__(self, other): print('asked')\n"
              "sys.modules[b'bytes'] = sys.modules[5] = 7; sys.modules[Name('own')] = None; _leakscope_agent.snapshot()")
    (process,) = stage.processes
    assert process.notes == [] and "manual" in [snapshot["kind"] for snapshot in process.snapshots]


def test_what_was_loaded_after_the_start_is_written_down_with_its_version_at_a_snapshot(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    (tmp_path / "shop.py").write_text("__version__ = '2.5.0'")
    stage.run(sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import shop, _leakscope_agent\n"
              "_leakscope_agent.snapshot()")
    assert stage.processes[0].json("process.json")["packages"]["shop"] == "2.5.0"


def test_a_short_script_that_grew_gets_its_snapshot_at_exit(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.run(sys.executable, "-c", "kept = [[number] for number in range(300000)]")
    assert [snapshot["kind"] for snapshot in stage.processes[0].snapshots][-1:] == ["exit"]


def test_a_snapshot_that_the_end_of_the_program_cut_off_is_named(tmp_path: Path) -> None:
    boot = tmp_path / "boot"
    boot.mkdir()
    recorder = Recorder({"session": str(tmp_path)}, str(boot))
    assert recorder.open() and recorder.snapshots._walking.acquire(False)
    recorder._close("exit", has_stopped=False)
    assert "The program ended during a snapshot" in (tmp_path / str(os.getpid()) / "notes.jsonl").read_text()


def test_a_snapshot_that_has_to_wait_makes_no_rows_at_a_faster_pace(tmp_path: Path) -> None:
    recorder = Recorder({"session": str(tmp_path)}, str(tmp_path))
    recorder.ladder.next_ns = 0  # overdue: the program imports, or a child is still walking
    assert recorder._pause_s() == recorder.timeline.interval_s()
    recorder.ladder.next_ns = recorder.elapsed_ns() + 50_000_000
    assert recorder._pause_s() <= 0.05


def test_modules_that_a_program_makes_itself_are_no_import_that_a_snapshot_waits_for(tmp_path: Path) -> None:
    recorder = Recorder({"session": str(tmp_path)}, str(tmp_path))
    assert not recorder._is_importing({"modules": 90}, 1_000_000_000)
    with importlib._bootstrap._ModuleLockManager("looks"):  # type: ignore[attr-defined]  # what every import statement holds
        assert recorder._is_importing({"modules": 90}, 1_000_000_000)
    assert recorder._is_importing({"modules": 90}, 1_100_000_000)  # there may be another one coming
    assert not recorder._is_importing({"modules": 99}, 2_000_000_000)


def test_a_given_period_and_warm_up_are_kept_to(tmp_path: Path) -> None:
    stage = Stage(tmp_path, {"every_s": 0.2, "warmup_s": 0.7, "keep_snapshots": 3})
    stage.run(sys.executable, "-c", SLEEP.format(4))
    (process,) = stage.processes
    assert len(process.snapshots) == 3
    begun = process.json("process.json")["started_ns"]
    assert all(snapshot["t_ns"] - begun >= 700_000_000 for snapshot in process.snapshots)
    assert process.snapshots[-1]["index"] >= 5  # more were taken than are kept


def test_after_the_duration_the_recording_ends_and_the_target_goes_on(tmp_path: Path) -> None:
    stage = Stage(tmp_path, {"duration_s": 1.3})
    code = ("import os, time\nend = time.monotonic() + 100\n"
            "while len(os.listdir('/proc/self/task')) > 1 and time.monotonic() < end: time.sleep(0.05)\n"
            "print(len(os.listdir('/proc/self/task'))); time.sleep(0.5)")
    ran = stage.run(sys.executable, "-c", "import time; time.sleep(0.2)\n" + code)
    (process,) = stage.processes
    assert ran.stdout == "1\n"  # no thread of ours is left
    ended = process.json("exit.json")
    assert ended["reason"] == "duration" and ended["t_ns"] >= 1_300_000_000
    assert process.snapshots[-1]["kind"] == "exit"
    assert process.rows[-1]["t_ns"] <= ended["t_ns"]


@OLDEST_AND_NEWEST
def test_a_snapshot_can_be_asked_for_and_the_agent_sent_away(python: str, tmp_path: Path) -> None:  # noqa: F811
    stage = Stage(tmp_path)
    code = ("import gc, time, _leakscope_agent as agent; before = len(gc.callbacks); print(agent.snapshot()['kind']);"
            "agent.stop(); agent.stop(); print(agent.snapshot(), before - len(gc.callbacks)); time.sleep(1.2)")
    ran = stage.run(python, "-c", code)
    (process,) = stage.processes
    assert (ran.stdout, ran.stderr) == ("manual\nNone 1\n", "")
    assert [snapshot["kind"] for snapshot in process.snapshots] == ["manual"]
    assert process.json("exit.json")["reason"] == "stopped"


@OLDEST_AND_NEWEST
def test_a_walk_that_fails_is_a_note_and_the_rows_go_on(python: str, tmp_path: Path) -> None:  # noqa: F811
    stage = Stage(tmp_path)
    walk = "def take(*args, **kwargs):\n    raise ValueError('a secret value')\n"
    (stage.boot / "_leakscope_agent" / "walk.py").write_text(walk)
    ran = stage.run(python, "-c", SLEEP.format(1.3))
    (process,) = stage.processes
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
    assert "Snapshot 1 could not be taken: ValueError." in process.notes
    assert process.rows[-1]["t_ns"] > 1_200_000_000 and process.has_exit


def test_a_walk_that_would_not_fit_is_left_out(tmp_path: Path) -> None:
    stage = Stage(tmp_path, {"max_memory_bytes": 1 << 20})
    stage.run(sys.executable, "-c", SLEEP.format(1.3))
    (process,) = stage.processes
    assert process.snapshots == []
    assert any(note.startswith("A snapshot was left out at ") and "1 MiB allowed" in note for note in process.notes)


def test_a_small_disk_budget_keeps_few_snapshots_and_then_none(tmp_path: Path) -> None:
    stage = Stage(tmp_path, {"max_disk_bytes": 300_000, "every_s": 0.1})  # one of the stand-in takes 100 kB
    stage.run(sys.executable, "-c", SLEEP.format(1.5))
    (process,) = stage.processes
    assert 1 <= len(process.snapshots) <= 3
    assert sum(path.stat().st_size for path in process.path.rglob("*") if path.is_file()) <= 300_000
    assert any("disk budget" in note for note in process.notes)


def test_memory_near_a_limit_is_recorded_once(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    code = ("import resource, time\nused = int(open('/proc/self/statm').read().split()[0]) * 4096\n"
            "resource.setrlimit(resource.RLIMIT_AS, (int(used / 0.95), resource.RLIM_INFINITY))\ntime.sleep(0.7)\n"
            "resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)); time.sleep(0.7)")
    ran = stage.run(sys.executable, "-c", code)
    (process,) = stage.processes
    assert ran.returncode == 0, ran.stderr
    assert any(note.startswith("Memory passed 9") and note.endswith("of the resource limit.") for note in process.notes)
    assert sum(snapshot["kind"] == "limit" for snapshot in process.snapshots) <= 1


@OLDEST_AND_NEWEST
def test_a_full_disk_stops_the_recording_and_not_the_target(python: str, tmp_path: Path) -> None:  # noqa: F811
    stage = Stage(tmp_path)
    limited = shutil.which("prlimit")
    if limited is None:
        pytest.skip("util-linux has no prlimit here")
    ran = stage.run(limited, "--fsize=3000", python, "-c", "import time; time.sleep(1.5); print('done')")
    assert (ran.stdout, ran.stderr, ran.returncode) == ("done\n", "", 0)
    (process,) = stage.processes
    assert 1 <= len(process.rows) <= 12 and not process.has_exit
    assert any("its folder could not be written: " in note for note in process.notes)


@OLDEST_AND_NEWEST
def test_a_session_that_cannot_be_written_leaves_the_target_alone(python: str, tmp_path: Path) -> None:  # noqa: F811
    stage = Stage(tmp_path, {"session": str(tmp_path / "not" / "there")})
    code = "import os, time; time.sleep(0.2); print(os.environ.get('PYTHONPATH'), os.listdir('/proc/self/task'))"
    ran = stage.run(python, "-c", code)
    assert ran.returncode == 0 and ran.stderr == "" and ran.stdout.startswith("None ['") and ran.stdout.count("'") == 2


def test_a_session_deleted_meanwhile_ends_the_recording_quietly(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    target = stage.start(sys.executable, "-c", "input(); import time; time.sleep(1); print('done')")
    until(lambda: stage.processes and stage.processes[0].rows)
    shutil.rmtree(stage.session)
    out, error = target.communicate("\n", timeout=120)
    assert (out, error, target.returncode) == ("done\n", "", 0)


def test_no_descriptor_left_in_the_target_costs_rows_only(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    code = ("import os, resource, time; time.sleep(.2); resource.setrlimit(resource.RLIMIT_NOFILE, (8, 100)); taken = []\n"
            "try:\n    while True: taken.append(os.open('/dev/null', 0))\nexcept OSError: pass\n"
            "time.sleep(.3); [os.close(handle) for handle in taken]; time.sleep(.3)")
    ran = stage.run(sys.executable, "-c", code)
    (process,) = stage.processes
    assert ran.returncode == 0 and ran.stderr == ""
    assert process.has_exit and process.rows[-1]["t_ns"] > 700_000_000


def test_rows_go_on_during_a_walk_in_python(tmp_path: Path) -> None:
    stage = Stage(tmp_path, {"warmup_s": 0.3}, walk=True)
    code = "import time; kept = [[[number]] for number in range(200_000)]\ntime.sleep(4)"
    stage.run(sys.executable, "-c", code)
    (process,) = stage.processes
    done = process.snapshots[0]
    assert done["walk"] == "python" and done["pause_ns"] > 300_000_000
    during = [row for row in process.rows if 0 < row["t_ns"] - done["t_ns"] < done["pause_ns"]]
    assert len(during) >= 2


def busy(snapshots: int) -> str:
    """A program with 8 threads that log, allocate and compute while `snapshots` snapshots are taken."""
    return f"""
import logging, sys, threading, time, _leakscope_agent as agent
try:
    import numpy
except ImportError:  # the older interpreters of the tests have none
    numpy = None
logging.basicConfig(stream=sys.stdout, format="%(message)s", level=logging.INFO)
stop = threading.Event()
sums = []
def work(number):
    total = 0
    while not stop.is_set():
        rows = [{{"n": value, "text": str(value)}} for value in range(200)]
        total += sum(row["n"] for row in rows)
        if numpy is not None:
            total += 19900 * int((numpy.ones((64, 64)) @ numpy.ones((64, 64)))[0, 0])
        logging.getLogger(f"worker.{{number}}").debug("quiet %d", total)
        stop.wait(0.001)  # so that threads change in the middle of a walk more often than every 5 ms
    sums.append(total % 19900)
threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
[thread.start() for thread in threads]
taken = sum(agent.snapshot() is not None for _ in range({snapshots}))
stop.set()
[thread.join() for thread in threads]
logging.info("taken %d sums %s", taken, sums)
"""


def test_snapshots_under_eight_busy_threads_do_not_hang(python: str, tmp_path: Path) -> None:  # noqa: F811
    stage = Stage(tmp_path, walk=True)
    ran = stage.run(python, "-c", busy(3))
    assert (ran.stdout, ran.stderr, ran.returncode) == (f"taken 3 sums {[0] * 8}\n", "", 0)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_twenty_walks_in_python_under_eight_busy_threads_do_not_hang(tmp_path: Path) -> None:
    stage = Stage(tmp_path, walk=True)
    target = stage.start(sys.executable, "-c", busy(20))
    out, error = target.communicate(timeout=800)
    assert (out, error, target.returncode) == (f"taken 20 sums {[0] * 8}\n", "", 0)
