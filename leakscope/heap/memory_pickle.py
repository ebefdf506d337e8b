"""Memory snapshots of PyTorch as pickles: read safely into the form of devices.json, and written from it.

`torch.cuda.memory._dump_snapshot(FILE)` pickles dicts, lists, texts and numbers alone, in every version (2.0 to 2.14). So a
reader needs no class, and this one knows none: its table of opcodes has no entry that looks up a name, calls something or
builds an object. It runs in the interpreter of pickles that the standard library has in Python, since the one in C sets aside
memory for whatever index a pickle names. What a pickle makes is counted, so that a small file cannot become a large heap.

    read(path)          -> the dict of devices.json (agent/format.py), checked as far as its readers need
    write(record, path) the pickle that pytorch.org/memory_viz and torch/cuda/_memory_viz.py draw
"""

from __future__ import annotations

import io
import os
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from leakscope.errors import LeakScopeError

Json = dict[str, Any]
MOST_BYTES = 1 << 30  # of a file; 100 000 allocations with stacks are about 50 MB; ours
MOST_OBJECTS = 40_000_000  # lists, dicts, tuples and named objects that a pickle may make: some GB; ours
MOST_MARKS = 1000  # open lists and dicts; a snapshot nests 7 deep; ours
MOST_BLOCKS = 4_000_000  # a process with more live blocks is none; ours
MOST_FRAMES, MOST_STACK_FRAMES = 4_000_000, 128  # of all stacks, of one: what is deeper is cut at its outer end; ours
MOST_DEVICES = 128  # of a machine
MOST_NAME = 200  # characters of a function
NATIVE = "<native>"  # file of a frame that is no Python source: C++, generated code
MOST_INTEGER = 1 << 64  # addresses and sizes are less
SETTINGS = ("max_split_size", "garbage_collection_threshold", "expandable_segments", "roundup_power2_divisions", "backend",
            "max_non_split_rounding_size", "release_lock_on_cudamalloc", "pinned_use_cuda_host_register",
            "large_segment_size", "per_process_memory_fraction", "throw_on_cudamalloc_oom",
            "graph_capture_record_stream_reuse")  # knowledge page "gpu", 1.3; other settings are not kept
SEGMENT_FIELDS = ("device", "address", "total_size", "allocated_size", "active_size", "requested_size", "stream")
HINT = "write one in the program: torch.cuda.memory._dump_snapshot(\"FILE.pickle\")"
_LIBRARY = re.compile(r"(?:^|.*/)((?:site|dist)-packages/.*)|(?:^|.*/)(python3\.\d+/.*)")
_ABSOLUTE = re.compile(r"/|\.\.|[A-Za-z]:/")

_ALLOWED = (
    "PROTO FRAME STOP MARK POP POP_MARK DUP NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT "
    "STRING BINSTRING SHORT_BINSTRING UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8 EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 "
    "EMPTY_LIST LIST APPEND APPENDS EMPTY_DICT DICT SETITEM SETITEMS GET BINGET LONG_BINGET PUT BINPUT LONG_BINPUT MEMOIZE")
_COUNTED = ("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_LIST", "LIST", "EMPTY_DICT", "DICT")
_FORBIDDEN = ("GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4",
              "PERSID", "BINPERSID")
_TEXT = {str}
_Reader: Any = pickle._Unpickler  # the one in Python


_TOO_MANY = f"makes more than {MOST_OBJECTS} objects, which no memory snapshot does"


class _Refused(Exception):
    """A pickle that asks for more than a memory snapshot needs; the sentence goes on after "The file ... "."""


