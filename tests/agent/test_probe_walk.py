"""The native walk in place: what it leaves as it was, what it gives back, and how it gives up."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.agent.probes import SANITIZED, stage_probe
from tests.agent.staged import AGENT, interpreter
from tests.agent.twins import VERSIONS

PREAMBLE = """
import gc, os, resource, sys, time
_made = type(sys)("_leakscope_agent")
_made.__path__ = [sys.argv[1] + "/_leakscope_agent"]
sys.modules["_leakscope_agent"] = _made
from _leakscope_agent import probe, walk

OUT = sys.argv[1] + "/out"

def take(**more):
    return probe.take(OUT, 1, "manual", 5, **more)

def refusal(**more):
    try:
        take(**more)
    except (walk.GivenUp, OSError) as error:
        assert not os.path.exists(OUT), os.listdir(OUT)
        return error
    raise AssertionError("it did not fail")

def size(name="VmSize"):
    with open("/proc/self/status") as file:
        return int(file.read().partition(name + ":")[2].split()[0]) << 10
"""

# The sanitizers take memory of their own.
MEASURED = pytest.mark.skipif(bool(os.environ.get(SANITIZED)), reason="the memory of a sanitized process says nothing")


def run(python: str, program: str, folder: Path) -> Path:
    """Run `program` with take() at hand; fails if it fails. Returns the folder of its snapshot."""
    agent = folder / "_leakscope_agent"
    shutil.copytree(AGENT, agent, ignore=shutil.ignore_patterns("__pycache__", "boot", "_probe", "*.so"))
    stage_probe(python, agent)
    (folder / "program.py").write_text(PREAMBLE + program)
    command = [python, "-X", "faulthandler", str(folder / "program.py"), str(folder)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr[-3000:]
    return folder / "out"


@pytest.mark.parametrize("version", VERSIONS)
def test_nothing_of_the_target_is_changed(version: str, tmp_path: Path) -> None:
    run(interpreter(version), '''
class Plain:
    def __init__(self):
        self.first, self.second = [1], {"a": 2}
KEEP = [Plain() for _ in range(1000)]
take(); take()
gc.disable()
counts, sizes = [sys.getrefcount(one.first) for one in KEEP], [sys.getsizeof(one) for one in KEEP]
blocks, objects = sys.getallocatedblocks(), len(gc.get_objects())
take()
assert abs(sys.getallocatedblocks() - blocks) < 60, sys.getallocatedblocks() - blocks  # the dict that it answers with
assert len(gc.get_objects()) - objects < 20
assert counts == [sys.getrefcount(one.first) for one in KEEP] and sizes == [sys.getsizeof(one) for one in KEEP]
''', tmp_path)


@MEASURED
def test_all_memory_is_given_back(tmp_path: Path) -> None:
    run(interpreter("newest"), '''
KEEP = [[n] for n in range(200_000)]
take()
before = size()
for _ in range(5):
    take()
assert size() - before < 2 << 20, size() - before  # the interpreter may take an arena of 1 MiB meanwhile
''', tmp_path)


def test_walking_again_gives_the_same_graph(tmp_path: Path) -> None:
    out = run(interpreter("3.11"), '''
import shutil
KEEP = [{"a": [n]} for n in range(1000)]
one = take(); two = take()
assert 0 <= two["node_count"] - one["node_count"] < 100 and two["walk"] == "native" and two["method"] == "in-place"
''', tmp_path)
    done = json.loads((out / "done.json").read_text())
    assert done["pause_ns"] > 0 and done["walk_ns"] > 0 and done["node_count"] > 3000 and done["gc"]["enabled"] is True
    assert done["notes"] == [] and done["excluded_count"] > 50 and done["agent_bytes"] > 10_000


def test_frozen_objects_are_seen(tmp_path: Path) -> None:
    run(interpreter("3.12"), '''
class Cycle: pass
for _ in range(500):
    one = Cycle(); one.me = one
del one
gc.freeze()
before = take()["node_count"]
gc.unfreeze()
assert abs(take()["node_count"] - before) < 200
''', tmp_path)


@MEASURED
@pytest.mark.parametrize(("given", "words"), (
    ("deadline_ns=time.monotonic_ns() - 1", "it took too long."),
    ("max_bytes=1 << 20", "it would need more memory than it may take.")))
def test_a_walk_that_may_not_go_on_leaves_nothing_behind(tmp_path: Path, given: str, words: str) -> None:
    run(interpreter("newest"), f'''
KEEP = [[n] for n in range(300_000)]
refusal({given})
before = size()
for _ in range(4):
    error = refusal({given})
    assert type(error) is walk.GivenUp and str(error) == {words!r}, error
assert size() - before < 2 << 20, size() - before  # the interpreter may take an arena of 1 MiB meanwhile
take()
''', tmp_path)


def test_a_disk_that_is_full_leaves_nothing_behind(tmp_path: Path) -> None:
    run(interpreter("newest"), '''
import errno
KEEP = [[n] for n in range(100_000)]
before = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
error = refusal()
assert isinstance(error, OSError) and error.errno == errno.EFBIG, error
resource.setrlimit(resource.RLIMIT_FSIZE, before)
limit = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (10, limit[1]))
assert refusal().errno == errno.EMFILE
resource.setrlimit(resource.RLIMIT_NOFILE, limit)
opened = len(os.listdir("/proc/self/fd"))
take()
assert len(os.listdir("/proc/self/fd")) == opened
''', tmp_path)


@MEASURED
def test_a_limit_on_address_space_is_respected(tmp_path: Path) -> None:
    run(interpreter("newest"), '''
KEEP = [[n] for n in range(300_000)]
before = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (size() + (64 << 20), before[1]))
assert take()["node_count"] > 300_000
resource.setrlimit(resource.RLIMIT_AS, (size() + (1 << 20), before[1]))
os.rename(OUT, OUT + "1")
assert str(refusal()) == "it would need more memory than it may take."
''', tmp_path)


def test_without_a_probe_there_is_a_reason(tmp_path: Path) -> None:
    shutil.copytree(AGENT, tmp_path / "_leakscope_agent", ignore=shutil.ignore_patterns("__pycache__", "boot", "*.so"))
    for folder in ("with its sources", "without"):
        result = subprocess.run([interpreter("newest"), "-c", "from _leakscope_agent import probe; print(probe.why_not())"],
                                cwd=tmp_path, capture_output=True, text=True)
        assert result.stdout == "There is no probe for this interpreter.\n", (folder, result.stderr)
        shutil.rmtree(tmp_path / "_leakscope_agent" / "_probe", ignore_errors=True)
