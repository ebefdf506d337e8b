"""A whole heap, looked at: LeakScope's snapshot, in place and by a child, beside guppy3, pympler and objgraph.

    peers/bin/python benchmarks/heap.py [--objects 1000000 10000000] [--rounds 3] [--out benchmarks/RESULTS.md]

Every row is a fresh process that makes the same heap (orders with two attributes, a list and a string, in a registry) and then
looks at it; medians of rounds, each with its own process. "pause" is how long the program stands still. `fork alone` is the
same system call in the same process without a walk in the child. Peers answer less than a snapshot does: the table says what
they did. How long the report takes: benchmarks/report_scale.py.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from machine import description, put, table, versions

LONGEST_S = 900
PACKAGES = ("leakscope-forensics", "guppy3", "Pympler", "objgraph")

# Makes the heap; what follows it prints one JSON object.
HEAP = """
import ctypes, gc, json, os, random, sys, tempfile, time

class Order:
    def __init__(self, number):
        self.lines, self.note = [number] * (1 + number % 7), "n" * int(random.random() * 60) + str(number)

gc.disable()
random.seed(7)
count = int(sys.argv[1]) // 4
registry = {number: Order(number) for number in range(1000, 1000 + count)}
for number in random.sample(range(1000, 1000 + count), count // 5):  # so that the heap is not in the order of the addresses
    del registry[number]
    registry[number + count] = Order(number + count)
gc.enable()

def resident(field="VmRSS"):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(field))

rss = resident()

def answer(seconds, **measured):
    print(json.dumps({"rss": rss, "s": seconds, "more": resident("VmHWM") - rss, **measured}), flush=True)
    os._exit(0)

def size(folder):
    return sum(entry.stat().st_size for entry in os.scandir(folder))

def packed(folder):
    from pathlib import Path
    from leakscope.heap import columns
    columns.pack(Path(folder))
    return size(folder)
"""

LEAKSCOPE = """
from leakscope.agent import probe
reason = probe.why_not()
if reason:
    print(json.dumps({"failure": reason})); sys.stdout.flush(); os._exit(0)
folder = os.path.join(tempfile.mkdtemp(dir=sys.argv[2]), "1")
"""

WAYS = {
    "leakscope, in place": LEAKSCOPE + """
start = time.perf_counter()
done = probe.take(folder, 1, "manual", 0)
seconds, more = time.perf_counter() - start, resident("VmHWM") - rss
answer(seconds, more=more, nodes=done["node_count"], pause=done["pause_ns"] / 1e9, walk=done["walk_ns"] / 1e9,
       disk=size(folder), packed=packed(folder))
""",
    "leakscope, by a child": LEAKSCOPE + """
_pid, pause = probe.fork(folder, 1, "manual", 0, deadline_ns=time.monotonic_ns() + 600 * 10**9)
start, result = time.perf_counter(), None
while result is None:
    time.sleep(0.005)
    result = probe.forked()
if result.get("error"):
    print(json.dumps({"failure": result["reason"]})); sys.stdout.flush(); os._exit(0)
seconds, more = time.perf_counter() - start, resident("VmHWM") - rss
answer(seconds, more=more, nodes=result["node_count"], pause=pause / 1e9, walk=result["walk_ns"] / 1e9,
       disk=size(folder), packed=packed(folder), dirtied=result["dirtied_bytes"])
""",
    "fork alone": """
libc = ctypes.PyDLL(None)
fork = getattr(libc, "_Fork", libc.fork)
leave = libc._exit
start = time.perf_counter()
pid = fork()
if pid == 0:
    leave(0)
pause = time.perf_counter() - start
os.waitpid(pid, 0)
answer(time.perf_counter() - start, pause=pause)
""",
    "leakscope, walk in Python": """
from leakscope.agent import walk
folder = os.path.join(tempfile.mkdtemp(dir=sys.argv[2]), "1")
start = time.perf_counter()
done = walk.take(folder, 1, "manual", 0)
answer(time.perf_counter() - start, nodes=done["node_count"], pause=done["pause_ns"] / 1e9, disk=size(folder))
""",
    "guppy3: heap() by type": """
from guppy import hpy
hp = hpy()
start = time.perf_counter()
found = hp.heap()
str(found)
seconds = time.perf_counter() - start
answer(seconds, pause=seconds, nodes=found.count)
""",
    "pympler: summary of all objects": """
