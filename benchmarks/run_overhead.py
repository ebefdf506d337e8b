"""What `leakscope run` costs: three workloads, bare and observed, in turns; medians and ratios.

    python benchmarks/run_overhead.py [--rounds 3] [--python PYTHON]

A workload does a fixed amount of work and prints its own wall time, without the start of the interpreter. Observed runs also
say the longest pause and how many snapshots were taken.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

WORKLOADS = {
    "allocation loop": """
import time
start = time.perf_counter()
keep = {}
for number in range(5_000_000):
    keep[number % 50_000] = [number, str(number)]
print(time.perf_counter() - start)
""",
    "json, re, asyncio": """
import asyncio, json, re, time
pattern = re.compile(r"item-(\\d+)")
text = json.dumps({"items": [{"name": f"item-{k}", "tags": ["a", "b"], "price": k * 1.5} for k in range(40)]})
async def request():
    data = json.loads(text)
    await asyncio.sleep(0)
    return sum(int(pattern.match(item["name"])[1]) for item in data["items"])
async def main():
    return sum([await request() for _ in range(60_000)])
start = time.perf_counter()
asyncio.run(main())
print(time.perf_counter() - start)
""",
    "few large arrays": """
import time
import numpy as np
start = time.perf_counter()
total = 0.0
for number in range(260):
    total += float((np.arange(1_500_000, dtype=np.float64) * number).sum())
    np.sort(np.random.default_rng(number).random(100_000))
print(time.perf_counter() - start)
""",
}


def bare_s(python: str, program: Path) -> float:
    """Seconds of the bare program."""
    return float(subprocess.run([python, str(program)], check=True, capture_output=True, text=True).stdout)


def observed(python: str, program: Path, out: Path) -> tuple[float, dict[str, object]]:
    """Seconds of the program under leakscope, and its process in report.json."""
    command = [sys.executable, "-m", "leakscope", "run", "--quiet", "-o", str(out), "--format", "json", "--",
               python, str(program)]
    seconds = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    process: dict[str, object] = json.loads((out / "report.json").read_text())["session"]["processes"][0]
    return seconds, process


def main() -> None:
    """Run the workloads in turns and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--python", default=sys.executable)
    args = parser.parse_args()
    print(f"| workload | bare s | observed s | ratio | snapshots | longest pause ms |\n|{'---|' * 6}")
    with tempfile.TemporaryDirectory() as folder:
        for name, source in WORKLOADS.items():
            program = Path(folder, "program.py")
            program.write_text(source)
            plain, seen, process = [], [], {}
            for number in range(args.rounds):
                plain.append(bare_s(args.python, program))
                seconds, process = observed(args.python, program, Path(folder, f"{name.split()[0]}{number}"))
                seen.append(seconds)
            bare, with_agent = statistics.median(plain), statistics.median(seen)
            print(f"| {name} | {bare:.2f} | {with_agent:.2f} | {with_agent / bare:.2f} | {process['snapshots']} | "
                  f"{process['longest_pause_ms']} |", flush=True)


if __name__ == "__main__":
    main()
