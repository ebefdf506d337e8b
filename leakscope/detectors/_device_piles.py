"""What the detectors of piles on devices share: what a finding of a pile says more, and what to do about it there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple
from weakref import WeakKeyDictionary

from leakscope.case import Case
from leakscope.detectors import _devices, _layers, _piles
from leakscope.detectors._piles import Pile
from leakscope.model import Dismissed, Finding, Rule

# What is unattributed depends on what all others found, so they are asked twice; a case that is gone takes its own along.
_found: WeakKeyDictionary[Case, dict[str, list[Finding | Dismissed]]] = WeakKeyDictionary()


class Told(NamedTuple):
    """What a class of the knowledge page adds to a finding: more reasons and doubts, and the remedy."""

    remedy: str
    reasons: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()


def detect(case: Case, shape: str, rule: Rule, tell: Callable[[Case, Pile], Told]) -> Iterator[Finding | Dismissed]:
    """Yield the piles of one shape of analyse/device_piles.py."""
    if not case.devices:
        return
    known, key = _found.setdefault(case, {}), f"{rule.code} {shape}"
    if key not in known:
        known[key] = [with_told(case, found, tell(case, pile)) if isinstance(found, Finding) else found
                      for pile, found in _piles.shaped(case, shape, rule, "")]
    yield from known[key]


def with_told(case: Case, found: Finding, told: Told) -> Finding:
    """Return a finding with what its class adds, and with what of its device nobody measured."""
    device = case.device(found.layer)
    missing = () if device is None else tuple(f"not measured: {what}" for what in device.unmeasured)
    return replace(found, remedy=told.remedy, reasons=(*found.reasons, *told.reasons, *_layers.which_process(case)),
                   doubts=(*found.doubts, *told.doubts, *missing))


def clearing(case: Case, pile: Pile, sentence: str) -> str:
    """A remedy that frees what captured graphs may still use, or the word that they do."""
    device = case.device(pile.device)
    if device is None or _devices.has_graphs(case, device) is not False:
        return "Do not clear it while the process runs: captured graphs may still use what it holds."
    return sentence
