"""The live status line: the session at this moment, at the right edge of the terminal, without moving the cursor."""

from __future__ import annotations

import os
from typing import TextIO

from leakscope.commands._target import is_foreground
from leakscope.session import Json, Session, SessionProcess
from leakscope.units import bytes_text, count_text, seconds_text

_SAVE, _RESTORE = "\x1b7", "\x1b8"
_FAR_RIGHT = "\x1b[999C"
_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"


class StatusLine:
    """Draws on `stream`. The target's own text, also a prompt without a newline, stays where it is: the cursor is put back."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self._drawn = 0
        self._main: SessionProcess | None = None

    def draw(self, session: Session, elapsed_s: float) -> None:
        """Show the state of the session; nothing while leakscope is in the background or the terminal is narrow."""
        if not is_foreground(self.stream.fileno()):
            return
        text = f"leakscope {self._facts(session, elapsed_s)}"
        width = os.get_terminal_size(self.stream.fileno()).columns or 80  # 0: a terminal that nobody gave a size
        if len(text) < width:
            self._write(text)

    def clear(self) -> None:
        """Take the status line away."""
        if self._drawn and is_foreground(self.stream.fileno()):
            self._write("")

    def _write(self, text: str) -> None:
        width = max(len(text), self._drawn)
        back = f"\x1b[{width - 1}D" if width > 1 else ""
        self.stream.write(f"{_SAVE}{_FAR_RIGHT}{back}{_DIM}{text:>{width}}{_PLAIN}{_RESTORE}")
        self.stream.flush()
        self._drawn = len(text)

    def _facts(self, session: Session, elapsed_s: float) -> str:
        self._main = self._main or session.main()
        facts = [seconds_text(round(elapsed_s))]
        if self._main is None:
            return " · ".join([*facts, "waiting for Python"])
        sample = self._main.latest() or {}
        if "rss_bytes" in sample:
            facts.append(bytes_text(sample["rss_bytes"]))
        snapshots = self._main.snapshots()
        if snapshots:
            facts.append(f"{count_text(snapshots[-1].done.get('node_count', 0))} objects")
        facts.append(f"{len(snapshots)} snapshot{'s' * (len(snapshots) != 1)}")
        facts += [f"{name} {bytes_text(size)}" for name, size in devices(sample)]
        return " · ".join(facts)


def devices(sample: Json) -> list[tuple[str, float]]:
    """Return the device memory of a sample: (`cuda:0`, bytes allocated)."""
    columns = sorted(name for name in sample if name.startswith("cuda") and name.endswith("_allocated_bytes"))
    return [(f"cuda:{name[4:].partition('_')[0]}", sample[name]) for name in columns]


def wants_status(stream: TextIO | None) -> bool:
    """True if `stream` is a terminal that can put its cursor back; None: it was closed before we started."""
    return stream is not None and stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
