"""The device fills up, and not by this process.

**Found by** the use of the whole device less what this process uses of it: when that is half of the growth and this process
itself does not grow. Always a dismissal for this process; the others are told by number, as the driver counts them, and by
the name of their executable where it is known.

**Remedy.** Look at the other process; give each its own device, or a bound (`per_process_memory_fraction`, MPS, MIG).
"""

from __future__ import annotations

from collections.abc import Iterator

from leakscope.analyse.device_use import Other
from leakscope.analyse.devices import Device
from leakscope.analyse.layers import Points
from leakscope.case import Case
from leakscope.detectors import _devices
from leakscope.model import Dismissed, Finding, Rule
from leakscope.units import bytes_text

RULE = Rule("LS427", "other-processes", "Another process fills the device")
MOST_TOLD = 3  # processes, those that grew most; ours


def detect(case: Case) -> Iterator[Finding | Dismissed]:
    """Yield the growth of others on each device."""
    for device in case.devices:
        if device.use_quality not in ("exact", "matched"):
            continue  # what is ours is only known from the whole
        others, whole = _devices.sustained(_others(device), device), _devices.change(device.points("used_bytes"), device)
        if others is None or others < _devices.LEAST_SHARE * max(0.0, whole or 0.0) or device.growth is not None:
            continue
        mine = _devices.change(device.points("process_bytes"), device) or 0.0
        why = (f"another process: {bytes_text(others)} more are used on {device.name} by others, this process has "
               f"{bytes_text(mine, signed=True)}{_who(case, device)}")
        yield Dismissed(f"other processes on {device.name}", why, device=device.name)


def _others(device: Device) -> Points:
    mine = dict(device.points("process_bytes"))
    return [(t_s, value - mine[t_s]) for t_s, value in device.points("used_bytes") if t_s in mine]


def _who(case: Case, device: Device) -> str:
    """The other processes that use more than when they were first seen, or of which nobody said how much they use."""
    use = case.device_uses.get(device.name)
    words = [_words(each) for each in (use.other_processes if use else ())
             if each.first_bytes is None or each.last_bytes is None or each.last_bytes > each.first_bytes][:MOST_TOLD]
    return f"; of them {', '.join(words)}" if words else ""


def _words(other: Other) -> str:
    grown = None if other.first_bytes is None or other.last_bytes is None else other.last_bytes - other.first_bytes
    name = f" ({other.name})" if other.name else ""
    return f"process {other.pid}{name}" + (f" {bytes_text(grown, signed=True)}" if grown is not None else "")
