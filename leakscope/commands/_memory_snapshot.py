"""PyTorch's memory pickles at the border: written beside a report, for PyTorch's own viewer; read for a report of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from leakscope import session as sessions
from leakscope.errors import LeakScopeError
from leakscope.heap import memory_pickle
from leakscope.heap.load import Stored

FILE = "memory_snapshot.pickle"


def write_beside(session: sessions.Session, out: Path) -> list[Path]:
    """Write the block map of each process that has one to the folder `out`, and return the files; the first has the plain name.

    The map of a moment at which a device ran out of memory comes before the last one.

    Raises:
        LeakScopeError: a file cannot be written.
    """
    written: list[Path] = []
    for process in session.processes():
        record = _map_of(process)
        if record is not None:
            path = out / (FILE if not written else f"{Path(FILE).stem}.{process.pid}{Path(FILE).suffix}")
            try:
                memory_pickle.write(record, path)
            except OSError as error:
                raise LeakScopeError(f"The memory snapshot {path} cannot be written: {error.strerror or error}.",
                                     "leakscope report SESSION -o A_FOLDER_THAT_YOU_MAY_WRITE") from error
            written.append(path)
    return written


def _map_of(process: sessions.SessionProcess) -> dict[str, Any] | None:
    """What the allocators said in the last snapshot in which one ran out of memory, else in the last one with a map."""
    last = None
    for snapshot in reversed(process.snapshots()):
        record = Stored(snapshot.path, snapshot.done).devices
        if record and record.get("segments"):
            last = last or record
            if record.get("oom"):
                return record
    return last
