"""Blocks were freed and wait for another stream to pass: they count as used, and become more.

`Tensor.record_stream()` tells the allocator that a second stream uses a tensor. When it is freed, the block stays until an
event on that stream has passed, which the allocator asks for at its next allocations. A CPU that runs far ahead of the device,
or a collective operation that records every tensor, keeps many of them waiting.

**Found by** what is active less what is allocated, and blocks in that state, by stream. Growth is a finding; a level above
64 MiB that stays is dismissed with its size.

**Remedy.** No `record_stream`: let the consuming stream wait and keep the tensor until then. Let the CPU wait for the device
once a batch.
"""

from __future__ import annotations

from collections.abc import Iterator

from leakscope.analyse.devices import Device
from leakscope.case import Case
from leakscope.detectors import _devices
from leakscope.detectors._devices import Cause
from leakscope.heap.blocks import PENDING
from leakscope.model import Dismissed, Finding, Location, Rule
from leakscope.units import bytes_text, count_text

RULE = Rule("LS415", "deferred-frees", "Frees are put off, and pile up")
MOST_STREAMS = 3  # that are told; ours


def detect(case: Case) -> Iterator[Finding | Dismissed]:
    """Yield one finding a device, or the level that stays."""
    growing = []
    for device, growth in _devices.grown(case, "pending"):
        growing.append(device)
        streams, sites, count = _waiting(device)
        reasons = [f"{bytes_text(growth.bytes)} more were freed and wait for another stream", *streams]
        if sites:
            reasons.append(f"most of them were allocated in {sites[0].function}() at {sites[0].file}:{sites[0].line}")
        cause = Cause("pending", growth.bytes, "freed blocks that wait for another stream", "pending block", reasons,
                      is_direct=bool(streams and sites), correlates=bool(streams), count=count, sites=sites)
        yield _devices.finding(case, device, RULE, cause, _devices.remedy(case, device, "deferred"))
    for device in case.devices:
        late = device.window.tail.inside(device.terms["pending"].points)
        if device not in growing and late and (least := min(value for _, value in late)) >= _devices.LEAST_BYTES:
            yield _devices.levelled(device, "pending", "freed blocks that wait for another stream",
                                    f"always {bytes_text(least)} or more wait, and they become no more")


def _waiting(device: Device) -> tuple[list[str], tuple[Location, ...], int | None]:
    """What waits by stream in the last snapshot, where most of it was allocated, and how many blocks; nothing if none waits."""
    last = _devices.last_seen(device)
    by_stream = last.blocks.pending_by_stream(device.code) if last else {}
    if last is None or not by_stream:
        return [], (), None
    picked = (last.blocks.state == PENDING) & (last.blocks.device == device.code)
    text = ", ".join(f"{bytes_text(size)} of stream {stream:#x}" for stream, size in list(by_stream.items())[:MOST_STREAMS])
    row = next(iter(last.blocks.by_site(picked)))
    sites = _devices.places(last.blocks.frames[row]) if row >= 0 else ()
    return [f"in the last snapshot {count_text(int(picked.sum()))} blocks wait: {text}"], sites, int(picked.sum())
