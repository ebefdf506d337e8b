"""What watching a program costs: LeakScope and its peers on the same three workloads, in turns, in one run.

    python -m venv peers && peers/bin/pip install . -r benchmarks/requirements.txt
    peers/bin/python benchmarks/compare.py [--rounds 5] [--scale 1] [--only memray] [--out benchmarks/RESULTS.md]

A workload does a fixed amount of work and prints the wall time of that work alone, without the start of the interpreter and
without what a tool does when the program has ended. In every round each tool runs once, in an order that moves on from round to
round. Two ratios are shown: the median of the ratios to the bare program of the same round, and the fastest run to the fastest
bare one, which a neighbour on the same processor disturbs less. Tools that slow a program down tenfold, or take minutes to
end, do a fifth of the work, and so does the bare program that they are compared with.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from machine import description, put, table, versions

HERE = Path(__file__).resolve().parent
WORKLOADS = {"allocation loop": "allocation_loop.py", "JSON, re, asyncio": "requests.py", "large arrays": "large_arrays.py"}
PACKAGES = ("leakscope-forensics", "memray", "scalene", "filprofiler", "numpy")
LONGEST_S = 900
FIFTH = 0.2

Command = Callable[[str, Path], list[str]]


@dataclass(frozen=True)
class Tool:
    """One way of running a program: `prefix(python, folder)` stands before the program."""

    name: str
    prefix: Command
    part: float = 1.0


def _leakscope(*options: str) -> Command:
    return lambda python, folder: [python, "-m", "leakscope", "run", "--quiet", "--format", "json", *options,
                                   "-o", str(folder / "report"), "--", python]


def _memray(*options: str) -> Command:
    return lambda python, folder: [python, "-m", "memray", "run", "-q", *options, "-o", str(folder / "memray.bin")]


def _tracemalloc(frames: int) -> Command:
    return lambda python, folder: [python, "-X", f"tracemalloc={frames}"]


BARE = Tool("bare", lambda python, folder: [python])
BARE_FIFTH = Tool("bare, a fifth", BARE.prefix, FIFTH)
TOOLS = (
    Tool("leakscope", _leakscope()),
    Tool("leakscope --sites off", _leakscope("--sites", "off")),
    Tool("leakscope --native", _leakscope("--native")),
    Tool("tracemalloc, 1 frame", _tracemalloc(1), FIFTH),
    Tool("tracemalloc, 10 frames", _tracemalloc(10), FIFTH),
    Tool("tracemalloc, 25 frames", _tracemalloc(25), FIFTH),
    Tool("memray", _memray()),
    Tool("memray --native", _memray("--native")),
    Tool("memray --trace-python-allocators", _memray("--trace-python-allocators")),
    Tool("scalene", lambda python, folder: [python, "-m", "scalene", "run", "-o", str(folder / "scalene.json")],
         FIFTH),
    Tool("fil", lambda python, folder: [python, "-m", "filprofiler", "--no-browser", "-o", str(folder / "fil"), "run"]),
)


@dataclass(frozen=True)
class Measured:
    """One run: seconds of the work, peak resident MiB of the program; or why there is none."""

    work_s: float = 0.0
    peak_mib: float = 0.0
    failure: str = ""


def run(tool: Tool, python: str, workload: str, scale: float) -> Measured:
    """Run a workload once under a tool."""
    with tempfile.TemporaryDirectory(prefix="compare-") as name:
        folder = Path(name)
        command = [*tool.prefix(python, folder), str(HERE / "workloads" / WORKLOADS[workload]), str(scale * tool.part)]
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LONGEST_S,
                                  stdin=subprocess.DEVNULL)
        except subprocess.TimeoutExpired:
            return Measured(failure=f"over {LONGEST_S} s")
    said = dict(line.split() for line in done.stdout.splitlines() if line.startswith(("work_s ", "peak_kib ")))
    if "work_s" not in said:
        lines = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()
        return Measured(failure=lines[-1 if "Traceback" in lines[0] else 0][:100].replace("|", "/"))
    return Measured(float(said["work_s"]), float(said["peak_kib"]) / 1024)


def measure(tools: Sequence[Tool], workloads: Sequence[str], python: str, rounds: int,
            scale: float) -> dict[tuple[str, str], list[Measured]]:
    """Run everything in turns; a tool that failed on a workload is not run on it again."""
    runs: dict[tuple[str, str], list[Measured]] = {(tool.name, workload): [] for tool in tools for workload in workloads}
    for number in range(rounds):
        start = time.monotonic()
        for workload in workloads:
            shift = number * 3 % len(tools)
            for tool in (*tools[shift:], *tools[:shift]):
                before = runs[tool.name, workload]
                before.append(before[-1] if before and before[-1].failure else run(tool, python, workload, scale))
        print(f"round {number + 1} of {rounds}: {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    return runs


def ratios(runs: dict[tuple[str, str], list[Measured]], tool: Tool, workload: str) -> list[float]:
    """Ratios to the bare program of the same round and the same amount of work, in order; empty where it failed."""
    bare = runs[(BARE if tool.part == 1.0 else BARE_FIFTH).name, workload]
    pairs = zip(runs[tool.name, workload], bare, strict=True)
    return sorted(one.work_s / other.work_s for one, other in pairs if not one.failure and not other.failure)


def fastest(taken: Sequence[Measured]) -> float:
    """Seconds of the fastest run; at least one has not failed."""
    return min(each.work_s for each in taken if not each.failure)


def shown(runs: dict[tuple[str, str], list[Measured]], tools: Sequence[Tool], workloads: Sequence[str]) -> str:
    """The table: median ratio and that of the fastest runs, and the peak of memory beside that of the bare program."""
    head = ["", *(f"{each}: median, fastest" for each in workloads), *(f"{each}: peak MiB" for each in workloads)]
    rows = []
    for tool in tools:
        row = [tool.name]
        for workload in workloads:
            taken = runs[tool.name, workload]
            found = ratios(runs, tool, workload)
            if not found:
                row.append(taken[-1].failure)
            elif tool in (BARE, BARE_FIFTH):
                row.append(f"{statistics.median(each.work_s for each in taken):.2f} s, {fastest(taken):.2f} s")
            else:
                bare = runs[(BARE if tool.part == 1.0 else BARE_FIFTH).name, workload]
                row.append(f"{statistics.median(found):.2f}, {fastest(taken) / fastest(bare):.2f}")
        for workload in workloads:
            peaks = [each.peak_mib for each in runs[tool.name, workload] if not each.failure]
            row.append(f"{statistics.median(peaks):.0f}" if peaks else "")
        rows.append(row)
    return table(head, rows)


def main() -> None:
    """Measure and print the table, or put it into a file under its heading."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="of the work; 1: two to three seconds bare")
    parser.add_argument("--python", default=sys.executable, help="an interpreter with leakscope and the peers")
    parser.add_argument("--only", action="append", default=[], help="tools whose name begins so; may be given again")
    parser.add_argument("--workload", action="append", default=[], choices=list(WORKLOADS))
    parser.add_argument("--out", type=Path, help="file to write the section into (others are kept)")
    args = parser.parse_args()
    machine = description()
    chosen = [tool for tool in TOOLS if not args.only or tool.name.startswith(tuple(args.only))]
    tools = [BARE, *([BARE_FIFTH] if any(tool.part != 1.0 for tool in chosen) else []), *chosen]
    workloads = args.workload or list(WORKLOADS)
    runs = measure(tools, workloads, args.python, args.rounds, args.scale)
    found = ", ".join(f"{name} {version}" for name, version in versions(args.python, PACKAGES).items())
    text = f"{machine}.\n{found}.\n{args.rounds} rounds in turns: the median of the ratios within a round, and the ratio of "
    text += "the fastest runs.\n\n"
    text += shown(runs, tools, workloads)
    print(text)
    if args.out:
        put(args.out, "What watching costs", text)


if __name__ == "__main__":
    main()
