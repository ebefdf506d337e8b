"""devices.json of a snapshot (agent/format.py): what torch's allocator said of each device just before the walk.

It never stops a report: a file that is damaged or of a later format is no device data, and says why in one sentence.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from leakscope.agent import format as layout
from leakscope.heap.graph import Array

DEVICES_FILE = getattr(layout, "DEVICES_FILE", "devices.json")
DEVICES_FORMAT = 1
XPU, MPS = 128, 192  # codes of graph.device: 0 host, 1 + N cuda:N, 128 + N xpu:N, 192 mps:0


def device_name(code: int) -> str:
    """`host`, `cuda:0`, `xpu:1`, `mps:0`: the device that a value of the column `device` stands for."""
    if code >= MPS:
        return f"mps:{code - MPS}"
    if code >= XPU:
        return f"xpu:{code - XPU}"
    return f"cuda:{code - 1}" if code else "host"


def device_code(name: str) -> int:
    """The code of a device by its name; ROCm devices are called cuda, too. 0 for the host and for what is not known."""
    kind, _, number = name.partition(":")
    if kind not in _FIRST or not (number or "0").isdecimal():
        return 0
    return _FIRST[kind] + int(number or 0)


_FIRST = {"cuda": 1, "xpu": XPU, "mps": MPS}


def read(folder: Path) -> tuple[dict[str, Any] | None, str]:
    """Return devices.json of a snapshot folder, and why it cannot be used; (None, "") where there is none."""
    file = folder / DEVICES_FILE
    try:
        found = json.loads(file.read_bytes())
    except FileNotFoundError:
        return None, ""
    except (OSError, ValueError) as error:
        return None, f"What the devices' allocators said at the snapshot {folder.name} cannot be read: {error}."
    if not isinstance(found, dict) or found.get("format") != DEVICES_FORMAT:
        said = found.get("format") if isinstance(found, dict) else type(found).__name__
        return None, (f"What the devices' allocators said at the snapshot {folder.name} is of format {said!r}; this version "
                      f"reads format {DEVICES_FORMAT}.")
    if not isinstance(found.get("devices", []), list) or not isinstance(found.get("segments") or [], list):
        return None, f"What the devices' allocators said at the snapshot {folder.name} is of another shape than expected."
    return found, ""


class Live(NamedTuple):
    """The blocks of all devices in which memory is in use, by address: (B,) each; `frames`: row of "frames", -1 none."""

    address: Array
    end: Array
    device: Array
    frames: Array

    def rows(self, addresses: Array) -> Array:
        """(K,) the block that holds each address, -1 for none: storages of sub-allocators do not begin where a block does."""
        if not len(self.address):
            return np.full(len(addresses), -1, np.int64)
        place = np.searchsorted(self.address, addresses, side="right").astype(np.int64) - 1
        inside = (place >= 0) & (addresses < self.end[np.maximum(place, 0)])
        return np.where(inside, place, -1)


def live(devices: dict[str, Any]) -> Live:
    """Return the blocks in use; what has no address, or none that can be told, is left out."""
    rows: list[tuple[int, int, int, int]] = []
    for segment in devices.get("segments") or []:
        if isinstance(segment, dict):
            rows += _blocks_in_use(segment)
    found = np.array(sorted(rows), np.uint64).reshape(len(rows), 4) if rows else np.zeros((0, 4), np.uint64)
    return Live(found[:, 0], found[:, 1], found[:, 2].astype(np.uint8), found[:, 3].view(np.int64) - 1)


def _blocks_in_use(segment: dict[str, Any]) -> list[tuple[int, int, int, int]]:
    device = segment.get("device", 0)
    code = device_code(device) if isinstance(device, str) else 1 + device if isinstance(device, int) else 0
    at = segment.get("address", 0)
    found = []
    for block in segment.get("blocks") or []:
        if not isinstance(block, dict) or not isinstance(block.get("size"), int):
            continue
        at = block.get("address", at)  # torch 2.0 gives none: the blocks of a segment follow each other
        if str(block.get("state", "")).startswith("active_allocated"):
            frames = block.get("frames", -1)
            found.append((at, at + block["size"], code, 1 + frames if isinstance(frames, int) and frames >= 0 else 0))
        at += block["size"]
    return found
