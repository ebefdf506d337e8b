"""The evidence of a finding in bits, each with its number, and the confidence that follows from them.

The bits are those of the knowledge page "verdicts and reports", section 2.1 (model.EVIDENCE_BITS). Nobody has to believe a
word: "high" is said where the growth never paused (G), its rate is above zero beyond doubt (R), and one more thing shows that
nothing is let go: it outlived a pause of the load (S), every epoch of birth has its survivors (E), the things that pile up
are dead (D), or it is a leak that is known (K). Without a pause of the load it has to be a good part of all growth as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from leakscope.analyse import coverage, settle, waterfall
from leakscope.analyse.cohorts import Cohorts
from leakscope.analyse.cuts import Cut
from leakscope.analyse.trend import grew_in_every_interval, theil_sen
from leakscope.case import Case
from leakscope.model import EVIDENCE_BITS, Confidence, Finding, Rate
from leakscope.units import bytes_text, count_text, seconds_text

HIGH_SNAPSHOTS = 4  # three intervals; knowledge page, section 5, "monotonic trend alone"
HIGH_SHARE = 0.3  # of the growth of the process; ours
DEAD_SHARE = 0.25  # of what piles up has ended: knowledge page, section 2.1, bit D
GARBAGE_SHARE = 0.25  # of a growth that waits as garbage and was never collected in full, else medium at most; ours
OWN_SHARE = 0.1  # of a growth: what the observation itself may have grown by; ours
DRIFT_RATIO = 8.0  # a gap so many times the usual distance of samples is one in which nothing was seen; ours
DRIFT_SHARE = 0.25  # of the judged time in such gaps, else medium at most; ours
_LIKE_DEATH = frozenset("SEDK")
_KNOWN_AND_GROWING = frozenset("GREK")


@dataclass(frozen=True)
class Facts:
    """What a detector found out about something that grows; None: not known.

    `counts` in each compared snapshot, of `unit` entries or bytes; `outlived_ratio`: the part that survived the pauses;
    `device`: where `growth_bytes` lie.
    """

    growth_bytes: int
    counts: tuple[int, ...]
    unit: str = "entries"
    share_ratio: float | None = None
    ended_ratio: float = 0.0
    outlived_ratio: float | None = None
    cohorts: Cohorts | None = None
    cut: Cut | None = None
    device: str = "host"


def bits(case: Case, facts: Facts) -> tuple[tuple[str, str], ...]:
    """Return the bits that hold, in the order of EVIDENCE_BITS, each with its number."""
    found = {"G": _grew(facts), "R": rises(case, facts.device), "S": _stays(facts, case), "E": _every_epoch(facts),
             "D": _dead(facts), "C": _frees(facts), "A": _not_ours(case, facts.growth_bytes)}
    return tuple((bit, text) for bit in EVIDENCE_BITS if (text := found.get(bit, "")))


def _grew(facts: Facts) -> str:
    if len(facts.counts) < 2 or facts.counts[-1] <= facts.counts[0]:
        return ""
    text = bytes_text if facts.unit == "bytes" else count_text
    chain = " -> ".join(text(count) for count in facts.counts)
    if grew_in_every_interval(facts.counts):
        return f"it grew in every interval ({facts.unit}): {chain}"
    stalls = sum(later <= earlier for earlier, later in zip(facts.counts, facts.counts[1:]))
    return f"it grew in all intervals but {stalls} ({facts.unit}): {chain}"


def rises(case: Case, on: str = "host") -> str:
    """That the rate of the process, or of what is allocated on a device, is above zero; empty where it may be zero."""
    device = case.device(on)
    slope, points = case.trend.slope if case.trend else None, case.memory.points
    if device is not None:
        points = device.wholes["allocated"].points
        slope = theil_sen(device.window.inside(points))
    if slope is None or slope.low is None or slope.high is None or slope.low <= 0:
        return ""
    what = "the memory of the process" if device is None else f"what is allocated on {on}"
    text = (f"{what} rises by {bytes_text(slope.value)} a second (95 %: {bytes_text(slope.low)} to "
            f"{bytes_text(slope.high)})")
    each = case.per_work(points)
    if each is None or each.low is None or each.low <= 0:
        return text
    return f"{text}, {bytes_text(each.value)} per {case.unit_of_work}"


def _stays(facts: Facts, case: Case) -> str:
    if facts.outlived_ratio is None or facts.outlived_ratio <= settle.STAYS or case.settled is None:
        return ""
    return f"{facts.outlived_ratio:.0%} of its growth outlived a pause of the load of {seconds_text(case.settled.last.quiet_s)}"


def _every_epoch(facts: Facts) -> str:
    cohorts = facts.cohorts
    if cohorts is None or not cohorts.is_flat:
        return ""
    chain = " | ".join(count_text(count) for count in cohorts.counts)
    basis = {"samples": f"by {count_text(cohorts.samples)} allocation samples that still live",
             "births": f"by the order of births, {1 - cohorts.dated_ratio:.0%} of the objects undated",
             "identity": "by addresses, which may have been used again"}[cohorts.basis]
    return f"every epoch has survivors, oldest first: {chain} ({basis})"


def _dead(facts: Facts) -> str:
    if facts.ended_ratio < DEAD_SHARE:
        return ""
    return f"{facts.ended_ratio:.0%} of them have ended: nobody will use them again"


def _frees(facts: Facts) -> str:
    cut = facts.cut
    if cut is None or not cut.is_enough:
        return ""
    return f"if the owner lets go, {bytes_text(cut.freed_bytes)} of {bytes_text(cut.kept_bytes)} are freed"


def _not_ours(case: Case, growth_bytes: int) -> str:
    own = [graph.info["agent_bytes"] for graph in case.compared if graph.info.get("agent_bytes") is not None]
    if len(own) < 2 or own[-1] - own[0] > OWN_SHARE * growth_bytes:
        return ""
    return f"the observation itself grew by {bytes_text(max(0, own[-1] - own[0]))}"


def confidence(found: Sequence[tuple[str, str]], facts: Facts) -> Confidence:
    """Return how sure the bits make: without the caps, which know the whole case."""
    have = {bit for bit, _ in found}
    if facts.outlived_ratio is not None and facts.outlived_ratio < settle.STAYS or "G" not in have:
        return Confidence.LOW
    paused = "S" in have or (facts.share_ratio or 0.0) >= HIGH_SHARE
    if "R" in have and have & _LIKE_DEATH and paused and len(facts.counts) >= HIGH_SNAPSHOTS:
        return Confidence.HIGH
    return Confidence.MEDIUM


def caps(case: Case, growth_bytes: int, on: str = "host") -> list[str]:
    """Why nothing is more than "medium" in this case, as doubts; empty if nothing is in the way.

    `on`: the device on which the `growth_bytes` lie.
    """
    found = []
    if on == "host" and case.coverage_ratio is not None and case.coverage_ratio < coverage.LEAST_COVERED:
        found.append(f"the layers explain only {case.coverage_ratio:.0%} of the growth of the process")
    waiting = case.garbage_on(on)[-1] if case.compared else 0
    if case.compared and case.full_collections == 0 and waiting >= GARBAGE_SHARE * growth_bytes:
        found.append(f"no full collection ran between the snapshots, and {bytes_text(waiting)} wait for one")
    if len(case.compared) == 2:
        found.append("only 2 snapshots")
    if (unseen := _unseen_ratio(case)) > DRIFT_SHARE:
        found.append(f"samples are missing for {unseen:.0%} of the time")
    return found


def _unseen_ratio(case: Case) -> float:
    """The part of the judged time in which no sample was taken for far longer than usual."""
    times = [sample["t_ns"] / 1e9 for sample in case.timeline if case.window.start_s <= sample["t_ns"] / 1e9]
    gaps = sorted(later - earlier for earlier, later in zip(times, times[1:]))
    if not gaps or case.window.length_s <= 0:
        return 0.0
    usual = gaps[len(gaps) // 2]
    return float(sum(gap for gap in gaps if gap > DRIFT_RATIO * usual) / case.window.length_s)


def rates(case: Case, facts: Facts) -> dict[str, Rate | int | None]:
    """The fields `rate`, `bytes_per_work` and `unit_bytes` of a finding, from its counts and its growth in bytes."""
    added = facts.counts[-1] - facts.counts[0] if facts.counts else 0
    if added <= 0 or len(facts.counts) != len(case.times_s):
        return {}
    unit = facts.growth_bytes / added
    points = [(t_s, count * unit) for t_s, count in zip(case.times_s, facts.counts)]
    slope, per_work = case.per_second([round(size) for _, size in points]), case.per_work(points)
    return {"rate": slope and slope.rate, "bytes_per_work": per_work and per_work.rate,
            "unit_bytes": None if facts.unit == "bytes" else round(unit)}


def _refuted(case: Case, finding: Finding, on: str, growth_bytes: int) -> str:
    """Why a finding cannot be claimed, from the layers that grew; empty where it can."""
    device = case.device(on)
    if device is None:
        return coverage.against(case.layers, "python" if finding.path else finding.layer, growth_bytes)
    if not finding.path:
        return ""  # what has no objects was found by its term
    least = min(waterfall.LEAST_BYTES, waterfall.least_growth(device.total_bytes))
    if growth_bytes < least:
        return f"{bytes_text(growth_bytes)} matter little on {on}"
    parts = [device.terms[name].growth_bytes for name in waterfall.PARTS]
    whole = device.wholes["allocated"].growth_bytes
    grew = whole if None in parts or finding.cycle else max(0, parts[0] or 0) + max(0, parts[2] or 0)
    if grew is None or grew >= coverage.LEAST_SUPPORT * growth_bytes:
        return ""
    return (f"what tensors have on {on} grew by {bytes_text(grew)} in the judged part of the run, far less than "
            f"{bytes_text(growth_bytes)}")


def completed(case: Case, finding: Finding) -> Finding:
    """Return a finding with what every finding of this case gets: bits that no detector has to ask for, and the caps."""
    on = finding.layer if case.device(finding.layer) is not None else "host"
    growth = sum(finding.growth_bytes.values()) if on == "host" else finding.growth_bytes.get(on, 0)
    have = dict(finding.evidence)
    if not have.keys() - {"K"}:
        unit = "bytes" if finding.cycle or finding.object_count is None else "entries"
        facts = Facts(growth, finding.counts, unit, finding.share_of_growth_ratio, device=on)
        have = {**have, **dict(bits(case, facts))}
        known = {name: value for name, value in rates(case, facts).items() if getattr(finding, name) is None}
        finding = replace(finding, **known)  # type: ignore[arg-type]
    if finding.known and "K" not in have:
        have["K"] = f"a known leak: {finding.known}"
    doubts, level = list(finding.doubts), finding.confidence
    reasons = [reason for reason in caps(case, growth, on) if reason not in doubts]
    if case.follows_load and finding.path is None and case.load is not None and on == "host":
        reasons.append(f"{case.load.explained_ratio:.0%} of the growth follows the load ({case.load.covariate})")
        level = Confidence.LOW
    if refuted := _refuted(case, finding, on, growth):
        reasons.append(refuted)
        level = Confidence.LOW
    if _KNOWN_AND_GROWING <= have.keys() and level is Confidence.LOW:
        level = Confidence.MEDIUM  # a pace that fades is no argument against a leak that is known
    elif "K" in have and level is Confidence.MEDIUM:
        level = confidence(tuple(have.items()), Facts(growth, finding.counts, share_ratio=finding.share_of_growth_ratio))
    if level is Confidence.HIGH and (reasons or "R" not in have):
        level = Confidence.MEDIUM
    return replace(finding, evidence=tuple((bit, have[bit]) for bit in EVIDENCE_BITS if bit in have), confidence=level,
                   doubts=(*doubts, *reasons))
