"""The judge outside pytest: bodies that leak are found with their holder, healthy ones pass, and nothing is left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from leakscope.no_leak import BLOCKS, GARBAGE, MALLOC, ROUNDS, WARM_UP_WINDOWS, WINDOWS, CannotJudge, Rounds, Series, no_leak
from tests.shared import once

ROOT = Path(__file__).resolve().parents[1]
MOST_LINES = 25

BODIES = r'''
import ctypes, functools, gc, json, logging, re, sys
from leakscope import no_leak
from leakscope.no_leak import MemoryGrows

loaded = [name for name in ("numpy", "pytest", "leakscope.case") if name in sys.modules]
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p

class Order:
    def __init__(self):
        self.number, self.items = 1, None

class Shop:
    orders, texts = [], {}

KEPT, CALLBACKS, ERRORS, EVENTS = [], [], [], {}

def hundred_bytes():
    KEPT.append(bytes(100))

def an_object():
    Shop.orders.append(Order())

def long_text():
    Shop.texts[len(Shop.texts)] = "planted-secret" * 750

def closure():
    order = Order()
    CALLBACKS.append(lambda: order)

def exception():
    try:
        raise ValueError("planted-secret")
    except ValueError as error:
        ERRORS.append(error)

def nested():
    EVENTS.setdefault("created", []).append({"order": Order()})

@functools.lru_cache(maxsize=None)
def price(number):
    return bytes(200)

def unbounded_cache(numbers=iter(range(10**6))):
    price(next(numbers))

def native():
    libc.malloc(1000)

def cycle():
    order = Order()
    order.items = [order]

def temporary():
    return [Order() for _ in range(50)], "x" * 20_000

@functools.lru_cache(maxsize=16)
def discount(number):
    return bytes(200)

def bounded_cache(numbers=iter(range(10**6))):
    discount(next(numbers))

def logs():
    logging.getLogger("shop").info("an order %s", Order())

def patterns():
    re.compile("order-[0-9]+x{3}").match("order-7xxx")

def imports():
    import sqlite3, xml.dom.minidom

def replaces_global():
    global CURRENT
    CURRENT = [Order() for _ in range(100)]

def late_start(calls=iter(range(10**6))):
    if 25 <= next(calls) < 80:
        KEPT.append(bytes(100))

def judged(body):
    try:
        no_leak(body)
    except MemoryGrows as error:
        return str(error)

answers = {body.__name__: judged(body) for body in (
    temporary, bounded_cache, logs, patterns, imports, replaces_global, late_start, cycle,
    hundred_bytes, an_object, long_text, closure, exception, nested, unbounded_cache, native)}

gc.disable()
answers["cycle_without_collector"] = judged(cycle)
gc.enable()

def local():
    kept = []
    with no_leak(rounds=3) as rounds:
        for _ in rounds:
            kept.append(Order())
try:
    local()
except MemoryGrows as error:
    answers["local"] = str(error)

print(json.dumps({"answers": answers, "loaded": loaded, "callbacks": len(gc.callbacks), "threshold": gc.get_threshold(),
                  "frozen": gc.get_freeze_count() > 1000}))
'''


def run(program: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(program)], env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True,
                          capture_output=True, timeout=280)


@pytest.fixture(scope="module")
def judged():
    """What the program says of its bodies; it runs once for all workers."""
    def make(folder):
        (folder / "shop.py").write_text(BODIES)
        done = run(folder / "shop.py")
        assert done.returncode == 0, done.stderr
        (folder / "judged.json").write_text(done.stdout)

    return json.loads((once("no_leak", make) / "judged.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize(("body", "named"), [
    ("hundred_bytes", "held by __main__.KEPT: +1 bytes per call"),
    ("an_object", "held by __main__.Shop.orders: +1 __main__.Order per call"),
    ("long_text", "held by __main__.Shop.texts: +1 str per call"),
    ("closure", "held by __main__.CALLBACKS: +1 function per call"),
    ("exception", "held by __main__.ERRORS: +1 ValueError per call"),
    ("nested", "held by __main__.EVENTS"),
    ("unbounded_cache", "held by __main__.price"),
    ("local", "held by local.<locals>.kept: +1 __main__.Order per call"),
    ("native", "no owner found"),
    ("cycle_without_collector", "unreachable cycle"),
])  # fmt: skip
def test_a_body_that_leaks_is_found_and_its_holder_named(judged, body, named):
    text = judged["answers"][body]
    assert text is not None and named in text
    assert len(text.splitlines()) <= MOST_LINES
    assert "planted-secret" not in text


@pytest.mark.slow
@pytest.mark.parametrize("body", ["temporary", "bounded_cache", "logs", "patterns", "imports", "replaces_global", "late_start",
                                  "cycle"])  # fmt: skip
def test_a_healthy_body_passes(judged, body):
    assert judged["answers"][body] is None


@pytest.mark.slow
def test_the_judge_loads_little_before_it_is_needed_and_leaves_the_collector_as_it_was(judged):
    assert judged["loaded"] == []
    assert (judged["callbacks"], judged["frozen"]) == (0, False)
    assert judged["threshold"][0] > 0


# --- the rule ------------------------------------------------------------------------------------------------------------


def series(**measures: list[int]) -> Series:
    return Series({BLOCKS: [0] * 5, MALLOC: [0] * 5, GARBAGE: [0] * 5, **measures})


def test_growth_in_every_window_counts_even_if_one_is_short():
    assert series(blocks=[10, 9, 10, 10, 10]).growing(10) == {BLOCKS}


@pytest.mark.parametrize("steps", [[10, 10, 0, 10, 10], [10, 10, -3, 50, 10], [9, 9, 9, 9, 100], [0] * 5])
def test_a_window_without_growth_or_less_than_one_block_a_call_does_not_count(steps):
    assert series(blocks=steps).growing(10) == set()


def test_the_bytes_of_malloc_count_from_its_smallest_chunk():
    assert series(malloc=[320] * 5).growing(10) == {MALLOC}
    assert series(malloc=[319] * 5).growing(10) == set()


def test_a_type_counts_like_a_block():
    assert Series({BLOCKS: [0] * 5}, {"shop.Order": [3] * 5, "dict": [2] * 5}).growing(3) == {"type shop.Order"}


# --- how it is called ----------------------------------------------------------------------------------------------------


def test_the_function_is_called_with_its_arguments_in_equal_windows():
    seen = {}

    def body(*args, **kwargs):
        seen["calls"] = seen.get("calls", 0) + 1
        seen["last"] = (args, kwargs)

    no_leak(body, 1, 2, rounds=3, key="value")
    assert seen == {"calls": 3 * (WARM_UP_WINDOWS + WINDOWS), "last": ((1, 2), {"key": "value"})}


def test_the_module_itself_can_be_called():
    from leakscope import no_leak as from_the_package

    assert isinstance(from_the_package(rounds=2), Rounds)


def test_an_exception_of_the_body_comes_out_unchanged():
    error = KeyError("mine")

    def body():
        raise error

    with pytest.raises(KeyError) as caught:
        no_leak(body)
    assert caught.value is error
    with pytest.raises(KeyError) as caught, no_leak() as rounds:
        for _ in rounds:
            raise error
    assert caught.value is error


@pytest.mark.parametrize("rounds", [0, -1, 2.5, "10", True, None])
def test_a_number_of_rounds_that_is_none_is_refused(rounds):
    with pytest.raises(CannotJudge, match="rounds="):
        no_leak(int, rounds=rounds)


def test_a_block_that_ends_early_is_not_a_pass():
    with pytest.raises(CannotJudge, match="after 1 calls"), no_leak() as rounds:
        for _ in rounds:
            break
    with pytest.raises(CannotJudge, match="after 0 calls"), no_leak():
        pass


def test_rounds_are_for_one_loop():
    with no_leak(rounds=1) as rounds:
        assert len(list(rounds)) == WARM_UP_WINDOWS + WINDOWS
        with pytest.raises(CannotJudge, match="begun before"):
            list(rounds)


def test_a_coroutine_function_is_refused_as_calling_it_runs_nothing():
    async def body():
        raise AssertionError

    with pytest.raises(CannotJudge, match="coroutine"):
        no_leak(body, rounds=ROUNDS)
