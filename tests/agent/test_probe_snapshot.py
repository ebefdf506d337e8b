"""A snapshot by a forked child: what the target sees of it (nothing), what is in it (all threads), and what may go wrong."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.agent.probes import stage_probe
from tests.agent.staged import Stage, interpreter, until
from tests.agent.walking import Snapshot

# The first is the oldest with a probe.
VERSIONS = ("3.10", "3.11", "3.12", "3.13")
SURRENDER = "The native walk fails in this process, so the walk in Python takes the snapshots from here on."

# `children()` are all of the target; `held()` begins a snapshot and stops its child before it has ended.
PREAMBLE = """
import os, signal, sys, threading, time
import _leakscope_agent as agent
recorder = agent._recorder

def until(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.002)

def children():
    pids = []
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/children") as file:
            pids += map(int, file.read().split())
    return pids

def state(pid):
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]

def has_alarm(pid, signals):
    with open(f"/proc/{pid}/status") as file:
        return int(file.read().partition(signals)[2].split()[0], 16) >> signal.SIGALRM - 1 & 1

kept = [[number, [number]] for number in range(60_000)]  # so that a walk takes a moment

def held():
    while True:
        recorder.take("manual", None, is_waited=False)
        pid = recorder.snapshots.forked.pid  # nobody fetches it before the agent's thread looks, in a while
        until(lambda: state(pid) == "Z" or not has_alarm(pid, "SigBlk:"))  # it has set itself up
        os.kill(pid, signal.SIGSTOP)
        until(lambda: state(pid) in "TZ")
        if state(pid) == "T":
            return pid
        until(lambda: recorder.snapshots.look() or recorder.snapshots.forked is None)

def go_on(pid):
    os.kill(pid, signal.SIGCONT)
    until(lambda: recorder.snapshots.look() or recorder.snapshots.forked is None)
"""


@pytest.fixture(params=VERSIONS)
def python(request: pytest.FixtureRequest) -> str:
    return interpreter(request.param)


def probed(folder: Path, python: str, options: dict[str, Any] | None = None) -> Stage:
    """A stage with the real walk and the probe for an interpreter."""
    stage = Stage(folder, {"every_s": 3600, **(options or {})}, walk=True)  # no snapshots but those asked for, and at the exit
    stage_probe(python, stage.boot / "_leakscope_agent")
    return stage


def run(folder: Path, program: str, python: str = sys.executable, **options: Any) -> tuple[str, Any]:
    """Run a program on a stage with the probe; returns its output and what the agent left of its main process."""
    stage = probed(folder, python, options)
    ran = stage.run(python, "-X", "faulthandler", str(stage.write("program.py", PREAMBLE + program)))
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stderr[-3000:]
    return ran.stdout, stage.processes[0]


def asked_for(process: Any) -> list[Any]:
    return [done for done in process.snapshots if done["kind"] == "manual"]


BUSY = """
import logging, queue, socket, sqlite3
lock, near, far = threading.Lock(), *socket.socketpair()
lock.acquire()
log = logging.getLogger("busy")
log.addHandler(logging.NullHandler())
waited, stop, ready = queue.SimpleQueue(), threading.Event(), threading.Barrier(6)

def in_a_lock():
    ready.wait()
    with lock: pass

def in_a_socket():
    ready.wait()
    far.recv(1)

def in_a_database():
    base = sqlite3.connect(":memory:")
    base.execute("create table t (n)")
    ready.wait()
    while not stop.is_set():
        base.executemany("insert into t values (?)", [(n,) for n in range(50)])
        base.execute("select sum(n) from t").fetchone()

def in_a_log():
    ready.wait()
    while not stop.is_set(): log.warning("busy %d", 1)

def in_a_queue():
    ready.wait()
    waited.get()

threads = [threading.Thread(target=work) for work in (in_a_lock, in_a_socket, in_a_database, in_a_log, in_a_queue)]
[thread.start() for thread in threads]
ready.wait()
for _ in range(2):
    done = agent.snapshot()
    print(done["method"], done["walk"])
