"""What the driver says of the NVIDIA devices of this machine, through `nvidia-ml-py` (its module is called pynvml).

Only leakscope asks, never the target: NVML needs no CUDA context and makes none. Drivers and bindings differ in what they have
(the second form of the memory, three forms of the process lists, MIG), so each thing is asked by itself: what cannot be told is
absent, and a device that does not answer is left out.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

Json = dict[str, Any]

# What a process opens that uses an NVIDIA device; the last on Windows' Linux.
DEVICE_FILES = ("/dev/nvidiactl", "/dev/dxg")
INSTALL = "pip install leakscope-forensics[gpu]"
NOT_INSTALLED = "nvidia-ml-py is not installed where leakscope runs"
# Kinds of lists of processes. The display's own, "graphics", and those behind an MPS server are none of "compute".
_LISTS = ("Compute", "Graphics", "MPSCompute")
# Of each list the newest form first. An old driver fills the newest one wrongly, or lacks it (as nvitop found, too).
_FORMS = ("", "_v3", "_v2")
_SHARED = 2  # NVML_DEVICE_ADDRESSING_MODE_ATS: the device's memory is a NUMA node of the machine (GH200, GB200)
_MOST_PID = 1 << 22  # PID_MAX_LIMIT of Linux include/linux/threads.h: above it a list was read with the wrong layout
# Errors of nvmlInit, by the name of their class in nvidia-ml-py, and what they mean.
_MEANINGS = {
    "NVMLError_LibraryNotFound": "there is no NVIDIA driver library here (libnvidia-ml.so.1)",
    "NVMLError_DriverNotLoaded": "the NVIDIA driver is not loaded",
    "NVMLError_NoPermission": "the NVIDIA driver may not be asked by this user",
    "NVMLError_LibRmVersionMismatch": "the NVIDIA driver and its library differ in version, as before the restart of an update",
}


class Nvml:
    """An open connection to the driver; `driver` and `version` are those of the driver and of NVML."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self.driver = _text(_asked(module, "nvmlSystemGetDriverVersion"))
        self.version = _text(_asked(module, "nvmlSystemGetNVMLVersion"))
        self._forms: dict[str, str] = {}  # kind of list -> the form that works
        self._has_second = hasattr(module, "nvmlMemory_v2")
        self._named: set[int] = set()
        self._devices = list(self._found())

    def row(self) -> Json | None:
        """Return {"devices", "names"} of now (agent/format.py, nvml.jsonl); None where no device answers."""
        devices = [found for about, handle in self._devices if (found := self._device(about, handle))]
        if not devices:
            return None
        pids = {pid for each in devices for pid, _ in each["processes"] or ()}
        names = {str(pid): name for pid in sorted(pids - self._named) if (name := _executable(pid))}
        self._named |= pids
        return {"devices": devices, **({"names": names} if names else {})}

    def close(self) -> None:
        """Let go of the driver."""
        _asked(self._module, "nvmlShutdown")

    def _found(self) -> Iterator[tuple[Json, object]]:
        """The devices; of one that is divided (MIG) its parts, which alone say who uses what."""
        count = _asked(self._module, "nvmlDeviceGetCount")
        for index in range(count if isinstance(count, int) else 0):
            handle = _asked(self._module, "nvmlDeviceGetHandleByIndex", index)
            if handle is None:
                continue
            about = {"index": index, **self._identity(handle)}
            if _asked(self._module, "nvmlDeviceGetAddressingMode", handle) == _SHARED:
                about["is_shared"] = True
            parts = list(self._parts(handle))
            for part in parts:
                yield {**about, **self._identity(part), "is_part": True}, part
            if not parts:
                yield about, handle

    def _parts(self, handle: object) -> Iterator[object]:
        mode = _asked(self._module, "nvmlDeviceGetMigMode", handle)
        if not isinstance(mode, (list, tuple)) or not mode or mode[0] != 1:  # [current, pending]
            return
        count = _asked(self._module, "nvmlDeviceGetMaxMigDeviceCount", handle)
        for number in range(count if isinstance(count, int) else 0):
            part = _asked(self._module, "nvmlDeviceGetMigDeviceHandleByIndex", handle, number)
            if part is not None:  # else that place is empty
                yield part

    def _identity(self, handle: object) -> Json:
        """What names a device; a part of one has no address on the bus of its own."""
        pci = _asked(self._module, "nvmlDeviceGetPciInfo", handle)
        found = {"uuid": _text(_asked(self._module, "nvmlDeviceGetUUID", handle)),
                 "bus_id": _text(getattr(pci, "busId", None)),
                 "model": _text(_asked(self._module, "nvmlDeviceGetName", handle))}
        return {name: text for name, text in found.items() if text}

    def _device(self, about: Json, handle: object) -> Json | None:
        memory = self._memory(handle)
        if memory is None:
            return None
        lists = [found for kind in _LISTS if (found := self._processes(kind, handle, memory["total_bytes"])) is not None]
        used: dict[int, int | None] = {}
        for pid, size in (each for found in lists for each in found):  # one that computes and draws is in two of them
            known = used.get(pid)
            used[pid] = size if known is None else max(known, size or 0)
        return {**about, **memory, "processes": [[pid, size] for pid, size in sorted(used.items())] if lists else None}

    def _memory(self, handle: object) -> Json | None:
        """Used is all that is not free: whether the number called "used" has the driver's own part in it differs by version."""
        if self._has_second:
            memory = _asked(self._module, "nvmlDeviceGetMemoryInfo", handle, version=self._module.nvmlMemory_v2)
            found = _memory_of(memory)
            if found:
                return found
        found = _memory_of(_asked(self._module, "nvmlDeviceGetMemoryInfo", handle))
        if found:
            self._has_second = False  # it answers the first form only
        return found

    def _processes(self, kind: str, handle: object, total_bytes: int) -> list[tuple[int, int | None]] | None:
        """The (pid, bytes or None) of one kind of list; None where the driver does not tell."""
        for form in (self._forms[kind],) if kind in self._forms else _FORMS:
            found = _list_of(_asked(self._module, f"nvmlDeviceGet{kind}RunningProcesses{form}", handle), total_bytes)
            if found is not None:
                if found:  # an empty list may be one that was read wrongly
                    self._forms[kind] = form
                return found
        return None


