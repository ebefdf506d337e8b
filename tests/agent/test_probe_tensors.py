"""Tensors that change while the native walk looks at them: bytes of a device, wild pointers, threads of C."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.agent.test_probe_libraries import memories, run
from tests.agent.walking import Snapshot, needs

# Learned late, poked at, beside threads of C++, and in a child.
CHANGING = '''
import ctypes, os, threading, torch
from _leakscope_agent import torch_layout
FAR, WILD, PLAIN = torch.zeros(1000), torch.ones(3), torch.zeros(50)
VIEW = PLAIN[1:]  # so that all is learned at once, and no tensor asked while it is poked at
MODEL = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(20)])
FIRST = MODEL[0]
learn, torch_layout.learn = torch_layout.learn, lambda probe: None
native("unlearned")
torch_layout.learn = learn
native("first")

def poked(address, value):
    kept = ctypes.string_at(address, len(value))
    ctypes.memmove(address, value, len(value))
    return address, kept
def words(address):
    return list((ctypes.c_uint64 * 8).from_address(address))
storage = torch._C._storage_id(FAR)
device = storage + (words(storage).index(FAR.data_ptr()) + 3) * 8
assert ctypes.string_at(device, 2) == bytes((0, 255))
pointer = WILD._cdata + words(WILD._cdata).index(torch._C._storage_id(WILD)) * 8
changed = [poked(device, bytes((1, 3))), poked(pointer, (1 << 40).to_bytes(8, "little"))]
native("poked")
for address, value in changed:
    ctypes.memmove(address, value, len(value))
for name, kind in (("xpu", 12), ("mps", 13)):
    address, value = poked(device, bytes((kind, 0)))
    native(name)
    ctypes.memmove(address, value, 2)

def train():
    while not stop.is_set():
        MODEL(torch.ones(4, 16)).sum().backward()  # in C++ without the GIL for the most part
        for parameter in MODEL.parameters():
            parameter.grad = None
stop = threading.Event()
threads = [threading.Thread(target=train) for _ in range(2)]
for thread in threads:
    thread.start()
for number in range(6):
    native("busy%d" % number)
stop.set()
for thread in threads:
    thread.join()

pid = os.fork()
if pid == 0:
    torch_layout.learn = lambda probe: None  # as for the child that takes a snapshot, in which no Python runs
    native("child")
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
'''


@pytest.fixture(scope="module")
def changing(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Snapshot]:
    needs("torch")
    return run(CHANGING, tmp_path_factory.mktemp("changing"))


def test_a_storage_says_on_which_device_it_is(changing: Callable[[str], Snapshot]) -> None:
    """There is no GPU here: the two bytes of the device were changed while the walk looked, and put back."""
    for name, size, device in (("FAR", 4000, {"poked": 4, "xpu": 128, "mps": 192}), ("PLAIN", 200, {})):
        for snapshot, expected in ((changing(each), device.get(each, 0)) for each in ("first", "poked", "xpu", "mps")):
            (memory,) = snapshot.follow(snapshot.module(), f"attribute {name}", "storage")
            assert (snapshot.device[memory], snapshot.shallow_bytes[memory]) == (expected, size)


def test_a_wild_pointer_costs_an_edge_and_no_more(changing: Callable[[str], Snapshot]) -> None:
    for name, count in (("first", 1), ("poked", 0)):
        snapshot = changing(name)
        assert snapshot.follow(snapshot.module(), "attribute WILD")
        assert len(snapshot.follow(snapshot.module(), "attribute WILD", "storage")) == count


def test_a_process_that_has_learned_nothing_says_so(changing: Callable[[str], Snapshot]) -> None:
    assert any("what tensors hold" in note for note in changing("unlearned").done["notes"])
    assert not memories(changing("unlearned"), "storage")


@pytest.mark.parametrize("name", ("busy5", "child"))
def test_storages_are_seen_beside_threads_of_c_and_in_a_child(name: str, changing: Callable[[str], Snapshot]) -> None:
    snapshot = changing(name)
    weights = snapshot.follow(snapshot.module(), "attribute FIRST", "attribute _parameters", "key")
    assert sorted(int(snapshot.shallow_bytes[node]) for node in snapshot.follow(weights, "storage")) == [64, 1024]
    assert snapshot.done["notes"] == []


def test_rows_of_one_table_tell_how_large_the_table_is(tmp_path: Path) -> None:
    """No tensor shows a whole storage: a cache that keeps rows of a table was taken for one that keeps unknown memory."""
    needs("torch")
    snapshot = run("import torch\nROWS = [row for row in torch.zeros(600, 256)[:300]]\nnative('rows')", tmp_path)("rows")
    assert snapshot.done["notes"] == []
    assert memories(snapshot, "storage") == {("storage", "memory", 600 * 256 * 4, 0): 1}
