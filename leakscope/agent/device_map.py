"""devices.json of a snapshot: checked, masked, bounded, and written piece by piece so that the target is not held up.

All that comes in, torch's own dicts or a recorded file, goes out by known keys, as numbers and known words. File names are
masked as those of allocation sites are (names.py).
"""

import os

from . import classes, jsontext
from .names import file_name

FORMAT = 1
# Of one snapshot; ours: a large server has some 20,000 blocks, 3 MB of them.
MOST_BLOCKS = 200_000
MOST_BYTES = 64 << 20
MOST_EVENTS = 20_000  # of each device's history: 3 MB; ours
_MOST_FRAMES, _MOST_STACKS = 32, 20_000  # of a stack; stacks
_LONGEST_WORD = 60

_SEGMENT_NUMBERS = ("device", "address", "total_size", "allocated_size", "active_size", "requested_size", "stream")
_BLOCK_NUMBERS = ("address", "size", "requested_size")
_EVENT_NUMBERS = ("addr", "device_free", "size", "stream", "time_us")
_ACTIONS = frozenset(("alloc", "free_requested", "free_completed", "free", "segment_alloc", "segment_free", "segment_map",
                      "segment_unmap", "snapshot", "oom"))
_STATES = frozenset(("active_allocated", "active_pending_free", "active_awaiting_free", "inactive"))
_OWN_NAMES = frozenset(("<module>", "<lambda>", "<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>"))
_OF_WORDS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.+-/:() ")


def flat(stats, prefix=""):
    """Return {"statistic.pool.part": number} of statistics that torch gives flat or nested; keys that are tuples are joined by
    "_", as torch does."""
    found = {}
    for key, value in dict.items(stats):
        if type(key) is tuple:
            key = "_".join(map(str, key))
        name = "%s.%s" % (prefix, key) if prefix else str(key)
        if type(value) in (bool, int):
            found[name] = int(value)
        elif any(base is dict for base in classes.mro_of(type(value))):
            found.update(flat(value, name))
    return found


def word(text):
    """Return a short text of letters, digits and a few signs, "" for any other."""
    return text if type(text) is str and len(text) <= _LONGEST_WORD and _OF_WORDS.issuperset(text) else ""


class Frames:
    """The stacks of a snapshot, each once: `rows`."""

    def __init__(self, given=()):
        self.rows, self._known, self._names = [], {}, {}
        self._lists, self._frames = {}, {}  # by id(), with what it is of: torch gives many blocks the same
        self._given = given if type(given) is list else []

    def row(self, frames):
        """Return the row of a stack; -1: there is none. A number is a row of the recorded file's own table."""
        if type(frames) is int:
            frames = self._given[frames] if 0 <= frames < len(self._given) else ()
        if not frames or type(frames) not in (list, tuple):
            return -1
        seen = self._lists.get(id(frames))
        if seen is not None:
            return seen[0]
        key = tuple(filter(None, map(self._frame, frames[:_MOST_FRAMES])))
        row = self._known.get(key, -1)
        if row < 0 and key and len(self.rows) < _MOST_STACKS:
            row = self._known[key] = len(self.rows)
            self.rows.append(key)
        self._lists[id(frames)] = row, frames
        return row

    def _frame(self, frame):
        seen = self._frames.get(id(frame))
        if seen is None:
            seen = self._frames[id(frame)] = self._shown(frame), frame
        return seen[0]

    def _shown(self, frame):
        """(file, line, function) of a frame of Python; None for one of C++, which has no file that a person could open."""
        if type(frame) is dict:
            path, line, name = frame.get("filename"), frame.get("line"), frame.get("name")
        else:
            path, line, name = (*frame, None, None, None)[:3] if type(frame) in (list, tuple) else (None, None, None)
        if type(path) is not str or type(line) is not int or line < 0:
            return None
        shown = self._names.get(path)
        if shown is None:
            shown = self._names[path] = file_name(path)
        if shown == "?" and not path.endswith(".py"):
            return None
        is_name = type(name) is str and (name.isidentifier() and len(name) <= _LONGEST_WORD or name in _OWN_NAMES)
        return shown, line, name if is_name else "?"


def _segment(segment, frames):
    said = {key: segment[key] for key in _SEGMENT_NUMBERS if type(segment.get(key)) is int}
    kind, pool = segment.get("segment_type"), segment.get("segment_pool_id")
    if kind in ("small", "large"):
        said["segment_type"] = kind
    if type(pool) in (list, tuple) and all(type(number) is int for number in pool):
        said["segment_pool_id"] = list(pool)
    if type(segment.get("is_expandable")) is bool:
        said["is_expandable"] = segment["is_expandable"]
    said["blocks"] = [_block(block, frames) for block in segment.get("blocks") or () if type(block) is dict]
    return said


