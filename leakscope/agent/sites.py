"""Where objects were allocated: by the sampler of the probe, or as tracemalloc knows it, in bounded windows.

The sampler (`_probe/sample.c`) watches some allocations of all, from the first line of the target on, at next to no cost:
it is what runs unless something else is asked for, where there is a probe for the interpreter. Where there is none,
nothing takes its place.

tracemalloc makes a program that allocates much five to ten times slower and keeps about a hundred bytes for each
block, so it is on only when asked for (`--sites tracemalloc[:FRAMES]`) and only in windows. The first window opens
when the process comes up, because what a short program allocates at its beginning matters. A snapshot ends a window:
its tracebacks are read, tracing stops, and then the walk runs, which would take eight times as long under tracing. In
the first minute the next window opens as soon as the walk has ended; later ones open some seconds before a snapshot.
What was born in a window and survived has a site, and a leak keeps giving birth. A window ends at once when its
bookkeeping passes its bound. A target that traces by itself, or that may, is read and never stopped.
"""

import gc
import os
import sys

from . import native
from .names import file_name

_SECOND = 1_000_000_000
_FIRST_WINDOW_NS = 60 * _SECOND
_WINDOW_NS = 10 * _SECOND
_LEAST_BOUND_BYTES = 64 << 20
# A line that grew by less is noise: caches, interned strings, the import system.
_LEAST_GROWTH_BYTES = 10 << 10
_MOST_LINES = 200
_SAMPLES_BYTES = 16 << 20
# Bytes of tracemalloc for one block, and how many blocks may be listed at once: a list of two million takes 370 MB.
_BYTES_A_TRACE, _MOST_TRACES = 90, 1_500_000
# Bytes that are kept between two snapshots for an object with a site.
_BYTES_A_KNOWN = 20

# What may hold the place for a reference tracer when we start: nothing, or what tracemalloc left there (3.13), here or
# in the process that this one was forked from.
_free_tracers = {None}

_FUNCTION = type(lambda: 0)
_CODE = type((lambda: 0).__code__)
# Immutable and of many sizes, and sys.getsizeof of them runs no code of the target.
_SIZED = frozenset((str, bytes, tuple, int, frozenset))


def parse_option(text):
    """Return (kind, frames) of `off`, `sampled`, `tracemalloc` or `tracemalloc:FRAMES`; what is none of them is off.

    frames: of a traceback that tracemalloc keeps, 0 for the other kinds.
    """
    kind, _, frames = (text or "off").partition(":")
    if kind == "tracemalloc":
        return kind, max(1, min(int(frames), 64)) if frames.isdigit() else 1
    return "sampled" if kind == "sampled" else "off", 0


