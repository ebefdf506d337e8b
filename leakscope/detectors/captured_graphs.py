"""CUDA graphs are captured for each shape, or a wrapper with its own workspaces is made for each batch.

A captured graph owns a private pool of the allocator for as long as it lives, and memory of the driver beside it.

**Found by** the growth of private pools, at least half of what is reserved more, together with more objects of
`torch.cuda.CUDAGraph`; wrappers (FlashInfer's `Batch...Wrapper`) that became more in the same time are said.

**Remedy.** Capture the largest shape first, for few fixed sizes, in one shared pool; skip graphs for dynamic shapes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from leakscope.analyse.devices import Device
from leakscope.case import Case
from leakscope.detectors import _devices
from leakscope.detectors._devices import Cause
from leakscope.model import Dismissed, Finding, Rule
from leakscope.units import bytes_text, count_text

RULE = Rule("LS406", "graph-per-shape", "CUDA graphs are captured for each shape")
REMEDY = ("Capture graphs for few fixed sizes, the largest first, and share one pool (torch.cuda.graph_pool_handle); under "
          "torch.compile set triton.cudagraph_skip_dynamic_graphs. Do not clear caches that captured graphs still use.")
TERMS = ("allocated_owned", "allocated_unowned", "releasable")  # where the blocks of a private pool are counted
_GRAPH = re.compile(r"^torch\..*CUDAGraph$")
_WRAPPER = re.compile(r"^flashinfer\..*Wrapper$")


def detect(case: Case) -> Iterator[Finding | Dismissed]:
    """Yield at most one finding a device."""
    if not case.devices or not case.can_compare:
        return
    graphs = _counts(case, _GRAPH)
    for device in case.devices:
        pools = _devices.sustained(device.points("private_pool_bytes"), device)
        reserved = _devices.change(device.points("reserved_bytes"), device)
        term = _term(device)
        if pools is None or term is None or not graphs or graphs[-1] <= graphs[0]:
            continue
        if reserved is None or pools >= _devices.LEAST_SHARE * reserved:
            yield _finding(case, device, term, pools, graphs)


def _term(device: Device) -> str | None:
    grown = [name for name in TERMS if device.terms[name].growth is not None]
    return max(grown, key=lambda name: device.terms[name].growth_bytes or 0, default=None)


def _counts(case: Case, pattern: re.Pattern[str]) -> tuple[int, ...]:
    """How many objects of such types each compared snapshot has; () for none."""
    found = [counts for name, counts, _ in case.type_growth if pattern.search(name)]
    return tuple(map(sum, zip(*found)))


def _finding(case: Case, device: Device, term: str, pools: int, graphs: tuple[int, ...]) -> Finding:
    wrappers = _counts(case, _WRAPPER)
    reasons = [f"private pools of the allocator grew by {bytes_text(pools)}",
               f"captured CUDA graphs, by snapshot: {' -> '.join(map(count_text, graphs))}"]
    if wrappers and wrappers[-1] > wrappers[0]:
        reasons.append(f"FlashInfer wrappers, each with its own workspaces: {' -> '.join(map(count_text, wrappers))}")
    cause = Cause(term, pools, "private pools of CUDA graphs", "torch.cuda.CUDAGraph", reasons, is_direct=True,
                  count=graphs[-1])
    return _devices.finding(case, device, RULE, cause, REMEDY)
