"""The allocation sampler: what it estimates, that it follows what lives, and that the program does not notice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.probes import ROOT, probe_for, stage_probe
from tests.agent.staged import Stage, interpreter
from tests.agent.twins import VERSIONS

# Every program has the probe, a table of the live samples by the function that made them, and says what it found as JSON.
PREAMBLE = '''
import json, sys
sys.path.insert(0, sys.argv[1])
import _probe

def function_of(frames):
    names = [name.rpartition(".")[2] for _file, _line, name in frames]
    return next(name for name in names if not name.endswith("comp>"))  # up to 3.11 each has a frame of its own

def estimates():
    found = {}  # {function: [bytes, blocks]} of what lives
    for _address, size, weight, _t_ns, frames in _probe.sample_live():
        entry = found.setdefault(function_of(frames), [0, 0])
        entry[0] += weight
        entry[1] += weight / size
    return found

def made_by(function):
    return [row for row in _probe.sample_live() if function_of(row[4]) == function]

def say(value):
    print(json.dumps(value))
'''


def run(python: str, program: str, *arguments: str, **variables: str) -> Any:
    """Run a program in an interpreter and return what it said."""
    folder = probe_for(python)
    ran = subprocess.run([python, "-c", PREAMBLE + program, str(folder), *arguments], capture_output=True, text=True,
                         timeout=120, env={**os.environ, "PYTHONPATH": str(ROOT), **variables})
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stderr[-3000:]
    return json.loads(ran.stdout)


@pytest.fixture(params=VERSIONS)
def python(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each interpreter that is installed and may have a probe."""
    yield interpreter(request.param)


# For what does not depend on the version.
ONE = pytest.mark.parametrize("python", ("3.11",), indirect=True)

KNOWN = '''
kept = []
def small(count):
    kept.extend([bytes(60 + number % 60) for number in range(count)])
def large(count):
    kept.extend([bytes(1000) for number in range(count)])
def huge(count):
    kept.extend([bytearray(1 << 19) for number in range(count)])
def grow(count):
    body = []
    kept.append(body)
    for number in range(count):
        body.append(None)
def text(count):
    kept.append("")
    for number in range(count):
        kept[-1] += "x" * 100
def zeros(count):
    kept.append({number: None for number in range(count)})
def churn(count):
    for number in range(count):
        bytes(200), [number, number], {"a": number}

assert _probe.sample_start(mean_bytes=4096, seed=20) is None
reserved = kept.extend([None] * 20000) or kept.clear()
churn(20000)
small(50000); large(5000); huge(8); grow(1000000); zeros(60000); churn(20000)
found = estimates()
mode = _probe.sample_state()["mode"]
kept.clear()
left = estimates()
_probe.sample_stop()
say([found, left, mode, _probe.sample_state()["mode"]])
'''


def check_known(found: dict[str, list[float]]) -> None:
    # Five standard deviations: of blocks much smaller than the mean, sqrt(bytes * mean).
    small_bytes = 50000 * (33 + 60 + 29.5) + 2 * 400_000
    assert found["small"][0] == pytest.approx(small_bytes, abs=5 * (small_bytes * 4096) ** 0.5)
    assert found["small"][1] == pytest.approx(50000, abs=3500)
    assert found["large"][0] == pytest.approx(5000 * 1033, abs=5 * (5000 * 1033 * 4096) ** 0.5)
    assert found["large"][1] == pytest.approx(5000, abs=700)
    assert found["huge"][0] == pytest.approx(8 << 19, rel=0.01)
    assert found["grow"][0] == pytest.approx(8_450_000, rel=0.08)
    assert found["grow"][1] == pytest.approx(1, abs=0.1)


def test_known_allocations_are_estimated_and_only_what_lives_is_there(python: str) -> None:
    found, left, mode, after = run(python, KNOWN)
    check_known(found)
    assert (mode, after) == ("light", "off")
    assert "churn" not in found or found["churn"][1] < 5000
    assert {"small", "large", "huge", "grow", "text"}.isdisjoint(left)


@pytest.mark.parametrize("allocator", ("malloc", "debug", "malloc_debug"))
@pytest.mark.parametrize("python", ("3.10", "3.13"), indirect=True)
def test_other_allocators_of_the_interpreter_are_hooked_in_full(python: str, allocator: str) -> None:
    found, left, mode, _ = run(python, KNOWN, PYTHONMALLOC=allocator)
    check_known(found)
    assert mode == "full"
    assert {"small", "large", "huge", "grow", "text"}.isdisjoint(left)


