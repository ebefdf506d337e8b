"""From a session to its report: load, examine every process, judge, render."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

import leakscope
from leakscope import baseline, plugins, proof, verdict
from leakscope import session as sessions
from leakscope.analyse import grouping, kin, settle
from leakscope.analyse.devices import prefix_of
from leakscope.analyse.waste import wasted
from leakscope.case import LEAST_SNAPSHOTS, Case
from leakscope.commands import _device_gaps, _device_use, _memory_snapshot
from leakscope.commands._absence import LOST_CLAIM
from leakscope.commands._device_chapter import chapters
from leakscope.detectors import _devices
from leakscope.heap.load import Stored
from leakscope.model import Confidence, Dismissed, Finding, Gap, Layer, Verdict, VerdictClass, Waste
from leakscope.report import GrowthRow, ProcessInfo, Report, Series, SessionInfo, SnapshotMark
from leakscope.units import seconds_text

MOST_PROCESSES = 8  # whose snapshots are examined; the others count with their timeline
MOST_FINDINGS, MOST_GROWTH_ROWS = 25, 20
SERIES = (("rss_bytes", "bytes"), ("anon_bytes", "bytes"), ("malloc_used_bytes", "bytes"), ("malloc_free_bytes", "bytes"),
          ("shmem_bytes", "bytes"), ("py_blocks", "count"), ("tasks", "count"), ("threads", "count"), ("fds", "count"))
DEVICE_SERIES = ("process_bytes", "reserved_bytes", "allocated_bytes")  # the others are in the chapter on the device
MOST_POINTS = 400
ESTIMATED = ("Our walks in place are large beside the growth and disturb resident memory: the growth is put together from what "
             "malloc and the object allocator have handed out, and what allocators keep free is not told.")


def make_report(session: sessions.Session, out: Path, formats: tuple[str, ...], stream: TextIO,
                team: baseline.OwnList = baseline.NO_LIST) -> Report:
    """Build the report of a session and write it to the folder `out` in `formats`; the terminal text goes to `stream`.

    Args:
        team: the known leaks of a team's own list.

    Raises:
        LeakScopeError: the session cannot be read, or a file cannot be written.
    """
    report = build(session, team)
    write(report, out, formats, stream)
    if set(formats) - {"terminal"}:
        _memory_snapshot.write_beside(session, out)
    return report


def write(report: Report, out: Path, formats: tuple[str, ...], stream: TextIO) -> None:
    """Write a report to the folder `out` in `formats`; the terminal text goes to `stream`.

    Raises:
        LeakScopeError: a file cannot be written.
    """
    renderers = plugins.load("leakscope.render", ("SUFFIX", "render"))
    for name in formats:
        if name != "terminal":
            renderers[name].render(report, out / f"report{renderers[name].SUFFIX}")
    if "terminal" in formats:
        renderers["terminal"].render(report, stream, str(out / "report.html") if "html" in formats else "")


def build(session: sessions.Session, team: baseline.OwnList = baseline.NO_LIST) -> Report:
    """Examine a session and put the report together; nothing is written."""
    processes = _largest_first(session.processes())
    examined: list[verdict.Examined] = []
    skipped: list[str] = []
    family = [kin.Relative(process.info, process.timeline()) for process in processes]
    for number, process in enumerate(processes):
        timeline = list(family[number].timeline)
        snapshots = process.snapshots() if number < MOST_PROCESSES else []
        if timeline or snapshots:
            # the last sample of a normal end shows what is left when the program has taken itself apart
            ended = process.status == "complete" and len(timeline) > 2
            graphs = [Stored(each.path, each.done) for each in snapshots]
            used = _device_use.of_process(session, process, timeline[:-1] if ended else timeline, graphs)
            case = Case(graphs, used.timeline, process.info, _limit(session, timeline),
                        family=[*family[:number], *family[number + 1:]], use_quality=used.quality, device_uses=used.uses)
            examined.append(verdict.Examined(case, *_detected(case, team)))
            skipped += [f"A snapshot of process {process.pid} was left out: {sentence}" for sentence in case.damage]
    if not examined:
        return _empty_report(session, processes)
    return _report(session, processes, examined, skipped)


def _largest_first(processes: Sequence[sessions.SessionProcess]) -> list[sessions.SessionProcess]:
    """The main process, then those that were observed longest."""
    return sorted(processes, key=lambda each: (each.role != "main", -len(each.timeline()), each.pid))


def _limit(session: sessions.Session, timeline: Sequence[dict[str, Any]]) -> int | None:
    limits = [int(sample["cgroup_limit_bytes"]) for sample in timeline[-1:] if sample.get("cgroup_limit_bytes")]
    machine = session.info.get("host", {}).get("memory_bytes")
    limits += [int(machine)] if machine else []
    return min(limits, default=None)


def _detected(case: Case, team: baseline.OwnList) -> tuple[tuple[Finding, ...], tuple[Dismissed, ...]]:
    """Run every detector on a case."""
    findings: list[Finding] = []
    dismissed: list[Dismissed] = []
    if not case.graphs and not case.timeline:
        return (), ()
    for detector in plugins.load("leakscope.detectors", ("RULE", "detect")).values():
        for found in detector.detect(case):
            if isinstance(found, Finding):
                findings.append(found)
            else:
                dismissed.append(found)
    findings = baseline.known_to(case.info, grouping.joined(_devices.strongest(case, findings)))
    findings = baseline.known_to_team(team, case.info, (proof.completed(case, each) for each in findings))
    return tuple(findings), tuple(dismissed)


def _report(session: sessions.Session, processes: Sequence[sessions.SessionProcess], examined: Sequence[verdict.Examined],
            skipped: Sequence[str]) -> Report:
    answer = verdict.judge(examined)
    findings = verdict.ranked([finding for each in examined for finding in each.findings])
    findings = grouping.grouped(findings)[:MOST_FINDINGS]
    shown = _shown_case(examined, findings)
    dismissed = sorted((what for each in examined for what in each.dismissed),
                       key=lambda what: (not what.owner, -(what.growth_bytes or 0)))
    if shown.memory.is_estimated:
        skipped = [*skipped, ESTIMATED]
    notes = [*skipped, *_device_gaps.damaged(shown), *(note for process in processes for note in _notes(process))]
    return Report(
        tool_version=leakscope.__version__, session=_session_info(session, processes), verdict=answer, layers=shown.layers,
        findings=tuple(findings), dismissed=tuple(dismissed), gaps=_gaps(session, shown, findings),
        notes=tuple(dict.fromkeys(notes)),
        series=_series(shown), snapshots=_marks(shown), growth=_growth_rows(shown), waste=_waste(shown),
        devices=chapters(shown),
        graph_explains_ratio=shown.coverage_ratio, agent_bytes=_agent_bytes(shown), app_share_ratio=None)


def _shown_case(examined: Sequence[verdict.Examined], findings: Sequence[Finding]) -> Case:
    """The process whose timeline and layers are shown: the one of the first claim, else the main one."""
    if findings and verdict.is_claim(findings[0]):
        return next((each.case for each in examined if int(each.case.info.get("pid", 0)) == findings[0].pid), examined[0].case)
    return examined[0].case


def _session_info(session: sessions.Session, processes: Sequence[sessions.SessionProcess]) -> SessionInfo:
    info = session.info
    host = info.get("host", {})
    environment = [("platform", str(host.get("platform", ""))), ("processors", str(host.get("cpu_count", ""))),
                   ("leakscope", leakscope.__version__)]
    environment += [(f"option {name}", str(value)) for name, value in sorted(info.get("options", {}).items())
                    if value not in (None, "") and name not in ("session", "started_monotonic_ns")]
    return SessionInfo(
        id=str(info.get("id", "")), command=tuple(info.get("command", ())), started=str(info.get("started", "")),
        duration_s=info.get("duration_s"), exit_code=info.get("exit_code"), signal=info.get("signal"),
        label=str(info.get("label", "")), processes=tuple(_process_info(process) for process in processes),
        environment=tuple(environment))


def _process_info(process: sessions.SessionProcess) -> ProcessInfo:
    done = [snapshot.done for snapshot in process.snapshots()]
    pauses = [each["pause_ns"] / 1e6 for each in done if each.get("pause_ns") is not None]
    return ProcessInfo(
        pid=process.pid, parent=process.parent, role=process.role, python=process.python, status=process.status,
        samples=len(process.timeline()), snapshots=len(done),
        snapshot_method=str(done[-1].get("method", "in-place")) if done else "none",
        longest_pause_ms=round(max(pauses), 2) if pauses else None,
        walk=str(done[-1].get("walk", "python")) if done else "none",
        sites=str(process.info.get("sites", "off")).partition(":")[0])


def _notes(process: sessions.SessionProcess) -> list[str]:
    found = [str(note.get("note", "")) for note in process.notes()]
    if process.info.get("why_not_native"):
        found.insert(0, f"{process.info['why_not_native']} So the heap was walked in Python, which takes longer; "
                        "leakscope doctor --build-probe PYTHON builds a probe where there can be one.")
    for snapshot in process.snapshots():
        found += [str(note) for note in snapshot.done.get("notes", [])]
    return [f"Process {process.pid}: {note}" for note in dict.fromkeys(found) if note]


def _gaps(session: sessions.Session, case: Case, findings: Sequence[Finding]) -> tuple[Gap, ...]:
    gaps = [Gap(str(gap.get("claim", "")), str(gap.get("missing", "")), str(gap.get("command", "")))
            for gap in session.info.get("gaps", [])]
    if findings and all(finding.site is None for finding in findings):
        is_off = str(case.info.get("sites", "off")) == "off"
        gaps.append(Gap("allocation site", "allocation sites were off" if is_off else "none of these objects was sampled",
                        f"leakscope run --sites {'sampled' if is_off else 'tracemalloc'} -- COMMAND"))
    if len(case.compared) < LEAST_SNAPSHOTS:
        missing = f"{len(case.compared)} snapshots that can be compared, {LEAST_SNAPSHOTS} are needed"
        gaps.append(Gap("which objects grow", missing, "leakscope run --every 2s -- COMMAND"))
    if case.native_growth is None and any(verdict.class_of(finding).value == "native-leak" for finding in findings[:1]):
        gaps.append(Gap("which native function keeps the memory", "native allocations were not sampled",
                        "leakscope run --native -- COMMAND"))
    if case.settled is None:
        asked_s = session.info.get("options", {}).get("settle_s")
        missing = settle.why_none(asked_s, case.timeline) if asked_s else "the load never paused for a snapshot"
        gaps.append(Gap("that it stays when the load pauses", missing,
                        "leakscope run --settle 30s -- COMMAND, where the load can pause"))
    gaps += _device_gaps.gaps(case, findings, session.info.get("gpu") or {})
    return tuple(gaps)


def _series(case: Case) -> tuple[Series, ...]:
    names = [*SERIES, *((prefix_of(device.name) + column, "bytes") for device in case.devices for column in DEVICE_SERIES)]
    found = []
    for name, unit in names:
        points = [(sample["t_ns"] / 1e9, float(sample[name])) for sample in case.timeline if sample.get(name) is not None]
        step = max(1, -(-len(points) // MOST_POINTS))
        if points:
            found.append(Series(name, unit, tuple(points[::step])))
    return tuple(found)


def _marks(case: Case) -> tuple[SnapshotMark, ...]:
    return tuple(SnapshotMark(graph.t_s, str(graph.info.get("kind", "ladder")), graph.node_count,
                              round(graph.info.get("pause_ns", 0) / 1e6, 2)) for graph in case.graphs)


def _growth_rows(case: Case) -> tuple[GrowthRow, ...]:
    if len(case.compared) < 2:
        return ()
    rows = [GrowthRow("type", name, counts, sizes) for name, counts, sizes in case.type_growth[:MOST_GROWTH_ROWS]
            if sizes[-1] > sizes[0]]
    for pile in case.accumulations[:MOST_GROWTH_ROWS]:
        path = case.path(pile.owner_node if pile.owner_node >= 0 else pile.member_node)
        if path:
            rows.append(GrowthRow("owner", path.owner, pile.counts, pile.sizes_bytes))
    return tuple(rows)


def _waste(case: Case) -> tuple[Waste, ...]:
    """What the last snapshot wastes, by package."""
    return tuple(wasted(case.last, case.tree(case.last))) if case.compared else ()


def _agent_bytes(case: Case) -> int | None:
    sizes = [graph.info["agent_bytes"] for graph in case.graphs if graph.info.get("agent_bytes") is not None]
    return max(sizes, default=None)


def _empty_report(session: sessions.Session, processes: Sequence[sessions.SessionProcess]) -> Report:
    """The report of a session in which no process left evidence."""
    duration = session.info.get("duration_s")
    length = f" in {seconds_text(duration)}" if duration else ""
    gaps = tuple(Gap(str(gap.get("claim", "")), str(gap.get("missing", "")), str(gap.get("command", "")))
                 for gap in session.info.get("gaps", []))
    is_lost = any(gap.claim == LOST_CLAIM for gap in gaps)
    what = "What was recorded is gone" if is_lost else f"No Python process reported{length}"
    sentence = f"{what}: there is nothing to judge."
    answer = Verdict(VerdictClass.INSUFFICIENT_EVIDENCE, Confidence.LOW, sentence)
    total = (Layer("total", None, "rss"),)
    return Report(leakscope.__version__, _session_info(session, processes), answer, total, (), gaps=gaps)
