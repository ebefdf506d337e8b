"""What process.json says of how a process came to be."""

from __future__ import annotations

import json
from pathlib import Path

from leakscope.agent import process


def test_the_first_process_is_main_and_a_later_one_is_spawned(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    assert process.role(str(tmp_path), "1", []) == "main"
    (tmp_path / "2").mkdir()
    assert process.role(str(tmp_path), "2", []) == "spawn"


def test_the_same_process_in_a_second_folder_has_called_exec(tmp_path: Path) -> None:
    for name, ticks in (("7", process.start_ticks()), ("8", 1)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "process.json").write_text(json.dumps({"start_ticks": ticks}))
    assert process.role(str(tmp_path), "7.2", ["7"]) == "exec"
    assert process.role(str(tmp_path), "8.2", ["8"]) == "spawn"
