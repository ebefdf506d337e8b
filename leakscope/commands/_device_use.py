"""What the driver said of the devices of a session, put into the timeline of one of its processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from leakscope.analyse import device_use
from leakscope.analyse.device_use import DeviceUse
from leakscope.heap.load import Stored
from leakscope.session import Session, SessionProcess

Sample = dict[str, Any]


class Used(NamedTuple):
    """The timeline with the columns of NVML (analyse/device_use.py), and what is used of each device, by its name."""

    timeline: list[Sample]
    uses: dict[str, DeviceUse]

    @property
    def quality(self) -> dict[str, str]:
        """How well the use of each device is known."""
        return {name: use.quality for name, use in self.uses.items()}


def of_process(session: Session, process: SessionProcess, timeline: Sequence[Sample], snapshots: Sequence[Stored]) -> Used:
    """Return what a process used; without a row of NVML the timeline is as it was, and nothing is used."""
    rows = session.device_use()
    if not rows or not timeline:
        return Used(list(timeline), {})
    said = next((found for each in reversed(snapshots) if (found := each.devices) is not None), {})
    infos = [each for each in said.get("devices") or () if isinstance(each, dict)]
    nspid, visible = device_use.of_process(session.info.get("gpu"), process.pid)
    uses = device_use.uses(timeline, rows, infos, process.pid, nspid, visible)
    return Used(device_use.with_columns(timeline, uses.values()), uses)
