"""From findings to the one answer. Every cut-off is named here; the words "leak" and "grows" follow from the class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from leakscope.analyse import layers
from leakscope.analyse.trend import grew_in_every_interval
from leakscope.case import LEAST_SNAPSHOTS, Case
from leakscope.model import Confidence, Dismissed, Finding, Rate, Verdict, VerdictClass
from leakscope.units import bytes_text, count_text, seconds_text

CLAIM_BYTES = 512 << 10  # a pile that grew less than this in the run is listed, not claimed; ours
CLAIM_SHARE = 0.1  # nor one that explains less than this of the growth of the process; ours
OWNED_SHARE = 0.25  # objects that explain this much come before memory that nobody owns; ours
RESIDUE_BYTES = 4 << 20  # growth that goes on, but that nothing explains; ours
VISIBLE_BYTES = 1 << 20  # growth that is worth a word; ours
LEAST_RUN_S = 2.0  # shorter runs say nothing about growth
LEAST_SAMPLES = 12
ALIVE_TAIL = 0.2  # a process whose samples reach into the last part of the run counts for the rate

_CLASS_OF_RULE = {"LS1": VerdictClass.PYTHON_LEAK, "LS2": VerdictClass.DELAYED_GARBAGE, "LS109": VerdictClass.NATIVE_LEAK,
                  "LS301": VerdictClass.NATIVE_LEAK, "LS302": VerdictClass.FRAGMENTATION, "LS303": VerdictClass.NATIVE_LEAK,
                  "LS304": VerdictClass.FRAGMENTATION, "LS305": VerdictClass.NATIVE_LEAK,
                  "LS4": VerdictClass.GPU_LEAK}


@dataclass(frozen=True)
class Examined:
    """One process after all detectors have seen it."""

    case: Case
    findings: tuple[Finding, ...]
    dismissed: tuple[Dismissed, ...]


def class_of(finding: Finding) -> VerdictClass:
    """The class of verdict that a finding argues for."""
    code = finding.rule.code
    return _CLASS_OF_RULE.get(code) or _CLASS_OF_RULE[code[:3]]


def growth_of(finding: Finding) -> int:
    """The growth of a finding over all devices, in bytes."""
    return sum(finding.growth_bytes.values())


def is_claim(finding: Finding) -> bool:
    """True if a finding is enough to say "leak"."""
    large = growth_of(finding) >= CLAIM_BYTES
    share = finding.share_of_growth_ratio
    return large and finding.confidence is not Confidence.LOW and (share is None or share >= CLAIM_SHARE)


def ranked(findings: Sequence[Finding]) -> list[Finding]:
    """The most probable cause first: what can be claimed, then by bytes.

    Objects with an owner go before memory without one where they explain enough: native memory that grows beside a pile of
    figures, sockets or tensors is most likely theirs.
    """
    is_owned = any(is_claim(finding) and finding.path and (finding.share_of_growth_ratio or 0.0) >= OWNED_SHARE
                   for finding in findings)

    def order(finding: Finding) -> tuple[bool, bool, int, str, str]:
        return (not is_claim(finding), is_owned and not finding.path, -growth_of(finding), finding.rule.code, finding.owner)

    return sorted(findings, key=order)


def judge(examined: Sequence[Examined]) -> Verdict:
    """Return the verdict on a session; at least one process has to be given."""
    findings = ranked([finding for each in examined for finding in each.findings])
    claims = [finding for finding in findings if is_claim(finding)]
    limit = next((each.case.memory_limit_bytes for each in examined if each.case.memory_limit_bytes), None)
    rate = total_rate(examined)
    growth = sum(each.case.trend.growth_bytes for each in examined if each.case.trend)
    if not claims:
        kind, confidence, sentence = _no_claim(examined, growth)
        return Verdict(kind, confidence, sentence, growth, rate, None, limit)
    first = claims[0]
    return Verdict(class_of(first), first.confidence, sentence_of(first), growth, rate, _hours(examined, rate, limit), limit,
                   evidence_of(first, rate))


def total_rate(examined: Sequence[Examined]) -> Rate | None:
    """The rate of private memory of all processes that lived to the end of the run."""
    ends = [each.case.timeline[-1]["t_ns"] for each in examined if each.case.timeline]
    if not ends:
        return None
    starts = [each.case.timeline[0]["t_ns"] for each in examined if each.case.timeline]
    late = max(ends) - ALIVE_TAIL * (max(ends) - min(starts))
    slopes = [each.case.trend.slope for each in examined
              if each.case.trend and each.case.trend.slope and each.case.timeline[-1]["t_ns"] >= late]
    if not slopes:
        return None
    lows, highs = [slope.low for slope in slopes], [slope.high for slope in slopes]
    return Rate(sum(slope.value for slope in slopes), None if None in lows else sum(low or 0.0 for low in lows),
                None if None in highs else sum(high or 0.0 for high in highs))


def _hours(examined: Sequence[Examined], rate: Rate | None, limit: int | None) -> float | None:
    if rate is None or limit is None or rate.bytes_per_s <= 0 or rate.low is not None and rate.low <= 0:
        return None
    used = sum(int(each.case.timeline[-1].get("rss_bytes", 0)) for each in examined if each.case.timeline)
    return round(max(0, limit - used) / rate.bytes_per_s / 3600, 2)


def sentence_of(finding: Finding) -> str:
    """One sentence that names the owner, the growth and the pace."""
    growth, share = bytes_text(growth_of(finding)), finding.share_of_growth_ratio
    part = f" ({share:.0%} of the growth)" if share is not None else ""
    if finding.cycle:
        steps = " -> ".join(f"{step.type}{step.edge}" for step in finding.cycle)
        return f"Unreachable cycles {steps} are not freed: {growth} more{part}."
    if finding.object_count is None or not finding.path:
        return f"{finding.owner}: {growth} more{part}; {finding.rule.title[0].lower()}{finding.rule.title[1:]}."
    added = finding.counts[-1] - finding.counts[0] if finding.counts else finding.object_count
    pace = f", {finding.objects_per_s:.1f} a second" if finding.objects_per_s else ""
    return f"{finding.owner} grew by {count_text(added)} {finding.leaked_type}, {growth}{part}{pace}."


def evidence_of(finding: Finding, rate: Rate | None) -> tuple[tuple[str, str], ...]:
    """The evidence bits of a claim, each with its number (knowledge page "verdicts and reports", section 2.1)."""
    bits = []
    if finding.counts and grew_in_every_interval(finding.counts):
        text = bytes_text if finding.cycle else count_text  # of cycles it is known what they keep
        bits.append(("G", f"grew in every interval: {' -> '.join(text(count) for count in finding.counts)}"))
    if rate and rate.low is not None and rate.low > 0:
        bits.append(("R", f"the memory of the process rises by {bytes_text(rate.bytes_per_s)} a second "
                          f"(95 %: {bytes_text(rate.low)} to {bytes_text(rate.high or 0.0)})"))
    kept = sum(finding.retained_bytes.values())
    if finding.frees_bytes and kept and finding.frees_bytes >= 0.5 * kept:
        bits.append(("C", f"if the owner lets go, {bytes_text(finding.frees_bytes)} are freed"))
    ended = next((reason for reason in finding.reasons if "have ended" in reason), "")
    if ended:
        bits.append(("D", ended))
    return tuple(bits)


def _no_claim(examined: Sequence[Examined], growth: int) -> tuple[VerdictClass, Confidence, str]:
    main = examined[0].case
    trend = main.trend
    samples = sum(1 for sample in main.timeline if sample["t_ns"] / 1e9 >= main.window.start_s)
    if trend is None or main.window.length_s < LEAST_RUN_S or samples < LEAST_SAMPLES:
        return (VerdictClass.INSUFFICIENT_EVIDENCE, Confidence.LOW,
                f"The run was observed for {seconds_text(max(0.0, main.window.length_s))} after its start, which is too "
                "short to tell growth from start-up.")
    rest = [each for each in examined if each.case.trend and _goes_on(each.case.trend)]
    bounded = [what for each in examined for what in each.dismissed if (what.growth_bytes or 0) >= VISIBLE_BYTES / 4]
    bounded = [what for what in bounded if what.why.startswith(("bounded", "it levels off"))]
    explained = sum(what.growth_bytes or 0 for what in bounded)
    if rest and explained < 0.5 * growth:
        few = len(main.graphs) < LEAST_SNAPSHOTS
        missing = f"only {len(main.graphs)} snapshots were taken" if few else "no owner of it was found"
        return (VerdictClass.INSUFFICIENT_EVIDENCE, Confidence.LOW,
                f"Memory still grows, by {bytes_text(growth)} in the judged part of the run, but {missing}.")
    if bounded:
        largest = max(bounded, key=lambda what: what.growth_bytes or 0)
        return (VerdictClass.BOUNDED_GROWTH, Confidence.MEDIUM,
                f"What grew is bounded: {largest.what} ({bytes_text(largest.growth_bytes or 0)}), {largest.why}.")
    start_up = _start_up_growth(main)
    if max(start_up, growth) >= VISIBLE_BYTES:
        return (VerdictClass.WARM_UP, Confidence.MEDIUM,
                f"Memory grew by {bytes_text(max(start_up, growth))} and then stopped growing.")
    return VerdictClass.NO_LEAK, Confidence.MEDIUM, f"Memory is flat; {_power(main)}."


def _goes_on(trend: layers.MemoryTrend) -> bool:
    """True if growth that matters is still under way at the end."""
    still = trend.tail_slope is not None and trend.tail_slope.is_positive
    return (still or trend.goes_on) and trend.tail_growth_bytes >= RESIDUE_BYTES / 2 and trend.growth_bytes >= RESIDUE_BYTES


def _start_up_growth(case: Case) -> int:
    points = case.memory.points
    whole = layers.Window(points[0][0], points[-1][0]) if points else layers.Window(0.0, 0.0)
    return int(layers.change(points, whole) or 0)


def _power(case: Case) -> str:
    """The smallest steady growth that would have been seen."""
    slope = case.trend.slope if case.trend else None
    noise = max(abs(slope.low or 0.0), abs(slope.high or 0.0)) if slope and slope.low is not None else 0.0
    least = max(noise, CLAIM_BYTES / max(case.window.length_s, 1e-9))
    return f"growth of {bytes_text(least)} a second or more would have been seen"
