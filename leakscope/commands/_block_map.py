"""A block map as the chapter of a report shows it: segments, what pins them, and where blocks come from."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from leakscope.analyse import fragmentation
from leakscope.analyse.devices import Seen
from leakscope.analyse.ownership import KINDS, WORKSPACE
from leakscope.analyse.sites import own_frame
from leakscope.case import Case
from leakscope.heap.blocks import ALLOCATED, FREE, Blocks
from leakscope.model import Location
from leakscope.report import DeviceOwner, DeviceTerm, Fragmentation, PinningBlock, SegmentPart, SegmentRow

MOST_OWNERS, MOST_SEGMENTS, MOST_PARTS, MOST_PINS = 60, 24, 60, 12  # what a report takes; ours
MOST_NAMED = 2000  # largest blocks whose path is looked for; ours
UNKNOWN, WORKSPACES = "unknown owner", "cuBLAS workspaces"

_STORED = re.compile(r"(\.<storage>)+$")

Namer = Callable[[int], str]  # the path of the owner of a node, "" where none is known


class Owners(NamedTuple):
    """Who holds the blocks of one device: rows, most bytes first, and the row of each block (None: free, or left out)."""

    rows: tuple[DeviceOwner, ...]
    left_out: int
    row_of: dict[int, int]
    is_joined: bool  # False: no block has an owner


def tensor_path(case: Case, node: int) -> str:
    """The path of a storage in words, without the storage itself: the tensor is what a person knows; "" where none is known."""
    path = case.path(node)
    return _STORED.sub("", path.text) if path is not None else ""


def site_of(blocks: Blocks, row: int) -> Location | None:
    """Where a block was allocated: the innermost frame of the program's own; None where that was not recorded."""
    frames = blocks.frames[int(blocks.site[row])] if blocks.site[row] >= 0 else ()
    if not frames:
        return None
    file, function, line = own_frame(frames)
    return Location(function, file, line)


def owners(seen: Seen, code: int, name: Namer) -> Owners:
    """Return who holds the allocated blocks of a device: by path where it is known, and by the place that allocated them."""
    blocks, groups = seen.blocks, dict[tuple[str, Location | None], list[int]]()
    mine = ((blocks.state == ALLOCATED) & (blocks.device == code)).nonzero()[0]
    mine = mine[blocks.size_bytes[mine].argsort(kind="stable")[::-1]]
    sites = {stack: site_of(blocks, row) for stack, row in zip(blocks.site[mine].tolist(), mine.tolist(), strict=True)}
    columns = (mine, seen.ownership.owner[mine], seen.ownership.kind[mine], blocks.site[mine])
    for number, (row, node, kind, stack) in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        path, site = name(node) if node >= 0 and number < MOST_NAMED else "", sites[stack]
        if not path:
            path = WORKSPACES if kind == WORKSPACE else UNKNOWN + (f", {site.function}()" if site else "")
        groups.setdefault((path, site), []).append(row)
    found = [DeviceOwner(path, int(blocks.size_bytes[rows].sum()), None, len(rows), site)
             for (path, site), rows in groups.items()]
    order = sorted(range(len(found)), key=lambda number: -found[number].retained_bytes)[:MOST_OWNERS]
    members = list(groups.values())
    return Owners(tuple(found[number] for number in order), len(found) - len(order),
                  {row: place for place, number in enumerate(order) for row in members[number]},
                  bool((seen.ownership.owner >= 0).any()))


def segments(seen: Seen, code: int, known: Owners) -> tuple[tuple[SegmentRow, ...], int]:
    """Return the segments, those with most free memory in pieces first, and how many were left out.

    A block is one that pins its segment where more is free beside it than in use.
    """
    blocks = seen.blocks
    pins = {int(row) for each in fragmentation.pinned(blocks, code) if each.kept_bytes >= each.used_bytes for row in each.rows}
    rows = []
    for segment, members in fragmentation.segment_map(blocks, code):
        pool = blocks.pools[int(blocks.segments.pool[segment])]
        parts = tuple(SegmentPart(KINDS[int(seen.ownership.kind[row])], int(blocks.size_bytes[row]), known.row_of.get(row),
                                  row in pins) for row in members.tolist())
        table = blocks.segments
        row = SegmentRow(int(table.total_bytes[segment]), int(table.stream[segment]),
                         f"{pool[0]}.{pool[1]}" if any(pool) else "", bool(table.is_expandable[segment]), parts)
        rows.append(replace(row, parts=row.thinned(MOST_PARTS)))
    found = _folded(rows)
    return tuple(found[:MOST_SEGMENTS]), sum(row.count for row in found[MOST_SEGMENTS:])


def _folded(rows: Iterable[SegmentRow]) -> list[SegmentRow]:
    """Return the rows, those that are alike and filled by one kind of block, or by none, as one."""
    found: list[SegmentRow] = []
    alike: dict[SegmentRow, int] = {}
    for row in rows:
        if len(row.parts) == 1 and row in alike:
            place = alike[row]
            found[place] = replace(row, count=found[place].count + 1)
            continue
        if len(row.parts) == 1:
            alike[row] = len(found)
        found.append(row)
    return found


def free_memory(seen: Seen, code: int, known: Owners) -> Fragmentation:
    """Return what is free on a device, and the blocks that keep most of it."""
    blocks = seen.blocks
    pinned = fragmentation.pinned(blocks, code)
    pins = []
    for each in pinned[:MOST_PINS]:
        row = max(each.rows.tolist(), key=lambda one: int(blocks.size_bytes[one]))
        place, share = _most_of(blocks, each.rows.tolist(), known.row_of)
        path = known.rows[place].path if place is not None else "" if known.is_joined else UNKNOWN
        pins.append(PinningBlock(each.used_bytes, int(blocks.segments.total_bytes[each.segment]), each.kept_bytes,
                                 f"an {UNKNOWN}" if path.startswith(UNKNOWN) else path, site_of(blocks, row), share))
    free = (blocks.state == FREE) & (blocks.device == code)
    return Fragmentation(blocks.totals(code).inactive_split, int(blocks.size_bytes[free].sum()),
                         fragmentation.largest_free(blocks, code), tuple(pins), len(pinned) - len(pins))


def _most_of(blocks: Blocks, rows: Sequence[int], row_of: Mapping[int, int]) -> tuple[int | None, float | None]:
    """Return who holds most of some blocks (row of the owners), and which part of their bytes; (None, None) for nobody."""
    held: Counter[int] = Counter()
    for row in rows:
        if row in row_of:
            held[row_of[row]] += int(blocks.size_bytes[row])
    if not held:
        return None, None
    place, size = held.most_common(1)[0]
    return place, size / sum(int(blocks.size_bytes[row]) for row in rows)


def terms(seen: Seen, name: str, code: int) -> tuple[Sequence[DeviceTerm], Sequence[DeviceTerm]]:
    """Return the terms and wholes of a device in one snapshot: what they are, and not how they grew."""
    totals, owned = seen.blocks.totals(code), seen.ownership.of_device(name)
    parts = {"outside": None, "allocated_owned": owned.owned_bytes if owned else None,
             "workspaces": owned.workspace_bytes if owned else None,
             "allocated_unowned": owned.without_owner_bytes if owned else None, "pending": totals.pending,
             "inactive_split": totals.inactive_split, "releasable": totals.releasable}
    wholes = {"used": None, "reserved": totals.reserved, "active": totals.allocated + totals.pending,
              "allocated": totals.allocated}
    return ([DeviceTerm(each, size, None) for each, size in parts.items()],
            [DeviceTerm(each, size, None) for each, size in wholes.items()])
