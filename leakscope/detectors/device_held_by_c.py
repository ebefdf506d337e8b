"""Blocks of a device that no Python object owns become more: C++ code holds them.

Every storage that Python can reach was joined to its block by address; cuBLAS workspaces are known by their size. What is left
was allocated by C++ code that keeps it: buckets of DistributedDataParallel, tensors that were saved for a backward pass and
never had a Python object, an extension, a communication library.

**Found by** the growth of blocks without an owner, when it is half of what is allocated more. Which ones is told by size, and
by the Python line that allocated them where that was recorded (`leakscope run --gpu state`).

**Remedy.** Whatever the lines or the sizes point to. Without recording the answer is one run away.
"""

from __future__ import annotations

from collections.abc import Iterator

from leakscope.analyse import unowned
from leakscope.analyse.devices import Device
from leakscope.case import Case
from leakscope.detectors import _devices
from leakscope.detectors._devices import Cause
from leakscope.detectors.device_ipc import is_shared
from leakscope.model import Dismissed, Finding, Rule
from leakscope.units import bytes_text, count_text

RULE = Rule("LS410", "device-held-by-c", "Device memory that only C++ code holds grows")
KNOWN = ("LS406", "LS409")  # rules that may explain such blocks: those of captured graphs, what autograd has saved
BUCKET_BYTES = 25 << 20  # DistributedDataParallel, bucket_cap_mb; the first bucket is smaller, a large parameter is alone
BUCKET_SPREAD = 0.2  # of that size: buckets end at the border of a parameter; ours


def detect(case: Case) -> Iterator[Finding | Dismissed]:
    """Yield one finding a device, or what has stopped growing."""
    for device, growth in _devices.grown(case, "allocated_unowned"):
        allocated = device.wholes["allocated"].growth_bytes
        rest = growth.bytes - _devices.explained_bytes(_devices.told(case, KNOWN), device, "allocated_unowned")
        if rest >= _devices.LEAST_SHARE * max(0, allocated or 0) and not is_shared(case, device):
            yield _finding(case, device, rest)
    for device, size in _devices.ended(case, "allocated_unowned"):
        yield _devices.levelled(device, "allocated_unowned", "blocks that C++ code holds",
                                f"{bytes_text(size)} came, such as buckets, buffers of communication and saved tensors")


def _finding(case: Case, device: Device, grown_bytes: int) -> Finding:
    known = [each for each in _devices.seen(device) if each.ownership.is_by_block]
    found = unowned.growth(known[0], known[-1], device.code) if len(known) > 1 else None
    reasons = [f"{bytes_text(grown_bytes)} more are allocated in blocks that no tensor or storage in Python lies in"]
    doubts, sites, owner, is_direct = [], [], "blocks that C++ code holds", False
    if found is not None and found.sizes:
        reasons.append("by size: " + ", ".join(f"{count_text(each.count)} more of {bytes_text(each.size_bytes)}"
                                               for each in found.sizes))
        reasons += _candidates(case, device, found)
    if found is not None and found.recorded_ratio > 0:
        placed = [each for each in found.sites if each.frames]
        share = placed[0].bytes / found.bytes
        sites = [_devices.places(each.frames, round(each.bytes / found.bytes, 4))[0] for each in placed]
        reasons.append(f"{share:.0%} of them were allocated in {sites[0].function}() at {sites[0].file}:{sites[0].line}")
        is_direct = share >= _devices.LEAST_SHARE
        owner = f"blocks that C++ code holds, allocated in {sites[0].function}()" if is_direct else owner
    else:
        doubts.append("where they were allocated was not recorded")
    doubts.append("a storage that the walk did not reach counts as C++'s, too")
    cause = Cause("allocated_unowned", grown_bytes, owner, "device block", reasons, doubts, is_direct=is_direct,
                  correlates=found is not None and found.bytes > 0, count=found.count if found else None, sites=tuple(sites))
    return _devices.finding(case, device, RULE, cause, _devices.remedy(case, device, "c-held", "evidence"))


def _candidates(case: Case, device: Device, found: unowned.Growth) -> Iterator[str]:
    """What blocks of these sizes may be."""
    is_distributed = bool(device.about.get("process_groups")) or _devices.surroundings(case, device).has("libnccl")
    near = any(abs(each.size_bytes - BUCKET_BYTES) <= BUCKET_SPREAD * BUCKET_BYTES for each in found.sizes)
    if is_distributed and near:
        yield "blocks of about 25 MiB in a distributed process are likely buckets of DistributedDataParallel"
