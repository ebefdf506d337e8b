"""Children and shared files of this process, counted from /proc and a folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from leakscope.agent import outside

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")


def children(own: int | None = None) -> dict[str, int]:
    row: dict[str, int] = {}
    outside.read_children(row, own)
    return row


def test_children_that_live_and_children_that_nobody_waited_for_are_told_apart() -> None:
    before = children()
    alive = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    ended = os.fork()
    if not ended:
        os._exit(0)
    os.waitid(os.P_PID, ended, os.WEXITED | os.WNOWAIT)  # it has ended, and is still there
    try:
        now = children()
        assert now["children"] - before["children"] == 2
        assert now["children_ended"] - before["children_ended"] == 1
        assert children(own=ended) == {**now, "children": now["children"] - 1, "children_ended": now["children_ended"] - 1}
    finally:
        os.waitpid(ended, 0)
        alive.communicate(b"\n")
    assert children() == before


def test_files_that_came_since_the_start_count_with_their_size_and_go_with_it(tmp_path: Path) -> None:
    (tmp_path / "before").write_bytes(b"x" * 9000)
    files = outside.SharedFiles(str(tmp_path))
    (tmp_path / "psm_1").write_bytes(b"x" * 9000)
    (tmp_path / "sem.mp-1").write_bytes(b"x" * 9000)
    row: dict[str, int] = {"shmem_bytes": 4096}
    files.read(row)
    assert row["shared_files"] == 1 and 9000 <= row["shared_file_bytes"] <= 16384
    (tmp_path / "psm_1").unlink()
    row = {}  # it has let go of all: what is left counts all the same
    files.read(row)
    assert row == {"shared_files": 0, "shared_file_bytes": 0}


def test_a_process_that_uses_no_shared_memory_does_not_count_that_of_others(tmp_path: Path,
                                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "_posixshmem", raising=False)
    files = outside.SharedFiles(str(tmp_path))
    (tmp_path / "psm_1").write_bytes(b"x" * 9000)
    row: dict[str, int] = {"shmem_bytes": 0}
    files.read(row)
    assert "shared_files" not in row
    monkeypatch.setitem(sys.modules, "_posixshmem", sys)
    files.read(row)
    assert row["shared_files"] == 1


def test_where_there_is_no_such_folder_the_gauge_says_so(tmp_path: Path) -> None:
    files = outside.SharedFiles(str(tmp_path / "none"))
    with pytest.raises(OSError):
        files.read({"shmem_bytes": 1})