class _PlainReader(_Reader):  # type: ignore[misc]
    """Reads numbers, texts, lists, tuples and dicts; refuses all else before it happens."""

    made = 0

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.read, self.readinto, self.readline = file.read, file.readinto, file.readline

    def load(self) -> Any:
        """Return what the pickle holds. Frames are only lengths that say how much to read at once: here all is read already."""
        self.metastack: list[Any] = []
        self.stack: list[Any] = []
        self.append = self.stack.append
        read, dispatch = self.read, self.dispatch
        try:
            while len(self.memo) <= MOST_OBJECTS:
                for _ in range(1 << 16):
                    dispatch[read(1)[0]](self)
        except pickle._Stop as stop:  # type: ignore[attr-defined]
            return stop.value
        except IndexError as error:
            if not read(1):
                raise EOFError from error
            raise
        raise _Refused(_TOO_MANY)

    def find_class(self, module: str, name: str) -> Any:
        """No opcode leads here; if one ever did, nothing is looked up."""
        raise _Refused("asks for a class, and a memory snapshot holds none")

    def persistent_load(self, pid: Any) -> Any:
        """As above."""
        raise _Refused("asks for an object outside of itself, and a memory snapshot needs none")


def _counted(step: Callable[[Any], None]) -> Callable[[Any], None]:
    def counted(reader: _PlainReader) -> None:
        reader.made += 1
        if reader.made > MOST_OBJECTS:
            raise _Refused(_TOO_MANY)
        step(reader)
    return counted


def _mark(reader: Any) -> None:
    if len(reader.metastack) >= MOST_MARKS:
        raise _Refused(f"nests its lists more than {MOST_MARKS} deep")
    _Reader.load_mark(reader)


def _skip_frame(reader: _PlainReader) -> None:
    reader.read(8)


def _with_plain_keys(step: Callable[[Any], None]) -> Callable[[Any], None]:
    """Keys are texts: long numbers can be chosen so that all of them fall into one place of a dict."""
    def checked(reader: Any) -> None:
        keys = reader.stack[-2:-1] if step is _Reader.load_setitem else reader.stack[::2]
        if not _TEXT.issuperset(map(type, keys)):
            raise _Refused("has a dict whose keys are no texts")
        step(reader)
    return checked


def _refusal(name: str) -> Callable[[Any], None]:
    def refuse(reader: Any) -> None:
        raise _Refused(f"asks for objects of classes, or to call something ({name}), which no memory snapshot does; nothing of "
                       "it was run")
    return refuse


def _table() -> dict[int, Callable[[Any], None]]:
    table = {getattr(pickle, name)[0]: _refusal(name) for name in _FORBIDDEN}
    for name in _ALLOWED.split():
        code = getattr(pickle, name)[0]
        step = _Reader.dispatch[code]
        if name == "FRAME":
            step = _skip_frame
        elif name in ("SETITEM", "SETITEMS", "DICT"):
            step = _with_plain_keys(step)
        table[code] = _mark if name == "MARK" else _counted(step) if name in _COUNTED else step
    return table


_PlainReader.dispatch = _table()


def read(path: Path) -> Json:
    """Return a memory pickle in the form of devices.json; `oom` is its last out-of-memory entry, with "stream" and "frames".

    Addresses are as they were in the process. Frames name files as other sites do: libraries from site-packages on, all
    else by the last folder and the file.

    Raises:
        LeakScopeError: there is no such file, it is no memory snapshot, it is cut short, or it asks for more than one needs.
    """
    content = _content(path)
    segments = content.get("segments")
    if not isinstance(segments, list) or not all(isinstance(each, dict) for each in segments):
        raise LeakScopeError(f"The file '{path}' is a pickle, but no memory snapshot of PyTorch: it has no list of segments.",
                             HINT)
    stacks, found, block_count = _Stacks(), [], 0
    for each in segments[:MOST_BLOCKS]:
        found.append(_segment(each, stacks))
        block_count += len(found[-1]["blocks"])
        if block_count > MOST_BLOCKS:
            raise LeakScopeError(f"The file '{path}' shows more than {MOST_BLOCKS:,} blocks, which no process has.", HINT)
    entries = content.get("device_traces")
    traces = [_dicts(each) for each in entries[:MOST_DEVICES]] if isinstance(entries, list) else []
    oom = _last_oom(traces, stacks)
    has_frames = any(block["frames"] >= 0 for each in found for block in each["blocks"])
    settings = content.get("allocator_settings")
    settings = settings if isinstance(settings, dict) else {}
    ordinals = sorted({each["device"] for each in found} | ({oom["device"]} if oom else set()))
    return {
        "format": 1, "provider": "cuda", "simulated": content.get("simulated") is True, "torch": None,
        "backend": "native", "recording": "trace" if any(traces) else "state" if has_frames else "off",
        "settings": {name: _printable(value) if isinstance(value, str) else value for name in SETTINGS
                     if isinstance(value := settings.get(name), (int, float, str))},
        "devices": [{"name": f"cuda:{ordinal}", "ordinal": ordinal} for ordinal in ordinals], "host_stats": {},
        "segments": found, "frames": stacks.rows(), "libraries": [], "process_groups": None, "oom": oom,
        "notes": list(_notes(content, oom, has_frames, stacks))}


