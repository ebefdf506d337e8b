"""One cause, one finding: what grows below another finding, or beside it under the same owner, is told with it.

LeakCanary and MemLab group by the common beginning of paths: a logger that is never given up shows in the dict of all loggers
and in the placeholder that lists its children; a person wants to read of it once. Bytes are not added: those below are part
of the first finding already, or of the same objects seen from another side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from leakscope.model import Finding
from leakscope.units import bytes_text, count_text

MOST_TOLD = 5  # of those beside a finding; ours
_ENTRY = "[*]"


def grouped(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings, most probable first as given, without those that another one before them explains."""
    kept: list[Finding] = []
    beside: dict[int, list[Finding]] = {}
    for finding in findings:
        place = next((number for number, first in enumerate(kept) if _explains(first, finding)), None)
        if place is None:
            kept.append(finding)
        else:
            beside.setdefault(place, []).append(finding)
    return [_told(first, beside[number]) if number in beside else first for number, first in enumerate(kept)]


def _explains(first: Finding, other: Finding) -> bool:
    """True if the other finding has the same owner in the same process, or an owner below what piles up in the first."""
    if first.path is None or other.path is None or first.pid != other.pid or first.cycle or other.cycle:
        return False
    if first.owner == other.owner and _holder(first) == _holder(other):
        return True
    entry, text = first.path.text, other.path.text
    return _ENTRY in entry and (text == entry or text.startswith((f"{entry}.", f"{entry}[")))


def _holder(finding: Finding) -> str:
    """The path up to the container whose entries pile up."""
    text = finding.path.text if finding.path else ""
    return text[:text.rfind(_ENTRY)].removesuffix(".keys()") if _ENTRY in text else text


def _told(first: Finding, others: Sequence[Finding]) -> Finding:
    """The first finding with what grows with it among its reasons."""
    told = []
    for other in others[:MOST_TOLD]:
        more = bytes_text(sum(other.growth_bytes.values()))
        count = "" if other.object_count is None else f"{count_text(other.object_count)} "
        told.append(f"with it grow {count}{other.leaked_type} in {other.path.text if other.path else other.owner} ({more})")
    left = len(others) - len(told)
    return replace(first, reasons=(*first.reasons, *told, *([f"and {left} more below it"] if left > 0 else [])))
