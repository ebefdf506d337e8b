"""A `functools.cache` or `lru_cache` that keeps every call: it has no bound, or its key differs on every call, or it
decorates a method, so that `self` is part of every key and no instance is ever freed.

**Found by** the growth of the entries of the wrapper over the snapshots. A cache that fills towards its maxsize is dismissed.

**Remedy.** Give it a `maxsize`; leave the varying argument out of the key; on a method use `functools.cached_property`, or
cache in a dict on the instance, so that the cache dies with it.
"""

from __future__ import annotations

from collections.abc import Iterator

from leakscope.case import Case
from leakscope.detectors import _caches
from leakscope.detectors._piles import shaped
from leakscope.model import Dismissed, Finding, Rule

RULE = Rule("LS102", "unbounded-lru-cache", "A functools cache that keeps every call")
REMEDY = ("Give the cache a maxsize, take the varying argument out of its key, and do not decorate methods: self is "
          "part of the key.")


def detect(case: Case) -> Iterator[Finding | Dismissed]:
    """Yield the piles of this shape."""
    yield from (found for pile, found in shaped(case, "cache", RULE, REMEDY) if not _caches.is_claimed(case, pile))
