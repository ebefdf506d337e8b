"""From findings to the one answer. Every cut-off is named here; the words "leak" and "grows" follow from the class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from leakscope.analyse import layers, work
from leakscope.analyse.coverage import CLAIM_BYTES
from leakscope.analyse.devices import Device, device_code
from leakscope.analyse.trend import Slope, largest_step
from leakscope.analyse.waterfall import least_growth
from leakscope.case import LEAST_SNAPSHOTS, Case
from leakscope.model import Confidence, Dismissed, Finding, Rate, Verdict, VerdictClass
from leakscope.units import bytes_text, count_text, seconds_text

CLAIM_SHARE = 0.1  # nor one that explains less than this of the growth of the process; ours
OWNED_SHARE = 0.25  # objects that explain this much come before memory that nobody owns; ours
RESIDUE_BYTES = 4 << 20  # growth that goes on, but that nothing explains; ours
VISIBLE_BYTES = 1 << 20  # growth that is worth a word; ours
LEAST_RUN_S = 2.0  # shorter runs say nothing about growth
LEAST_SAMPLES = 12
WANTED_RUN_S = 60.0  # what is asked for where a run was too short; ours
EXPLAINED_SHARE = 0.5  # of the growth: what explains so much of it is named even where it cannot be claimed; ours
STEP_SHARE = 0.8  # of all growth in one step: it is kept once, and no rate; ours
BY_LOAD = "it follows the load"
HARMLESS = ("bounded", "it levels off", "in flight", "filled at the start", BY_LOAD,
            "allocator high water")  # how reasons begin
WAITING = "waiting garbage"  # how the reason of garbage begins that an ordinary collector will free
ALIVE_TAIL = 0.2  # a process whose samples reach into the last part of the run counts for the rate

_CLASS_OF_RULE = {"LS1": VerdictClass.PYTHON_LEAK, "LS2": VerdictClass.DELAYED_GARBAGE, "LS109": VerdictClass.NATIVE_LEAK,
                  "LS301": VerdictClass.NATIVE_LEAK, "LS302": VerdictClass.FRAGMENTATION, "LS303": VerdictClass.NATIVE_LEAK,
                  "LS304": VerdictClass.FRAGMENTATION, "LS305": VerdictClass.NATIVE_LEAK,
                  "LS413": VerdictClass.FRAGMENTATION, "LS420": VerdictClass.FRAGMENTATION}


@dataclass(frozen=True)
class Examined:
    """One process after all detectors have seen it."""

    case: Case
    findings: tuple[Finding, ...]
    dismissed: tuple[Dismissed, ...]


def class_of(finding: Finding) -> VerdictClass:
    """The class of verdict that a finding argues for: what lies on a device is the device's, whoever keeps it."""
    code = finding.rule.code
    if code not in _CLASS_OF_RULE and device_code(finding.layer):
        return VerdictClass.GPU_LEAK
    if code.startswith("LS4") and code not in _CLASS_OF_RULE:  # a cause on the host of what a device is used for
        return VerdictClass.PYTHON_LEAK if finding.layer == "python" else VerdictClass.NATIVE_LEAK
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
    """The most probable cause first: what can be claimed, then by bytes; what several hold is shared between them.

    Objects with an owner go before memory without one where they explain enough: native memory that grows beside a pile of
    figures, sockets or tensors is most likely theirs.
    """
    is_owned = any(is_claim(finding) and finding.path and (finding.share_of_growth_ratio or 0.0) >= OWNED_SHARE
                   for finding in findings)

    def order(finding: Finding) -> tuple[bool, bool, int, int, str, str]:
        share = growth_of(finding) if finding.leak_share_bytes is None else finding.leak_share_bytes
        return (not is_claim(finding), is_owned and not finding.path, -share, -growth_of(finding), finding.rule.code,
                finding.owner)

    return sorted(findings, key=order)


