"""The allocation sampler: what it estimates, and that it follows what lives."""

from __future__ import annotations

import pytest

from tests.agent.sampling import ONE, python, run  # noqa: F401

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


def test_known_allocations_are_estimated_and_only_what_lives_is_there(python: str) -> None:  # noqa: F811
    found, left, mode, after = run(python, KNOWN)
    check_known(found)
    assert (mode, after) == ("light", "off")
    assert "churn" not in found or found["churn"][1] < 5000
    assert {"small", "large", "huge", "grow", "text"}.isdisjoint(left)


@pytest.mark.parametrize("allocator", ("malloc", "debug", "malloc_debug"))
@pytest.mark.parametrize("python", ("3.10", "3.13"), indirect=True)
def test_other_allocators_of_the_interpreter_are_hooked_in_full(python: str, allocator: str) -> None:  # noqa: F811
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


def test_the_interpreter_counts_its_blocks_as_ever(python: str) -> None:  # noqa: F811
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


def test_every_block_is_known_by_its_address_and_size_where_every_byte_is_sampled(python: str) -> None:  # noqa: F811
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
def test_a_block_that_grows_keeps_its_site_and_its_weight_follows_its_size(python: str, allocator: str) -> None:  # noqa: F811
    said = run(python, REALLOC, PYTHONMALLOC=allocator)
    for domain in ("PyMem_Raw", "PyMem_"):
        (one,), (two,), (three,), gone = said[domain]
        assert [one[0], two[0], three[0]] == [1000, 500000, 2000]
        assert {one[2], two[2], three[2]} == {"first"}
        assert [one[1], two[1], three[1]] == pytest.approx([1000, 500000, 2000], rel=0.03)
        assert gone == []
    assert said["calloc"] == [[700, 700], True]
    assert said["small"][0] == pytest.approx([200, 200], rel=0.1) and said["small"][1]


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
def test_its_memory_has_a_bound_and_the_estimates_stay_right(python: str) -> None:  # noqa: F811
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
def test_the_mean_grows_with_the_rate_and_each_sample_keeps_its_own_weight(python: str) -> None:  # noqa: F811
    first, later, size = run(python, ADAPTIVE)
    assert first == 65536 and later == 524288
    assert size == pytest.approx(200 * 100033, rel=0.6)


SELDOM = '''
import threading, time
started, may_serve = threading.Event(), threading.Event()
kept = []
def serve(count):
    started.set()  # after its first allocations: the gap was drawn at the mean of the start
    may_serve.wait()
    kept.extend([bytes(60) for _ in range(count)])
def flood(count):
    kept.extend([bytes(1000) for _ in range(count)])

assert _probe.sample_start(seed=11) is None
thread = threading.Thread(target=serve, args=(2000,))
thread.start()
started.wait()
deadline = time.monotonic() + 60
while _probe.sample_state()["mean_bytes"] > 1024 and time.monotonic() < deadline:
    time.sleep(0.01)
    assert _probe.sample_tick()
may_serve.set()
thread.join()
lowest, served, count = _probe.sample_state()["mean_bytes"], estimates().get("serve", [0, 0])[0], len(made_by("serve"))
before = _probe.sample_state()["taken_count"]
flood(20000)
after = _probe.sample_state()
say([lowest, served, count, estimates()["flood"][0], after["mean_bytes"], after["taken_count"] - before])
'''


def test_the_mean_falls_where_little_is_allocated_and_every_thread_follows_it(python: str) -> None:  # noqa: F811
    lowest, served, count, flooded, after, taken = run(python, SELDOM)
    assert lowest == 1024
    served_bytes = 2000 * 93
    assert count > 80  # at the mean of the start there are three
    assert served == pytest.approx(served_bytes, abs=5 * (served_bytes * 1024) ** 0.5)
    # A burst of megabytes: 256 samples for each step up. The largest of the means has most of the deviation.
    assert 8 * 1024 <= after <= 128 * 1024 and taken < 9 * 256
    assert flooded == pytest.approx(20000 * 1033, abs=5 * (20000 * 1033 * after) ** 0.5)


ROOM = '''
import ctypes, tracemalloc
room = ctypes.CDLL(None).malloc_usable_size
room.argtypes = [ctypes.c_void_p]
assert _probe.sample_start(mean_bytes=1, seed=1) is None
def rooms():
    kept = [bytes(60 + number) for number in range(100)]
    sampled = {row[0] for row in _probe.sample_live()}
    return [room(id(thing)) - sys.getsizeof(thing) for thing in kept if id(thing) in sampled]
alone = rooms()
tracemalloc.start()
say([_probe.sample_state()["mode"], alone, rooms()])
'''


def test_a_sampled_small_block_takes_no_more_than_it_needs(python: str) -> None:  # noqa: F811
    mode, alone, below = run(python, ROOM)
    assert mode == "light" and len(alone) == len(below) == 100
    assert 0 <= min(alone) and max(alone) < 48
    assert min(below) > 300  # a tool that is above may write to all that it has asked for


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
def test_finalizers_allocate_and_starting_twice_goes_on(python: str) -> None:  # noqa: F811
    assert run(python, FOREIGN) == [[1267.0] * 10, 1000.0]


def test_it_is_gone_at_the_end_of_the_interpreter(python: str) -> None:  # noqa: F811
    assert run(python, "assert _probe.sample_start(mean_bytes=100) is None; kept = [bytes(100)] * 100; say(1)") == 1
