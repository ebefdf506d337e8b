"""A snapshot in one small file: columns as differences, byte by byte, under zlib (the file: agent/format.py).

The columns of a walk in discovery order are full of runs. An address follows the one before; most edges lead to an object
that was not seen before, so they say "the next"; a count is small. What is left is stored byte by byte (all first bytes, all
second bytes ..., as HDF5's shuffle filter and Blosc do), where most bytes are the same throughout and take no room at all.
Measured on recorded services: 1 to 9 bytes an object, 4 million objects a second on two cores.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from leakscope.agent import format as layout
from leakscope.heap.graph import Array

_LEVEL = 1  # of zlib: higher ones take three times as long for a tenth less
_THREADS = 2  # zlib and numpy let go of the GIL
_MOST_ROWS = 1 << 32
_HEAD = struct.Struct("<8sQ")


def _no_change(column: Array) -> Array:
    return column


def _differences(column: Array) -> Array:
    """Each row less the one before, signs folded into the lowest bit; all modulo 2^64."""
    steps: Array = column.view(np.int64).copy()
    steps[1:] -= column.view(np.int64)[:-1]
    folded: Array = (steps << 1) ^ (steps >> 63)
    return folded.view(np.uint64)


def _sums(column: Array) -> Array:
    steps = (column >> np.uint64(1)).view(np.int64) ^ -(column & np.uint64(1)).view(np.int64)
    return np.cumsum(steps, dtype=np.int64).view(np.uint64)


def _behind_next(column: Array) -> Array:
    """How far each row is behind the first number that did not occur before, modulo 2^32."""
    following = np.empty(len(column), np.uint32)
    following[:1] = 0
    following[1:] = np.maximum.accumulate(column)[:-1] + np.uint32(1)
    return following - column


def _of_behind_next(column: Array) -> Array:
    # Who is not behind moves the next number on: by one, and by as much as it is ahead.
    steps = np.maximum(1 - column.view(np.int32).astype(np.int64), 0)
    following = np.cumsum(steps)
    following -= steps
    return following.astype(np.uint32) - column


# How a column is told: forth and back.
_CODINGS: dict[str, tuple[Callable[[Array], Array], Callable[[Array], Array]]] = {
    "plain": (_no_change, _no_change), "steps": (_differences, _sums), "behind": (_behind_next, _of_behind_next)}
_CODING_OF = {"address": "steps", "edge_start": "steps", "sample_ns": "steps",
              "storage_address": "steps", "edge_target": "behind"}


def _coding(name: str, column: Array) -> str:
    """The coding of a column; plain where another one would not be exact."""
    coding = _CODING_OF.get(name, "plain")
    return "plain" if coding == "behind" and len(column) and int(column.max()) >= 1 << 31 else coding


def write(path: Path, columns: dict[str, Array], names: dict[str, Any]) -> None:
    """Write a pack; raises OSError."""
    blocks: list[bytes] = []
    header: dict[str, Any] = {"columns": {}}
    with ThreadPoolExecutor(_THREADS) as pool:
        text = pool.submit(zlib.compress, json.dumps(names).encode(), _LEVEL)
        for name, column in columns.items():
            coding = _coding(name, column)
            header["columns"][name] = {"dtype": column.dtype.str, "rows": len(column), "coding": coding,
                                       "bytes": _add(blocks, pool.map(_packed_bytes, _by_byte(_CODINGS[coding][0](column))))}
        header["names"] = _add(blocks, iter([text.result()]))
    head = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(_HEAD.pack(layout.PACK_MAGIC, len(head)) + head)
        file.writelines(blocks)


def _add(blocks: list[bytes], found: Iterator[int | bytes]) -> list[int | list[int]]:
    """What the header says of each: the byte that they all are, or [the length of the block]."""
    said: list[int | list[int]] = []
    for each in found:
        said.append(each if isinstance(each, int) else [len(each)])
        if not isinstance(each, int):
            blocks.append(each)
    return said


def _by_byte(column: Array) -> Iterator[Array]:
    """(rows,) u1 for each byte of the rows, the lowest first."""
    rows = column.view(np.uint8).reshape(len(column), column.itemsize)
    return (rows[:, place] for place in range(column.itemsize))


def _packed_bytes(column: Array) -> int | bytes:
    """The byte that all are, or their block."""
    if not len(column) or (column == column[0]).all():
        return int(column[0]) if len(column) else 0
    return zlib.compress(np.ascontiguousarray(column).data, _LEVEL)


def read(path: Path, dtypes: dict[str, str]) -> tuple[dict[str, Array], Any]:
    """Return the columns of a pack whose names are in `dtypes`, and its names.json.

    Raises:
        OSError, ValueError: the file cannot be read, or is no pack.
    """
    content = memoryview(path.read_bytes())
    try:
        header, blocks = _header(content)
        with ThreadPoolExecutor(_THREADS) as pool:
            columns = {}
            for name, said in header["columns"].items():
                wanted = [next(blocks) if isinstance(each, list) else each for each in said["bytes"]]
                if name in dtypes:
                    columns[name] = _column(name, said, wanted, dtypes[name], pool)
            names = zlib.decompress(next(blocks))
        return columns, json.loads(names)
    except (KeyError, TypeError, AttributeError, StopIteration, zlib.error, struct.error, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _header(content: memoryview) -> tuple[dict[str, Any], Iterator[memoryview]]:
    """The header, and the blocks that follow it in the order in which it names them."""
    magic, length = _HEAD.unpack_from(content)
    if magic != layout.PACK_MAGIC:
        raise ValueError("it does not begin like one")
    header = json.loads(bytes(content[_HEAD.size:_HEAD.size + length]))
    said = [each for column in header["columns"].values() for each in column["bytes"] if isinstance(each, list)]
    ends = np.cumsum([_HEAD.size + length, *(each[0] for each in [*said, *header["names"]])]).tolist()
    if ends[-1] != len(content):
        raise ValueError(f"it has {len(content)} bytes where {ends[-1]} are expected")
    return header, (content[start:end] for start, end in pairwise(ends))


def _column(name: str, said: dict[str, Any], wanted: list[int | memoryview], dtype: str, pool: ThreadPoolExecutor) -> Array:
    """One column out of its bytes."""
    rows = said["rows"]
    if said["dtype"] != np.dtype(dtype).str or len(wanted) != np.dtype(dtype).itemsize or not 0 <= rows < _MOST_ROWS:
        raise ValueError(f"its column {name} is {rows} x {said['dtype']} where {dtype} is expected")
    if not any(isinstance(each, memoryview) for each in wanted) and not any(wanted):
        column = np.zeros(rows, dtype)  # takes no memory before somebody writes into it
    else:
        column = np.empty(rows, dtype)
        found = column.view(np.uint8).reshape(rows, len(wanted))
        list(pool.map(lambda place: _put(found[:, place], wanted[place]), range(len(wanted))))
    return _CODINGS[said["coding"]][1](column)


def _put(column: Array, packed: int | memoryview) -> None:
    if isinstance(packed, int):
        column[:] = packed
        return
    opened = zlib.decompressobj()
    content = opened.decompress(packed, len(column) + 1)
    if len(content) != len(column) or not opened.eof:
        raise ValueError(f"a block holds {len(content)} rows where {len(column)} are expected")
    column[:] = np.frombuffer(content, np.uint8)
