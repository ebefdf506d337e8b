"""Charts as SVG, made here so that a report needs no script and no network. Colours come from style.css by class."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace

from leakscope.model import Layer
from leakscope.render._templates import Markup
from leakscope.render._text import device_of, growth_text, is_device, layer_word, series_word
from leakscope.report import Series, SnapshotMark
from leakscope.units import bytes_text, count_text, seconds_text

_WIDTH = 1080
_LEFT, _RIGHT, _TOP = 84, 200, 30
_PANEL_HEIGHTS = {"bytes": 230, "count": 74}
_PANEL_GAP = 26
_MOST_LINES, _MOST_COUNT_PANELS = 6, 5
_MOST_POINTS = 600  # of a line; more cannot be seen and only make the file large
_LABEL_STEP = 15

_TIME_STEPS = (0.1, 0.25, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400, 172800,
               604800)

Points = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Panel:
    """One plot of the timeline: lines of one unit over the common time axis."""

    unit: str  # bytes | count
    lines: tuple[Series, ...]
    top: float
    height: float
    low: float
    high: float
    ticks: tuple[float, ...]

    def y(self, value: float) -> float:
        """Return the place of `value`, top down."""
        span = self.high - self.low or 1
        return self.top + self.height * (1 - (value - self.low) / span)


def layer_bar(layers: tuple[Layer, ...], blamed: str) -> Markup:
    """Return the bar of the host's layers, widths by growth; "" when nothing grew. `blamed` gets the accent colour.

    A layer that shrank has no width: the legend beside the bar says its number.
    """
    parts = [(layer.name, layer.growth_bytes) for layer in layers
             if layer.name != "total" and not is_device(layer.name)]
    return _bar(parts, blamed, "Growth by layer")


def device_bar(layer: Layer, blamed: str) -> Markup:
    """Return the bar of a device's terms; the term `blamed` gets the accent colour."""
    return _bar([(term, size) for term, size in layer.terms.items() if size != 0], blamed, f"Growth on {layer.name}")


def _bar(parts: list[tuple[str, int | None]], blamed: str, title: str) -> Markup:
    grown = [(index, name, size) for index, (name, size) in enumerate(parts) if size and size > 0]
    whole = sum(size for _, _, size in grown)
    if not whole:
        return Markup("")
    x, pieces = 0.0, []
    for index, name, size in grown:
        width = 1000 * size / whole
        pieces.append(Markup('<rect class="{}" x="{:.1f}" y="0" width="{:.1f}" height="20"><title>{}</title></rect>').format(
            part_class(index, name, blamed), x, max(width - 2, 1.5), f"{layer_word(name)}: {growth_text(size)}"))
        x += width
    spoken = ", ".join(f"{layer_word(name)} {growth_text(size)}" for _, name, size in grown)
    return Markup('<svg class="bar" viewBox="0 0 1000 20" preserveAspectRatio="none" role="img" aria-label="{}">{}'
                  '</svg>').format(f"{title}: {spoken}", Markup("").join(pieces))


def part_class(index: int, name: str, blamed: str) -> str:
    """Return the class of a part of a bar and of its key in the legend."""
    return "part blamed" if name == blamed else "part rest" if name == "unexplained" else f"part p{index % 5}"


def sparkline(values: tuple[int, ...]) -> Markup:
    """Return a small line of the values, zero at the bottom; "" for fewer than two."""
    if len(values) < 2:
        return Markup("")
    high = max(max(values), 1)
    step = 76 / (len(values) - 1)
    places = [(2 + index * step, 18 - 15 * max(value, 0) / high) for index, value in enumerate(values)]
    return Markup('<svg class="spark" viewBox="0 0 80 20" width="80" height="20" aria-hidden="true"><polyline points="{}"/>'
                  '<circle cx="{:.1f}" cy="{:.1f}" r="2"/></svg>').format(_points_text(places), *places[-1])


