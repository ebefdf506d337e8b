"""A registry that lives as long as the process: `atexit`, `weakref.finalize`, `signal`, `logging` handlers and loggers,
`gc.callbacks`, `sys` hooks. What is registered for every request is never let go.

**Found by** a growing pile below one of these registries.

**Remedy.** Register once per process; keep what `register` returned and unregister it (`atexit.unregister`,
`finalize.detach`, `logger.removeHandler`) when its subject ends; do not make a logger per connection.
"""

from __future__ import annotations

from collections.abc import Iterator

from leakscope.case import Case
from leakscope.detectors._piles import detect_shape
from leakscope.model import Dismissed, Finding, Rule

RULE = Rule("LS104", "growing-registry", "A registry of the standard library that only grows")
REMEDY = ("Register once for the process, or unregister when the subject ends (atexit.unregister, finalize.detach, "
          "removeHandler).")


def detect(case: Case) -> Iterator[Finding | Dismissed]:
    """Yield the piles of this shape."""
    yield from detect_shape(case, "registry", RULE, REMEDY)
