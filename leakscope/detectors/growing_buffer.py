"""One object that gets larger and larger: a bytearray, a string, an array or a list of small numbers to which something is
appended for ever.

**Found by** the size of the same path rising in every interval while the number of objects stays.

**Remedy.** Flush it to where it belongs, keep a window (`deque(maxlen=...)`), or an aggregate instead of every value.
"""

from __future__ import annotations

from collections.abc import Iterator

from leakscope.case import Case
from leakscope.detectors._piles import detect_shape
from leakscope.model import Dismissed, Finding, Rule

RULE = Rule("LS107", "growing-buffer", "One object gets larger and larger")
REMEDY = "Flush it, keep a bounded window of it, or an aggregate instead of every value."


def detect(case: Case) -> Iterator[Finding | Dismissed]:
    """Yield the piles of this shape."""
    yield from detect_shape(case, "buffer", RULE, REMEDY)
