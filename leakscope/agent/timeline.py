"""One row of counters about this process: what it uses, what its allocators hold, what the collector did.

A gauge reads a few columns. Each is guarded and has a budget: one that takes long is read more seldom, so that a
target with a hundred thousand mappings or descriptors does not pay for being watched. A column that was not read is
absent from its row.
"""

import gc
import os
import sys
from _thread import get_ident
from time import monotonic_ns, process_time_ns, thread_time_ns

from . import allocators, classes, native, outside
from .limits import ControlGroup, kilobytes
from .thread import read_small

_SECOND = 1_000_000_000
# A gauge may use one part in this many of the time of one core; 100 = 1 %.
_BUDGET = 100
# Reading a gauge below this is free for us, whatever its budget says.
_CHEAP_NS = 200_000
_MOST_FAILURES = 3


class Gauge:
    """A function that adds columns to a row, how often it is read at most, and when it may be read next."""

    def __init__(self, name, read, spacing_ns=0):
        self.name = name
        self.failures = 0
        self._read = read
        self._spacing_ns = spacing_ns
        self._due_ns = 0

    def read(self, row, now_ns, is_due=False):
        """Add the columns when due; an error leaves them out, and after a few in a row the gauge is given up."""
        if self.is_given_up or now_ns < self._due_ns and not is_due:
            return
        begun_ns = thread_time_ns()  # not the wall clock: waiting for the GIL costs the target nothing
        try:
            self._read(row)
            self.failures = 0
        except Exception:
            self.failures += 1
        cost_ns = thread_time_ns() - begun_ns
        wait_ns = cost_ns * _BUDGET if cost_ns > _CHEAP_NS else 0
        self._due_ns = now_ns + max(self._spacing_ns, wait_ns)

    @property
    def is_given_up(self):
        """Whether it failed too often to be read again."""
        return self.failures >= _MOST_FAILURES


class CollectorClock:
    """An entry of gc.callbacks that adds up how long the collector stopped the program. It must never raise."""

    __slots__ = ("total_ns", "_begun_ns")

    def __init__(self):
        self.total_ns = 0
        self._begun_ns = 0

    def __call__(self, phase, info):
        if phase == "start":
            self._begun_ns = monotonic_ns()
        elif self._begun_ns:
            self.total_ns += monotonic_ns() - self._begun_ns
            self._begun_ns = 0


