"""Devices for the tests of detectors: series of the waterfall's terms, maps of blocks, settings. All of it is simulated.

    watched(outside=lambda t: (500 + 2 * t) * MIB)              one device, cuda:0, that was watched for 100 s
    watched(snapshots=[[segment(block(2 * MIB))], ...])         with the map of its blocks in each of the snapshots
    watched(columns={"device_allocs": lambda t: 40 * t})        with other columns of the device
    watched(process={"threads": 8}, packages={"torch": "2.13.0"}, libraries=["libnccl"], settings={...}, about={...})

A term is a number of bytes or a function of the seconds since the start; terms that are not given are 0, those that are None
were not measured. Snapshots lie evenly in the time. `ramp`, `plateau` and `noisy` are the courses that every class is tried
with: growth that goes on, growth that has ended, and ups and downs without growth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from leakscope.analyse import ownership, waterfall
from leakscope.analyse.devices import Device, Seen
from leakscope.analyse.waterfall import TERMS, WHOLES, Term
from leakscope.case import Case
from leakscope.heap.blocks import ALLOCATED, Blocks
from leakscope.heap.device_codes import device_code
from tests.detectors.cases import timeline
from tests.heaps import heap

MIB, GIB = 1 << 20, 1 << 30
SECONDS = 100.0
DEVICE_BYTES = 6 * GIB  # 1 % of it is about 64 MiB: the growth that matters (waterfall.least_growth)
PARTS = {"used": TERMS, "reserved": TERMS[1:], "active": TERMS[1:5], "allocated": TERMS[1:4]}
Course = float | None | Callable[[float], float]


def ramp(mib: float, start: float = 256) -> Callable[[float], float]:
    """Growth by so many MiB over the whole time."""
    return lambda t: (start + mib * t / SECONDS) * MIB


def plateau(mib: float, start: float = 256, ends_s: float = 35) -> Callable[[float], float]:
    """The same, but it ends early on."""
    return lambda t: (start + mib * min(1.0, t / ends_s)) * MIB


def noisy(mib: float, start: float = 256) -> Callable[[float], float]:
    """Ups and downs by so many MiB around a level."""
    return lambda t: (start + mib * math.sin(2.3 * t) * math.cos(0.71 * t)) * MIB


def steps(mib: float, every_s: float, start: float = 256) -> Callable[[float], float]:
    """A staircase: so many MiB at once, again and again."""
    return lambda t: (start + mib * (t // every_s)) * MIB


def block(size: float, kind: str = "owned", frames: int = -1, requested: float | None = None,
          address: int = 0) -> dict[str, Any]:
    """A block of so many bytes; `kind`: one of ownership.KINDS."""
    state = {"free": "inactive", "pending": "active_pending_free"}.get(kind, "active_allocated")
    return {"size": int(size), "requested_size": int(size if requested is None else requested), "state": state,
            "frames": frames, "kind": kind, **({"address": address} if address else {})}


def segment(*blocks: dict[str, Any], stream: int = 0, pool: tuple[int, int] = (0, 0), is_small: bool = False,
            is_expandable: bool = False, device: int = 0) -> dict[str, Any]:
    """A segment that consists of these blocks."""
    return {"device": device, "stream": stream, "segment_type": "small" if is_small else "large", "segment_pool_id": pool,
            "is_expandable": is_expandable, "total_size": sum(each["size"] for each in blocks), "blocks": [*blocks]}


def watched(*, snapshots: Sequence[Sequence[dict[str, Any]]] = (), each: Sequence[Mapping[str, Any]] = (),
            columns: Mapping[str, Course] | None = None, process: Mapping[str, Course] | None = None,
            packages: Mapping[str, str] | None = None, libraries: Sequence[str] = (), frames: Sequence[Any] = (),
            about: Mapping[str, Any] | None = None, info: Mapping[str, Any] | None = None, settings: Any = None,
            name: str = "cuda:0", quality: str = "exact", text: str = "module app", seconds: float = SECONDS,
            every_s: float = 2.0, is_joined: bool = False, **terms: Course) -> Case:
    """Return a case with one device; see the top of the module.

    `each`: what differs in devices.json between the snapshots. `is_joined`: the case makes its devices itself, of the columns
    and the maps alone; else the terms are as the test says, and blocks have the owners that it gives them.
    """
    unknown = set(terms) - set(TERMS)
    assert not unknown, f"{unknown} are no terms"
    courses = {term: _course(terms.get(term, 0)) for term in TERMS}
    prefix = name.replace(":", "") + "_"
    rows = timeline(seconds, every_s, **{**(process or {})},
                    **{prefix + column: value for column, value in {**_wholes(courses), **(columns or {})}.items()
                       if value is not None})
    said = {"format": 1, "provider": "recorded", "simulated": True, "torch": (packages or {}).get("torch", "2.13.0"),
            "backend": "native", "recording": "off", "settings": settings or {}, "libraries": [*libraries], "frames": [*frames],
            "devices": [{"name": name, "ordinal": int(name[-1]), "total_bytes": DEVICE_BYTES, **(info or {})}], **(about or {})}
    moments = [seconds * (place + 1) / (len(snapshots) + 1) for place in range(len(snapshots))]
    maps = [{**said, **(each[place] if each else {}), "segments": _placed(segments)}
            for place, segments in enumerate(snapshots)]
    graphs = [heap(text, t_s=t_s, info={"index": place + 1}) for place, t_s in enumerate(moments)]
    for graph, said_then in zip(graphs, maps):
        graph.devices = said_then
    case = Case(graphs, rows, {"pid": 7, "role": "main", "packages": {"torch": "2.13.0", **(packages or {})}})
    last = maps[-1] if maps else said
    about_it = {key: value for key, value in last.items() if key not in ("segments", "frames", "devices")}
    case.use_quality = {name: quality}
    if is_joined:
        return case
    seen = [_seen(t_s, each_map, name) for t_s, each_map in zip(moments, maps)]
    device = Device(name, rows, case.window, said["devices"][0], about_it, seen, quality)
    vars(device)["terms"] = {term: _term(device, term, courses[term]) for term in TERMS}
    vars(device)["wholes"] = {whole: _term(device, whole, _sum(courses, *PARTS[whole])) for whole in WHOLES}
    vars(case)["devices"] = (device,)
    return case


def _course(value: Course) -> Callable[[float], float] | None:
    if value is None or callable(value):
        return value
    return lambda t: float(value)


def _wholes(courses: Mapping[str, Callable[[float], float] | None]) -> dict[str, Course]:
    """The columns that the terms add up to."""
    return {"process_bytes" if whole == "used" else f"{whole}_bytes": _sum(courses, *PARTS[whole]) for whole in WHOLES} | {
        "inactive_split_bytes": courses["inactive_split"]}


def _sum(courses: Mapping[str, Callable[[float], float] | None], *names: str) -> Callable[[float], float] | None:
    parts = [courses[term] for term in names]
    return None if None in parts else lambda t: sum(part(t) for part in parts)


def _placed(segments: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The segments with addresses, one after the other."""
    found, at = [], 1 << 40
    for each in segments:
        found.append({"address": at, **each})
        at += max(each["total_size"], 2 * MIB) + 2 * MIB
    return found


