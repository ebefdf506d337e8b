"""Private pools of an allocator that nothing uses any more, and that are not given back.

CUDA graphs and `torch.cuda.MemPool` allocate from pools of their own. A pool is given back when its last owner is gone, all
of its blocks are freed and `torch.cuda.empty_cache()` runs. A capture that failed left its pool behind in torch before the
change of pytorch#190348: its segments stay reserved for ever, and not one block in them is in use.

**Found by** private pools without a live block in three snapshots in a row, or in two between which segments were given back
to the driver, of which there are more than graphs and pools among the objects. Blamed only where free segments of the device
grow, and empty pools with them; pools that only stay are dismissed with their size.

**Remedy.** Drop the last reference to the graph or pool, then `torch.cuda.empty_cache()`; a torch with that change.
"""

from __future__ import annotations

from collections.abc import Iterator

from leakscope.analyse.devices import Device, Seen
from leakscope.analyse.trend import value_at
from leakscope.case import Case
from leakscope.detectors import _devices
from leakscope.detectors._devices import Cause
from leakscope.model import Dismissed, Finding, Rule
from leakscope.units import bytes_text, count_text

RULE = Rule("LS407", "zombie-pools", "Private pools of the device's allocator stay though nothing uses them")
LEAST_SNAPSHOTS = 3  # in which a pool is empty; knowledge page, 5.2, class 7
LEAST_FLUSHED = 2  # of them are enough where segments were given back in between and the pool was not
Pools = dict[tuple[int, int], int]  # bytes by id


def detect(case: Case) -> Iterator[Finding | Dismissed]:
    """Yield at most one finding or dismissal a device."""
    for device in case.devices:
        pools = _zombies(device)
        more = len(pools) - _devices.graph_count(case) if pools else 0
        if more > 0:
            yield from _judged(case, device, pools, more)


def _judged(case: Case, device: Device, pools: Pools, more: int) -> Iterator[Finding | Dismissed]:
    # which of them belong to a live graph is not known: the smallest ones are taken
    sizes, live = sorted(pools.values())[:more], _devices.graph_count(case)
    held = f"{count_text(more)} private pools hold {bytes_text(sum(sizes))} and have not had one live block for long"
    growth, share = device.terms["releasable"].growth, _share(device, live)
    if growth is None or share < _devices.LEAST_SHARE:
        if sum(sizes) >= _devices.LEAST_BYTES:
            yield _devices.levelled(device, "releasable", "private pools without a user", f"{held}; they become no more")
        return
    counts = [len(_empty(each, device)) for each in _devices.seen(device)]
    reasons = [held, f"private pools without a live block, by snapshot: {' -> '.join(map(count_text, counts))}",
               f"the last snapshot shows {count_text(live)} graphs and pools as objects" if live else
               "no graph and no pool of torch.cuda is among the objects of the last snapshot"]
    doubts = ["objects that only C++ holds may still own a pool"] if not live else [
        "which of the empty pools the live graphs and pools own is not known"]
    cause = Cause("releasable", round(share * growth.bytes), "private pools of graphs that are gone", "private pool", reasons,
                  doubts, is_direct=not live, correlates=True, count=max(0, counts[-1] - live))
    yield _devices.finding(case, device, RULE, cause, _devices.remedy(case, device, "zombie-pool"))


def _share(device: Device, live: int) -> float:
    """The part of the growth of free segments, from the first to the last snapshot, that empty private pools have."""
    first, last = _devices.seen(device)[0], _devices.seen(device)[-1]
    points = device.terms["releasable"].points
    grown = value_at(points, last.t_s) - value_at(points, first.t_s)
    return min(1.0, (_idle(last, device, live) - _idle(first, device, live)) / grown) if grown > 0 else 0.0


def _idle(seen: Seen, device: Device, live: int) -> int:
    """The bytes of empty private pools, without the largest ones that live graphs may own."""
    sizes = sorted(_empty(seen, device).values())
    return sum(sizes[:max(0, len(sizes) - live)])


def _zombies(device: Device) -> Pools:
    """The private pools that were empty in every one of the last snapshots, as many as are asked for."""
    known = _devices.seen(device)
    flushed = _devices.flushed(device, known[-LEAST_FLUSHED].t_s) if len(known) >= LEAST_FLUSHED else False
    wanted = LEAST_FLUSHED if flushed else LEAST_SNAPSHOTS
    if len(known) < wanted:
        return {}
    last, *before = [_empty(each, device) for each in reversed(known[-wanted:])]
    return {name: size for name, size in last.items() if all(name in each for each in before)}


def _empty(seen: Seen, device: Device) -> Pools:
    return {name: sums.reserved for name, sums in seen.blocks.by_pool(device.code).items()
            if name != (0, 0) and sums.reserved and not sums.allocated and not sums.pending}
