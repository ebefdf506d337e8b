"""Free memory of a device lies in pieces: enough is free, and a request does not fit.

PyTorch's allocator takes segments from the driver and cuts them up. A free piece beside a block in use cannot be given back,
serves only requests that fit, of the same stream, pool and size class, and never merges across segments. A few blocks that
live long keep whole segments from being used for anything large; the allocator then takes more.

**Found by** free pieces that grow and are half of what the allocator took more; or, where the device ran out of memory, by the
request: less than what was free, more than the largest piece that may serve it. The blocks that pin the pieces are told with
their owners.

**Remedy.** Sizes rounded up to few; what lives long allocated first; `expandable_segments` where it is off and fits the
process. What is on already, or does not work with a loaded library, is not recommended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from leakscope.analyse import fragmentation
from leakscope.analyse.devices import Device, Seen
from leakscope.case import Case
from leakscope.detectors import _devices
from leakscope.detectors._devices import Cause
from leakscope.model import Dismissed, Finding, Location, Rule
from leakscope.units import bytes_text, count_text

RULE = Rule("LS413", "device-fragmentation", "Free memory of the device lies in pieces that cannot be used")
MOST_OWNERS = 3  # of blocks that pin segments, that are told; ours
MANY_STREAMS = 8  # more than a program has for copies, communication and side work; ours
TYPE = "free piece of a segment"


def detect(case: Case) -> Iterator[Finding | Dismissed]:
    """Yield at most one finding a device, or the pieces that are no more."""
    for device in case.devices:
        ran_out = _ran_out(case, device)
        term = device.terms["inactive_split"]
        reserved = max(0, device.wholes["reserved"].growth_bytes or 0)
        if ran_out is not None:
            yield _finding(case, device, ran_out, term.growth.bytes if term.growth else 0)
        elif term.growth is not None and term.growth.bytes >= _devices.LEAST_SHARE * reserved:
            yield _finding(case, device, None, term.growth.bytes)
        elif term.has_ended:
            yield _devices.levelled(device, "inactive_split", "free pieces of segments",
                                    f"{bytes_text(term.growth_bytes or 0)} more lie beside blocks in use")


def _ran_out(case: Case, device: Device) -> fragmentation.Fit | None:
    """The request for which a device ran out of memory though enough was free; None where that did not happen."""
    for blocks in reversed([*(each.blocks for each in _devices.seen(device)), *case.out_of_memory]):
        found = fragmentation.fit_of_oom(blocks)
        if found is not None and found[0] == device.code and found[1].is_fragmented:
            return found[1]
    return None


def _finding(case: Case, device: Device, fit: fragmentation.Fit | None, grown_bytes: int) -> Finding:
    reasons = []
    if fit is not None:
        reasons += [f"the device ran out of memory for {bytes_text(fit.request_bytes)} while {bytes_text(fit.free_bytes)} were "
                    f"free: the largest piece that may serve it has {bytes_text(fit.largest_eligible_bytes)}",
                    *_elsewhere(fit)]
    if grown_bytes:
        reasons.append(f"{bytes_text(grown_bytes)} more are free and lie in pieces of segments that are in use")
    last = _devices.last_seen(device)
    parts = fragmentation.pinned(last.blocks, device.code) if last else []
    pins = _pins(case, device, last) if last else []
    sites = _sites(last, parts[0]) if last and parts else ()
    reasons += _segments(device, last, parts) if last and parts else []
    reasons += [f"kept from being given back by {owner}: {bytes_text(size)}" for owner, size in pins]
    if sites:
        reasons.append(f"the blocks that keep most were allocated in {sites[0].function}() at {sites[0].file}:{sites[0].line}")
    named = [owner for owner, _ in pins if owner]
    owner = f"segments pinned by {named[0]}" if named else f"segments of the allocator of {device.name}"
    doubts = [] if named else ["who holds the blocks that pin the segments is not known"]
    streams = len({int(last.blocks.segments.stream[each.segment]) for each in parts}) if last else 0
    if streams >= MANY_STREAMS:
        reasons.append(f"they lie on {count_text(streams)} streams: a free piece serves only requests of its own stream")
    kept = sum(each.kept_bytes for each in parts)
    is_direct = fit is not None or bool(parts) and kept >= _devices.LEAST_SHARE * grown_bytes
    cause = Cause("inactive_split", grown_bytes or (fit.free_bytes if fit else 0), owner, TYPE, reasons, doubts,
                  is_direct=is_direct, sites=sites)
    topics = ("streams", "fragmentation") if streams >= MANY_STREAMS else ("fragmentation",)
    return _devices.finding(case, device, RULE, cause, _devices.remedy(case, device, *topics))


def _elsewhere(fit: fragmentation.Fit) -> Iterator[str]:
    """What is free and may not serve the request."""
    parts = (("other streams", fit.other_stream_bytes), ("other pools", fit.other_pool_bytes),
             ("the other size class", fit.other_class_bytes))
    said = [f"{bytes_text(size)} for {what}" for what, size in parts if size]
    if said:
        yield f"of what was free it could not use {', '.join(said)}"


def _segments(device: Device, last: Seen, parts: Sequence[fragmentation.Pinned]) -> Iterator[str]:
    kept, used = sum(each.kept_bytes for each in parts), sum(each.used_bytes for each in parts)
    yield (f"{count_text(len(parts))} segments are partly free: {bytes_text(used)} in use keep {bytes_text(kept)}; the "
           f"largest free block has {bytes_text(fragmentation.largest_free(last.blocks, device.code))}")


def _pins(case: Case, device: Device, last: Seen) -> list[tuple[str, int]]:
    """Who holds the blocks that keep most, as far as the snapshot that is loaded says; ("", bytes) is nobody known."""
    if not case.compared or last.t_s != case.last.t_s:
        return []
    found: dict[str, int] = {}
    for each in fragmentation.pinned_by(last.blocks, last.ownership.owner, device.code):
        path = case.path(each.owner) if each.owner >= 0 else None
        if path is not None and path.owner:
            found[path.owner] = found.get(path.owner, 0) + each.kept_bytes
    return sorted(found.items(), key=lambda pair: (-pair[1], pair[0]))[:MOST_OWNERS]


def _sites(last: Seen, most: fragmentation.Pinned) -> tuple[Location, ...]:
    """Where the blocks in the segment that keeps most were allocated, if that was recorded."""
    rows = [int(last.blocks.site[row]) for row in most.rows.tolist() if last.blocks.site[row] >= 0]
    return _devices.places(last.blocks.frames[rows[0]]) if rows else ()
