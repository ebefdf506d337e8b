"""Components, dominators and retained bytes of a large graph, beside scipy and igraph where they are installed.

    python -m benchmarks.graph_speed [--objects 10000000] [--peers]

Two orders of the same heap (the service of report_scale.py): as a walk discovers it, and with its rows shuffled, which is the
worst for a processor's caches. CPU seconds, medians of three, and the memory that each call needs, its result included.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.report_scale import PARTS, service
from leakscope.analyse.components import components
from leakscope.analyse.dominators import dominators, retained

Arrays = dict[str, np.ndarray]


def heap(objects: int, is_shuffled: bool) -> Arrays:
    """Edges in rows, the roots, and sizes."""
    columns = service(objects, objects // (2 * PARTS)).columns(1)
    start, target = columns["edge_start"].astype(np.int64), columns["edge_target"].astype(np.uint32)
    roots, count = columns["root_node"], len(start) - 1
    if is_shuffled:
        place = np.random.default_rng(1).permutation(count)  # new row of each node
        source = place[np.repeat(np.arange(count), np.diff(start))]
        order = np.argsort(source, kind="stable")
        start = np.concatenate(([0], np.cumsum(np.bincount(source, minlength=count))))
        target, roots = place[target][order].astype(np.uint32), place[roots]
    return {"start": start.astype(np.uint64), "target": target, "roots": roots.astype(np.uint32),
            "sizes": np.full(count, 64, np.uint64)}


def ours(graph: Arrays) -> dict[str, Callable[[], object]]:
    """What is measured, by name."""
    idom = dominators(graph["start"], graph["target"], graph["roots"])
    return {"components": lambda: components(graph["start"], graph["target"]),
            "dominators": lambda: dominators(graph["start"], graph["target"], graph["roots"]),
            "retained": lambda: retained(idom, graph["sizes"])}


def peers(graph: Arrays) -> dict[str, Callable[[], object]]:
    """The same by others."""
    found: dict[str, Callable[[], object]] = {}
    count = len(graph["start"]) - 1
    if importlib.util.find_spec("scipy"):
        from scipy.sparse import csr_matrix
        from scipy.sparse.csgraph import connected_components

        matrix = csr_matrix((np.ones(len(graph["target"]), np.int8), graph["target"].astype(np.int32),
                             graph["start"].astype(np.int32)), shape=(count, count))
        found["components, scipy"] = lambda: connected_components(matrix, directed=True, connection="strong")
    if importlib.util.find_spec("igraph"):
        import igraph

        source = np.repeat(np.arange(count), np.diff(graph["start"].astype(np.int64)))
        other = igraph.Graph(n=count, edges=np.column_stack((source, graph["target"])), directed=True)
        root = int(graph["roots"][0])
        found["components, igraph"] = lambda: other.connected_components(mode="strong")
        found["dominators, igraph"] = lambda: other.dominator(root)
    return found


def measured(action: Callable[[], object]) -> float:
    """Median CPU seconds of three calls."""
    times = []
    for _ in range(3):
        start = time.process_time()
        action()
        times.append(time.process_time() - start)
    return statistics.median(times)


def extra_bytes(file: Path, name: str) -> int:
    """What a call needs at its peak beyond its arguments, its result included, in a process of its own."""
    run = subprocess.run([sys.executable, "-m", "benchmarks.graph_speed", "--one", name, "--arrays", str(file)],
                         capture_output=True, text=True, check=True)
    return int(run.stdout)


def one(file: Path, name: str) -> None:
    """Print the growth of peak memory in one call."""
    with np.load(file) as arrays:
        graph = {key: arrays[key] for key in arrays.files}
    idom = graph.pop("idom")
    calls = {"components": lambda: components(graph["start"], graph["target"]),
             "dominators": lambda: dominators(graph["start"], graph["target"], graph["roots"]),
             "retained": lambda: retained(idom, graph["sizes"])}
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew, see proc(5)
    before = peak_bytes()
    calls[name]()
    print(peak_bytes() - before)


def peak_bytes() -> int:
    """The highest resident memory of this process."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) << 10


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--objects", type=int, default=10_000_000)
    parser.add_argument("--peers", action="store_true", help="also scipy and igraph: minutes for ten million objects")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--arrays", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        one(args.arrays, args.one)
        return
    print("| order | what | CPU s | extra MB |\n|---|---|---|---|")
    for order in ("discovery", "shuffled"):
        graph = heap(args.objects, order == "shuffled")
        total = 0.0
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "graph.npz"
            np.savez(file, idom=dominators(graph["start"], graph["target"], graph["roots"]), **graph)
            for name, action in ours(graph).items():
                seconds = measured(action)
                total += seconds
                print(f"| {order} | {name} | {seconds:.2f} | {extra_bytes(file, name) / 1e6:.0f} |", flush=True)
        print(f"| {order} | together, {len(graph['start']) - 1:,} nodes, {len(graph['target']):,} edges | {total:.2f} | |")
        for name, action in (peers(graph) if args.peers else {}).items():
            print(f"| {order} | {name} | {measured(action):.2f} | |", flush=True)


if __name__ == "__main__":
    main()