def timeline(series: tuple[Series, ...], marks: tuple[SnapshotMark, ...], limit_bytes: int | None) -> Markup:
    """Return the timeline picture: memory, devices and counts over one time axis, snapshots marked; "" without samples.

    A line is broken where its column was not measured.
    """
    moving = (line for line in series if line.points and not _is_still(line))
    series = tuple(replace(line, points=_thinned(line.points)) for line in moving)
    if not series:
        return Markup("")
    start, end = _time_range(series, marks)
    panels = _panels(series, limit_bytes)
    bottom = panels[-1].top + panels[-1].height
    times = _sampled_times(series)

    def x(t_s: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (t_s - start) / (end - start)

    body = [_time_axis(x, start, end, bottom), _marks(x, marks, bottom)]
    for panel in panels:
        lines = Markup("").join(_line(panel, index, line, x, times) for index, line in enumerate(panel.lines))
        kind = "counts" if panel.unit == "count" else "sizes"
        body.append(Markup('<g class="{}">{}{}{}{}</g>').format(
            kind, _value_axis(panel), _limit(panel, limit_bytes), lines, _labels(panel)))
    return Markup('<svg class="timeline" viewBox="0 0 {} {:.0f}" role="img" aria-label="{}" data-left="{}" data-right="{}" '
                  'data-start="{:.3f}" data-end="{:.3f}" data-bottom="{:.0f}">{}</svg>').format(
        _WIDTH, bottom + 40, _spoken(panels, marks, end - start), _LEFT, _RIGHT, start, end, bottom, Markup("").join(body))


def timeline_values(series: tuple[Series, ...]) -> list[dict[str, object]]:
    """Return what the pointer reads off the timeline, thinned like the picture."""
    return [{"name": series_word(line.name), "unit": line.unit,
             "points": [[round(t_s, 3), round(value)] for t_s, value in _thinned(line.points)]} for line in series]


def still_text(series: tuple[Series, ...]) -> str:
    """Return what has no plot because it never changed: `Threads 9, Swap 0`."""
    return ", ".join(f"{series_word(line.name)} {count_text(line.points[0][1])}" for line in series if _is_still(line))


def _is_still(line: Series) -> bool:
    """Return whether the line says nothing: a count that never changed, or memory that was never used."""
    values = {value for _, value in line.points}
    return len(values) == 1 and (line.unit == "count" or values == {0.0})


def _thinned(points: Points) -> Points:
    """Return at most about _MOST_POINTS points: of each stretch of time the lowest and the highest."""
    points = tuple(point for point in points if math.isfinite(point[0]) and math.isfinite(point[1]))
    if len(points) <= _MOST_POINTS:
        return points
    size = math.ceil(len(points) / (_MOST_POINTS // 2))
    kept: list[tuple[float, float]] = [points[0]]
    for index in range(1, len(points) - 1, size):
        stretch = points[index:min(index + size, len(points) - 1)]
        kept += sorted({min(stretch, key=lambda point: point[1]), max(stretch, key=lambda point: point[1])})
    return (*kept, points[-1])


def _time_range(series: tuple[Series, ...], marks: tuple[SnapshotMark, ...]) -> tuple[float, float]:
    times = [t_s for line in series for t_s, _ in line.points] + [mark.t_s for mark in marks]
    start, end = min(times), max(times)
    return start, end if end > start else start + max(0.001, abs(start) * 1e-9)  # one sample alone still has a place


def _panels(series: tuple[Series, ...], limit_bytes: int | None) -> list[Panel]:
    """Return a panel for the host's memory, one a device, and one for each count that moves (each has its own scale)."""
    groups: dict[str, list[Series]] = {}
    for line in series:
        name = device_of(line.name) or "host"
        groups.setdefault(line.name if line.unit == "count" else name, []).append(line)
    memory = [group for group in groups.values() if group[0].unit != "count"]
    counts = [group for group in groups.values() if group[0].unit == "count"][:_MOST_COUNT_PANELS]
    panels, top = [], float(_TOP)
    for group in memory + counts:
        unit = "count" if group[0].unit == "count" else "bytes"
        values = [value for line in group[:_MOST_LINES] for _, value in line.points]
        low, high = min(values), max(values)
        if limit_bytes and unit == "bytes" and not device_of(group[0].name) and high < limit_bytes < 2 * high:
            high = limit_bytes
        ticks = value_ticks(low, high, unit, 5 if unit == "bytes" else 2)
        height = _PANEL_HEIGHTS[unit]
        panels.append(Panel(unit, tuple(group[:_MOST_LINES]), top, height, ticks[0], ticks[-1], ticks))
        top += height + _PANEL_GAP
    return panels


def value_ticks(low: float, high: float, unit: str, wanted: int) -> tuple[float, ...]:
    """Return round ticks that enclose the values; the axis starts at zero unless the values lie far above it."""
    if low < high / 2 or high == low:
        low = min(low, 0.0)
    scale = 1.0
    while unit == "bytes" and high / scale >= 2048:
        scale *= 1024
    raw = max((high - low) / scale / wanted, 1e-9)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    if unit == "count" or scale == 1.0:
        step = max(step, 1.0)
    step *= scale
    first = math.floor(low / step + 1e-9)
    last = max(math.ceil(high / step - 1e-9), first + 1)
    return tuple(index * step for index in range(first, last + 1))


def _time_axis(x: Callable[[float], float], start: float, end: float, bottom: float) -> Markup:
    longest = _TIME_STEPS[-1]
    step = next((step for step in _TIME_STEPS if (end - start) / step <= 9), math.ceil((end - start) / 9 / longest) * longest)
    parts = []
    for index in range(math.ceil(start / step), math.floor(end / step) + 1):
        place = x(index * step)
        parts.append(Markup('<line class="grid" x1="{0:.1f}" x2="{0:.1f}" y1="{1}" y2="{2:.1f}"/><text class="tick mid" '
                            'x="{0:.1f}" y="{3:.1f}">{4}</text>').format(place, _TOP, bottom, bottom + 18,
                                                                        _time_text(index * step, step)))
    parts.append(Markup('<text class="axis mid" x="{:.0f}" y="{:.0f}">time since the start</text>').format(
        (_LEFT + _WIDTH - _RIGHT) / 2, bottom + 36))
    return Markup("").join(parts)


def _time_text(t_s: float, step: float) -> str:
    if t_s == 0:
        return "0"
    for size, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if step >= size:
            return f"{t_s / size:g} {name}"
    if t_s < 60 or t_s % 60 and step < 1:
        return f"{t_s:g} s"
    return seconds_text(t_s) if t_s % 60 else f"{t_s / 60:g} min"


def _value_axis(panel: Panel) -> Markup:
    ticks = panel.ticks if panel.unit == "bytes" else (panel.ticks[0], panel.ticks[-1])
    text = _sizes_text(panel.high) if panel.unit == "bytes" else count_text
    return Markup("").join(
        Markup('<line class="grid" x1="{0}" x2="{1}" y1="{2:.1f}" y2="{2:.1f}"/><text class="tick end" x="{3}" y="{4:.1f}">{5}'
               '</text>').format(_LEFT, _WIDTH - _RIGHT, panel.y(tick), _LEFT - 10, panel.y(tick) + 4,
                                text(tick)) for tick in ticks)


def _sizes_text(high: float) -> Callable[[float], str]:
    """Return how the ticks of an axis up to `high` are written: all in one unit."""
    step = next((step for step in (3, 2, 1) if abs(high) >= 1024 ** step), 0)
    return lambda size: "0" if not size else f"{size / 1024 ** step:.6g} {('B', 'KiB', 'MiB', 'GiB')[step]}"


def _limit(panel: Panel, limit_bytes: int | None) -> Markup:
    if not limit_bytes or panel.unit != "bytes" or panel.high < limit_bytes or device_of(panel.lines[0].name):
        return Markup("")
    return Markup('<line class="limit" x1="{0}" x2="{1}" y1="{2:.1f}" y2="{2:.1f}"/><text class="limit-text" x="{3}" '
                  'y="{4:.1f}">limit {5}</text>').format(_LEFT, _WIDTH - _RIGHT, panel.y(limit_bytes), _LEFT + 6,
                                                        panel.y(limit_bytes) - 5, bytes_text(limit_bytes))


def _marks(x: Callable[[float], float], marks: tuple[SnapshotMark, ...], bottom: float) -> Markup:
    return Markup("").join(
        Markup('<g class="mark"><title>{0}</title><line x1="{1:.1f}" x2="{1:.1f}" y1="{2}" y2="{3:.1f}"/><circle cx="{1:.1f}" '
               'cy="14" r="9"/><text class="mid" x="{1:.1f}" y="18">{4}</text></g>').format(
            f"snapshot {index} ({mark.kind}) at {seconds_text(mark.t_s)}: {count_text(mark.objects)} objects, "
            f"pause {mark.pause_ms:.1f} ms", x(mark.t_s), 23, bottom, index) for index, mark in enumerate(marks, 1))


def _sampled_times(series: tuple[Series, ...]) -> list[float]:
    """Return all times at which anything was sampled."""
    return sorted({t_s for line in series for t_s, _ in line.points})


def _line(panel: Panel, index: int, line: Series, x: Callable[[float], float], times: list[float]) -> Markup:
    stretches = [line.points] if line.is_sparse else _stretches(line.points, times)
    places = [[(x(t_s), panel.y(value)) for t_s, value in stretch] for stretch in stretches]
    drawn = (Markup('<polyline class="line s{}" points="{}"/>').format(index, _points_text(part)) if len(part) > 1 else
             Markup('<circle class="dot s{}" cx="{:.1f}" cy="{:.1f}" r="2"/>').format(index, *part[0]) for part in places)
    return Markup("").join(drawn)


def _stretches(points: Points, times: list[float]) -> list[Points]:
    """Return the points cut where the column was not measured: where it pauses for much longer than it does before or
    after, while other columns went on (`times` holds theirs) or for so long that the sampler itself must have paused."""
    steps = [after[0] - before[0] for before, after in zip(points, points[1:])]
    cuts = []
    for index, step in enumerate(steps):
        usual = max(_middle(steps[max(index - 4, 0):index]), _middle(steps[index + 1:index + 5]))
        missed = bisect_left(times, points[index + 1][0]) - bisect_right(times, points[index][0])
        if usual and step > 4 * usual and (missed >= 2 or step > 5):
            cuts.append(index + 1)
    return [points[start:end] for start, end in zip([0, *cuts], [*cuts, len(points)])]


def _middle(steps: list[float]) -> float:
    """Return the median, 0 of nothing."""
    return sorted(steps)[len(steps) // 2] if steps else 0.0


def _labels(panel: Panel) -> Markup:
    """Return the names of the lines at their right ends, pushed apart so that none covers another."""
    text = bytes_text if panel.unit == "bytes" else count_text
    ends = sorted((panel.y(line.points[-1][1]), index, line) for index, line in enumerate(panel.lines))
    parts, floor = [], -math.inf
    for y, index, line in ends:
        floor = max(y + 4, floor + _LABEL_STEP)
        parts.append(Markup('<text class="name s{}" x="{}" y="{:.1f}">{}<tspan class="value" dx="6">{}</tspan></text>').format(
            index, _WIDTH - _RIGHT + 8, floor, series_word(line.name), text(line.points[-1][1])))
    return Markup("").join(parts)


def _spoken(panels: list[Panel], marks: tuple[SnapshotMark, ...], duration_s: float) -> str:
    """Return the picture in words for a screen reader."""
    lines = [f"{series_word(line.name)} from {text(line.points[0][1])} to {text(line.points[-1][1])}"
             for panel in panels for text in (bytes_text if panel.unit == "bytes" else count_text,) for line in panel.lines]
    return f"Timeline of {seconds_text(duration_s)}: {'; '.join(lines)}; {len(marks)} snapshots."


def _points_text(places: list[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
