"""Takes the snapshots of one process: in a forked child, in place, or by the walk in Python; and what they may cost.

The way with the shorter pause is taken. A child also keeps an accident of the walk away from the target, so where the
two are alike the child walks. While it does, the target and the timeline go on; `look` fetches it.
"""

import errno
import os
import sys
from _signal import SIGALRM, SIGKILL  # type: ignore[import-not-found]  # `signal` would load enum
from _thread import allocate_lock
from time import monotonic_ns, sleep

from . import format as fmt
from . import jsontext, native_sites
from .ladder import Ladder
from .limits import available_cores, call_filters
from .thread import read_small

_SECOND = 1_000_000_000
# Bytes a walk holds for one block with its tables and columns: in Python, and natively (measured: 8 MB and 17 to 19 a
# block; names may be more). Blocks are counted, as objects are not.
_WALK_BYTES, _NATIVE_WALK_BYTES, _NATIVE_BASE_BYTES = 250, 40, 16 << 20
# While a child lives, whatever the target changes is there twice: of the memory of its own, this part is reckoned with.
_CHANGED_PART = 0.1
# Nanoseconds of a native walk for one block, and of a fork for one page of 4 KiB, until they were measured here; and their
# bases. Measured on 2 cores with small pages (bare interpreter, 0.3 M, 1.3 M, 6.3 M blocks, the last of 274 MB): a walk in
# place 36, 73, 283, 1430 ms, a fork 0.2-0.5, 1.1, 2.2, 8 ms; a fork of 2 GB that holds 46,000 blocks 36 ms, its walk 65.
_WALK_NS, _WALK_BASE_NS, _FORK_NS, _FORK_BASE_NS = 200, 20_000_000, 70, 200_000
_COPY_NS = 1000  # of the target for a page that it changes while a child has it, too
_MANY_BLOCKS, _MANY_PAGES = 200_000, 1 << 14  # with fewer, the base is most of it and nothing is learnt
# The target does not stand still for longer than this because there can be no child.
_LONGEST_PAUSE_NS, _LATEST_NS = 2 * _SECOND, 5 * _SECOND  # reckoned before; when a walk in place gives up
# A child has this long, and this many times what the walk should take: it may have to share a core and a slow disk.
_CHILD_NS, _CHILD_TIMES = 60 * _SECOND, 20
_KILL_AFTER_NS = 2 * _SECOND  # after its deadline; the child's own timer is earlier
_MOST_LATE = 2
# An exit is not held up for longer than this part of the run, or this long where that is more.
_EXIT_PART, _EXIT_NS = 0.2, 3 * _SECOND
_FEW_SNAPSHOTS = 3
_SETTLE_SNAPSHOTS = 3  # are kept: of the first pause, of the last, and one between
_OOM_NS = 5 * _SECOND  # how long a device that ran out of memory waits for the snapshot that is being taken; then that is ended
_UNASKED = ("ladder", "limit", "settle")  # for these the target does not stand still for long
_SHARE_AGE_NS = 10 * _SECOND
_FIRST_LOOK_S, _LAST_LOOK_S = 0.0005, 0.02
# Those that were there before the program: a container's, which answers with an error. One of its own may kill it for a child.
_OUTER_FILTERS = call_filters()


class Forked:
    """A snapshot that a child is taking. Times are nanoseconds since the process came up."""

    def __init__(self, pid, index, kind, begun_ns, deadline_ns, pause_ns):
        self.pid, self.index, self.kind = pid, index, kind
        self.begun_ns, self.deadline_ns, self.pause_ns = begun_ns, deadline_ns, pause_ns
        self.why_killed, self.is_late = None, False


