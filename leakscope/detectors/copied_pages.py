"""Pages that a forked worker shared with others became its own: what it has for itself rises, and nothing leaks.

After a fork parent and child share all pages until one of them writes. CPython counts references inside the objects, so a
worker that only reads what it inherited copies it page by page. Its unique set size rises until all is copied once, and the
memory of all processes together with it; then it ends. No object and no allocator grows by it.

Workers of a DataLoader are the usual case beside a device (its class 24, pytorch#13246): each copies the lists and strings of
the dataset page by page.

**Found by** the anonymous memory that is shared with other processes (smaps), which falls by what the process's own rises.

**Remedy.** Nothing, or less to share: `gc.freeze()` before the fork keeps the collector from touching every object; large
data belongs into arrays or shared memory, which have few counts.
"""

from __future__ import annotations

from collections.abc import Iterator

from leakscope.analyse import kin, memory
from leakscope.analyse.layers import COPIED
from leakscope.case import Case
from leakscope.model import Dismissed, Finding, Rule
from leakscope.units import bytes_text

RULE = Rule("LS306", "copied-pages", "Shared pages of a forked process become its own")
LEAST_BYTES = 1 << 20  # less is not seen in any chart; ours


def detect(case: Case) -> Iterator[Finding | Dismissed]:
    """Dismiss what a process copied, or got for itself when the others ended."""
    copied = kin.copied_pages(case.program_timeline)
    if copied is None or copied.bytes < LEAST_BYTES:
        return
    in_window = case.layer(COPIED) or 0
    rss = memory.change_of(case.program_timeline, case.window, "anon_bytes") or 0.0
    flat = "resident memory did not grow by it" if rss < copied.bytes / 2 else "what else grew is told apart"
    role = "a worker" if case.info.get("role") == "fork" else "a process"
    what = f"memory of its own of process {case.info.get('pid', 0)}, {role} that shares pages after a fork"
    why = (f"copy-on-write: {bytes_text(copied.bytes)} that it shared with other processes became its own as they were written "
           f"to; {flat}, and {bytes_text(copied.left_bytes)} at most can follow")
    yield Dismissed(what, why, "", max(copied.bytes, in_window))