def _content(path: Path) -> Json:
    try:
        size = path.stat().st_size
        if size > MOST_BYTES:
            raise LeakScopeError(f"The file '{path}' has {size:,} bytes, more than the {MOST_BYTES:,} that are read.",
                                 "record less: torch.cuda.memory._record_memory_history(max_entries=50000)")
        text = path.read_bytes()
    except FileNotFoundError as error:
        raise LeakScopeError(f"There is no file '{path}'.", HINT) from error
    except OSError as error:
        raise LeakScopeError(f"The file '{path}' cannot be read: {error.strerror}.", f"ls -l {path}") from error
    if not text:
        raise LeakScopeError(f"The file '{path}' is empty.", HINT)
    if text[:2] == b"PK":
        raise LeakScopeError(f"The file '{path}' is an archive, such as torch.save writes, and no memory snapshot.", HINT)
    try:
        content = _PlainReader(io.BytesIO(text)).load()
    except _Refused as refusal:
        raise LeakScopeError(f"The file '{path}' {refusal}.", HINT) from None
    except EOFError as error:
        raise LeakScopeError(f"The file '{path}' ends in the middle.", "copy it again, or " + HINT) from error
    except MemoryError as error:
        raise LeakScopeError(f"The file '{path}' does not fit into memory.", "read it on a larger machine") from error
    except Exception as error:  # anything can be wrong with bytes; what, is told by nothing but the kind of the error
        is_short = "truncated" in str(error) or "exhausted" in str(error)
        what = "ends in the middle" if is_short else "is no pickle, or a damaged one"
        raise LeakScopeError(f"The file '{path}' {what}.", HINT) from error
    if not isinstance(content, dict):
        raise LeakScopeError(f"The file '{path}' is a pickle, but no memory snapshot of PyTorch: it holds a "
                             f"{type(content).__name__}.", HINT)
    return content


class _Stacks:
    """Stacks of frames, each once; lists that a pickle shares are read once, too."""

    def __init__(self) -> None:
        self._row: dict[tuple[tuple[str, int, str], ...], int] = {}
        self._known: dict[int, int] = {}
        self._frame_count = 0
        self.left_out = 0

    def row(self, frames: Any) -> int:
        """Return the row of a list of PyTorch's frames, or -1 for none."""
        if not isinstance(frames, list) or not frames:
            return -1
        row = self._known.get(id(frames))
        if row is None:
            if self._frame_count >= MOST_FRAMES:
                self.left_out += 1
                return -1
            stack = tuple(map(_frame, _dicts(frames[:MOST_STACK_FRAMES])))
            self._frame_count += len(stack)
            row = self._known[id(frames)] = self._row.setdefault(stack, len(self._row)) if stack else -1
        return row

    def rows(self) -> list[list[list[Any]]]:
        """Return the table `frames` of devices.json."""
        return [[list(frame) for frame in stack] for stack in self._row]


def _dicts(value: Any) -> list[Json]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _integer(value: Any) -> int:
    """A number that an address or a size can be; anything else counts as 0."""
    return value if type(value) is int and 0 <= value < MOST_INTEGER else 0


def _ordinal(value: Any) -> int:
    """The number of a device; one that no machine has counts as 0."""
    return value if type(value) is int and 0 <= value < MOST_DEVICES else 0


