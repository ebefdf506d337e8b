"""Records one process: the thread that writes the timeline, the snapshots of the ladder, the budgets, the end.

Whatever fails here is written down as one sentence, and the target goes on.
"""

import _thread
import gc
import os
import sys
import time
from _thread import allocate_lock

from . import device_settings, native_sites, packages, process, sites
from . import format as fmt
from .device_oom import Observer
from .devices import Devices
from .ladder import Ladder
from .limits import MemoryRoom
from .session_files import ProcessFolder
from .settling import Settle
from .snapshots import Snapshots, reason
from .thread import Thread
from .timeline import Gauge, Timeline
from .work import Ticks, Work

_SECOND = 1_000_000_000
# The main program's site import has ended by then; a forked child that goes on to exec another program leaves nothing
# behind.
_SETTLE_S, _FORK_SETTLE_S = 0.02, 0.05
# How long a fork, and how long the end of the interpreter, waits for a snapshot that is being taken.
_STOP_S, _EXIT_STOP_S, _LAST_STOP_S = 2.0, 3.0, 10.0
_FULL_PART = 0.9
# A snapshot waits while modules are being imported, for as long after the last one, and no longer than this in all.
_IMPORT_PAUSE_NS, _LONGEST_IMPORT_NS = _SECOND // 4, 8 * _SECOND
_SHORT_RUN_NS, _GROWTH_PART = 1 * _SECOND, 1.5
# Rows may take this part of the disk share; then they become rarer, and at twice the part they end.
_TIMELINE_PART = 0.25
_MODULES_IN_PART = 0.95
# A row makes some dozens of objects that the collector counts.
_ROW_OBJECTS = 100
# How soon a child that took a snapshot is fetched; until then the target has it as a zombie.
_LOOK_S = 0.02


def _is_import_under_way():
    """Whether a thread is inside an import: importlib has a lock for each module that is being loaded (CPython 3.9 to 3.13)."""
    locks = getattr(sys.modules.get("_frozen_importlib"), "_module_locks", None)
    return locks is None or len(locks) > 0


