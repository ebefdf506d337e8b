"""A snapshot folder of a session becomes a HeapGraph. All is checked here, once; nothing is repaired in silence."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from leakscope import plugins
from leakscope.agent import format as layout
from leakscope.errors import SessionError
from leakscope.heap import devices as on_devices
from leakscope.heap.columns import OPTIONAL, STORAGE_COLUMNS, damaged, read, read_json
from leakscope.heap.graph import Array, HeapGraph, TypeName

# The column that says how many rows another one has; "address" for all the rest.
_LEADER = {"edge_target": "edge_target", "edge_label": "edge_target", "root_node": "root_node", "root_kind": "root_node",
           "root_label": "root_node", "storage_node": "storage_node", "storage_address": "storage_node"
           } | dict.fromkeys(layout.SAMPLED_COLUMNS, "sample_node")
_PART = 1 << 16
_DEVICES_FORMAT = 1


@dataclass(frozen=True, eq=False)
class Stored:
    """A snapshot on disk; `info` is its done.json."""

    folder: Path
    info: dict[str, Any]

    def load(self) -> HeapGraph:
        """Read it; nobody keeps it but the caller. Raises as `load` does."""
        return load(self.folder)

    @property
    def native_sites(self) -> list[dict[str, Any]] | None:
        """What the preloaded sampler found alive (native.json); None where it did not run, or left nothing that can be read."""
        try:
            record = json.loads((self.folder / layout.NATIVE_FILE).read_bytes())
            return [dict(site) for site in record["sites"]]
        except (OSError, ValueError, TypeError, KeyError):
            return None

    @property
    def devices(self) -> dict[str, Any] | None:
        """devices.json of the snapshot; None where there is none, or none that can be read."""
        return _said_of_devices(self.folder)[0]

    @property
    def why_no_devices(self) -> str:
        """Why devices.json cannot be used, in a sentence; empty where it can, or where there is none."""
        return _said_of_devices(self.folder)[1]

    @property
    def node_count(self) -> int:
        """N, as its done.json says."""
        return int(self.info.get("node_count", 0))

    @property
    def t_s(self) -> float:
        """When it was taken, in seconds since the session started."""
        return float(self.info.get("t_ns", 0)) / 1e9


def load(folder: Path) -> HeapGraph:
    """Return the snapshot in `folder` (columns, shapes and units: agent/format.py).

    Raises:
        SessionError: the snapshot is not complete, of a later format, or damaged; the sentence names the file.
    """
    info = _done(folder)
    columns, names = read(folder)
    for name in OPTIONAL:
        columns.setdefault(name, np.zeros(len(columns["address"]), dtype=layout.COLUMNS[name]))
    for name, dtype in (layout.SAMPLED_COLUMNS | STORAGE_COLUMNS).items():
        columns.setdefault(name, np.zeros(0, dtype))
    _check_lengths(folder, columns, info)
    known = columns["sample_node"]
    _check_range(folder, "sample_node", known[known != layout.NO_NODE], len(columns["address"]))
    _check_range(folder, "storage_node", columns["storage_node"], len(columns["address"]))
    tables = {table: _table(folder, names, table) for table in _ROWS}
    strings, types, sites = tables["strings"], tables["types"], tables["sites"]
    _check_edges(folder, columns)
    rows: dict[str, int] = {
        "type_id": len(types), "label": len(strings), "root_label": len(strings), "site_id": len(sites),
        "sample_site": len(sites), "kind": len(layout.NODE_KINDS), "state": len(layout.STATES),
        "root_kind": len(layout.ROOT_KINDS)}
    for name, count in rows.items():
        _check_range(folder, name, columns[name], count)
    _check_edge_labels(folder, columns["edge_label"], len(strings))
    _check_range(folder, "duplicates", np.array([node for row in tables["duplicates"] for node in row], np.int64),
                 len(columns["address"]))
    given: dict[str, Any] = {**columns}
    graph = HeapGraph(**given, strings=strings, types=[TypeName(*row) for row in types], sites=sites,
                      bounds=[tuple(row) for row in tables["bounds"]], caches=tables["caches"], tables=tables["tables"],
                      duplicates=tables["duplicates"], info=info)
    for expander in plugins.load("leakscope.heap.expanders", ("LIBRARY", "expand")).values():
        graph = expander.expand(graph)
    said = _said_of_devices(folder)[0]
    return graph if said is None else on_devices.joined(graph, said)


def _is_row_of(*kinds: type) -> Callable[[Any], bool]:
    return lambda row: isinstance(row, list) and len(row) == len(kinds) and all(map(isinstance, row, kinds))


# The tables of names.json: what one may be left out for, and what its rows look like.
_ROWS: dict[str, tuple[list[Any] | None, Callable[[Any], bool]]] = {
    "strings": (None, lambda row: isinstance(row, str)),
    "types": (None, _is_row_of(str, str, str)),
    "sites": ([None], lambda row: row is None or isinstance(row, dict)),  # row 0 alone: "unknown"
    "bounds": ([], _is_row_of(int, int, str)),
    "caches": ([], lambda row: isinstance(row, dict)),
    "tables": ([], lambda row: isinstance(row, dict)),
    "duplicates": ([], lambda row: isinstance(row, list) and all(isinstance(node, int) for node in row)),
}


def _done(folder: Path) -> dict[str, Any]:
    """done.json, of a format that this version reads."""
    if not (folder / layout.DONE_FILE).is_file():
        raise damaged(f"The snapshot {folder} is not complete: it has no {layout.DONE_FILE}.")
    info = read_json(folder / layout.DONE_FILE)
    if info.get("format") != layout.FORMAT:
        raise SessionError(
            f"The snapshot {folder} is of format {info.get('format')!r}; this version reads format {layout.FORMAT}.",
            "python -m pip install --upgrade leakscope-forensics")
    return info


def _check_lengths(folder: Path, columns: dict[str, Array], info: dict[str, Any]) -> None:
    """Columns of nodes, edges and roots agree among themselves and with done.json."""
    for name, column in columns.items():
        part = _LEADER.get(name, "address")
        expected = len(columns[part]) + (name == "edge_start")
        if len(column) != expected:
            raise damaged(f"{folder / name}.npy has {len(column)} rows where {part}.npy asks for {expected}.")
    for part, count in (("address", "node_count"), ("edge_target", "edge_count"), ("root_node", "root_count")):
        if info.get(count, len(columns[part])) != len(columns[part]):
            raise damaged(f"{folder / part}.npy has {len(columns[part])} rows; {layout.DONE_FILE} says {info[count]}.")


def _check_edges(folder: Path, columns: dict[str, Array]) -> None:
    """Rows of edges begin where the one before ended, and edges and roots point to nodes."""
    start, node_count = columns["edge_start"], len(columns["address"])
    if start[0] != 0 or start[-1] != len(columns["edge_target"]) or bool(np.any(start[1:] < start[:-1])):
        raise damaged(f"{folder / 'edge_start.npy'} does not rise from 0 to the {len(columns['edge_target'])} edges.")
    for name in ("edge_target", "root_node"):
        _check_range(folder, name, columns[name], node_count)


def _check_range(folder: Path, name: str, column: Array, count: int) -> None:
    if len(column) and int(column.max()) >= count:
        raise damaged(f"{folder / name}.npy holds {int(column.max())} where only {count} rows are known.")


def _check_edge_labels(folder: Path, labels: Array, string_count: int) -> None:
    """Kinds are known and texts are rows of the string table."""
    named = np.isin(np.arange(1 << 32 - layout.EDGE_KIND_SHIFT), (layout.INDEX, layout.STACK), invert=True)
    for first in range(0, len(labels), _PART):  # in parts that stay in the processor's cache
        part = labels[first:first + _PART]
        kinds = part >> layout.EDGE_KIND_SHIFT
        _check_range(folder, "edge_label", kinds, len(layout.EDGE_KINDS))
        _check_range(folder, "edge_label", (part & layout.EDGE_VALUE_MASK) * named[kinds], string_count)


def _table(folder: Path, names: dict[str, Any], table: str) -> list[Any]:
    left_out, is_row = _ROWS[table]
    rows = names.get(table, left_out)
    if not isinstance(rows, list):
        raise damaged(f"{folder / layout.NAMES_FILE} has no list of {table}.")
    for number, row in enumerate(rows):
        if not is_row(row):
            raise damaged(f"{folder / layout.NAMES_FILE} has something of another shape in row {number} of {table}.")
    return rows


def _said_of_devices(folder: Path) -> tuple[dict[str, Any] | None, str]:
    """Return devices.json of a snapshot, and why it cannot be used; (None, "") where there is none.

    It never stops a report: what is damaged or of a later format is no device data.
    """
    file = folder / layout.DEVICES_FILE
    try:
        found = json.loads(file.read_bytes())
    except FileNotFoundError:
        return None, ""
    except (OSError, ValueError) as error:
        return None, f"What the devices' allocators said at the snapshot {folder.name} cannot be read: {error}."
    if not isinstance(found, dict) or found.get("format") != _DEVICES_FORMAT:
        said = found.get("format") if isinstance(found, dict) else type(found).__name__
        return None, (f"What the devices' allocators said at the snapshot {folder.name} is of format {said!r}; this version "
                      f"reads format {_DEVICES_FORMAT}.")
    if not on_devices.has_shape(found):
        return None, f"What the devices' allocators said at the snapshot {folder.name} is of another shape than expected."
    return found, ""
