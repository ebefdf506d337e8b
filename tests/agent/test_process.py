"""What process.json says of a command and of how a process came to be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from leakscope.agent import process


@pytest.mark.parametrize("command, shown", [
    ("python serve.py", "python serve.py"),
    ("python -m app --token=abc --port 80 name", "python -m app --token=str:3 --port int:2 str:4"),
    ("python -c secret", "python -c str:6"),
    ("python -X dev -u serve.py key", "python -X dev -u serve.py str:3"),
    ("uvicorn app:app", "uvicorn app:app"),
    ("python serve.py -m word", "python serve.py -m str:4"),
])
def test_values_of_a_command_are_masked(command: str, shown: str) -> None:
    assert " ".join(process.masked(command.split())) == shown


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
