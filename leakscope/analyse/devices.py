"""One device of a process over the run: what its allocator counted, what NVML saw, who owns its blocks.

    device.name, device.code          "cuda:0" and its code in graph.device
    device.info                       its entry of devices.json in the last snapshot ({} without one)
    device.about                      the other fields of that file: provider, backend, recording, settings, libraries ...
                                      (host_stats, process_groups, oom, notes too; not segments, frames, devices)
    device.points("reserved_bytes")   (seconds, value) of a timeline column, without the prefix "cuda0_"
    device.terms["outside"]           waterfall.Term for each of waterfall.TERMS
    device.wholes["allocated"]        waterfall.Term for each of waterfall.WHOLES: used, reserved, active, allocated
    device.snapshots                  one Seen(t_s, blocks, ownership, info) for each compared snapshot, or None
    device.window                     the judged part of the run: after the start-up of this device
    device.growth                     waterfall.TermGrowth of the device as a whole, or None
    device.use_quality                "exact" | "matched" | "approximate" | "unknown": how well `used` is known
    device.measure                    which of WHOLES stands for the device: "used", "reserved" or "allocated"
    device.explained_ratio            of its growth, the part in terms that name a cause; None: it did not grow
    device.limit_bytes, .layer, .unmeasured
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from leakscope.analyse import layers, waterfall
from leakscope.analyse.layers import Points, Window
from leakscope.analyse.ownership import Owned, Ownership
from leakscope.analyse.trend import Slope, theil_sen
from leakscope.analyse.waterfall import PARTS, TERMS, Term, TermGrowth
from leakscope.heap.blocks import Blocks
from leakscope.heap.device_codes import device_code, device_name
from leakscope.model import Layer

Sample = dict[str, Any]

WELL_KNOWN = ("exact", "matched")  # how well NVML's use of a process has to be known to stand for the device
UNNAMED = ("outside", "allocated_unowned")  # terms that name no cause by themselves
_COLUMN = re.compile(r"(cuda|xpu|mps)(\d+)_")  # how the timeline columns of a device begin

__all__ = ["Device", "Seen", "Term", "device_code", "device_name", "prefix_of"]


class Seen(NamedTuple):
    """A device in one compared snapshot: when, the blocks of all devices, who owns them, its entry of devices.json."""

    t_s: float
    blocks: Blocks
    ownership: Ownership
    info: dict[str, Any]


def prefix_of(name: str) -> str:
    """`cuda0_`: how the timeline columns of a device begin."""
    return name.replace(":", "") + "_"


def names_of(timeline: Sequence[Sample], infos: Sequence[Mapping[str, Any]] = ()) -> list[str]:
    """The devices that a timeline has columns of, and those of devices.json, in the order of their codes."""
    columns = {column for sample in timeline for column in sample}
    found = {f"{match[1]}:{match[2]}" for column in columns if (match := _COLUMN.match(column))}
    found |= {str(info["name"]) for info in infos if isinstance(info.get("name"), str) and device_code(info["name"])}
    return sorted(found, key=device_code)


def devices_of(timeline: Sequence[Sample], window: Window, snapshots: Sequence[tuple[float, Blocks, Ownership] | None],
               quality: Mapping[str, str]) -> tuple[Device, ...]:
    """Return the devices of a process; `snapshots`: its blocks and their owners at each compared snapshot, None: not known."""
    last = next((each[1].info for each in reversed(snapshots) if each is not None), {})
    found = []
    for name in names_of(timeline, _entries(last)):
        seen = [None if each is None else Seen(*each, _entry(each[1].info, name)) for each in snapshots]
        about = {key: value for key, value in last.items() if key != "devices"}
        found.append(Device(name, timeline, window, _entry(last, name), about, seen, quality.get(name, "unknown")))
    return tuple(found)


def _entries(said: Mapping[str, Any]) -> list[dict[str, Any]]:
    devices = said.get("devices")
    return [each for each in devices if isinstance(each, dict)] if isinstance(devices, list) else []


def _entry(said: Mapping[str, Any], name: str) -> dict[str, Any]:
    return next((each for each in _entries(said) if each.get("name") == name), {})


@dataclass(frozen=True, eq=False)
class Device:
    """One device; see the top of the module."""

    name: str
    timeline: Sequence[Sample]
    run_window: Window
    info: dict[str, Any] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    snapshots: Sequence[Seen | None] = ()
    use_quality: str = "unknown"

    @property
    def code(self) -> int:
        """Its code in the column `device` of a graph."""
        return device_code(self.name)

    def points(self, column: str) -> Points:
        """The (seconds, value) points of one column of this device; empty where it was not measured."""
        return layers.column(self.timeline, prefix_of(self.name) + column)

    @property
    def total_bytes(self) -> int | None:
        """Its memory; None where nobody said."""
        total = self.info.get("total_bytes")
        return total if isinstance(total, int) and total > 0 else None

    @cached_property
    def _wholes(self) -> dict[str, Points]:
        return waterfall.wholes(self.timeline, prefix_of(self.name))

    @cached_property
    def window(self) -> Window:
        """The judged part of the run: that of the process, without a start-up of the device that is still in it."""
        points = self._wholes["allocated"] or self._wholes["reserved"]
        return waterfall.after_start_up(points, self.run_window, self.total_bytes)

    @property
    def _owned(self) -> list[tuple[float, Owned]]:
        """What is allocated on it at the snapshots."""
        return [(each.t_s, owned) for each in self.snapshots
                if each is not None and (owned := each.ownership.of_device(self.name)) is not None]

    @cached_property
    def terms(self) -> dict[str, Term]:
        """Each of TERMS."""
        owned = self._owned
        courses = waterfall.courses(self.timeline, prefix_of(self.name), owned)
        found = {}
        for name, points in courses.items():
            term = self._term(name, points)
            is_line = name in PARTS[1:]  # a line rises beyond doubt, whatever it is drawn through
            if is_line and term.growth is not None and not waterfall.rises_at_snapshots(owned, name):
                term = term._replace(growth=None)
            found[name] = term._replace(is_interpolated=is_line)
        return found

    @cached_property
    def wholes(self) -> dict[str, Term]:
        """Each of WHOLES."""
        return {name: self._term(name, points) for name, points in self._wholes.items()}

    def _term(self, name: str, points: Points) -> Term:
        found = waterfall.judged(points, self.window, self.total_bytes, self.timeline)
        return Term(name, found.growth_bytes, points, found.growth, found.has_ended)

    @property
    def measure(self) -> str:
        """Which of WHOLES stands for the device: what is used where that is well known, else what its allocator holds.

        Where those stand still because the allocator had room from the start, and more and more of it is taken: that.
        """
        names = ("used", "reserved", "allocated") if self.use_quality in WELL_KNOWN else ("reserved", "allocated")
        known = [name for name in names if self.wholes[name].growth_bytes is not None] or ["reserved"]
        return next((name for name in known if self.wholes[name].growth is not None), known[0])

    @property
    def slope(self) -> Slope | None:
        """Its pace in the judged part of the run, in bytes a second, whether its growth matters or not."""
        growth = self.growth
        return growth.slope if growth else theil_sen(self.window.inside(self.wholes[self.measure].points))

    @property
    def growth(self) -> TermGrowth | None:
        """The growth of the device as a whole, if it matters and goes on."""
        return self.wholes[self.measure].growth

    @property
    def growth_bytes(self) -> int | None:
        """The growth of the device as a whole, whether it matters or not; None where it was not measured."""
        return self.wholes[self.measure].growth_bytes

    @property
    def explained_ratio(self) -> float | None:
        """Of its growth, the part in terms that name a cause: not outside, nor allocated without an owner; None: no growth."""
        if self.growth is None:
            return None
        known = sum(max(0, self.terms[name].growth_bytes or 0) for name in TERMS if name not in UNNAMED)
        return min(1.0, known / self.growth.bytes)

    @property
    def limit_bytes(self) -> int | None:
        """What the process can use of it: its memory, less what was used by others at the end; None where it is not known."""
        if self.total_bytes is None:
            return None
        used, own = self.points("used_bytes"), self._wholes["used"]
        others = max(0.0, used[-1][1] - own[-1][1]) if used and own and self.use_quality in WELL_KNOWN else 0.0
        return max(0, self.total_bytes - int(others))

    @property
    def layer(self) -> Layer:
        """Its part of the growth account; the terms that were measured add up to the growth of what they are parts of."""
        return Layer(self.name, self.growth_bytes, None, {name: self.terms[name].growth_bytes for name in TERMS})

    @property
    def unmeasured(self) -> list[str]:
        """What nobody measured of it, in words that continue "not measured: "."""
        found = [] if self._wholes["used"] else ["what the process uses outside torch's allocator (NVML)"]
        if not self._wholes["reserved"] and not self._wholes["allocated"]:
            found.append("what its allocator holds")
        seen = [each for each in self.snapshots if each is not None]
        if not any(each.blocks.has_map for each in seen):
            backend = self.about.get("backend", "native")
            found.append("the map of its blocks" + (f" ({backend} gives none)" if backend not in ("native", "") else ""))
        elif not any(each.ownership.is_by_block for each in seen):
            found.append("which tensor lies in which block")
        return found
