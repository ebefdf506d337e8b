"""Where objects were allocated, as tracemalloc knows it, in bounded windows.

tracemalloc makes a program that allocates much five to ten times slower and keeps about a hundred bytes for each
block, so it is on only when asked for (`--sites tracemalloc[:FRAMES]`) and only in windows. The first window opens
when the process comes up, because what a short program allocates at its beginning matters, and ends with the first
snapshot after a minute. Later ones open some seconds before each snapshot: what was born in them and survived has a
site, and a leak keeps giving birth. A window ends at once when its bookkeeping passes its bound. A target that traces
by itself is read and never stopped.
"""

import os

from . import native

_SECOND = 1_000_000_000
_FIRST_WINDOW_NS = 60 * _SECOND
_WINDOW_NS = 10 * _SECOND
_LEAST_BOUND_BYTES = 64 << 20
# A line that grew by less is noise: caches, interned strings, the import system.
_LEAST_GROWTH_BYTES = 10 << 10
_MOST_LINES = 200
# Bytes of tracemalloc for one block, and how many blocks may be listed at once: a list of two million takes 370 MB.
_BYTES_A_TRACE, _MOST_TRACES = 90, 1_500_000


_FUNCTION = type(lambda: 0)
_CODE = type((lambda: 0).__code__)


def parse_option(text):
    """Return the frames to keep of `off`, `tracemalloc` or `tracemalloc:FRAMES`; 0 means off."""
    name, _, frames = (text or "off").partition(":")
    if name != "tracemalloc":
        return 0
    return max(1, min(int(frames), 64)) if frames.isdigit() else 1


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
        self.is_ours = False
        self.opened_ns = 0
        self._lines = None

    @property
    def is_open(self):
        """Whether allocations are being traced now, by us or by the target."""
        return bool(self._frames) and self._tracing.is_tracing()

    def open(self, now_ns):
        """Start to trace, unless the target does or another tool holds the interpreter's only place for it."""
        if not self._frames or self._tracing.is_tracing():
            return
        if native.reference_tracer_is_taken():
            self._note("Another tool traces references in this process, so no allocation sites were recorded.")
            self._frames = 0
            return
        self._tracing.start(self._frames)
        self.is_ours = True
        self.opened_ns = now_ns
        self._lines = {}

    def close(self):
        """Stop to trace if we began it."""
        if self.is_ours and self._tracing.is_tracing():
            self._tracing.stop()
        self.is_ours = False
        self._lines = None

    def tick(self, now_ns, next_snapshot_ns):
        """Open the window of the next snapshot in time, and close one that has grown too large."""
        if self.is_open:
            if self.is_ours and self._tracing.get_tracemalloc_memory() > self._bound_bytes:
                self.close()
                self._note(f"Allocation tracing was stopped {now_ns / _SECOND:.0f} s after the start, because it held more "
                           f"than {self._bound_bytes >> 20} MiB.")
        elif now_ns >= next_snapshot_ns - _WINDOW_NS:
            self.open(now_ns)

    def snapshot_taken(self, now_ns):
        """The window has served its snapshot; only the first one stays open for a while."""
        if now_ns >= _FIRST_WINDOW_NS:
            self.close()

    def tracer(self):
        """Return the function from objects to sites for one snapshot, or None when nothing is traced."""
        return Tracer(self._tracing, self) if self.is_open else None

    def grown_lines(self, totals):
        """Return [(file, line), bytes, count] of each line that holds more than at this window's last snapshot."""
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


class Tracer:
    """Called with the objects of a snapshot, gives `(site_id, sites)` as format.py describes them.

    `line_growth` is filled by the call: [[file, line, function, bytes, count], ...], largest first.
    """

    def __init__(self, tracing, windows):
        self._tracing = tracing
        self._windows = windows
        self.line_growth = []

    def __call__(self, objects):
        read = native.traceback_reader()
        own = os.path.dirname(os.path.abspath(__file__)) + os.sep
        rows = {}
        counts = [0]
        site_ids = []
        for thing in objects:
            frames = read(thing)
            if not frames or frames[0][0].startswith(own):
                site_ids.append(0)
                continue
            row = rows.get(frames)
            if row is None:
                row = rows[frames] = len(rows) + 1
                counts.append(0)
            counts[row] += 1
            site_ids.append(row)
        sizes, totals = self._alive(own)
        grown = self._windows.grown_lines(totals)
        files = {file for frames in rows for file, _ in frames} | {line[0] for line, _, _ in grown}
        names = FunctionNames(objects, files)
        self.line_growth = [names.frame(*line) + [size, count] for line, size, count in grown]
        sites = [None]
        for frames, row in rows.items():
            sites.append({"frames": [names.frame(*frame) for frame in frames], "bytes": sizes.get(frames, 0),
                          "count": counts[row]})
        return site_ids, sites

    def _alive(self, own):
        """Return bytes by traceback and (bytes, count) by line of every traced block that is alive, ours left out."""
        sizes, totals = {}, {}
        if self._tracing.get_tracemalloc_memory() > _BYTES_A_TRACE * _MOST_TRACES:
            return sizes, totals
        for trace in self._tracing._get_traces():
            size, frames = trace[1], trace[2]
            line = frames[0]
            if line[0].startswith(own):
                continue
            sizes[frames] = sizes.get(frames, 0) + size
            known = totals.get(line, (0, 0))
            totals[line] = (known[0] + size, known[1] + 1)
        return sizes, totals


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
    """Return a file name from site-packages, the standard library or the cwd on: the rest says whose machine it is."""
    for marker in (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}"):
        at = file.rfind(marker)
        if at >= 0:
            return file[at + len(marker):]
    for folder in (os.path.dirname(os.__file__), _working_folder()):
        if folder and file.startswith(folder + os.sep):
            return file[len(folder) + 1:]
    return file


def _working_folder():
    try:
        return os.getcwd()
    except OSError:
        return ""
