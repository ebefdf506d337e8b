"""The checks that need a real GPU (knowledge page "gpu", 8.2), prepared to be run once on a machine that is lent for minutes.

    python benchmarks/gpu_checks.py --out DIR [--seconds 540] [--only 0 2 7]

Each check is a process of its own, so that an error of CUDA, a crash or a hang costs that check alone; they run in the order of
what matters most, each with its budget, until --seconds are over. DIR gets results.json (after each check), table.md, log.txt
and fixtures.tar.gz (snapshots, key sets; at most 15 MiB; no path of the machine in them). Needs torch with CUDA, numpy,
nvidia-ml-py and this checkout; leakscope does not have to be installed. Exit code: 0 all that ran passed, 1 something did not,
2 there is no GPU that can be used.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gpu_check_sums import bundled
from machine import description, table

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 540  # a command on a lent machine may take ten minutes
LEAST_S = 12.0  # importing torch and a context take about this: with less left a check is not begun
OVER = 1.5  # times its budget a check may take when there is time
RESERVE_S = 4.0  # for the files at the end
PROBE_S = 120.0  # the first import of torch on a fresh machine
LOG_BYTES = 20_000  # of the output of one check that are kept


@dataclass(frozen=True)
class Check:
    """One check: number of the knowledge page's table, name of its function in gpu_check_bodies.py, budget in seconds."""

    number: int
    name: str
    budget_s: int
    asks: str
    variant: str = ""

    @property
    def key(self) -> str:
        """What its result is filed under."""
        return f"{self.number}-{self.name}{'-' * bool(self.variant)}{self.variant}"


CHECKS = (
    Check(0, "environment", 30, "is this device seen by NVML, and the own process in its list"),
    Check(2, "identity", 40, "used = outside + reserved over 50 states", "native"),
    Check(2, "identity", 40, "the same with expandable segments", "expandable"),
    Check(3, "forms", 90, "keys of statistics and snapshots, recorded as fixtures"),
    Check(4, "joined", 30, "owned + workspaces + unowned = allocated, for 5000 tensors"),
    Check(5, "forked", 60, "a forked child reads tensors while the parent goes on"),
    Check(7, "fragmented", 60, "out of memory although enough is free in pieces"),
    Check(8, "graphs", 60, "pools of 20 CUDA graphs, and of a capture that failed"),
    Check(12, "overhead", 60, "what statistics, block map and recording cost"),
    Check(14, "whole", 90, "leakscope run on a program that leaks on the device"),
    Check(1, "context", 20, "what a context costs, and that mem_get_info makes one"),
    Check(6, "workspaces", 30, "cuBLAS workspaces = threads x streams"),
    Check(11, "pending", 30, "frees that wait for a stream; pinned memory"),
    Check(10, "convolutions", 45, "where memory of 100 shapes of convolutions goes"),
    Check(9, "kernels", 90, "memory outside the allocator a Triton kernel, and whether it is given back"),
    Check(13, "lengths", 150, "FlashInfer over 100 lengths"),
)


@dataclass
class Result:
    """What came of a check. `passed`: None where it was not run, or has nothing to pass; `why`: then, or why it failed."""

    key: str
    asks: str
    passed: bool | None = None
    why: str = ""
    seconds: float = 0.0
    numbers: dict[str, Any] = field(default_factory=dict)

    @property
    def word(self) -> str:
        """For the table."""
        return {True: "pass", False: "FAIL", None: "number" if self.numbers and not self.why else "skipped"}[self.passed]


def why_no_gpu(python: str = sys.executable, timeout_s: float = PROBE_S) -> str | None:
    """Return in one sentence why nothing can be checked here; None where there is a GPU."""
    probe = ("import torch\nif not torch.backends.cuda.is_built(): raise SystemExit('torch is built without CUDA')\n"
             "if not torch.cuda.is_available(): raise SystemExit('torch sees no CUDA device')")
    try:
        done = subprocess.run([python, "-c", probe], capture_output=True, text=True, timeout=timeout_s)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"No GPU can be used here ({type(error).__name__} while torch was asked), so nothing was checked."
    if done.returncode == 0:
        return None
    last = (done.stderr.strip().splitlines() or ["torch cannot be imported"])[-1]
    reason = "torch is not installed" if "ModuleNotFoundError" in last and "torch" in last else last
    return f"No GPU can be used here ({reason}), so nothing was checked."


def command_of(check: Check, work: Path) -> list[str]:
    """The command that runs one check."""
    return [sys.executable, str(ROOT / "benchmarks" / "gpu_check_bodies.py"), check.name, str(work / f"{check.key}.json"),
            check.variant]


