"""A cache is keyed by objects that are compared by identity and made anew for each call: it keeps every call, and answers none.

A function, a lambda, a `functools.partial`, a tensor or an object of a class without `__eq__` equals only itself. Where one is
part of the key and is made in each call, no later call can find an entry. FlashInfer's autotuner was keyed by such a function
until 0.6.16: about 100 GB of host memory in twelve hours.

**Found by** the counters of a functools cache without a bound in a process that uses a device: at least 0.9 entries for each
call, under 1 % of calls answered, and a position of the keys that is compared by identity and new in each entry. On a process
without a device the rule `unbounded-lru-cache` finds the same cache; one whose values lie on a device is `tensor-cache`.

**Remedy.** Make the object once, as a constant of the module; give its class `__eq__` and `__hash__`; upgrade the library.
"""

from __future__ import annotations

from collections.abc import Iterator

from leakscope.analyse import cachekeys, memory
from leakscope.analyse.cachekeys import History
from leakscope.case import LEAST_PILE_BYTES, Case
from leakscope.detectors import _caches, _layers
from leakscope.model import Confidence, Dismissed, Finding, Rule
from leakscope.units import count_text

RULE = Rule("LS403", "identity-keyed-cache", "A cache whose keys no later call can meet again")
REMEDY = ("Make the object that varies once, outside of the call, or give its class __eq__ and __hash__, and give the cache a "
          "maxsize.")


def detect(case: Case) -> Iterator[Finding | Dismissed]:
    """Yield the caches of this shape."""
    for found in _caches.histories(case):
        if _caches.is_useless(case, found) and not _caches.on_device(case, found):
            if finding := _finding(case, found):
                yield finding


def _finding(case: Case, found: History) -> Finding | None:
    last, grown = found.last, _caches.kept_bytes(case, found).get("host", 0)
    path = case.path(last.node) if last.node >= 0 else None
    if grown < LEAST_PILE_BYTES or path is None:
        return None
    device = case.devices[0]
    answered = f"{count_text(last.misses or 0)} calls were computed, {count_text(last.hits or 0)} were answered from it"
    is_sure = len(found.sizes) > 3
    return Finding(
        RULE, Confidence.HIGH if is_sure else Confidence.MEDIUM, "python", path.owner, path, "cache entry",
        pid=int(case.info.get("pid", 0)), object_count=last.size, retained_bytes=cachekeys.kept_bytes(case, last),
        growth_bytes={"host": grown}, share_of_growth_ratio=memory.ratio(grown, case.layer("total")),
        counts=tuple(size or 0 for size in found.sizes),
        reasons=(*_caches.reasons(found), answered, *_layers.which_process(case)),
        doubts=() if is_sure else (f"only {len(found.sizes)} snapshots",), remedy=_caches.advice(case, device, found, REMEDY))
