"""Tensors that were sent to other processes stay allocated in the one that made them.

A CUDA tensor that goes through `torch.multiprocessing` is not copied: the receiver opens the sender's memory. The sender
keeps the block until every receiver has let go of it, though no Python object in it holds the tensor any more.

**Found by** growth of blocks without an owner in Python, together with a process of the session that shares memory through
files: torch's own table of sent storages among the objects, more files in /dev/shm, another process that uses the device.

**Remedy.** Let the receivers drop what they got; `torch.cuda.ipc_collect()` in the sender; or send a copy on the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator

from leakscope.analyse import memory
from leakscope.analyse.devices import Device, prefix_of
from leakscope.case import Case
from leakscope.detectors import _devices
from leakscope.detectors._devices import Cause
from leakscope.model import Dismissed, Finding, Rule
from leakscope.units import bytes_text, count_text

RULE = Rule("LS421", "device-ipc", "Device memory that was shared with other processes is not given back")
SENT = "torch.multiprocessing.reductions.SharedCache"  # torch's table of storages that were sent or received
LEAST_FILES = 1  # more in /dev/shm: torch counts the receivers of each block there


def detect(case: Case) -> Iterator[Finding | Dismissed]:
    """Yield one finding a device."""
    for device, growth in _devices.grown(case, "allocated_unowned"):
        if not is_shared(case, device):
            continue
        others, files = _consumers(case, device), _files(case)
        reasons = [f"{bytes_text(growth.bytes)} more are allocated that no object in this process holds",
                   "torch.multiprocessing has sent or received storages in this process"]
        if files >= LEAST_FILES:
            reasons.append(f"there are {count_text(files)} more files in /dev/shm, where receivers are counted")
        if others:
            reasons.append(f"the device is used by {', '.join(f'process {pid}' for pid in others)} of this session as well")
        doubts = ["which receiver holds which block is not recorded", "other C++ code may hold some of it"]
        cause = Cause("allocated_unowned", growth.bytes, "device memory sent to other processes", "shared device block",
                      reasons, doubts, correlates=bool(others) and files >= LEAST_FILES)
        yield _devices.finding(case, device, RULE, cause, _devices.remedy(case, device, "ipc"))


def is_shared(case: Case, device: Device) -> bool:
    """True if objects and processes show that memory of the device is open in another process."""
    if not case.compared or not any(name == SENT for name, _, _ in case.type_growth):
        return False
    return bool(_consumers(case, device)) or _files(case) >= LEAST_FILES


def _consumers(case: Case, device: Device) -> list[int]:
    """The other processes of the session that use a device."""
    return [each.pid for each in case.family if each.timeline
            and any(name.startswith(prefix_of(device.name)) for sample in each.timeline[-1:] for name in sample)]


def _files(case: Case) -> int:
    return round(memory.change_of(case.timeline, case.window, "shared_files") or 0)