class Timeline:
    """Makes rows. `started_ns`: the session's zero; `begun_ns`: when this process came up. Both CLOCK_MONOTONIC."""

    def __init__(self, started_ns, begun_ns, note):
        self._started_ns = started_ns
        self._begun_ns = begun_ns
        self._note = note
        self.group = ControlGroup()
        self.clock = CollectorClock()
        self.own_threads = 0
        self.own_ident = self._own_cpu_ns = self._ended_cpu_ns = 0
        self.own_child = None  # the pid of a child of ours, which takes a snapshot and has all pages, too
        read_allocator = native.allocator_reader()
        self._arenas = allocators.Arenas(note)
        self.gauges = [
            Gauge("status", _read_status),
            Gauge("stat", self._read_stat),
            Gauge("interpreter", _read_interpreter),
            Gauge("processor time", self._read_cpu),
            Gauge("collector", self._read_collector),
            Gauge("control group", self.group.read),
            # Walks all page tables of the process while new mappings wait.
            Gauge("smaps_rollup", self._read_rollup, spacing_ns=_SECOND // 2),
            Gauge("descriptors", _read_descriptors, spacing_ns=_SECOND // 2),
            Gauge("tasks", _read_tasks),
            Gauge("tracemalloc", _read_tracemalloc),
            Gauge("arenas", self._arenas.read, spacing_ns=_SECOND // 2),
            Gauge("children", self._read_children, spacing_ns=_SECOND // 2),
            Gauge("shared memory", outside.SharedFiles().read, spacing_ns=_SECOND // 2),
        ]
        if read_allocator is None:
            note("The C library has no mallinfo2 (glibc 2.33 or later): native memory is not divided into used and free.")
        else:
            self.gauges.append(Gauge("allocator", lambda row: row.update(read_allocator()), spacing_ns=_SECOND // 2))
            self.gauges.append(Gauge("malloc arenas", allocators.read_malloc_arenas, spacing_ns=_SECOND))

    def begin(self):
        """Start to clock the collector's pauses."""
        if not any(callback is self.clock for callback in gc.callbacks):
            gc.callbacks.append(self.clock)

    def end(self):
        """Leave gc.callbacks as it was."""
        for position, callback in enumerate(gc.callbacks):
            if callback is self.clock:
                del gc.callbacks[position]
                break

    def close(self):
        """Take what counts out of the allocators: nobody will ask any more."""
        self._arenas.close()

    def interval_s(self):
        """Return the seconds from one row to the next: a short program is seen closely, a server writes 1 a second."""
        elapsed_s = (monotonic_ns() - self._begun_ns) / _SECOND
        return 0.1 if elapsed_s < 30 else 0.5 if elapsed_s < 300 else 1.0

    def row(self, is_whole=False):
        """Return one sample, t_ns first; a whole one (of a snapshot, of the end) has all that can be read."""
        now_ns = monotonic_ns()
        row = {"t_ns": now_ns - self._started_ns}
        for gauge in self.gauges:
            given_up = gauge.is_given_up
            gauge.read(row, now_ns, is_whole)
            if gauge.is_given_up and not given_up:
                self._note(f"The gauge '{gauge.name}' cannot be read here, so its columns are missing.")
        return row

    def own_thread(self, ident):
        """Say which thread is ours; its time is none of the program's. 0: it is about to end."""
        if ident == 0:
            self._ended_cpu_ns, self._own_cpu_ns = self._ended_cpu_ns + thread_time_ns(), 0
        self.own_ident = ident

    def cpu_ns(self):
        """Return the processor time of the process so far, without our thread's as far as that is known."""
        if get_ident() == self.own_ident:
            self._own_cpu_ns = thread_time_ns()
        return process_time_ns() - self._own_cpu_ns - self._ended_cpu_ns

    def _read_cpu(self, row):
        row["cpu_ns"] = self.cpu_ns()

    def _read_stat(self, row):
        # Behind the name in brackets: state is field 3 of proc(5), minflt 10, majflt 12, num_threads 20.
        fields = read_small("/proc/self/stat").rpartition(b")")[2].split()
        row["page_faults_minor"] = int(fields[7])
        row["page_faults_major"] = int(fields[9])
        row["threads"] = int(fields[17]) - self.own_threads

    def _read_rollup(self, row):
        if self.own_child is not None:  # then nothing is the process's own, and half is its part
            return
        text = read_small("/proc/self/smaps_rollup")
        row["pss_bytes"] = kilobytes(text, b"Pss:")
        row["uss_bytes"] = kilobytes(text, b"Private_Clean:") + kilobytes(text, b"Private_Dirty:")
        for column, name in _PARTS:
            value = kilobytes(text, name)  # Linux 5.3 and later
            if value is not None:
                row[column] = value

    def _read_children(self, row):
        outside.read_children(row, self.own_child)

    def _read_collector(self, row):
        row["gc_count0"], row["gc_count1"], row["gc_count2"] = gc.get_count()
        generations = gc.get_stats()
        row["gc_collections"] = sum(generation["collections"] for generation in generations)
        row["gc_collections2"] = generations[-1]["collections"]
        row["gc_collected"] = sum(generation["collected"] for generation in generations)
        row["gc_uncollectable"] = sum(generation["uncollectable"] for generation in generations)
        row["gc_pause_ns"] = self.clock.total_ns


_STATUS = (("rss_bytes", b"VmRSS:"), ("anon_bytes", b"RssAnon:"), ("file_bytes", b"RssFile:"), ("shmem_bytes",
b"RssShmem:"),
           ("swap_bytes", b"VmSwap:"))
_PARTS = (("pss_anon_bytes", b"Pss_Anon:"), ("pss_file_bytes", b"Pss_File:"), ("pss_shmem_bytes", b"Pss_Shmem:"))


def _read_status(row):
    text = read_small("/proc/self/status")
    for column, name in _STATUS:
        value = kilobytes(text, name)
        if value is not None:
            row[column] = value


def _read_interpreter(row):
    row["py_blocks"] = sys.getallocatedblocks()
    row["modules"] = len(sys.modules)


def _read_descriptors(row):
    row["fds"] = len(os.listdir("/proc/self/fd")) - 1  # the listing's own


def _read_tasks(row):
    tasks = classes.space_named("asyncio.tasks")
    if tasks:
        row["tasks"] = sum(map(len, classes.sets_of_tasks(tasks)))


def _read_tracemalloc(row):
    tracing = classes.space_named("_tracemalloc")
    if tracing and tracing["is_tracing"]():
        row["tracemalloc_bytes"] = tracing["get_traced_memory"]()[0]
        row["tracemalloc_overhead_bytes"] = tracing["get_tracemalloc_memory"]()
