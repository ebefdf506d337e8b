"""A container that only grows: a dict, list, set, deque or chain of objects to which something is added for every
request, message or step, and from which nothing is taken.

**Found by** comparing the same path over at least three snapshots: the number of entries per holder rose in every
interval, and the pace does not fade. A container with a stated bound (maxsize, maxlen, capacity) that it will reach, and
one whose growth levels off, are dismissed with that reason.

**Remedy.** Remove the entry when its subject ends (`pop` in a `finally`), or bound it: `collections.deque(maxlen=...)`,
`cachetools.LRUCache` or `TTLCache`, or `weakref.WeakValueDictionary` where somebody else owns the values.
"""

from __future__ import annotations

from collections.abc import Iterator

from leakscope.case import Case
from leakscope.detectors._piles import detect_shape
from leakscope.model import Dismissed, Finding, Rule

RULE = Rule("LS101", "unbounded-container", "A container that only grows")
REMEDY = "Bound it (an LRU or TTL cache, a deque with maxlen), or remove each entry when what it is for has ended."


def detect(case: Case) -> Iterator[Finding | Dismissed]:
    """Yield the piles of this shape."""
    yield from detect_shape(case, "container", RULE, REMEDY)
