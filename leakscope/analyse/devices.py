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
    device.explained_ratio            of its growth, the part that lies in terms that are known; None: it did not grow
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from leakscope.analyse import layers
from leakscope.analyse.layers import Points, Window
from leakscope.analyse.ownership import Ownership
from leakscope.analyse.waterfall import TERMS, WHOLES, Term, TermGrowth
from leakscope.heap.devices import device_code, device_name

if TYPE_CHECKING:
    from leakscope.analyse.blocks import Blocks

Sample = dict[str, Any]

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
    def window(self) -> Window:
        """The judged part of the run."""
        return self.run_window

    @cached_property
    def terms(self) -> dict[str, Term]:
        """Each of TERMS."""
        return {name: Term(name) for name in TERMS}

    @cached_property
    def wholes(self) -> dict[str, Term]:
        """Each of WHOLES."""
        return {name: Term(name) for name in WHOLES}

    @property
    def growth(self) -> TermGrowth | None:
        """The growth of the device as a whole, if it matters and goes on."""
        return None

    @property
    def explained_ratio(self) -> float | None:
        """Of its growth, the part whose owner or cause is known."""
        return None
