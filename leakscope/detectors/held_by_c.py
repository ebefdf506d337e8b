"""Objects with more references than all Python objects together account for: an extension module or C++ code holds them, or
somebody forgot a `Py_DECREF`.

**Found by** a growing number of objects of one type that no named root reaches and whose reference count is not explained.

**Remedy.** Look at the extension that makes or stores this type; close or free its handle; report a missing Py_DECREF.
"""

from __future__ import annotations

from collections.abc import Iterator

from leakscope.case import Case
from leakscope.detectors._piles import detect_shape
from leakscope.model import Dismissed, Finding, Rule

RULE = Rule("LS109", "held-by-native-code", "Objects are held by references that no Python object accounts for")
REMEDY = ("Close or free the native handle that keeps them, or look for a missing Py_DECREF in the extension that "
          "makes them.")


def detect(case: Case) -> Iterator[Finding | Dismissed]:
    """Yield the piles of this shape."""
    yield from detect_shape(case, "c-held", RULE, REMEDY)
