"""What leakscope does while the target runs: the status line, who has no agent, and the report after --duration."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

from leakscope.commands._absence import Seen, as_started, gap, lost, tree
from leakscope.commands._device_watch import DeviceWatch
from leakscope.commands._packing import Packing
from leakscope.commands._say import say
from leakscope.commands._status import StatusLine
from leakscope.commands._target import Target
from leakscope.model import Gap
from leakscope.session import Session

_LOOK_EVERY_S = 1.0
_PACK_EVERY_S = 10.0
_LONG_ENOUGH_S = 2.0  # ours: an interpreter that has no agent after this has none
# After the end of the target: how long a snapshot may still grow, and how often it is looked at until it has stood still.
_LAST_SNAPSHOT_S, _GROWING_S, _STILL = 10.0, 0.1, 10
_STOP_GRACE_S = 10.0  # after --duration the agent takes a last snapshot, in pure Python a second for a million objects


class Watch:
    """Called by Target.wait again and again; everything it does is short."""

    def __init__(self, session: Session, target: Target, status: StatusLine | None) -> None:
        self.session, self.target, self.status = session, target, status
        self.started_s = time.monotonic()
        self._duration_s: float | None = None
        self._at_duration: Callable[[], None] | None = None
        self._thread: threading.Thread | None = None
        self._packing, self._pack_next_s = Packing(session), _PACK_EVERY_S
        self._devices = DeviceWatch(session, target.pid)
        self._look_next_s = 0.0
        self._look_step_s = 0.02  # a short script is over soon: look early, then less often
        self._without: dict[int, Seen] = {}
        self._first_seen_s: dict[int, float] = {}
        self._suspects: set[int] = set()  # Python that had no agent although it was there for a while

    def after(self, duration_s: float, do: Callable[[], None]) -> None:
        """Call `do` in a thread of its own when recording has stopped, `duration_s` after the start."""
        self._duration_s, self._at_duration = duration_s, do

    def tick(self) -> float:
        """Do what is due; return the seconds until the next time."""
        elapsed_s = time.monotonic() - self.started_s
        if elapsed_s >= self._look_next_s:
            self._look_for_absent(elapsed_s)
            self._devices.look(elapsed_s)
            if self.status:
                self.status.draw(self.session, elapsed_s)
            self._look_step_s = min(_LOOK_EVERY_S, self._look_step_s * 2)
            self._look_next_s = elapsed_s + self._look_step_s
        if self._at_duration and self._duration_s is not None and self._has_stopped(elapsed_s, self._duration_s):
            self._devices.end()
            self._thread = threading.Thread(target=self._at_duration, name="report")
            self._thread.start()
            self._at_duration = None
            self._without_status()
        if elapsed_s >= self._pack_next_s:
            self._packing.look()
            self._pack_next_s = elapsed_s + _PACK_EVERY_S
        return max(0.01, self._look_next_s - elapsed_s)

    def let_snapshots_finish(self) -> None:
        """Wait while a snapshot grows: the process that takes it outlives a target that was killed, and it is the last one."""
        end_s = time.monotonic() + _LAST_SNAPSHOT_S
        before, still = None, 0
        while time.monotonic() < end_s and still < _STILL:
            with contextlib.suppress(OSError):  # a file that was there a moment ago
                now = self.session.unfinished_bytes()
                if now is None:
                    return
                before, still = now, still + 1 if now == before else 0
            time.sleep(_GROWING_S)

    def end(self) -> bool:
        """Clean up after the target has ended; return True if the report was made, or tried, in the meantime."""
        self._without_status()
        self._devices.end()
        if self._thread is None:
            return False
        self._thread.join()
        return True

    def pack(self) -> None:
        """Pack the snapshots that are not yet; the report has been made."""
        self._packing.finish()

    def say_what_is_absent(self) -> None:
        """Write down, and say, which Python processes no agent reported from; all of them: why there is no Python at all."""
        if not self.session.boot_folder.is_dir():
            self._add_gap(lost(self.session.path))
            return
        reported = self.session.reported()
        absent = [seen for pid, seen in self._without.items() if pid not in reported and pid in self._suspects]
        if not reported and not absent:
            seen = list(self._without.values()) or [as_started(self.target.pid, self.target.command)]
            absent = [next((each for each in seen if each.is_python), seen[-1])]
        for each in absent[:5]:
            self._add_gap(gap(each))

    def _add_gap(self, found: Gap) -> None:
        with contextlib.suppress(OSError):  # the report says it all the same
            self.session.add_gap(found.claim, found.missing, found.command)
        say(found.missing, found.command)

    def _without_status(self) -> None:
        if self.status:
            self.status.clear()
            self.status = None

    def _has_stopped(self, elapsed_s: float, duration_s: float) -> bool:
        if elapsed_s < duration_s:
            return False
        snapshots = self.session.snapshots()
        return elapsed_s > duration_s + _STOP_GRACE_S or bool(snapshots and snapshots[-1].t_ns >= duration_s * 1e9)

    def _look_for_absent(self, elapsed_s: float) -> None:
        """Remember the processes without an agent."""
        reported = self.session.reported()
        if reported and not self.session.info["options"]["follow"]:
            return
        for seen in tree(self.target.pid, self.session.boot_folder):
            if seen.pid in reported or not seen.argv:
                continue
            before = self._without.get(seen.pid)
            if before is None or before.argv != seen.argv:
                self._first_seen_s[seen.pid] = elapsed_s
            elif seen.is_python and elapsed_s - self._first_seen_s[seen.pid] >= _LONG_ENOUGH_S:
                self._suspects.add(seen.pid)
            self._without[seen.pid] = seen