from pympler import muppy, summary
start = time.perf_counter()
objects = muppy.get_objects()
summary.summarize(objects)
seconds = time.perf_counter() - start
answer(seconds, pause=seconds, nodes=len(objects))
""",
    "objgraph: types, and chains of 10 suspects": """
import objgraph
start = time.perf_counter()
counts = objgraph.typestats()
for order in list(registry.values())[::len(registry) // 10][:10]:
    objgraph.find_backref_chain(order, objgraph.is_proper_module)
seconds = time.perf_counter() - start
answer(seconds, pause=seconds, nodes=sum(counts.values()))
""",
}


def run(way: str, python: str, objects: int) -> dict[str, float]:
    """One process: seconds, pause and sizes in bytes; {"failure": sentence} where there is no answer."""
    with tempfile.TemporaryDirectory(prefix="heap-") as folder:
        try:
            done = subprocess.run([python, "-c", HEAP + WAYS[way], str(objects), folder], capture_output=True, text=True,
                                  timeout=LONGEST_S, stdin=subprocess.DEVNULL)
            found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
            return found
        except subprocess.TimeoutExpired:
            return {"failure": f"over {LONGEST_S} s"}  # type: ignore[dict-item]
        except (IndexError, ValueError):
            return {"failure": done.stderr.strip().splitlines()[-1][:90] if done.stderr else f"exit code {done.returncode}"}  # type: ignore[dict-item]


def middle(runs: Sequence[dict[str, float]], name: str) -> float | None:
    """The median of what every run measured."""
    found = [each[name] for each in runs if name in each]
    return statistics.median(found) if found else None


def row(way: str, runs: Sequence[dict[str, float]]) -> list[str]:
    """A row of the table; what was not measured is empty."""
    if "failure" in runs[-1]:
        return [way, str(runs[-1]["failure"]), *[""] * 8]
    nodes, walk = middle(runs, "nodes"), middle(runs, "walk")
    disk, packed = middle(runs, "disk"), middle(runs, "packed")
    dirtied, rss = middle(runs, "dirtied"), middle(runs, "rss")
    return [way, f"{middle(runs, 's'):.3f}", f"{1000 * (middle(runs, 'pause') or 0):.2f}", f"{nodes:,.0f}" if nodes else "",
            f"{nodes / walk / 1e6:.1f}" if nodes and walk else "", f"{(rss or 0) / 2**20:.0f}",
            f"{(middle(runs, 'more') or 0) / 2**20:.0f}", f"{dirtied / rss:.0%}" if dirtied and rss else "",
            f"{disk / nodes:.1f}" if disk and nodes else "", f"{packed / nodes:.1f}" if packed and nodes else ""]


def main() -> None:
    """Measure and print the tables, or put them into a file under their heading."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--objects", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--python", default=sys.executable, help="an interpreter with leakscope and the peers")
    parser.add_argument("--only", action="append", default=[], help="ways whose name begins so; may be given again")
    parser.add_argument("--out", type=Path, help="file to write the section into (others are kept)")
    args = parser.parse_args()
    found = ", ".join(f"{name} {version}" for name, version in versions(args.python, PACKAGES).items())
    text = f"{description()}.\n{found}.\nMedians of {args.rounds} processes.\n"
    head = ["", "seconds", "pause ms", "objects", "million objects/s", "RSS MiB", "peak above RSS MiB", "dirtied of RSS",
            "bytes on disk an object", "packed"]  # fmt: skip
    for objects in args.objects:
        runs: dict[str, list[dict[str, float]]] = {
            way: [] for way in WAYS if not args.only or way.startswith(tuple(args.only))}
        for number in range(args.rounds):
            for way, taken in runs.items():
                if not taken or "failure" not in taken[-1]:
                    taken.append(run(way, args.python, objects))
            print(f"{objects:,} objects, round {number + 1} of {args.rounds}", file=sys.stderr, flush=True)
        text += f"\nAbout {objects:,} objects:\n\n{table(head, [row(way, taken) for way, taken in runs.items()])}\n"
    print(text)
    if args.out:
        put(args.out, "What a snapshot costs", text)


if __name__ == "__main__":
    main()
