"""The chapter of a report on each device that a process used, put together from its case."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from leakscope.analyse import cachekeys, fragmentation
from leakscope.analyse.blocks import Blocks
from leakscope.analyse.devices import Device, Seen
from leakscope.analyse.growth import PathTable
from leakscope.analyse.ownership import KINDS, Ownership
from leakscope.analyse.sites import Wanted
from leakscope.analyse.waterfall import TERMS, WHOLES, Term
from leakscope.case import Case
from leakscope.heap import layout
from leakscope.heap.graph import Array
from leakscope.model import CacheRow
from leakscope.report import (
    DeviceChapter,
    DeviceOwner,
    DeviceTerm,
    Fragmentation,
    PinningBlock,
    SegmentPart,
    SegmentRow,
    Series,
)

MOST_OWNERS, MOST_SITED = 60, 25  # owners that are told, and those of them whose allocation site is looked up; ours
MOST_CACHES, MOST_SEGMENTS, MOST_PARTS, MOST_PINS = 60, 24, 60, 12  # what a report takes; ours
MOST_POINTS = 400  # of a line
SERIES = ("process_bytes", "reserved_bytes", "allocated_peak_bytes", "allocated_bytes", "used_bytes")
PROVIDERS = ("cuda", "rocm", "xpu", "mps", "generic", "recorded")
_STORAGE = layout.NODE_KINDS.index("storage")
_STORED = re.compile(r"(\.<storage>)+$")


def chapters(case: Case) -> tuple[DeviceChapter, ...]:
    """Return a chapter for each device of a case, the one that grew most first; () on a host-only process."""
    devices = sorted(case.devices, key=lambda device: (-(device.growth_bytes or 0), device.code))
    rows = cachekeys.rows(case) if devices else []
    return tuple(_chapter(case, device, _caches(rows, device, devices)) for device in devices)


def _chapter(case: Case, device: Device, caches: tuple[CacheRow, ...]) -> DeviceChapter:
    owners, rows_of = _owners(case, device)
    last = device.snapshots[-1] if device.snapshots else None
    shown = owners[:MOST_OWNERS]
    segments = _segments(device, last, rows_of) if last else []
    provider = str(device.about.get("provider") or "")
    return DeviceChapter(
        name=device.name, model=str(device.info.get("model") or ""), total_bytes=device.total_bytes,
        provider=provider if provider in PROVIDERS else "", is_simulated=device.about.get("simulated") is True,
        use_quality=device.use_quality, growth_bytes=device.growth_bytes, explained_ratio=device.explained_ratio,
        terms=tuple(_term(device.terms[name], device) for name in TERMS),
        wholes=tuple(_term(device.wholes[name], device) for name in WHOLES),
        series=_series(device), owners=tuple(shown), owners_left_out=len(owners) - len(shown), caches=caches,
        segments=tuple(segments[:MOST_SEGMENTS]), segments_left_out=sum(row.count for row in segments[MOST_SEGMENTS:]),
        fragmentation=_fragmentation(device, last, rows_of, shown) if last and last.blocks.has_map else None,
        settings=_settings(device), notes=_notes(device), load_fit=_load_fit(case, device))


def _caches(rows: Sequence[CacheRow], device: Device, devices: Sequence[Device]) -> tuple[CacheRow, ...]:
    """The caches that hold memory of the device; with the first device also those that hold none of any, and grew."""
    names = {each.name for each in devices}
    own = [row for row in rows if row.retained_bytes.get(device.name)
           or device is devices[0] and not any(row.retained_bytes.get(name) for name in names) and _has_grown(row)]
    return tuple(own[:MOST_CACHES])


def _has_grown(row: CacheRow) -> bool:
    """True if it has more entries than at first, or has thrown out more: those of a bounded cache cost what they held."""
    return any((numbers[-1] or 0) > (numbers[0] or 0) for numbers in (row.entries, row.evictions) if numbers)


def _term(term: Term, device: Device) -> DeviceTerm:
    """A term as its growth and what there was before it; the end of its course, less its growth, is its start."""
    inside = device.window.inside(term.points)
    if term.growth_bytes is None or not inside:
        return DeviceTerm(term.name, None, term.growth_bytes, term.is_interpolated)
    return DeviceTerm(term.name, max(0, round(inside[-1][1]) - term.growth_bytes), term.growth_bytes, term.is_interpolated)


# --- over time -----------------------------------------------------------------------------------------------------------


def _series(device: Device) -> tuple[Series, ...]:
    found = []
    for name in SERIES:
        points = device.points(name)
        if points:
            found.append(Series(name, "bytes", tuple(points[::max(1, -(-len(points) // MOST_POINTS))])))
    largest = [(seen.t_s, float(fragmentation.largest_free(seen.blocks, device.code)))
               for seen in device.snapshots if seen is not None and seen.blocks.has_map]
    return (*found, Series("largest_free_bytes", "bytes", tuple(largest), is_sparse=True)) if largest else tuple(found)


def _load_fit(case: Case, device: Device) -> str:
    fit = case.load_fit(device.name)
    return fit.sentence(f"on {device.name}", case.unit_of_work) if fit is not None else ""


# --- owners --------------------------------------------------------------------------------------------------------------


def _owners(case: Case, device: Device) -> tuple[list[DeviceOwner], dict[int, int]]:
    """Return the owners in the last snapshot, most bytes first, and the row of the owner of each storage on the device.

    Storages are gathered by the path that leads to them; each counts once, at its best-named path, so the owners add up to
    what Python holds.
    """
    if not case.readings:
        return [], {}
    graph, table, first = case.last, case.readings[-1].table, _baseline(case, device)
    nodes = np.flatnonzero((graph.kind == _STORAGE) & (graph.device == device.code))
    if not len(nodes):
        return [], {}
    classes, inverse = np.unique(table.class_of[nodes], return_inverse=True)
    by_path: dict[str, list[int]] = {}
    for place in range(len(classes)):
        by_path.setdefault(_path(case, nodes, inverse, place), []).append(place)
    found = []
    for path, places in by_path.items():
        mine = nodes[np.isin(inverse, places)]
        rows = [int(classes[place]) for place in places]
        found.append((DeviceOwner(path, int(graph.shallow_bytes[mine].sum()), _growth(device, table, first, rows), len(mine)),
                      mine))
    found.sort(key=lambda each: (-each[0].retained_bytes, each[0].path))
    rows_of = {int(node): row for row, (_, mine) in enumerate(found[:MOST_OWNERS]) for node in mine}
    return [_with_site(case, owner, mine, row < MOST_SITED) for row, (owner, mine) in enumerate(found)], rows_of


def _baseline(case: Case, device: Device) -> PathTable:
    """The paths of the snapshot that growth is counted from: the first one after the device's start-up, else the first."""
    settled = (reading.table for reading, t_s in zip(case.readings[:-1], case.times_s) if t_s >= device.window.start_s)
    return next(settled, case.readings[0].table)


