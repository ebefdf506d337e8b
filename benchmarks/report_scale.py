"""How long `leakscope report` takes for large heaps, and what it needs: three snapshots of a made-up service.

    python benchmarks/report_scale.py [--objects 1000000 10000000] [--packed] [--keep FOLDER]

The heap is that of a server: a registry of orders that grows, each an instance with a dict, a list of lines and strings, some
held twice; a third of the objects are there from the start; 2 edges an object; rows in the order in which a walk finds them.
Prints seconds and the peak of resident memory of a fresh process that makes report.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from leakscope.agent import format as layout
from leakscope.heap import columns as columns_of_snapshots

STRINGS = ["", "module app", "registry", "stable", "id", "lines", "meta", "customer", "str:8", "str:12", "float", "state",
           "'status'", "'total'", "status", "total", *(f"name_{number}" for number in range(20_000))]
TYPES = [["builtins", "module", "hgd"], ["builtins", "dict", "g"], ["app", "Order", "hgd"], ["builtins", "list", "g"],
         ["builtins", "str", ""], ["builtins", "tuple", "g"], ["builtins", "float", ""], ["app", "Customer", "hgd"],
         ["builtins", "type", "hgd"]]
MODULE, DICT, ORDER, LIST, STR, TUPLE, FLOAT, CUSTOMER, TYPE = range(len(TYPES))
SIZES = np.array([72, 232, 48, 88, 57, 56, 24, 48, 1080])
CONTAINER = np.array([0, 1, 0, 1, 0, 1, 0, 0, 0])
TRACKED = 16  # an object that the collector tracks begins after its header
PARTS = 9  # objects of an order: itself, key, id, list, dict, two tuples, a float, a string


def label(kind: int, value: object) -> object:
    """Codes of edges."""
    return np.uint32(kind << layout.EDGE_KIND_SHIFT) | np.asarray(value, np.uint32)


class Heap:
    """Nodes and edges in the order of a breadth-first walk: every level is appended as a block."""

    def __init__(self) -> None:
        self.types: list[np.ndarray] = []
        self.count = 0
        self.edges: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []

    def add(self, types: object, count: int = 1) -> np.ndarray:
        """Add `count` groups of nodes of these types; returns their rows, (count, len(types))."""
        group = np.atleast_1d(np.asarray(types, np.uint32))
        self.types.append(np.tile(group, count))
        rows = np.arange(self.count, self.count + count * len(group), dtype=np.uint32).reshape(count, len(group))
        self.count += rows.size
        return rows

    def link(self, source: object, target: object, code: object) -> None:
        """Add edges."""
        self.edges.append(tuple(np.broadcast_to(np.asarray(each, np.uint32), np.broadcast(source, target, code).shape).ravel()
                                for each in (source, target, code)))

    def columns(self, seed: int) -> dict[str, np.ndarray]:
        """The columns of format.COLUMNS that a walk writes for it."""
        types = np.concatenate(self.types)
        source, target, code = (np.concatenate(each) for each in zip(*self.edges))
        order = np.argsort(source, kind="stable")
        degree = np.bincount(source, minlength=self.count)
        return {
            "address": addresses(types, seed), "type_id": types, "shallow_bytes": SIZES[types] + 8 * degree * CONTAINER[types],
            "refcount": np.bincount(target, minlength=self.count), "length": degree * CONTAINER[types],
            "kind": np.where(types == MODULE, 3, np.where(types == TYPE, 4, 0)), "label": (types == MODULE).astype(np.uint32),
            "edge_start": np.concatenate(([0], np.cumsum(degree))), "edge_target": target[order], "edge_label": code[order],
            "root_node": np.array([0]), "root_kind": np.array([0]), "root_label": np.array([1])}


def addresses(types: np.ndarray, seed: int) -> np.ndarray:
    """Blocks of one size follow one another in a pool of 16 KiB; a twentieth lies where something was freed before."""
    chance = np.random.default_rng(seed)
    found = np.empty(len(types), np.uint64)
    for kind in range(len(TYPES)):
        rows = np.flatnonzero(types == kind)
        step = np.full(len(rows), -(-int(SIZES[kind]) // 16) * 16, np.int64)
        jumps = chance.random(len(rows)) < 0.05
        step[jumps] = chance.integers(1, 1 << 12, int(jumps.sum())) * 16
        found[rows] = 0x7F00_0000_0000 + (kind << 36) + np.cumsum(step)
    return found


def service(objects: int, orders: int) -> Heap:
    """A heap of about `objects`, of which `orders` orders hang in the registry and the rest in tables that stay."""
    heap = Heap()
    module = heap.add(MODULE)[0, 0]
    registry, stable = heap.add([DICT, LIST])[0]
    heap.link(module, [registry, stable], label(layout.ATTRIBUTE, [2, 3]))
    kind = heap.add(TYPE)[0, 0]
    heap.link(module, kind, label(layout.ATTRIBUTE, 7))
    stable_count = max(1, (objects - PARTS * orders) // 3)
    entries = heap.add([STR, ORDER], orders)
    heap.link(registry, entries[:, 0], label(layout.KEY_OBJECT, 8))
    heap.link(registry, entries[:, 1], label(layout.KEY, 8))
    rows = heap.add(TUPLE, stable_count)[:, 0]
    heap.link(stable, rows, label(layout.INDEX, np.arange(stable_count)))
    by_date = heap.add(LIST)[0, 0]
    heap.link(module, by_date, label(layout.ATTRIBUTE, 11))
    heap.link(by_date, entries[:, 1], label(layout.INDEX, np.arange(orders)))
    customers = heap.add(CUSTOMER, max(1, orders // 50))[:, 0]
    parts = heap.add([STR, LIST, DICT], orders)
    owner = entries[:, 1]
    for place, name in enumerate((4, 5, 6)):
        heap.link(owner, parts[:, place], label(layout.ATTRIBUTE, name))
    heap.link(owner, customers[np.arange(orders) % len(customers)], label(layout.ATTRIBUTE, 7))
    heap.link(owner, kind, label(layout.TYPE, 0))
    cells = heap.add([FLOAT, STR], stable_count)
    shared = heap.add(STR, 40)[:, 0]
    for place in range(5):
        heap.link(rows, cells[:, place] if place < 2 else shared[place:place + 1], label(layout.INDEX, place))
    lines = heap.add([TUPLE, TUPLE, FLOAT, STR], orders)
    for place in range(2):
        heap.link(parts[:, 1], lines[:, place], label(layout.INDEX, place))
        heap.link(lines[:, place], shared[np.arange(orders) % 40], label(layout.INDEX, 0))
        heap.link(lines[:, place], customers[np.arange(orders) % len(customers)], label(layout.INDEX, 1))
    heap.link(parts[:, 2], lines[:, 2], label(layout.KEY, 13))
    heap.link(parts[:, 2], lines[:, 3], label(layout.KEY, 12))
    heap.link(parts[:, 2], shared[0], label(layout.KEY_OBJECT, 14))
    heap.link(parts[:, 2], shared[1], label(layout.KEY_OBJECT, 15))
    heap.link(customers, shared[2], label(layout.ATTRIBUTE, 4))
    return heap


def write_session(folder: Path, objects: int, packed: bool) -> None:
    """Three snapshots, 30 s apart, and a timeline that grows with them."""
    session, process = folder / "session", folder / "session" / "7"
    process.mkdir(parents=True)
    write_json(session / layout.SESSION_FILE, format=layout.FORMAT, tool_version="0", id="0" * 12, pid=7, command=["serve.py"],
               started="2026-01-01T00:00:00Z", started_monotonic_ns=0, state="complete", duration_s=100, exit_code=0,
               signal=None, label="", options={}, host={}, gaps=[])
    write_json(process / layout.PROCESS_FILE, format=1, pid=7, parent=1, role="main", python="3.11.7", started_ns=0,
               sites="off")
    write_json(process / layout.EXIT_FILE, t_ns=100 * 10**9, reason="exit")
    grown = [objects // PARTS * share // 100 for share in (50, 53, 56)]
    with (process / layout.TIMELINE_FILE).open("w") as file:
        for second in range(101):
            size = 10**9 + second * objects // 10
            row = {"t_ns": second * 10**9, "rss_bytes": size, "anon_bytes": size, "modules": 100, "malloc_used_bytes": 10**8,
                   "malloc_free_bytes": 10**7, "py_blocks": int(objects * (1 + 0.001 * second))}
            file.write(json.dumps(row) + "\n")
    for number, orders in enumerate(grown):
        snapshot = process / layout.SNAPSHOT_FOLDER / f"{number + 1:04}"
        snapshot.mkdir(parents=True)
        columns = service(objects + PARTS * (orders - grown[0]), orders).columns(1)
        for name, dtype in layout.COLUMNS.items():
            np.save(snapshot / f"{name}.npy", columns.get(name, np.zeros(len(columns["address"]))).astype(dtype))
        write_json(snapshot / layout.NAMES_FILE, strings=STRINGS, types=TYPES, sites=[None], bounds=[], caches=[])
        write_json(snapshot / layout.DONE_FILE, format=layout.FORMAT, index=number + 1, t_ns=(20 + 30 * number) * 10**9,
                   kind="ladder", method="fork", walk="native", pause_ns=10**7, node_count=len(columns["address"]),
                   edge_count=len(columns["edge_target"]), root_count=1, agent_bytes=10**6, excluded_count=0,
                   sample={"py_blocks": orders * PARTS, "gc_collections2": number}, notes=[],
                   gc={"enabled": True, "thresholds": [700, 10, 10], "counts": [0, 0, 0], "freeze_count": 0})
        if packed:
            columns_of_snapshots.pack(snapshot)


def write_json(path: Path, **fields: object) -> None:
    """One file of a session."""
    path.write_text(json.dumps(fields))


MEASURED = """
import resource, sys, time
start = time.perf_counter()
from pathlib import Path
from leakscope import session
from leakscope.commands import _make_report
report = _make_report.make_report(session.open(sys.argv[1]), Path(sys.argv[1]), ("json",), sys.stderr)
first = report.findings[0].owner if report.findings else "nothing"
print(round(time.perf_counter() - start, 2), round(time.process_time(), 2),
      resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, first)
"""


def main() -> None:
    """Make a session for each size, and time its report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--objects", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--packed", action="store_true", help="pack the snapshots first, as `run` does")
    parser.add_argument("--keep", type=Path, help="make the sessions there, and use those that are there")
    args = parser.parse_args()
    print("| objects | on disk, bytes an object | report, s | CPU, s | peak, MB | first finding |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as scratch:
        for objects in args.objects:
            folder = (args.keep or Path(scratch)) / f"{objects}{'-packed' * args.packed}"
            if not folder.exists():
                write_session(folder, objects, args.packed)
            disk = sum(file.stat().st_size for file in folder.rglob("snapshots/*/*"))
            run = subprocess.run([sys.executable, "-c", MEASURED, str(folder)], capture_output=True, text=True, check=True)
            seconds, processor, peak, first = run.stdout.split(maxsplit=3)
            print(f"| {objects:,} | {disk / (3.09 * objects):.1f} | {seconds} | {processor} | {peak} | {first.strip()} |",
                  flush=True)


if __name__ == "__main__":
    main()
