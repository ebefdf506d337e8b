"""What torch's allocator said of each device just before a walk (devices.json, agent/format.py), joined with the walk."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from leakscope.heap.graph import Array, HeapGraph

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
    code = _FIRST[kind] + int(number or 0)
    return code if code <= _LAST[kind] else 0


_FIRST = {"cuda": 1, "xpu": XPU, "mps": MPS}
_LAST = {"cuda": XPU - 1, "xpu": MPS - 1, "mps": 255}
_SPACE = 1 << 63  # no address, no size and no row is as large
_SHAPES = {"devices": list, "segments": list, "frames": list, "libraries": list, "notes": list, "settings": dict,
           "host_stats": dict}


def has_shape(said: dict[str, Any]) -> bool:
    """True if the fields of devices.json that are there are what they have to be; what is inside them is looked at later."""
    shaped = all(isinstance(said.get(name), (kind, type(None))) for name, kind in _SHAPES.items())
    return shaped and all(isinstance(segment.get("blocks"), (list, type(None)))
                          for segment in said.get("segments") or [] if isinstance(segment, dict))


def _is_number(value: Any) -> bool:
    return type(value) is int and 0 <= value < _SPACE


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


def live(said: dict[str, Any]) -> Live:
    """Return the blocks in use; one that has no size or no address counts as not there."""
    rows: list[int] = []
    codes = _codes(said)
    for segment in said.get("segments") or []:
        if isinstance(segment, dict):
            rows += _in_use(segment, codes)
    found = np.array(rows, np.uint64).reshape(-1, 4)
    found = found[np.argsort(found[:, 0], kind="stable")]
    return Live(found[:, 0].copy(), found[:, 1], found[:, 2].astype(np.uint8), found[:, 3].astype(np.int64) - 1)


def _codes(said: dict[str, Any]) -> dict[int, int]:
    """The code of each device by its ordinal; what is named nowhere is one of CUDA's, or of XPU's where they wrote it."""
    first = XPU if said.get("provider") == "xpu" else 1
    codes = {ordinal: first + ordinal for ordinal in range(16)}
    for device in said.get("devices") or []:
        if isinstance(device, dict) and isinstance(device.get("ordinal"), int) and device_code(str(device.get("name"))):
            codes[device["ordinal"]] = device_code(str(device["name"]))
    return codes


def _in_use(segment: dict[str, Any], codes: dict[int, int]) -> list[int]:
    """Four numbers for each block: where it begins and ends, its device, 1 + the row of its frames (0: none)."""
    ordinal, at = segment.get("device", 0), segment.get("address", 0)
    code, at = codes.get(ordinal, 0) if _is_number(ordinal) else 0, at if _is_number(at) else 0
    found: list[int] = []
    for block in segment.get("blocks") or []:
        if not isinstance(block, dict) or not _is_number(block.get("size")):
            continue
        given = block.get("address", at)  # torch 2.0 gives none: the blocks of a segment follow each other
        at = given if _is_number(given) else at
        if code and at > 0 and block["size"] > 0 and str(block.get("state", "")) != "inactive":
            frames = block.get("frames", -1)
            found += (at, at + block["size"], code, 1 + frames if _is_number(frames) else 0)
        at += block["size"]
    return found


def joined(graph: HeapGraph, said: dict[str, Any]) -> HeapGraph:
    """Return a snapshot with what the allocators of its devices said: the origin of each block that a storage lies in, and,
    where the device is simulated, host storages in its blocks as memory of that device.
    """
    graph = replace(graph, devices=said)
    if not len(graph.storage_node):
        return graph
    blocks = live(said)
    rows = blocks.rows(graph.storage_address)
    nodes, rows = graph.storage_node[rows >= 0].astype(np.int64), rows[rows >= 0]
    if not len(nodes):
        return graph
    if said.get("simulated") is True:
        graph.device = graph.device.copy()  # of a file that is only mapped
        graph.stand_in_node = nodes[graph.device[nodes] == 0]
        graph.device[nodes] = np.where(graph.device[nodes] == 0, blocks.device[rows], graph.device[nodes])
    return _with_sites(graph, said.get("frames") or [], nodes, blocks.frames[rows])


def _with_sites(graph: HeapGraph, frames: list[Any], nodes: Array, rows: Array) -> HeapGraph:
    """Take the allocation frames of the blocks in as sites, each once."""
    known = (rows >= 0) & (rows < len(frames))
    if not known.any():
        return graph
    wanted, place = np.unique(rows[known], return_inverse=True)
    first = len(graph.sites)
    graph.sites = [*graph.sites, *(_site(frames[row]) for row in wanted.tolist())]
    graph.block_site = np.zeros(graph.node_count, np.uint32)
    graph.block_site[nodes[known]] = first + place
    return graph


def _site(stack: Any) -> dict[str, Any] | None:
    """A row of `sites` for a stack of the allocator; None for one that cannot be read."""
    rows = [[str(frame[0]), frame[1], str(frame[2])] for frame in stack if isinstance(frame, (list, tuple))
            and len(frame) == 3 and isinstance(frame[1], int)] if isinstance(stack, (list, tuple)) else []
    return {"frames": rows, "bytes": 0, "count": 0} if rows else None
