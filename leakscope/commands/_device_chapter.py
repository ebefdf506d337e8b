"""The chapter of a report on each device that a process used, put together from its case."""

from __future__ import annotations

from collections.abc import Sequence

from leakscope.analyse import cachekeys, fragmentation, stored
from leakscope.analyse.devices import Device, Seen
from leakscope.analyse.growth import PathTable
from leakscope.analyse.sites import Wanted
from leakscope.analyse.waterfall import TERMS, WHOLES, Term
from leakscope.case import Case
from leakscope.commands import _block_map
from leakscope.model import CacheRow, Location
from leakscope.report import DeviceChapter, DeviceOwner, DeviceTerm, Series

MOST_OWNERS, MOST_SITED = 60, 25  # owners that are told, and those of them whose allocation site is looked up; ours
MOST_CACHES = 60  # that are told; ours
MOST_POINTS = 400  # of a line
SERIES = ("process_bytes", "reserved_bytes", "allocated_peak_bytes", "allocated_bytes", "used_bytes")
PROVIDERS = ("cuda", "rocm", "xpu", "mps", "generic", "recorded")


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
    """Return the owners in the last snapshot, most bytes first, how many are left out, and the owner's row of each storage."""
    if not case.readings:
        return [], 0, {}
    table, before = case.readings[-1].table, _baseline(case, device)
    found, unnamed = stored.by_path(case.last, table, None if before is table else before, device.code,
                                    lambda node: _path(case, node))
    owners = [DeviceOwner(held.path, held.bytes, held.growth_bytes, len(held.nodes), _site(case, held, row < MOST_SITED))
              for row, held in enumerate(found[:MOST_OWNERS])]
    rows_of = {node: row for row, held in enumerate(found[:MOST_OWNERS]) for node in held.nodes.tolist()}
    return owners, len(found) - len(owners) + unnamed, rows_of


def _baseline(case: Case, device: Device) -> PathTable:
    """The paths of the snapshot that growth is counted from: the first one after the device's start-up, else the first."""
    settled = (reading.table for reading, t_s in zip(case.readings[:-1], case.times_s) if t_s >= device.window.start_s)
    return next(settled, case.readings[0].table)


def _path(case: Case, node: int) -> str:
    return _block_map.tensor_path(case, node) or "no owner that can be named"


def _site(case: Case, held: stored.Held, is_wanted: bool) -> Location | None:
    """The place where most of it was made, if the allocator recorded it or it was sampled."""
    return case.origins.of(Wanted(held.nodes, held.nodes)).first if is_wanted else None


# --- the map -------------------------------------------------------------------------------------------------------------


def _known(seen: Seen, owners: Sequence[DeviceOwner], rows_of: dict[int, int]) -> _block_map.Owners:
    """Who holds the blocks: the owners of the storages that lie in them."""
    return _block_map.Owners(tuple(owners), 0, stored.holders(seen.ownership.owner, rows_of), seen.ownership.is_by_block)


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