class Snapshots:
    """All of one process. `recorder`: its files, timeline, ladder, windows and options are used, and what is its own."""

    def __init__(self, recorder, keep):
        self.last_done = {}
        self.is_giving_up = False
        self.forked = None
        self.last_ended_ns = 0
        self._recorder = recorder
        self._options = recorder.options
        self._files = recorder.files
        self._walking = allocate_lock()
        self._index = 0
        self._manual, self._settled = Ladder(keep), Ladder(_SETTLE_SNAPSHOTS)
        self._share = None
        self._late_count = 0
        self._exit_ends_ns = None  # once the program ends
        self._walk_ns = _WALK_NS
        self._fork_ns = _FORK_NS
        self._why_no_child = None
        self._devices = None  # what their allocators said, until it is written
        self.probe, self.why_not_native = _probe(self._options.get("sites") or "")

    # --- taking one ---

    @property
    def is_busy(self):
        """Whether one is being taken: in this process, or by a child."""
        return self._walking.locked() or self.forked is not None

    def take(self, kind, row=None, is_waited=True, more=None, oom=None):
        """Take a snapshot. `more`: what done.json is to say besides; `oom`: devices.json, of kind "oom".

        Returns done.json as a dict, or None: a note says why there is none, or (not `is_waited`) a child is taking it.
        """
        if not self._walking.acquire(is_waited and kind in ("manual", "settle")):
            if kind == "oom":
                self._files.note("No snapshot was taken of that moment, because one was being taken.")
            return None
        try:
            patience_ns = self._patience_ns() if kind == "exit" else None
            if self.forked is not None:
                if kind == "oom":
                    self._wait(_OOM_NS, "a device ran out of memory, which is worth more.")
                elif not is_waited:
                    return None
                else:
                    self._wait(patience_ns)
                if kind == "exit" and not self._patience_ns() or self.forked is not None:
                    return None
            done = self._take(kind, row, more, oom)
            if self.forked is None or not is_waited:
                return done
            return self._wait(self._patience_ns() if kind == "exit" else None)
        except Exception as error:
            self._failed(self._index, why_of(error))
            return None
        finally:
            self._devices = None
            self._walking.release()

    def _take(self, kind, row, more, oom=None):
        if not self._recorder.open() or not self._files.is_there():
            return None
        begun_ns = self._recorder.elapsed_ns()
        refusal = self._memory_refusal() or self._disk_refusal()
        if refusal:
            return self._left_out(refusal, begun_ns)
        row = row or self._recorder.timeline.row(is_whole=True)
        tracer = self._recorder.windows.tracer()
        self._devices = None
        if self.probe is None or tracer is not None:
            self._devices = self._recorder.devices.take(oom)
            return self._walk(kind, row, begun_ns, tracer, False, more)
        is_forked = self._is_child_better(row)
        # Before the fork: the allocator has locks, which another thread may hold at that moment, and no child may touch.
        self._devices = self._recorder.devices.take(oom)
        if is_forked and self._fork(kind, row, begun_ns, more):
            return None
        if self._in_place_ns() > _LONGEST_PAUSE_NS and kind in _UNASKED:
            return self._left_out(f"A snapshot was left out: without a child to take it, the program would stand still for "
                                  f"about {self._in_place_ns() / _SECOND:.0f} s.", begun_ns)
        return self._walk(kind, row, begun_ns, None, True, more)

    def _left_out(self, sentence, begun_ns):
        self._files.note(sentence)
        self._recorder.ladder.postponed(begun_ns, begun_ns)

    def _start(self):
        """Return the folder and t_ns of the next snapshot."""
        self._index += 1
        return self._files.snapshot_path(self._index), monotonic_ns() - self._recorder.started_ns

    def _walk(self, kind, row, begun_ns, tracer, is_native, said):
        """Take one in this thread: natively, which stops the target, or in Python, beside which other threads go on."""
        from . import walk

        take = self.probe.take if is_native else walk.take
        folder, t_ns = self._start()
        try:
            own = self._recorder.own() + ([] if tracer is None else [tracer])
            more = self._bounds(_LATEST_NS if kind in _UNASKED else _CHILD_NS) if is_native else {}
            if said:
                more["more"] = said
            done = take(folder, self._index, kind, t_ns, own=own, sample=row, tracer=tracer, go_on=self._go_on, **more)
        finally:
            ended_ns = self.last_ended_ns = self._recorder.elapsed_ns()
            self._recorder.ladder.postponed(begun_ns, ended_ns, ended_ns - begun_ns if is_native else None)
            self._recorder.windows.snapshot_taken(ended_ns)
        if done and is_native:
            self._learn(done["pause_ns"])
        self._write_devices(folder)
        self._taken(kind, self._index, begun_ns, done)
        return done

    def _write_devices(self, folder):
        """Write devices.json of the snapshot that was just begun, or taken; what it is made of is large, and goes."""
        taken, self._devices = self._devices, None
        self._recorder.devices.write(folder, taken)

    def _taken(self, kind, index, begun_ns, done):
        self.last_done = done or {}
        if self._options.get("native") and done:
            try:
                native_sites.write(self._files.snapshot_path(index))
            except OSError as error:
                self._files.note(f"Native memory of snapshot {index} was not recorded: {reason(error)}.")
        if kind in ("limit", "oom"):
            return
        ladder = {"manual": self._manual, "settle": self._settled}.get(kind, self._recorder.ladder)
        for dropped in ladder.taken(index, begun_ns):
            self._files.remove_snapshot(dropped)

    def _failed(self, index, why):
        self._files.note(f"Snapshot {index} could not be taken: {why}")
        self._files.remove_snapshot(index)

    def _go_on(self, objects_count):
        """Called now and then during a walk; ends it when the program ends, or when it needs more than it may."""
        from .walk import GivenUp

        if self.is_giving_up:
            raise GivenUp("the program ended while it was being taken.")
        allowed = self._options.get("max_memory_bytes")
        if allowed and objects_count * _WALK_BYTES > allowed:
            raise GivenUp(f"the heap grew meanwhile, and the walk would need more than the {allowed >> 20} MiB allowed.")
        self._recorder.row_during_walk()

    # --- the child ---

    def _is_child_better(self, row):
        """Whether the target stands still for a shorter time when a child walks, and memory and system allow one."""
        pages = row.get("rss_bytes", 0) >> 12
        if call_filters() not in (_OUTER_FILTERS, b"") and not self._why_no_child:
            self._why_no_child = "a filter of its own"
            self._files.note("The program filters its system calls, and a child might not be allowed: snapshots are taken in "
                             "place, and the program stands still meanwhile.")
        if self._why_no_child or _FORK_BASE_NS + pages * self._fork_ns > self._in_place_ns():
            return False
        left = self._recorder.room.left_bytes()
        needed = self._needed_bytes() + int(row.get("anon_bytes", 0) * _CHANGED_PART)
        if left is not None and needed > left // 2:
            self._files.note("Memory is short, so snapshots are taken in place: the program stands still meanwhile.")
            return False
        return True

    def _in_place_ns(self):
        return _WALK_BASE_NS + sys.getallocatedblocks() * self._walk_ns

    def _fork(self, kind, row, begun_ns, more):
        """Let a child take the snapshot; return whether there is one."""
        deadline_ns = max(_CHILD_NS, _CHILD_TIMES * self._in_place_ns())
        folder, t_ns = self._start()
        try:
            pid, pause_ns = self.probe.fork(folder, self._index, kind, t_ns, own=self._recorder.own(), sample=row,
                                            more=more, **self._bounds(deadline_ns))
        except OSError as error:
            self._files.remove_snapshot(self._index)
            if error.errno not in (errno.EAGAIN, errno.ENOMEM, errno.EALREADY):
                self._why_no_child = error.strerror
            self._files.note(f"The system gave no process for a snapshot ({error.strerror}), so it was taken in place: the "
                             "program stood still meanwhile.")
            return False
        self.forked = Forked(pid, self._index, kind, begun_ns, begun_ns + deadline_ns, pause_ns)
        self._recorder.timeline.own_child = pid
        pages = row.get("rss_bytes", 0) >> 12
        if pages > _MANY_PAGES:
            self._fork_ns = max(1, (pause_ns - _FORK_BASE_NS) // pages)
        self._recorder.ladder.postponed(begun_ns, self._recorder.elapsed_ns(), pause_ns)
        self._write_devices(folder)
        return True

    def _bounds(self, longest_ns):
        """Return what a native walk may take: memory for itself, and time."""
        return {"max_bytes": self._options.get("max_memory_bytes") or 0, "deadline_ns": monotonic_ns() + longest_ns}

    def look(self):
        """Fetch the child if it has ended, end it if it should have; never waits."""
        if self.forked is not None and self._walking.acquire(False):
            try:
                self._look()
            finally:
                self._walking.release()

    def _look(self):
        """The same with the lock held; return done.json when the child has left one."""
        forked = self.forked
        try:
            result = self.probe.forked()
        except OSError:  # fetched by nobody knows whom
            result = {"signal": 0, "cpu_ns": 0}
        if result is None:
            if self._recorder.elapsed_ns() > forked.deadline_ns + _KILL_AFTER_NS:
                forked.is_late = True
                self._kill(_too_long(forked))
            return None
        self.forked = None
        self._recorder.timeline.own_child = None
        ended_ns = self.last_ended_ns = self._recorder.elapsed_ns()
        done = self._read_done(forked.index)
        # What the child dirtied beyond its own tables are pages that the target changed: it had to copy each of them.
        copied = max(0, result.get("dirtied_bytes", 0) - result.get("peak_bytes", 0)) >> 12
        cost_ns = forked.pause_ns + copied * _COPY_NS + result["cpu_ns"] // available_cores()
        self._recorder.ladder.postponed(forked.begun_ns, ended_ns, cost_ns)
        self._recorder.windows.snapshot_taken(ended_ns)
        if done is None:
            self._failed(forked.index, self._accident(forked, result))
        else:
            self._learn(result["cpu_ns"])
            self._taken(forked.kind, forked.index, forked.begun_ns, done)
        return done

    def _accident(self, forked, result):
        """Return why a child left no snapshot. A walk that crashes is not tried in place: the target would crash."""
        if result.get("reason"):
            return why_of(self.probe.failure(result, None))
        why = forked.why_killed or f"the process that took it was ended by signal {result['signal']}."
        if result["signal"] == SIGALRM:
            why, forked.is_late = _too_long(forked), True
        if result["signal"] == SIGKILL and not forked.is_late:
            return why  # by us at the exit; or by the system, for want of memory
        self._late_count += forked.is_late
        if not forked.is_late or self._late_count >= _MOST_LATE:
            self.probe = None
            self._recorder.ladder.next_ns = self._recorder.elapsed_ns()
            self._files.note("The native walk fails in this process, so the walk in Python takes the snapshots from here on.")
        return why

    def _kill(self, why):
        self.forked.why_killed = why
        self.probe.kill()

    def finish(self):
        """Let the child under way end, for as long as an exit may be held up by it."""
        if self.forked is not None and self._walking.acquire(False):
            try:
                self._wait(self._patience_ns())
            finally:
                self._walking.release()

    def give_up(self):
        """End the walk under way within a second: a child is killed and fetched; one in this process sees it soon."""
        self.is_giving_up = True
        self.end_child()

    def end_child(self):
        """Kill and fetch the child under way."""
        if self.forked is not None and self._walking.acquire(False):
            try:
                self._wait(0)
            finally:
                self._walking.release()

    def _wait(self, longest_ns, why="the program ended while it was being taken."):
        """Wait for the child; return its done.json. After `longest_ns` (None: its deadline) it is killed."""
        pause_s, begun_ns = _FIRST_LOOK_S, self._recorder.elapsed_ns()
        while True:
            done = self._look()
            if self.forked is None:
                return done
            waited_ns = self._recorder.elapsed_ns() - begun_ns
            if longest_ns is not None and waited_ns >= longest_ns:
                if self.forked.why_killed is None:
                    self._kill(why)
                elif waited_ns > longest_ns + _SECOND:
                    return None  # a process that the system cannot end now is fetched by the system
            sleep(pause_s)
            pause_s = min(_LAST_LOOK_S, pause_s * 1.3)

    def _read_done(self, index):
        try:
            path = os.path.join(self._files.snapshot_path(index), fmt.DONE_FILE)
            return jsontext.read(read_small(path, 1 << 20).decode())
        except (OSError, ValueError):
            return None

    def _learn(self, walk_ns):
        blocks = sys.getallocatedblocks()
        if blocks > _MANY_BLOCKS and walk_ns > _WALK_BASE_NS:
            self._walk_ns = (walk_ns - _WALK_BASE_NS) // blocks

    # --- what it may cost ---

    def _needed_bytes(self):
        blocks = sys.getallocatedblocks()
        return blocks * _WALK_BYTES if self.probe is None else _NATIVE_BASE_BYTES + blocks * _NATIVE_WALK_BYTES

    def _memory_refusal(self):
        blocks, needed = sys.getallocatedblocks(), self._needed_bytes()
        allowed = self._options.get("max_memory_bytes")
        if allowed and needed > allowed:
            return (f"A snapshot was left out at {blocks} blocks: the walk may need {needed >> 20} MiB, more than the "
                    f"{allowed >> 20} MiB allowed.")
        left = self._recorder.room.left_bytes()
        if left is not None and needed > left // 2:
            return (f"A snapshot was left out at {blocks} blocks: the walk may need {needed >> 20} MiB, and only "
                    f"{left >> 20} MiB of memory are left.")
        return None

    def share_bytes(self):
        """Return what this process may take of the disk, or None without a limit."""
        allowed = self._options.get("max_disk_bytes")
        if not allowed:
            return None
        now_ns = self._recorder.elapsed_ns()
        if self._share is None or now_ns - self._share[0] > _SHARE_AGE_NS:
            self._share = (now_ns, self._files.share_bytes(allowed))
        return self._share[1]

    def _disk_refusal(self):
        share = self.share_bytes()
        if share is None:
            return None
        last = self._files.snapshot_bytes(self._index) if self._index else 0
        while self._files.used_bytes() + last * 1.2 > share:
            dropped = self._recorder.ladder.thin()
            if dropped is None:
                return f"A snapshot was left out: this process has used its {share >> 20} MiB of the disk budget."
            self._files.remove_snapshot(dropped)
        return None

    # --- the exit ---

    def _patience_ns(self):
        """Return for how long snapshots may still hold up an exit, all of them together: the one under way, and the last."""
        now_ns = self._recorder.elapsed_ns()
        if self._exit_ends_ns is None:
            self._exit_ends_ns = now_ns + max(_EXIT_NS, int(now_ns * _EXIT_PART))
        return max(0, self._exit_ends_ns - now_ns)

    def is_worth_the_exit(self):
        """Whether the last snapshot took little enough for one more; a note says if not."""
        walk_ns = self.last_done.get("walk_ns") or self.last_done.get("pause_ns", 0)
        # Growth is told from three snapshots: where the ladder has fewer, the exit waits for the last one longer.
        patience_ns = self._patience_ns()
        if len(self._recorder.ladder.kept) < _FEW_SNAPSHOTS:
            patience_ns = max(patience_ns, self._recorder.elapsed_ns())
        if walk_ns <= patience_ns:
            return True
        self._files.note(f"No snapshot was taken at the exit, because the last one took {walk_ns / _SECOND:.1f} s.")
        return False


def _probe(sites):
    """Return (the native walk, None), or (None, a sentence that says why there is none)."""
    if sites.startswith("tracemalloc"):
        return None, "The sites of tracemalloc are found by the walk in Python."
    try:
        from . import probe
    except Exception:  # ImportError, or a compiled file that a full disk has cut off
        return None, "This installation has no probe for this interpreter."
    why_not = probe.why_not()
    return (None, why_not) if why_not else (probe, None)


def _too_long(forked):
    return f"the process that took it did not end in {(forked.deadline_ns - forked.begun_ns) // _SECOND} s."


def why_of(error):
    """Return the end of the sentence that says why there is no snapshot."""
    return str(error) if type(error).__name__ == "GivenUp" else f"{reason(error)}."


def reason(error):
    """Return what went wrong without values of the target: the kind of error, and the system's words for it."""
    return f"{type(error).__name__}, {error.strerror}" if isinstance(error, OSError) else type(error).__name__
