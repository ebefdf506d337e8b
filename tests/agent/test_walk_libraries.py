"""How objects of libraries hold others: where the collector sees nothing, the expanders do. With the real libraries."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from leakscope.agent import format as layout
from tests.agent.staged import VERSIONS, interpreter
from tests.agent.walking import Snapshot, needs, take


def memories(snapshot: Snapshot, *steps: str) -> list[tuple[str, int]]:
    """(kind, bytes) of the memory that an object of the module shows."""
    nodes = snapshot.follow(snapshot.module(), *steps, "storage")
    return [(layout.NODE_KINDS[snapshot.kind[node]], int(snapshot.shallow_bytes[node])) for node in nodes]


def test_numpy_arrays_show_their_elements_and_are_charged_once(tmp_path: Path) -> None:
    needs("numpy")
    snapshot = take(sys.executable, '''
import numpy
class First: pass
class Second: pass
class Array(numpy.ndarray):
    def __array_finalize__(self, other): called.append(1)
called = []
OBJECTS = numpy.array([[First(), None], [None, Second()]], dtype=object)
DERIVED = numpy.array([1, 2, 3]).view(Array)
BIG = numpy.zeros(1_000_000)
VIEW = BIG[10:]
called.clear()
snapshot()
assert called == []
''', tmp_path)
    held = snapshot.follow(snapshot.module(), "attribute OBJECTS")
    assert snapshot.follow(held, "index 0") == [snapshot.node("__main__.First")]
    assert snapshot.follow(held, "index 3") == [snapshot.node("__main__.Second")]
    (big,), (view,) = (snapshot.follow(snapshot.module(), f"attribute {name}") for name in ("BIG", "VIEW"))
    assert snapshot.shallow_bytes[big] >= 8_000_000 > 1000 > snapshot.shallow_bytes[view]
    assert snapshot.follow([view], "storage") == [big]


def test_a_mapping_is_memory_that_no_object_counts(tmp_path: Path) -> None:
    snapshot = take(sys.executable, '''
import mmap
OPEN, CLOSED = mmap.mmap(-1, 1 << 20), mmap.mmap(-1, 4096)
CLOSED.close()
snapshot()
OPEN.close()
''', tmp_path)
    assert memories(snapshot, "attribute OPEN") == [("mapping", 1 << 20)]
    assert memories(snapshot, "attribute CLOSED") == []
    (node,) = snapshot.follow(snapshot.module(), "attribute OPEN", "storage")
    assert (snapshot.address[node], snapshot.refcount[node]) == (0, layout.IMMORTAL)


def test_tensors_show_storage_gradient_graph_and_hooks(tmp_path: Path) -> None:
    needs("torch")
    snapshot = take(sys.executable, '''
import io, sys, torch
class Marker: pass
class Shown(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        called.append(function)
        return super().__torch_function__(function, types, args, kwargs)
called = []
MODEL = torch.nn.Linear(4, 4)
def watch(history):
    def hook(gradient):
        history.append(gradient)
    return hook
MODEL.weight.register_hook(watch([Marker()]))
BASE = torch.zeros(1000, 250)
VIEW = BASE[0]
OTHER = torch.zeros(10).as_subclass(Shown)
META = torch.zeros(10, device="meta")
LOSSES = [MODEL(torch.ones(1, 4)).sum()]
MODEL(torch.ones(1, 4)).sum().backward()
called.clear()
snapshot()
assert called == [], called
''', tmp_path)
    assert memories(snapshot, "attribute BASE") == [("storage", 1_000_000)]
    assert snapshot.follow(snapshot.module(), "attribute VIEW", "storage") == snapshot.follow(
        snapshot.module(), "attribute BASE", "storage")
    assert memories(snapshot, "attribute OTHER") == [("storage", 40)]
    assert memories(snapshot, "attribute META") == []
    weight = snapshot.follow(snapshot.module(), "attribute MODEL", "attribute _parameters", "key 'weight'")
    hook = snapshot.follow(weight, "internal _backward_hooks", "key int")
    closed = snapshot.follow(hook, "internal __closure__", "cell history", "contents", "index 0")
    assert closed == [snapshot.node("__main__.Marker")]
    assert snapshot.follow(weight, "attribute grad")
    nodes = snapshot.follow(snapshot.module(), "attribute LOSSES", "index 0", "internal grad_fn") or snapshot.follow(
        snapshot.module(), "attribute LOSSES", "index 0", "attribute grad_fn")
    reached = set(nodes)
    while nodes:
        nodes = [node for node in snapshot.follow(nodes, "internal next_functions") if node not in reached]
        reached.update(nodes)
    assert set(weight) <= set(snapshot.follow(reached, "attribute variable"))


def test_what_a_data_frame_holds_is_named(tmp_path: Path) -> None:
    needs("pandas")
    snapshot = take(sys.executable, '''
import pandas
class Marker: pass
TABLE = pandas.DataFrame({"lease": [Marker()], "load": [1.0]})
snapshot()
''', tmp_path)
    blocks = snapshot.follow(snapshot.module(), "attribute TABLE", "attribute _mgr", "attribute blocks", "index")
    assert snapshot.node("__main__.Marker") in snapshot.follow(blocks, "attribute values", "index 0")


@pytest.mark.parametrize("version", VERSIONS)
def test_what_stands_in_the_place_of_a_module_is_not_asked_and_costs_no_snapshot(version: str, tmp_path: Path) -> None:
    """None forbids an import; mocks and lazy modules run code when they are asked for an attribute or compared."""
    snapshot = take(interpreter(version), '''
import asyncio, sys, threading
class Loud(type(sys)):
    def __getattribute__(self, name):
        called.append(name)
        raise AttributeError(name)
class Name:
    def __eq__(self, other):
        called.append("==")
        return True
called = []
names = ("numpy", "torch", "torch._C", "mmap", "threading", "_asyncio", "asyncio.events", "_signal", "atexit", "_socket")
kept = {name: sys.modules.get(name) for name in names}
for place, name in enumerate(names):
    sys.modules[name] = None if place % 2 else Loud(name)
unnamed = type(sys)("unnamed")
unnamed.__name__ = Name()
class Held: pass
HELD = Held()
snapshot()
assert called == [], called
sys.modules.update(kept)
''', tmp_path)
    assert snapshot.follow(snapshot.module(), "attribute HELD") == [snapshot.node("__main__.Held")]
