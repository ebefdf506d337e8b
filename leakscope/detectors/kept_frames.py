"""An exception, a finished task, a generator or a thread keeps tensors on a device through its frames.

A traceback refers to every frame that it passed, and a frame to every local variable. So an exception that is stored keeps the
batch, its activations and the model of the call that failed; a retry after CUDA ran out of memory then fails for want of what
the first error still holds. Tasks, futures and suspended coroutines keep theirs in the same way.

**Found by** a growing pile on a device below an exception, a traceback, finished or waiting tasks, or frames of threads.

**Remedy.** Do not store the exception: keep its text, or call `traceback.clear_frames(error.__traceback__)` first; `del` the
variable in a `finally`. Discard tasks that are done, and give those that wait a timeout.
"""

from __future__ import annotations

from collections.abc import Iterator

from leakscope.analyse import device_piles
from leakscope.case import Case
from leakscope.detectors import _device_piles
from leakscope.detectors._device_piles import Told
from leakscope.detectors._piles import Pile
from leakscope.model import Dismissed, Finding, Rule

RULE = Rule("LS412", "tensors-in-kept-frames", "Frames of an exception, a task or a thread keep tensors on a device")
REMEDY = ("Do not store the exception: keep its text, or call traceback.clear_frames(error.__traceback__); discard tasks that "
          "are done, and give those that wait a timeout.")
HOLDERS = ("frame", "traceback", "generator", "coroutine", "async_generator")


def detect(case: Case) -> Iterator[Finding | Dismissed]:
    """Yield the piles of this shape."""
    yield from _device_piles.detect(case, device_piles.KEPT_FRAMES, RULE, _told)


def _told(case: Case, pile: Pile) -> Told:
    chain = [step for step in pile.path.steps if step.type in HOLDERS or step.type.endswith(("Error", "Exception", "Task"))]
    if not chain:
        return Told(REMEDY)
    words = " -> ".join(f"{step.name}{step.edge}" for step in chain[:6])
    return Told(REMEDY, (f"the tensors hang on {words}",))
