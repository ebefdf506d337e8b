"""What the detectors of piles share: one accumulation of objects becomes one finding, or is dismissed with its reason.

Each pile has exactly one shape, and each shape one detector: what a person has to do differs (bound the cache, remove the
listener, drop the traceback), the proof does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

from leakscope.analyse import evidence, retention
from leakscope.analyse.growth import Accumulation
from leakscope.case import LEAST_PILE_BYTES, Case
from leakscope.model import Confidence, Dismissed, Finding, Path, Rule
from leakscope.units import bytes_text, count_text

PLATEAU_RATIO = 0.25  # the last third grows at less than a quarter of the pace of the first; ours
STEADY_RATIO = 0.5
HIGH_SNAPSHOTS = 4
HIGH_SHARE = 0.3  # of the growth of the process
HIDDEN_LEAST_BYTES = 4 << 20  # native growth that is worth blaming on objects whose memory cannot be sized
EXPIRY_SNAPSHOTS = 5  # a cache that expires by age is believed to grow only over so many; ours
SOFT_BOUND = 2.0  # some caches tidy up late: SQLAlchemy's at 1.5 times its capacity
FILLED_RATIO = 0.2  # a cache below this is far from its bound ...
HUGE_BOUND_BYTES = 256 << 20  # ... and a bound that would hold this much is none; both ours


@dataclass(frozen=True)
class Pile:
    """An accumulation with its names."""

    accumulation: Accumulation
    shape: str  # cache | registry | exception | task | listener | buffer | roots | c-held | container
    path: Path
    hidden_bytes: int  # growth of native memory that these objects may hold


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
        hidden = hidden_left if evidence.hides_native(case.last, accumulation) else 0
        is_graph = evidence.carries_autograd(case.last, accumulation)
        if accumulation.growth_bytes + hidden < LEAST_PILE_BYTES and not is_graph:
            continue
        hidden_left -= hidden
        shape = evidence.shape(case.last, case.tree(case.last), accumulation, path)
        found.append(Pile(accumulation, shape, path, hidden))
    return sorted(_with_saved_tensors(case, found), key=lambda pile: -(pile.accumulation.growth_bytes + pile.hidden_bytes))


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


def detect_shape(case: Case, shape: str, rule: Rule, remedy: str) -> Iterator[Finding | Dismissed]:
    """Yield a finding, or what was dismissed, for each pile of one shape."""
    for pile in piles(case):
        if pile.shape == shape:
            why = dismissal(case, pile)
            growth = pile.accumulation.growth_bytes
            if why:
                yield Dismissed(what_piles_up(pile), why, pile.path.owner, growth)
            else:
                yield finding(case, pile, rule, remedy)


def what_piles_up(pile: Pile) -> str:
    """`dict of shop.Order in app.CACHE`."""
    return f"{pile.accumulation.leaked_type} in {pile.path.owner}"


def dismissal(case: Case, pile: Pile) -> str:
    """Why a pile is no leak; empty if it may be one."""
    counts = pile.accumulation.counts
    bound = evidence.declared_bound(case.last, case.tree(case.last), pile.accumulation)
    if bound is not None:
        limit, what = bound
        entries = counts[-1] / max(1, pile.accumulation.owner_count)
        filled = entries / limit if limit else 1.0
        unit = pile.accumulation.sizes_bytes[-1] / max(1, counts[-1])
        if filled <= SOFT_BOUND and (filled >= FILLED_RATIO or unit * limit < HUGE_BOUND_BYTES):
            return f"bounded: {what} {count_text(limit)}, {min(filled, 1.0):.0%} filled"
    ratio = case.steady(counts)
    if ratio is not None and ratio < PLATEAU_RATIO:
        return f"it levels off: {arrows(counts)}, the end grows at {max(ratio, 0.0):.0%} of the pace of the start"
    if case.has_stalled(evidence.node_growth(case.growth, pile.accumulation)):
        return "it levels off: the objects of the process hardly grew in the last third of the run"
    return ""


def arrows(counts: tuple[int, ...]) -> str:
    """`120 -> 900 -> 1 800`."""
    return " -> ".join(count_text(count) for count in counts)


def finding(case: Case, pile: Pile, rule: Rule, remedy: str) -> Finding:
    """Return the finding of a pile."""
    accumulation = pile.accumulation
    proof = evidence.Proof(case.last, case.growth.table, case.retention, accumulation)
    share = evidence.share_of_growth(case.trend, case.times_s, accumulation.growth_bytes + pile.hidden_bytes)
    rate = case.per_second(accumulation.counts)
    reasons, doubts = reasons_and_doubts(case, pile, share)
    if proof.ended_ratio >= 0.25:
        reasons.append(f"{proof.ended_ratio:.0%} of them have ended: nobody will use them again")
    others = () if accumulation.is_buffer else tuple(
        retention.other_holders(case.last, case.tree(case.last), accumulation.member_node))
    if others:
        doubts.append(f"the objects are also held by {others[0]}")
    growth = {"host": accumulation.growth_bytes + pile.hidden_bytes}
    origin = case.origins.of(proof.wanted())
    return Finding(
        rule=rule, confidence=confidence(case, pile, share), layer=proof.layer(pile.hidden_bytes), owner=pile.path.owner,
        path=pile.path, leaked_type=accumulation.leaked_type, pid=int(case.info.get("pid", 0)),
        object_count=None if accumulation.is_buffer else accumulation.counts[-1],
        objects_per_s=None if rate is None or accumulation.is_buffer else round(rate.value, 3),
        retained_bytes=proof.retained_bytes, growth_bytes=growth, share_of_growth_ratio=share,
        frees_bytes=proof.frees_bytes, site=origin.first, sites=origin.places, also_held_by=others,
        reasons=(*reasons, *origin.reasons), doubts=(*doubts, *origin.doubts), remedy=remedy,
        fingerprint=evidence.fingerprint(pile.path), counts=accumulation.counts)


def reasons_and_doubts(case: Case, pile: Pile, share: float | None) -> tuple[list[str], list[str]]:
    """The evidence for and against, in whole phrases with their numbers."""
    counts, doubts = pile.accumulation.counts, []
    unit = "bytes" if pile.accumulation.is_buffer and counts == pile.accumulation.sizes_bytes else "entries"
    reasons = [f"it grew in every interval ({unit}): {arrows(counts)}"]
    ratio = case.steady(counts)
    if ratio is not None and ratio >= STEADY_RATIO:
        reasons.append(f"the growth does not slow down: the end grows at {ratio:.0%} of the pace of the start")
    elif ratio is not None:
        doubts.append(f"the growth slows down: the end grows at {ratio:.0%} of the pace of the start")
    if share is not None:
        reasons.append(f"it accounts for {share:.0%} of the growth of the process")
    if pile.hidden_bytes:
        doubts.append(f"{bytes_text(pile.hidden_bytes)} of native memory grew beside these objects, whose own memory "
                      "cannot be sized from Python")
    if len(counts) < HIGH_SNAPSHOTS:
        doubts.append(f"only {len(counts)} snapshots")
    if expires(case, pile):
        doubts.append("its entries expire by their age, which a short run does not show")
    doubts.append("no settle step: the load was never paused to see what stays")
    return reasons, doubts


def expires(case: Case, pile: Pile) -> bool:
    """True if the container lets its entries go by their age: whether it keeps up shows only after a while."""
    return evidence.expires_by_age(case.last, case.tree(case.last), pile.accumulation)


def confidence(case: Case, pile: Pile, share: float | None) -> Confidence:
    """High with enough snapshots, a pace that holds, and a share that matters; low where the pace fades."""
    ratio = case.steady(pile.accumulation.counts)
    if ratio is not None and ratio < STEADY_RATIO:
        return Confidence.LOW
    if len(pile.accumulation.counts) < EXPIRY_SNAPSHOTS and expires(case, pile):
        return Confidence.LOW
    enough = len(pile.accumulation.counts) >= HIGH_SNAPSHOTS
    return Confidence.HIGH if enough and (share or 0.0) >= HIGH_SHARE else Confidence.MEDIUM


