"""Which native code keeps more and more memory: the growth of the preloaded sampler's sites between two snapshots.

A site is a C stack with the Python stack above it (native.json, agent/format.py). What Python's own allocator asks for is left
out where the interpreter itself is the caller: those are objects, and the heap walk counts them better.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from leakscope.analyse.sites import own_frame
from leakscope.model import Location

Frames = tuple[tuple[str, str, int], ...]  # (module, symbol, offset), innermost first
PythonFrames = tuple[tuple[str, int, str], ...]  # (file, line, function), innermost first

_INTERPRETER = re.compile(r"(lib)?python3?[\d.]*[a-z]*(\.so.*)?$|_probe\.")  # the probe hands Python's allocations on
# A function that only hands memory on: its caller is the one to name, if it has a name.
_HANDS_ON = re.compile(r"(?i)(?:alloc|memalign)(?:$|_|[a-z]*\()|alloc$|^operator new|Malloc|^alloc_")
_MOST_OF_INTERPRETER = 6  # frames between an extension and malloc: PyBytes_FromStringAndSize, PyObject_Malloc, the probe, ...


@dataclass(frozen=True)
class NativeGrowth:
    """A native function that keeps more than before.

    `function` is "" where the library has no symbol for it; `growth_bytes` and `growth_count` are unbiased estimates;
    `callers` are the program's functions above it (where there is none, Python functions), with their share of the growth.
    """

    library: str
    function: str
    growth_bytes: int
    growth_count: int
    callers: tuple[Location, ...]

    @property
    def name(self) -> str:
        """What a person calls it: `deflateInit2_ (libz.so.1)`."""
        return f"{self.function} ({self.library})" if self.function else self.library


def grown(first: Sequence[Mapping[str, Any]], last: Sequence[Mapping[str, Any]]) -> list[NativeGrowth]:
    """Return the native functions whose live memory grew between two lists of sites, most growth first."""
    growth: dict[tuple[Frames, PythonFrames], list[int]] = {}
    for sign, sites in ((-1, first), (1, last)):
        for site in sites:
            totals = growth.setdefault((_frames(site, "native"), _frames(site, "python")), [0, 0])
            totals[0] += sign * int(site.get("bytes", 0))
            totals[1] += sign * int(site.get("count", 0))
    by_function: dict[tuple[str, str], list[tuple[int, int, PythonFrames]]] = {}
    for (native, python), (size, count) in growth.items():
        named = responsible(native)
        if named is not None:
            by_function.setdefault(named, []).append((size, count, python))
    found = [NativeGrowth(*named, sum(size for size, _, _ in parts), sum(count for _, count, _ in parts), _callers(parts))
             for named, parts in by_function.items()]
    return sorted((each for each in found if each.growth_bytes > 0), key=lambda each: (-each.growth_bytes, each.name))


def responsible(frames: Frames) -> tuple[str, str] | None:
    """Return (library, function) that asked for the memory, None if the interpreter did so for an object of its own.

    Frames that only hand memory on are passed over as long as the next ones have a name of the same library.
    """
    place = 0
    while place < len(frames) and _INTERPRETER.match(frames[place][0]):
        place += 1
    if place > _MOST_OF_INTERPRETER or place == len(frames):
        return None
    library, function, _offset = frames[place]
    for module, symbol, _offset in frames[place:]:
        if module != library:
            break
        if symbol and not _HANDS_ON.search(symbol):
            return library, _plain(library, symbol)
        function = function or symbol
    return library, _plain(library, function)


def _plain(library: str, symbol: str) -> str:
    """The C library calls many functions by two names; the one without underscores is in the manual."""
    return symbol.lstrip("_") if library.startswith("libc.so") else symbol


def _callers(parts: Sequence[tuple[int, int, PythonFrames]]) -> tuple[Location, ...]:
    """Return the program's own frames above a function, by their share of its growth."""
    sizes: dict[tuple[str, int, str], int] = {}
    for size, _count, python in parts:
        if python and size > 0:
            file, function, line = own_frame(python)
            sizes[file, line, function] = sizes.get((file, line, function), 0) + size
    total = sum(size for size, _, _ in parts if size > 0)
    ranked = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))
    return tuple(Location(function, file, line, round(size / total, 4)) for (file, line, function), size in ranked)


def _frames(site: Mapping[str, Any], name: str) -> Any:
    return tuple(tuple(frame) for frame in site.get(name, ()))
