"""Child processes pile up: they are started and never end, or end and are never waited for.

A child that has ended stays in the table of processes until its parent waits for it; it has no memory of its own any more,
but the table is bounded, and the objects that stand for it in the parent (`subprocess.Popen`, `multiprocessing.Process`,
pipes) stay. A child that lives has all of its memory, and none of it counts for the parent.

**Found by** the number of direct children of the process, which rises to the end. Pools that are filled once are none.

**Remedy.** Wait for children (`with Popen(...)`, `wait()`, `join()`), end pools (`shutdown()`, `close()` and `join()`), and
give workers a way to see that nobody needs them any more.
"""

from __future__ import annotations

from collections.abc import Iterator

from leakscope.analyse import kin, memory
from leakscope.case import Case
from leakscope.detectors import _layers
from leakscope.model import Confidence, Dismissed, Finding, Rule
from leakscope.units import bytes_text, count_text

RULE = Rule("LS305", "piled-children", "Child processes pile up")
TO_WAIT = "Wait for every child that was started: with Popen(...), wait() or join()."
TO_END = "End the workers that nobody needs any more: shutdown() or close() and join() of their pool; bound their number."


def detect(case: Case) -> Iterator[Finding | Dismissed]:
    """Yield at most one finding for the process whose children pile up."""
    piled = kin.piled_children(case.program_timeline, case.window)
    if piled is None:
        return
    reasons = [f"it has {count_text(piled.in_all)} child processes, {count_text(piled.more)} more since the judged part began",
               f"{count_text(piled.tail_more)} of them came in the second half of the run"]
    if piled.ended:
        reasons.append(f"{count_text(piled.ended)} have ended and nobody has waited for them")
    pid = int(case.info.get("pid", 0))
    known = kin.alive_at([each for each in kin.children_of(pid, case.family)
                          if each.info.get("started_ns", 0) / 1e9 >= case.window.start_s], case.window.end_s)
    sizes = [size for each in known if (size := kin.own_bytes(each.timeline)) is not None]
    own, doubts = sum(sizes), []
    if sizes:
        reasons.append(f"{count_text(len(sizes))} of those that came are Python and have {bytes_text(own)} of their own")
    elif not piled.is_ended:
        doubts.append("how much memory they have is not known: no agent reported from them")
    total = kin.total_growth([kin.Relative(case.info, case.timeline), *case.family], case.window)
    level = Confidence.MEDIUM if piled.is_steady else Confidence.LOW
    yield Finding(RULE, level, "processes", f"child processes of process {pid}", None,
                  "child process that has ended" if piled.is_ended else "child process", pid=pid, object_count=piled.more,
                  growth_bytes={"host": own}, share_of_growth_ratio=memory.ratio(own, total) if sizes else None,
                  reasons=(*reasons, *_layers.which_process(case)), doubts=tuple(doubts),
                  remedy=TO_WAIT if piled.is_ended else TO_END)
