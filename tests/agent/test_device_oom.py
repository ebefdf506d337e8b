"""At the moment at which a device runs out of memory a snapshot is taken; the program sees its own error and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from leakscope.agent.device_oom import MOST, Observer
from leakscope.agent.devices import Devices
from tests.agent import fake_torch
from tests.agent.fake_torch import bring_up
from tests.agent.staged import Stage

OOM = (0, 1 << 30, 80 << 30, 5 << 20)


def observer(notes: list[str], taken: list[Any]) -> Observer:
    return Observer(taken.append, notes.append)


def test_it_is_attached_once_when_the_device_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = bring_up(monkeypatch)
    notes: list[str] = []
    watching = observer(notes, [])
    devices = Devices("auto", notes.append, watching.attach)
    for _ in range(3):
        devices.read({})
    assert fake.observers == [watching] and notes == []
    watching.attach(devices.provider())
    assert len(fake.observers) == 1


def test_another_allocator_does_not_tell_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = bring_up(monkeypatch, backend="cudaMallocAsync")
    notes: list[str] = []
    Devices("auto", notes.append, observer(notes, []).attach).read({})
    assert fake.observers == [] and len(notes) == 1


def test_what_was_asked_for_is_handed_on_for_the_first_few(monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    taken: list[Any] = []
    watching = observer(notes, taken)
    for _ in range(MOST + 2):
        watching(*OOM)
    assert taken == [{"device": "cuda:0", "requested_bytes": 1 << 30, "free_bytes": 5 << 20, "total_bytes": 80 << 30}] * MOST
    assert notes[0] == "Memory of cuda:0 ran out for 1024.0 MiB, with 5.0 MiB free on the device."


def test_it_never_raises_never_calls_itself_and_rests_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def fail(_oom: Any) -> None:
        calls.append(1)
        watching(*OOM)  # out of memory while the snapshot is taken
        raise RuntimeError

    watching = Observer(fail, lambda note: None)
    watching(*OOM)
    assert calls == [1]
    watching.close()
    watching(*OOM)
    assert calls == [1]
    with pytest.MonkeyPatch.context() as child:
        other = observer([], calls)
        child.setattr(os, "getpid", lambda: 1)  # of a child of the target
        other(*OOM)
    assert calls == [1]


PROGRAM = '''
import importlib.util, os, sys, time
from types import ModuleType
spec = importlib.util.spec_from_file_location("fake_torch", {fake!r})
fake_torch = importlib.util.module_from_spec(spec)
spec.loader.exec_module(fake_torch)
fake, parent = fake_torch.Fake("2.13"), os.getpid()
fake_torch.Fake.is_up = property(lambda self: os.getpid() == parent, lambda self, value: None)  # as torch after a fork
for name, content in fake.modules().items():
    sys.modules[name] = ModuleType(name)
    sys.modules[name].__dict__.update(content)
end = time.monotonic() + 60
while not fake.observers and time.monotonic() < end:
    time.sleep(0.01)
'''
OUT_OF_MEMORY = PROGRAM + '''
for observer in fake.observers:
    print(observer(0, 1 << 30, 80 << 30, 5 << 20))
raise MemoryError("CUDA out of memory")
'''
FORK = PROGRAM + '''
import _leakscope_agent
_leakscope_agent.snapshot()
if os.fork() == 0:
    fake.asked.clear()
    for observer in fake.observers:
        observer(0, 1 << 30, 80 << 30, 5 << 20)
    _leakscope_agent.snapshot()
    print(fake.asked, len(fake.observers), flush=True)
    os._exit(0)
os.wait()
'''


def staged(stage: Stage, program: str) -> subprocess.CompletedProcess[str]:
    return stage.run(sys.executable, str(stage.write("program.py", program.format(fake=fake_torch.__file__))))


def test_a_forked_child_asks_the_device_of_its_parent_for_nothing(tmp_path: Path) -> None:
    stage = Stage(tmp_path, {"gpu": "state"})
    ran = staged(stage, FORK)
    assert (ran.stdout, ran.stderr) == ("[] 1\n", "")
    parent, child = sorted(stage.processes, key=lambda process: process.role == "fork")
    assert list(parent.path.glob("snapshots/*/devices.json")) and not list(child.path.glob("snapshots/*/devices.json"))
    assert [each["kind"] for each in child.snapshots] == ["manual"]
    assert not any(name.startswith("cuda") for row in child.rows for name in row)


def test_a_program_that_runs_out_of_memory_leaves_a_snapshot_of_that_moment(tmp_path: Path) -> None:
    stage = Stage(tmp_path, {"gpu": "auto"})
    ran = staged(stage, OUT_OF_MEMORY)
    assert ran.stdout == "None\n" and ran.returncode == 1 and "MemoryError: CUDA out of memory" in ran.stderr
    (process,) = stage.processes
    (place,) = [number for number, snapshot in enumerate(process.snapshots) if snapshot["kind"] == "oom"]
    folder = sorted((process.path / "snapshots").iterdir())[place]
    said = json.loads((folder / "devices.json").read_text())
    assert said["oom"] == {"device": "cuda:0", "requested_bytes": 1 << 30, "free_bytes": 5 << 20, "total_bytes": 80 << 30}
    assert said["devices"][0]["name"] == "cuda:0" and len(said["segments"]) == 1
    assert "Memory of cuda:0 ran out for 1024.0 MiB, with 5.0 MiB free on the device." in process.notes
    assert any("cuda0_allocated_bytes" in row for row in process.rows)
