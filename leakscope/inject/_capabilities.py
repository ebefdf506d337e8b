"""What the agent can do in an interpreter, found out by doing it there, on a small heap whose contents are known.

A private copy of the agent is staged as `leakscope run` stages it, with a probe or without, and a program that holds a planted
object, a planted key and a planted local variable of another thread takes snapshots of itself.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from leakscope.inject import _probes

COLUMNS = ("walk", "frames", "names", "snapshot", "sampler", "native")
# What each column says where the compiled part works, and where its twin in Python does.
COMPILED = {"walk": "C", "frames": "C", "names": "C", "snapshot": "forked", "sampler": "yes", "native": "yes"}
FALLBACK = {"walk": "Python", "frames": "Python", "names": "Python", "snapshot": "in place", "sampler": "tracemalloc"}
_STAGED = "_leakscope_agent"
_PATIENCE_S = 60

# Runs in the interpreter, isolated: python -I check.py FOLDER. Prints {column: null where it works, else why not}.
_CHECK = '''
import json, os, sys, threading, time

folder = sys.argv[1]
sys.path.insert(0, folder)


class Planted:
    def __init__(self):
        self.planted_attribute = []


planted_registry = {"planted_key": Planted()}
is_ready, is_over = threading.Event(), threading.Event()


def stay():
    planted_local = Planted()
    is_ready.set()
    is_over.wait()
    return planted_local


threading.Thread(target=stay, daemon=True).start()
is_ready.wait()
found = {}
try:
    from _leakscope_agent import probe
    why_not = probe.why_not()
except ImportError as error:
    why_not = str(error)
if why_not:
    from _leakscope_agent import walk as taking
else:
    taking = probe


def check(*columns):
    def run(action):
        try:
            reasons = action()
        except BaseException as error:
            reasons = [type(error).__name__ + ": " + str(error)] * len(columns)
        found.update(zip(columns, reasons))
    return run


def read(name, number=1):
    with open(os.path.join(folder, str(number), name), "rb") as file:
        return file.read()


@check("walk", "frames", "names")
def walks():
    done = taking.take(os.path.join(folder, "1"), 1, "manual", 0)
    strings = json.loads(read("names.json"))["strings"]
    kinds = read("root_kind.npy")[128:]
    named = {"planted_registry", "planted_attribute"} <= set(strings) and any("planted_key" in text for text in strings)
    walked = done["walk"] == ("python" if why_not else "native") and done["node_count"] > 1000 < done["edge_count"]
    return (None if walked else "it found too little", None if 1 in kinds and "planted_local" in strings else
            "the local variable of another thread was not found", None if named else "planted names were not found")


@check("snapshot")
def forks():
    if why_not:
        return [why_not]
    probe.fork(os.path.join(folder, "2"), 2, "manual", 0, own=[], sample=None, max_bytes=0,
               deadline_ns=time.monotonic_ns() + 20 * 10**9)
    deadline, result = time.monotonic() + 25, None
    while result is None and time.monotonic() < deadline:
        time.sleep(0.002)
        result = probe.forked()
    if result is None or result.get("error"):
        return [(result or {}).get("reason") or "the child did not end"]
    return [None if json.loads(read("done.json", 2))["method"] == "fork" else "it was not taken by a child"]


def planted_allocation():
    return [str(number) * 20 for number in range(5000)]


@check("sampler")
def samples():
    if why_not:
        return [why_not]
    from _leakscope_agent import _probe
    reason = _probe.sample_start(mean_bytes=1024)
    if reason:
        return [reason]
    kept = planted_allocation()
    lived = [frames for *_rest, frames in _probe.sample_live() if any(name == "planted_allocation" for *_place, name in frames)]
    probe.take(os.path.join(folder, "3"), 3, "manual", 0)
    sites = [site["frames"] for site in json.loads(read("names.json", 3))["sites"][1:]]
    _probe.sample_stop()
    if len(lived) < len(kept) // 100:
        return ["too few allocations were sampled"]
    is_known = any(name == "planted_allocation" for frames in sites for *_place, name in frames)
    return [None if is_known and len(read("sample_node.npy", 3)) > 128 else "the snapshot lacks the sites"]


is_over.set()
print(json.dumps({"why_not": why_not, "found": found}))
sys.stdout.flush()
os._exit(0)
'''

_NATIVE_CHECK = '''
import json, os, sys
sys.path.insert(0, sys.argv[1])
from _leakscope_agent import native_sites
reason = native_sites.start()
if not reason:
    kept = bytearray(64 << 20)
    native_sites.write(sys.argv[1])
    with open(os.path.join(sys.argv[1], "native.json")) as file:
        known = sum(site["bytes"] for site in json.load(file)["sites"])
    reason = "" if known >= len(kept) // 2 else "a block of 64 MiB was not noticed"
print(reason)
os._exit(0 if sys.stdout.flush() is None else 1)
'''


@dataclass(frozen=True)
class Capabilities:
    """What works in one interpreter.

    `cells` says for each of COLUMNS how it is done there, or why not; `why_not` is a sentence that says why there is no probe,
    "" where there is one.
    """

    interpreter: _probes.Interpreter
    cells: dict[str, str]
    why_not: str = ""
    hint: str = ""

    def failures(self) -> list[str]:
        """Return what the probe of this interpreter does not do, as "column: reason"."""
        if self.why_not:
            return [self.why_not]
        return [f"{name}: {self.cells[name]}" for name in COLUMNS[:-1] if self.cells[name] != COMPILED[name]]


def of(interpreter: _probes.Interpreter, binary: Path | None = None) -> Capabilities:
    """Find out what works in an interpreter with the probe `binary`; None: with those that `leakscope run` would stage."""
    with tempfile.TemporaryDirectory(prefix="leakscope-check-") as name:
        folder = Path(name)
        staged = folder / _STAGED
        shutil.copytree(_probes.AGENT_FOLDER, staged, ignore=shutil.ignore_patterns(*_probes.LEFT_BEHIND))
        _probes.put(staged, {_probes.staged_at(interpreter.text, interpreter.soabi): binary} if binary else None)
        (folder / "check.py").write_text(_CHECK)
        (folder / "native.py").write_text(_NATIVE_CHECK)
        answer = _ask(interpreter, folder)
        native = _native(interpreter, folder)
    if isinstance(answer, str):
        return Capabilities(interpreter, {**dict.fromkeys(COLUMNS, answer), "native": native}, answer)
    names = FALLBACK if answer["why_not"] else COMPILED
    cells = {column: names[column] if reason is None or answer["why_not"] and column in ("snapshot", "sampler") else str(reason)
             for column, reason in answer["found"].items()}
    why_not, hint = "", ""
    if answer["why_not"]:
        why_not, hint = str(answer["why_not"]), f"leakscope doctor --build-probe {interpreter.python}"
        if binary is None:
            why_not, hint = interpreter.refusal() or (f"No probe is built for {interpreter.name}.", hint)
    return Capabilities(interpreter, {**cells, "native": native}, why_not, hint)


def _ask(interpreter: _probes.Interpreter, folder: Path) -> dict[str, dict[str, str | None]] | str:
    """Run the check; return its answer, or why there is none."""
    try:
        done = subprocess.run([interpreter.python, "-I", "-X", "faulthandler", str(folder / "check.py"), str(folder)],
                              capture_output=True, text=True, errors="replace", timeout=_PATIENCE_S, stdin=subprocess.DEVNULL)
        answer: dict[str, dict[str, str | None]] = json.loads(done.stdout)
        return answer
    except subprocess.TimeoutExpired:
        return f"it did not end within {_PATIENCE_S} s"
    except ValueError:
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return f"it ended the interpreter by signal {-done.returncode}" if done.returncode < 0 else said[-1]


def _native(interpreter: _probes.Interpreter, folder: Path) -> str:
    """Run something under the sampler of native memory; return how that went."""
    preloaded = _probes.preloaded()
    if preloaded is None:
        return "not built"
    environment = {**os.environ, "LD_PRELOAD": str(preloaded)}
    try:
        done = subprocess.run([interpreter.python, "-I", str(folder / "native.py"), str(folder)], capture_output=True,
                              text=True, errors="replace", timeout=_PATIENCE_S, stdin=subprocess.DEVNULL, env=environment)
    except subprocess.TimeoutExpired:
        return f"it did not end within {_PATIENCE_S} s"
    if done.returncode:
        return f"it ended the interpreter with {done.returncode}"
    return done.stdout.strip() or (done.stderr.strip().splitlines() or [COMPILED["native"]])[-1]