stop.set(); lock.release(); near.send(b"x"); waited.put(1)
[thread.join() for thread in threads]
"""


def test_a_child_sees_what_every_thread_holds_whatever_it_waits_in(python: str, tmp_path: Path) -> None:
    out, process = run(tmp_path, BUSY, python)
    assert out == "fork native\n" * 2
    assert process.notes == []
    taken = Snapshot(process.path / "snapshots" / "0002", "")  # the last of those; one more is from the exit
    shown = {taken.strings[label] for label in taken.label}
    for name in ("in_a_lock", "in_a_socket", "in_a_database", "in_a_log", "in_a_queue"):
        assert any(label.startswith(f"{name}() at program.py:") for label in shown)


def test_the_targets_own_waiting_never_sees_the_child(python: str, tmp_path: Path) -> None:
    out, _process = run(tmp_path, """
calls = []
signal.signal(signal.SIGCHLD, lambda *_: calls.append(1))
for _ in range(3): print(agent.snapshot()["method"], len(calls))
pid = held()
for wait in (os.wait, lambda: os.waitpid(-1, os.WNOHANG), lambda: os.waitpid(0, os.WNOHANG), lambda: os.waitpid(pid, 0),
             lambda: os.waitid(os.P_ALL, 0, os.WEXITED)):
    try:
        print("saw", wait())
    except ChildProcessError:
        print("no child")
go_on(pid)
del calls[:]  # the system says when a child is stopped, as this one was for the test
mine = os.spawnv(os.P_NOWAIT, "/bin/true", ["true"])
print(os.wait()[0] == mine, len(calls), children())
""", python)
    assert out == "fork 0\n" * 3 + "no child\n" * 5 + "True 1 []\n"


def test_asyncio_and_multiprocessing_go_on_beside_a_child(python: str, tmp_path: Path) -> None:
    program = """
import asyncio, multiprocessing, subprocess
async def main():
    made = await asyncio.create_subprocess_exec(sys.executable, "-c", "print(7)", stdout=subprocess.PIPE)
    return (await made.communicate())[0], made.returncode
if __name__ == "__main__":
    pid = held()
    print(asyncio.run(main()), subprocess.run([sys.executable, "-c", "import sys; sys.exit(3)"]).returncode)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(pool.map(abs, range(-3, 0)))
    go_on(pid)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(abs, range(-3, 0)), recorder.snapshots.forked)
"""
    stage = probed(tmp_path, python)
    ran = stage.run(python, "-W", "ignore", str(stage.write("program.py", PREAMBLE + program)))
    assert (ran.stdout, ran.stderr) == ("(b'7\\n', 0) 3\n[3, 2, 1]\n[3, 2, 1] None\n", "")
    assert len(asked_for(stage.processes[0])) == 1


def test_the_ends_of_pipes_and_connections_come_at_once(tmp_path: Path) -> None:
    out, _process = run(tmp_path, """
import select, socket
(out, into), (near, far) = os.pipe(), socket.socketpair()
pid = held()
print(os.listdir(f"/proc/{pid}/fd"))  # its own three, or what it writes to: none of ours
os.close(into); near.close()
print(select.select([out, far], [], [], 30)[0] != [], os.read(out, 1), far.recv(1))
until(lambda: len(os.listdir("/proc/self/fd")) == 6)  # three, two, the listing's; the agent's thread has some for moments
go_on(pid)
until(lambda: len(os.listdir("/proc/self/fd")) == 6)
""")
    assert re.sub(r"\[.*?\]", "[]", out, count=1) == "[]\nTrue b'' b''\n"


def test_signals_to_the_process_group_are_for_the_target_alone(tmp_path: Path) -> None:
    out, process = run(tmp_path, """
os.setpgid(0, 0)
got = []
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
    signal.signal(number, lambda number, _frame: got.append(number))
pid = held()
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
    os.killpg(0, number)