class Recorder:
    """One process and its folder. `role` is "fork", or "" for `open` to find out which of the others it is; `soon` lets the
    main thread call `settle.collect`."""

    def __init__(self, options, boot, role="", parent=None, soon=None):
        self.options = options
        self.boot = boot
        self.role = role
        self.parent = os.getppid() if parent is None else parent
        self.pid = os.getpid()
        self.begun_ns = time.monotonic_ns()
        self.started_ns = options.get("started_monotonic_ns") or self.begun_ns
        self.files = ProcessFolder(options["session"], self.started_ns)
        self.timeline = Timeline(self.started_ns, self.begun_ns, self.files.note)
        self.room = MemoryRoom(self.timeline.group)
        self._duration_ns = int((options.get("duration_s") or 0) * _SECOND)
        warmup_s, every_s = options.get("warmup_s"), options.get("every_s")
        keep = options.get("keep_snapshots") or 6
        self.snapshots = Snapshots(self, keep)
        self.ladder = Ladder(keep, None if warmup_s is None else int(warmup_s * _SECOND),
                             None if not every_s else int(every_s * _SECOND), self.snapshots.probe is not None)
        kind, frames = sites.parse_option(options.get("sites"))
        allowed = options.get("max_memory_bytes")
        self.windows = sites.Windows(frames, allowed, self.files.note)
        self.sampler = sites.Sampler(kind == "sampled", self.started_ns, allowed, self.files.note)
        self.ticks = Ticks()
        self.work = Work(self.ticks, self._describe)
        self.timeline.gauges.append(Gauge("work", self.work.read))
        self.oom_observer = Observer(self._take_at_oom, self.files.note)
        self.devices = Devices(options.get("gpu"), self.files.note, self.oom_observer.attach)
        if self.devices.is_on:
            self.timeline.gauges += (Gauge("devices", self.devices.read, spacing_ns=_SECOND // 2),
                                     Gauge("compiled graphs", device_settings.read_compiled, spacing_ns=_SECOND),
                                     Gauge("built libraries", device_settings.read_jit_libraries, spacing_ns=10 * _SECOND))
        self.settle = Settle(self, options.get("settle_s"), options.get("settle_collect"), soon)
        self.soon = soon
        self.thread = None
        self._is_limit_seen = False
        self.is_ended = self._is_ending = False
        self._described, self._modules_then = {}, 0
        self._opening = allocate_lock()
        self._first_blocks = sys.getallocatedblocks()
        self._modules = (0, 0)
        self._import_ns = self._import_count = 0
        self._slowness = 1
        self._next_row_ns = 0

    # --- life ---

    def open(self):
        """Make the folder and process.json, once; return whether the process can be recorded."""
        with self._opening:
            if self.files.path is None and not self.files.is_closed:
                try:
                    earlier = self.files.create(self.pid)
                    name = os.path.basename(self.files.path)
                    self.role = self.role or process.role(self.options["session"], name, earlier)
                    self.sampler.open()
                    self._described = process.describe(self)
                    self._describe()
                except OSError:
                    self.files.is_closed = True
        return not self.files.is_closed

    def _describe(self):
        """Write process.json, again when other things count work or other packages are loaded than before."""
        if self._described:
            self.files.write(fmt.PROCESS_FILE, {**self._described, "work_sources": self.work.sources})

    def begin(self):
        """Start the thread, the collector's clock and, where wanted, allocation tracing."""
        self.timeline.begin()
        self.sampler.open()
        self.windows.open()
        why_not = native_sites.start() if self.options.get("native") else None
        if why_not:
            self.files.note(why_not)
        self.resume()

    def resume(self):
        """Start the thread (again, after a fork in the parent)."""
        self.snapshots.look()
        if self.thread is None and not self.is_ended and not self.files.is_closed:
            self.thread = Thread(self._run)
            try:
                self.thread.start()
                self.timeline.own_threads = 1
            except RuntimeError:
                self.thread = None
                self.files.note("The system gave no thread, so only the end of this process was recorded.")

    def pause(self, seconds=_STOP_S):
        """Stop the thread; return whether it has ended in that time."""
        thread, self.thread = self.thread, None
        self.timeline.own_threads = 0
        return thread is None or thread.stop(seconds)

    def end(self, reason):
        """Write the last row, the snapshot at exit where it is worth its time, and exit.json. Safe to call twice."""
        if self.is_ended or os.getpid() != self.pid:
            return
        thread = self.thread
        has_stopped = self.pause(_EXIT_STOP_S)
        if not has_stopped:
            self.snapshots.give_up()  # the walk under way sees it within moments
            has_stopped = thread.stop(_LAST_STOP_S)
        try:
            self._close(reason, has_stopped)
        except BaseException:  # Ctrl-C, or whatever else a handler of the target raises: somebody wants it to end now
            self.snapshots.give_up()
            if reason != "exit":
                raise

    def _close(self, reason, has_stopped):
        self.is_ended = True
        if self.open():
            row = self.timeline.row(is_whole=True)
            self.files.append(fmt.TIMELINE_FILE, row)
            is_free = has_stopped and not self.snapshots.is_giving_up
            if is_free and reason != "duration" and self._is_exit_worth_a_snapshot():
                self.take("exit", row)
            elif not has_stopped and self.snapshots.is_busy:
                self.files.note(f"The program ended during a snapshot; that was given up after {_LAST_STOP_S:.0f} s.")
            self.snapshots.finish()
            self.files.write(fmt.EXIT_FILE, {"t_ns": time.monotonic_ns() - self.started_ns, "reason": reason})
        self.oom_observer.close()
        self.timeline.end()
        self.sampler.close()
        self.timeline.close()
        self.windows.close()

    def leave(self):
        """Take everything of ours out of the process without writing an end."""
        self.is_ended = True
        self.pause()
        self.snapshots.give_up()
        self.oom_observer.close()
        self.timeline.end()
        self.sampler.close()
        self.timeline.close()
        self.windows.close()

    # --- the thread ---

    def _run(self, thread):
        self.timeline.own_thread(thread.ident)
        try:
            self._record(thread)
        finally:
            self.timeline.own_thread(0)

    def _record(self, thread):
        if thread.wait(_FORK_SETTLE_S if self.role == "fork" else _SETTLE_S) or not self.open():
            return
        while not self.files.is_closed and not self.is_ended:
            try:
                _let_the_collector_pass(thread)
                self._tick()
            except Exception as error:
                self.files.note(f"A row could not be written: {reason(error)}.")
            if self._rest(thread):
                return

    def _rest(self, thread):
        """Sleep until the next row, and fetch a child that has ended meanwhile; return whether the thread is to stop."""
        left_s = self._pause_s()
        while self.snapshots.forked is not None and left_s > 0:
            if thread.wait(min(_LOOK_S, left_s)):
                return True
            self.snapshots.look()
            left_s = min(left_s - _LOOK_S, self._pause_s())
        return thread.wait(left_s)

    def _tick(self):
        elapsed_ns = self.elapsed_ns()
        row = self._write_row(self.ladder.is_due(elapsed_ns) and self.snapshots.forked is None)
        if self._duration_ns and row["t_ns"] >= self._duration_ns:
            self._end_by_duration(row)
            return
        self._watch_modules(row, elapsed_ns)
        self._bound_timeline()
        self.windows.tick(elapsed_ns, self.ladder.next_ns)
        self.sampler.tick()
        self.work.search(elapsed_ns)
        self.settle.look(row)
        if self.ladder.is_due(elapsed_ns):
            if not self._is_importing(row, elapsed_ns):
                self.take("ladder", row, is_waited=False)
        elif not self._is_limit_seen:
            fullness, name = self.room.fullness()
            if fullness >= _FULL_PART:
                self._is_limit_seen = True
                self.files.note(f"Memory passed {fullness:.0%} of the {name}.")
                self.take("limit", row, is_waited=False)

    def _end_by_duration(self, row):
        """Take the last snapshot, after the one under way; once it is there, close."""
        if self.snapshots.forked is None and not self._is_ending:
            self._is_ending = True
            self.take("exit", row, is_waited=False)
        if self.snapshots.forked is None:
            self._close("duration", True)

    def _write_row(self, is_whole):
        row = self.timeline.row(is_whole=is_whole)
        self.files.append(fmt.TIMELINE_FILE, row)
        self._next_row_ns = self.elapsed_ns() + int(self.timeline.interval_s() * self._slowness * _SECOND)
        return row

    def elapsed_ns(self):
        """Return the nanoseconds since this process came up."""
        return time.monotonic_ns() - self.begun_ns

    def _pause_s(self):
        interval_s = self.timeline.interval_s() * self._slowness
        until_snapshot_s = (self.ladder.next_ns - self.elapsed_ns()) / _SECOND
        # One that is overdue waits for an import or a child to end: whole rows at ten times the pace would not hasten it.
        return max(0.01, min(interval_s, until_snapshot_s)) if until_snapshot_s > 0 else interval_s

    def _watch_modules(self, row, elapsed_ns):
        # Importing is the warm-up that every program has: what was taken before it ended is the first to go.
        modules = row.get("modules", 0)
        if modules * _MODULES_IN_PART > self._modules[0] and _is_import_under_way():
            self._modules = (modules, elapsed_ns)
            self.ladder.warmed(elapsed_ns)

    def _is_importing(self, row, elapsed_ns):
        """Whether the program is still starting up: a snapshot would show little and slow the imports down."""
        modules, last_ns, last_count = row.get("modules", 0), self._import_ns, self._import_count
        if modules > last_count and _is_import_under_way():  # a program may also make modules, one for every script it runs
            self._import_ns, self._import_count = elapsed_ns, modules
            last_ns = elapsed_ns
        return elapsed_ns < _LONGEST_IMPORT_NS and elapsed_ns - last_ns < _IMPORT_PAUSE_NS

    def _bound_timeline(self):
        written = self.files.bytes_by_file.get(fmt.TIMELINE_FILE, 0)
        share = self.snapshots.share_bytes()
        if share is None or written < share * _TIMELINE_PART * (1 + self._slowness / 64):
            return
        self._slowness *= 2
        if self._slowness > 64:
            self.files.note("The timeline ended, because it had taken its part of the disk budget.")
            self.files.is_closed = True

    # --- snapshots ---

    def take(self, kind, row=None, is_waited=True, more=None):
        """Take a snapshot now; return its done.json as a dict, or None (see Snapshots.take)."""
        # Not at the start: folders are read for it, and a package may be half imported.
        if len(sys.modules) != self._modules_then and self._described:
            self._modules_then = len(sys.modules)
            self._described["packages"] = packages.versions()
            self._describe()
        return self.snapshots.take(kind, row, is_waited, more)

    def _take_at_oom(self, oom):
        """Take the snapshot of the moment at which a device ran out of memory, in the thread that asked for the memory."""
        if not self.is_ended:
            self.snapshots.take("oom", is_waited=False, oom=oom)

    def row_during_walk(self):
        """Write a row when it is time: a walk in Python takes long, and its thread is the one that writes rows."""
        if _thread.get_ident() == getattr(self.thread, "ident", None) and self.elapsed_ns() >= self._next_row_ns:
            self._write_row(False)

    def own(self):
        """Return what the walk leaves out: our modules and everything that hangs on them."""
        name = __package__
        modules = [module for key, module in list(dict.items(sys.modules))
                   if type(key) is str and (key == name or key.startswith(name + "."))]  # a program may put anything there
        return modules + [self, self.timeline, self.timeline.clock, self.files, self.ladder, self.windows, self.sampler,
                          self.snapshots, self.thread, self.ticks, self.work, self.settle, self.devices, self.oom_observer]

    def _is_exit_worth_a_snapshot(self):
        is_short = self.elapsed_ns() < _SHORT_RUN_NS
        if is_short and sys.getallocatedblocks() < self._first_blocks * _GROWTH_PART:
            return False
        return self.snapshots.is_worth_the_exit()


def _let_the_collector_pass(thread):
    """Wait a moment when the collector is about to run: finalizers should run in a thread of the target, as ever."""
    for _ in range(3):
        threshold = gc.get_threshold()[0]
        if not gc.isenabled() or not threshold or threshold - gc.get_count()[0] > min(_ROW_OBJECTS, threshold // 2):
            return
        thread.wait(0.005)
