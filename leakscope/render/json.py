"""report.json: the machine face, schema leakscope/report/1. Sorted keys; what was not measured is null.

Beside the fields of the schema's page there is, where the process used a device, `devices`: one object a device.

    name, model, total_bytes, provider (cuda | rocm | xpu | mps | generic | recorded), is_simulated,
    use_quality          exact | matched | approximate | unknown: how well the use of this process is known
    growth_bytes, explained_ratio                                    in the judged part of the run
    terms, wholes        [{name, start_bytes, growth_bytes, is_interpolated}]; terms add up to the whole "used"
    owners               [{path, retained_bytes, growth_bytes, count, site}], most bytes first; owners_left_out
    caches               [{name, kind, library, entries, hits, misses, evictions, bound, varying, varies_by, retained_bytes}];
                         lists have one number a compared snapshot
    segments             [{bytes, stream, pool, is_expandable, count (of those alike), parts: [{state, bytes,
                         owner (row of owners), is_pinning, is_mixed (small blocks of several kinds)}]}], those with most
                         free pieces first; segments_left_out
    fragmentation        {inactive_split_bytes, free_bytes, largest_free_bytes, pins: [{bytes, segment_bytes, keeps_bytes,
                         owner, owner_share_ratio, site}], pins_left_out}, null without a block map
    settings             {name: text}; notes: [sentence]; load_fit: a sentence, null where load was not counted
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from leakscope.model import CacheRow, Dismissed, Finding, Gap, Layer, Location, Rate, Verdict
from leakscope.model import Path as Trail
from leakscope.render._files import write_text
from leakscope.render._text import is_device
from leakscope.report import (
    DeviceChapter,
    DeviceTerm,
    Fragmentation,
    PinningBlock,
    ProcessInfo,
    Report,
    SegmentRow,
    SessionInfo,
)

SUFFIX = ".json"
SCHEMA = "leakscope/report/1"
HOST_LAYERS = ("total", "python", "native", "allocator-retained", "mapped", "unexplained")
DEVICE_TERMS = ("outside", "allocated_owned", "workspaces", "allocated_unowned", "pending", "inactive_split", "releasable")


def render(report: Report, out: Path) -> None:
    """Write the report to the file `out`; raises LeakScopeError when it cannot be written."""
    write_text(out, text_of(report))


def text_of(report: Report) -> str:
    """Return the whole file, newline at the end."""
    return json.dumps(document(report), sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def document(report: Report) -> dict[str, Any]:
    """Return the report as plain values, every key of the schema present."""
    own = {
        "schema": SCHEMA,
        "tool": {"name": "leakscope", "version": report.tool_version},
        "session": _session(report.session),
        "verdict": _verdict(report.verdict),
        "layers": _layers(report.layers),
        "findings": [_finding(finding) for finding in report.findings],
        "dismissed": [_dismissed(each) for each in report.dismissed],
        "gaps": [_gap(gap) for gap in report.gaps],
        "notes": list(report.notes),
        "waste": [{"package": each.package, "what": each.what, "count": each.count, "bytes": each.size_bytes}
                  for each in report.waste],
        "coverage": {"graph_explains_ratio": report.graph_explains_ratio, "samples_lost": report.samples_lost},
        "artefact": {"agent_bytes": report.agent_bytes, "app_share_ratio": report.app_share_ratio},
    }
    if report.devices:
        own["devices"] = [_device(chapter) for chapter in report.devices]
    finite: dict[str, Any] = _finite({**report.extra, **own})  # a key of the schema is never taken over by an extra one
    return finite


def _session(session: SessionInfo) -> dict[str, Any]:
    return {
        "id": session.id, "command": list(session.command), "started": session.started,
        "duration_s": session.duration_s, "exit_code": session.exit_code, "signal": session.signal,
        "label": session.label, "environment": dict(session.environment),
        "processes": [_process(process) for process in session.processes],
    }


def _process(process: ProcessInfo) -> dict[str, Any]:
    return {
        "pid": process.pid, "parent": process.parent, "role": process.role, "python": process.python,
        "status": process.status, "samples": process.samples, "snapshots": process.snapshots,
        "snapshot_method": process.snapshot_method, "longest_pause_ms": process.longest_pause_ms,
        "walk": process.walk, "sites": process.sites,
    }


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        "class": verdict.kind.value, "confidence": verdict.confidence.value, "sentence": verdict.sentence,
        "growth_bytes": verdict.growth_bytes, "rate": _rate(verdict.rate), "hours_until_oom": verdict.hours_until_oom,
        "memory_limit_bytes": verdict.memory_limit_bytes,
        "evidence": _evidence(verdict.evidence), "bytes_per_work": _per_work(verdict.bytes_per_work),
        "smallest_leak_bytes_per_s": verdict.smallest_leak_bytes_per_s,
        "smallest_leak_bytes_per_work": verdict.smallest_leak_bytes_per_work,
    }


def _rate(rate: Rate | None) -> dict[str, Any] | None:
    return None if rate is None else {"bytes_per_s": rate.bytes_per_s, "low": rate.low, "high": rate.high}


def _layers(layers: tuple[Layer, ...]) -> list[dict[str, Any]]:
    """Return the host's layers in the order of the schema, then the devices; one that is missing was not measured."""
    by_name = {layer.name: layer for layer in layers}
    host = [by_name.get(name, Layer(name, None)) for name in HOST_LAYERS]
    return [_layer(layer) for layer in (*host, *(layer for layer in layers if layer.name not in HOST_LAYERS))]


