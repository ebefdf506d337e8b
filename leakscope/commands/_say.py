"""How leakscope speaks to a person: one sentence and a hint, on stderr."""

from __future__ import annotations

import contextlib
import sys


def say(sentence: str, hint: str = "") -> None:
    """Write `leakscope: SENTENCE` and, below it, the hint; a stderr that is closed or gone is no reason to fail."""
    if sys.stderr is None:  # closed before we started; print would turn to stdout, which is the target's
        return
    with contextlib.suppress(OSError, ValueError):
        print(f"leakscope: {sentence}" + (f"\n  hint: {hint}" if hint else ""), file=sys.stderr, flush=True)
