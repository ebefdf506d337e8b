"""The last words of `leakscope run`: at most 12 lines on a stream, coloured only on a terminal."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterable
from typing import TextIO

from rich.console import Console
from rich.text import Text

from leakscope.model import EVIDENCE_BITS, Finding
from leakscope.render import _devices
from leakscope.render._text import (
    cleaned,
    clip,
    clock_text,
    frees_text,
    growth_text,
    is_device,
    layer_share,
    layer_word,
    on_one_line,
    rate_text,
    ratio_text,
    unticked,
    verdict_tone,
    verdict_word,
)
from leakscope.render._trace import path_text
from leakscope.report import Report

SUFFIX = ""  # goes to a stream, not to a file
_PLAIN_WIDTH = 120  # of a stream that is no terminal, such as a CI log
_LINES = 12
_SENTENCE_LINES = 3
_REMEDY_LINES = 2
_STYLES = {"leak": "bold red", "ok": "bold green", "neutral": "bold yellow"}


def render(report: Report, out: TextIO, report_file: str = "") -> None:
    """Print the report on the stream `out`; `report_file` is named in the last line. ASCII but for names."""
    report = cleaned(report)
    is_terminal = out.isatty() and os.environ.get("TERM") != "dumb"
    console = Console(file=out, force_terminal=is_terminal, no_color=None if is_terminal else True, highlight=False,
                      soft_wrap=True, emoji=False, markup=False, legacy_windows=False)
    width = max(console.width, 40) if is_terminal else _PLAIN_WIDTH
    encoding = getattr(out, "encoding", None) or "utf-8"
    for line in _lines(report, width, report_file):
        line.plain = line.plain.encode(encoding, "backslashreplace").decode(encoding)
        console.print(line)


def _lines(report: Report, width: int, report_file: str) -> list[Text]:
    verdict = report.verdict
    style = _STYLES[verdict_tone(verdict)]
    heading = Text("leakscope: ").append(verdict_word(verdict).upper(), style)
    bits = " ".join(bit for bit, _ in verdict.evidence if bit in EVIDENCE_BITS and verdict.kind.is_claim)
    heading.append(f" ({verdict.kind.value}, {verdict.confidence.value} confidence{': ' * bool(bits)}{bits})")
    sentence = textwrap.wrap(verdict.sentence, width - 2, max_lines=_SENTENCE_LINES, placeholder=" ...") or [""]
    lines = [heading, *(Text(f"  {line}") for line in sentence)]
    last = [_fact("report", report_file)] if report_file else []
    facts = [line for name, text in _facts(report) if text
             for line in _fact_lines(name, on_one_line(unticked(text)), width - 13)]
    return (lines + facts)[:_LINES - len(last)] + last


def _facts(report: Report) -> list[tuple[str, str]]:
    """Return what else to say, most useful first: what does not fit into the lines is cut from the end."""
    first = report.findings[0] if report.findings and report.verdict.kind.is_claim else None
    facts = [("growth", _rate(report)), ("layers", _layers(report)), *_device(report, first)]
    facts += _suspect(first) if first else []
    if report.gaps and not first:
        facts += [(f"missing{'' if index == 0 else ' too'}", f"{gap.claim}: {gap.missing}; {gap.command}")
                  for index, gap in enumerate(report.gaps[:3])]
    if report.dismissed and not first:
        dismissed = report.dismissed[0]
        facts.append(("dismissed", f"{dismissed.what}: {dismissed.why}"))
    others = len(report.findings) - (1 if first else 0)
    facts.append(("suspects", f"{others} more in the report" if first else f"{others} in the report") if others else ("", ""))
    return facts


def _device(report: Report, first: Finding | None) -> list[tuple[str, str]]:
    """Return the device of the first finding, else the one that grew most: its use, its terms, and its cache that is blamed,
    else the one that grew most.
    """
    grown = sorted(report.devices, key=lambda chapter: (first is None or chapter.name != first.layer,
                                                        -(chapter.growth_bytes or 0)))
    if not grown:
        return []
    chapter = grown[0]
    terms = sorted((term for term in chapter.terms if term.growth_bytes), key=lambda term: -abs(term.growth_bytes or 0))
    blamed = first.owner if first else ""
    rows = sorted(chapter.caches, key=lambda row: (row.name.removesuffix("()") != blamed, -_devices.grown_entries(row)))[:1]
    use = _devices.use_text(chapter).partition(" (")[0] or growth_text(chapter.growth_bytes)
    return [("device", f"{chapter.name}{' (simulated)' if chapter.is_simulated else ''}: {use}"),
            ("terms", _joined(map(_devices.account_text, terms))),
            *(("cache", _devices.cache_sentence(row)) for row in rows if _devices.grown_entries(row) > 0)]


def _joined(parts: Iterable[str]) -> str:
    """Return as many of the parts as fit into a line, the first one in any case."""
    text = ""
    for part in parts:
        if text and len(text) + len(part) + 3 > _PLAIN_WIDTH - 13:
            break
        text += f"{' | ' * bool(text)}{part}"
    return text


def _suspect(finding: Finding) -> list[tuple[str, str]]:
    site = finding.site
    return [
        ("cycle" if finding.cycle else "held by", path_text(finding)),
        ("frees", frees_text(finding)),
        ("made at", f"{site.function} ({site.file}:{site.line})" if site else ""),
        ("known", finding.known or ""),
        ("remedy", finding.remedy),
        ("doubt", finding.doubts[0] if finding.doubts else ""),
        ("id", finding.fingerprint),
    ]


def _rate(report: Report) -> str:
    verdict = report.verdict
    parts = [growth_text(verdict.growth_bytes) if verdict.growth_bytes is not None else "",
             rate_text(verdict.rate) if verdict.rate else "", clock_text(verdict)]
    return ", ".join(part for part in parts if part)


def _layers(report: Report) -> str:
    parts = []
    for layer in report.layers:
        share = layer_share(layer, report.layers)
        if layer.name != "total" and layer.growth_bytes:
            share_part = f" {ratio_text(share)}" if share is not None and not is_device(layer.name) else ""
            parts.append(f"{layer_word(layer.name)}{share_part or ' ' + growth_text(layer.growth_bytes)}")
    return " | ".join(parts)


def _fact_lines(name: str, text: str, width: int) -> list[Text]:
    """What to do is wrapped; a path or a number is cut in its middle, where the least is lost."""
    parts = textwrap.wrap(text, width, max_lines=_REMEDY_LINES, placeholder=" ...") if name == "remedy" else [clip(text, width)]
    return [_fact(name if number == 0 else "", part) for number, part in enumerate(parts)]


def _fact(name: str, text: str) -> Text:
    return Text("  ").append(f"{name:<10}", "dim").append(" ").append(text)