def _block(block, frames):
    said = {key: block[key] for key in _BLOCK_NUMBERS if type(block.get(key)) is int}
    if block.get("state") in _STATES:
        said["state"] = block["state"]
    stack = block.get("frames")
    if not stack and type(stack) is not int and type(block.get("history")) in (list, tuple) and block["history"]:
        first = block["history"][0]  # torch 2.0
        stack = first.get("frames") if type(first) is dict else None
    said["frames"] = frames.row(stack)
    return said


def _events(history, frames):
    """Yield the last of what the allocator of each device did, oldest first."""
    for ordinal, entries in enumerate(history):
        for entry in entries[-MOST_EVENTS:]:
            if type(entry) is not dict or entry.get("action") not in _ACTIONS:
                continue
            said = {"device": ordinal, "action": entry["action"], "frames": frames.row(entry.get("frames"))}
            said.update((key, entry[key]) for key in _EVENT_NUMBERS if type(entry.get(key)) is int)
            yield said


def has_frames(segments):
    """Whether a stack is known of any block: then somebody has the allocator record them."""
    return any(block.get("frames") for segment in segments if type(segment) is dict
               for block in segment.get("blocks") or () if type(block) is dict)


def has_blocks_in_use(segments):
    """Whether something is allocated."""
    return any(block.get("state") not in (None, "inactive") for segment in segments if type(segment) is dict
               for block in segment.get("blocks") or () if type(block) is dict)


class Writer:
    """Writes PATH.new; `close` makes it PATH. Raises OSError; the draft is removed then."""

    def __init__(self, path):
        self._path = path
        self._file = open(path + ".new", "wb")
        self._separator = b"{"
        self.written = 0

    def put(self, name, value):
        """Write one field."""
        self._write(self._separator + jsontext.write(name).encode() + b":" + jsontext.write(value).encode())
        self._separator = b","

    def put_list(self, name, values, most_bytes):
        """Write a list value by value; return how many, from the first that had no room in `most_bytes` on, were left out."""
        self._write(self._separator + jsontext.write(name).encode() + b":[")
        self._separator, between, left_out, before = b",", b"", 0, self.written
        for value in values:
            text = b"" if left_out else jsontext.write(value).encode()
            if left_out or self.written - before + len(text) > most_bytes:
                left_out += 1
                continue
            self._write(between + text)
            between = b","
        self._write(b"]")
        return left_out

    def _write(self, data):
        try:
            self._file.write(data)
        except OSError:
            self.remove()
            raise
        self.written += len(data)

    def close(self):
        """End it and give it its name."""
        try:
            self._write(b"}")
            self._file.close()
            os.replace(self._path + ".new", self._path)
        except OSError:
            self.remove()
            raise

    def remove(self):
        """Let go of the draft."""
        try:
            self._file.close()
        except OSError:
            pass
        try:
            os.remove(self._path + ".new")
        except OSError:
            pass


def write(path, said, segments, given_frames=(), history=()):
    """Write devices.json: the fields of `said`, the segments that have room, those with the most bytes first, and of what the
    allocators did (`history`: a list for each device) the last.

    Raises:
        OSError: it cannot be written; nothing of it is left.
    """
    segments = [segment for segment in segments if type(segment) is dict]
    segments.sort(key=_size_of, reverse=True)
    frames, kept, count = Frames(given_frames), [], 0
    for segment in segments:
        count += len(segment.get("blocks") or ())
        if count > MOST_BLOCKS:
            break
        kept.append(segment)
    notes, said = list(said.get("notes") or ()), dict(said, format=FORMAT)
    said.pop("notes", None)
    writer = Writer(path)
    try:
        for name, value in said.items():
            writer.put(name, value)
        left_out = len(segments) - len(kept)
        left_out += writer.put_list("segments", (_segment(segment, frames) for segment in kept), MOST_BYTES)
        if history:
            writer.put_list("history", _events(history, frames), max(0, MOST_BYTES - writer.written))
        lost = writer.put_list("frames", frames.rows, max(0, MOST_BYTES - writer.written))
        if left_out:
            notes.append("%d of %d segments, the smallest, were left out of the block map: it would have had more than %d "
                         "blocks or %d MiB." % (left_out, len(segments), MOST_BLOCKS, MOST_BYTES >> 20))
        if lost:
            notes.append("%d stacks of allocations were left out of the block map for want of room." % lost)
        writer.put("notes", notes)
    except Exception:
        writer.remove()
        raise
    writer.close()


def _size_of(segment):
    size = segment.get("total_size")
    return size if type(size) is int else 0
