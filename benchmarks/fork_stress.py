"""Forks a program thousands of times for snapshots while eight of its threads allocate, log, use locks, sqlite and sockets.

    python benchmarks/fork_stress.py [--forks 10000] [--seconds S] [--python PYTHON] [--probe PATH] [--json]

Counts children that did not end (hangs), that died of a signal (crashes), that left no whole snapshot (failures), children of
ours that the program saw (strangers), and what was left over at the end (zombies). The program says what it worked
out; that is compared with a run without any fork. Ends with 1 if anything is not as it should be.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from leakscope.inject import _probes  # noqa: E402

PROGRAM = r'''
import json, logging, os, shutil, signal, socket, sqlite3, sys, threading, time
where, forks, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
made = type(sys)("_leakscope_agent")
made.__path__ = [where + "/_leakscope_agent"]
sys.modules["_leakscope_agent"] = made
from _leakscope_agent import probe

sys.setswitchinterval(0.0005)  # more turns, and the forks come sooner to theirs
stop = threading.Event()
right, lock, shared = [0] * 8, threading.RLock(), {"a": 0, "b": 0}
log = logging.getLogger("stress")
log.addHandler(logging.FileHandler(where + f"/log-{forks}.txt"))
log.propagate = False

def done(number):
    right[number] += 1
    if right[number] % 20 == 0:
        time.sleep(0.001)  # so that all come to their turn

def allocating(number):
    kept = []
    while not stop.is_set():
        kept.append({"number": [str(value) for value in range(100)], "bytes": bytearray(5000)})
        assert kept[-1]["number"][99] == "99"
        if len(kept) > 50:
            kept.clear()
        done(number)

def logging_(number):
    while not stop.is_set():
        log.error("worker %d says %d", number, right[number])
        done(number)

def locking(number):
    while not stop.is_set():
        with lock:
            shared["a"] += 1
            shared["b"] -= 1
            assert shared["a"] == -shared["b"]
        done(number)

def in_a_database(number):
    base = sqlite3.connect(where + f"/base-{forks}.sqlite")
    base.execute("pragma synchronous = off")
    base.execute("create table if not exists t (n integer)")
    while not stop.is_set():
        with base:
            base.executemany("insert into t values (?)", [(value,) for value in range(20)])
        done(number)
        assert base.execute("select count(*) from t").fetchone() == (20 * right[number],)
    base.close()

def talking(number):
    near, far = socket.socketpair()
    while not stop.is_set():
        near.sendall(b"x" * 3000)
        got = 0
        while got < 3000:
            got += len(far.recv(3000))
        done(number)
    near.close()
    assert far.recv(1) == b""

threads = [threading.Thread(target=work, args=(number,)) for number, work in enumerate(
    (allocating, allocating, logging_, logging_, locking, locking, in_a_database, talking))]
signals = []
signal.signal(signal.SIGCHLD, lambda *_: signals.append(1))
for thread in threads:
    thread.start()
counts = {"hangs": 0, "crashes": 0, "failures": 0, "strangers": 0}
pauses, walks, dirtied = [], [], []
folder = where + "/snapshot"
begun = time.monotonic()
forked, end = 0, time.monotonic() + seconds
for number in range(forks):
    if time.monotonic() > end:
        break
    forked += 1
    _pid, pause_ns = probe.fork(folder, number, "manual", 0, deadline_ns=time.monotonic_ns() + 60_000_000_000)
    waited = time.monotonic()
    while (result := probe.forked()) is None:
        if time.monotonic() - waited > 70:
            counts["hangs"] += 1
            probe.kill()
            waited = time.monotonic()
        if number % 50 == 0:
            try:
                counts["strangers"] += bool(os.waitpid(-1, os.WNOHANG))
            except ChildProcessError:
                pass
        time.sleep(0.001)
    counts["crashes"] += bool(result["signal"])
    if "error" in result or not os.path.exists(folder + "/done.json"):
        counts["failures"] += 1
        print(result, file=sys.stderr)
    else:
        pauses.append(pause_ns); walks.append(result["walk_ns"]); dirtied.append(result["dirtied_bytes"])
    shutil.rmtree(folder, ignore_errors=True)
    if number % 500 == 499:
        print(number + 1, counts, file=open(where + "/progress.txt", "a"))
while time.monotonic() < begun + (2 if all(right) else 60):  # on a busy machine some have had no turn yet
    time.sleep(0.01)
stop.set()
for thread in threads:
    thread.join()
logging.shutdown()
counts["strangers"] += len(signals)
counts["forks"] = forked
counts["zombies"] = sum(len(open(f"/proc/self/task/{task}/children").read().split()) for task in os.listdir("/proc/self/task"))
with open(where + f"/log-{forks}.txt") as file:
    lines = sum(1 for _ in file)
base = sqlite3.connect(where + f"/base-{forks}.sqlite")
print("all threads worked:", all(right), "log:", lines == right[2] + right[3], "locks:", shared["a"] == right[4] + right[5],
      "database:", base.execute("select count(*), sum(n) from t").fetchone() == (20 * right[6], 190 * right[6]))
counts.update(pauses=sorted(pauses), walks=sorted(walks), dirtied=sorted(dirtied))
with open(where + f"/counts-{forks}.json", "w") as file:
    json.dump(counts, file)
'''


def main() -> int:
    """Run the program without and with forks and print what was counted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forks", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=86_400, help="end earlier, after this time")
    parser.add_argument("--python", default=sys.executable, help="the interpreter of the program; it must have a probe")
    parser.add_argument("--probe", type=Path, help="a probe for it that was built before")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fork-stress-") as name:
        where = Path(name)
        counted = measure(where, given.python, given.forks, given.seconds, given.probe)
    print(json.dumps(counted) if given.json else "\n".join(f"{key:22} {value}" for key, value in counted.items()))
    wrong = sum(counted[key] for key in ("hangs", "crashes", "failures", "strangers", "zombies"))
    return 1 if wrong or not counted["is_output_identical"] else 0


