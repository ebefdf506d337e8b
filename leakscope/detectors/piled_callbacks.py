"""Callbacks, listeners, hooks or signal receivers that are added for every request and never removed. A bound method keeps
its object, a closure the variables it uses.

**Found by** a growing pile of functions or bound methods.

**Remedy.** Connect once, or disconnect in a `finally`; keep bound methods by `weakref.WeakMethod`; use the handle that the
registration returned (`handle.remove()`).
"""

from __future__ import annotations

from collections.abc import Iterator

from leakscope.case import Case
from leakscope.detectors._piles import detect_shape
from leakscope.model import Dismissed, Finding, Rule

RULE = Rule("LS106", "listeners-never-removed", "Callbacks are added and never removed")
REMEDY = "Disconnect in a finally (or keep the handle and remove it); hold bound methods by weakref.WeakMethod."


def detect(case: Case) -> Iterator[Finding | Dismissed]:
    """Yield the piles of this shape."""
    yield from detect_shape(case, "listener", RULE, REMEDY)
