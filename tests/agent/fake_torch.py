"""Simulated torch modules, as each version of torch tells of its devices: keys and arguments came with versions. No GPU.

`bring_up("2.13")` puts them into sys.modules. `asked` notes every call that needs an initialised device.
"""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

VERSIONS = ("2.1", "2.3", "2.7", "2.9", "2.11", "2.12", "2.13", "2.14")
FRAMES = [{"filename": "/srv/app/serve.py", "line": 12, "name": "embed"}]


def _stat(current: int) -> dict[str, dict[str, int]]:
    return {pool: {"current": current, "peak": current + 1, "allocated": current + 2, "freed": 2}
            for pool in ("all", "small_pool", "large_pool")}


def statistics(version: tuple[int, int], count_key: str = "allocation") -> dict[str, Any]:
    """The nested statistics of one device."""
    found: dict[str, Any] = {name: _stat(value) for name, value in {
        "allocated_bytes": 1000, "reserved_bytes": 4000, "active_bytes": 1200, "inactive_split_bytes": 70,
        "requested_bytes": 900, count_key: 5, "segment": 2, "active": 6, "inactive_split": 1}.items()}
    found.update(num_alloc_retries=3, num_ooms=1, max_split_size=-1)
    if version >= (2, 3):
        found.update(num_sync_all_streams=0, num_device_alloc=8, num_device_free=6)
    if version >= (2, 12):
        found["num_oom_rejections"] = 0
    if version >= (2, 13):
        found["reserved_bytes_by_private_pools"] = {(0, 1): _stat(2000), (0, 2): _stat(500)}
    return found


def expected_row(version: tuple[int, int]) -> dict[str, int]:
    """The columns that a version gives."""
    row = {"allocated_bytes": 1000, "reserved_bytes": 4000, "active_bytes": 1200, "inactive_split_bytes": 70,
           "allocated_peak_bytes": 1001, "requested_bytes": 900, "allocations": 5, "segments": 2, "allocated_total_bytes": 1002,
           "freed_total_bytes": 2, "alloc_retries": 3, "ooms": 1}
    if version >= (2, 3):
        row.update(device_allocs=8, device_frees=6)
    if version >= (2, 13):
        row["private_pool_bytes"] = 2500
    columns = {f"cuda0_{name}": value for name, value in row.items()}
    if version >= (2, 7):
        columns.update(pinned_held_bytes=64, pinned_used_bytes=16, pinned_allocs=4, pinned_frees=1)
    return columns


def host_statistics(version: tuple[int, int]) -> dict[str, Any]:
    """Of pinned memory: 64 bytes held, 16 of them in use, by the keys of the version (2.9 changed their meaning)."""
    stats: dict[str, Any] = {"num_host_alloc": 4, "num_host_free": 1}
    held, used = ("allocated_bytes", "active_bytes") if version >= (2, 9) else ("reserved_bytes", "allocated_bytes")
    stats[held], stats[used] = {"current": 64, "peak": 64}, {"current": 16, "peak": 20}
    return stats