def judge(examined: Sequence[Examined]) -> Verdict:
    """Return the verdict on a session; at least one process has to be given."""
    findings = ranked([finding for each in examined for finding in each.findings])
    claims = [finding for finding in findings if is_claim(finding)]
    limit = next((each.case.memory_limit_bytes for each in examined if each.case.memory_limit_bytes), None)
    rate = total_rate(examined)
    growth = sum(each.case.trend.growth_bytes for each in examined if each.case.trend)
    growing = [(each.case, device) for each in examined for device in each.case.devices
               if device.growth is not None and not each.case.follows_load_on(device.name)]
    if not claims and growing and not _too_short(examined[0].case):
        return on_device(growing[0][1], _nobody_on(*growing[0], findings))
    if not claims:
        return replace(_no_claim(examined, findings, growth), growth_bytes=growth, rate=rate, memory_limit_bytes=limit,
                       bytes_per_work=_per_work(examined[0].case))
    first = claims[0]
    case = next(each.case for each in examined if first in each.findings)
    device = case.device(first.layer)
    if device is not None:
        sentence = sentence_of(first, case.unit_of_work) + _unattributed(device, claims)
        return on_device(device, Verdict(class_of(first), first.confidence, sentence, evidence=first.evidence))
    return Verdict(class_of(first), first.confidence, sentence_of(first, case.unit_of_work), growth, rate,
                   _hours(examined, rate, limit), limit, first.evidence, _per_work(case))


def on_device(device: Device, verdict: Verdict) -> Verdict:
    """Return a verdict with the numbers of a device in place of those of the process."""
    growth, slope, limit = device.growth, device.slope, device.limit_bytes
    hours = None
    if slope is not None and limit is not None and slope.is_positive and slope.low is not None:
        points = device.wholes[device.measure].points
        hours = round(max(0.0, limit - points[-1][1]) / slope.value / 3600, 2)
    return replace(verdict, growth_bytes=device.growth_bytes, rate=slope and slope.rate, hours_until_oom=hours,
                   memory_limit_bytes=limit, bytes_per_work=growth.per_work.rate if growth and growth.per_work else None)


def _unattributed(device: Device, claims: Sequence[Finding]) -> str:
    """What of the growth of a device nothing explains, as one more sentence; empty where half of it or more is explained."""
    growth = device.growth
    known = sum(finding.growth_bytes.get(device.name, 0) for finding in claims if finding.layer == device.name)
    if growth is None or known >= EXPLAINED_SHARE * growth.bytes:
        return ""
    return f" Unattributed: {bytes_text(growth.bytes - known)} more on {device.name}."


def _nobody_on(case: Case, device: Device, findings: Sequence[Finding]) -> Verdict:
    """The verdict where a device grows and nothing that was found can be claimed."""
    terms = sorted((term for term in device.terms.values() if (term.growth_bytes or 0) > 0),
                   key=lambda term: -(term.growth_bytes or 0))
    where = f", {bytes_text(terms[0].growth_bytes or 0)} of it in the term {terms[0].name}" if terms else ""
    why = _missing(case, [finding for finding in findings if finding.layer == device.name])
    missing = f"; not measured: {'; '.join(device.unmeasured)}" if device.unmeasured else ""
    grown = bytes_text(device.growth_bytes or 0)
    return Verdict(VerdictClass.INSUFFICIENT_EVIDENCE, Confidence.LOW,
                   f"Memory on {device.name} still grows, by {grown} in the judged part of the run{where}, but it is "
                   f"unattributed: {why}{missing}.")


def _per_work(case: Case) -> Rate | None:
    """What a unit of work leaves in the memory of a process; None where no work was counted."""
    slope = case.per_work(case.memory.points)
    return slope and slope.rate


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
    """Hours until the limit; None where it is not known, or where the interval of the rate does not exclude 0."""
    if rate is None or limit is None or rate.bytes_per_s <= 0 or rate.low is None or rate.low <= 0:
        return None
    used = sum(int(each.case.timeline[-1].get("rss_bytes", 0)) for each in examined if each.case.timeline)
    return round(max(0, limit - used) / rate.bytes_per_s / 3600, 2)


def sentence_of(finding: Finding, unit: str = "unit of work") -> str:
    """One sentence that names the owner, the growth and the pace: a second, and a `unit` of work where that is known."""
    growth, share = bytes_text(growth_of(finding)), finding.share_of_growth_ratio
    part = f" ({share:.0%} of the growth)" if share is not None else ""
    if finding.cycle:
        steps = " -> ".join(f"{step.type}{step.edge}" for step in finding.cycle)
        return f"Unreachable cycles {steps} are not freed: {growth} more{part}."
    if finding.object_count is None or not finding.path:
        return f"{finding.owner}: {growth} more{part}; {finding.rule.title[0].lower()}{finding.rule.title[1:]}."
    added = finding.counts[-1] - finding.counts[0] if finding.counts else finding.object_count
    pace = f", {finding.objects_per_s:.1f} a second" if finding.objects_per_s else ""
    if finding.bytes_per_work and finding.bytes_per_work.bytes_per_s > 0:
        pace += f", {bytes_text(finding.bytes_per_work.bytes_per_s)} per {unit}"
    return f"{finding.owner} grew by {count_text(added)} {finding.leaked_type}, {growth}{part}{pace}."


