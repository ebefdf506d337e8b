"""The report of a memory pickle of PyTorch: alone, or as a chapter beside those of a session.

One snapshot shows what is there, not what grows: so there is no verdict on growth. Only a request that ran out of memory while
enough was free is a finding. Beside a session the blocks are joined with the objects of its last snapshot by their addresses.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import leakscope
from leakscope import session as sessions
from leakscope.analyse import fragmentation
from leakscope.analyse.devices import Device, Seen
from leakscope.case import Case
from leakscope.commands import _block_map
from leakscope.detectors import device_fragmentation
from leakscope.heap import devices, memory_pickle
from leakscope.heap.graph import HeapGraph
from leakscope.heap.load import Stored
from leakscope.model import Confidence, Finding, Gap, Layer, Verdict, VerdictClass
from leakscope.report import DeviceChapter, Report, SessionInfo
from leakscope.units import bytes_text, count_text

LEAST_OWNED = 0.1  # of the allocated bytes lie at addresses of the session's storages, or it is another process; ours
NO_OWNERS = "A memory snapshot holds no objects: what is shown without a Python owner may have one."
RUN = "leakscope run -- COMMAND"


def build(path: Path) -> Report:
    """Return the report on a memory pickle alone; raises LeakScopeError where it cannot be read."""
    record = memory_pickle.read(path)
    case = Case([HeapGraph.empty(record)], [], {})
    findings = tuple(_findings(case))
    chapters = tuple(_chapter(device, seen, path, _namer(None)) for device, seen in _seen(case))
    gaps = (Gap("who owns the blocks", "a memory pickle knows addresses, and no objects", RUN),
            Gap("what grows", "a memory pickle is one moment", RUN))
    total = (Layer("total", None, "rss"),)
    return Report(leakscope.__version__, _session_info(path), _verdict(case, findings), total, findings, gaps=gaps,
                  notes=tuple(record["notes"]), devices=chapters)


def beside(report: Report, session: sessions.Session, path: Path) -> Report:
    """Return the report of a session with the chapters of a memory pickle of its main process.

    Raises:
        LeakScopeError: the pickle, or the last snapshot of the session, cannot be read.
    """
    record = memory_pickle.read(path)
    case = Case([_last_graph(session, record)], [], {})
    seen = _seen(case)
    allocated, owned = (sum(getattr(sums, name) or 0 for device, each in seen
                            if (sums := each.ownership.of_device(device.name)) is not None)
                        for name in ("allocated_bytes", "owned_bytes"))
    note = (f"Of {bytes_text(allocated)} that are allocated in {path.name}, {bytes_text(owned)} lie at addresses of tensors in "
            "the last snapshot of the session")
    if owned >= LEAST_OWNED * allocated:
        note += "; an address may have been used again between the two."
    else:
        note += ": it may be of another process or time, so its owners are not told."
        case = Case([HeapGraph.empty(record)], [], {})
        seen = _seen(case)
    chapters = tuple(_chapter(device, each, path, _namer(case)) for device, each in seen)
    known = {(each.rule.code, each.layer) for each in report.findings}
    findings = tuple(each for each in _findings(case) if (each.rule.code, each.layer) not in known)
    verdict = _verdict(case, findings) if findings and not report.verdict.kind.is_claim else report.verdict
    return replace(report, devices=(*report.devices, *chapters), findings=(*report.findings, *findings), verdict=verdict,
                   notes=tuple(dict.fromkeys((*report.notes, note, *record["notes"]))))


def _last_graph(session: sessions.Session, record: dict[str, Any]) -> HeapGraph:
    """The last snapshot of the main process with the pickle for the map of its devices; empty where there is none."""
    snapshots = session.snapshots()
    if not snapshots:
        return HeapGraph.empty(record)
    graph = Stored(snapshots[-1].path, snapshots[-1].done).load()
    return devices.joined(replace(graph, info={**graph.info, "kind": "ladder"}), record)


def _seen(case: Case) -> list[tuple[Device, Seen]]:
    return [(device, device.snapshots[-1]) for device in case.devices if device.snapshots and device.snapshots[-1] is not None]


def _namer(case: Case | None) -> _block_map.Namer:
    known: dict[int, str] = {}

    def name(node: int) -> str:
        if case is None:
            return ""
        if node not in known:
            known[node] = _block_map.tensor_path(case, node)
        return known[node]
    return name


def _chapter(device: Device, seen: Seen, path: Path, name: _block_map.Namer) -> DeviceChapter:
    about, known = device.about, _block_map.owners(seen, device.code, name)
    rows, left_out = _block_map.segments(seen, device.code, known)
    terms, wholes = _block_map.terms(seen, device.name, device.code)
    settings = (("Source", path.name), ("Recording", str(about.get("recording", ""))),
                *((each, str(value)) for each, value in sorted((about.get("settings") or {}).items())))
    notes = (*_request(device, seen), *([] if known.is_joined else [NO_OWNERS]))
    return DeviceChapter(
        device.name, f"in {path.name}", provider=str(about.get("provider", "")), is_simulated=about.get("simulated") is True,
        terms=tuple(terms), wholes=tuple(wholes), owners=known.rows, owners_left_out=known.left_out, segments=rows,
        segments_left_out=left_out, fragmentation=_block_map.free_memory(seen, device.code, known), settings=settings,
        notes=notes)


def _request(device: Device, seen: Seen) -> Iterator[str]:
    """The request that ran out of memory, where it was made and why it was not served."""
    oom = seen.blocks.info.get("oom")
    if not oom or device.info.get("ordinal") != oom["device"]:
        return
    frames = seen.blocks.frames[oom["frames"]] if oom["frames"] >= 0 else ()
    place = ", ".join(f"{function} ({file}:{line})" for file, line, function in frames[:3])
    yield (f"A request for {bytes_text(oom['requested_bytes'])} ran out of memory"
           + (f" while the driver had {bytes_text(oom['free_bytes'])}" if oom["free_bytes"] is not None else "")
           + (f", in {place}" if place else "") + ".")
    found = fragmentation.fit_of_oom(seen.blocks)
    if found:
        fit = found[1]
        yield (f"The allocator had {bytes_text(fit.free_bytes)} free; the largest block that may serve the request had "
               f"{bytes_text(fit.largest_eligible_bytes)} (its stream, pool and size class: {bytes_text(fit.eligible_bytes)}).")


def _findings(case: Case) -> Iterator[Finding]:
    """Fragmentation, where the request shows it; medium: one moment, and who holds the blocks is hardly known."""
    for found in device_fragmentation.detect(case):
        if isinstance(found, Finding):
            yield replace(found, confidence=Confidence.MEDIUM, growth_bytes={}, share_of_growth_ratio=None,
                          retained_bytes=found.growth_bytes)


def _verdict(case: Case, findings: tuple[Finding, ...]) -> Verdict:
    seen = _seen(case)
    fit = next((found[1] for _, each in seen if (found := fragmentation.fit_of_oom(each.blocks))), None)
    if findings and fit is not None:
        return Verdict(VerdictClass.FRAGMENTATION, Confidence.MEDIUM,
                       f"{findings[0].layer} ran out of memory for a request of {bytes_text(fit.request_bytes)} although "
                       f"{bytes_text(fit.free_bytes)} were free in the allocator: the largest piece that may serve it has "
                       f"{bytes_text(fit.largest_eligible_bytes)}.")
    parts = []
    for device, each in seen:
        totals = each.blocks.totals(device.code)
        count = count_text(int(((each.blocks.device == device.code) & each.blocks.is_used).sum()))
        parts.append(f"{device.name} holds {bytes_text(totals.reserved)}, {bytes_text(totals.allocated)} of it allocated in "
                     f"{count} blocks")
    what = "; ".join(parts) or "the allocator holds nothing"
    return Verdict(VerdictClass.INSUFFICIENT_EVIDENCE, Confidence.LOW,
                   f"One memory snapshot shows what is there, not what grows: {what}.")


def _session_info(path: Path) -> SessionInfo:
    """The file as a run of no length that ended when it was written; its id is made of what it holds."""
    written = datetime.fromtimestamp(path.stat().st_mtime, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return SessionInfo(hashlib.sha256(path.read_bytes()).hexdigest()[:12], (path.name,), written, 0.0, None, None,
                       "one memory snapshot of PyTorch", (), (("leakscope", leakscope.__version__),))


def place_of(path: Path) -> Path:
    """Return the folder for the report of a pickle: FILE-report beside it, so that no other report is replaced."""
    return path.resolve().parent / f"{path.stem}-report"
