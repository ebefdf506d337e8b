"""How leakscope speaks to a person: one sentence and a hint, on stderr."""

from __future__ import annotations

import contextlib
import sys


def say(sentence: str, hint: str = "") -> None:
    """Write `leakscope: SENTENCE` and, below it, the hint; a closed stderr is no reason to fail."""
    with contextlib.suppress(OSError, ValueError):
        print(f"leakscope: {sentence}" + (f"\n  hint: {hint}" if hint else ""), file=sys.stderr, flush=True)