def _layer(layer: Layer) -> dict[str, Any]:
    plain: dict[str, Any] = {"name": layer.name, "growth_bytes": layer.growth_bytes}
    if layer.name == "total":
        plain["measure"] = layer.measure
    elif is_device(layer.name):
        plain["terms"] = {**dict.fromkeys(DEVICE_TERMS), **layer.terms}
    elif layer.terms:
        plain["terms"] = dict(layer.terms)
    return plain


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "rule": finding.rule.code, "name": finding.rule.name, "confidence": finding.confidence.value,
        "layer": finding.layer, "pid": finding.pid, "owner": finding.owner, "path": _path(finding.path),
        "path_text": finding.path.text if finding.path else None,
        "cycle": [{"type": step.type, "edge": step.edge} for step in finding.cycle],
        "leaked_type": finding.leaked_type, "object_count": finding.object_count,
        "objects_per_s": finding.objects_per_s, "retained_bytes": dict(finding.retained_bytes),
        "growth_bytes": dict(finding.growth_bytes), "share_of_growth_ratio": finding.share_of_growth_ratio,
        "frees_bytes": finding.frees_bytes, "site": _site(finding.site),
        "sites": [{**_place(site), "share_ratio": site.share_ratio} for site in finding.sites[:5]],
        "also_held_by": list(finding.also_held_by), "reasons": list(finding.reasons), "doubts": list(finding.doubts),
        "remedy": finding.remedy, "known": finding.known, "fingerprint": finding.fingerprint,
        "counts": list(finding.counts), "evidence": _evidence(finding.evidence), "cohorts": list(finding.cohorts),
        "rate": _rate(finding.rate), "bytes_per_work": _per_work(finding.bytes_per_work), "unit_bytes": finding.unit_bytes,
        "leak_share_bytes": finding.leak_share_bytes,
        "fingerprint_preimage": finding.preimage, "similar": finding.similar,
    }


def _evidence(evidence: tuple[tuple[str, str], ...]) -> list[dict[str, str]]:
    return [{"bit": bit, "text": text} for bit, text in evidence]


def _per_work(rate: Rate | None) -> dict[str, Any] | None:
    return None if rate is None else {"bytes_per_work": rate.bytes_per_s, "low": rate.low, "high": rate.high}


