"""Where the growth of a process went: Python objects, native memory in use, memory an allocator keeps, mappings, the rest.

Perfetto and MemLab ask this first, since it decides which explanation can be true at all: a layer that did not grow cannot
be to blame. The parts come from different meters, so they do not add up by themselves; what is left is shown as "unexplained".

The whole is the proportional set size: resident memory less what other processes have of it (Documentation/filesystems/proc.rst
of the kernel, smaps_rollup), and swap. That less is known more seldom than resident memory itself, and changes slowly; so it is
taken off as a change of its own. What pymalloc holds and uses is known from its arenas (agent/_probe/arenas.c).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from leakscope.analyse.trend import Slope, level, theil_sen
from leakscope.heap import layout
from leakscope.heap.graph import HeapGraph
from leakscope.model import Layer

Sample = dict[str, Any]
Points = list[tuple[float, float]]

SMALL_OBJECT_BYTES = 512  # CPython Objects/obmalloc.c, SMALL_REQUEST_THRESHOLD: larger requests go to malloc
BLOCK_STEP_BYTES = 16  # obmalloc.c, ALIGNMENT: what a small request is rounded up to
HEADER_BYTES = 64  # of an object whose contents are a block of their own
TWO_BLOCKS = frozenset({"list", "dict", "set", "frozenset", "bytearray", "deque", "OrderedDict", "defaultdict"})
IMPORT_SHARE = 0.95  # imports have ended when this share of the final sys.modules is there; ours
WARM_UP_SHARE, WARM_UP_MOST_S = 0.2, 60.0  # the start of a run is no evidence of a leak; ours, tuned on 5-second programs
GOES_ON_SHARE = 0.25  # of the growth in the second half: 0.5 is a straight line; ours
LOOSE_SHARE = 0.25  # of pymalloc's growth: less that no object accounts for is the error of sizes and extrapolation; ours
LOOSE_BYTES = 1 << 20  # ours
EDGE_SHARE = 0.12  # a level at the start or end of a window is the median over this share of it; ours
PARTS = ("anon", "file", "shmem")
KEPT, COPIED = "allocator-retained", "copy-on-write"
LEAST_COPIED_BYTES = 256 << 10  # fewer pages change hands whenever a process beside this one starts or ends; ours
_STORAGE, _MAPPING = layout.NODE_KINDS.index("storage"), layout.NODE_KINDS.index("mapping")


class HeapTotals(NamedTuple):
    """Sums over one snapshot, bytes on the host; `malloc_bytes` is the part of `python_bytes` that malloc handed out.

    `arena_used_bytes`, `malloc_used_bytes`: all that pymalloc and malloc had handed out at that moment, for objects or not;
    None if not measured.
    """

    t_s: float
    python_bytes: int
    malloc_bytes: int
    mapping_bytes: int
    arena_used_bytes: int | None = None
    malloc_used_bytes: int | None = None


class Window(NamedTuple):
    """The part of a run that is judged, in seconds since the session started."""

    start_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        return self.end_s - self.start_s

    @property
    def tail(self) -> Window:
        """Its second half."""
        return Window((self.start_s + self.end_s) / 2, self.end_s)

    def inside(self, points: Iterable[tuple[float, float]]) -> Points:
        """The (seconds, value) points in it."""
        return [point for point in points if self.start_s <= point[0] <= self.end_s]


def time_without(t_s: float, pauses: Iterable[tuple[float, float]]) -> float:
    """Return how many seconds before `t_s` lie in none of the pauses, (start, end) each, that do not overlap."""
    return t_s - sum(max(0.0, min(t_s, end_s) - start_s) for start_s, end_s in pauses)


class MemoryTrend(NamedTuple):
    """How private memory (anonymous + shared + swapped) moved in a window; `tail` is its second half."""

    window: Window
    growth_bytes: int
    slope: Slope | None
    tail_growth_bytes: int
    tail_slope: Slope | None

    @property
    def goes_on(self) -> bool:
        """True if the second half grew as a growth that goes on does: upwards, and with a good part of the whole."""
        rises = self.tail_slope is not None and self.tail_slope.value > 0
        return rises and self.growth_bytes > 0 and self.tail_growth_bytes >= GOES_ON_SHARE * self.growth_bytes

    def slowed(self, ratio: float, window: Window) -> MemoryTrend:
        """Return the same growth over a longer `window`, of which the time it was told from is this part."""
        return self._replace(window=window, slope=self.slope and self.slope.times(ratio),
                             tail_slope=self.tail_slope and self.tail_slope.times(ratio))


def heap_totals(graph: HeapGraph) -> HeapTotals:
    """Sum a snapshot up."""
    sizes, kinds = graph.shallow_bytes.astype(np.int64), graph.kind
    host = graph.is_host & (kinds != _MAPPING)
    sizes = np.where(host & (sizes <= SMALL_OBJECT_BYTES), -(-sizes // BLOCK_STEP_BYTES) * BLOCK_STEP_BYTES, sizes)
    in_two = np.fromiter((name.qualname in TWO_BLOCKS for name in graph.types), bool, len(graph.types))
    limit = np.where(in_two[graph.type_id], SMALL_OBJECT_BYTES + HEADER_BYTES, SMALL_OBJECT_BYTES)
    large = host & ((sizes > limit) | (kinds == _STORAGE))
    sample = graph.info.get("sample", {})
    used, tracing = sample.get("malloc_used_bytes"), sample.get("tracemalloc_overhead_bytes", 0)
    return HeapTotals(graph.t_s, int(sizes[host].sum()), int(sizes[large].sum()), int(sizes[kinds == _MAPPING].sum()),
                      sample.get("arena_used_bytes"), None if used is None else used - tracing)


def column(timeline: Sequence[Sample], name: str) -> Points:
    """The (seconds, value) points of one column, where it was measured."""
    return [(sample["t_ns"] / 1e9, float(sample[name])) for sample in timeline if sample.get(name) is not None]


def private_memory(timeline: Sequence[Sample]) -> Points:
    """Memory that this process keeps: anonymous, its part of shared memory, swap; resident memory where that is not known."""
    points = [(sample["t_ns"] / 1e9, float(sample["anon_bytes"] + shared + sample.get("swap_bytes", 0)))
              for sample, shared in zip(timeline, shared_memory(timeline)) if sample.get("anon_bytes") is not None]
    return points or column(timeline, "rss_bytes")


def shared_memory(timeline: Sequence[Sample]) -> list[float]:
    """The part that a process has of shared memory in each sample: a segment that two processes map counts for each by half."""
    elsewhere, parts = 0.0, []
    for sample in timeline:
        elsewhere = sample.get("elsewhere_shmem_bytes", _elsewhere(sample, "shmem") or elsewhere)
        parts.append(max(0.0, sample.get("shmem_bytes", 0) - elsewhere))
    return parts


def import_end_s(timeline: Sequence[Sample]) -> float:
    """When nearly all modules were there; the first sample where that is not known."""
    modules = column(timeline, "modules")
    if not modules:
        return timeline[0]["t_ns"] / 1e9 if timeline else 0.0
    wanted = IMPORT_SHARE * modules[-1][1]
    return next(t for t, count in modules if count >= wanted)


def judged_window(timeline: Sequence[Sample]) -> Window:
    """The window after start-up."""
    if not timeline:
        return Window(0.0, 0.0)
    first, last = timeline[0]["t_ns"] / 1e9, timeline[-1]["t_ns"] / 1e9
    warm_up = first + min(WARM_UP_SHARE * (last - first), WARM_UP_MOST_S)
    imported = import_end_s(timeline)
    # a module imported near the end must not eat the whole run
    start = max(warm_up, imported if imported < first + 0.6 * (last - first) else warm_up)
    return Window(start, last)


def change(points: Points, window: Window) -> float | None:
    """The last level of a series in a window less the first; None where it was measured fewer than two times in it."""
    inside = window.inside(points)
    if len(inside) < 2:
        return None
    edge = EDGE_SHARE * window.length_s
    # where samples are rare, the first or the last one alone is the level
    first = level(inside, window.start_s, max(window.start_s + edge, inside[0][0]))
    last = level(inside, min(window.end_s - edge, inside[-1][0]), window.end_s)
    return None if first is None or last is None else last - first


def memory_trend(points: Points, window: Window) -> MemoryTrend | None:
    """The trend of private memory; None where it was measured fewer than two times in the window."""
    growth = change(points, window)
    if growth is None:
        return None
    return MemoryTrend(window, int(growth), theil_sen(window.inside(points)), int(change(points, window.tail) or 0),
                       theil_sen(window.tail.inside(points)))


def shared_elsewhere(timeline: Sequence[Sample], part: str) -> Points:
    """What other processes have of the resident memory of one part ("anon", "file", "shmem"): resident less proportional."""
    known = [(sample["t_ns"] / 1e9, sample.get(f"elsewhere_{part}_bytes", _elsewhere(sample, part))) for sample in timeline]
    return [(t_s, float(value)) for t_s, value in known if value is not None]


def with_shares(sample: Sample) -> Sample:
    """Return a sample with the columns of `shared_elsewhere`, which stay as they are when others are corrected."""
    shares = {f"elsewhere_{part}_bytes": _elsewhere(sample, part) for part in PARTS}
    return {**sample, **{name: value for name, value in shares.items() if value is not None}}


def _elsewhere(sample: Sample, part: str) -> int | None:
    if f"pss_{part}_bytes" in sample and f"{part}_bytes" in sample:
        return max(0, int(sample[f"{part}_bytes"]) - int(sample[f"pss_{part}_bytes"]))
    return None


def _extrapolated(totals: Sequence[HeapTotals], field: str, window: Window) -> float | None:
    """The change over a window of a sum that is only known at the snapshots, along its slope."""
    points = [(each.t_s, float(getattr(each, field))) for each in totals]
    if len(points) < 2 or points[-1][0] - points[0][0] < 0.2 * window.length_s:
        return None
    slope = theil_sen(points)
    return None if slope is None else slope.value * window.length_s


def _large(totals: Sequence[HeapTotals], used: float | None, window: Window) -> float:
    """How much of what malloc has handed out in a window went to objects: the part that it was between the snapshots.

    Growth need not be even, and the snapshots need not span the window. Where malloc handed out little between them, the slope
    of the objects is all there is; a burst in one of them may tilt it, so it says no more than malloc does.
    """
    known = [(each.malloc_used_bytes, each.malloc_bytes) for each in totals if each.malloc_used_bytes is not None]
    if used is not None and len(known) > 1:
        given, objects = known[-1][0] - known[0][0], known[-1][1] - known[0][1]
        if given >= LOOSE_BYTES and 0 <= objects <= (1 + LOOSE_SHARE) * given:
            return used * min(1.0, objects / given)
    slope = _extrapolated(totals, "malloc_bytes", window) or 0.0
    return slope if used is None else max(min(0.0, used), min(slope, max(0.0, used)))


def _loose_part(totals: Sequence[HeapTotals]) -> float:
    """The part of pymalloc's growth from first to last snapshot that belongs to no object; 0 where little, or unknown."""
    known = [(each.arena_used_bytes, each.python_bytes - each.malloc_bytes) for each in totals
             if each.arena_used_bytes is not None]
    if len(known) < 2:
        return 0.0
    used, objects = known[-1][0] - known[0][0], known[-1][1] - known[0][1]
    loose = used - objects
    return loose / used if loose > max(LOOSE_BYTES, LOOSE_SHARE * used) else 0.0