def _no_claim(examined: Sequence[Examined], findings: Sequence[Finding], growth: int) -> Verdict:
    """The verdict where nothing can be claimed: why not, from the first reason that holds; `findings` most probable first."""
    main = examined[0].case
    short = _too_short(main)
    if short:
        return Verdict(VerdictClass.INSUFFICIENT_EVIDENCE, Confidence.LOW, short)
    if main.follows_load and main.load is not None:
        return _power(main, f"Memory follows the load: {main.load.explained_ratio:.0%} of its growth is explained by "
                            f"{main.load.covariate}, and at equal load it is flat")
    fit = main.load_fit()
    if fit is not None and fit.is_explained:
        return _power(main, f"Memory follows the load: {fit.explained_ratio or 0.0:.0%} of its growth is explained by batch "
                            f"and length, and nothing certain is left per {main.unit_of_work}")
    on_devices = [what for each in examined for what in each.dismissed if what.device]
    bounded = [what for each in examined for what in each.dismissed
               if (what.growth_bytes or 0) >= VISIBLE_BYTES / 4 and not what.device]
    goes_on = any(each.case.trend and _goes_on(each.case.trend) for each in examined)
    # garbage that waits explains growth that goes on; of growth that has stopped it is the sawtooth on top
    bounded = [what for what in bounded if what.why.startswith((*HARMLESS, WAITING) if goes_on else HARMLESS)]
    explained = sum(what.growth_bytes or 0 for what in bounded)
    if explained < EXPLAINED_SHARE * growth and goes_on:
        return Verdict(VerdictClass.INSUFFICIENT_EVIDENCE, Confidence.LOW, f"Memory still grows, by {bytes_text(growth)} in "
                       f"the judged part of the run, but {_missing(main, findings)}.")
    if bounded:
        largest = max(bounded, key=lambda what: what.growth_bytes or 0)
        return Verdict(VerdictClass.BOUNDED_GROWTH, Confidence.MEDIUM,
                       f"What grew is bounded: {largest.what} ({bytes_text(largest.growth_bytes or 0)}), {largest.why}.")
    whole = max(_start_up_growth(main), growth)
    if whole >= VISIBLE_BYTES:
        judged = [point for point in main.memory.points if point[0] >= main.window.start_s]
        step = largest_step(judged)
        if step is not None and step.share_ratio >= STEP_SHARE and step.rise >= VISIBLE_BYTES:
            return Verdict(VerdictClass.WARM_UP, Confidence.MEDIUM,
                           f"Memory grew once, by {bytes_text(step.rise)} at {seconds_text(step.x)}, and then stayed: a step "
                           "that is kept, no rate.")
        return Verdict(VerdictClass.WARM_UP, Confidence.MEDIUM, f"Memory grew by {bytes_text(whole)} and then stopped growing.")
    return _by_load_on_device(on_devices, examined) or _ended_on_device(examined, on_devices) or _power(main, "Memory is flat")


def _by_load_on_device(dismissed: Sequence[Dismissed], examined: Sequence[Examined]) -> Verdict | None:
    """The verdict where a device grew, and with its load."""
    for device in (device for each in examined for device in each.case.devices if device.growth is not None):
        why = next((what.why for what in dismissed if what.device == device.name and what.why.startswith(BY_LOAD)), None)
        if why is not None:
            sentence = f"Memory on {device.name} grew, and {why}."
            return on_device(device, Verdict(VerdictClass.NO_LEAK, Confidence.MEDIUM, sentence))
    return None


def _ended_on_device(examined: Sequence[Examined], dismissed: Sequence[Dismissed]) -> Verdict | None:
    """The verdict where the host is flat and a device grew, but has stopped: with what was dismissed there, if it says more."""
    devices = [device for each in examined for device in each.case.devices]
    device = next((device for device in devices if device.wholes[device.measure].has_ended), None)
    if device is None:
        return None
    harmless = [what for what in dismissed if what.why.startswith(HARMLESS) and (what.growth_bytes or 0) >= VISIBLE_BYTES]
    largest = max(harmless, key=lambda what: what.growth_bytes or 0, default=None)
    if largest is not None and largest.why.startswith("bounded"):
        return on_device(device, Verdict(
            VerdictClass.BOUNDED_GROWTH, Confidence.MEDIUM,
            f"What grew on {device.name} is bounded: {largest.what} ({bytes_text(largest.growth_bytes or 0)}), {largest.why}."))
    said = f": {largest.what}, {largest.why}" if largest is not None else ""
    return on_device(device, Verdict(
        VerdictClass.WARM_UP, Confidence.MEDIUM,
        f"Memory on {device.name} grew by {bytes_text(device.growth_bytes or 0)} and then stopped growing{said}."))


