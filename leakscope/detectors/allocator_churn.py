"""The device's allocator asks the driver again and again: slow, and no leak.

Each segment that is taken or given back makes the device wait. It happens where a program calls `torch.cuda.empty_cache()`
for every request, or where allocations fail, so that the allocator gives everything back and tries again.

**Found by** more than ten calls of the driver a second, or allocations that had to be tried again. Always a dismissal, with
the rates.

**Remedy.** No `empty_cache()` in a loop; more room on the device, or smaller peaks.
"""

from __future__ import annotations

from collections.abc import Iterator

from leakscope.analyse.devices import Device
from leakscope.case import Case
from leakscope.detectors import _devices
from leakscope.model import Dismissed, Finding, Rule
from leakscope.units import count_text

RULE = Rule("LS426", "allocator-churn", "The device's allocator asks the driver again and again")
LEAST_PER_S = 10.0  # calls of the driver; knowledge page, 5.2, class 26


def detect(case: Case) -> Iterator[Finding | Dismissed]:
    """Yield the churn of each device."""
    for device in case.devices:
        taken, given, retries = (_rise(device, name) for name in ("device_allocs", "device_frees", "alloc_retries"))
        length_s = device.window.length_s
        if length_s <= 0:
            continue
        per_s = ((taken or 0.0) + (given or 0.0)) / length_s
        said = []
        if per_s > LEAST_PER_S:
            said.append(f"{(taken or 0.0) / length_s:.1f} segments a second are taken from the driver and "
                        f"{(given or 0.0) / length_s:.1f} given back{_devices.clause(case, device, 'churn')}")
        if retries:
            said.append(f"{count_text(retries)} allocations failed and were tried again after everything was given back"
                        f"{_devices.clause(case, device, 'retries')}")
        if said:
            yield Dismissed(f"calls of the driver for {device.name}", f"no growth: {'; '.join(said)}", device=device.name)


def _rise(device: Device, name: str) -> float | None:
    """How far a counter rose in the judged part; None where it was not measured."""
    inside = device.window.inside(device.points(name))
    return inside[-1][1] - inside[0][1] if len(inside) > 1 else None