BLOCKS = '''
def work(count):
    kept = [bytes(number % 700) for number in range(count)]
    kept += [[number] * (number % 90) for number in range(count)]
    for body in kept[count:]:
        body += body
        body *= 2
        del body[3:]
    before = sys.getallocatedblocks()
    return before, kept

def grown():
    first = sys.getallocatedblocks()
    inside, kept = work(3000)
    del kept
    return inside - first, sys.getallocatedblocks() - first

for _ in range(3):
    grown()
without = grown()
assert _probe.sample_start(mean_bytes=300) is None
taken = [grown() for _ in range(3)]
count = _probe.sample_state()["taken_count"]
_probe.sample_stop()
say([without, taken, count, grown()])
'''


def test_the_interpreter_counts_its_blocks_as_ever(python: str) -> None:
    without, taken, count, after = run(python, BLOCKS)
    assert count > 3000
    for inside, left in [*taken, after]:
        assert abs(inside - without[0]) < 30 and abs(left - without[1]) < 30


SURVIVORS = '''
class Order:
    def __init__(self, number):
        self.number = number
class Slotted:
    __slots__ = ("number", "__weakref__")
def make(count):
    return [Order(number) for number in range(count)], [Slotted() for number in range(count)], \\
        [(number,) * 30 for number in range(count)], ["order %d" % number for number in range(count)]
assert _probe.sample_start(mean_bytes=1, seed=1) is None
kept = make(1000)
sizes = {address: size for address, size, *_ in _probe.sample_live()}
missing = [type(thing).__name__ for each in kept for thing in each
           if sizes.keys().isdisjoint((id(thing), id(thing) - 16, id(thing) - 32))]
inside = [sys.getsizeof(thing) for thing in kept[3]] == [sizes[id(thing)] for thing in kept[3]]
dying = {address for thing in kept[1] for address in (id(thing) - 16, id(thing) - 32) if address in sizes}
kept[1].clear()
gone = dying - {address for address, *_ in _probe.sample_live()}
say([missing, inside, len(dying), len(gone)])
'''


def test_every_block_is_known_by_its_address_and_size_where_every_byte_is_sampled(python: str) -> None:
    missing, inside, dying, gone = run(python, SURVIVORS)
    assert missing == [] and inside
    assert dying == 1000 and gone > 990  # what was made meanwhile may lie where one of them lay


REALLOC = '''
import ctypes
raw = ctypes.pythonapi
for name in ("PyMem_RawMalloc", "PyMem_RawCalloc", "PyMem_RawRealloc", "PyMem_Malloc", "PyMem_Realloc"):
    function = getattr(raw, name)
    function.restype = ctypes.c_void_p
    function.argtypes = [ctypes.c_size_t] * (1 if name.endswith("Malloc") else 2)
raw.PyMem_RawFree.argtypes = raw.PyMem_Free.argtypes = [ctypes.c_void_p]

def first(domain):
    return getattr(raw, domain + "Malloc")(1000)
def second(domain, block):
    return getattr(raw, domain + "Realloc")(block, 500000)
def third(domain, block):
    return getattr(raw, domain + "Realloc")(block, 2000)
def sample_at(block):
    return [[size, round(weight), frames[0][2]] for address, size, weight, _, frames in _probe.sample_live()
            if address == block]

assert _probe.sample_start(mean_bytes=1, seed=1) is None
said = {}
for domain in ("PyMem_Raw", "PyMem_"):
    block = first(domain)
    steps = [sample_at(block)]
    block = second(domain, block)
    steps.append(sample_at(block))
    block = third(domain, block)
    steps.append(sample_at(block))
    getattr(raw, domain + "Free")(block)
    steps.append(sample_at(block))
    said[domain] = steps
block = raw.PyMem_RawCalloc(100, 7)
said["calloc"] = [sample_at(block)[0][:2], ctypes.string_at(block, 700) == bytes(700)]
raw.PyMem_RawFree(block)
small = raw.PyMem_Malloc(100)
ctypes.memmove(small, b"y" * 100, 100)
moved = raw.PyMem_Realloc(small, 200)
said["small"] = [sample_at(moved)[0][:2], ctypes.string_at(moved, 100) == b"y" * 100]
raw.PyMem_Free(moved)
zeros = raw.PyMem_Malloc(0)
raw.PyMem_Free(raw.PyMem_Realloc(zeros, 0))
raw.PyMem_Free(None)
raw.PyMem_RawFree(None)
_probe.sample_stop()
say(said)
'''