until(lambda: len(got) == 4)
go_on(pid)
print(len(got))
""")
    assert out == "4\n" and len(asked_for(process)) == 1 and process.notes == []


def test_a_killed_child_is_a_note_and_the_next_snapshot_is_taken(tmp_path: Path) -> None:
    out, process = run(tmp_path, """
pid = held()
os.kill(pid, signal.SIGKILL)
until(lambda: recorder.snapshots.look() or recorder.snapshots.forked is None)
print(children(), agent.snapshot()["method"])
""")
    assert out == "[] fork\n"
    assert process.notes == ["Snapshot 1 could not be taken: the process that took it was ended by signal 9."]
    assert [path.name for path in sorted(process.path.glob("snapshots/*"))][0] == "0002"


def test_a_child_that_does_not_end_is_killed_and_the_walk_in_python_takes_over(tmp_path: Path) -> None:
    out, process = run(tmp_path, """
from _leakscope_agent import snapshots
snapshots._KILL_AFTER_NS = 0
for _ in range(2):
    pid = held()
    recorder.snapshots.forked.deadline_ns = 1
    until(lambda: recorder.snapshots.look() or recorder.snapshots.forked is None)
print(children(), agent.snapshot()["walk"])
""")
    assert out == "[] python\n"
    assert any("the process that took it did not end in" in note for note in process.notes)
    assert SURRENDER in process.notes


def test_a_child_ends_by_itself_when_its_time_is_over_and_nobody_watches(tmp_path: Path) -> None:
    out, process = run(tmp_path, """
from _leakscope_agent import snapshots
snapshots._CHILD_NS, snapshots._CHILD_TIMES, snapshots._KILL_AFTER_NS = 400_000_000, 0, 1 << 62
pid = held()
until(lambda: has_alarm(pid, "ShdPnd:"))  # it waits, as the child is stopped
go_on(pid)
snapshots._CHILD_NS = 60_000_000_000
print(children(), agent.snapshot()["method"])
""")
    assert out == "[] fork\n"
    assert process.notes == ["Snapshot 1 could not be taken: the process that took it did not end in 0 s."]


# The page of an object of the target that the child does not have: a walk that reads it faults.
FAULT = """
import ctypes, faulthandler
faulthandler.enable()
page = id(kept[30_000]) & ~4095
ctypes.CDLL(None, use_errno=True).madvise(ctypes.c_void_p(page), ctypes.c_size_t(4096), 10)  # MADV_DONTFORK
"""


def test_a_fault_in_the_child_says_nothing_on_stderr_and_leaves_no_core(python: str, tmp_path: Path) -> None:
    out, process = run(tmp_path, FAULT + """
import resource
resource.setrlimit(resource.RLIMIT_CORE, (resource.getrlimit(resource.RLIMIT_CORE)[1],) * 2)
print(agent.snapshot(), kept[30_000], agent.snapshot()["walk"])
""", python)
    assert out == "None [30000, [30000]] python\n"
    assert process.notes == [SURRENDER, "Snapshot 1 could not be taken: the process that took it was ended by signal 11."]
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["program.py"]


@pytest.mark.parametrize("is_finished", [True, False])
def test_a_target_killed_meanwhile_leaves_a_whole_snapshot_or_none(is_finished: bool, tmp_path: Path) -> None:
    stage = probed(tmp_path, sys.executable)
    program = stage.write("program.py", PREAMBLE + "print(held(), flush=True)\ntime.sleep(600)\n")
    target = stage.start(sys.executable, str(program))
    assert target.stdout is not None
    pid = int(target.stdout.readline())
    target.kill()
    target.wait()
    os.kill(pid, signal.SIGCONT if is_finished else signal.SIGKILL)
    until(lambda: not Path(f"/proc/{pid}").exists() or "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text())
    (process,) = stage.processes
    if is_finished:
        taken = Snapshot(process.path / "snapshots" / "0001", "")
        assert len(taken.nodes("builtins.list")) > 120_000 and len(taken.address) == taken.done["node_count"]
    else:
        assert process.snapshots == []
    target.communicate()


def test_a_full_disk_costs_the_snapshot_and_is_said(tmp_path: Path) -> None:
    limited = shutil.which("prlimit")
    if limited is None:
        pytest.skip("util-linux has no prlimit here")
    stage = probed(tmp_path, sys.executable)
    program = stage.write("program.py", PREAMBLE + "print(agent.snapshot())")
    ran = stage.run(limited, "--fsize=200000", sys.executable, str(program))
    assert (ran.stdout, ran.stderr, ran.returncode) == ("None\n", "", 0)
    (process,) = stage.processes
    assert process.notes and process.notes[0].startswith("Snapshot 1 could not be taken: ")
    assert list(process.path.glob("snapshots/*")) == []


# An answer (EPERM, as of a container, or the end) to every clone without a signal at the child's end.
NO_CLONE = """
import ctypes, struct
ahead = [(0x20, 0, 0, 0), (0x15, 0, 5, {clone}), (0x20, 0, 0, 16), (0x54, 0, 0, 0xff), (0x15, 0, 2, 0),
         (0x06, 0, 0, {answer}), (0x06, 0, 0, 0x7fff0000), (0x06, 0, 0, 0x7fff0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in ahead))
