"""What a start brings, and what it gives back: no leak, said with its size so that nobody looks for it.

A program grows while it imports, loads weights and fills its pools, and often holds things twice for a moment: a file and what
was read from it, weights in two precisions. That comes once.

**Found by** the course of private memory before the judged part of the run, and by a peak in the first part of it that was
given back.

**Remedy.** None is needed. Where the peak sets the size of the machine: load in pieces, or map the file.
"""

from __future__ import annotations

from collections.abc import Iterator

from leakscope.case import Case
from leakscope.model import Dismissed, Finding, Rule
from leakscope.units import bytes_text, seconds_text

RULE = Rule("LS501", "start-up", "Memory that the start of the program took")
LEAST_BYTES = 8 << 20  # ours
PEAK_SHARE = 0.2  # of the level at the end: a peak so much above it is worth a word; ours
PEAK_PART = 0.5  # of the run: a peak after that is none of the start; ours


def detect(case: Case) -> Iterator[Finding | Dismissed]:
    """Yield what grew before the judged part of the run, and the peak of the start."""
    points, window = case.memory.points, case.window
    if len(points) < 2:
        return
    first, last = points[0][1], points[-1][1]
    early = [y for t_s, y in points if t_s <= window.start_s]
    if early and early[-1] - first >= LEAST_BYTES:
        yield Dismissed("start-up", f"start-up: it came in the first {seconds_text(window.start_s - points[0][0])}, before the "
                        "part of the run that is judged", "", int(early[-1] - first))
    peak_s, peak = max(points, key=lambda point: point[1])
    is_early = peak_s - points[0][0] <= PEAK_PART * (points[-1][0] - points[0][0])
    if is_early and peak - last >= max(LEAST_BYTES, PEAK_SHARE * last):
        yield Dismissed("start-up peak", f"start-up: {bytes_text(peak)} at {seconds_text(peak_s)}, of which "
                        f"{bytes_text(peak - last)} were given back", "", int(peak - first))
