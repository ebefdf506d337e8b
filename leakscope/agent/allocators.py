"""What allocators hold beyond what they have handed out: the arenas of pymalloc and those of glibc. Linux; absent elsewhere."""

import os

_HEAP_BYTES = 64 << 20  # glibc malloc/arena.c, HEAP_MAX_SIZE on 64-bit machines; a heap begins at a multiple of it
_MOST_HEAPS = 4096
_PIECE_BYTES = 32 << 10
_NEAR = 4096  # the state of an arena lies right behind the header of its first heap


class Arenas:
    """Counts the arenas of pymalloc in this process (_probe/arenas.c); says why not, unless only the probe is missing."""

    def __init__(self, note):
        self._probe = None
        try:
            from . import probe

            if not probe.why_not():
                why_not = probe._probe.arenas_start()
                self._probe = None if why_not else probe._probe
                if why_not:
                    note(why_not)
        except (ImportError, AttributeError):  # there is none, or one of another version
            pass

    def read(self, row):
        """Add the columns of pymalloc's arenas."""
        found = self._probe.arenas_read() if self._probe else None
        if found is not None:
            row["arena_bytes"], row["arena_used_bytes"], row["arena_pools"], row["arena_sparse_pools"] = found

    def close(self):
        """Leave the interpreter's arena allocator as it was."""
        if self._probe:
            self._probe.arenas_stop()


def read_malloc_arenas(row):
    """Add how many arenas glibc's malloc has: the main one, and those that have heaps of their own.

    /proc/self/maps shows where a heap can begin, and its header whether it does: its first word is the address of the arena,
    which lies behind the header of the arena's first heap (malloc/arena.c, heap_info). A program that has given up its rights
    since it was started may not read its own memory: then the column is absent.
    """
    starts = _aligned_starts()
    count = 1
    if starts:
        try:
            memory = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
        except PermissionError:
            return
        try:
            count += sum(_is_first_heap(memory, start) for start in starts[:_MOST_HEAPS])
        finally:
            os.close(memory)
    row["malloc_arenas"] = count


def _aligned_starts(path="/proc/self/maps"):
    """Return the multiples of a heap's size in private memory that can be written and belongs to no file."""
    starts, rest = [], b""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while True:  # in pieces: see thread.read_small
            piece = os.read(handle, _PIECE_BYTES)
            if not piece or len(starts) > _MOST_HEAPS:
                return starts
            whole, _, rest = (rest + piece).rpartition(b"\n")
            _add_starts(whole, starts)
    finally:
        os.close(handle)


def _add_starts(lines, starts):
    # "7f3a04000000-7f3a04121000 rw-p 00000000 00:00 0": where a heap begins, six digits are 0, and 0, 4, 8 or c goes before
    for line in lines.splitlines():
        if line[6:13] == b"000000-" and line[5:6] in b"048c" and line[25:46] == b" rw-p 00000000 00:00 ":
            start, end = int(line[:12], 16), int(line[13:25], 16)
            starts.extend(range(start, end, _HEAP_BYTES))  # heaps that are full lie in one mapping with the next


def _is_first_heap(memory, start):
    try:
        header = os.pread(memory, 16, start)
    except OSError:
        return False
    arena, before = int.from_bytes(header[:8], "little"), int.from_bytes(header[8:], "little")
    return start < arena < start + _NEAR and before == 0
