"""What a renderer gets: everything is here, nothing is left to compute."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from leakscope.model import CacheRow, Dismissed, Finding, Gap, Layer, Location, Verdict, Waste


@dataclass(frozen=True)
class ProcessInfo:
    """One observed process of the session."""

    pid: int
    parent: int | None
    role: str  # main | fork | spawn | exec
    python: str
    status: str  # complete | died | running
    samples: int
    snapshots: int
    snapshot_method: str  # fork | in-place | none
    longest_pause_ms: float | None
    walk: str  # native | python | none
    sites: str  # sampled | tracemalloc | off


@dataclass(frozen=True)
class SessionInfo:
    """Where the evidence comes from. `command` is masked already."""

    id: str
    command: tuple[str, ...]
    started: str  # ISO 8601 UTC
    duration_s: float | None
    exit_code: int | None
    signal: int | None
    label: str
    processes: tuple[ProcessInfo, ...]
    environment: tuple[tuple[str, str], ...] = ()  # (what, value) shown as it is: versions, platform, options


@dataclass(frozen=True)
class Series:
    """One line of the timeline picture: `points` are (seconds since start, value)."""

    name: str  # a column of agent.format.SAMPLE_COLUMNS
    unit: str  # bytes | count
    points: tuple[tuple[float, float], ...]
    is_sparse: bool = False  # known at snapshots alone: the line between two points is no gap


@dataclass(frozen=True)
class SnapshotMark:
    """A snapshot on the timeline."""

    t_s: float
    kind: str  # ladder | manual | limit | exit
    objects: int
    pause_ms: float


@dataclass(frozen=True)
class GrowthRow:
    """One row of the growth table over all snapshots: by type or by owner path."""

    by: str  # type | owner
    name: str
    counts: tuple[int, ...]
    sizes_bytes: tuple[int, ...]


@dataclass(frozen=True)
class DeviceTerm:
    """One term of a device's account (analyse/waterfall.py, TERMS and WHOLES); None: not measured."""

    name: str
    start_bytes: int | None  # at the start of the judged part of the run
    growth_bytes: int | None  # from there to its end
    is_interpolated: bool = False  # known at snapshots alone


@dataclass(frozen=True)
class DeviceOwner:
    """A Python owner of device memory in the last snapshot, by path."""

    path: str  # such as serve.EmbeddingClient._tensor_cache[*]
    retained_bytes: int  # on this device
    growth_bytes: int | None = None  # over the compared snapshots
    count: int | None = None  # of storages on this device
    site: Location | None = None  # where most of it was allocated; None: not recorded


@dataclass(frozen=True)
class SegmentPart:
    """A stretch of a segment: one block, or neighbours of one kind, or (`is_mixed`) what is too small to be told apart."""

    state: str  # row of analyse.ownership.KINDS: free | pending | owned | workspace | private-pool | unowned
    size_bytes: int
    owner: int | None = None  # row of DeviceChapter.owners
    is_pinning: bool = False  # in use, and keeps free memory of its segment from being given back
    is_mixed: bool = False


@dataclass(frozen=True)
class SegmentRow:
    """One segment that the allocator holds from the driver; its parts in the order of their addresses add up to it."""

    size_bytes: int
    stream: int
    pool: str  # "" the ordinary one, else such as 0.1
    is_expandable: bool
    parts: tuple[SegmentPart, ...]
    count: int = 1  # of segments that are alike: filled by one kind of block, or by none

    @property
    def free_bytes(self) -> int:
        """What is free in it, or in each of those that are alike."""
        return sum(part.size_bytes for part in self.parts if part.state == "free")

    def thinned(self, most: int) -> tuple[SegmentPart, ...]:
        """Return at most 2 * most + 1 parts that add up to the same bytes.

        Neighbours of one kind become one. If there are still more than `most`, so do neighbours of any kind whose sum is less
        than that part of the segment; parts that are larger stay as they are.
        """
        parts = _gathered(self.parts, lambda group, part: _kind(group[-1]) == _kind(part))
        if len(parts) <= most:
            return tuple(parts)
        least = sum(part.size_bytes for part in parts) / most
        return tuple(_gathered(parts, lambda group, part: part.size_bytes < least
                               and sum(each.size_bytes for each in group) < least))