def measure(where: Path, python: str, forks: int, seconds: float, probe: Path | None = None) -> dict[str, Any]:
    """Return what was counted, by name; times in milliseconds."""
    agent = where / "_leakscope_agent"
    shutil.copytree(_probes.AGENT_FOLDER, agent, ignore=shutil.ignore_patterns("__pycache__", "boot", "_probe*"))
    target = _probes.look_at(python)
    if probe is None:
        _probes.compile_for(target, agent / _probes.file_name(target.soabi))
    else:
        shutil.copy(probe, agent)
    (where / "program.py").write_text(PROGRAM)
    outputs, begun = [], time.monotonic()
    for count in (0, forks):
        ran = subprocess.run([python, "-X", "faulthandler", "program.py", str(where), str(count), str(seconds)], cwd=where,
                             capture_output=True, text=True)
        outputs.append((ran.returncode, ran.stdout, ran.stderr))
    if outputs[1][0]:
        raise SystemExit(f"The program failed:\n{outputs[1][2]}")
    counts = json.loads((where / f"counts-{forks}.json").read_text())
    middle = {key: values[len(values) // 2] if values else 0 for key, values in counts.items() if isinstance(values, list)}
    return {"python": target.name, **{key: value for key, value in counts.items() if isinstance(value, int)},
            "is_output_identical": outputs[0] == outputs[1] and "False" not in outputs[1][1], "output": outputs[1][1].strip(),
            "pause_ms": middle["pauses"] / 1e6, "longest_pause_ms": counts["pauses"][-1] / 1e6,
            "walk_ms": middle["walks"] / 1e6, "dirtied_mb": middle["dirtied"] / 1e6,
            "seconds": round(time.monotonic() - begun, 1)}


if __name__ == "__main__":
    sys.exit(main())
