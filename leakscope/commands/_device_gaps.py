"""What a report cannot say of a device, what is missing for it, and the command that closes the gap."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from leakscope.analyse.devices import Device
from leakscope.case import Case
from leakscope.heap.load import Stored
from leakscope.model import Finding, Gap

RECORD = "leakscope run --gpu state -- COMMAND"
NVML = "pip install 'leakscope-forensics[gpu]', then leakscope doctor"


def gaps(case: Case, findings: Sequence[Finding], gpu: dict[str, Any]) -> Iterator[Gap]:
    """Yield the gaps of every device of a case; `gpu`: that of session.json, which says why NVML was not read."""
    for device in case.devices:
        yield from _of_device(device, [each for each in findings if each.layer == device.name], gpu)


def _of_device(device: Device, findings: Sequence[Finding], gpu: dict[str, Any]) -> Iterator[Gap]:
    name = device.name
    if device.use_quality == "unknown":
        why = gpu.get("nvml") or "NVML was not read"
        if gpu.get("driver"):  # it was read: "nvml" is its version then, and no reason
            why = f"NVML says nothing of {name} for this process"
        yield Gap(f"memory on {name} outside torch's allocator", str(why).rstrip("."), NVML)
    elif device.use_quality == "approximate":
        yield Gap(f"memory on {name} outside torch's allocator, exactly",
                  "this process could not be told apart from others on the device",
                  "run leakscope in the PID namespace of the machine (docker run --pid=host), or with the device to itself")
    seen = [each for each in device.snapshots if each is not None]
    backend = str(device.about.get("backend", "native"))
    if seen and not any(each.blocks.has_map for each in seen):
        if backend == "cudaMallocAsync":
            command = "PYTORCH_CUDA_ALLOC_CONF=backend:native leakscope run -- COMMAND"
        else:
            command = "leakscope run --gpu auto -- COMMAND, with torch's native allocator"
        yield Gap(f"who owns the blocks on {name}", f"its allocator ({backend}) gives no map of them", command)
    elif not seen:
        yield Gap(f"who owns the memory on {name}", "no snapshot has a map of its allocator's blocks",
                  "leakscope run --gpu auto --every 2s -- COMMAND")
    elif str(device.about.get("recording", "off")) == "off" and any(each.site is None for each in findings):
        yield Gap(f"where the memory on {name} was allocated", "the allocator did not record who called it", RECORD)


def damaged(case: Case) -> list[str]:
    """Why what a snapshot says of devices cannot be used, one sentence for each."""
    return [graph.why_no_devices for graph in case.graphs if isinstance(graph, Stored) and graph.why_no_devices]
