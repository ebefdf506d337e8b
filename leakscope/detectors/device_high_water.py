"""Free segments that PyTorch's allocator keeps: a high water, no leak.

What a program once used and freed stays with the allocator, since to ask the driver again is slow. `nvidia-smi` shows it as
used. It is used again, and it does not become more: it is as large as the largest moment was.

**Found by** free segments that are half of what the allocator took more, while what is allocated does not grow and they have
stopped growing; or that came in the start-up of the run and stayed. Always a dismissal, with the peak and when it came.

**Remedy.** None is needed. Where another process needs the room: `torch.cuda.empty_cache()` at quiet moments, a bound on the
batch, or a `torch.cuda.MemPool` for rare spikes.
"""

from __future__ import annotations

from collections.abc import Iterator

from leakscope.analyse import waterfall
from leakscope.analyse.devices import Device
from leakscope.case import Case
from leakscope.detectors import _devices
from leakscope.model import Dismissed, Finding, Rule
from leakscope.units import bytes_text, seconds_text

RULE = Rule("LS414", "device-high-water", "Free segments that the device's allocator keeps")
ALLOCATED = ("allocated_owned", "workspaces", "allocated_unowned")


def detect(case: Case) -> Iterator[Finding | Dismissed]:
    """Yield the high water of each device."""
    for device in case.devices:
        size = _came_once(device)
        is_flat = all(device.terms[name].growth is None for name in ALLOCATED)
        if size and is_flat:
            why = (f"{_devices.HIGH_WATER}: {bytes_text(size)} more are free and kept for the next time{_peak(device)}"
                   f"{_devices.clause(case, device, 'high-water')}")
            yield Dismissed(f"free segments on {device.name}", why, "", size, device.name)


def _came_once(device: Device) -> int:
    """How many bytes of free segments came and stayed, in the judged part of the run or in its start-up; 0 where few did."""
    term = device.terms["releasable"]
    if term.has_ended:
        size, reserved = term.growth_bytes or 0, device.wholes["reserved"].growth_bytes or 0
        return size if size >= _devices.LEAST_SHARE * reserved else 0
    late = device.window.tail.inside(term.points)
    if term.growth is not None or not late:
        return 0
    least = min(value for _, value in late)
    size = int(least - term.points[0][1])
    has_come = size >= max(waterfall.least_growth(device.total_bytes), _devices.LEAST_SHARE * late[-1][1])
    return size if has_come else 0


def _peak(device: Device) -> str:
    """What the largest moment was, and when it came."""
    peaks = device.points("allocated_peak_bytes") or device.points("allocated_bytes")
    now = device.points("allocated_bytes")
    if not peaks or not now:
        return ""
    highest = max(value for _, value in peaks)
    at_s = next(t_s for t_s, value in peaks if value == highest)
    return (f", at the peak {bytes_text(highest)} were allocated ({seconds_text(at_s)} into the run), now "
            f"{bytes_text(now[-1][1])} are")
