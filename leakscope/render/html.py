"""report.html: the face for a person. One file, no network, a first screen that needs no script."""

from __future__ import annotations

import base64
import hashlib
import json
from itertools import groupby
from pathlib import Path
from typing import Any

from leakscope.model import Finding, Layer, Step
from leakscope.render import _charts, _device_page, _devices, _pictures, _text
from leakscope.render import json as machine
from leakscope.render._files import write_text
from leakscope.render._templates import Markup, fill, source_of
from leakscope.render._trace import shown_steps, suspect_edges
from leakscope.report import GrowthRow, Report

SUFFIX = ".html"
_MOST_FINDINGS = 6  # the first and five others
_MOST_ROWS = 40  # of a growth table
_MOST_LINES = 100  # of the other tables
_MOST_MACHINE_BYTES = 1_000_000  # the rest of a report is far below another megabyte


def render(report: Report, out: Path) -> None:
    """Write the report to the file `out`; raises LeakScopeError when it cannot be written."""
    write_text(out, text_of(report))


def text_of(report: Report) -> str:
    """Return the whole page."""
    style, script = source_of("style.css"), source_of("script.js")
    if report.devices:
        style += source_of("device.css")
    shown = _text.cleaned(report)
    return fill("report.html.j2", report=shown, style=Markup(style), script=Markup(script), style_hash=_hash(style),
                script_hash=_hash(script), data=_data(report), **_view(shown))


def _hash(text: str) -> str:
    """Return the source expression with which a Content-Security-Policy allows exactly this text."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _data(report: Report) -> Markup:
    """Return the machine data for a script element: no `<` in it, so nothing in it can end the element."""
    values = {"report": machine.document(report), "timeline": _charts.timeline_values(report.series)}
    plain = json.dumps(values, sort_keys=True, allow_nan=False)
    if len(plain) > _MOST_MACHINE_BYTES:
        plain = json.dumps({"report": None, "timeline": []})
    return Markup(plain.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _view(report: Report) -> dict[str, Any]:
    verdict = report.verdict
    first = report.findings[0] if report.findings and verdict.kind.is_claim else None
    return {
        "word": _text.verdict_word(verdict), "tone": _text.verdict_tone(verdict), "meaning": _text.verdict_meaning(verdict),
        "rate": _text.rate_text(verdict.rate) if verdict.rate else "", "clock": _text.clock_text(verdict),
        "first": first, "doubt": first.doubts[0] if first and first.doubts else "", "frees": _text.frees_text,
        "bar": _charts.layer_bar(report.layers, _blamed(report)), "legend": _legend(report),
        "device_bars": [(layer, _charts.device_bar(layer, _blamed_term(report, layer)), _device_legend(report, layer))
                        for layer in report.layers if layer.terms and _text.is_device(layer.name)],
        "device_notes": _device_notes(report),
        "host_growth": next((layer.growth_bytes for layer in report.layers if layer.name == "total"), None),
        "blamed_device": _blamed(report) if _text.is_device(_blamed(report)) else "", **_devices_view(report),
        "trace": _trace, "findings": report.findings[:_MOST_FINDINGS],
        "pictures": [(finding, _pictures.picture(finding)) for finding in report.findings[:_MOST_FINDINGS]
                     if finding.path or finding.cycle],
        "timeline": _charts.timeline(report.series, report.snapshots, verdict.memory_limit_bytes),
        "still": _charts.still_text(report.series),
        "tables": _growth_tables(report.growth), "sparkline": _charts.sparkline, "lines": _MOST_LINES,
        "number": _text.number_text, "rate_text": _text.rate_text,
    }


def _devices_view(report: Report) -> dict[str, Any]:
    """Return the chapter on devices; a report without one has none."""
    grown = [f"{chapter.name} {_text.growth_text(chapter.growth_bytes)}" for chapter in report.devices
             if chapter.growth_bytes is not None]
    remark = "; ".join(grown[:3]) or _text.number_text(len(report.devices), "device")
    if any(chapter.is_simulated for chapter in report.devices):
        remark += ", simulated"
    shown = report.devices[:_device_page.MOST_DEVICES]
    return {"device_remark": remark, "devices": [_device_page.view(chapter, report.snapshots, len(shown)) for chapter in shown]}


def _device_notes(report: Report) -> dict[str, str]:
    """Return the sentence of the first screen on each device: where the first finding lies on it, else none."""
    return {layer.name: next((_devices.device_sentence(chapter) for chapter in report.devices
                              if chapter.name == layer.name == _blamed(report)), "") for layer in report.layers}


def _blamed(report: Report) -> str:
    """Return the layer to colour: the first finding's, else none."""
    return report.findings[0].layer if report.findings and report.verdict.kind.is_claim else ""


def _legend(report: Report) -> list[tuple[str, Layer, float | None]]:
    """Return (class of the key, layer, share) for each host layer, in the order of the bar."""
    host = [layer for layer in report.layers if layer.name != "total" and not _text.is_device(layer.name)]
    return [(_charts.part_class(index, layer.name, _blamed(report)), layer, _text.layer_share(layer, report.layers))
            for index, layer in enumerate(host)]


def _blamed_term(report: Report, layer: Layer) -> str:
    """Return the largest term of the device if the first finding lies on it, else none."""
    return max(layer.terms, key=lambda term: layer.terms[term] or 0, default="") if _blamed(report) == layer.name else ""


def _device_legend(report: Report, layer: Layer) -> list[tuple[str, str, int | None]]:
    """Return (class of the key, term, bytes) for each term but those that did not change."""
    changed = [(term, size) for term, size in layer.terms.items() if size != 0]
    return [(_charts.part_class(index, term, _blamed_term(report, layer)), _text.term_word(term), size)
            for index, (term, size) in enumerate(changed)]


def _trace(finding: Finding) -> list[tuple[Step | None, bool, int]]:
    """Return (step, is its edge suspect?, 0) for each step shown; (None, False, how many) for those left out."""
    if finding.path is None:
        return []
    suspects, shown = suspect_edges(finding.path), shown_steps(finding.path)
    return [(None, False, len(finding.path.steps) - len(shown) + 1) if index is None else
            (finding.path.steps[index], suspects[index], 0) for index in shown]


def _growth_tables(growth: tuple[GrowthRow, ...]) -> list[tuple[str, list[GrowthRow], int, int]]:
    """Return (by what, rows, how many snapshots, how many rows were left out) for each kind of row."""
    tables = []
    for by, rows in groupby(sorted(growth, key=lambda row: row.by != "owner"), key=lambda row: row.by):
        every = list(rows)
        tables.append((by, every[:_MOST_ROWS], max(len(row.counts) for row in every), max(len(every) - _MOST_ROWS, 0)))
    return tables