def _path(case: Case, nodes: Array, inverse: Array, place: int) -> str:
    """The path of a class of storages in words, without the storage itself: the tensor is what a person knows."""
    path = case.path(int(nodes[int(np.argmax(inverse == place))]))
    return _STORED.sub("", path.text) if path is not None else "no owner that can be named"


def _growth(device: Device, table: PathTable, first: PathTable, rows: Sequence[int]) -> int | None:
    """What these path classes have more on the device than in an earlier snapshot; None where there is one alone."""
    if first is table:
        return None
    after, before = table.device_bytes.get(device.code), first.device_bytes.get(device.code)
    grown = 0
    for row in rows:
        if row < 0:
            return None
        old = int(np.searchsorted(first.key, table.key[row]))
        was = int(before[old]) if before is not None and old < len(first.key) and first.key[old] == table.key[row] else 0
        grown += (int(after[row]) if after is not None else 0) - was
    return grown


def _with_site(case: Case, owner: DeviceOwner, nodes: Array, is_wanted: bool) -> DeviceOwner:
    """The owner with the place where most of its memory was made, if the allocator recorded it or it was sampled."""
    site = case.origins.of(Wanted(nodes, nodes)).first if is_wanted else None
    return DeviceOwner(owner.path, owner.retained_bytes, owner.growth_bytes, owner.count, site)


# --- segments ------------------------------------------------------------------------------------------------------------


