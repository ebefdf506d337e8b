"""Exceptions that are kept: an exception holds its traceback, the traceback every frame it passed, and a frame all local
variables of its function. A list of "last errors" can so keep whole requests.

**Found by** a growing pile whose entries are exceptions or tracebacks.

**Remedy.** Store `str(error)` or `traceback.format_exception(error)` instead of the exception, or
`error.with_traceback(None)`; and `del` the variable in a `finally` where the frame itself refers to it.
"""

from __future__ import annotations

from collections.abc import Iterator

from leakscope.case import Case
from leakscope.detectors._piles import detect_shape
from leakscope.model import Dismissed, Finding, Rule

RULE = Rule("LS103", "stored-exceptions", "Exceptions are kept, and with them every local variable on their way")
REMEDY = ("Store the text of the exception, or error.with_traceback(None): the traceback keeps every local variable of "
          "every frame.")


def detect(case: Case) -> Iterator[Finding | Dismissed]:
    """Yield the piles of this shape."""
    yield from detect_shape(case, "exception", RULE, REMEDY)
