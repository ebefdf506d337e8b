"""cuBLAS workspaces: one for each thread and stream that ever multiplied matrices. Usually not a leak.

PyTorch gives cuBLAS its scratch memory from its own allocator, in blocks of one exact size (8 519 680 bytes, 32 MiB from sm90
on), and keeps each for the pair of thread and stream that it was made for. So they look like tensors that nobody holds. They
become more as long as new threads or streams come: in thread pools that are made anew, in actors with many threads, with a
capture stream for each CUDA graph.

**Found by** blocks of exactly that size in which no tensor lies, by snapshots; blamed where they are half of what grew without
an owner. Where their number has stopped growing they are dismissed.

**Remedy.** Few threads and streams that live long. `CUBLAS_WORKSPACE_CONFIG` makes each workspace smaller.
"""

from __future__ import annotations

from collections.abc import Iterator

from leakscope.analyse.devices import Device
from leakscope.case import Case
from leakscope.detectors import _devices
from leakscope.detectors._devices import Cause
from leakscope.model import Dismissed, Finding, Rule
from leakscope.units import bytes_text, count_text

RULE = Rule("LS408", "cublas-workspaces", "A cuBLAS workspace for each new thread and stream")
LAW_SPREAD = 2.0  # count over threads x streams, or under: within it they explain each other; ours


def detect(case: Case) -> Iterator[Finding | Dismissed]:
    """Yield one finding a device, or the workspaces that are no more."""
    for device, growth in _devices.grown(case, "workspaces"):
        unowned = max(0, device.terms["allocated_unowned"].growth_bytes or 0)
        if growth.bytes >= _devices.LEAST_SHARE * (growth.bytes + unowned):
            yield _finding(case, device, growth.bytes)
    for device, _ in _devices.ended(case, "workspaces"):
        _, last = _counts(device)
        yield _devices.levelled(device, "workspaces", "cuBLAS workspaces",
                                f"{count_text(last)} blocks, one for each thread and stream that multiplies matrices")


def _finding(case: Case, device: Device, grown_bytes: int) -> Finding:
    first, last = _counts(device)
    threads, streams = _threads(case, device), _streams(device)
    reasons = [f"{count_text(first)} -> {count_text(last)} blocks without a tensor have exactly the size of a cuBLAS workspace"]
    size = _size(device)
    if size:
        reasons[0] += f", {bytes_text(size)}"
    fits = bool(threads and streams and last / LAW_SPREAD <= threads * streams <= last * LAW_SPREAD)
    if threads and streams:
        reasons.append(f"the process has {count_text(threads)} threads and its blocks lie on {count_text(streams)} streams"
                       + (": a workspace for each pair" if fits else ""))
    graphs = _devices.graph_count(case)
    if graphs and last / LAW_SPREAD <= graphs <= last * LAW_SPREAD:
        fits = True
        reasons.append(f"there are {count_text(graphs)} CUDA graphs and pools: each capture on a stream of its own takes one")
    doubts = ["usually not a leak: their number is bounded by threads x streams"]
    cause = Cause("workspaces", grown_bytes, "cuBLAS workspaces", "cuBLAS workspace", reasons, doubts, correlates=fits,
                  count=last or None)
    return _devices.finding(case, device, RULE, cause, _devices.remedy(case, device, "cublas"))


def _counts(device: Device) -> tuple[int, int]:
    """How many there are in the first and in the last snapshot."""
    sums = [owned.workspace_count or 0 for each in device.snapshots if each is not None
            and (owned := each.ownership.of_device(device.name)) is not None]
    return (sums[0], sums[-1]) if sums else (0, 0)


def _size(device: Device) -> int:
    last = _devices.last_seen(device)
    owned = last.ownership.of_device(device.name) if last else None
    return (owned.workspace_bytes or 0) // owned.workspace_count if owned and owned.workspace_count else 0


def _threads(case: Case, device: Device) -> int:
    points = device.window.inside(_devices.column(case, "threads"))
    return round(points[-1][1]) if points else 0


def _streams(device: Device) -> int:
    last = _devices.last_seen(device)
    return len(set(last.blocks.stream[last.blocks.device == device.code].tolist())) if last else 0
