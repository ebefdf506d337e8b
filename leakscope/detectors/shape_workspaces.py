"""A cache keeps a buffer on the device for each length or shape: its bytes go along with a number of the key.

**Found by** a pile of tensors on a device that hangs below a cache or table whose values take memory in step with an integer
of their key (Pearson's r above 0.9 over at least five values).

**Remedy.** One buffer of the largest size, of which each call takes a slice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from leakscope.analyse import device_piles
from leakscope.case import Case
from leakscope.detectors import _caches, _device_piles
from leakscope.detectors._device_piles import Told
from leakscope.detectors._piles import Pile
from leakscope.model import Dismissed, Finding, Rule
from leakscope.units import bytes_text

RULE = Rule("LS405", "workspace-per-shape", "A buffer on a device for each length or shape")
REMEDY = "Keep one buffer of the largest size and take a slice of it, or round the size up to few steps."


def detect(case: Case) -> Iterator[Finding | Dismissed]:
    """Yield the piles on devices that belong to such a cache."""
    if not case.devices or not _caches.by_shape(case):
        return
    for shape in (device_piles.TENSORS, device_piles.CACHE):
        for found in _device_piles.detect(case, shape, RULE, _told):
            tied = _caches.of_shape(case, found.owner) if isinstance(found, Finding) else None
            if isinstance(found, Finding) and tied is not None:
                history, best = tied
                text = (f"the bytes of its values go along with a number of the key: r = {best.r:.2f} over {best.points} "
                        f"values, {bytes_text(best.bytes_per_unit)} for one more")
                yield replace(found, reasons=(*found.reasons, *_caches.reasons(history), text),
                              remedy=_caches.advice(case, case.device(best.device), history, REMEDY))


def _told(case: Case, pile: Pile) -> Told:
    return Told(REMEDY)
