"""The columns and names of a snapshot folder, as the agent wrote them or packed. What they mean is checked by load.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from leakscope.agent import format as layout
from leakscope.errors import SessionError
from leakscope.heap import packing
from leakscope.heap.graph import Array

STORAGE_COLUMNS = layout.STORAGE_COLUMNS
DTYPES = layout.COLUMNS | layout.SAMPLED_COLUMNS | STORAGE_COLUMNS
# Groups of columns that a snapshot has all of or none, by the column that says so.
_GROUPS = {"sample_node": layout.SAMPLED_COLUMNS, "storage_node": STORAGE_COLUMNS}

# What may be missing: a walk that cannot tell leaves these out, and 0 means "unknown", "no state", "host" anyway.
OPTIONAL = ("birth", "site_id", "state", "device")


def damaged(sentence: str) -> SessionError:
    """The error of a snapshot that cannot be used."""
    return SessionError(
        sentence, "remove this snapshot's folder and run `leakscope report` again: the other snapshots stand on their own")


def read(folder: Path) -> tuple[dict[str, Array], dict[str, Any]]:
    """Return the columns that are there, one dimension of their dtype each, and names.json.

    Columns on disk are mapped, not read: a snapshot of ten million objects is 600 MB that the kernel may drop again.

    Raises:
        SessionError: a file is missing or damaged; the sentence names it.
    """
    if not (folder / layout.PACK_FILE).exists():
        try:
            return _read_raw(folder)
        except SessionError:
            if not (folder / layout.PACK_FILE).exists():  # it may have been packed while we looked
                raise
    return _read_packed(folder / layout.PACK_FILE)


def pack(folder: Path) -> bool:
    """Pack the columns and names of a complete snapshot in place; return False if it stays as it is.

    At every moment a reader, or a kill, finds it whole: the pack replaces nothing, and the raw files go when it is there.

    Raises:
        OSError: the disk is full, or the folder cannot be written.
    """
    done = folder / layout.DONE_FILE
    path, draft = folder / layout.PACK_FILE, folder / f".{layout.PACK_FILE}"
    if not path.exists():
        try:
            columns, names = _read_raw(folder)
        except SessionError:
            return False  # it stays as evidence, and a report says what is wrong with it
        try:
            packing.write(draft, columns, names)
            draft.replace(path)
        except OSError:
            draft.unlink(missing_ok=True)
            if done.exists():
                raise
            return False  # the agent has let go of this snapshot meanwhile
    for name in (*DTYPES, layout.NAMES_FILE.removesuffix(".json")):
        (folder / f"{name}.{'json' if name == 'names' else 'npy'}").unlink(missing_ok=True)
    if not done.exists():  # as above: nothing of it may be left
        path.unlink(missing_ok=True)
        folder.rmdir()
    return True


def _read_raw(folder: Path) -> tuple[dict[str, Array], dict[str, Any]]:
    names = read_json(folder / layout.NAMES_FILE)
    absent = {name for name in OPTIONAL if not (folder / f"{name}.npy").exists()}
    for leader, group in _GROUPS.items():
        absent |= set() if (folder / f"{leader}.npy").exists() else set(group)
    wanted = [name for name in DTYPES if name not in absent]
    return {name: _column(folder / f"{name}.npy", DTYPES[name]) for name in wanted}, names


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file of the snapshot."""
    try:
        return _object(json.loads(path.read_text(encoding="utf-8")), path)
    except FileNotFoundError as error:
        raise damaged(f"{path} is missing.") from error
    except (OSError, ValueError) as error:
        raise damaged(f"{path} cannot be read: {error}.") from error


def _object(value: Any, path: Path) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise damaged(f"{path} holds a {type(value).__name__} where an object is expected.")
    return value


def _column(path: Path, dtype: str) -> Array:
    try:
        column = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError as error:
        raise damaged(f"{path} is missing.") from error
    except (OSError, EOFError, ValueError) as error:
        raise damaged(f"{path} is cut short or no column: {str(error).rstrip('.')}.") from error
    if not isinstance(column, np.ndarray) or column.dtype != np.dtype(dtype) or column.ndim != 1:
        found = f"{column.ndim} x {column.dtype.str}" if isinstance(column, np.ndarray) else type(column).__name__
        raise damaged(f"{path} holds {found} where one dimension of {dtype} is expected.")
    return column.view(np.ndarray)


def _read_packed(path: Path) -> tuple[dict[str, Array], dict[str, Any]]:
    try:
        columns, names = packing.read(path, DTYPES)
    except (OSError, ValueError) as error:
        raise damaged(f"{path} is cut short or damaged: {str(error).rstrip('.')}.") from error
    missing = [name for name in layout.COLUMNS if name not in columns and name not in OPTIONAL]
    if missing:
        raise damaged(f"{path} has no column {missing[0]}.")
    return columns, _object(names, path)
