"""The allocation sampler beside threads, forks and tracemalloc: the program does not notice."""

from __future__ import annotations

import pytest

from tests.agent.sampling import python, run  # noqa: F401
from tests.agent.staged import interpreter

THREADS = '''
import ctypes, threading, time
library = ctypes.CDLL(None) if hasattr(ctypes.CDLL(None), "PyMem_RawMalloc") else ctypes.CDLL(sys.argv[2])  # without the GIL
library.PyMem_RawMalloc.restype = library.PyMem_RawRealloc.restype = ctypes.c_void_p
library.PyMem_RawMalloc.argtypes = [ctypes.c_size_t]
library.PyMem_RawRealloc.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
library.PyMem_RawFree.argtypes = [ctypes.c_void_p]
ending = threading.Event()

def native():
    while not ending.is_set():
        blocks = [library.PyMem_RawMalloc(200 + 37 * number) for number in range(40)]
        blocks = [library.PyMem_RawRealloc(block, 3000) for block in blocks]
        for block in blocks:
            library.PyMem_RawFree(block)

def ordinary():
    kept = []
    while not ending.is_set():
        kept.append([{"a": number, "b": bytes(number * 20)} for number in range(50)])
        if len(kept) > 20:
            kept.clear()

threads = [threading.Thread(target=target) for target in (native, ordinary) * 4]
for thread in threads:
    thread.start()
taken = native_count = 0
for round_number in range(12):
    assert _probe.sample_start(mean_bytes=500 << round_number % 6) is None
    time.sleep(0.005)
    taken += _probe.sample_state()["taken_count"]
    native_count += len(made_by("native thread"))
    _probe.sample_stop()
ending.set()
for thread in threads:
    thread.join()
assert _probe.sample_start(mean_bytes=1000) is None
kept = [library.PyMem_RawMalloc(5000) for _ in range(20)]
native_count += len(made_by("native thread"))
for block in kept:
    library.PyMem_RawFree(block)
left = len(made_by("native thread"))
_probe.sample_stop()
say([taken, native_count, left])
'''


@pytest.mark.parametrize("allocator", ("pymalloc", "debug"))
def test_threads_with_and_without_the_gil_allocate_while_it_comes_and_goes(python: str, allocator: str) -> None:  # noqa: F811
    if allocator == "debug" and python != interpreter("3.11"):
        pytest.skip("one version is enough")
    taken, native_count, left = run(python, THREADS, PYTHONMALLOC=allocator)
    assert taken > 500 and native_count > 5
    assert left == 0


FORK = '''
import os, threading, ctypes
library = ctypes.CDLL(None)
library.PyMem_RawMalloc.restype = ctypes.c_void_p
library.PyMem_RawMalloc.argtypes = [ctypes.c_size_t]
library.PyMem_RawFree.argtypes = [ctypes.c_void_p]
ending = threading.Event()
def native():
    while not ending.is_set():
        for block in [library.PyMem_RawMalloc(1000) for number in range(100)]:
            library.PyMem_RawFree(block)
def before(count):
    return [bytes(500) for _ in range(count)]
def after(count):
    return [bytes(500) for _ in range(count)]
assert _probe.sample_start(mean_bytes=500, seed=3) is None
kept = before(400)
threads = [threading.Thread(target=native) for _ in range(3)]
for thread in threads:
    thread.start()
codes = []
for _ in range(30):
    child = os.fork()
    if child == 0:
        is_inherited = estimates()["before"][1] > 200
        new = after(400)
        is_going_on = estimates()["after"][1] > 200
        del kept
        is_freed = "before" not in estimates()
        os._exit(is_inherited + 2 * is_going_on + 4 * is_freed)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
ending.set()
for thread in threads:
    thread.join()
_probe.sample_stop()
say(codes)
'''


def test_a_forked_child_goes_on_with_what_lived(python: str) -> None:  # noqa: F811
    # From 3.12 on a fork with threads warns on stderr.
    assert run(python, "import warnings; warnings.simplefilter('ignore')\n" + FORK) == [7] * 30


TRACED = '''
import tracemalloc
kept = []
def make(count):
    kept.extend([bytes(150) for _ in range(count)] + [bytes(1500) for _ in range(count)])
def made():
    # tracemalloc has memory of its own for each block, and that is the program's, too.
    return [row for row in made_by("make") if row[1] in (183, 1533)]
def check(count):
    kept.clear()
    kept.extend([None] * 3 * count)
    kept.clear()
    make(count)
    there = sum(row[2] / row[1] for row in made())
    kept.clear()
    return there / count / 2, not made()
said = {}
def start():
    assert _probe.sample_start(mean_bytes=500, seed=4) is None

start(); tracemalloc.start()
said["above"] = check(2000)
traced = tracemalloc.get_traced_memory()[0]
tracemalloc.stop()
said["above, gone"] = check(2000)
_probe.sample_stop()

tracemalloc.start(); start()
said["below"] = check(2000), _probe.sample_state()["mode"]
tracemalloc.stop()  # puts back what it found, so the sampler is out
make(100)
said["below, gone"] = _probe.sample_state()["mode"], check(2000)
_probe.sample_stop()

start(); tracemalloc.start()
_probe.sample_stop()  # its hooks stay, below
said["stopped"] = len(_probe.sample_live()), _probe.sample_state()["mode"]
start()
said["again, below"] = check(2000)
_probe.sample_stop()
tracemalloc.stop()  # puts the hooks back
before = sys.getallocatedblocks()
make(100)
kept.clear()
start()
said["again"] = check(2000), _probe.sample_state()["mode"]
_probe.sample_stop()
tracemalloc.start()
make(10)
said["traced"] = tracemalloc.get_traced_memory()[0] > 10 * 1650
say(said)
'''


def test_tracemalloc_comes_and_goes_above_and_below(python: str) -> None:  # noqa: F811
    said = run(python, TRACED)
    assert said.pop("stopped") == [0, "off"]
    assert said.pop("traced") is True
    (below, mode), (mode_after, below_gone) = said.pop("below"), said.pop("below, gone")
    assert (mode, mode_after) == ("full", "light")
    again, mode_again = said.pop("again")
    assert mode_again == "light"
    for ratio, gone in [below, below_gone, again, *said.values()]:
        assert 0.7 < ratio < 1.3 and gone