class Fake:
    """A process that uses torch. `frames`: of its one block; `traces`: entries of the allocator's history."""

    def __init__(self, version: str, backend: str = "native") -> None:
        major, minor = version.split(".")
        self.version = (int(major), int(minor))
        self.is_up, self.backend, self.devices = True, backend, 1
        self.frames: list[dict[str, Any]] = []
        self.traces = 0
        self.has_blocks = True
        self.asked: list[str] = []
        self.recorded: list[dict[str, Any]] = []
        self.observers: list[Any] = []
        self.statistics: dict[str, Any] = statistics(self.version)

    def segments(self) -> list[dict[str, Any]]:
        if not self.has_blocks:
            return []
        return [{"device": 0, "address": 0x7F0000000000, "total_size": 4000, "allocated_size": 1000, "active_size": 1200,
                 "requested_size": 900, "stream": 0, "segment_type": "small", "segment_pool_id": (0, 0), "is_expandable": False,
                 "frames": [], "registration_counter": 7, "blocks": [
                     {"address": 0x7F0000000000, "size": 1000, "requested_size": 900, "state": "active_allocated",
                      "frames": self.frames},
                     {"address": 0x7F0000000000 + 1000, "size": 200, "requested_size": 200, "state": "active_pending_free",
                      "frames": []},
                     {"address": 0x7F0000000000 + 1200, "size": 2800, "requested_size": 0, "state": "inactive", "frames": []}]}]

    def _ask(self, name: str) -> None:
        self.asked.append(name)
        if not self.is_up:
            raise RuntimeError("a device that is not initialised was asked")

    def _native(self, name: str) -> None:
        self._ask(name)
        if self.backend != "native":
            raise RuntimeError("is not meaningful")

    def whole(self) -> dict[str, Any]:
        """torch.cuda.memory._snapshot()."""
        self._native("_snapshot")
        found: dict[str, Any] = {"segments": self.segments(), "device_traces": [[{"action": "alloc"}] * self.traces]}
        if self.version >= (2, 3):
            found["allocator_settings"] = {"PYTORCH_CUDA_ALLOC_CONF": "secret:hunter2", "expandable_segments": True,
                                           "max_split_size": -1, "roundup_power2_divisions": {"256": 1}}
        return found

    def _plain(self) -> Any:
        def first() -> Any:
            self._native("memory_snapshot")
            return self.segments()

        def pooled(mempool_id: Any = None) -> Any:
            return first()

        def light(mempool_id: Any = None, include_traces: bool = True) -> Any:
            self.asked.append(f"include_traces={include_traces}")
            return first()

        return light if self.version >= (2, 11) else pooled if self.version >= (2, 8) else first

    def _record(self, enabled: Any = "all", context: str = "all", stacks: str = "all", max_entries: int = 1 << 60) -> None:
        self._native("_record_memory_history")
        self.recorded.append({"enabled": enabled, "context": context, "stacks": stacks, "max_entries": max_entries})

    def _statistics(self, ordinal: int) -> Any:
        self._ask("memory_stats")
        return self.statistics

    def modules(self) -> dict[str, dict[str, Any]]:
        """Name and content of the modules."""
        properties = SimpleNamespace(name="NVIDIA H200", total_memory=150 << 30, major=9, minor=0, uuid="ab-12",
                                     pci_domain_id=0, pci_bus_id=0x18, pci_device_id=0)
        cuda: dict[str, Any] = {
            "_initialized": True, "is_initialized": lambda: self.is_up, "device_count": lambda: self.devices,
            "memory_stats_as_nested_dict": self._statistics, "get_allocator_backend": lambda: self.backend,
            "get_device_properties": lambda ordinal: properties, "memory_snapshot": self._plain()}
        if self.version >= (2, 7):
            cuda["host_memory_stats_as_nested_dict"] = lambda: host_statistics(self.version)
        parts: dict[str, Any] = {"_cuda_hasPrimaryContext": lambda ordinal: ordinal < 1,
                                 "_cuda_attach_out_of_memory_observer": self.observers.append,
                                 "_cuda_memorySnapshot": lambda wanted: self.whole()}
        version = {"__version__": f"{self.version[0]}.{self.version[1]}.0", "cuda": "12.8", "hip": None}
        return {"torch": {}, "torch.version": version,
                "torch._C": parts, "torch.cuda": cuda,
                "torch.cuda.memory": {"_snapshot": self.whole, "_record_memory_history": self._record}}


def load(monkeypatch: Any, name: str, **content: Any) -> None:
    """Put a module into sys.modules until the test ends."""
    module = ModuleType(name)
    module.__dict__.update(content)
    monkeypatch.setitem(sys.modules, name, module)


def bring_up(monkeypatch: Any, version: str = "2.13", backend: str = "native") -> Fake:
    """A process in which the target has initialised CUDA."""
    fake = Fake(version, backend)
    for name in list(sys.modules):
        if name == "torch" or name.startswith("torch."):
            monkeypatch.delitem(sys.modules, name)
    for name, content in fake.modules().items():
        load(monkeypatch, name, **content)
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "CUBLAS_WORKSPACE_CONFIG", "PYTORCH_NO_CUDA_MEMORY_CACHING"):
        monkeypatch.delenv(name, raising=False)
    return fake
