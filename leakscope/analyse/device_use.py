"""Who uses a device: what NVML says of it, put beside what the process itself says of its allocator.

NVML names processes as the machine's first PID namespace does, so that in a container the own pid may be missing from its
lists (NVIDIA/nvidia-docker#1483); which of the listed processes is the observed one is then found by what it uses. How good the
answer is, is a word: "exact" (the pid, or the only process), "matched" (by value), "approximate" (of the device as a whole),
"unknown".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Sample = dict[str, Any]

EXACT, MATCHED, APPROXIMATE, UNKNOWN = "exact", "matched", "approximate", "unknown"


def merged(timeline: Sequence[Sample], rows: Sequence[Sample], infos: Sequence[dict[str, Any]], pid: int,
           nspid: Sequence[int] = (), visible: str | None = None) -> tuple[list[Sample], dict[str, str]]:
    """Return the timeline with the columns cudaN_used_bytes and cudaN_process_bytes, and how good they are by device name.

    Args:
        timeline: samples of one process.
        rows: `Session.device_use()`, oldest first.
        infos: "devices" of the last devices.json; empty where there is none.
        pid: of the process, as it sees itself.
        nspid: its numbers in the namespaces around it.
        visible: CUDA_VISIBLE_DEVICES of the process, where known.

    A sample gets the numbers of the row nearest to it in time, if it is the nearest to that row, too: nothing is interpolated.
    """
    return list(timeline), {}