def _seen(t_s: float, said: dict[str, Any], name: str) -> Seen:
    """A device in one snapshot, its blocks owned as the test says."""
    blocks = Blocks.of(said)
    kinds = [each["kind"] for part in said["segments"] for each in part["blocks"]]
    kind = np.array([ownership.KINDS.index(each) for each in kinds], np.uint8)
    mine = blocks.device == device_code(name)
    sizes = {word: int(blocks.size_bytes[mine & (kind == number)].sum()) for number, word in enumerate(ownership.KINDS)}
    counts = {word: int((mine & (kind == number)).sum()) for number, word in enumerate(ownership.KINDS)}
    owned = ownership.Owned(int(blocks.size_bytes[mine & (blocks.state == ALLOCATED)].sum()), sizes["owned"],
                            sizes["workspace"], counts["workspace"], sizes["private-pool"], sizes["unowned"])
    return Seen(t_s, blocks, ownership.Ownership(np.full(len(kind), -1), kind, {name: owned}), said["devices"][0])


def _term(device: Device, name: str, course: Callable[[float], float] | None) -> Term:
    points = [] if course is None else [(row["t_ns"] / 1e9, float(int(course(row["t_ns"] / 1e9)))) for row in device.timeline]
    found = waterfall.judged(points, device.window, device.total_bytes, device.timeline)
    return Term(name, found.growth_bytes, points, found.growth, found.has_ended)
