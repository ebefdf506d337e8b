"""What a renderer gets: everything is here, nothing is left to compute."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from leakscope.model import Dismissed, Finding, Gap, Layer, Verdict, Waste


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
    graph_explains_ratio: float | None = None
    samples_lost: int = 0
    agent_bytes: int | None = None
    app_share_ratio: float | None = None
    extra: dict[str, Any] = field(default_factory=dict)  # more machine-readable facts, copied into report.json as they are