@pytest.mark.parametrize("allocator", ("pymalloc", "malloc", "debug"))
@pytest.mark.parametrize("python", ("3.10", "3.12"), indirect=True)
def test_a_block_that_grows_keeps_its_site_and_its_weight_follows_its_size(python: str, allocator: str) -> None:
    said = run(python, REALLOC, PYTHONMALLOC=allocator)
    for domain in ("PyMem_Raw", "PyMem_"):
        (one,), (two,), (three,), gone = said[domain]
        assert [one[0], two[0], three[0]] == [1000, 500000, 2000]
        assert {one[2], two[2], three[2]} == {"first"}
        assert [one[1], two[1], three[1]] == pytest.approx([1000, 500000, 2000], rel=0.03)
        assert gone == []
    assert said["calloc"] == [[700, 700], True]
    assert said["small"][0] == pytest.approx([200, 200], rel=0.1) and said["small"][1]


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
def test_threads_with_and_without_the_gil_allocate_while_it_comes_and_goes(python: str, allocator: str) -> None:
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


def test_a_forked_child_goes_on_with_what_lived(python: str) -> None:
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


def test_tracemalloc_comes_and_goes_above_and_below(python: str) -> None:
    said = run(python, TRACED)
    assert said.pop("stopped") == [0, "off"]
    assert said.pop("traced") is True
    (below, mode), (mode_after, below_gone) = said.pop("below"), said.pop("below, gone")
    assert (mode, mode_after) == ("full", "light")
    again, mode_again = said.pop("again")
    assert mode_again == "light"
    for ratio, gone in [below, below_gone, again, *said.values()]:
        assert 0.7 < ratio < 1.3 and gone


CODE = '''
import gc, weakref
weak = []
def make(number):
    space = {}
    exec(compile("def order_%d():\\n\\n    return bytes(600)" % number, "shop_%d.py" % number, "exec"), space)
    weak.append(weakref.ref(space["order_%d" % number]))
    weak.append(weakref.ref(space["order_%d" % number].__code__))
    return space["order_%d" % number]()
def depth(count):
    return bytes(700) if count == 0 else depth(count - 1)
def counted(count):
    for number in range(count):
        yield bytes(800)
async def awaited():
    return [bytes(900) for _ in range(2)]
assert _probe.sample_start(mean_bytes=1, seed=5, here="/nowhere/") is None
kept = [make(number) for number in range(300)]
gc.collect()
names = sorted(row[4][0] for row in _probe.sample_live() if row[1] == 633)
wanted = sorted(["shop_%d.py" % number, 3, "order_%d" % number] for number in range(300))
deep = depth(200)
(deep_frames,) = [row[4] for row in _probe.sample_live() if row[1] == 733]
yielded = list(counted(2))
yielded_frames = [row[4] for row in _probe.sample_live() if row[1] == 833][0]
try:
    awaited().send(None)
except StopIteration as ended:
    made = ended.value
awaited_names = {frame[2].rpartition(".")[2] for row in _probe.sample_live() if row[1] == 933 for frame in row[4][:2]}
say([[list(name) for name in names] == wanted, sum(each() is not None for each in weak), len(deep_frames),
     {frame[2] for frame in deep_frames} == {"depth"}, [frame[2] for frame in yielded_frames], sorted(awaited_names)])
'''


def test_frames_are_told_apart_when_code_dies_and_nothing_of_it_is_kept(python: str) -> None:
    are_right, alive, depth, is_deep, yielded, awaited = run(python, CODE)
    assert are_right and alive == 0
    assert depth == 64 and is_deep
    assert yielded == ["counted", "<module>"]
    assert "awaited" in awaited


