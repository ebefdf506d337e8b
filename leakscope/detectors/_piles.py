"""What the detectors of piles share: one accumulation of objects becomes one finding, or is dismissed with its reason.

Each pile has exactly one shape, and each shape one detector: what a person has to do differs (bound the cache, remove the
listener, drop the traceback), the proof does not. A pile whose bytes lie on a device has a shape of its own, and is measured
against that device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from weakref import WeakKeyDictionary

from leakscope import proof
from leakscope.analyse import device_piles, evidence, retention, settle
from leakscope.analyse.cohorts import Cohorts
from leakscope.analyse.cuts import Cut
from leakscope.analyse.growth import Accumulation
from leakscope.case import LEAST_PILE_BYTES, Case
from leakscope.detectors._dismissals import STEADY_RATIO, answers_more, arrows, bound_of, dismissal, is_far
from leakscope.model import Confidence, Dismissed, Finding, Path, Rule
from leakscope.units import bytes_text, count_text

HIDDEN_LEAST_BYTES = 4 << 20  # native growth that is worth blaming on objects whose memory cannot be sized
EXPIRY_SNAPSHOTS = 5  # a cache that expires by age is believed to grow only over so many; ours
INDIRECT_SHARE = 0.25  # of the growth: what has no single path in all snapshots and is no more than this may be anything; ours
MOST_PROVEN = 8  # piles of a case whose births and holders are looked at: each is some walks over the edges; ours


@dataclass(frozen=True)
class Pile:
    """An accumulation with its names.

    `device`: where most of its growth lies; "host", or a device, whose shapes are those of analyse/device_piles.py.
    `growth`: its growth in bytes by device, without `hidden_bytes`.
    """

    accumulation: Accumulation
    shape: str  # cache | registry | exception | task | listener | buffer | roots | c-held | container
    path: Path
    hidden_bytes: int  # growth of memory on `device` that these objects may hold: native, or blocks without an owner
    device: str = device_piles.HOST
    growth: dict[str, int] = field(default_factory=dict)

    @property
    def main_growth_bytes(self) -> int:
        """Its growth on the device where most of it lies."""
        return self.growth.get(self.device, self.accumulation.growth_bytes) + self.hidden_bytes


# Each shape has its detector, and all of them sort out the same piles; a case that is gone takes its own along.
_found: WeakKeyDictionary[Case, list[Pile]] = WeakKeyDictionary()


def piles(case: Case) -> list[Pile]:
    """Every pile of the case, most bytes first, with hidden native memory added to the first that can hold it."""
    if case not in _found:
        _found[case] = _piles(case)
    return _found[case]


def _piles(case: Case) -> list[Pile]:
    found = []
    hidden_left = evidence.hidden_native_growth(case.layers, HIDDEN_LEAST_BYTES)
    for accumulation in case.accumulations:
        path = evidence.pile_path(case.last, case.tree(case.last), accumulation)
        if path is None or path.root_kind == "garbage":
            continue
        growth = device_piles.growth_by_device(case.last, case.growth, accumulation)
        device = device_piles.main_device(growth)
        is_graph = evidence.carries_autograd(case.last, accumulation)
        if is_graph and device == device_piles.HOST:  # a loss is small beside its graph, wherever that lies
            device = device_piles.device_of_member(case.last, accumulation)
        is_on_host = device == device_piles.HOST
        hidden = hidden_left if is_on_host and evidence.hides_native(case.last, accumulation) else 0
        if accumulation.growth_bytes + hidden < LEAST_PILE_BYTES and not is_graph:
            continue
        hidden_left -= hidden
        shape = evidence.shape(case.last, case.tree(case.last), accumulation, path)
        if not is_on_host:
            shape = device_piles.shape(case.last, case.tree(case.last), accumulation, shape)
        found.append(Pile(accumulation, shape, path, hidden, device, growth))
    found = _with_saved_blocks(case, _with_saved_tensors(case, found))
    return sorted(found, key=lambda pile: -(pile.accumulation.growth_bytes + pile.hidden_bytes))


def _with_saved_tensors(case: Case, found: list[Pile]) -> list[Pile]:
    """Count tensors that only C++ holds for the owner whose tensors carry an autograd graph: the graph has saved them."""
    graphs = [pile for pile in found if pile.shape != "c-held" and evidence.carries_autograd(case.last, pile.accumulation)]
    saved = [pile for pile in found if pile.shape == "c-held" and "Tensor" in pile.accumulation.leaked_type]
    if not graphs or not saved:
        return found
    owner = graphs[0]
    more = sum(pile.accumulation.growth_bytes + pile.hidden_bytes for pile in saved)
    kept = [pile for pile in found if pile not in saved]
    return [replace(pile, hidden_bytes=pile.hidden_bytes + more) if pile is owner else pile for pile in kept]


def _with_saved_blocks(case: Case, found: list[Pile]) -> list[Pile]:
    """Count blocks that no tensor lies in for the first pile on their device whose tensors carry an autograd graph.

    What the graph has saved for the backward pass need not be a tensor that Python ever saw. Where the walk found saved
    tensors, it found them all, and the blocks are somebody else's.
    """
    given: set[str] = set()
    result = []
    for pile in found:
        device = case.device(pile.device) if pile.shape == device_piles.AUTOGRAD and pile.device not in given else None
        saved = device.terms["allocated_unowned"].growth if device is not None else None
        if saved is not None and not graph_of(case, pile).saved_bytes:
            given.add(pile.device)
            pile = replace(pile, hidden_bytes=pile.hidden_bytes + saved.bytes)
        result.append(pile)
    return result


def graph_of(case: Case, pile: Pile) -> device_piles.Autograd:
    """What of the autograd graph hangs below what piles up, on the device of the pile."""
    sums = evidence.Proof(case.last, case.growth.table, case.retention, pile.accumulation)
    return device_piles.autograd(case.last, sums.members, sums.below, pile.device)


def detect_shape(case: Case, shape: str, rule: Rule, remedy: str) -> Iterator[Finding | Dismissed]:
    """Yield a finding, or what was dismissed, for each pile of one shape; both for one whose bound is far away."""
    yield from (found for _, found in shaped(case, shape, rule, remedy))


def shaped(case: Case, shape: str, rule: Rule, remedy: str) -> Iterator[tuple[Pile, Finding | Dismissed]]:
    """Yield the same, each with its pile."""
    for rank, pile in enumerate(piles(case)):
        if pile.shape != shape:
            continue
        cohorts = case.cohorts(pile.accumulation) if rank < MOST_PROVEN else None
        outlived = case.survives_pause(pile.accumulation)
        bound = bound_of(case, pile.accumulation)
        why = dismissal(case, pile.accumulation, bound, cohorts, outlived, pile.device)
        if why:
            on = "" if pile.device == device_piles.HOST else pile.device
            yield pile, Dismissed(what_piles_up(pile), why, pile.path.owner, pile.accumulation.growth_bytes, on)
        if not why or bound is not None and is_far(case, bound):
            # a buffer has no entries that its owner could let go of
            cut = case.cut(pile.accumulation) if rank < MOST_PROVEN and not pile.accumulation.is_buffer else None
            yield pile, finding(case, pile, rule, remedy, Proven(cohorts, outlived, cut, str(bound) if bound else ""))


@dataclass(frozen=True)
class Proven:
    """What births, a pause of the load and the removal of the owner say of a pile; None: not known. `bound`: a far one."""

    cohorts: Cohorts | None
    outlived_ratio: float | None
    cut: Cut | None
    bound: str = ""


def what_piles_up(pile: Pile) -> str:
    """`shop.Order in app.CACHE`."""
    return f"{pile.accumulation.leaked_type} in {pile.path.owner}"


def finding(case: Case, pile: Pile, rule: Rule, remedy: str, proven: Proven) -> Finding:
    """Return the finding of a pile."""
    accumulation, cut, cohorts = pile.accumulation, proven.cut, proven.cohorts
    sums = evidence.Proof(case.last, case.growth.table, case.retention, accumulation)
    growth = pile.main_growth_bytes
    share = case.share_of_growth(pile.device, growth)
    rate = case.per_second(accumulation.counts)
    facts = proof.Facts(growth, accumulation.counts, _unit(pile), share, sums.ended_ratio, proven.outlived_ratio, cohorts, cut,
                        pile.device)
    bits = proof.bits(case, facts)
    others = _others(case, pile, cut)
    reasons, doubts = reasons_and_doubts(case, pile, facts, dict(bits))
    doubts = [f"it may be {proven.bound}"] * bool(proven.bound) + doubts
    if others:
        doubts.append(_held_twice(cut, others))
    origin = case.origins.of(sums.wanted())
    return Finding(
        rule=rule, confidence=confidence(case, pile, facts, bits, proven.bound), layer=_layer(pile, sums),
        owner=pile.path.owner, path=pile.path, leaked_type=accumulation.leaked_type, pid=int(case.info.get("pid", 0)),
        object_count=None if accumulation.is_buffer else accumulation.counts[-1],
        objects_per_s=None if rate is None or accumulation.is_buffer else round(rate.value, 3),
        retained_bytes=sums.retained_bytes, growth_bytes={**pile.growth, pile.device: growth}, share_of_growth_ratio=share,
        frees_bytes=_frees(sums.frees_bytes, cut), site=origin.first,
        sites=origin.places, also_held_by=others, reasons=(*reasons, *origin.reasons), doubts=(*doubts, *origin.doubts),
        remedy=remedy, counts=accumulation.counts, evidence=bits, cohorts=() if cohorts is None else cohorts.counts,
        leak_share_bytes=growth if cut is None else cut.share_of(growth), **proof.rates(case, facts))  # type: ignore[arg-type]


def _layer(pile: Pile, sums: evidence.Proof) -> str:
    """Where most of its growth lies."""
    return sums.layer(pile.hidden_bytes) if pile.device == device_piles.HOST else pile.device


def _frees(retained_bytes: int, cut: Cut | None) -> int:
    """What is freed: dominators know it where the owner alone frees it, with the owner itself."""
    if cut is None:
        return retained_bytes
    return max(retained_bytes, cut.freed_bytes) if cut.is_enough else cut.freed_bytes


def _unit(pile: Pile) -> str:
    accumulation = pile.accumulation
    return "bytes" if accumulation.is_buffer and accumulation.counts == accumulation.sizes_bytes else "entries"


def _others(case: Case, pile: Pile, cut: Cut | None) -> tuple[str, ...]:
    """Who else holds what piles up: by the votes of the newest entries where the owner alone frees little."""
    if pile.accumulation.is_buffer:
        return ()
    if cut is not None:
        return tuple(holder.name for holder in cut.others)
    return tuple(retention.other_holders(case.last, case.tree(case.last), pile.accumulation.member_node))


def _held_twice(cut: Cut | None, others: tuple[str, ...]) -> str:
    if cut is None or not cut.others or cut.ratio is None:
        return f"the objects are also held by {others[0]}"
    first = cut.others[0]
    text = (f"if the owner lets go, only {cut.ratio:.0%} is freed: {count_text(first.votes)} of {count_text(first.of)} of the "
            f"newest are also held by {first.name}")
    if cut.with_others_bytes is not None and cut.with_others_bytes > cut.freed_bytes:
        who = "both let" if len(cut.others) == 1 else "all of them let"
        text += f"; if {who} go, {bytes_text(cut.with_others_bytes)} are freed"
    if cut.point:
        text += f"; all of it hangs on {cut.point}"
    return text


def reasons_and_doubts(case: Case, pile: Pile, facts: proof.Facts, bits: dict[str, str]) -> tuple[list[str], list[str]]:
    """The evidence for and against, in whole phrases with their numbers."""
    counts, doubts = facts.counts, []
    reasons = [bits.get("G") or f"it grew ({facts.unit}): {arrows(counts)}"]
    ratio = case.steady(counts)
    if ratio is not None and ratio >= STEADY_RATIO:
        reasons.append(f"the growth does not slow down: the end grows at {ratio:.0%} of the pace of the start")
    elif ratio is not None:
        doubts.append(f"the growth slows down: the end grows at {ratio:.0%} of the pace of the start")
    if facts.share_ratio is not None:
        whole = "the process" if pile.device == device_piles.HOST else f"what is used on {pile.device}"
        reasons.append(f"it accounts for {facts.share_ratio:.0%} of the growth of {whole}")
    reasons += [bits[bit] for bit in "SED" if bit in bits]
    if pile.hidden_bytes and pile.device != device_piles.HOST:
        doubts.append(f"{bytes_text(pile.hidden_bytes)} of it are blocks on {pile.device} in which no tensor lies: that the "
                      "autograd graph of these tensors has saved them is likely, not seen")
    elif pile.hidden_bytes:
        doubts.append(f"{bytes_text(pile.hidden_bytes)} of native memory grew beside these objects, whose own memory "
                      "cannot be sized from Python")
    if len(counts) < proof.HIGH_SNAPSHOTS:
        doubts.append(f"only {len(counts)} snapshots")
    if pile.accumulation.is_moved:
        doubts.append("it was found at other paths before: it is compared with the largest of its type")
    if expires(case, pile):
        doubts.append("its entries expire by their age, which a short run does not show")
    if facts.cohorts is not None and facts.cohorts.is_backlog:
        doubts.append("the oldest are let go after a while: a queue that is emptied too slowly, or entries with a limit of age")
    if facts.outlived_ratio is None:
        doubts.append("no settle step: the load was never paused to see what stays")
    elif facts.outlived_ratio < settle.STAYS:
        doubts.append(f"only {facts.outlived_ratio:.0%} of its growth outlived a pause of the load")
    return reasons, doubts


def expires(case: Case, pile: Pile) -> bool:
    """True if the container lets its entries go by their age: whether it keeps up shows only after a while."""
    return evidence.expires_by_age(case.last, case.tree(case.last), pile.accumulation)


def confidence(case: Case, pile: Pile, facts: proof.Facts, bits: tuple[tuple[str, str], ...], far_bound: str) -> Confidence:
    """As the bits say; low where the pace fades, a bound is stated, or entries expire that were not watched for long."""
    ratio = case.steady(facts.counts)
    if pile.shape == "cache" and facts.cohorts is not None and (facts.cohorts.pace_ratio or 1.0) < STEADY_RATIO:
        return Confidence.LOW  # a cache of all that can be asked for fills ever slower
    if pile.shape == "cache" and answers_more(case, pile.accumulation):
        return Confidence.LOW  # the same, told by its own counters
    if far_bound or ratio is not None and ratio < STEADY_RATIO:
        return Confidence.LOW
    is_indirect = pile.accumulation.is_branch or pile.accumulation.is_moved
    if is_indirect and (len(facts.counts) < proof.HIGH_SNAPSHOTS or (facts.share_ratio or 0.0) < INDIRECT_SHARE):
        return Confidence.LOW
    if len(facts.counts) < EXPIRY_SNAPSHOTS and expires(case, pile):
        return Confidence.LOW
    return proof.confidence(bits, facts)
