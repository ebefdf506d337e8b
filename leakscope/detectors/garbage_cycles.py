"""Unreachable cycles pile up because the collector does not come, or cannot free them.

Two objects that refer to each other are not freed when the last name for them goes: only the cyclic collector frees them. It
does not where a service switched it off (`gc.disable()`), froze its heap, or set thresholds that are rarely reached; nor
does it see edges through C code that lacks tp_traverse, such as the autograd graph of torch.

**Found by** computing garbage from the snapshot exactly as CPython would (reference counts less visible references, then
reachability), without collecting, in every snapshot; and by what the collector says of itself. Garbage that only waits for
a collector with ordinary settings is dismissed.

**Remedy.** Break the cycle where it is made: hold the way back by `weakref.ref`, `del` the exception or the future in a
`finally`, call `close()`; or let the collector run (`gc.enable()`, ordinary thresholds, a `gc.collect()` at quiet moments).
"""

from __future__ import annotations

from collections.abc import Iterator

from leakscope.analyse.trend import grew_in_every_interval
from leakscope.case import Case
from leakscope.detectors import _cycles
from leakscope.model import Dismissed, Finding, Rule
from leakscope.units import bytes_text, count_text

RULE = Rule("LS201", "garbage-cycles", "Unreachable cycles pile up uncollected")
REMEDY = ("Break the cycle (hold the way back by weakref.ref, del the exception in a finally), or let the collector run "
          "(gc.enable(), ordinary thresholds).")

WAITS = "waiting garbage"  # how the reason begins that explains growth (verdict.WAITING)
HIDDEN = "the way back goes through C++ objects, which the collector does not look into: it never frees this cycle"
HIDDEN_REMEDY = ("Break the cycle where it is closed; no collector does. Of tensors: set .grad to None, or take the gradients "
                 "by torch.autograd.grad instead of backward(create_graph=True).")

LEAST_GARBAGE_BYTES = 256 << 10  # less is the ordinary sawtooth; ours
TUNED_THRESHOLD = 10_000  # CPython's own are 700 and 2000; services that tune set 50 000 and more
TUNED_OLD_THRESHOLD = 50  # CPython's own is 10: so many middle collections before a full one
FROZEN_SHARE = 0.5  # of the garbage: so many more objects were frozen while it grew; ours


def detect(case: Case) -> Iterator[Finding | Dismissed]:
    """Yield one finding for each shape of cycle that matters, if garbage really piles up."""
    if not case.can_compare:
        return
    sizes = case.garbage_bytes
    growth = sizes[-1] - sizes[0]
    if growth < LEAST_GARBAGE_BYTES:
        return
    why = reason(case)
    found = list(_findings(case, growth, why)) if grew_in_every_interval(sizes) and not is_swept(case) else []
    yield from found
    if not found:
        waits = f"{WAITS}: {bytes_text(sizes[-1])}, for which the collector has not come yet, but will: {due(case)}"
        comes_and_goes = f"they come and go: {bytes_text(sizes[-1])} are left, and {why}"
        yield Dismissed("unreachable cycles", comes_and_goes if why else waits, "", growth)


def due(case: Case) -> str:
    """When the next full collection comes, by the counters of the last snapshot (CPython gcmodule.c)."""
    counts, thresholds = case.collector.get("counts") or [], case.collector.get("thresholds") or []
    if len(counts) < 3 or len(thresholds) < 3:
        return f"it is on with thresholds {thresholds}"
    left = max(0, int(thresholds[2]) - int(counts[2])) + 1
    each = int(thresholds[0]) * max(1, int(thresholds[1]))
    return (f"after {left} more collections of the middle generation, one for about {count_text(each)} new objects, and once "
            "the objects that no full collection has seen are a quarter of all")


def reason(case: Case) -> str:
    """Why the collector does not free what is unreachable; empty if it only has not come yet."""
    collector = case.collector
    thresholds = collector.get("thresholds") or [0, 0, 0]
    if collector.get("enabled") is False:
        return "the collector is off: gc.disable()"
    if thresholds[0] == 0:
        return "the collector is off: its first threshold is 0"
    if thresholds[0] >= TUNED_THRESHOLD or len(thresholds) > 1 and thresholds[1] >= TUNED_OLD_THRESHOLD:
        return f"the collector is tuned to come rarely: gc.set_threshold{tuple(thresholds)}"
    frozen = _frozen_more(case)
    if frozen and frozen >= FROZEN_SHARE * case.garbage_count:
        return (f"gc.freeze() is called again and again: {count_text(frozen)} more objects are out of sight of the collector, "
                "and what was frozen is not freed")
    if (case.full_collections or 0) > 0 and case.garbage_count > case.young_count:
        return f"{case.full_collections} full collections did not free it: the collector cannot see an edge, or it is frozen"
    return ""


def is_swept(case: Case) -> bool:
    """True if a full collection came in every interval and all that is garbage may have been made since the last one.

    So it is where a program collects between batches with the collector off: nothing piles up, whenever snapshots are taken.
    """
    counts = [graph.info.get("sample", {}).get("gc_collections2") for graph in case.compared]
    known = [int(count) for count in counts if count is not None]
    return len(known) == len(counts) and grew_in_every_interval(known) and case.garbage_count <= case.young_count


def _frozen_more(case: Case) -> int:
    """How many more objects were frozen between the snapshots; 0 unless in every interval: a service freezes its heap once."""
    counts = [graph.info.get("gc", {}).get("freeze_count") or 0 for graph in case.compared]
    return int(counts[-1] - counts[0]) if grew_in_every_interval(counts) else 0


def _findings(case: Case, growth: int, why: str) -> Iterator[Finding]:
    """The cycles that are not freed: all of them, or (without a `why`) those that no collector can see."""
    for size, cycle in _cycles.heaviest(case, "host"):
        part = min(1.0, size / (case.garbage_bytes[-1] or 1))
        is_hidden = _cycles.is_hidden(case.last, cycle)
        if cycle.edges and growth * part >= LEAST_GARBAGE_BYTES / 2 and (why or is_hidden):
            yield _cycles.finding(case, RULE, cycle, size, int(growth * part), HIDDEN if is_hidden else why,
                                  HIDDEN_REMEDY if is_hidden else REMEDY)
