"""What rounding takes: blocks are larger than what was asked for.

The allocator hands out multiples of 512 bytes; blocks that were not worth splitting, and `roundup_power2_divisions`, add
more. Many small tensors, or sizes just above a step, waste a good part.

**Found by** allocated less requested bytes, when that is more than 15 % of what is allocated and 256 MiB. Growth of it is a
finding; waste that stays is dismissed with its size.

**Remedy.** `roundup_power2_divisions` off; one large tensor that is sliced in place of many small ones.
"""

from __future__ import annotations

from collections.abc import Iterator

from leakscope.analyse import fragmentation
from leakscope.analyse.devices import Device
from leakscope.analyse.layers import Points
from leakscope.case import Case
from leakscope.detectors import _devices
from leakscope.detectors._devices import Cause
from leakscope.model import Dismissed, Finding, Rule
from leakscope.units import bytes_text, count_text

RULE = Rule("LS416", "block-rounding", "Rounding of blocks takes a good part of the device")
LEAST_SHARE, LEAST_BYTES = 0.15, 256 << 20  # of what is allocated, and at all; knowledge page, 5.2, class 16
MOST_SIZES = 3  # that are told; ours


def detect(case: Case) -> Iterator[Finding | Dismissed]:
    """Yield one finding or dismissal a device."""
    for device in case.devices:
        points = _wasted(device)
        allocated = device.points("allocated_bytes")
        if not points or points[-1][1] < max(LEAST_BYTES, LEAST_SHARE * allocated[-1][1]):
            continue
        share = points[-1][1] / allocated[-1][1]
        reasons = [f"of {bytes_text(allocated[-1][1])} that are allocated nobody asked for {bytes_text(points[-1][1])} "
                   f"({share:.0%})", *_worst(device)]
        term = next((name for name in _devices.TERMS_OF[RULE.code] if device.terms[name].growth is not None), None)
        growth = _devices.sustained(points, device)
        if term is None or growth is None:
            yield Dismissed(f"rounding of blocks on {device.name}", f"{_devices.PLATEAU}: {'; '.join(reasons)}", "",
                            max(0, int(_devices.change(points, device) or 0)), device.name)
            continue
        cause = Cause(term, growth, "rounding of blocks", "unused end of a block", reasons,
                      ["the tensors themselves grow as well"], correlates=len(reasons) > 1)
        yield _devices.finding(case, device, RULE, cause, _devices.remedy(case, device, "rounding"))


def _wasted(device: Device) -> Points:
    asked = dict(device.points("requested_bytes"))
    return [(t_s, value - asked[t_s]) for t_s, value in device.points("allocated_bytes") if t_s in asked]


def _worst(device: Device) -> Iterator[str]:
    last = _devices.last_seen(device)
    worst = fragmentation.rounding(last.blocks, device.code, MOST_SIZES) if last else []
    if worst:
        yield "most of it in " + ", ".join(
            f"{count_text(each.block_count)} blocks of {bytes_text(each.block_bytes)} for {bytes_text(each.requested_bytes)} "
            f"({bytes_text(each.wasted_bytes)})" for each in worst)