def _missing(main: Case, findings: Sequence[Finding]) -> str:
    """What a claim lacks: the doubt about what explains most of the growth, or that there is no such thing."""
    likely = next((each for each in findings if (each.share_of_growth_ratio or 0.0) >= EXPLAINED_SHARE), None)
    if likely is not None:
        what = f"{likely.leaked_type} in {likely.owner}" if likely.leaked_type and likely.path else likely.owner
        doubt = f": {likely.doubts[0]}" if likely.doubts else ""
        return f"what explains {likely.share_of_growth_ratio:.0%} of it, {what}, is not certain{doubt}"
    if len(main.graphs) < LEAST_SNAPSHOTS:
        return f"only {len(main.graphs)} snapshots were taken"
    if not main.can_compare:
        return f"only {len(main.compared)} of {len(main.graphs)} snapshots can be compared: the others saw its start or end"
    return "no owner of most of it was found" if findings else "no owner of it was found"


def _too_short(case: Case) -> str:
    """That a run says nothing, and what to run; empty where it is long enough."""
    samples = sum(1 for sample in case.timeline if sample["t_ns"] / 1e9 >= case.window.start_s)
    if case.trend is not None and case.window.length_s >= LEAST_RUN_S and samples >= LEAST_SAMPLES:
        return ""
    return (f"The run was observed for {seconds_text(max(0.0, case.window.length_s))} after its start, which is too short to "
            f"tell growth from start-up; let it work for {seconds_text(WANTED_RUN_S)} or more: leakscope run -- COMMAND.")


def _goes_on(trend: layers.MemoryTrend) -> bool:
    """True if growth that matters is still under way at the end."""
    still = trend.tail_slope is not None and trend.tail_slope.is_positive
    return (still or trend.goes_on) and trend.tail_growth_bytes >= RESIDUE_BYTES / 2 and trend.growth_bytes >= RESIDUE_BYTES


def _start_up_growth(case: Case) -> int:
    points = case.memory.points
    whole = layers.Window(points[0][0], points[-1][0]) if points else layers.Window(0.0, 0.0)
    return int(layers.change(points, whole) or 0)


def _power(case: Case, what: str) -> Verdict:
    """No leak, and what makes that worth something: the smallest steady growth that would have been seen."""
    least = _least_rate(case.trend.slope if case.trend else None, CLAIM_BYTES, case.window)
    done = work.rate_per_work(case.memory.points, case.timeline, case.window)
    each = least / done.units_per_s if done and done.units_per_s > 0 else None
    seen = f"{bytes_text(least)} a second" + (f", or {bytes_text(each)} per {case.unit_of_work}," if each is not None else "")
    on_devices = "".join(map(_power_on, case.devices))
    sentence = f"{what}; growth of {seen} or more would have been seen{on_devices}."
    return Verdict(VerdictClass.NO_LEAK, Confidence.MEDIUM, sentence,
                   smallest_leak_bytes_per_s=least, smallest_leak_bytes_per_work=each)


def _least_rate(slope: Slope | None, least_bytes: int, window: layers.Window) -> float:
    """The smallest steady growth a second that would have been seen: over the noise, and enough in the whole window."""
    noise = max(abs(slope.low or 0.0), abs(slope.high or 0.0)) if slope and slope.low is not None else 0.0
    return max(noise, least_bytes / max(window.length_s, 1e-9))


def _power_on(device: Device) -> str:
    """The same of a device, to go on with the sentence; what was not measured there is said."""
    if device.growth_bytes is None:
        return f"; of {device.name} nothing is known: {'; '.join(device.unmeasured)} was not measured"
    least = _least_rate(device.slope, least_growth(device.total_bytes), device.window)
    unseen = " (what it uses outside of torch's allocator was not measured)" if device.measure != "used" else ""
    return f", and of {bytes_text(least)} a second on {device.name}{unseen}"