def _path(path: Trail | None) -> list[dict[str, Any]]:
    return [{"name": step.name, "type": step.type, "edge": step.edge, "status": step.status,
             "reasons": list(step.reasons)} for step in (path.steps if path else ())]


def _place(site: Location) -> dict[str, Any]:
    return {"function": site.function, "file": site.file, "line": site.line}


def _site(site: Location | None) -> dict[str, Any] | None:
    return None if site is None else _place(site)


def _dismissed(dismissed: Dismissed) -> dict[str, Any]:
    return {"what": dismissed.what, "why": dismissed.why, "owner": dismissed.owner,
            "growth_bytes": dismissed.growth_bytes}


def _gap(gap: Gap) -> dict[str, Any]:
    return {"claim": gap.claim, "missing": gap.missing, "command": gap.command}


def _device(chapter: DeviceChapter) -> dict[str, Any]:
    return {
        "name": chapter.name, "model": chapter.model, "total_bytes": chapter.total_bytes, "provider": chapter.provider,
        "is_simulated": chapter.is_simulated, "use_quality": chapter.use_quality, "growth_bytes": chapter.growth_bytes,
        "explained_ratio": chapter.explained_ratio, "terms": [_term(term) for term in chapter.terms],
        "wholes": [_term(term) for term in chapter.wholes],
        "owners": [{"path": owner.path, "retained_bytes": owner.retained_bytes, "growth_bytes": owner.growth_bytes,
                    "count": owner.count, "site": _site(owner.site)} for owner in chapter.owners],
        "owners_left_out": chapter.owners_left_out, "caches": [_cache(row) for row in chapter.caches],
        "segments": [_segment(row) for row in chapter.segments], "segments_left_out": chapter.segments_left_out,
        "fragmentation": _fragmentation(chapter.fragmentation), "settings": dict(chapter.settings),
        "notes": list(chapter.notes), "load_fit": chapter.load_fit or None,
    }


def _term(term: DeviceTerm) -> dict[str, Any]:
    return {"name": term.name, "start_bytes": term.start_bytes, "growth_bytes": term.growth_bytes,
            "is_interpolated": term.is_interpolated}


def _cache(row: CacheRow) -> dict[str, Any]:
    return {"name": row.name, "kind": row.kind, "library": row.library, "entries": list(row.entries), "hits": list(row.hits),
            "misses": list(row.misses), "evictions": list(row.evictions), "bound": row.bound, "varying": row.varying,
            "varies_by": row.varies_by, "retained_bytes": dict(row.retained_bytes)}


def _segment(row: SegmentRow) -> dict[str, Any]:
    parts = [{"state": part.state, "bytes": part.size_bytes, "owner": part.owner, "is_pinning": part.is_pinning,
              "is_mixed": part.is_mixed} for part in row.parts]
    return {"bytes": row.size_bytes, "stream": row.stream, "pool": row.pool or None, "is_expandable": row.is_expandable,
            "count": row.count, "parts": parts}


def _fragmentation(found: Fragmentation | None) -> dict[str, Any] | None:
    return None if found is None else {
        "inactive_split_bytes": found.inactive_split_bytes, "free_bytes": found.free_bytes,
        "largest_free_bytes": found.largest_free_bytes, "pins": [_pin(pin) for pin in found.pins],
        "pins_left_out": found.pins_left_out}


def _pin(pin: PinningBlock) -> dict[str, Any]:
    return {"bytes": pin.size_bytes, "segment_bytes": pin.segment_bytes, "keeps_bytes": pin.keeps_bytes,
            "owner": pin.owner or None, "owner_share_ratio": pin.owner_share_ratio, "site": _site(pin.site)}


def _finite(value: Any) -> Any:
    """Return the value in Python's own types, NaN and infinity as None: JSON has no word for them."""
    if hasattr(value, "item"):  # a numpy scalar: json knows only Python's own numbers
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(key): _finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return value