filter_ = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(ahead), ctypes.addressof(code)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.syscall({seccomp}, 1, 0, filter_) == 0, ctypes.get_errno()
"""
NO_PROCESSES = """
import resource
for folder, _, names in os.walk(recorder.files.path):
    for path in (folder, *(os.path.join(folder, name) for name in names)): os.chmod(path, 0o777)
if os.geteuid() == 0:
    os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
"""
CALLS = {"x86_64": {"clone": 56, "seccomp": 317}, "aarch64": {"clone": 220, "seccomp": 277}}


def without_clone(answer: int) -> str:
    calls = CALLS.get(os.uname().machine)
    if calls is None:
        pytest.skip(f"the numbers of the system calls of {os.uname().machine} are not known here")
    return NO_CLONE.format(answer=answer, **calls)


def test_a_program_with_a_filter_that_kills_for_a_child_goes_on(tmp_path: Path) -> None:
    out, process = run(tmp_path, without_clone(0x80000000) + """
print(agent.snapshot()['method'])
if not (pid := os.fork()): os._exit(agent.snapshot()['method'] != 'in-place')
print(os.waitpid(pid, 0)[1])
""")
    assert out == "in-place\n0\n"
    assert process.notes == ["The program filters its system calls, and a child might not be allowed: snapshots are taken in "
                             "place, and the program stands still meanwhile."]


@pytest.mark.parametrize("refusal", ["seccomp", "processes"])
def test_where_the_system_gives_no_child_the_snapshot_is_taken_in_place_and_that_is_said(refusal: str) -> None:
    code = NO_PROCESSES
    if refusal == "seccomp":
        code = without_clone(0x50001) + "agent.snapshots._OUTER_FILTERS = agent.snapshots.call_filters()\n"
    with tempfile.TemporaryDirectory() as name:  # pytest keeps its own folders to the user who runs it
        Path(name).chmod(0o755)
        code += "done = agent.snapshot(); print(done['method'], done['walk'], done['pause_ns'] > 0)"
        out, process = run(Path(name), code)
        (note,) = process.notes
    assert out == "in-place native True\n"
    assert re.fullmatch(r"The system gave no process for a snapshot \(.*\), so .* the program stood still meanwhile\.", note)


def test_where_memory_is_short_the_snapshot_is_left_out_with_a_sentence(tmp_path: Path) -> None:
    out, process = run(tmp_path, """
import resource
used = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (used + (40 << 20), resource.RLIM_INFINITY))
print(agent.snapshot())
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(agent.snapshot()["method"])
""")
    assert out == "None\nfork\n"
    assert [note for note in process.notes if note.startswith("A snapshot was left out at ")]


def test_rows_go_on_while_a_child_walks_and_say_nothing_that_it_disturbs(tmp_path: Path) -> None:
    out, process = run(tmp_path, """
