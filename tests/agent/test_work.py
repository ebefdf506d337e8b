"""Counters of work: the program's own ticks, and those that frameworks keep; read, never called, never kept alive."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import weakref
from types import ModuleType
from typing import Any

import pytest

import leakscope
from leakscope.agent import work
from leakscope.agent.work import Ticks, Work

SECOND = 1_000_000_000


class State:
    def __init__(self, done: Any) -> None:
        self.total_requests = done
        self.tasks = {"one", "two"}


class Server:
    """As uvicorn's."""

    def __init__(self, done: Any) -> None:
        self.server_state = State(done)


class Optimizer:
    """As torch's."""

    def __init__(self, step: Any) -> None:
        self.state = {"a parameter": {"step": step}}


class Counting:
    """A Work of which each row and each change of the sources is seen."""

    def __init__(self) -> None:
        self.ticks = Ticks()
        self.changes: list[list[str]] = []
        self.work: Any = Work(self.ticks, lambda: self.changes.append(list(self.work.sources)))
        self.elapsed_ns = 0

    def search(self) -> None:
        self.elapsed_ns += 3600 * SECOND
        self.work.search(self.elapsed_ns)

    def row(self) -> dict[str, int]:
        row: dict[str, int] = {}
        self.work.read(row)
        return row


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Counting:
    """Counters of a process that has loaded stand-ins for uvicorn and torch, and nothing else that counts."""
    for source in work._SOURCES:
        monkeypatch.delitem(sys.modules, source.module, raising=False)
    for name, cls in (("uvicorn.server", Server), ("torch.optim.optimizer", Optimizer)):
        module = ModuleType(name)
        setattr(module, cls.__name__, cls)
        monkeypatch.setitem(sys.modules, name, module)
    return Counting()


def test_ticks_of_all_threads_are_added_up(counting: Counting) -> None:
    def tick() -> None:
        for _ in range(1000):
            counting.ticks.add(1)
        counting.ticks.add(500)

    threads = [threading.Thread(target=tick) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counting.row() == {"work_count": 6000} and counting.changes == [["leakscope.tick"]]


def test_a_count_that_is_none_counts_nothing(counting: Counting) -> None:
    for wrong in ("7", None, -3, 1.5, 0):
        counting.ticks.add(wrong)
    assert counting.row() == {}


def test_a_row_has_the_largest_load_since_the_row_before(counting: Counting) -> None:
    for batch, tokens in ((4, 512), (8, 2048), (64, 128), (1, 1)):
        counting.ticks.add(1, batch, tokens)
    assert counting.row() == {"work_count": 4, "load_batch": 8, "load_tokens": 2048}
    counting.ticks.add(1, batch=3)
    assert counting.row() == {"work_count": 5, "load_batch": 3}
    counting.ticks.add(1, tokens=700)
    assert counting.row() == {"work_count": 6, "load_tokens": 700}
    assert counting.row() == {"work_count": 6}


def test_the_largest_load_of_all_threads_is_taken(counting: Counting) -> None:
    threads = [threading.Thread(target=counting.ticks.add, args=(1, batch, 10)) for batch in (2, 9, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counting.row() == {"work_count": 3, "load_batch": 9, "load_tokens": 10}


def test_a_load_that_is_none_is_left_alone_and_the_unit_counts(counting: Counting) -> None:
    for wrong in ("7", -3, 1.5, 0, object()):
        counting.ticks.add(1, batch=wrong, tokens=wrong)
    assert counting.row() == {"work_count": 5}
    counting.ticks.add(1, batch=10**400)
    assert counting.row()["load_batch"] == 1 << 40


def test_tick_and_settle_do_nothing_where_nobody_observes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "_leakscope_agent", raising=False)
    leakscope.tick("no count")  # type: ignore[arg-type]
    leakscope.settle(1e9)  # and does not wait


def test_tick_reaches_the_agent(monkeypatch: pytest.MonkeyPatch, counting: Counting) -> None:
    agent = ModuleType("_leakscope_agent")
    agent.tick = counting.ticks.add  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "_leakscope_agent", agent)
    leakscope.tick()
    leakscope.tick(count=4)
    leakscope.tick(batch=2, tokens=30)
    assert counting.row() == {"work_count": 6, "load_batch": 2, "load_tokens": 30}


def test_the_server_of_a_running_function_is_found_and_read(counting: Counting) -> None:
    server = Server(41)
    counting.search()
    assert counting.row() == {"work_count": 41, "inflight_count": 2}
    server.server_state.total_requests += 1
    assert counting.row()["work_count"] == 42 and counting.changes == [["uvicorn requests"]]


def test_a_subclass_held_by_an_object_of_the_program_is_found(counting: Counting) -> None:
    class Application:
        def __init__(self) -> None:
            self.server = type("Mine", (Server,), {})(7)

    application = Application()
    counting.search()
    assert counting.row()["work_count"] == 7
    del application


def test_the_server_of_a_waiting_coroutine_is_found(counting: Counting) -> None:
    async def serve(started: asyncio.Event) -> None:
        server = Server(9)
        started.set()
        await asyncio.sleep(3600)
        del server

    async def outer(started: asyncio.Event) -> None:
        await serve(started)

    async def main() -> None:
        started = asyncio.Event()
        task = asyncio.create_task(outer(started))
        await started.wait()
        counting.search()
        task.cancel()

    asyncio.run(main())
    assert counting.row()["work_count"] == 9


def test_a_counter_is_not_kept_alive_and_what_it_counted_stays(counting: Counting) -> None:
    server = Server(12)
    gone = weakref.ref(server)
    counting.search()
    assert counting.row()["work_count"] == 12
    del server
    gc.collect()
    assert gone() is None
    assert counting.row() == {"work_count": 12}
    other = Server(5)
    counting.search()
    assert counting.row()["work_count"] == 17
    del other


def test_no_code_of_the_program_is_run_for_a_counter(counting: Counting) -> None:
    class Watched(Server):
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"asked for {name}")

        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(f"asked for {name}")

        @property
        def server_state(self) -> Any:  # type: ignore[override]
            raise AssertionError("asked for the state")

        def __init__(self) -> None:
            pass

    server = Watched()
    counting.search()
    assert counting.row() == {}
    del server


