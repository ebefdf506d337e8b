"""Allocation sites: windows, frames, names of functions, growth by line."""

from __future__ import annotations

import gc
import os
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from leakscope.agent import sites
from tests.agent.staged import Stage, python  # noqa: F401

SECOND = 1_000_000_000

PROGRAM = """
import time

class Order:
    def __init__(self, number):
        self.number = number

class Slotted:
    __slots__ = ("number",)

class Shop:
    orders = []

    def take(self):
        for number in range(500):
            self.orders.append(Order(number))
            self.orders.append(Slotted())

    def closure(self):
        def inner():
            return {"rows": list(range(1000))}
        return inner

shop = Shop()
shop.take()
kept = [shop.closure()() for _ in range(20)]
time.sleep(1.3)
"""


def counts(stage: Stage) -> dict[str, int]:
    """Return the objects of each function of the program."""
    (process,) = stage.processes
    found: dict[str, int] = {}
    for site in process.snapshots[-1]["sites"][1:]:
        file, _, function = site["frames"][0]
        if file == "shop.py":
            found[function] = found.get(function, 0) + site["count"]
            # a line of the module may be told by what begins on it: a class, a comprehension
            assert len(site["frames"]) == 1 or site["frames"][-1][2] in ("<module>", "<listcomp>", "Order", "Slotted", "Shop")
    return found


def test_instances_lists_and_dicts_have_the_function_that_made_them(python: str, tmp_path: Path) -> None:  # noqa: F811
    stage = Stage(tmp_path, {"sites": "tracemalloc:3"})
    ran = stage.run(python, str(stage.write("shop.py", PROGRAM)))
    assert (ran.stdout, ran.stderr, ran.returncode) == ("", "", 0)
    found = counts(stage)
    assert found["Shop.take"] >= 1000  # the instances: on 3.11 their blocks begin before the collector's header
    assert found["Shop.closure.<locals>.inner"] >= 20


def test_growth_by_line_is_written_from_ten_kilobytes_on(tmp_path: Path) -> None:
    stage = Stage(tmp_path, {"sites": "tracemalloc"})
    stage.run(sys.executable, str(stage.write("shop.py", PROGRAM)))
    grown = stage.processes[0].snapshots[0]["line_growth"]
    assert {row[2] for row in grown if row[0] == "shop.py"} >= {"Shop.take", "Shop.closure.<locals>.inner"}
    assert all(row[3] > 10 << 10 for row in grown)
    assert not any("_leakscope_agent" in row[0] for row in grown)
    assert [row[3] for row in grown] == sorted((row[3] for row in grown), reverse=True)


def test_a_target_that_traces_by_itself_is_never_stopped(tmp_path: Path) -> None:
    stage = Stage(tmp_path, {"sites": "tracemalloc"})
    code = ("import time, tracemalloc; tracemalloc.stop(); tracemalloc.start(7); time.sleep(1.3);"
            "print(tracemalloc.get_traceback_limit())")
    assert stage.run(sys.executable, "-c", code).stdout == "7\n"


