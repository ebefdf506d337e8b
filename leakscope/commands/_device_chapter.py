"""The chapter of a report on each device that a process used, put together from its case."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from leakscope.analyse import cachekeys, fragmentation
from leakscope.analyse.devices import Device, Seen
from leakscope.analyse.growth import PathTable
from leakscope.analyse.sites import Wanted
from leakscope.analyse.waterfall import TERMS, WHOLES, Term
from leakscope.case import Case
from leakscope.commands import _block_map
from leakscope.heap import layout
from leakscope.heap.graph import Array
from leakscope.model import CacheRow
from leakscope.report import DeviceChapter, DeviceOwner, DeviceTerm, Series

MOST_OWNERS, MOST_SITED = 60, 25  # owners that are told, and those of them whose allocation site is looked up; ours
MOST_NAMED = 400  # path classes that are named, those with most bytes: a name takes about a millisecond; ours
MOST_CACHES = 60  # that are told; ours
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
    owners, owners_left_out, rows_of = _owners(case, device)
    last = device.snapshots[-1] if device.snapshots else None
    known = _known(last, owners, rows_of) if last else None
    segments, left_out = _block_map.segments(last, device.code, known) if last and known else ((), 0)
    provider = str(device.about.get("provider") or "")
    return DeviceChapter(
        name=device.name, model=str(device.info.get("model") or ""), total_bytes=device.total_bytes,
        provider=provider if provider in PROVIDERS else "", is_simulated=device.about.get("simulated") is True,
        use_quality=device.use_quality, growth_bytes=device.growth_bytes, explained_ratio=device.explained_ratio,
        terms=tuple(_term(device.terms[name], device) for name in TERMS),
        wholes=tuple(_term(device.wholes[name], device) for name in WHOLES),
        series=_series(device), owners=tuple(owners), owners_left_out=owners_left_out, caches=caches,
        segments=segments, segments_left_out=left_out,
        fragmentation=_block_map.free_memory(last, device.code, known) if last and known and last.blocks.has_map else None,
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


def _owners(case: Case, device: Device) -> tuple[list[DeviceOwner], int, dict[int, int]]:
    """Return the owners in the last snapshot, most bytes first, how many are left out, and the owner's row of each storage.

    Storages are gathered by the path that leads to them; each counts once, at its best-named path, so the owners add up to
    what Python holds.
    """
    if not case.readings:
        return [], 0, {}
    graph, table, first = case.last, case.readings[-1].table, _baseline(case, device)
    nodes = np.flatnonzero((graph.kind == _STORAGE) & (graph.device == device.code))
    if not len(nodes):
        return [], 0, {}
    classes, members = _by_class(table.class_of[nodes], nodes)
    sizes = [int(graph.shallow_bytes[mine].sum()) for mine in members]
    order = sorted(range(len(classes)), key=lambda place: -sizes[place])[:MOST_NAMED]
    by_path: dict[str, list[int]] = {}
    for place in order:
        by_path.setdefault(_path(case, int(members[place][0])), []).append(place)
    found = []
    for path, places in by_path.items():
        grown = _growth(device, table, first, [classes[place] for place in places])
        mine = np.concatenate([members[place] for place in places])
        found.append((DeviceOwner(path, sum(sizes[place] for place in places), grown, len(mine)), mine))
    found.sort(key=lambda each: (-each[0].retained_bytes, each[0].path))
    shown = found[:MOST_OWNERS]
    rows_of = {node: row for row, (_, mine) in enumerate(shown) for node in mine.tolist()}
    owners = [_with_site(case, owner, mine, row < MOST_SITED) for row, (owner, mine) in enumerate(shown)]
    return owners, len(found) - len(shown) + len(classes) - len(order), rows_of


def _by_class(class_of: Array, nodes: Array) -> tuple[list[int], list[Array]]:
    """Return the path classes of some nodes, and the nodes of each."""
    order = np.argsort(class_of, kind="stable")
    classes, first = np.unique(class_of[order], return_index=True)
    return classes.tolist(), np.split(nodes[order], first[1:])


def _baseline(case: Case, device: Device) -> PathTable:
    """The paths of the snapshot that growth is counted from: the first one after the device's start-up, else the first."""
    settled = (reading.table for reading, t_s in zip(case.readings[:-1], case.times_s) if t_s >= device.window.start_s)
    return next(settled, case.readings[0].table)


def _path(case: Case, node: int) -> str:
    """The path of a storage in words, without the storage itself: the tensor is what a person knows."""
    path = case.path(node)
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


# --- the map -------------------------------------------------------------------------------------------------------------


def _known(seen: Seen, owners: Sequence[DeviceOwner], rows_of: dict[int, int]) -> _block_map.Owners:
    """Who holds the blocks: the owners of the storages that lie in them."""
    nodes = seen.ownership.owner
    row_of = {row: rows_of[node] for row in np.flatnonzero(nodes >= 0).tolist() if (node := int(nodes[row])) in rows_of}
    return _block_map.Owners(tuple(owners), 0, row_of, seen.ownership.is_by_block)


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