def _frame(frame: Json) -> tuple[str, int, str]:
    name = frame.get("name")
    return _shown_file(frame.get("filename")), _integer(frame.get("line")), _printable(name) if isinstance(name, str) else ""


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text[:MOST_NAME])


def _shown_file(path: Any) -> str:
    """A Python file from site-packages or the standard library on, else its last folder and name (as agent/names.py has it)."""
    if not isinstance(path, str) or not path.endswith(".py"):
        return NATIVE
    path = _printable(path[-MOST_NAME:].replace("\\", "/"))
    library = _LIBRARY.match(path)
    if library:
        return library[1] or library[2]
    return "/".join(path.split("/")[-2:]) if _ABSOLUTE.match(path) else path


def _segment(segment: Json, stacks: _Stacks) -> Json:
    """A segment with its blocks, fields of every version in the names of the newest; what is not there stays away."""
    found: Json = {name: _integer(segment[name]) for name in SEGMENT_FIELDS if name in segment}
    found["device"] = _ordinal(segment.get("device"))
    found["segment_type"] = "small" if segment.get("segment_type") == "small" else "large"
    pool = segment.get("segment_pool_id")
    if isinstance(pool, (list, tuple)) and len(pool) == 2:
        found["segment_pool_id"] = [_integer(pool[0]), _integer(pool[1])]
    if "is_expandable" in segment:
        found["is_expandable"] = segment["is_expandable"] is True
    blocks = segment.get("blocks")
    found["blocks"] = [_block(each, stacks) for each in _dicts(blocks[:MOST_BLOCKS + 1] if isinstance(blocks, list) else None)]
    return found


def _block(block: Json, stacks: _Stacks) -> Json:
    found: Json = {name: _integer(block[name]) for name in ("address", "size", "requested_size") if name in block}
    state, frames = block.get("state"), block.get("frames")
    if "history" in block:  # PyTorch 2.0
        last = next(iter(_dicts(block["history"])), {})
        frames = last.get("frames")
        if "real_size" in last:
            found["requested_size"] = _integer(last["real_size"])
    return found | {"state": state if isinstance(state, str) else "", "frames": stacks.row(frames)}


def _last_oom(traces: list[list[Json]], stacks: _Stacks) -> Json | None:
    """The last request that the device could not serve; `is_last`: nothing happened after it, so the map is of that moment.

    `freed_since_bytes`: what was freed between it and the map, where nothing else happened; None where something did.
    """
    found = []
    for ordinal, entries in enumerate(traces):
        events = [entry for entry in entries if entry.get("action") != "snapshot"]
        row = next((row for row in range(len(events) - 1, -1, -1) if events[row].get("action") == "oom"), None)
        if row is not None:
            found.append((_integer(events[row].get("time_us")), ordinal, events[row], events[row + 1:]))
    if not found:
        return None
    _, ordinal, entry, later = max(found, key=lambda each: each[:2])
    freed = [_integer(each.get("size")) for each in later if each.get("action") == "free_completed"]
    is_only_freed = all(each.get("action") in ("free_requested", "free_completed") for each in later)
    pool: Any = entry.get("pool_id")
    is_pool = isinstance(pool, (list, tuple)) and len(pool) == 2
    return {"device": ordinal, "requested_bytes": _integer(entry.get("size")), "total_bytes": None,
            "free_bytes": _integer(entry["device_free"]) if "device_free" in entry else None, "is_last": not later,
            "freed_since_bytes": sum(freed) if is_only_freed else None, "stream": _integer(entry.get("stream")),
            "pool": [_integer(pool[0]), _integer(pool[1])] if is_pool else None, "frames": stacks.row(entry.get("frames"))}


