"""Device counters come from what the target has brought up, and from nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from leakscope.agent import devices

FLAT = {"allocated_bytes.all.current": 100, "allocated_bytes.all.peak": 300, "reserved_bytes.all.current": 400,
        "active_bytes.all.current": 120, "inactive_split_bytes.all.current": 7, "num_alloc_retries": 2, "num_ooms": 1}
NESTED = {"allocated_bytes": {"all": {"current": 100, "peak": 300}}, "reserved_bytes": {"all": {"current": 400}},
          "num_ooms": 1, "active_bytes": {"all": {"current": 120}},
          "inactive_split_bytes": {"all": {"current": 7}}, "num_alloc_retries": 2}
EXPECTED = {"cuda0_allocated_bytes": 100, "cuda0_reserved_bytes": 400, "cuda0_active_bytes": 120,
            "cuda0_inactive_split_bytes": 7, "cuda0_allocated_peak_bytes": 300, "cuda0_alloc_retries": 2, "cuda0_ooms": 1}


def load(monkeypatch: pytest.MonkeyPatch, name: str, **content: Any) -> None:
    module = ModuleType(name)
    module.__dict__.update(content)
    monkeypatch.setitem(sys.modules, name, module)


def bring_up(monkeypatch: pytest.MonkeyPatch, statistics: dict[str, Any], is_up: bool = True) -> None:
    load(monkeypatch, "torch.cuda", _initialized=is_up, is_initialized=lambda: is_up, device_count=lambda: 1,
         memory_stats=lambda ordinal: statistics)
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def read() -> dict[str, int]:
    row: dict[str, int] = {}
    devices.read(row)
    return row


@pytest.mark.parametrize("statistics", [FLAT, NESTED], ids=["flat", "nested"])
def test_both_spellings_of_the_statistics_give_the_same_columns(
        statistics: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    bring_up(monkeypatch, statistics)
    assert read() == EXPECTED


def test_a_statistic_that_this_torch_lacks_is_absent_and_not_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    bring_up(monkeypatch, {"allocated_bytes.all.current": 5})
    assert read() == {"cuda0_allocated_bytes": 5}


def test_nothing_is_asked_before_the_target_has_initialised_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    bring_up(monkeypatch, FLAT, is_up=False)
    assert read() == {}


def test_a_mock_in_the_place_of_torch_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    mock = MagicMock()
    monkeypatch.setitem(sys.modules, "torch.cuda", mock)
    assert read() == {}
    assert mock.mock_calls == []


def test_nvml_is_read_where_the_target_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    bring_up(monkeypatch, {})
    sys.modules["torch.cuda"].memory_stats = lambda ordinal: {"num_ooms": 0}  # type: ignore[attr-defined]
    asked: list[int] = []
    processes = [SimpleNamespace(pid=1, usedGpuMemory=5), SimpleNamespace(pid=os.getpid(), usedGpuMemory=70)]
    load(monkeypatch, "pynvml", nvmlDeviceGetHandleByIndex=lambda index: asked.append(index),
         nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(used=900),
         nvmlDeviceGetComputeRunningProcesses=lambda handle: processes)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    assert read() == {"cuda0_ooms": 0, "cuda0_used_bytes": 900, "cuda0_process_bytes": 70}
    assert asked == [3]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-8f2c")
    assert read() == {"cuda0_ooms": 0}


def test_reading_devices_imports_nothing() -> None:
    code = ("import sys; from leakscope.agent import devices; devices.read({});"
            "print('torch' in sys.modules, 'pynvml' in sys.modules)")
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                         env={**os.environ, "PYTHONPATH": os.getcwd()})
    assert ran.stdout == "False False\n", ran.stderr