@pytest.mark.parametrize("done", [True, 3.0, "4", None, type("Count", (int,), {})(5)])
def test_a_counter_that_is_no_plain_number_is_not_counted(counting: Counting, done: object) -> None:
    server = Server(done)
    counting.search()
    assert "work_count" not in counting.row()
    del server


def test_the_steps_of_an_optimizer_give_way_to_what_the_program_says_and_the_count_goes_on(counting: Counting) -> None:
    optimizer = Optimizer(100)
    counting.search()
    assert counting.row() == {"work_count": 100}
    counting.ticks.add(1)
    assert counting.row() == {"work_count": 100}
    counting.ticks.add(6)
    assert counting.row() == {"work_count": 106}
    assert counting.changes == [["torch optimizer steps"], ["leakscope.tick"]]
    del optimizer


def test_another_source_counts_on_once_the_better_one_is_gone(counting: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    class LRScheduler:
        _step_count = 1

    module = ModuleType("torch.optim.lr_scheduler")
    module.LRScheduler = LRScheduler  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    optimizer, scheduler = Optimizer(100), LRScheduler()
    counting.search()
    assert counting.row()["work_count"] == 100
    del optimizer
    gc.collect()
    scheduler._step_count = 31
    assert counting.row()["work_count"] == 100
    scheduler._step_count = 41
    assert counting.row()["work_count"] == 110
    assert counting.changes == [["torch optimizer steps"], ["torch scheduler steps"]]


def test_nobody_searches_while_nothing_that_counts_is_loaded(counting: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("uvicorn.server", "torch.optim.optimizer"):
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(work, "_Search", None)  # a search would fail
    counting.search()


def test_searches_become_rarer(counting: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    at: list[int] = []

    def run(_search: object) -> list[Any]:
        at.append(now_ns)
        return []

    monkeypatch.setattr(work, "thread_time_ns", lambda: 0)
    monkeypatch.setattr(work._Search, "run", run)
    now_ns = 0
    while now_ns < 200 * SECOND:
        counting.work.search(now_ns)
        now_ns += SECOND // 10
    steps = [round((later - earlier) / SECOND) for earlier, later in zip(at, at[1:])]
    assert steps == [1, 2, 4, 8, 16, 32, 60, 60]


def test_a_celery_worker_counts_in_its_module(counting: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    state = ModuleType("celery.worker.state")
    state.all_total_count, state.active_requests = [33], weakref.WeakSet()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "celery.worker.state", state)
    assert counting.row() == {"work_count": 33, "inflight_count": 0} and counting.changes == [["celery tasks"]]
