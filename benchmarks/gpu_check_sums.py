"""What the checks on a GPU compute from what they measured: no device is needed for it, and tests run it without one."""

from __future__ import annotations

import io
import re
import tarfile
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

MIB = 1 << 20
PICKLE_BYTES = 20 * MIB  # the largest fixture that is kept
BUNDLE_BYTES = 15 * MIB  # of all fixtures, compressed: what one file may be that comes back from a lent machine
_LIBRARY = re.compile(r".*/(?:site|dist)-packages/|.*/(?=python3\.\d+/)")


def masked(value: Any) -> Any:
    """A copy of a snapshot in which no file name says where on this machine it lies."""
    if isinstance(value, Mapping):
        return {key: shown_file(each) if key == "filename" and isinstance(each, str) else masked(each)
                for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(masked, value))
    return value


def shown_file(path: str) -> str:
    """The part of a path behind site-packages or the folder of the standard library; of others the name."""
    if not path.startswith("/"):
        return path
    return _LIBRARY.sub("", path) if _LIBRARY.match(path) else path.rsplit("/", 1)[1]


def key_sets(snapshot: Mapping[str, Any]) -> dict[str, list[str]]:
    """Which keys and words a memory snapshot has, at each level."""
    segments = snapshot.get("segments") or []
    blocks = [block for segment in segments for block in segment.get("blocks") or ()]
    traces = [entry for device in snapshot.get("device_traces") or () for entry in device]
    frames = [frame for each in (*segments, *blocks, *traces) for frame in each.get("frames") or ()]
    found = {"snapshot": keys([snapshot]), "segment": keys(segments), "block": keys(blocks), "trace": keys(traces),
             "frame": keys(frames), "settings": keys([snapshot.get("allocator_settings") or {}])}
    words = {"states": {str(block.get("state")) for block in blocks}, "actions": {str(entry.get("action")) for entry in traces},
             "segment_types": {str(segment.get("segment_type")) for segment in segments}}
    return {**found, **{name: sorted(each) for name, each in words.items()}}


def keys(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """All keys that any of the rows has."""
    return sorted({str(key) for row in rows for key in row})


def explained(segments: Sequence[Mapping[str, Any]], storages: Iterable[tuple[int, int]], quantum: int) -> dict[str, int]:
    """Bytes of the allocated blocks: owned by a storage that lies in them, of the size of a workspace, and the rest.

    `storages`: (address, bytes); one of 0 bytes, or that lies in no block, owns nothing.
    """
    blocks = sorted((int(block["address"]), int(block["size"])) for segment in segments for block in segment["blocks"]
                    if block["state"] == "active_allocated")
    starts, owned = [start for start, _ in blocks], set()
    for address, size in storages:
        place = bisect_right(starts, address) - 1
        if size > 0 and place >= 0 and address < starts[place] + blocks[place][1]:
            owned.add(place)
    sums = {"owned": 0, "workspaces": 0, "unowned": 0, "allocated": 0}
    for place, (_, size) in enumerate(blocks):
        kind = "owned" if place in owned else "workspaces" if size == quantum else "unowned"
        sums[kind] += size
        sums["allocated"] += size
    return sums


def workspace_quantum(capability: Sequence[int]) -> int:
    """Bytes of a cuBLAS workspace: 32 MiB on Hopper and what came after, less before (knowledge page "gpu", finding 4)."""
    return 33_554_432 if tuple(capability) >= (9, 0) else 8_519_680


def drift(values: Sequence[float]) -> float:
    """The largest less the smallest; 0 of none."""
    return max(values, default=0) - min(values, default=0)


def slope_ends(values: Sequence[float]) -> float:
    """Growth a step, from the first to the last; 0 of fewer than two."""
    return (values[-1] - values[0]) / (len(values) - 1) if len(values) > 1 else 0.0


def pinned(stats: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """(held, in use) of pinned host memory by host_memory_stats, whose keys changed their meaning (knowledge page, 1.1)."""
    def current(name: str) -> int | None:
        nested = stats.get(name)
        value = stats.get(f"{name}.current", nested.get("current") if isinstance(nested, dict) else None)
        return value if isinstance(value, int) else None

    has_requests = current("active_bytes") is not None
    held = current("allocated_bytes") if has_requests else current("reserved_bytes")
    return held, current("active_bytes") if has_requests else current("allocated_bytes")


def status_bytes(text: str, name: str) -> int | None:
    """A field of /proc/self/status in bytes."""
    return next((int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith(name + ":")), None)


def zombies(segments: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Bytes reserved by private pools in which nothing is in use, by pool."""
    held: dict[str, int] = {}
    used: dict[str, int] = {}
    for segment in segments:
        pool = tuple(segment.get("segment_pool_id") or (0, 0))
        if pool != (0, 0):
            name = f"{pool[0]}.{pool[1]}"
            held[name] = held.get(name, 0) + int(segment["total_size"])
            used[name] = used.get(name, 0) + int(segment.get("active_size", 0))
    return {name: size for name, size in held.items() if not used[name]}


def bundled(files: Sequence[Path], target: Path, most_bytes: int = BUNDLE_BYTES) -> list[str]:
    """Write the files into one tar.gz of at most so many bytes, small ones first; return the names of those left out."""
    left_out, kept = [], sorted(files, key=lambda file: file.stat().st_size)
    while True:
        content = io.BytesIO()
        with tarfile.open(fileobj=content, mode="w:gz") as tar:
            for file in kept:
                tar.add(file, file.name)
        if content.tell() <= most_bytes or not kept:
            break
        left_out.append(kept.pop().name)
    if kept:
        draft = target.with_name(f".{target.name}")
        draft.write_bytes(content.getvalue())
        draft.replace(target)
    return left_out
