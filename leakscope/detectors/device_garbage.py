"""Unreachable cycles keep tensors on a device until the collector comes, and it comes seldom.

The collector counts objects, not bytes: a few hundred small objects that hold a gigabyte on a device give it no reason to run
(TransformerLens#290). The memory is freed at the next collection of the oldest generation; until then it is full.

**Found by** computing garbage from the snapshots as in garbage-cycles, and the bytes that hang on it on each device, where
they are a quarter of the growth of what is allocated there. What the collector will free in time is told, too: on a device it
may be too late.

**Remedy.** Break the cycle where it is made (hold the way back by `weakref.ref`); or call `gc.collect()` at quiet moments, with
`gc.freeze()` once after start-up so that it is quick.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from leakscope.analyse import waterfall
from leakscope.analyse.devices import Device
from leakscope.analyse.trend import grew_in_every_interval
from leakscope.case import Case
from leakscope.detectors import _cycles, _device_piles, garbage_cycles
from leakscope.detectors._device_piles import Told
from leakscope.model import Confidence, Dismissed, Finding, Rule
from leakscope.units import bytes_text

RULE = Rule("LS411", "device-garbage", "Unreachable cycles keep tensors on a device until they are collected")
REMEDY = ("Break the cycle where it is made (hold the way back by weakref.ref), or call gc.collect() at quiet moments, after "
          "one gc.freeze() when the program is up.")
GARBAGE_SHARE = 0.25  # of the growth of what is allocated on the device; knowledge page "gpu", class 11
MOST_FINDINGS = 3  # of a device; knowledge page "gpu", 5.2
SMALL_SHARE = 0.1  # of all garbage on the device: a shape that keeps less is not told; ours


def detect(case: Case) -> Iterator[Finding | Dismissed]:
    """Yield the cycles that keep most on each device."""
    if not case.devices or not case.can_compare:
        return
    for device in case.devices:
        sizes = case.garbage_on(device.name)
        grown = sizes[-1] - sizes[0]
        allocated = device.wholes["allocated"]
        if allocated.growth is not None and grown >= GARBAGE_SHARE * allocated.growth.bytes and grew_in_every_interval(sizes):
            yield from _findings(case, device, grown)
        elif max(sizes) >= waterfall.least_growth(device.total_bytes):
            why = (f"they come and go: {bytes_text(sizes[-1])} on {device.name} are left, at most {bytes_text(max(sizes))} "
                   f"were; the collector comes {garbage_cycles.due(case)}")
            yield Dismissed("unreachable cycles", why, "", max(0, grown), device.name)


def _findings(case: Case, device: Device, grown: int) -> Iterator[Finding]:
    why = garbage_cycles.reason(case)
    whole = case.garbage_on(device.name)[-1] or 1
    for size, cycle in _cycles.heaviest(case, device.name)[:MOST_FINDINGS]:
        part = min(1.0, size / whole)
        if not cycle.edges or part < SMALL_SHARE:
            continue
        is_hidden = _cycles.is_hidden(case.last, cycle)
        said = garbage_cycles.HIDDEN if is_hidden else why or (
            f"the collector has not come for it: it counts objects, not bytes, and comes {garbage_cycles.due(case)}")
        found = _cycles.finding(case, RULE, cycle, size, int(grown * part), said,
                                garbage_cycles.HIDDEN_REMEDY if is_hidden else REMEDY, device.name)
        if not why and not is_hidden:  # it will be freed, if the device is large enough to see it
            found = replace(found, confidence=Confidence.MEDIUM)
        yield _device_piles.with_told(case, found, Told(found.remedy))
