"""devices.json is bounded, masked, and says what was cut."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from leakscope.agent import device_map


def segment(total: int, blocks: int = 1, **more: Any) -> dict[str, Any]:
    return {"device": 0, "address": total, "total_size": total, "blocks": [
        {"address": total + number, "size": 1, "requested_size": 1, "state": "inactive", "frames": []}
        for number in range(blocks)], **more}


def written(folder: Path, segments: list[Any], **said: Any) -> dict[str, Any]:
    device_map.write(os.fspath(folder / "devices.json"), {"notes": [], **said}, segments)
    return dict(json.loads((folder / "devices.json").read_text()))


def test_segments_with_the_most_bytes_stay_where_there_are_too_many_blocks(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_map, "MOST_BLOCKS", 25)
    said = written(tmp_path, [segment(size, blocks=10) for size in (10, 40, 20, 30)])
    assert [each["total_size"] for each in said["segments"]] == [40, 30]
    assert said["notes"] == ["2 of 4 segments, the smallest, were left out of the block map: it would have had more than 25 "
                             "blocks or 64 MiB."]


def test_a_map_that_has_no_room_is_cut_and_its_stacks_stay_those_that_rows_name(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_map, "MOST_BYTES", 2000)
    many = [segment(1000 - number) for number in range(50)]
    for number, each in enumerate(many):
        each["blocks"][0]["frames"] = [{"filename": f"/a/b/c{number}.py", "line": number, "name": "f"}]
    said = written(tmp_path, many)
    assert 0 < len(said["segments"]) < 50 and "were left out of the block map" in said["notes"][0]
    for each in said["segments"]:
        row = each["blocks"][0]["frames"]
        if row < len(said["frames"]):
            assert said["frames"][row][0][1] == row
    assert (tmp_path / "devices.json").stat().st_size < 4000


def test_a_stack_is_kept_once_and_frames_of_c_are_left_out() -> None:
    frames = device_map.Frames()
    python = {"filename": "/x/app/serve.py", "line": 4, "name": "load"}
    c = {"filename": "CUDACachingAllocator.cpp", "line": 9, "name": "at::native::empty"}
    odd = {"filename": "/x/app/serve.py", "line": 5, "name": "a secret: 123"}
    assert [frames.row(each) for each in ([c, python], [python], [c], [odd], None)] == [0, 0, -1, 1, -1]
    assert frames.rows == [(("app/serve.py", 4, "load"),), (("app/serve.py", 5, "?"),)]


def test_frames_of_torch_2_0_are_in_the_history_of_a_block(tmp_path: Path) -> None:
    block = {"size": 512, "state": "active_allocated",
             "history": [{"addr": 1, "real_size": 5, "frames": [{"filename": "/a/b.py", "line": 1, "name": "f"}]}]}
    said = written(tmp_path, [{"total_size": 512, "blocks": [block]}])
    assert said["segments"][0]["blocks"] == [{"size": 512, "state": "active_allocated", "frames": 0}] and said["frames"]


def test_what_is_no_number_or_known_word_is_not_written(tmp_path: Path) -> None:
    odd = dict.fromkeys(("segment_type", "stream", "is_expandable", "other"), "secret")
    said = written(tmp_path, [segment(5, **odd), "secret"])
    said["segments"][0]["blocks"].clear()
    assert said["segments"] == [{"device": 0, "address": 5, "total_size": 5, "blocks": []}]
    assert "secret" not in (tmp_path / "devices.json").read_text()


def test_nothing_is_left_of_a_file_that_could_not_be_written(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        device_map.write(os.fspath(tmp_path / "devices.json"), {"notes": [], "odd": object()}, [])
    assert list(tmp_path.iterdir()) == []