def _segments(device: Device, seen: Seen, rows_of: dict[int, int]) -> list[SegmentRow]:
    """The segments of the device, those with most free memory in pieces first; those that are alike as one row."""
    blocks, ownership = seen.blocks, seen.ownership
    pinned = {each.segment for each in fragmentation.pinned(blocks, device.code) if each.kept_bytes >= each.used_bytes}
    found: list[SegmentRow] = []
    alike: dict[SegmentRow, int] = {}
    for segment, rows in fragmentation.segment_map(blocks, device.code):
        row = SegmentRow(int(blocks.segments.total_bytes[segment]), int(blocks.segments.stream[segment]),
                         _pool(blocks, segment), bool(blocks.segments.is_expandable[segment]),
                         _parts(blocks, ownership, rows, rows_of, segment in pinned))
        row = replace(row, parts=row.thinned(MOST_PARTS))
        if len(row.parts) == 1 and row in alike:
            found[alike[row]] = replace(row, count=found[alike[row]].count + 1)
            continue
        if len(row.parts) == 1:
            alike[row] = len(found)
        found.append(row)
    return found


def _parts(blocks: Blocks, ownership: Ownership, rows: Array, rows_of: dict[int, int],
           is_pinned: bool) -> tuple[SegmentPart, ...]:
    return tuple(SegmentPart(KINDS[kind], size, rows_of.get(owner) if owner >= 0 else None, is_pinned and KINDS[kind] != "free")
                 for kind, size, owner in zip(ownership.kind[rows].tolist(), blocks.size_bytes[rows].tolist(),
                                              ownership.owner[rows].tolist(), strict=True))


def _pool(blocks: Blocks, segment: int) -> str:
    number = int(blocks.segments.pool[segment])
    return ".".join(map(str, blocks.pools[number])) if number else ""


def _fragmentation(device: Device, seen: Seen, rows_of: dict[int, int], owners: Sequence[DeviceOwner]) -> Fragmentation:
    """What is free, and the segments in which blocks in use keep most of it."""
    blocks = seen.blocks
    totals = blocks.totals(device.code)
    pinned = fragmentation.pinned(blocks, device.code)
    pins = []
    for each in pinned[:MOST_PINS]:
        row, share = _most_of(seen, each.rows, rows_of)
        path, site = (owners[row].path, owners[row].site) if row is not None else ("", None)
        whole = int(blocks.segments.total_bytes[each.segment])
        pins.append(PinningBlock(each.used_bytes, whole, each.kept_bytes, path, site, share))
    return Fragmentation(totals.inactive_split, totals.inactive_split + totals.releasable,
                         fragmentation.largest_free(blocks, device.code), tuple(pins), len(pinned) - len(pins))


def _most_of(seen: Seen, rows: Array, rows_of: dict[int, int]) -> tuple[int | None, float | None]:
    """Return who holds most of some blocks (row of the owners), and which part of their bytes; (None, None) for nobody."""
    held: Counter[int] = Counter()
    for owner, size in zip(seen.ownership.owner[rows].tolist(), seen.blocks.size_bytes[rows].tolist(), strict=True):
        if owner in rows_of:
            held[rows_of[owner]] += size
    if not held:
        return None, None
    row, size = held.most_common(1)[0]
    return row, size / int(seen.blocks.size_bytes[rows].sum())


# --- how it was seen -----------------------------------------------------------------------------------------------------


def _settings(device: Device) -> tuple[tuple[str, str], ...]:
    about = device.about
    named = (("Provider", "provider"), ("PyTorch", "torch"), ("Allocator", "backend"), ("Recording", "recording"))
    found = [(word, str(about[key])) for word, key in named if about.get(key)]
    capability = device.info.get("capability")
    if isinstance(capability, list):
        found.append(("Capability", ".".join(map(str, capability))))
    settings = about.get("settings")
    found += [(str(key), str(value)) for key, value in sorted(settings.items())] if isinstance(settings, dict) else []
    libraries = about.get("libraries")
    if isinstance(libraries, list) and libraries:
        found.append(("GPU libraries", ", ".join(map(str, libraries))))
    return tuple(found)


def _notes(device: Device) -> tuple[str, ...]:
    notes = device.about.get("notes")
    return (*(f"Not measured: {what}." for what in device.unmeasured),
            *(str(note) for note in (notes if isinstance(notes, list) else [])))