class Sampler:
    """The sampler of the probe in this process; it goes on in a forked child.

    Args:
        is_wanted: whether it was asked for.
        started_ns: CLOCK_MONOTONIC from which its times are counted.
        max_bytes: what the agent may take in all; a sixteenth of it, at most 16 MiB, is the bound of its tables.
        note: a function that takes a sentence.
    """

    def __init__(self, is_wanted, started_ns, max_bytes, note):
        self._is_wanted = is_wanted
        self._started_ns = started_ns
        self._cap_bytes = min(_SAMPLES_BYTES, (max_bytes or 1 << 30) // 16)
        self._note = note
        self._probe = None

    @property
    def is_on(self):
        """Whether allocations are being sampled."""
        return self._probe is not None

    def open(self):
        """Start to sample, or say why not."""
        if not self._is_wanted or self.is_on:
            return
        try:
            from . import probe
        except ImportError:
            self._give_up("There is no probe for this interpreter.")
            return
        why_not = probe.why_not() or probe._probe.sample_start(
            cap_bytes=self._cap_bytes, started_monotonic_ns=self._started_ns, own=own_folder(),
            library=os.path.dirname(os.__file__) + os.sep, here=_working_folder())
        if why_not:
            self._give_up(why_not)
        else:
            self._probe = probe._probe

    def tick(self):
        """Let the mean follow the rate, and see to it that allocations come by: a leaving tool may take our hooks with it."""
        if self.is_on and not self._probe.sample_tick():
            self._give_up("Another tool has taken the place of the allocation sampler.")

    def close(self):
        """Stop to sample, and take the hooks out."""
        if self.is_on:
            self._probe.sample_stop()
        self._is_wanted, self._probe = False, None

    def _give_up(self, why):
        self._is_wanted, self._probe = False, None
        self._note(f"{why[:-1]}, so allocation sites are not recorded.")


def _working_folder():
    try:
        return os.path.join(os.getcwd(), "")
    except OSError:
        return ""


class Windows:
    """Decides when tracemalloc runs. Times are nanoseconds since the process came up.

    Args:
        frames: as of `parse_option`.
        max_bytes: what the agent may take in all; a quarter of it, at least 64 MiB, is the bound of a window.
        note: a function that takes a sentence.
        tracing: the module `_tracemalloc`, or a stand-in of a test.
    """

    def __init__(self, frames, max_bytes, note, tracing=None):
        import _tracemalloc

        self._tracing = tracing or _tracemalloc
        self._frames = frames
        self._bound_bytes = max(_LEAST_BOUND_BYTES, (max_bytes or 0) // 4)
        self._note = note
        self._mark = None
        self._is_resting = False
        self.known = Known() if frames else None
        self._lines = None

    @property
    def is_open(self):
        """Whether allocations are being traced now, by us or by the target."""
        return bool(self._frames) and self._tracing.is_tracing()

    @property
    def is_ours(self):
        """Whether we began the tracing that is going on: a target that stops it and starts its own loses our mark."""
        return (self._mark is not None and self._tracing.is_tracing()
                and self._tracing._get_object_traceback(self._mark) is not None)

    def open(self):
        """Start to trace, unless the target does, a walk is going on, or another tool holds the only place for it."""
        if not self._frames or self._is_resting or self._tracing.is_tracing():
            return
        if native.reference_tracer() not in _free_tracers:
            self._note("Another tool traces references in this process, so no allocation sites were recorded.")
            self._frames = 0
            return
        self._tracing.start(self._frames)
        _free_tracers.add(native.reference_tracer())
        self._mark = bytes(64)  # no free list gives it: it is traced
        self._lines = {}

    def close(self):
        """Stop to trace if we began it."""
        if self.is_ours:
            self._tracing.stop()
        self._mark = None
        self._lines = None

    def tick(self, now_ns, next_snapshot_ns):
        """Open the window of the next snapshot in time, and close one that has grown too large."""
        if self.is_open:
            if self._tracing.get_tracemalloc_memory() > self._bound_bytes and self.is_ours:
                self.close()
                self._note(f"Allocation tracing was stopped {now_ns / _SECOND:.0f} s after the start, because it held more "
                           f"than {self._bound_bytes >> 20} MiB.")
        elif now_ns >= next_snapshot_ns - _WINDOW_NS:
            self.open()

    def tracer(self):
        """Return the Tracer of one snapshot, or None when nothing is traced and no object has a site from before.

        `snapshot_taken` must follow: until then no window opens.
        """
        if not self._frames or not (self.is_open or len(self.known)):
            return None
        return Tracer(self)

    def read(self):
        """Return (Known of the objects, {traceback: (bytes, count)} of the alive blocks), and stop tracing if we may."""
        if not self.is_open:
            self._is_resting = True
            return Known(), {}
        known = read_objects(native.traceback_reader())
        is_short = self._tracing.get_tracemalloc_memory() <= _BYTES_A_TRACE * _MOST_TRACES
        traces = self._tracing._get_traces() if is_short else ()
        self._is_resting = True
        # Who has loaded the module may have called tracemalloc.start(), which changes nothing while we trace.
        if self.is_ours and "tracemalloc" not in sys.modules:
            self._tracing.stop()
        return known, alive_blocks(traces)

    def snapshot_taken(self, now_ns):
        """The walk has ended: in the first minute the next window follows at once."""
        self._is_resting = False
        if now_ns < _FIRST_WINDOW_NS:
            self.open()
        elif "tracemalloc" not in sys.modules:
            self.close()

    def grown_lines(self, blocks):
        """Return [(file, line), bytes, count] of each line that holds more than at this window's beginning.

        The window of a target that traces by itself goes on: there it is more than at the last snapshot.
        """
        totals = {}
        for frames, (size, count) in blocks.items():
            known = totals.get(frames[0], (0, 0))
            totals[frames[0]] = (known[0] + size, known[1] + count)
        before, self._lines = self._lines, totals
        if before is None:  # the target traces since an unknown time: there is nothing to compare with yet
            return []
        grown = []
        for line, (size, count) in totals.items():
            size_before, count_before = before.get(line, (0, 0))
            if size - size_before > _LEAST_GROWTH_BYTES:
                grown.append((line, size - size_before, count - count_before))
        grown.sort(key=lambda entry: -entry[1])
        return grown[:_MOST_LINES]

    @property
    def most_known(self):
        """How many objects may be remembered with their sites between two snapshots."""
        return self._bound_bytes // _BYTES_A_KNOWN


class Known:
    """The sites of objects: 20 bytes an object, no reference to any, and nothing that the collector or a walk looks into.

    An object is told by its address, its type and, where that never changes, its size. What was freed and replaced at
    its place by another of the same type and size while nobody traced is taken for it: that is rare between two windows
    that only a walk keeps apart, and happens to some of the objects that come and go where windows are far apart.
    """

    def __init__(self):
        from array import array  # loads collections.abc: not before the first line of a target that is not traced

        self._addresses, self._marks, self._rows = array("Q"), array("Q"), array("I")
        self.frames = [None]  # by row
        self.bytes, self.counts = [0], [0]  # by row; filled for a snapshot

    def __len__(self):
        return len(self._addresses)

    def add(self, thing, row):
        """Remember the site of an object."""
        self._addresses.append(id(thing))
        self._marks.append(_mark_of(thing))
        self._rows.append(row)

    def places(self):
        """Return the position of each address."""
        return dict(zip(self._addresses, range(len(self._addresses))))

    def row(self, thing, place):
        """Return the row of an object at a known address, 0 if it is plainly another."""
        return self._rows[place] if self._marks[place] == _mark_of(thing) else 0


def _mark_of(thing):
    kind = type(thing)
    size = sys.getsizeof(thing) if kind in _SIZED else 0
    return (id(kind) ^ size << 40) & 0xFFFF_FFFF_FFFF_FFFF


class Tracer:
    """Called with the objects of a snapshot, gives `(site_id, sites)` as format.py describes them.

    `begin` is called before the walk: it reads the tracebacks and ends the window.
    `line_growth` is filled by the call: [[file, line, function, bytes, count], ...], largest first.
    """

    def __init__(self, windows):
        self._windows = windows
        self._fresh, self._blocks, self._grown = None, {}, []
        self.line_growth = []

    def begin(self):
        """Read what is traced and stop tracing."""
        self._fresh, self._blocks = self._windows.read()
        self._grown = self._windows.grown_lines(self._blocks) if self._blocks else []

    def __call__(self, objects):
        if self._fresh is None:
            self.begin()
        known = Known()
        site_ids = self._site_ids(objects, known)
        files = {file for frames in known.frames[1:] for file, _ in frames} | {line[0] for line, _, _ in self._grown}
        names = FunctionNames(objects, files)
        self.line_growth = [names.frame(*line) + [size, count] for line, size, count in self._grown]
        sites = [None]
        for row in range(1, len(known.frames)):
            sites.append({"frames": [names.frame(*frame) for frame in known.frames[row]], "bytes": known.bytes[row],
                          "count": known.counts[row]})
        self._windows.known = known
        self._fresh = self._blocks = None
        return site_ids, sites

    def _site_ids(self, objects, known):
        """Return the row of each object, and fill `known` with the objects and rows of this snapshot."""
        from array import array

        fresh, before, most = self._fresh, self._windows.known, self._windows.most_known
        fresh_places, places = fresh.places(), before.places()
        rows, site_ids, carried = {}, array("I"), {}
        for thing in objects:
            place, earlier = fresh_places.get(id(thing)), 0
            if place is not None:
                site = fresh.frames[fresh.row(thing, place)]
            else:
                place = places.get(id(thing))
                earlier = 0 if place is None else before.row(thing, place)
                site = before.frames[earlier]
            if site is None:
                site_ids.append(0)
                continue
            row = rows.get(site)
            if row is None:
                row = rows[site] = len(known.frames)
                known.frames.append(site)
                known.counts.append(0)
            known.counts[row] += 1
            site_ids.append(row)
            if earlier:
                carried[earlier] = carried.get(earlier, 0) + 1
            if len(known) < most:
                known.add(thing, row)
        known.bytes = [self._blocks.get(site, (0, 0))[0] for site in known.frames]
        for earlier, count in carried.items():  # those that are still there, at the mean size of all at their site
            known.bytes[rows[before.frames[earlier]]] += before.bytes[earlier] * count // before.counts[earlier]
        return site_ids


def read_objects(read):
    """Return the Known of what the collector lists and the modules, and of everything below them.

    Args:
        read: the function from an object to its traceback, None without one.

    Runs while tracemalloc traces, where each allocation costs: so whole levels of the heap are fetched by single calls.
    The modules are a start of their own because frozen objects are not listed. All objects are held until it ends; the
    collector stays away meanwhile, as it would take garbage that is held here for living.
    """
    thresholds = gc.get_threshold()
    gc.set_threshold(0, *thresholds[1:])
    try:
        return _read_levels(read, starts())
    finally:
        if gc.get_threshold() == (0, *thresholds[1:]):  # else the target set its own meanwhile, and that stays
            gc.set_threshold(*thresholds)


def starts():
    """Return where reading begins: what the collector lists, and the modules."""
    return gc.get_objects() + list(dict.values(sys.modules))


def _read_levels(read, level):
    known, rows, seen, own = Known(), {}, set(), own_folder()
    while level:
        fresh = dict(zip(map(id, level), level))
        for key in seen.intersection(fresh):
            del fresh[key]
        seen.update(fresh)
        level = list(fresh.values())
        fresh.clear()
        for thing in level:
            trace = read(thing)
            if trace:
                row = rows.get(trace)
                if row is None:
                    row = rows[trace] = _new_row(known, trace, own)
                if row:
                    known.add(thing, row)
        level = gc.get_referents(*level)
    return known


def _new_row(known, trace, own):
    if trace[0][0].startswith(own):
        return 0
    known.frames.append(trace)
    return len(known.frames) - 1


def alive_blocks(traces):
    """Return (bytes, count) by traceback of traced blocks, those of the agent left out."""
    own = own_folder()
    blocks = {}
    for trace in traces:
        size, frames = trace[1], trace[2]
        if not frames[0][0].startswith(own):
            known = blocks.get(frames, (0, 0))
            blocks[frames] = (known[0] + size, known[1] + 1)
    return blocks


def own_folder():
    """Return the folder of the agent with a separator at its end."""
    return os.path.dirname(os.path.abspath(__file__)) + os.sep


class FunctionNames:
    """Finds the function of a line. tracemalloc knows only file and line; the functions that live know their code.

    Args:
        objects: where to look for functions.
        files: the file names that will be asked for.
    """

    def __init__(self, objects, files):
        self._ranges = {file: {} for file in files}
        self._shown = {file: shown_path(file) for file in files}
        seen = set()
        for thing in objects:
            if type(thing) is _FUNCTION and thing.__code__.co_filename in self._ranges:
                self._add(thing.__code__, thing.__qualname__, seen)

    def frame(self, file, line):
        """Return [file as shown, line, function]; code outside of every living function belongs to its module."""
        best, name = None, "<module>"
        for (first, last), qualname in self._ranges.get(file, {}).items():
            if first <= line <= last and (best is None or last - first < best):
                best, name = last - first, qualname
        return [self._shown.get(file, file), line, name]

    def _add(self, code, qualname, seen):
        if code in seen or code.co_filename not in self._ranges:
            return
        seen.add(code)
        self._ranges[code.co_filename][code.co_firstlineno, last_line(code)] = getattr(code, "co_qualname", qualname)
        for constant in code.co_consts:
            if type(constant) is _CODE:
                self._add(constant, f"{qualname}.<locals>.{constant.co_name}", seen)


def last_line(code):
    """Return the last line that a code object has instructions for."""
    if hasattr(code, "co_lines"):
        return max((line for _, _, line in code.co_lines() if line), default=code.co_firstlineno)
    # CPython 3.9: pairs of (bytes, lines), the lines signed (Objects/lnotab_notes.txt).
    line = last = code.co_firstlineno
    for step in code.co_lnotab[1::2]:
        line += step - 256 if step >= 128 else step
        last = max(last, line)
    return last


def shown_path(file):
    """Return a source file from site-packages or the standard library on, any other by the rules of names.file_name.

    Whose machine it is does not show, nor what a program put into the file name of code that it made itself.
    """
    shown = file_name(file)
    if not shown.endswith(".py"):
        return shown
    for marker in (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}"):
        at = file.rfind(marker)
        if at >= 0:
            return file[at + len(marker):]
    library = os.path.dirname(os.__file__) + os.sep
    return file[len(library):] if file.startswith(library) else shown
