"""Why a pile is no leak: each reason with its number. What is not dismissed here may be one."""

from __future__ import annotations

from dataclasses import dataclass

from leakscope.analyse import evidence, settle
from leakscope.analyse.cohorts import Cohorts
from leakscope.analyse.growth import Accumulation
from leakscope.case import LEAST_SNAPSHOTS, Case
from leakscope.units import bytes_text, count_text, seconds_text

PLATEAU_RATIO = 0.25  # the last third grows at less than a quarter of the pace of the first; ours
STEADY_RATIO = 0.5  # of the pace of the start at the end: the growth does not slow down; ours
SOFT_BOUND = 2.0  # some caches tidy up late: SQLAlchemy's at 1.5 times its capacity
FILLED_RATIO = 0.2  # a container below this is far from its bound ...
HUGE_BOUND_BYTES = 256 << 20  # ... and a bound that would hold this much is none; both ours
FAR_BOUND_SHARE = 1.0  # ... and one that would hold more than the process has is no harmless one; ours
VAGUE_NAMES = ("limit", "_limit")  # may be a limit of anything: they count for a container that comes near them; ours
HIT_SHARE = 0.5  # as many answers as so many misses: the cache is of use; ours


@dataclass(frozen=True)
class Bound:
    """A declared limit: `limit` entries, `what` it is called, the part that is filled, and what a full one would hold."""

    limit: int
    what: str
    filled_ratio: float
    full_bytes: float

    def __str__(self) -> str:
        return f"bounded: {self.what} {count_text(self.limit)}, {min(self.filled_ratio, 1.0):.0%} filled"


def bound_of(case: Case, pile: Accumulation) -> Bound | None:
    """The limit that a container declares and keeps; None where there is none, or where it is so far away that it is none."""
    declared = evidence.declared_bound(case.last, case.tree(case.last), pile)
    if declared is None:
        return None
    limit, what = declared
    entries = pile.counts[-1] / max(1, pile.owner_count)
    unit = pile.sizes_bytes[-1] / max(1, pile.counts[-1])
    bound = Bound(limit, what, entries / limit if limit else 1.0, unit * limit)
    if what in VAGUE_NAMES and bound.filled_ratio < FILLED_RATIO:
        return None
    if bound.filled_ratio > SOFT_BOUND or bound.filled_ratio < FILLED_RATIO and bound.full_bytes >= HUGE_BOUND_BYTES:
        return None
    return bound


def is_far(case: Case, bound: Bound) -> bool:
    """True if a container is nearly empty, and a full one would take more memory than the whole process has now."""
    now = case.memory.points[-1][1] if case.memory.points else 0.0
    return bound.filled_ratio < FILLED_RATIO and bound.full_bytes > FAR_BOUND_SHARE * now > 0


def dismissal(case: Case, pile: Accumulation, bound: Bound | None, cohorts: Cohorts | None,
              outlived_ratio: float | None, device: str = "host") -> str:
    """Why a pile is no leak; empty if it may be one. `bound`: as bound_of says; `device`: where most of it lies."""
    if bound is not None:
        return str(bound)
    ratio = case.steady(pile.counts)
    if ratio is not None and ratio < PLATEAU_RATIO:
        return (f"it levels off: {arrows(pile.counts)}, the end grows at {max(ratio, 0.0):.0%} of the pace of the start"
                f"{_filled_at_start(cohorts)}")
    if case.has_stalled(evidence.node_growth(case.growth, pile), device):
        what = "the objects of the process" if device == "host" else f"what is allocated on {device}"
        return f"it levels off: {what} hardly grew in the last third of the run"
    if outlived_ratio is not None and outlived_ratio < settle.GONE and case.settled is not None:
        return (f"in flight: {outlived_ratio:.0%} of its growth was left when the load had paused for "
                f"{seconds_text(case.settled.last.quiet_s)}")
    return _by_hits(case, pile, cohorts) or _by_births(case, pile, cohorts, ratio) or (
        _by_load(case, cohorts) if device == "host" else "")


def arrows(counts: tuple[int, ...]) -> str:
    """`120 -> 900 -> 1 800`."""
    return " -> ".join(count_text(count) for count in counts)


def _filled_at_start(cohorts: Cohorts | None) -> str:
    if cohorts is None or not cohorts.is_front_loaded:
        return ""
    return f"; {cohorts.early_ratio or 0.0:.0%} of what is new was born in the first third of the time"


def _by_hits(case: Case, pile: Accumulation, cohorts: Cohorts | None) -> str:
    """A cache that answers, and is filled ever slower: it will have all that can be asked for."""
    cache = evidence.cache_of(case.last, case.tree(case.last), pile)
    ratio = None if cohorts is None else cohorts.pace_ratio
    if cache is None or ratio is None or ratio >= STEADY_RATIO or cache.get("hits", 0) < HIT_SHARE * cache.get("misses", 0):
        return ""
    return (f"it levels off: entries come at {ratio:.0%} of the pace of the start, and {count_text(cache['hits'])} questions "
            f"were answered from it, {count_text(cache['misses'])} were not")


def answers_more(case: Case, pile: Accumulation) -> bool:
    """True for a functools cache that missed ever more seldom, and in the end half as often as at first.

    Keys that never come again miss as often as ever. So many different ones may still come that it cannot be called bounded.
    """
    cache = evidence.cache_of(case.last, case.tree(case.last), pile)
    known = [each for reading in case.readings for each in reading.caches
             if cache is not None and each.address == cache["address"] and each.hits is not None and each.misses is not None]
    asked = [(0, 0), *((each.hits or 0, each.misses or 0) for each in known)]
    shares = [(later[1] - earlier[1]) / total for earlier, later in zip(asked, asked[1:])
              if (total := sum(later) - sum(earlier)) > 0]
    falls = all(later < earlier for earlier, later in zip(shares, shares[1:]))
    return len(shares) >= LEAST_SNAPSHOTS and falls and shares[-1] <= STEADY_RATIO * shares[0]


def _by_births(case: Case, pile: Accumulation, cohorts: Cohorts | None, ratio: float | None) -> str:
    """In flight where nobody stays; filled at the start where nearly nobody came later."""
    if cohorts is None:
        return ""
    if cohorts.has_gone:
        seen = zip(case.times_s, pile.counts, cohorts.survival)
        t_s, count, part = [each for each in seen if each[2] is not None][-1]
        return (f"in flight: of the {count_text(count)} that were there at {seconds_text(t_s)}, {part:.0%} are left; only the "
                "youngest survive")
    if cohorts.is_front_loaded and ratio is not None and ratio < STEADY_RATIO:
        return (f"filled at the start: {cohorts.early_ratio or 0.0:.0%} of what is new was born in the first third of the time "
                "between the snapshots")
    return ""


def _by_load(case: Case, cohorts: Cohorts | None) -> str:
    """Memory that follows the load, where no births speak against it."""
    if not case.follows_load or case.load is None or cohorts is not None and cohorts.is_flat:
        return ""
    load = case.load
    return (f"it follows the load: {load.explained_ratio:.0%} of the growth of memory is explained by {load.covariate}, "
            f"{bytes_text(load.bytes_per_unit)} for one more")
