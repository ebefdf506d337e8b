"""Packs the snapshots of a session: large ones while the target runs, all of them at its end."""

from __future__ import annotations

import threading

from leakscope.session import Session, SnapshotFolder

_LARGE_BYTES = 64 << 20  # ours: smaller ones can wait until the target has ended and its processors are free


class Packing:
    """At most one snapshot at a time, in a thread of its own. A full disk ends it: the raw files stay and are as good."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._thread: threading.Thread | None = None
        self._has_failed = False

    def look(self) -> None:
        """Begin with the next large snapshot that is not the newest one of its process."""
        if self._has_failed or self._thread and self._thread.is_alive():
            return
        for process in self._session.processes():
            for snapshot in process.snapshots()[:-1]:
                if snapshot.raw_bytes >= _LARGE_BYTES:
                    self._thread = threading.Thread(target=self._pack, args=(snapshot,), name="packing", daemon=True)
                    self._thread.start()
                    return

    def finish(self) -> None:
        """Pack all that is left."""
        if self._thread:
            self._thread.join()
        for process in self._session.processes():
            for snapshot in process.snapshots():
                if snapshot.raw_bytes and not self._has_failed:
                    self._pack(snapshot)

    def _pack(self, snapshot: SnapshotFolder) -> None:
        from leakscope.heap.columns import pack  # numpy: only when there is something to pack

        try:
            pack(snapshot.path)
        except OSError:
            self._has_failed = True
