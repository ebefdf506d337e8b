"""Process groups of torch.distributed become more, and each takes device memory that no allocator counts.

A communicator of NCCL has buffers of some hundred MiB (544 MB for two ranks in NVIDIA/nccl#964) outside of PyTorch's
allocator. A group that is made for each evaluation, each step or each request and never destroyed keeps them.

**Found by** the number of process groups, which rises, and steps of 100 MiB or more in memory outside of the allocator, as
many as there are new groups.

**Remedy.** `torch.distributed.destroy_process_group(group)`, or one group that is used again. `NCCL_BUFFSIZE` makes the
buffers smaller.
"""

from __future__ import annotations

from collections.abc import Iterator

from leakscope.analyse import staircase
from leakscope.analyse.devices import Device
from leakscope.case import Case
from leakscope.detectors import _devices
from leakscope.detectors._devices import Cause
from leakscope.model import Dismissed, Finding, Rule
from leakscope.units import bytes_text, count_text

RULE = Rule("LS418", "communicators", "Process groups are made and not destroyed")
LEAST_STEP_BYTES = 100 << 20  # knowledge page, 5.2, class 18
SPREAD_RATIO = 0.25  # steps and groups may differ by so much: two groups may come between two samples; ours


def detect(case: Case) -> Iterator[Finding | Dismissed]:
    """Yield one finding a device."""
    for device, growth in _devices.grown(case, "outside"):
        counts = _groups(device)
        more = counts[-1] - counts[0] if counts else 0
        if more < 1:
            continue
        between = [point for point in device.terms["outside"].points if point[0] >= _first_s(device)]
        found = staircase.steps(between, LEAST_STEP_BYTES)
        rise = sum(each.rise for each in found)
        fits = bool(found) and abs(len(found) - more) <= max(1.0, SPREAD_RATIO * more)
        reasons = [f"process groups of torch.distributed: {' -> '.join(map(count_text, counts))}",
                   f"memory outside PyTorch's allocator rose in {count_text(len(found))} steps of 100 MiB or more, by "
                   f"{bytes_text(rise)}" + (": one for each group" if fits else "")]
        doubts = [] if fits else ["the steps are not as many as the new groups"]
        explained = int(min(growth.bytes, rise)) if found else 0
        if explained < _devices.LEAST_SHARE * growth.bytes:
            continue
        cause = Cause("outside", explained, "torch.distributed process groups", "NCCL communicator", reasons, doubts,
                      is_direct=fits, correlates=True, count=counts[-1])
        yield _devices.finding(case, device, RULE, cause, _devices.remedy(case, device, "nccl"))


def _groups(device: Device) -> list[int]:
    """How many process groups there were in each snapshot that says so."""
    return [int(count) for each in device.snapshots if each is not None
            and isinstance(count := each.blocks.info.get("process_groups"), int)]


def _first_s(device: Device) -> float:
    return next((each.t_s for each in device.snapshots if each is not None), device.window.start_s)
