"""Objects a second of the Python walk, beside what else looks at a whole heap: gc.get_objects and objgraph's type statistics.

    python benchmarks/walk_speed.py [--objects 1000000]

CPU time in one process, medians of three; the others do much less (they write no names, no edges, no file).
"""

from __future__ import annotations

import argparse
import gc
import statistics
import tempfile
import time
from collections.abc import Callable

import objgraph

from leakscope.agent import walk


class Order:
    """An instance with three attributes."""

    def __init__(self, number: int) -> None:
        self.number, self.lines, self.note = number, [number], str(number)


def cpu_s(action: Callable[[], object]) -> float:
    """Median CPU seconds of three calls."""
    times = []
    for _ in range(3):
        start = time.process_time()
        action()
        times.append(time.process_time() - start)
    return statistics.median(times)


def main() -> None:
    """Build a heap, measure, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--objects", type=int, default=1_000_000)
    args = parser.parse_args()
    orders = [Order(number + 1000) for number in range(args.objects // 4)]
    with tempfile.TemporaryDirectory() as folder:
        nodes = walk.take(f"{folder}/first", 1, "manual", 0)["node_count"]
        calls = iter(range(10))
        rows = [("leakscope walk with names, edges and files",
                 cpu_s(lambda: walk.take(f"{folder}/{next(calls)}", 1, "manual", 0))),
                ("objgraph.typestats", cpu_s(objgraph.typestats)),
                ("gc.get_objects and their referents", cpu_s(lambda: gc.get_referents(*gc.get_objects())))]
    print(f"{nodes:,} objects, {len(orders):,} instances\n\n| what | CPU s | objects a second |\n|---|---|---|")
    for name, seconds in rows:
        print(f"| {name} | {seconds:.2f} | {nodes / seconds:,.0f} |")


if __name__ == "__main__":
    main()
