"""One cause, one finding: what grows below another finding, or beside it under the same owner, is told with it.

LeakCanary and MemLab group by the common beginning of paths: a logger that is never given up shows in the dict of all loggers
and in the placeholder that lists its children; a person wants to read of it once. Bytes are not added: those below are part
of the first finding already, or of the same objects seen from another side.

Piles that are entries of one collection (a window of prices for every symbol) are one cause as well, each of them perhaps too
small to claim. They hold different objects, so their bytes are added.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from leakscope.model import Confidence, Finding, Path
from leakscope.units import bytes_text, count_text

MOST_TOLD = 5  # of those beside a finding; ours
LEAST_ALIKE = 4  # so many entries of one collection that grow are the collection; fewer are named by their keys; ours
_ENTRY = "[*]"
_KEY = re.compile(r"\[(?!\*\]).+\]")  # an edge by a key that has a name, such as ['ABX']


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


def joined(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings with those that are entries of one collection, and alike but for the key, as one."""
    alike: dict[tuple[int, tuple[object, ...]], list[int]] = {}
    for number, finding in enumerate(findings):
        for place, step in enumerate(finding.path.steps if finding.path and not finding.cycle else ()):
            if _KEY.fullmatch(step.edge):
                alike.setdefault((place, _but_for(finding, place)), []).append(number)
    found: dict[int, Finding] = dict(enumerate(findings))
    for (place, _), numbers in alike.items():
        members = [found[number] for number in numbers if found.get(number) is findings[number]]
        if len(members) >= LEAST_ALIKE:
            found = {number: finding for number, finding in found.items() if number not in numbers}
            found[numbers[0]] = _joined(sorted(members, key=lambda each: -sum(each.growth_bytes.values())), place)
    return [found[number] for number in sorted(found)]


def _but_for(finding: Finding, place: int) -> tuple[object, ...]:
    """What two findings have in common that differ in the key at this place of their paths."""
    steps = finding.path.steps if finding.path else ()
    path = tuple((step.type, _ENTRY if number == place else step.edge) for number, step in enumerate(steps))
    return finding.rule.code, finding.pid, finding.layer, finding.leaked_type, path


def _joined(members: Sequence[Finding], place: int) -> Finding:
    """The finding of a collection from those of its entries, largest first."""
    first = members[0]
    assert first.path is not None
    key = first.path.steps[place].edge
    steps = tuple(replace(step, edge=_ENTRY) if number == place else step for number, step in enumerate(first.path.steps))
    owner = first.owner.removesuffix(key) if first.owner.endswith(key) else first.owner.replace(key, _ENTRY, 1)
    growth = _sums([each.growth_bytes for each in members])
    shares = [each.share_of_growth_ratio for each in members if each.share_of_growth_ratio is not None]
    rates = [each.objects_per_s for each in members if each.objects_per_s is not None]
    counts = [each.object_count for each in members if each.object_count is not None]
    frees = [each.frees_bytes for each in members if each.frees_bytes is not None]
    whole = bytes_text(sum(growth.values()))
    alike = f"{count_text(len(members))} of its entries grow alike, together by {whole}; the largest:"
    return replace(
        first, owner=owner, path=Path(steps, first.path.root_kind, first.path.text.replace(key, _ENTRY, 1), owner),
        confidence=next(level for level in Confidence if any(each.confidence is level for each in members)),
        object_count=sum(counts) if counts else None, objects_per_s=round(sum(rates), 3) if rates else None,
        retained_bytes=_sums([each.retained_bytes for each in members]), growth_bytes=growth,
        share_of_growth_ratio=min(1.0, sum(shares)) if shares else None, frees_bytes=sum(frees) if frees else None,
        counts=tuple(map(sum, zip(*(each.counts for each in members)))), reasons=(alike, *first.reasons),
        cohorts=(), rate=None, bytes_per_work=None, leak_share_bytes=None)


def _sums(sizes: Sequence[dict[str, int]]) -> dict[str, int]:
    devices = dict.fromkeys(device for each in sizes for device in each)
    return {device: sum(each.get(device, 0) for each in sizes) for device in devices}


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