class _Handed(NamedTuple):
    """Growth of what allocators have handed out, told apart, and of what they keep free."""

    python: float | None
    native: float | None
    glibc_free: float | None
    pymalloc_free: float | None

    @classmethod
    def of(cls, timeline: Sequence[Sample], totals: Sequence[HeapTotals], window: Window) -> _Handed:
        objects = _extrapolated(totals, "python_bytes", window)
        used = change(column(timeline, "malloc_used_bytes"), window)
        large = _large(totals, used, window)
        native = None if used is None else used - large
        blocks, arenas = change(column(timeline, "arena_used_bytes"), window), change(column(timeline, "arena_bytes"), window)
        if blocks is not None and objects is not None:
            loose = blocks * _loose_part(totals)
            objects = blocks - loose + large
            native = native + loose if native is not None else loose or None
        elif objects is not None:
            objects += large - (_extrapolated(totals, "malloc_bytes", window) or 0.0)
        return cls(objects, native, change(column(timeline, "malloc_free_bytes"), window),
                   None if blocks is None or arenas is None else arenas - blocks)


def account(timeline: Sequence[Sample], private: Points, totals: Sequence[HeapTotals], window: Window,
            is_free_known: bool = True) -> tuple[Layer, ...]:
    """Return the layers of REPORT_JSON.md for a process: total, then parts that add up to it.

    `private` is the private memory of the program; with the pages of mapped files, less what other processes have of both, it
    is the total. "copy-on-write" is a part only where pages that were shared with other processes became this one's own.
    Without `is_free_known` nothing is said of what allocators keep (analyse/footprint.py).
    """
    shares = {part: change(shared_elsewhere(timeline, part), window) for part in ("anon", "file")}
    copied = None if shares["anon"] is None else -shares["anon"]
    files, shared = change(column(timeline, "file_bytes"), window), _shared_change(timeline, window)
    own_files = (files or 0.0) - (shares["file"] or 0.0)
    grown = change(private, window)
    total = None if grown is None else grown + own_files - (shares["anon"] or 0.0)
    mapped = None if files is None and shared is None else own_files + (shared or 0.0)
    handed = _Handed.of(timeline, totals, window)
    known = (mapped or 0.0) + (handed.python or 0.0) + max(handed.native or 0.0, 0.0) + (copied or 0.0)
    kept = _kept(handed, None if total is None else max(0.0, total - known)) if is_free_known else {}
    free = sum(kept.values()) if kept else None
    parts = {"python": handed.python, "native": handed.native, KEPT: free, "mapped": mapped}
    if copied and abs(copied) >= LEAST_COPIED_BYTES:
        parts[COPIED] = copied
    layers = [Layer("total", _whole(total), "rss" if shares["anon"] is None else "pss")]
    layers += [Layer(name, _whole(value), None, {key: _whole(part) for key, part in kept.items()} if name == KEPT else {})
               for name, value in parts.items()]
    rest = None if total is None else total - sum(value for value in parts.values() if value is not None)
    return (*layers, Layer("unexplained", _whole(rest)))


def _shared_change(timeline: Sequence[Sample], window: Window) -> float | None:
    return change([(sample["t_ns"] / 1e9, shared) for sample, shared in zip(timeline, shared_memory(timeline))
                   if "shmem_bytes" in sample], window)


def _kept(handed: _Handed, room: float | None) -> dict[str, float]:
    """What each allocator keeps free. That need not be resident, so it cannot explain more than what is left: `room`."""
    kept = {}
    if handed.pymalloc_free is not None:
        kept["pymalloc"] = handed.pymalloc_free if room is None else min(handed.pymalloc_free, room)
    if handed.glibc_free is not None:
        left = None if room is None else max(0.0, room - max(0.0, kept.get("pymalloc", 0.0)))
        kept["malloc"] = handed.glibc_free if left is None else min(handed.glibc_free, left)
    return kept


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
