"""Allocation sites: windows, frames, names of functions, growth by line."""

from __future__ import annotations

import os
import sys
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
            assert len(site["frames"]) == 1 or site["frames"][-1][2] == "<module>"
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
        self.frames, self.overhead = 0, 0

    def is_tracing(self) -> bool:
        return self.frames > 0

    def start(self, frames: int) -> None:
        self.frames = frames

    def stop(self) -> None:
        self.frames = 0

    def get_tracemalloc_memory(self) -> int:
        return self.overhead


def test_the_first_window_lasts_a_minute_and_later_ones_ten_seconds_before_a_snapshot() -> None:
    tracing, notes = Tracing(), list[str]()
    windows = sites.Windows(1, None, notes.append, tracing)
    windows.open(0)
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


def test_a_window_that_holds_too_much_is_closed_with_a_note() -> None:
    tracing, notes = Tracing(), list[str]()
    windows = sites.Windows(1, 400 << 20, notes.append, tracing)
    windows.open(0)
    tracing.overhead = 101 << 20
    windows.tick(3 * SECOND, 100 * SECOND)
    assert not windows.is_open
    assert notes == ["Allocation tracing was stopped 3 s after the start, because it held more than 100 MiB."]


def test_tracing_of_the_target_is_used_and_left_on() -> None:
    tracing = Tracing()
    tracing.start(5)
    windows = sites.Windows(1, None, lambda note: None, tracing)
    windows.open(0)
    windows.snapshot_taken(100 * SECOND)
    windows.close()
    assert tracing.frames == 5


@pytest.mark.parametrize("text, frames", [("off", 0), ("", 0), ("sampled", 0), ("tracemalloc", 1), ("tracemalloc:25", 25),
                                          ("tracemalloc:900", 64)])
def test_the_option_says_how_many_frames(text: str, frames: int) -> None:
    assert sites.parse_option(text) == frames


def test_paths_are_shown_without_whose_machine_it_is() -> None:
    assert sites.shown_path("/home/anna/venv/lib/python3.11/site-packages/aiohttp/web.py") == "aiohttp/web.py"
    assert sites.shown_path(os.path.join(os.getcwd(), "shop", "serve.py")) == os.path.join("shop", "serve.py")
    assert sites.shown_path(os.path.join(os.path.dirname(os.__file__), "json", "decoder.py")) == "json/decoder.py"
    assert sites.shown_path("<frozen importlib._bootstrap>") == "<frozen importlib._bootstrap>"
