"""What the page's chapter on a device shows: cut to what a person reads, and what was cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from leakscope.model import CacheRow
from leakscope.render import _charts, _device_charts, _devices
from leakscope.render._device_charts import MOST_COLOURS, STATE_WORDS, FallRow
from leakscope.render._templates import Markup
from leakscope.render._text import clip
from leakscope.report import DeviceChapter, DeviceOwner, SegmentRow, SnapshotMark

MOST_DEVICES = 8  # of one machine, as a rule
_MOST_OWNERS, _MOST_CACHES, _MOST_SEGMENTS, _MOST_PINS = 25, 25, 24, 12
_DEFAULT_STREAM = "default"


@dataclass(frozen=True)
class DeviceView:
    """One device on the page."""

    chapter: DeviceChapter
    sentence: str
    level: Markup
    level_parts: list[tuple[str, str, int]]
    fall: list[FallRow]
    timeline: Markup
    still: str
    owners: list[tuple[DeviceOwner, str, Markup]]  # (owner, class of its key, bar)
    caches: list[tuple[CacheRow, str, Markup, int | None, int | None]]  # (cache, entries, line, hits, misses)
    segments: list[tuple[SegmentRow, Markup]]
    map_legend: list[tuple[str, str]]
    fragmentation: str
    pins: list[str]

    @property
    def owners_left_out(self) -> int:
        return len(self.chapter.owners) - len(self.owners) + self.chapter.owners_left_out

    @property
    def caches_left_out(self) -> int:
        return len(self.chapter.caches) - len(self.caches)

    @property
    def segments_left_out(self) -> int:
        return sum(row.count for row in self.chapter.segments[len(self.segments):]) + self.chapter.segments_left_out

    @property
    def pins_left_out(self) -> int:
        found = self.chapter.fragmentation
        return len(found.pins) - len(self.pins) + found.pins_left_out if found else 0

    @property
    def has_sites(self) -> bool:
        return any(owner.site for owner, _, _ in self.owners)

    @property
    def has_grown_owners(self) -> bool:
        return any((owner.growth_bytes or 0) > 0 for owner, _, _ in self.owners)

    def stream(self, number: int) -> str:
        """Return `default`, or a small number: the streams of the shown segments are counted, their addresses say nothing."""
        streams = sorted({row.stream for row, _ in self.segments} - {0})
        return _DEFAULT_STREAM if number == 0 else str(1 + streams.index(number))


def view(chapter: DeviceChapter, marks: tuple[SnapshotMark, ...], devices: int = 1) -> DeviceView:
    """Return what is shown of one of so many devices."""
    shown = chapter.segments[:max(_MOST_SEGMENTS // devices, 3)]
    largest = max((owner.retained_bytes for owner in chapter.owners), default=0)
    found = chapter.fragmentation
    return DeviceView(
        chapter, _devices.device_sentence(chapter), _device_charts.level_bar(chapter), _device_charts.level_parts(chapter),
        _device_charts.waterfall(chapter), _charts.timeline(chapter.series, marks, chapter.total_bytes),
        _charts.still_text(chapter.series),
        [(owner, _key(number, chapter), _device_charts.owner_bar(owner, largest))
         for number, owner in enumerate(chapter.owners[:_MOST_OWNERS])],
        [(row, _devices.entries_text(row), _charts.sparkline(_devices.seen_entries(row)), _devices.last_of(row.hits),
          _devices.last_of(row.misses)) for row in chapter.caches[:_MOST_CACHES]],
        [(row, _device_charts.segment_bar(row, chapter.owners)) for row in shown], _legend(shown, chapter.owners),
        _devices.fragmentation_sentence(found) if found else "",
        [_devices.pin_sentence(pin) for pin in found.pins[:_MOST_PINS]] if found else [])


def _key(number: int, chapter: DeviceChapter) -> str:
    """Return the colour of an owner in the map; "" where there is no map."""
    return (f"block o{number}" if number < MOST_COLOURS else "block owned") if chapter.segments else ""


def _legend(rows: Sequence[SegmentRow], owners: Sequence[DeviceOwner]) -> list[tuple[str, str]]:
    """Return (class of the key, words) of what the shown segments hold, owners first."""
    parts = [part for row in rows for part in row.thinned(_device_charts.MOST_PARTS)]
    kinds = {_device_charts.colour_of(part) for part in parts}
    legend = [(f"block o{number}", clip(owner.path, 60)) for number, owner in enumerate(owners[:MOST_COLOURS])
              if f"block o{number}" in kinds]
    legend += [("block owned", "other Python owners")] if "block owned" in kinds else []
    legend += [(kind, words) for state, words in STATE_WORDS.items()
               if state != "owned" and (kind := f"block {state}") in kinds]
    legend += [("block mixed", "many small blocks")] if "block mixed" in kinds else []
    has_pins = any(part.is_pinning for part in parts)
    return legend + ([("pin", "in use, keeps the free memory of its segment")] if has_pins else [])
