"""What a device takes at first use: the context of CUDA, and modules that are loaded when a kernel first runs.

A process that touches a GPU has a context on it, some hundred MiB that no allocator counts. Kernels are loaded when they are
first called (CUDA 11.7 and later), so memory outside PyTorch's allocator rises in steps while new shapes and operations come,
and then stays.

**Found by** memory outside of the allocator that rose and levelled off. Always a dismissal, with what was there at the start
and the steps.

**Remedy.** None is needed; run each shape once before the service takes requests. `CUDA_MODULE_LOADING=LAZY`, the default of
newer drivers, loads only what is used.
"""

from __future__ import annotations

from collections.abc import Iterator

from leakscope.analyse import staircase
from leakscope.analyse.devices import Device
from leakscope.case import Case
from leakscope.detectors import _devices
from leakscope.model import Dismissed, Finding, Rule
from leakscope.units import bytes_text, count_text

RULE = Rule("LS417", "device-first-use", "Context and modules of the device, loaded at first use")
LEAST_STEP_BYTES = 8 << 20  # the driver maps device memory in pieces of 2 MiB; several of them are a module or a pool; ours


def detect(case: Case) -> Iterator[Finding | Dismissed]:
    """Yield what each device took once."""
    for device in case.devices:
        term = device.terms["outside"]
        if term.growth is not None or len(term.points) < 2:
            continue
        first, last = term.points[0][1], term.points[-1][1]
        if term.has_ended or last - first >= _devices.LEAST_BYTES:
            yield _devices.levelled(device, "outside", "context and modules", _why(case, device, first, last))


def _why(case: Case, device: Device, first: float, last: float) -> str:
    found = staircase.steps(device.terms["outside"].points, LEAST_STEP_BYTES)
    steps = f" in {count_text(len(found))} steps" if found else ""
    return (f"memory outside PyTorch's allocator was {bytes_text(first)} when it was first seen and rose to {bytes_text(last)}"
            f"{steps}, as it does when kernels are loaded at first use{_devices.clause(case, device, 'first-use')}")