def _kind(part: SegmentPart) -> tuple[str, int | None, bool, bool]:
    return part.state, part.owner, part.is_pinning, part.is_mixed


def _gathered(parts: Iterable[SegmentPart], belongs: Callable[[list[SegmentPart], SegmentPart], bool]) -> list[SegmentPart]:
    """Return the parts, each group of neighbours that belong together as one; a group of different kinds is mixed."""
    groups: list[list[SegmentPart]] = []
    for part in parts:
        if groups and belongs(groups[-1], part):
            groups[-1].append(part)
        else:
            groups.append([part])
    return [replace(group[0], size_bytes=sum(part.size_bytes for part in group),
                    is_pinning=any(part.is_pinning for part in group),
                    is_mixed=group[0].is_mixed or len(set(map(_kind, group))) > 1) for group in groups]


@dataclass(frozen=True)
class PinningBlock:
    """The blocks in use of one segment, which keep the rest of it from being given back."""

    size_bytes: int  # of them together
    segment_bytes: int
    keeps_bytes: int  # free in that segment
    owner: str = ""  # path of who holds most of them; "": no Python owner is known
    site: Location | None = None
    owner_share_ratio: float | None = None  # of their bytes; None: no owner


@dataclass(frozen=True)
class Fragmentation:
    """Free memory of a device's allocator in the last snapshot."""

    inactive_split_bytes: int | None = None  # free pieces of segments that are partly used
    free_bytes: int | None = None  # all that is free
    largest_free_bytes: int | None = None  # in one piece: no larger request can be served from it
    pins: tuple[PinningBlock, ...] = ()  # those that keep most, first
    pins_left_out: int = 0


@dataclass(frozen=True)
class DeviceChapter:
    """What is known of one device that the process used. Sizes in bytes; None: not measured."""

    name: str  # cuda:0
    model: str = ""  # NVIDIA H200
    total_bytes: int | None = None
    provider: str = ""  # cuda | rocm | xpu | mps | generic | recorded
    is_simulated: bool = False
    use_quality: str = "unknown"  # how well the use of the process is known: exact | matched | approximate | unknown
    growth_bytes: int | None = None
    explained_ratio: float | None = None  # of the growth, what lies in terms that are known
    terms: tuple[DeviceTerm, ...] = ()  # they add up to `used`
    wholes: tuple[DeviceTerm, ...] = ()  # used, reserved, active, allocated
    series: tuple[Series, ...] = ()
    owners: tuple[DeviceOwner, ...] = ()  # those that retain most, first
    owners_left_out: int = 0
    caches: tuple[CacheRow, ...] = ()  # those that hold memory of this device; on the first device also those that hold none
    segments: tuple[SegmentRow, ...] = ()  # those with most free memory in pieces, first
    segments_left_out: int = 0
    fragmentation: Fragmentation | None = None
    settings: tuple[tuple[str, str], ...] = ()  # of the allocator, and versions
    notes: tuple[str, ...] = ()  # what was not measured, and what was observed beside
    load_fit: str = ""  # how peak memory follows batch size and length; "" where that was not measured


@dataclass(frozen=True)
class Report:
    """The whole report; findings worst first."""

    tool_version: str
    session: SessionInfo
    verdict: Verdict
    layers: tuple[Layer, ...]
    findings: tuple[Finding, ...]
    dismissed: tuple[Dismissed, ...] = ()
    gaps: tuple[Gap, ...] = ()
    notes: tuple[str, ...] = ()
    series: tuple[Series, ...] = ()
    snapshots: tuple[SnapshotMark, ...] = ()
    growth: tuple[GrowthRow, ...] = ()
    waste: tuple[Waste, ...] = ()  # in the last snapshot, by package
    devices: tuple[DeviceChapter, ...] = ()  # none: the process used no device
    graph_explains_ratio: float | None = None
    samples_lost: int = 0
    agent_bytes: int | None = None
    app_share_ratio: float | None = None
    extra: dict[str, Any] = field(default_factory=dict)  # more machine-readable facts, copied into report.json as they are
