"""Mapped files and shared memory grow.

Pages of a mapped file are the kernel's to take back: a process that reads a large file through `mmap` shows them as its own
memory without keeping any. Shared memory (`/dev/shm`, `multiprocessing.shared_memory`) is not given back before it is
closed *and* unlinked.

**Found by** the trend of the file and shared parts of resident memory.

**Remedy.** For shared memory: `close()` and `unlink()` in the process that made it. For files: nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from leakscope.analyse import memory
from leakscope.case import Case
from leakscope.detectors import _layers
from leakscope.model import Dismissed, Finding, Rule
from leakscope.units import bytes_text

RULE = Rule("LS303", "mapped-growth", "Shared memory grows")
REMEDY = "Close and unlink shared memory when its last user has ended."
LEAST_FILE_BYTES = 1 << 20


def detect(case: Case) -> Iterator[Finding | Dismissed]:
    """Yield growing shared memory; dismiss growing file pages."""
    files = memory.change_of(case.program_timeline, case.window, "file_bytes")
    if files is not None and files >= LEAST_FILE_BYTES:
        yield Dismissed("pages of mapped files", "the kernel takes them back when memory is short", "", int(files))
    shared = memory.change_of(case.program_timeline, case.window, "shmem_bytes")
    growth = memory.sustained(case.program_timeline, case.window, "shmem_bytes", None if shared is None else int(shared),
                              case.layer("total"))
    if growth is None:
        return
    reasons = (f"shared memory grew by {bytes_text(growth.bytes)} and still grew in the second half",)
    doubts = ("shared memory counts in every process that maps it",)
    yield _layers.finding(case, RULE, growth, "mapped", "shared memory", "shared memory segment", reasons, doubts, REMEDY)
