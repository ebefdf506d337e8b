"""report.md: for pasting into a ticket. Under 60,000 characters (GitHub takes 65,536), no HTML, an ASCII trace."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from leakscope.model import Finding
from leakscope.render import _device_charts, _devices, _text
from leakscope.render._files import write_text
from leakscope.render._templates import fill
from leakscope.render._trace import trace_lines
from leakscope.report import Report

SUFFIX = ".md"
LIMIT = 60_000  # characters
_ROW_LIMITS = (40, 20, 10, 5, 2)  # of every list, tried in this order until the text fits
_CUT = "\n\n(cut here: the text is longer than a ticket takes; the whole is in report.html)\n"


def render(report: Report, out: Path) -> None:
    """Write the report to the file `out`; raises LeakScopeError when it cannot be written."""
    write_text(out, text_of(report))


def text_of(report: Report) -> str:
    """Return the whole file, cut so that it fits."""
    report = _text.cleaned(report)
    for rows in _ROW_LIMITS:
        text = fill("report.md.j2", **_view(report, rows))
        if len(text) <= LIMIT:
            return text
    return text[:LIMIT - len(_CUT) - 4].rsplit("\n", 1)[0] + ("\n```" if text.count("```") % 2 else "") + _CUT


def _view(report: Report, rows: int) -> dict[str, Any]:
    width = 1000 if rows > 5 else 200  # of one string
    return {
        "report": report, "rows": rows,
        "word": _text.verdict_word(report.verdict), "meaning": _text.verdict_meaning(report.verdict),
        "rate": _text.rate_text(report.verdict.rate) if report.verdict.rate else "",
        "clock": _text.clock_text(report.verdict),
        "layers": [(layer, _text.layer_share(layer, report.layers)) for layer in report.layers],
        "devices": [(chapter, _device_charts.waterfall(chapter)) for chapter in report.devices[:rows]], "words": _devices,
        "trace": _trace, "frees": _text.frees_text, "rate_text": _text.rate_text, "is_claim": report.verdict.kind.is_claim,
        "say": lambda text: escaped(_text.clip(text, width)), "cell": lambda text: cell(_text.clip(str(text), width)),
        "code": lambda text: code(_text.clip(str(text), width)), "ratio_text": _text.ratio_text,
    }


def _trace(finding: Finding) -> list[str]:
    """Return the lines of the fence; three backticks in a name would end it too early."""
    return [line.replace("```", "'''") for line in trace_lines(finding)]


def escaped(text: str) -> str:
    """Return a sentence in which nothing is markup, a link, a mention or HTML: what looks so becomes code."""
    words = []
    for is_name, piece in _text.prose(_text.on_one_line(_text.unticked(text))):
        words.append(code(piece) if is_name or re.search(r"[`*_<\[\]~|\\@&#$]", piece) else piece)
    return "".join(words)


def code(text: str) -> str:
    """Return the text as a code span."""
    text = _text.on_one_line(text) or " "
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * (longest + 1)
    return f"{fence} {text} {fence}" if longest else f"`{text}`"


def cell(text: str) -> str:
    """Return the text for a cell of a table, where a bar ends a cell even in code."""
    return escaped(text).replace("|", "\\|") or " "