def _notes(content: Json, oom: Json | None, has_frames: bool, stacks: _Stacks) -> Iterator[str]:
    if not has_frames:
        yield ("The snapshot has no allocation frames: the program did not record them "
               "(torch.cuda.memory._record_memory_history()).")
    if oom and not oom["is_last"]:
        freed = oom["freed_since_bytes"]
        since = "other things happened" if freed is None else f"{freed:,} bytes were freed, and nothing else happened"
        yield f"The map of blocks is later than the request that ran out of memory: {since} since."
    if stacks.left_out:
        yield f"The frames of {stacks.left_out} blocks were left out: the snapshot has too many."
    host = [(_integer(each.get("size")), each.get("active", each.get("allocated")))
            for each in _dicts(content.get("host_segments"))]
    if host:
        used = sum(size for size, is_used in host if is_used)
        yield f"Pinned host memory: {sum(size for size, _ in host):,} bytes in {len(host)} segments, {used:,} of them in use."


def write(record: Json, path: Path) -> None:
    """Write the segments of a devices.json as a memory pickle that PyTorch's own viewer draws; the file is replaced whole.

    Frames are as they are in the record: masked. Of the allocator's history there is what `--gpu trace` recorded, and the
    request that ran out.

    Raises:
        OSError: the file cannot be written.
    """
    rows = [[{"filename": frame[0], "line": frame[1], "name": frame[2]} for frame in stack if len(frame) == 3]
            for stack in record.get("frames") or []]
    segments = [_viewer_segment(each, rows) for each in _dicts(record.get("segments"))]
    count = 1 + max((_ordinal(each.get("device")) for each in segments), default=0)
    traces: list[list[Json]] = [[] for _ in range(count)]
    for entry in _dicts(record.get("history")):
        ordinal = entry.get("device")
        if type(ordinal) is int and 0 <= ordinal < count:
            traces[ordinal].append({**entry, "frames": _stack(rows, entry.get("frames"))})
    oom = record.get("oom")
    number = str(oom.get("device")).rpartition(":")[2] if oom else ""  # of the name "cuda:0", or it is the number
    ordinal = int(number) if number.isdecimal() else count
    if oom and ordinal < count:
        traces[ordinal].append({
            "action": "oom", "device_free": oom.get("free_bytes") or 0, "size": oom.get("requested_bytes") or 0,
            "stream": oom.get("stream") or 0, "frames": _stack(rows, oom.get("frames")), "time_us": 0, "pool_id": (0, 0)})
    content = {"segments": segments, "device_traces": traces, "external_annotations": [],
               "allocator_settings": dict(record.get("settings") or {})}
    if record.get("simulated") is True:
        content["simulated"] = True  # a key that no viewer knows; `read` does
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_bytes(pickle.dumps(content, protocol=4))
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def _viewer_segment(segment: Json, rows: list[list[Json]]) -> Json:
    """A segment with every field that a viewer reads without asking; sums that the record lacks are made of its blocks."""
    blocks = _viewer_blocks(segment, rows)
    allocated = sum(block["size"] for block in blocks if block["state"] == "active_allocated")
    active = sum(block["size"] for block in blocks if block["state"] != "inactive")
    sums = {"device": 0, "address": 0, "stream": 0, "segment_type": "large", "is_expandable": False, "active_size": active,
            "allocated_size": allocated, "requested_size": allocated, "total_size": sum(block["size"] for block in blocks)}
    pool = tuple(segment.get("segment_pool_id") or (0, 0))
    return {**sums, **segment, "segment_pool_id": pool, "frames": [], "blocks": blocks}


def _viewer_blocks(segment: Json, rows: list[list[Json]]) -> list[Json]:
    """The blocks with the fields that a viewer reads without asking: an address, and frames as lists."""
    address, found = segment.get("address", 0), []
    for block in _dicts(segment.get("blocks")):
        address = block.get("address", address)
        size, state = block.get("size", 0), block.get("state", "inactive")
        found.append({**block, "address": address, "size": size, "state": state,
                      "requested_size": block.get("requested_size", size), "frames": _stack(rows, block.get("frames"))})
        address += size
    return found


def _stack(rows: list[list[Json]], row: Any) -> list[Json]:
    return rows[row] if isinstance(row, int) and 0 <= row < len(rows) else []
