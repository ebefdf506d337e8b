"""Settings, libraries and counters of compiled code are told by known names."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict

import pytest

from leakscope.agent import device_settings
from tests.agent.fake_torch import load


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "CUBLAS_WORKSPACE_CONFIG"):
        monkeypatch.delenv(name, raising=False)


def test_both_variables_are_told_and_the_one_that_torch_reads_first_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True,roundup_power2_divisions:[256:1,>:4],token:abc")
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:False,max_split_size_mb:128,garbage_collection_threshold:0.8")
    found = device_settings.settings("cuda", None)
    assert (found["expandable_segments"], found["max_split_size_mb"], found["garbage_collection_threshold"]) == (True, 128, 0.8)
    assert found["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True,roundup_power2_divisions:[256:1;>:4]"
    assert found["PYTORCH_ALLOC_CONF"].startswith("expandable_segments:False")
    assert "abc" not in repr(found)
    assert device_settings.settings("xpu", None) == {}


def test_what_torch_tells_counts_before_the_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    told = {"expandable_segments": False, "PYTORCH_CUDA_ALLOC_CONF": "a secret", "last_allocator_settings": "a secret"}
    found = device_settings.settings("cuda", told)
    assert found["expandable_segments"] is False and "secret" not in repr(found)


def test_a_workspace_of_cublas_is_as_large_as_its_device_and_variable_say(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [device_settings.workspace_bytes(capability) for capability in ([8, 0], [9, 0], [12, 0], None)] == [
        8_519_680, 33_554_432, 33_554_432, None]
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:2:16:8")
    assert device_settings.workspace_bytes([9, 0]) == 8_519_680
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:²")  # isdigit(), and no int
    assert device_settings.workspace_bytes([9, 0]) == 33_554_432
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "nonsense")
    assert device_settings.workspace_bytes([9, 0]) == 33_554_432


MAPS = b"""7f00-7f01 r-xp 0 08:01 1 /usr/lib/libcudart.so.12.4
7f01-7f02 r-xp 0 08:01 2 /usr/lib/python3/dist-packages/nvidia/nccl/lib/libnccl.so.2
7f01-7f02 r-xp 0 08:01 2 /usr/lib/libnccl-private.so
7f02-7f03 r-xp 0 08:01 3 /root/.cache/flashinfer/90/cached_ops/batch_prefill/batch_prefill.so
7f03-7f04 r--p 0 08:01 3 /root/.cache/flashinfer/90/cached_ops/batch_prefill/batch_prefill.so
7f04-7f05 r-xp 0 08:01 4 /tmp/torchinductor_root/ab/cabc.so
7f05-7f06 r-xp 0 08:01 5 /tmp/venv/lib/python3.11/site-packages/numpy/core.so
7f06-7f07 rw-p 0 00:00 0
"""


def test_libraries_in_the_address_space_are_named_and_those_built_meanwhile_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_settings, "read_small", lambda path, limit: MAPS)
    load(monkeypatch, "torch", x=1)
    load(monkeypatch, "cupy", x=1)
    found = device_settings.libraries()
    assert {"libcudart", "libnccl", "cupy"} <= set(found) and "libcuda" not in found
    row: dict[str, int] = {}
    device_settings.read_jit_libraries(row)
    assert row == {"jit_libraries": 2}


def test_without_torch_no_library_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    row: dict[str, int] = {}
    device_settings.read_jit_libraries(row)
    assert row == {}


class Loud(dict):  # type: ignore[type-arg]
    """A counter of the program's: its code must not run."""

    def __getitem__(self, key: object) -> object:
        raise AssertionError

    get = values = __len__ = __getitem__  # type: ignore[assignment]


def test_counters_of_compiled_code_are_read_as_dicts(monkeypatch: pytest.MonkeyPatch) -> None:
    row: dict[str, int] = {}
    device_settings.read_compiled(row)
    assert row == {}
    load(monkeypatch, "torch._dynamo.utils", counters=defaultdict(Counter, stats=Loud(unique_graphs=7)))
    load(monkeypatch, "torch._dynamo.convert_frame", FRAME_COMPILE_COUNTER=Loud({0: 3, 1: 1, 2: 4}))
    device_settings.read_compiled(row)
    assert row == {"compiled_graphs": 7, "recompiles": 5}


def test_groups_of_processes_are_counted_where_torch_distributed_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device_settings.process_groups() is None
    load(monkeypatch, "torch.distributed.distributed_c10d", _pg_map={1: 2, 3: 4})
    assert device_settings.process_groups() == 2