def environment_of(check: Check) -> dict[str, str]:
    """What a check's process gets: this checkout, and the allocator's settings of its variant alone."""
    clean = {name: value for name, value in os.environ.items()
             if name not in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "CUBLAS_WORKSPACE_CONFIG")}
    path = os.pathsep.join(filter(None, (str(ROOT), clean.get("PYTHONPATH"))))
    settings = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"} if check.variant == "expandable" else {}
    return {**clean, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", **settings}


def run(check: Check, command: Sequence[str], work: Path, timeout_s: float) -> tuple[Result, str]:
    """Run one check to its end or its timeout; return its result and the end of what it printed.

    What it told before it crashed or ran out of time is kept.
    """
    result, began_s = Result(check.key, check.asks), time.monotonic()
    file = work / f"{check.key}.json"
    with tempfile.TemporaryFile() as log:
        child = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=work,
                                 env=environment_of(check), start_new_session=True)
        try:
            code: int | None = child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(child)
        log.seek(max(0, log.seek(0, os.SEEK_END) - LOG_BYTES))
        printed = log.read().decode("utf-8", "replace")
    result.seconds = round(time.monotonic() - began_s, 1)
    told = _told(file)
    result.numbers = told.get("numbers") or {}
    if code is None:
        result.passed, result.why = False, f"it was stopped after {timeout_s:.0f} s"
    elif code < 0:
        result.passed, result.why = False, f"it died by {signal.Signals(-code).name}"
    elif code or not told.get("is_whole"):
        last = (printed.strip().splitlines() or [f"it ended with {code}"])[-1]
        result.passed, result.why = False, last[:300]
    else:
        result.passed, result.why = told.get("passed"), str(told.get("why") or "")
    return result, printed


def _end(child: subprocess.Popen[bytes]) -> None:
    """End a check's process and those that it started; it has a group of its own."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    child.wait()


def _told(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def chosen(numbers: Sequence[int] | None) -> list[Check]:
    """The checks of these numbers, in the order of priority; None: all."""
    return [check for check in CHECKS if numbers is None or check.number in numbers]


def time_for(check: Check, left_s: float) -> float | None:
    """How many seconds a check may take of those that are left; None: it is not begun."""
    room_s = left_s - RESERVE_S
    return min(OVER * check.budget_s, room_s) if room_s >= LEAST_S else None


def shown(numbers: dict[str, Any]) -> str:
    """Numbers for a cell of the table: the plain ones, in one line."""
    plain = [(name, value) for name, value in numbers.items() if isinstance(value, (int, float, str)) or value is None]
    text = ", ".join(f"{name} {value:,.1f}" if isinstance(value, float) else f"{name} {value}" for name, value in plain)
    return text.replace("|", "/").replace("\n", " ")[:400]


def as_table(results: Sequence[Result]) -> str:
    """The results in Markdown."""
    rows = [[each.key, each.word, f"{each.seconds:.0f}", each.why.replace("|", "/") or shown(each.numbers)] for each in results]
    return table(["check", "result", "s", "numbers, or why"], rows)


def write(out: Path, results: Sequence[Result], about: dict[str, Any]) -> None:
    """Write what there is so far; a reader never sees half of it."""
    for name, text in (("results.json", json.dumps({**about, "results": [asdict(each) for each in results]}, indent=1) + "\n"),
                       ("table.md", f"{about['machine']}\n\n{as_table(results)}\n")):
        draft = out / f".{name}"
        draft.write_text(text)
        draft.replace(out / name)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the checks; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for results, table, log and fixtures")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="the whole may take so long  [default: %(default)s]")
    parser.add_argument("--only", type=int, nargs="+", metavar="NUMBER", help="these checks alone")
    args = parser.parse_args(arguments)
    end_s = time.monotonic() + args.seconds
    reason = why_no_gpu(timeout_s=min(PROBE_S, args.seconds))
    if reason:
        print(reason, file=sys.stderr)
        return 2
    args.out.mkdir(parents=True, exist_ok=True)
    about, results = {"machine": description(), "seconds": args.seconds}, []
    with tempfile.TemporaryDirectory(prefix="gpu-checks-") as folder, (args.out / "log.txt").open("w") as log:
        work = Path(folder)
        for check in chosen(args.only):
            timeout_s = time_for(check, end_s - time.monotonic())
            if timeout_s is None:
                results.append(Result(check.key, check.asks, why="no time was left"))
                continue
            result, printed = run(check, command_of(check, work), work, timeout_s)
            results.append(result)
            print(f"{result.word:8} {result.key} ({result.seconds:.0f} s) {result.why or shown(result.numbers)}", flush=True)
            log.write(f"--- {check.key}\n{printed}\n")
            log.flush()
            write(args.out, results, about)
            fixtures = [*work.glob("*.pickle"), *work.glob("fixture-*.json")]
            about["left_out"] = bundled(fixtures, args.out / "fixtures.tar.gz") if fixtures else []
    write(args.out, results, about)
    print(as_table(results))
    return 1 if any(each.passed is False for each in results) else 0


if __name__ == "__main__":
    raise SystemExit(main())