def connect() -> Nvml | str:
    """Return an open connection, or why there is none, as a clause without a full stop."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the package called pynvml warns of itself as soon as somebody imports it
            import pynvml
    except ImportError:
        return NOT_INSTALLED
    except Exception as error:
        return f"nvidia-ml-py cannot be loaded ({type(error).__name__})"
    begin = getattr(pynvml, "nvmlInit", None)
    if begin is None:
        return "the module called pynvml here is not the one of nvidia-ml-py"
    try:
        begin()
    except Exception as error:
        return _MEANINGS.get(type(error).__name__, f"the NVIDIA driver answers '{error}'")
    return Nvml(pynvml)


def is_device_here() -> bool:
    """Return whether this machine has a device that NVML may know."""
    return any(map(os.path.exists, DEVICE_FILES))


def command_for(reason: str) -> str:
    """Return the command that helps against a reason of `connect`."""
    return INSTALL if reason == NOT_INSTALLED else "nvidia-smi"


def _asked(module: ModuleType, name: str, *arguments: object, **named: object) -> Any:
    """Return what a function answers; None where this binding lacks it, or the driver does not answer."""
    ask: Callable[..., Any] | None = getattr(module, name, None)
    try:
        return None if ask is None else ask(*arguments, **named)
    except Exception:  # NVMLError and what differing versions raise: TypeError, NVMLLibraryMismatchError, AttributeError ...
        return None


def _text(value: object) -> str | None:
    """Return text; older bindings answer in bytes."""
    text = value.decode("ascii", "replace") if isinstance(value, bytes) else value
    return text if isinstance(text, str) and text else None


def _memory_of(memory: object) -> Json | None:
    total, free = getattr(memory, "total", None), getattr(memory, "free", None)
    if not isinstance(total, int) or not isinstance(free, int) or not 0 <= free <= total or total == 0:
        return None
    own = getattr(memory, "reserved", None)
    return {"total_bytes": total, "used_bytes": total - free, **({"system_bytes": own} if isinstance(own, int) else {})}


def _list_of(listed: object, total_bytes: int) -> list[tuple[int, int | None]] | None:
    """Return (pid, bytes); None for what cannot be such a list."""
    if not isinstance(listed, list):
        return None
    found: list[tuple[int, int | None]] = [(getattr(each, "pid", -1), getattr(each, "usedGpuMemory", None)) for each in listed]
    is_right = all(0 < pid <= _MOST_PID and (size is None or 0 <= size <= total_bytes) for pid, size in found)
    return found if is_right else None


def _executable(pid: int) -> str | None:
    """Return the file name of what a process runs, never what it calls itself; None where that is not ours to read."""
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe").removesuffix(" (deleted)")) or None
    except OSError:
        return None