def test_off_means_off(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    assert stage.run(sys.executable, "-c", "import tracemalloc; print(tracemalloc.is_tracing())").stdout == "False\n"


class Tracing:
    """A tracemalloc that only remembers what it was told."""

    def __init__(self) -> None:
        self.frames, self.overhead, self.starts = 0, 0, 0

    def is_tracing(self) -> bool:
        return self.frames > 0

    def start(self, frames: int) -> None:
        self.frames = frames
        self.starts += 1

    def stop(self) -> None:
        self.frames = 0

    def get_tracemalloc_memory(self) -> int:
        return self.overhead

    def _get_object_traceback(self, thing: object) -> object:
        return (("shop.py", 1),) if self.frames else None

    def _get_traces(self) -> list[object]:
        return []


@pytest.fixture
def unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process whose program has not loaded tracemalloc."""
    monkeypatch.delitem(sys.modules, "tracemalloc", raising=False)


HEAP: list[object] = []  # what there is, as far as the windows of `traced` know: to read all that pytest holds takes seconds


@pytest.fixture
def traced(unloaded: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[sites.Windows]:
    """Windows over the real tracemalloc and the objects of HEAP, the first one open."""
    monkeypatch.setattr(sites, "starts", lambda: [HEAP])
    monkeypatch.setattr(sys.modules[__name__], "HEAP", [])
    windows = sites.Windows(1, None, lambda note: None)
    windows.open()
    yield windows
    windows.close()


def begin(windows: sites.Windows) -> sites.Tracer:
    """Return the tracer of a walk that begins now."""
    tracer = windows.tracer()
    assert tracer is not None
    tracer.begin()
    return tracer


def functions_of(windows: sites.Windows, things: list[object], now_ns: int = SECOND) -> list[str | None]:
    """Take the sites of some objects as a snapshot would, and return the function of each."""
    HEAP[:] = things
    tracer = begin(windows)
    rows, table = tracer([*things, *(value for value in globals().values() if callable(value))])
    windows.snapshot_taken(now_ns)
    return [table[row]["frames"][0][2] if row else None for row in rows[:len(things)]]


def make_order() -> list[object]:
    return [object(), bytearray(700), "".join(["x"] * 900)]


def make_other() -> list[object]:
    return [bytes(701), "".join(["y"] * 901)]


def test_the_first_window_is_opened_again_for_a_minute_and_later_ones_ten_seconds_before_a_snapshot(unloaded: None) -> None:
    tracing, notes = Tracing(), list[str]()
    windows = sites.Windows(1, None, notes.append, tracing)
    windows.open()
    windows.snapshot_taken(5 * SECOND)
    assert windows.is_open
    windows.snapshot_taken(65 * SECOND)
    assert not windows.is_open and windows.tracer() is None
    windows.tick(80 * SECOND, next_snapshot_ns=100 * SECOND)
    assert not windows.is_open
    windows.tick(91 * SECOND, next_snapshot_ns=100 * SECOND)
    assert windows.is_open
    windows.snapshot_taken(100 * SECOND)
    assert not windows.is_open and notes == []


def test_nothing_is_traced_while_the_walk_runs(unloaded: None) -> None:
    tracing = Tracing()
    windows = sites.Windows(1, None, lambda note: None, tracing)
    windows.open()
    begin(windows)
    assert not windows.is_open
    windows.tick(2 * SECOND, next_snapshot_ns=3 * SECOND)
    assert not windows.is_open and tracing.starts == 1
    windows.snapshot_taken(3 * SECOND)
    assert windows.is_open and tracing.starts == 2


def test_sites_known_from_earlier_windows_are_carried_over(traced: sites.Windows) -> None:
    first = make_order()
    assert functions_of(traced, first) == ["make_order"] * 3
    second = make_other()
    assert functions_of(traced, first + second) == ["make_order"] * 3 + ["make_other"] * 2
    assert functions_of(traced, first + second, 70 * SECOND) == ["make_order"] * 3 + ["make_other"] * 2
    assert not traced.is_open
    assert functions_of(traced, first + second, 80 * SECOND) == ["make_order"] * 3 + ["make_other"] * 2


def test_what_is_born_while_nobody_traces_has_no_site(traced: sites.Windows) -> None:
    first = HEAP[:] = make_order()
    tracer = begin(traced)
    second = make_other()
    tracer(first)
    traced.snapshot_taken(SECOND)
    assert functions_of(traced, first + second) == ["make_order"] * 3 + [None] * 2


def test_another_object_at_a_known_address_is_told_by_its_type_or_its_size() -> None:
    known = sites.Known()
    known.add("a" * 10, 3)
    assert known.row("b" * 10, 0) == 3  # the same type and size at the same place: taken for the one that was there
    assert known.row("a" * 11, 0) == 0
    assert known.row(b"a" * 10, 0) == 0


def test_known_sites_hold_no_object_alive(traced: sites.Windows) -> None:
    class Order:
        pass

    order = Order()
    assert functions_of(traced, [order]) == ["test_known_sites_hold_no_object_alive"]
    gone = weakref.ref(order)
    HEAP.clear()
    del order
    assert gone() is None


def test_reading_begins_with_what_the_collector_lists_and_the_modules_that_are_frozen() -> None:
    fresh = [bytes(900)]
    gc.freeze()
    try:
        listed = sites.starts()
    finally:
        gc.unfreeze()
    assert any(thing is sys.modules[__name__] for thing in listed)
    assert any(thing is fresh for thing in sites.starts())


def test_objects_below_frozen_modules_are_read(traced: sites.Windows, monkeypatch: pytest.MonkeyPatch) -> None:
    made = type(sys)("shop")
    made.rows = {"tensor": bytes(900)}  # type: ignore[attr-defined]
    monkeypatch.setattr(sites, "starts", lambda: [made])
    assert functions_of(traced, [made.rows["tensor"]]) == ["test_objects_below_frozen_modules_are_read"]


def test_the_collector_has_its_thresholds_back_after_the_tracebacks_were_read(traced: sites.Windows) -> None:
    before = gc.get_threshold()
    seen: list[int] = []
    sites.read_objects(lambda thing: seen.append(gc.get_threshold()[0]))
    assert set(seen) == {0} and gc.get_threshold() == before


def test_a_target_that_has_loaded_tracemalloc_is_not_stopped_for_a_walk(traced: sites.Windows) -> None:
    import tracemalloc

    begin(traced)
    assert tracemalloc.is_tracing()
    traced.snapshot_taken(70 * SECOND)
    assert tracemalloc.is_tracing()


def test_a_window_that_holds_too_much_is_closed_with_a_note() -> None:
    tracing, notes = Tracing(), list[str]()
    windows = sites.Windows(1, 400 << 20, notes.append, tracing)
    windows.open()
    tracing.overhead = 101 << 20
    windows.tick(3 * SECOND, 100 * SECOND)
    assert not windows.is_open
    assert notes == ["Allocation tracing was stopped 3 s after the start, because it held more than 100 MiB."]


def test_tracing_of_the_target_is_used_and_left_on(unloaded: None) -> None:
    tracing = Tracing()
    tracing.start(5)
    windows = sites.Windows(1, None, lambda note: None, tracing)
    windows.open()
    begin(windows)
    windows.snapshot_taken(100 * SECOND)
    windows.close()
    assert tracing.frames == 5


def test_a_target_that_stops_our_tracing_and_starts_its_own_keeps_it(traced: sites.Windows) -> None:
    import _tracemalloc

    _tracemalloc.stop()
    _tracemalloc.start(1)
    assert not traced.is_ours
    traced.close()
    assert _tracemalloc.is_tracing()
    _tracemalloc.stop()


@pytest.mark.parametrize("text, kind, frames", [
    ("off", "off", 0), ("", "off", 0), ("sampled", "sampled", 0), ("tracemalloc", "tracemalloc", 1),
    ("tracemalloc:25", "tracemalloc", 25), ("tracemalloc:900", "tracemalloc", 64), ("profiled", "off", 0)])
def test_the_option_says_what_is_recorded_and_how_many_frames(text: str, kind: str, frames: int) -> None:
    assert sites.parse_option(text) == (kind, frames)


def test_without_a_probe_nothing_takes_the_place_of_the_sampler(tmp_path: Path) -> None:
    stage = Stage(tmp_path, {"sites": "sampled"}, walk=True)
    for binary in (stage.boot / "_leakscope_agent").glob("_probe.*.so"):
        binary.unlink()
    stage.run(sys.executable, str(stage.write("shop.py", "import tracemalloc, time\ntime.sleep(0.1)\n")))
    (process,) = stage.processes
    assert process.notes == ["There is no probe for this interpreter, so allocation sites are not recorded."]
    assert process.json("process.json")["sites"] == "off"


def test_a_sampler_that_another_tool_took_out_is_given_up_once() -> None:
    class Probe:
        def sample_tick(self) -> bool:
            return False

    said: list[str] = []
    sampler = sites.Sampler(True, 0, 0, said.append)
    sampler._probe = Probe()
    sampler.tick()
    sampler.tick()
    sampler.open()
    assert said == ["Another tool has taken the place of the allocation sampler, so allocation sites are not recorded."]
    assert not sampler.is_on


def test_paths_are_shown_without_whose_machine_it_is() -> None:
    assert sites.shown_path("/home/anna/venv/lib/python3.11/site-packages/aiohttp/web.py") == "aiohttp/web.py"
    assert sites.shown_path(os.path.join(os.getcwd(), "shop", "serve.py")) == os.path.join("shop", "serve.py")
    assert sites.shown_path(os.path.join(os.path.dirname(os.__file__), "json", "decoder.py")) == "json/decoder.py"
    assert sites.shown_path("<frozen importlib._bootstrap>") == "<frozen importlib._bootstrap>"
    assert sites.shown_path("/home/anna/shop/serve.py") == "shop/serve.py"


@pytest.mark.parametrize("file", ["<template of anna>", "/srv/key=abc.py", "/srv/abc", f"{os.getcwd()}/abc.txt"])
def test_a_file_name_that_the_program_made_up_is_not_shown(file):
    assert sites.shown_path(file) in ("?", "<generated>")
