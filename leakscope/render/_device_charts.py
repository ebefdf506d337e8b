"""Pictures of a device's memory as rows of tables: bars that add up, and segments with what lies in them.

Each bar is an SVG of its own that a cell of a table stretches (1000 units wide), so that the words beside it stay words: they
can be read aloud, searched, and are as large on a phone as on a wide screen. Colours come from device.css by class.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from leakscope.render._templates import Markup
from leakscope.render._text import clip, growth_text, number_text, term_word
from leakscope.report import DeviceChapter, DeviceOwner, DeviceTerm, SegmentPart, SegmentRow
from leakscope.units import bytes_text

WIDTH = 1000.0
MOST_COLOURS = 5  # owners that have a colour of their own; more hues cannot be told apart
MOST_PARTS = 80  # of a segment: what is thinner than a hundredth of the bar cannot be pointed at, and a page has many bars
_LEAST = 2.0  # units that a bar is wide at least: 0.2 % can just be seen
_ROW_TOP, _ROW_HEIGHT = 5, 14  # of a bar in the picture of a row that is 24 high

STATE_WORDS = {"free": "free", "pending": "freed, waits for a stream", "owned": "held by Python",
               "workspace": "workspace of cuBLAS", "private-pool": "in a private pool", "unowned": "no Python owner"}


@dataclass(frozen=True)
class FallRow:
    """One row of the waterfall: its bar begins where the one before ended. The last row is the sum, from zero."""

    name: str
    growth_bytes: int | None
    end_bytes: int | None
    bar: Markup
    is_blamed: bool = False
    is_total: bool = False
    is_interpolated: bool = False


def end_bytes(term: DeviceTerm) -> int | None:
    """Return what the term has at the end; None where it was not measured. Of one moment alone: what it had then."""
    return None if term.start_bytes is None else term.start_bytes + (term.growth_bytes or 0)


def blamed_term(chapter: DeviceChapter) -> str:
    """Return the name of the term that grew most, "" where none grew."""
    grown = [(term.growth_bytes, term.name) for term in chapter.terms if term.growth_bytes and term.growth_bytes > 0]
    return max(grown, key=lambda each: each[0])[1] if grown else ""


def waterfall(chapter: DeviceChapter) -> list[FallRow]:
    """Return the growth of each term as rows that add up, and the sum; [] where no term was measured."""
    terms = chapter.terms
    grown = [term.growth_bytes or 0 for term in terms]
    if not any(term.growth_bytes is not None for term in terms):
        return []
    edges = [0]
    for growth in grown:
        edges.append(edges[-1] + growth)
    low, high = min(edges), max(edges)
    scale = WIDTH / ((high - low) or 1)
    blamed = blamed_term(chapter)
    rows = [FallRow(term_word(term.name), term.growth_bytes, end_bytes(term),
                    _step((edges[number] - low) * scale, (edges[number + 1] - low) * scale, term, term.name == blamed),
                    term.name == blamed, is_interpolated=term.is_interpolated) for number, term in enumerate(terms)]
    whole = DeviceTerm("sum", None, edges[-1])
    bar = _step(-low * scale, (edges[-1] - low) * scale, whole, False)
    return [*rows, FallRow(_sum_word(terms), edges[-1], _sum_end(terms), bar, is_total=True)]


def _sum_word(terms: Sequence[DeviceTerm]) -> str:
    missing = [term_word(term.name) for term in terms if term.growth_bytes is None]
    return "all of what was measured" if missing else "used by this process"


def _sum_end(terms: Sequence[DeviceTerm]) -> int | None:
    ends = [end_bytes(term) for term in terms if term.growth_bytes is not None]
    known = [end for end in ends if end is not None]
    return sum(known) if known and len(known) == len(ends) else None


def _step(start: float, end: float, term: DeviceTerm, is_blamed: bool) -> Markup:
    """Return the picture of a row: a bar from `start` to `end`, lines up to the row before and down to the next one."""
    x, width = min(start, end), abs(end - start)
    kind = "sum" if term.name == "sum" else "shrunk" if end < start else "blamed" if is_blamed else "grown"
    bar = _rect(f"step {kind}", x, width, _ROW_TOP, _ROW_HEIGHT) if width else Markup("")
    lines = Markup('<line class="lead" x1="{0:.1f}" x2="{0:.1f}" y1="0" y2="{1}"/><line class="lead" x1="{2:.1f}" x2="{2:.1f}" '
                   'y1="{1}" y2="{3}"/>').format(start, _ROW_TOP, end, 24)
    return _picture("fall", 24, Markup("{}{}").format(Markup("") if term.name == "sum" else lines, bar),
                    f"{term_word(term.name)}: {growth_text(term.growth_bytes)}")


def _rect(kind: str, x: float, width: float, y: float, height: float, title: str = "") -> Markup:
    """Return a bar inside of the picture; one that is too thin to be seen is as wide as a line."""
    shown = min(max(width, _LEAST), WIDTH)
    place = min(max(x, 0.0), WIDTH - shown)
    spoken = Markup("<title>{}</title>").format(title) if title else Markup("")
    return Markup('<rect class="{}" x="{:.1f}" y="{:g}" width="{:.1f}" height="{:g}">{}</rect>').format(
        kind, place, y, shown, height, spoken)


def _picture(kind: str, height: int, body: Markup, spoken: str) -> Markup:
    return Markup('<svg class="{}" viewBox="0 0 1000 {}" preserveAspectRatio="none" role="img" aria-label="{}">{}'
                  '</svg>').format(kind, height, spoken, body)


def level_parts(chapter: DeviceChapter) -> list[tuple[str, str, int]]:
    """Return (class, words, bytes) of what lies on the device at the end: each term, and the rest of its memory."""
    ends = [(term, end_bytes(term)) for term in chapter.terms]
    parts = [(f"level {term.name}", term_word(term.name), end) for term, end in ends if end is not None and end > 0]
    used = sum(size for _, _, size in parts)
    if parts and chapter.total_bytes is not None and chapter.total_bytes > used:
        parts.append(("level rest", "not used by this process", chapter.total_bytes - used))
    return parts


def level_bar(chapter: DeviceChapter) -> Markup:
    """Return one bar of the device's memory at the end; "" where no term was measured."""
    parts = level_parts(chapter)
    whole = sum(size for _, _, size in parts)
    if not whole:
        return Markup("")
    x, pieces = 0.0, []
    for kind, words, size in parts:
        width = WIDTH * size / whole
        pieces.append(_rect(kind, x, width, 0, 20, f"{words}: {bytes_text(size)}"))
        x += width
    spoken = ", ".join(f"{words} {bytes_text(size)}" for _, words, size in parts)
    return _picture("bar", 20, Markup("").join(pieces), f"{chapter.name} at the end: {spoken}")


