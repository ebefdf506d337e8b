"""Mapped files and shared memory grow.

Pages of a mapped file are the kernel's to take back: a process that reads a large file through `mmap` shows them as its own
memory without keeping any. The same goes for the page cache of its control group, which many a dashboard counts. Shared
memory (`/dev/shm`, `multiprocessing.shared_memory`) is not given back before it is closed *and* unlinked, not even when the
process ends.

**Found by** the trend of the shared part of resident memory, and of the files in /dev/shm that this user made since the
start (their names are not kept). Shared memory that an older process of the session has as well is told there. Pinned host
memory of a device counts as shared, too, and is told as what it is (LS420, or the tensors that lie in it).

**Remedy.** For shared memory: `close()` and `unlink()` in the process that made it. For files: nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from leakscope.analyse import kin, layers, memory
from leakscope.case import Case
from leakscope.detectors import _layers
from leakscope.model import Confidence, Dismissed, Finding, Rule
from leakscope.units import bytes_text, count_text

RULE = Rule("LS303", "mapped-growth", "Shared memory grows")
REMEDY = "Close and unlink shared memory when its last user has ended."
LEAST_FILE_BYTES = 1 << 20
LEAST_CACHE_BYTES = 16 << 20  # of the control group; ours
SAME_SHARE = 0.5  # of the growth: what another process has grown by as well is the same segments; ours


def detect(case: Case) -> Iterator[Finding | Dismissed]:
    """Yield growing shared memory; dismiss growing pages of files."""
    timeline, window = case.program_timeline, case.window
    files = memory.change_of(timeline, window, "file_bytes")
    if files is not None and files >= LEAST_FILE_BYTES:
        yield Dismissed("pages of mapped files", "the kernel takes them back when memory is short", "", int(files))
    cache = memory.change_of(timeline, window, "cgroup_inactive_file_bytes")
    if cache is not None and cache >= LEAST_CACHE_BYTES and case.info.get("role", "main") == "main":  # one group for all
        yield Dismissed("page cache of the control group", "files that were read or written: the kernel takes it back when "
                        "memory is short, and no process has it", "", int(cache))
    yield from _mapped(case)
    yield from _left_behind(case)


def _mapped(case: Case) -> Iterator[Finding | Dismissed]:
    shared = memory.change_of(case.program_timeline, case.window, "shmem_bytes")
    growth = memory.sustained(case.program_timeline, case.window, "shmem_bytes", None if shared is None else int(shared),
                              case.layer("total"))
    if growth is None:
        return
    older = _older_with(case, growth.bytes)
    if older is not None:
        yield Dismissed("shared memory", f"it is mapped by process {older} as well, where it is told", "", growth.bytes)
        return
    pinned = memory.change_of(case.program_timeline, case.window, "pinned_held_bytes")
    if pinned is not None and pinned >= SAME_SHARE * growth.bytes:
        yield Dismissed("shared memory", "it is pinned host memory for transfers to a device, of which "
                        f"{bytes_text(pinned)} more are held", "", growth.bytes)
        return
    reasons = [f"shared memory grew by {bytes_text(growth.bytes)} and still grew in the second half"]
    segments = memory.change_of(case.program_timeline, case.window, "shared_files")
    if segments is not None and segments >= 1:
        reasons.append(f"there are {count_text(round(segments))} more files in /dev/shm")
    doubts = ("shared memory counts in every process that maps it",)
    yield _layers.finding(case, RULE, growth, "mapped", "shared memory", "shared memory segment", reasons, doubts, REMEDY)


def _left_behind(case: Case) -> Iterator[Finding]:
    """Segments that nobody maps any more, and that are still there: they count for no process."""
    if case.info.get("role", "main") != "main":  # every process of the session sees the same folder
        return
    left = memory.difference(case.program_timeline, "shared_file_bytes", "shmem_bytes")
    grown = layers.change(left, case.window)
    growth = memory.sustained_points(left, case.window, None if grown is None else int(grown), None)
    if growth is None or any(_maps(each.timeline, case.window, growth.bytes) for each in case.family):
        return
    segments = memory.change_of(case.program_timeline, case.window, "shared_files")
    reasons = (f"files in /dev/shm grew by {bytes_text(growth.bytes)} more than what is mapped of them",
               f"there are {count_text(round(segments or 0))} more of them",
               "they stay when the process ends, and are memory all the same")
    doubts = ("another program of the same user may have made some of them",)
    found = _layers.finding(case, RULE, growth, "shared-memory", "shared memory that was closed and not unlinked",
                            "shared memory segment", reasons, doubts, REMEDY)
    if _most_mapped(case) < growth.bytes / max(1.0, segments or 0.0):
        unseen = "no process of this session was seen to map a segment of such a size"
        found = replace(found, confidence=Confidence.LOW, doubts=(unseen, *doubts))
    yield found


def _most_mapped(case: Case) -> float:
    """The most shared memory that a process of the session was seen with: who makes a segment maps it for a while."""
    rows = [*case.timeline, *(row for each in case.family for row in each.timeline)]
    return float(max((row.get("shmem_bytes") or 0 for row in rows), default=0))


def _older_with(case: Case, growth_bytes: int) -> int | None:
    """The process of the session that began earlier and maps as much more; None if there is none."""
    begun = case.info.get("started_ns", 0)
    return next((each.pid for each in case.family if each.info.get("started_ns", 0) < begun
                 and _maps(each.timeline, case.window, growth_bytes)), None)


def _maps(timeline: kin.Samples, window: layers.Window, growth_bytes: int) -> bool:
    shared = memory.change_of(timeline, window, "shmem_bytes")
    return shared is not None and shared >= SAME_SHARE * growth_bytes