SHOWN = '''
import os, types
from leakscope.agent.names import Names
from leakscope.agent.sites import own_folder, shown_path
files = ["/home/anna/venv/lib/python3.11/site-packages/aiohttp/web.py", os.path.join(os.getcwd(), "shop", "serve.py"),
         os.path.join(os.path.dirname(os.__file__), "json", "decoder.py"), "<frozen importlib._bootstrap>", "x.py",
         "/home/anna/shop/serve.py", "/serve.py", "<template of anna>", "/srv/key=abc.py", "/srv/abc", os.getcwd() + "/abc.txt",
         "<string>", "<stdin>", "", "/opt/python3.8/lib/thing.py", "/opt/python3.x/lib/thing.py", "/a/123456/b.py",
         "/a/caf\\u00e9.py", "C:\\\\python3.9\\\\a.py", "site-packages/a/b.py", "/a/dist-packages/b.py",
         "/a/site-packages/dist-packages/b.py", "rel/a/b.py", "/a/b.py\\0c.py", "<x"]
functions = ["handler", "Shop.take.<locals>.<lambda>", "na me", "caf\\u00e9", "Shop.geheim-7", "a1234567", "", "a..b", "x" * 61,
             ".".join(["part"] * 60), "\\u0141\\u00f3d\\u017a.\\U00020000x", "tel 030", "?"]
def made(file, function, size):
    code = compile("def f(): return bytes(%d)" % size, "x", "exec").co_consts[0]
    words = {"co_filename": file, "co_name": function}
    if sys.version_info >= (3, 11):
        words["co_qualname"] = function
    return types.FunctionType(code.replace(**words), {"bytes": bytes})()
assert _probe.sample_start(mean_bytes=1, here=os.path.join(os.getcwd(), ""), own=own_folder(),
                           library=os.path.join(os.path.dirname(os.__file__), "")) is None
wanted, kept = {}, []
names = Names()
for number, (file, function) in enumerate([(file, "f") for file in files] + [("x.py", function) for function in functions]):
    kept.append(made(file, function, 5000 + number))
    wanted[kept[-1].__sizeof__()] = [shown_path(file), names.strings[names.dotted(function)]]
own = made(own_folder() + "walk.py", "take", 9000)
found = {row[1]: [row[4][0][0], row[4][0][2]] for row in _probe.sample_live()}
say([[wanted[size], found.get(size)] for size in wanted if found.get(size) != wanted[size]] + [9033 in found])
'''


def test_what_is_shown_of_code_is_what_the_agent_would_show_and_its_own_is_left_out(python: str) -> None:
    assert run(python, SHOWN) == [False]


BOUND = '''
kept = []
def small(count):
    kept.extend([bytes(60) for _ in range(count)])
assert _probe.sample_start(mean_bytes=100, cap_bytes=1 << 20, seed=6) is None
kept.extend([None] * 400000); kept.clear()
small(200000)
state, found = _probe.sample_state(), estimates()["small"]
for number in range(30000):
    exec(compile("kept.append(bytes(900))", "shop_%d.py" % number, "exec"))
    if number % 500 == 0:
        del kept[-400:]
later = _probe.sample_state()
kept.clear()
for number in range(30000, 42000):
    exec(compile("kept.append(bytes(900))", "shop_%d.py" % number, "exec"))
    if len(kept) > 10:
        kept.clear()
kept.append(eval(compile("bytes(901)", "last.py", "eval")))
last = [row[4][0][0] for row in _probe.sample_live() if row[1] == 934]
say([state, found, later, last])
'''


@ONE
def test_its_memory_has_a_bound_and_the_estimates_stay_right(python: str) -> None:
    state, found, later, last = run(python, BOUND)
    assert state["thinned_count"] > 5000 and state["mean_bytes"] > 100
    assert found[0] == pytest.approx(200000 * 93, rel=0.2)
    assert found[1] == pytest.approx(200000, rel=0.2)
    assert later["table_bytes"] < 2 << 20
    assert last in ([], ["last.py"])


ADAPTIVE = '''
import time
def churn(count):
    for number in range(count):
        bytes(100000)
assert _probe.sample_start() is None
first = _probe.sample_state()["mean_bytes"]
churn(40000)
kept = [bytes(100000) for _ in range(200)]
state = _probe.sample_state()
found = estimates()
say([first, state["mean_bytes"], sum(size for size, _ in found.values())])
'''


@ONE
def test_the_mean_grows_with_the_rate_and_each_sample_keeps_its_own_weight(python: str) -> None:
    first, later, size = run(python, ADAPTIVE)
    assert first == 65536 and later == 524288
    assert size == pytest.approx(200 * 100033, rel=0.6)


