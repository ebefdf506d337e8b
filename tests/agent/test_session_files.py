"""Whole lines, whole files, and a disk that refuses."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from leakscope.agent.session_files import ProcessFolder


@pytest.fixture
def folder(tmp_path: Path) -> ProcessFolder:
    made = ProcessFolder(str(tmp_path), 0)
    made.create(77)
    return made


def refuse(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def write(handle: int, data: bytes) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "write", write)


def test_a_pid_that_comes_again_gets_a_folder_of_its_own(tmp_path: Path) -> None:
    assert ProcessFolder(str(tmp_path), 0).create(77) == []
    assert ProcessFolder(str(tmp_path), 0).create(77) == ["77"]
    assert ProcessFolder(str(tmp_path), 0).create(77) == ["77", "77.2"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["77", "77.2", "77.3"]


def test_notes_from_before_the_folder_are_kept_and_each_is_written_once(tmp_path: Path) -> None:
    folder = ProcessFolder(str(tmp_path), 0)
    folder.note("Early.")
    folder.create(1)
    folder.note("Early.")
    folder.note("Late.")
    lines = [json.loads(line) for line in (tmp_path / "1" / "notes.jsonl").read_text().splitlines()]
    assert [line["note"] for line in lines] == ["Early.", "Late."]


def test_no_descriptor_stays_open(folder: ProcessFolder) -> None:
    before = os.listdir("/proc/self/fd")
    folder.append("timeline.jsonl", {"t_ns": 1})
    folder.write("exit.json", {"t_ns": 1})
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO])
def test_a_disk_that_refuses_ends_the_recording_without_an_error(
        folder: ProcessFolder, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, number)
    folder.append("timeline.jsonl", {"t_ns": 1})
    assert folder.is_closed
    monkeypatch.undo()
    folder.append("timeline.jsonl", {"t_ns": 2})
    assert (Path(str(folder.path)) / "timeline.jsonl").read_text() == ""


def test_a_lack_of_descriptors_costs_one_row(folder: ProcessFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_descriptor(*args: Any) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "open", no_descriptor)
    folder.append("timeline.jsonl", {"t_ns": 1})
    monkeypatch.undo()
    folder.append("timeline.jsonl", {"t_ns": 2})
    assert (Path(str(folder.path)) / "timeline.jsonl").read_text() == '{"t_ns":2}\n'


def test_a_folder_that_vanished_ends_the_recording(folder: ProcessFolder) -> None:
    os.rename(str(folder.path), f"{folder.path}-moved")
    folder.write("exit.json", {})
    assert folder.is_closed


def test_a_removed_snapshot_is_gone_and_one_that_is_not_there_is_no_error(folder: ProcessFolder) -> None:
    path = Path(folder.snapshot_path(3))
    path.mkdir()
    (path / "done.json").write_text("{}")
    (path / "address.npy").write_bytes(b"x" * 1000)
    assert folder.snapshot_bytes(3) == 1002
    folder.remove_snapshot(3)
    folder.remove_snapshot(4)
    assert not path.exists()


def test_the_disk_is_shared_by_the_processes_that_run(tmp_path: Path) -> None:
    folders = [ProcessFolder(str(tmp_path), 0) for _ in range(4)]
    for pid, folder in enumerate(folders):
        folder.create(pid)
    assert folders[0].share_bytes(1200) == 300
    folders[3].write("exit.json", {})
    assert folders[0].share_bytes(1200) == 400
