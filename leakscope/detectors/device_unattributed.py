"""A term of the device's account grows, and less than half of it is explained.

Every class of growth belongs to one term of the account: outside of the allocator, owned by Python, workspaces, without an
owner, waiting, free pieces, free segments. Where a term goes on growing and the causes that were found explain less than half
of it, the honest answer is the term, the bytes and the command that gets more evidence.

**Found by** the account itself, after all other rules about devices have had their say.

**Remedy.** The command in the remedy.
"""

from __future__ import annotations

from collections.abc import Iterator

from leakscope.analyse.devices import Device
from leakscope.case import Case
from leakscope.detectors import _devices
from leakscope.detectors._devices import Cause
from leakscope.model import DEVICE_TERMS, Dismissed, Finding, Rule
from leakscope.units import bytes_text

RULE = Rule("LS400", "device-unattributed", "Device memory grows, and most of it is not explained")
NEXT = {  # what gets more evidence about a term, where recording the allocator does not
    "outside": "Trace cudaMalloc and module loads of the process (CUPTI, Nsight Systems), and ask each library for its pool.",
    "releasable": "leakscope run --every 2s -- COMMAND takes more snapshots, so that pools and peaks can be compared.",
}


def detect(case: Case) -> Iterator[Finding | Dismissed]:
    """Yield a finding for each term that grows and is not explained."""
    by_load = [device for device in case.devices if device.growth is not None and case.follows_load_on(device.name)]
    yield from (_by_load(case, device) for device in by_load)
    growing = [(device, term) for device in case.devices if device not in by_load
               for term in device.terms if device.terms[term].growth is not None]
    found = _devices.told(case, _devices.TERMS_OF) if growing else []
    for device, term in growing:
        growth = device.terms[term].growth
        known = _devices.explained_bytes(found, device, term)
        harmless = _devices.dismissed_bytes(case, device, term)
        if growth is not None and known + harmless < _devices.LEAST_SHARE * growth.bytes:
            yield _finding(case, device, term, growth.bytes - known, known)


def _by_load(case: Case, device: Device) -> Dismissed:
    """Growth that a larger load explains (leakscope.tick(batch=, tokens=), analyse/loadfit.py)."""
    fit = case.load_fit(device.name)
    explained = fit.explained_ratio or 0.0 if fit else 0.0
    why = (f"it follows the load: {explained:.0%} of its growth is explained by batch and length, and nothing certain is left "
           f"per {case.unit_of_work}")
    return Dismissed(f"growth on {device.name}", why, "", device.growth_bytes, device.name)


def _finding(case: Case, device: Device, term: str, rest: int, known: int) -> Finding:
    reasons = [f"unattributed: {bytes_text(rest)} more in the term \"{DEVICE_TERMS[term]}\" on {device.name}"]
    if known:
        reasons.append(f"other findings explain {bytes_text(known)} of it")
    doubts = ["nothing that was measured says what it is"]
    evidence = NEXT.get(term) or _devices.remedy(case, device, "evidence") or "leakscope run --every 2s -- COMMAND"
    cause = Cause(term, rest, f"memory on {device.name}: {DEVICE_TERMS[term]}", "device memory", reasons, doubts)
    return _devices.finding(case, device, RULE, cause, evidence)