WALKED = '''
import os, struct
from collections import deque
class Order:
    def __init__(self, number):
        self.number, self.note = number, None
kept = {}
def orders(count): kept["orders"] = [Order(number + 1000) for number in range(count)]
def lists(count): kept["lists"] = [[number] * 80 for number in range(count)]
def one_list(count): kept["one"] = list(range(count))
def one_dict(count): kept["dict"] = dict.fromkeys(range(count))
def one_set(count): kept["set"] = set(range(count))
def queue(count): kept["queue"] = deque([None] * count)
def arrays(count): kept["arrays"] = [bytearray(5000) for number in range(count)]
assert _probe.sample_start(mean_bytes=2048, seed=7) is None
orders(3000); lists(500); one_list(100000); one_dict(20000); one_set(20000); queue(20000); arrays(50)
def column(name, letter):
    data = open(os.path.join(sys.argv[2], name + ".npy"), "rb").read()[128:]
    return struct.unpack("<%d%s" % (len(data) // struct.calcsize(letter), letter), data)
answer = _probe.walk(sys.argv[2], "{", "", "_leakscope_agent", None, None, (), 0, 0)
assert "error" not in answer, answer
names = json.load(open(os.path.join(sys.argv[2], "names.json")))
nodes, sites, sizes, weights, times = (column("sample_" + name, letter) for name, letter in
                                       (("node", "I"), ("site", "I"), ("bytes", "Q"), ("weight", "Q"), ("ns", "Q")))
types, found, without = column("type_id", "I"), {}, 0
for number, node in enumerate(nodes):
    functions = [frame[2].rpartition(".")[2] for frame in names["sites"][sites[number]]["frames"]]
    if node == 0xFFFFFFFF:
        without += 1
        continue
    for function in ("orders", "lists", "one_list", "one_dict", "one_set", "queue", "arrays"):
        if function in functions:
            entry = found.setdefault(function, {})
            name = names["types"][types[node]][1]
            entry[name] = entry.get(name, 0) + weights[number]
sums = [0] * len(names["sites"])
for number, site in enumerate(sites):
    sums[site] += weights[number]
fits = all(abs(site["bytes"] - total) <= 0.01 * total for site, total in zip(names["sites"][1:], sums[1:]))
say([found, without, len(nodes), fits, names["sites"][0], list(times) == [abs(time) for time in times]])
'''


def test_a_walk_finds_the_object_of_each_block_and_of_each_body(python: str, tmp_path: Path) -> None:
    found, without, count, fits, first, are_times = run(python, WALKED, str(tmp_path))
    assert count > 500 and without < 10
    assert found["orders"]["Order"] > 100_000 and set(found["orders"]) <= {"Order", "int", "list", "dict", "method"}
    for function, kind, size in (("lists", "list", 500 * 700), ("one_list", "list", 800_000), ("one_dict", "dict", 590_000),
                                 ("one_set", "set", 2_097_152), ("queue", "deque", 160_000), ("arrays", "bytearray", 250_000)):
        assert found[function][kind] == pytest.approx(size, rel=0.5), function
    assert fits and first is None and are_times


PROGRAM = """
import _leakscope_agent
kept = []
def remember(count):
    kept.append([bytes(700) for _ in range(count)])
for _ in range(30):
    remember(300)
assert _leakscope_agent.snapshot()
"""


def test_a_session_has_the_sites_of_what_lives_from_the_first_line_on(python: str, tmp_path: Path) -> None:
    stage = Stage(tmp_path, {"sites": "sampled"}, walk=True)
    stage_probe(python, stage.boot / "_leakscope_agent")
    ran = stage.run(python, str(stage.write("shop.py", PROGRAM)))
    assert (ran.stdout, ran.stderr, ran.returncode) == ("", "", 0)
    (process,) = stage.processes
    assert process.json("process.json")["sites"] == "sampled" and process.notes == []
    last = max(process.path.glob("snapshots/*"))
    assert (last / "sample_node.npy").exists()
    sites = json.loads((last / "names.json").read_text())["sites"][1:]
    size = sum(site["bytes"] for site in sites if ["shop.py", "remember"] in [[file, name] for file, _, name in site["frames"]])
    assert size == pytest.approx(9000 * 733, rel=0.5)
    assert not any("_leakscope_agent" in frame[0] for site in sites for frame in site["frames"])


FOREIGN = '''
import ctypes, threading
done = threading.Event()
assert _probe.sample_start(mean_bytes=1) is None
class Dying:
    def __del__(self):
        self.kept.append(bytes(1234))
    kept = []
def loop():
    thing = Dying()
    thing.own = thing
for _ in range(10):
    loop()
import gc
gc.collect()
weights = [row[2] for row in _probe.sample_live() if row[1] == 1267]
_probe.sample_stop()
_probe.sample_stop()
assert _probe.sample_start(mean_bytes=1000) is None and _probe.sample_start(mean_bytes=7) is None
say([weights, _probe.sample_state()["mean_bytes"]])
'''


@ONE
def test_finalizers_allocate_and_starting_twice_goes_on(python: str) -> None:
    assert run(python, FOREIGN) == [[1267.0] * 10, 1000.0]


@pytest.mark.skipif(sys.platform != "linux", reason="the probe is built on Linux only")
def test_it_is_gone_at_the_end_of_the_interpreter(python: str) -> None:
    assert run(python, "assert _probe.sample_start(mean_bytes=100) is None; kept = [bytes(100)] * 100; say(1)") == 1
