"""The device fills up, and not by this process.

**Found by** the use of the whole device less what this process uses of it: when that is half of the growth and this process
itself does not grow. Always a dismissal for this process; processes are told by number, as the driver counts them, and by
name only where they belong to the session.

**Remedy.** Look at the other process; give each its own device, or a bound (`per_process_memory_fraction`, MPS, MIG).
"""

from __future__ import annotations

from collections.abc import Iterator

from leakscope.analyse.devices import Device
from leakscope.analyse.layers import Points
from leakscope.case import Case
from leakscope.detectors import _devices
from leakscope.model import Dismissed, Finding, Rule
from leakscope.units import bytes_text

RULE = Rule("LS427", "other-processes", "Another process fills the device")


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
    """The other processes, as far as somebody said."""
    own = int(case.info.get("pid", 0))
    listed = [pid for pid in device.info.get("other_pids") or () if isinstance(pid, int) and pid != own]
    family = {each.pid for each in case.family}
    words = [f"process {pid}" + (" of this session" if pid in family else "") for pid in listed]
    return f" ({', '.join(words)})" if words else ""
