"""What the allocators of devices say comes from what the target has brought up, and from nothing else. No GPU here."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from leakscope.agent import device_map, device_torch, devices
from tests.agent import fake_torch
from tests.agent.fake_torch import VERSIONS, bring_up, load


class Watched:
    """The devices of this process, and what they noted."""

    def __init__(self, mode: str | None = "auto", at_start: Any = None) -> None:
        self.notes: list[str] = []
        self.devices = devices.Devices(mode, self.notes.append, at_start)

    def row(self) -> dict[str, int]:
        row: dict[str, int] = {}
        self.devices.read(row)
        return row

    def snapshot(self, folder: Path, oom: dict[str, Any] | None = None) -> dict[str, Any]:
        self.devices.write(os.fspath(folder), self.devices.take(oom))
        return dict(json.loads((folder / "devices.json").read_text()))


def number(version: str) -> tuple[int, int]:
    major, minor = version.split(".")
    return int(major), int(minor)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_of_torch_gives_the_columns_that_it_can(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = bring_up(monkeypatch, version)
    assert Watched().row() == fake_torch.expected_row(fake.version)
    fake.statistics = device_map.flat(fake.statistics)
    assert Watched().row() == fake_torch.expected_row(fake.version)
    fake.statistics = fake_torch.statistics(fake.version, count_key="allocated")  # as the manual calls it
    assert Watched().row() == fake_torch.expected_row(fake.version)


def test_a_statistic_that_this_torch_lacks_is_absent_and_not_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    bring_up(monkeypatch, "2.1").statistics = {"allocated_bytes.all.current": 5}
    assert Watched().row() == {"cuda0_allocated_bytes": 5}


def test_no_private_pool_is_a_measured_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    bring_up(monkeypatch).statistics = {"reserved_bytes_by_private_pools": {}}
    assert Watched().row()["cuda0_private_pool_bytes"] == 0


def test_nothing_is_asked_before_the_target_has_initialised_cuda(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = bring_up(monkeypatch)
    fake.is_up = False  # as in a child that was forked after that, too: _initialized stays True there
    watched = Watched("state")
    assert watched.row() == {} and watched.devices.take() is None and fake.asked == [] and fake.observers == []
    load(monkeypatch, "torch.cuda", **{**fake.modules()["torch.cuda"], "_initialized": False, "is_initialized": None})
    assert Watched().row() == {} and fake.asked == []


def test_a_child_of_a_fork_asks_nothing_although_its_parent_did(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = bring_up(monkeypatch)
    watched = Watched()
    assert watched.row()
    fake.is_up, fake.asked = False, []
    assert watched.row() == {} and watched.devices.take() is None and fake.asked == []


def test_off_asks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = bring_up(monkeypatch)
    watched = Watched("off")
    assert not watched.devices.is_on and watched.row() == {} and watched.devices.take() is None and fake.asked == []


def test_a_mock_in_the_place_of_torch_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    mock = MagicMock()
    for name in ("torch", "torch.cuda", "torch.xpu", "torch._C", "torch.version", "torch.accelerator"):
        monkeypatch.setitem(sys.modules, name, mock)
    assert Watched().row() == {}
    assert mock.mock_calls == []


def test_devices_without_a_context_of_this_process_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = bring_up(monkeypatch, backend="cudaMallocAsync")
    fake.devices = 8
    assert {name.split("_")[0] for name in Watched().row() if name.startswith("cuda")} == {"cuda0"}
    assert fake.asked == ["memory_stats"]
    del sys.modules["torch._C"].__dict__["_cuda_hasPrimaryContext"]  # then asking another allocator might make one
    assert not any(name.startswith("cuda") for name in Watched().row())


def test_devices_are_counted_by_the_runtime_and_not_by_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = bring_up(monkeypatch)
    modules = fake.modules()

    def with_a_warning() -> int:
        raise UserWarning("Can't initialize NVML")

    load(monkeypatch, "torch.cuda", **{**modules["torch.cuda"], "device_count": with_a_warning})
    load(monkeypatch, "torch._C", **modules["torch._C"], _cuda_getDeviceCount=lambda: 2)
    assert Watched().row()["cuda0_allocated_bytes"] == 1000


def test_a_module_that_only_looks_like_torchs_is_not_up(monkeypatch: pytest.MonkeyPatch) -> None:
    load(monkeypatch, "torch.cuda", _initialized=True)
    assert device_torch.Cuda().is_up() is False


def test_reading_devices_imports_nothing() -> None:
    code = ("import sys; from leakscope.agent import devices; devices.Devices('state', print).read({});"
            "print('torch' in sys.modules, 'pynvml' in sys.modules)")
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                         env={**os.environ, "PYTHONPATH": os.getcwd()})
    assert ran.stdout == "False False\n", ran.stderr


# --- devices.json ---

@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_of_torch_gives_a_block_map(version: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = bring_up(monkeypatch, version)
    said = Watched().snapshot(tmp_path)
    assert (said["format"], said["provider"], said["torch"], said["backend"]) == (1, "cuda", f"{version}.0", "native")
    (device,), (segment,) = said["devices"], said["segments"]
    assert device["stats"]["allocated_bytes.all.current"] == 1000 and device["capability"] == [9, 0]
    assert (device["uuid"], device["bus_id"], device["cublas_workspace_bytes"]) == ("ab-12", "00000000:18:00.0", 33_554_432)
    assert segment["segment_pool_id"] == [0, 0] and "registration_counter" not in segment
    assert [block["state"] for block in segment["blocks"]] == ["active_allocated", "active_pending_free", "inactive"]
    assert [block["frames"] for block in segment["blocks"]] == [-1, -1, -1] and said["frames"] == []
    assert said["settings"].get("expandable_segments") == (True if fake.version >= (2, 3) else None)
    assert said["recording"] == "off" and said["notes"] == [] and said["simulated"] is False
    assert ("include_traces=False" in fake.asked) == (fake.version >= (2, 11))
    assert ("host_stats" in said and bool(said["host_stats"])) == (fake.version >= (2, 7))
    assert "hunter2" not in (tmp_path / "devices.json").read_text()
    assert not list(tmp_path.glob("*.new"))


def test_private_pools_have_their_names_flat_as_torch_writes_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bring_up(monkeypatch, "2.13")
    stats = Watched().snapshot(tmp_path)["devices"][0]["stats"]
    assert stats["reserved_bytes_by_private_pools.0_1.all.current"] == 2000


@pytest.mark.parametrize("backend", ["cudaMallocAsync", "pluggable"])
def test_another_allocator_has_counters_and_says_why_there_is_no_map(
        backend: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bring_up(monkeypatch, backend=backend)
    said = Watched().snapshot(tmp_path)
    assert said["devices"][0]["stats"] and said["segments"] == [] and said["backend"] == backend
    assert said["notes"] == [f"The allocator behind torch is {backend}, which has no map of its blocks: only its counters are "
                             "recorded."]


def test_an_allocator_that_tells_nothing_leaves_its_devices_and_the_reasons(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = bring_up(monkeypatch, backend="pluggable")

    def refuse(*_ordinal: int) -> None:
        raise RuntimeError("CUDAPluggableAllocator does not yet support this")

    load(monkeypatch, "torch.cuda", **{**fake.modules()["torch.cuda"], "memory_stats_as_nested_dict": refuse,
                                       "host_memory_stats_as_nested_dict": refuse})
    watched = Watched("state")
    assert watched.row() == {}
    said = watched.snapshot(tmp_path)
    assert said["devices"][0]["name"] == "cuda:0" and said["devices"][0]["stats"] == {} and said["host_stats"] == {}
    assert "The allocator behind torch does not tell its counters (RuntimeError)." in watched.notes and len(said["notes"]) == 1


def test_a_refusal_of_torch_is_a_note_and_no_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = bring_up(monkeypatch)

    def refuse(include_traces: bool = True) -> None:
        raise RuntimeError("secret")

    load(monkeypatch, "torch.cuda", **{**fake.modules()["torch.cuda"], "memory_snapshot": refuse})
    assert Watched().snapshot(tmp_path)["notes"] == ["torch gave no map of the blocks of its allocator (RuntimeError)."]


def test_a_long_history_of_the_program_is_copied_once_where_it_cannot_be_left_out(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = bring_up(monkeypatch, "2.7")
    fake.traces = 20_000
    watched = Watched()
    assert watched.snapshot(tmp_path)["recording"] == "program"
    fake.asked = []
    said = watched.snapshot(tmp_path)
    assert said["segments"] == [] and "a history of 20000 entries" in said["notes"][0] and "_snapshot" not in fake.asked


def test_a_disk_that_is_full_is_a_note(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bring_up(monkeypatch)
    watched = Watched()
    watched.devices.write(os.fspath(tmp_path / "gone"), watched.devices.take())
    assert watched.notes == ["What the allocators of the devices say could not be written (FileNotFoundError)."]


def test_the_collector_does_not_start_while_torch_makes_its_map(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = bring_up(monkeypatch)
    seen: list[int] = []

    def plain(include_traces: bool = True) -> Any:
        seen.append(gc.get_threshold()[0])
        return fake.segments()

    load(monkeypatch, "torch.cuda", **{**fake.modules()["torch.cuda"], "memory_snapshot": plain})
    before = gc.get_threshold()
    Watched().snapshot(tmp_path)
    assert seen == [0] and gc.get_threshold() == before


# --- recording ---

def test_state_has_the_allocator_keep_where_live_blocks_come_from(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = bring_up(monkeypatch)
    watched = Watched("state")
    watched.row()
    watched.row()
    assert fake.recorded == [{"enabled": "state", "context": "state", "stacks": "python", "max_entries": 1 << 60}]
    fake.frames = fake_torch.FRAMES
    said = watched.snapshot(tmp_path)
    assert said["recording"] == "state" and said["frames"] == [[["app/serve.py", 12, "embed"]]]
    assert said["segments"][0]["blocks"][0]["frames"] == 0


def test_trace_keeps_a_bounded_history(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = bring_up(monkeypatch)
    Watched("trace").row()
    assert (fake.recorded[0]["enabled"], fake.recorded[0]["max_entries"]) == ("all", 50_000)


def test_the_last_of_the_history_is_in_the_snapshot_where_it_was_asked_for(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = bring_up(monkeypatch)
    watched = Watched("trace")
    watched.row()
    monkeypatch.setattr(device_map, "MOST_EVENTS", 3)
    fake.traces = 5
    assert watched.snapshot(tmp_path)["history"] == [{"device": 0, "action": "alloc", "frames": -1}] * 3
    fake.traces = 0
    assert "history" not in watched.snapshot(tmp_path)


def test_recording_waits_until_it_can_be_seen_that_the_program_does_not_record(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = bring_up(monkeypatch)
    fake.has_blocks = False
    watched = Watched("state")
    watched.row()
    assert fake.recorded == []  # the program may have asked for a history, and have allocated nothing yet
    fake.traces = 1
    watched.row()
    assert fake.recorded == [] and watched.devices.recording == "program"
    fake.traces, other = 0, Watched("state")
    other.row()
    fake.has_blocks = True
    other.row()
    assert len(fake.recorded) == 1


def test_a_program_that_records_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = bring_up(monkeypatch)
    fake.frames = fake_torch.FRAMES
    for mode in ("state", "trace", "auto"):
        watched = Watched(mode)
        watched.row()
        assert watched.snapshot(tmp_path)["recording"] == "program" and fake.recorded == []


def test_torch_2_0_is_asked_to_record_by_its_own_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = bring_up(monkeypatch, "2.1")
    asked: list[Any] = []

    def record(enabled: Any, record_context: bool = True, trace_alloc_max_entries: int = 1) -> None:
        asked.append((enabled, trace_alloc_max_entries))

    load(monkeypatch, "torch.cuda.memory", _record_memory_history=record, _snapshot=fake.whole)
    Watched("state").row()
    Watched("trace").row()
    assert asked == [(True, 1), (True, 50_000)]


def test_an_allocator_that_cannot_record_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = bring_up(monkeypatch, backend="cudaMallocAsync")
    watched = Watched("state")
    watched.row()
    assert fake.recorded == []
    assert watched.notes == ["Where blocks of the device were allocated is not recorded: the allocator behind torch is "
                             "cudaMallocAsync, which has no map of its blocks: only its counters are recorded."]


# --- other kinds of devices ---

def test_a_build_for_rocm_calls_its_devices_cuda(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = bring_up(monkeypatch)
    load(monkeypatch, "torch.version", __version__="2.13.0+rocm6.4", hip="6.4", cuda=None)
    said = Watched().snapshot(tmp_path)
    assert said["provider"] == "rocm" and said["devices"][0]["name"] == "cuda:0" and fake.asked
    assert "cublas_workspace_bytes" not in said["devices"][0]


def test_devices_of_intel_are_asked_by_their_own_module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = bring_up(monkeypatch)
    cuda = fake.modules()["torch.cuda"]
    load(monkeypatch, "torch.cuda")
    load(monkeypatch, "torch.xpu", **{name: cuda[name] for name in (
        "_initialized", "is_initialized", "device_count", "memory_stats_as_nested_dict", "get_device_properties")},
        memory_snapshot=lambda mempool_id=None: fake.segments())
    watched = Watched()
    assert watched.row()["xpu0_allocated_bytes"] == 1000
    said = watched.snapshot(tmp_path)
    assert said["provider"] == "xpu" and said["devices"][0]["name"] == "xpu:0" and len(said["segments"]) == 1
    load(monkeypatch, "torch.xpu", _initialized=True, is_initialized=lambda: True, device_count=lambda: 1)  # before 2.5
    assert Watched().row() == {}


def test_mps_is_asked_once_a_walk_has_met_a_tensor_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bring_up(monkeypatch)
    load(monkeypatch, "torch.cuda")
    load(monkeypatch, "torch.mps", current_allocated_memory=lambda: 70, driver_allocated_memory=lambda: 90,
         recommended_max_memory=lambda: 1000)
    assert Watched().row() == {}
    monkeypatch.setattr(device_torch, "met", {"mps"})
    watched = Watched()
    assert watched.row() == {"mps0_allocated_bytes": 70, "mps0_reserved_bytes": 90}
    said = watched.snapshot(tmp_path)
    assert said["provider"] == "mps" and said["devices"][0]["total_bytes"] == 1000 and said["notes"]


def test_another_accelerator_is_asked_where_its_allocator_is_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = bring_up(monkeypatch)
    load(monkeypatch, "torch.cuda")
    load(monkeypatch, "torch._C", _accelerator_isAllocatorInitialized=lambda: True)
    load(monkeypatch, "torch.accelerator", device_count=lambda: 1,
         current_accelerator=lambda: type("device", (), {"type": "mtia"})())
    load(monkeypatch, "torch.accelerator.memory", memory_stats=lambda ordinal: fake.statistics)
    assert Watched().row() == {}  # a build for CUDA: to ask would start the driver
    load(monkeypatch, "torch.version", __version__="2.13.0", cuda=None, hip=None)
    assert Watched().row()["mtia0_allocated_bytes"] == 1000
    assert Watched().snapshot(tmp_path)["provider"] == "generic"


def test_a_torch_without_an_accelerator_is_not_asked_again_until_a_module_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    bring_up(monkeypatch)
    asked: list[int] = []

    def refuse() -> None:
        asked.append(1)
        raise RuntimeError("Cannot access accelerator device when none is available.")

    load(monkeypatch, "torch.cuda")
    load(monkeypatch, "torch.version", __version__="2.13.0+cpu", cuda=None, hip=None)
    load(monkeypatch, "torch._C", _accelerator_isAllocatorInitialized=refuse)
    watched = Watched()
    assert watched.row() == watched.row() == {} and len(asked) == 1
    load(monkeypatch, "torch_npu")
    assert watched.row() == {} and len(asked) == 2


# --- a recorded device ---

RECORDED = {"provider": "recorded", "simulated": True, "torch": "2.13.0", "recording": "state", "process_groups": 2,
            "settings": {"expandable_segments": False, "password": "hunter2"}, "libraries": ["libnccl"],
            "devices": [{"name": "cuda:0", "ordinal": 0, "total_bytes": 9000, "owner": "hunter2",
                         "stats": {"allocated_bytes.all.current": 500}}],
            "host_stats": {"allocated_bytes.current": 5, "active_bytes.current": 3},
            "segments": [{"device": 0, "address": 4096, "total_size": 512, "blocks": [
                {"address": 4096, "size": 512, "state": "active_allocated", "frames": 0}]}],
            "frames": [[["/home/hunter2/app.py", 3, "load"]]],
            "oom": {"device": "cuda:0", "requested_bytes": 7, "why": "hunter2 hunter2"}}


def test_a_recorded_device_is_read_for_rows_and_snapshots(tmp_path: Path) -> None:
    file = tmp_path / "device.json"
    watched = Watched(f"recorded:{tmp_path}")
    assert watched.row() == {} and watched.devices.take() is None
    file.write_text(json.dumps(RECORDED))
    assert watched.row() == {"cuda0_allocated_bytes": 500, "pinned_held_bytes": 5, "pinned_used_bytes": 3}
    said = watched.snapshot(tmp_path)
    assert (said["provider"], said["simulated"], said["recording"], said["process_groups"]) == ("recorded", True, "state", 2)
    assert said["segments"][0]["blocks"][0]["frames"] == 0 and said["frames"][0][0][1:] == [3, "load"]
    assert said["libraries"] == ["libnccl"] and said["settings"] == {"expandable_segments": False}
    assert said["oom"] == {"device": "cuda:0", "requested_bytes": 7}


def test_half_a_file_and_the_file_of_another_process_are_not_taken_for_a_device(tmp_path: Path) -> None:
    file = tmp_path / "device.json"
    watched = Watched(f"recorded:{tmp_path}")
    for text in ("{\"devices\": [", "[]", json.dumps({**RECORDED, "pid": os.getpid() + 1}), json.dumps({"devices": 5})):
        file.write_text(text)
        assert watched.row() == {}


def test_no_value_of_a_recorded_file_passes_through_but_known_ones(tmp_path: Path) -> None:
    (tmp_path / "device.json").write_text(json.dumps(RECORDED))
    Watched(f"recorded:{tmp_path}").snapshot(tmp_path)
    shown = (tmp_path / "devices.json").read_text()
    assert "password" not in shown and "owner" not in shown and "hunter2 hunter2" not in shown