rows = os.path.join(recorder.files.path, "timeline.jsonl")
pid = held()
before = sum(1 for _ in open(rows))
until(lambda: sum(1 for _ in open(rows)) >= before + 8)
go_on(pid)
print(before)
""")
    beside = process.rows[int(out):int(out) + 8]
    assert all("rss_bytes" in row and "uss_bytes" not in row for row in beside)
    assert "uss_bytes" in process.rows[-1]


def test_a_child_of_the_target_does_not_wait_for_the_childs_end(python: str, tmp_path: Path) -> None:
    out, process = run(tmp_path, """
pid = held()
born = os.fork()
if not born:
    until(lambda: agent._recorder is not recorder)
    os._exit(7 if agent.snapshot()["method"] == "fork" and recorder.snapshots.forked else 8)
print(os.waitpid(born, 0)[1] >> 8, state(pid))
go_on(pid)
print(children())
""", python)
    assert out == "7 T\n[]\n"
    assert len(asked_for(process)) == 1


def test_another_program_in_the_same_process_inherits_no_child(tmp_path: Path) -> None:
    out, _process = run(tmp_path, """
held()
show = "import os; print([open(f'/proc/self/task/{task}/children').read() for task in os.listdir('/proc/self/task')])"
sys.stdout.flush()
os.execv(sys.executable, [sys.executable, "-I", "-c", show])
""")
    assert out == "['']\n"


def test_an_exit_waits_a_moment_for_the_child_and_then_ends_it(tmp_path: Path) -> None:
    stage = probed(tmp_path, sys.executable)
    code = "from _leakscope_agent import snapshots\nsnapshots._EXIT_NS = 100_000_000\nprint(held())"
    ran = stage.run(sys.executable, str(stage.write("program.py", PREAMBLE + code)))
    assert (ran.returncode, ran.stderr) == (0, "")
    (process,) = stage.processes
    # And no other is begun: all that an exit waits for has one time.
    assert process.notes == ["Snapshot 1 could not be taken: the program ended while it was being taken."]
    assert process.snapshots == [] and process.has_exit and not Path(f"/proc/{int(ran.stdout)}").exists()


def test_a_child_that_is_nearly_done_at_the_exit_is_let_finish(python: str, tmp_path: Path) -> None:
    _out, process = run(tmp_path, "recorder.take('manual', None, is_waited=False)", python)
    assert [done["kind"] for done in process.snapshots][0] == "manual" and process.notes == []


def test_what_the_child_cost_is_in_done_json(tmp_path: Path) -> None:
    _out, process = run(tmp_path, "agent.snapshot()")
    done = process.snapshots[0]
    assert 0 < done["pause_ns"] < done["walk_ns"] and done["dirtied_bytes"] > 0
    assert process.json("process.json")["walk"] == "native"


def test_the_child_stands_back_behind_the_target(tmp_path: Path) -> None:
    out, _process = run(tmp_path, """
pid = held()
nice = [os.getpriority(os.PRIO_PROCESS, each) for each in (pid, 0)]
print(open(f"/proc/{pid}/oom_score_adj").read().strip(), nice[0] - nice[1])
go_on(pid)
""")
    assert out == "1000 5\n"


STRESS = Path(__file__).parents[2] / "benchmarks" / "fork_stress.py"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_thirty_forks_under_eight_busy_threads_hang_and_crash_nothing(tmp_path: Path) -> None:
    probe = stage_probe(sys.executable, tmp_path)
    ran = subprocess.run([sys.executable, str(STRESS), "--forks", "30", "--probe", str(probe), "--json"], cwd=STRESS.parents[1],
                         capture_output=True, text=True, timeout=500)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    counted = json.loads(ran.stdout)
    assert counted["forks"] == 30
    assert {name: counted[name] for name in ("hangs", "crashes", "failures", "zombies", "strangers")} == dict.fromkeys(
        ("hangs", "crashes", "failures", "zombies", "strangers"), 0)
    assert counted["is_output_identical"]
