"""What the detectors of memory without objects share: sustained growth of one layer becomes one finding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from leakscope.analyse import memory
from leakscope.analyse.layers import Points
from leakscope.analyse.memory import Sustained
from leakscope.case import Case
from leakscope.model import Confidence, Dismissed, Finding, Rule
from leakscope.units import bytes_text, seconds_text

INSIDE = ("python", "native", "allocator-retained", "mapped")
MOST_ASKED = 200  # objects whose owner is asked for; ours
OWNER_SHARE = 0.25  # of them: an owner of fewer is not the one to name; ours


def finding(case: Case, rule: Rule, growth: Sustained, layer: str, owner: str, leaked_type: str, reasons: Sequence[str],
            doubts: Sequence[str], remedy: str, **more: Any) -> Finding:
    """Return the finding of a growing layer; the last reasons are its share of the growth of the process, and which it is."""
    # what lies outside of the process is no part of its growth
    share = memory.ratio(growth.bytes, case.layer("total")) if layer in INSIDE else None
    of_process = () if share is None else (f"it accounts for {share:.0%} of the growth of the process",)
    return Finding(rule, Confidence.MEDIUM if growth.is_steady else Confidence.LOW, layer, owner, None, leaked_type,
                   pid=int(case.info.get("pid", 0)), growth_bytes={"host": growth.bytes}, share_of_growth_ratio=share,
                   reasons=(*reasons, *of_process, *which_process(case)), doubts=tuple(doubts), remedy=remedy, **more)


def which_process(case: Case) -> tuple[str, ...]:
    """Which process it is in, where it is not the one that was started."""
    role = case.info.get("role", "main")
    how = {"fork": "forked by", "spawn": "started by", "exec": "in the place of"}.get(role)
    return () if how is None else (f"it is process {case.info.get('pid')}, {how} process {case.info.get('parent')}",)


def main_owner(case: Case, nodes: Sequence[int]) -> tuple[str, float]:
    """Return who holds most of some objects of the last snapshot, and which part of them; ("", 0) where nobody holds enough."""
    asked = nodes[::max(1, -(-len(nodes) // MOST_ASKED))]
    owners = Counter(path.owner for node in asked if (path := case.path(node)) is not None)
    if not owners:
        return "", 0.0
    owner, count = owners.most_common(1)[0]
    return (owner, count / len(asked)) if count >= OWNER_SHARE * len(asked) else ("", 0.0)


def kept(case: Case, allocator: str, free: Points, grown: int | None, held_name: str) -> Iterator[Sustained | Dismissed]:
    """Yield the growth of what an allocator keeps free, if it goes on and is more than our own walks may have left.

    It is no more than the growth of what the allocator holds (a column): what is free because the program has let go of it
    costs nothing new. Else the high water that was dismissed, if there is one.
    """
    held = memory.change_of(case.program_timeline, case.window, held_name)
    if grown is not None and held is not None:
        grown = min(grown, max(0, int(held)))
    growth = memory.sustained_points(free, case.window, grown, case.layer("total"))
    if growth is not None and growth.bytes > case.disturbance_bytes:
        yield growth
        return
    found = memory.high_water(free, case.window)
    if found is not None and found.bytes > case.disturbance_bytes:
        why = (f"allocator high water: {bytes_text(found.bytes)} were freed and are kept for the next time, no more since "
               f"{seconds_text(found.since_s)} into the run")
        yield Dismissed(f"free memory of {allocator}", why, "", max(0, grown or 0))


def peaked(case: Case, allocator: str, growth: Sustained, peak: float | None, held_name: str) -> Dismissed | None:
    """Return why it is a high water after all: the peaks of what is in use rose by as much as what is held (a column)."""
    held = memory.change_of(case.program_timeline, case.window, held_name)
    if peak is None or peak < memory.HIGH_WATER_SHARE * (held or growth.bytes):
        return None
    why = f"allocator high water: the peak of use rose by {bytes_text(peak)}, which {allocator} keeps for the next time"
    return Dismissed(f"free memory of {allocator}", why, "", growth.bytes)
