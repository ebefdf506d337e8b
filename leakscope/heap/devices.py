"""What torch's allocator said of each device just before a walk (devices.json, agent/format.py), joined with the walk."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from leakscope.heap.graph import Array, HeapGraph

_SHAPES = {"devices": list, "segments": list, "frames": list, "libraries": list, "notes": list, "settings": dict,
           "host_stats": dict}


def has_shape(said: dict[str, Any]) -> bool:
    """True if the fields of devices.json that are there are what they have to be; what is inside them is looked at later."""
    shaped = all(isinstance(said.get(name), (kind, type(None))) for name, kind in _SHAPES.items())
    return shaped and all(isinstance(segment.get("blocks"), (list, type(None)))
                          for segment in said.get("segments") or [] if isinstance(segment, dict))


def joined(graph: HeapGraph, said: dict[str, Any]) -> HeapGraph:
    """Return a snapshot with what the allocators of its devices said: the origin of each block that a storage lies in, and,
    where the device is simulated, host storages in its blocks as memory of that device.
    """
    graph = replace(graph, devices=said)
    blocks = graph.blocks
    if blocks is None or not len(graph.storage_node):
        return graph
    rows = blocks.holding(graph.storage_address)
    known = (rows >= 0) & blocks.is_used[rows] if len(blocks) else np.zeros(len(rows), bool)
    nodes, rows = graph.storage_node[known].astype(np.int64), rows[known]
    if not len(nodes):
        return graph
    if said.get("simulated") is True:
        graph.device = graph.device.copy()  # of a file that is only mapped
        graph.stand_in_node = nodes[graph.device[nodes] == 0]
        graph.device[nodes] = np.where(graph.device[nodes] == 0, blocks.device[rows], graph.device[nodes])
    return _with_sites(graph, said.get("frames") or [], nodes, blocks.site[rows])


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