def owner_bar(owner: DeviceOwner, largest_bytes: int) -> Markup:
    """Return what an owner retains, beside the largest of its table; what it grew by is marked at its end."""
    whole = WIDTH * owner.retained_bytes / max(largest_bytes, 1)
    grown = WIDTH * min(max(owner.growth_bytes or 0, 0), owner.retained_bytes) / max(largest_bytes, 1)
    body = _rect("step grown", 0, whole, 0, 14)
    if grown:
        body = Markup("{}{}").format(body, _rect("step blamed", whole - grown, grown, 0, 14))
    return _picture("owner", 14, body, f"retains {bytes_text(owner.retained_bytes)}, grew by {growth_text(owner.growth_bytes)}")


def colour_of(part: SegmentPart) -> str:
    """Return the class of a part of a segment."""
    if part.is_mixed:
        return "block mixed"
    if part.owner is not None and part.owner < MOST_COLOURS:
        return f"block o{part.owner}"
    return f"block {part.state}"


def segment_bar(row: SegmentRow, owners: Sequence[DeviceOwner]) -> Markup:
    """Return one segment as a bar over its whole width: what lies in it, in the order of addresses."""
    parts = row.thinned(MOST_PARTS)
    whole = sum(part.size_bytes for part in parts) or 1
    x, pieces = 0.0, []
    for part in parts:
        width = WIDTH * part.size_bytes / whole
        pieces.append(_rect(colour_of(part), x, width, 0, 16, part_text(part, owners)))
        if part.is_pinning:
            pieces.append(_rect("pin", x, width, 17, 3))
        x += width
    return _picture("segment", 20, Markup("").join(pieces), segment_text(row))


def segment_text(row: SegmentRow) -> str:
    """Return a segment in words."""
    used = sum(1 for part in row.parts if part.state != "free")
    pins = sum(1 for part in row.parts if part.is_pinning)
    free = sum(1 for part in row.parts if part.state == "free")
    return (f"segment of {bytes_text(row.size_bytes)}: {bytes_text(row.free_bytes)} free in {number_text(free, 'piece')}, "
            f"{number_text(used, 'piece')} in use"
            f"{f', {pins} of them keep the free ones' if pins else ''}")


def part_text(part: SegmentPart, owners: Sequence[DeviceOwner]) -> str:
    """Return what a part of a segment is: its size, its state, who holds it."""
    if part.is_mixed:
        return f"{bytes_text(part.size_bytes)}, many small blocks"
    holder = owners[part.owner].path if part.owner is not None and part.owner < len(owners) else ""
    state = f"held by {clip(holder, 60)}" if holder else STATE_WORDS.get(part.state, part.state)
    return (f"{bytes_text(part.size_bytes)}, {state}{', keeps the segment' if part.is_pinning else ''}")
