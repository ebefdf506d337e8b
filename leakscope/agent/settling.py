"""The settle step: a snapshot once the program has had nothing to do for a while, where what was under way is gone.

`--settle 30s`: the agent sees by its samples that the load pauses (format.is_quiet), waits that long, and takes the snapshot;
after the next load it waits again. `leakscope.settle()` in the program: it sleeps in the caller's thread and takes it then.

Garbage is collected only where somebody asked for it (`--settle-collect`, `settle(collect=True)`), and never in our thread,
where finalizers do not expect to run. `settle(collect=True)` collects in the thread that called it. For `--settle-collect` the
interpreter itself is asked to let the main thread do it as soon as that runs Python (Py_AddPendingCall). A main thread that
waits in C runs none: one that waits in asyncio's selector is woken by a zero byte to the loop, as asyncio wakes it; where it
still does not come, nothing is collected and a note says so.
"""

import gc
import os
import sys
import time
from _thread import get_ident

from . import classes, threads
from .format import QUIET_CPU, is_quiet

_SECOND = 1_000_000_000
_LOAD_NS = _SECOND // 10  # processor time after a settle step that makes another one worth it; ours
_COLLECT_NS = 5 * _SECOND  # how long the main thread may take to come and collect
_ROUNDS = 2  # what a finalizer lets go of is collected in the second


class Settle:
    """The settle steps of one process. `wait_s`: how long the pause has to last, 0 or None: no steps by ourselves."""

    def __init__(self, recorder, wait_s, collects, call):
        self._recorder = recorder
        self._wait_ns = int((wait_s or 0) * _SECOND)
        self._collects = bool(collects) and self._wait_ns > 0
        self._call = call if self._collects else None  # lets the main thread call `collect` soon; None: it cannot
        self._start = self._before = None  # samples
        self._worked_ns = _LOAD_NS + 1  # processor time of load since the last step; the start of the program was load
        self._asked_ns = 0  # when the main thread was asked to collect
        self._collecting_ns = None  # what that took of processor time; None: it has not come yet, 0: it is at it

    def look(self, row):
        """See by the newest sample whether it is time for a step, and take it."""
        if not self._wait_ns or row.get("cpu_ns") is None:
            return
        if self._asked_ns:
            self._wait_for_collection(row)
            return
        if self._before is None or not is_quiet(self._start, self._before, row):
            self._note_load(row)
            self._start = row
        self._before = row
        if self._quiet_ns(row) < self._wait_ns or self._worked_ns <= _LOAD_NS:
            return
        if not self._collects:
            self._take(row, False)
        elif self._call is None:
            self._recorder.files.note("Nothing was collected in the settle step: this interpreter lets nobody ask its main "
                                      "thread to.")
            self._collects = False
        else:
            self._collecting_ns = None
            self._asked_ns = time.monotonic_ns()
            self._call()
            wake_loop()

    def _quiet_ns(self, row):
        return row["t_ns"] - self._start["t_ns"]

    def _note_load(self, row):
        """Count what ended a pause: work that was done makes another step worth it, and processor time does from some on."""
        before = self._before or row
        self._worked_ns += row["cpu_ns"] - before["cpu_ns"]
        if row.get("work_count") != before.get("work_count"):
            self._worked_ns += _LOAD_NS + 1

    def _wait_for_collection(self, row):
        took_ns = self._collecting_ns
        if took_ns == 0:
            return
        if not is_quiet(self._start, self._before, dict(row, cpu_ns=row["cpu_ns"] - (took_ns or 0))):
            self._asked_ns, self._before = 0, None  # the pause is over
        elif took_ns is not None:
            self._take(row, True)
        elif time.monotonic_ns() - self._asked_ns > _COLLECT_NS and self._take(row, False):
            self._recorder.files.note("Nothing was collected in the settle step: the main thread ran no Python for "
                                      f"{_COLLECT_NS // _SECOND} s, and finalizers have to run there.")

    def collect(self):
        """Collect, in the thread that calls: the main thread, because it was asked to."""
        if self._asked_ns and self._collecting_ns is None:
            self._collecting_ns = 0
            begun_ns = time.thread_time_ns()
            collect()
            self._collecting_ns = max(1, time.thread_time_ns() - begun_ns)

    def _take(self, row, is_collected):
        """Take the snapshot; return False where another is still under way."""
        if self._recorder.snapshots.is_busy:
            return False
        self._worked_ns = self._asked_ns = 0
        more = {"settle": {"quiet_s": round(self._quiet_ns(row) / _SECOND, 3), "collected": is_collected}}
        self._start = self._before = None
        self._recorder.take("settle", None, is_waited=False, more=more)
        return True

    def now(self, seconds, collects, cpu_ns):
        """Take a snapshot in this thread, after a pause of so many seconds in which so much processor time was used."""
        is_quiet_now = cpu_ns <= max(QUIET_CPU * seconds * _SECOND, _LOAD_NS)
        if collects:
            collect()
        if not is_quiet_now:
            self._recorder.files.note(f"leakscope.settle() waited {seconds:g} s, but the program was busy meanwhile: what was "
                                      "under way counts as left.")
        more = {"settle": {"quiet_s": float(seconds) if is_quiet_now else 0.0, "collected": collects}}
        self._recorder.take("settle", more=more)


def collect():
    """Collect garbage in this thread, and what its finalizers let go of."""
    for _ in range(_ROUNDS):
        gc.collect()


def wake_loop():
    """Let the main thread come back from the selector of its asyncio loop; nothing where it does not wait there."""
    spaces = classes.space_named("asyncio.base_events"), classes.space_named("asyncio.selector_events")
    own, kind = spaces[0].get("BaseEventLoop"), spaces[1].get("BaseSelectorEventLoop")
    frame = sys._current_frames().get(threads._main_ident) if own and kind else None
    if get_ident() == threads._main_ident:
        return
    while frame is not None:
        if frame.f_globals is spaces[0] and frame.f_code.co_name == "run_forever":
            for _, value in threads.slots().of_frame(frame, threads.local_names(frame.f_code)):
                if any(base is kind for base in classes.mro_of(type(value))):
                    _write_to(value)
                    return
        frame = frame.f_back


def _write_to(loop):
    """The same as BaseSelectorEventLoop._write_to_self: a zero byte wakes the loop and means nothing to it."""
    try:
        wakes = object.__getattribute__(loop, "_csock")
        if wakes is not None:
            os.write(classes.space_named("_socket")["socket"].fileno(wakes), b"\0")
    except (AttributeError, KeyError, OSError, TypeError):
        pass
