"""A session is readable at any time, and says in one sentence when it is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from leakscope import session as sessions
from leakscope.agent.format import FORMAT
from leakscope.errors import SessionError


def made(folder: Path) -> sessions.Session:
    return sessions.create(folder / "session", ["python", "x.py"], {"sites": "off"}, label="night")


def add_process(session: sessions.Session, pid: int, role: str = "main", **info: Any) -> Path:
    folder = session.path / str(pid)
    folder.mkdir()
    (folder / "process.json").write_text(json.dumps({"format": FORMAT, "pid": pid, "parent": 1, "role": role,
                                                     "python": "3.11.7", "started_ns": 0, **info}))
    return folder


def add_snapshot(process: Path, name: str, t_ns: int) -> None:
    folder = process / "snapshots" / name
    folder.mkdir(parents=True)
    (folder / "done.json").write_text(json.dumps({"t_ns": t_ns, "node_count": 3}))


def ended_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    process.wait()
    return process.pid


def test_what_is_created_is_what_is_opened(tmp_path: Path) -> None:
    info = made(tmp_path).info
    assert sessions.open(tmp_path / "session").info == info
    assert (info["format"], info["state"], info["label"], info["command"]) == (FORMAT, "running", "night", ["python", "x.py"])
    assert info["options"]["session"] == str(tmp_path / "session")
    assert info["exit_code"] is info["signal"] is info["duration_s"] is None


@pytest.mark.parametrize("typed", ["session", ".", "report.html", "session/session.json"])
def test_a_session_is_found_by_its_folder_its_report_folder_or_a_file_in_them(tmp_path: Path, typed: str) -> None:
    made(tmp_path)
    (tmp_path / "report.html").write_text("")
    assert sessions.open(tmp_path / typed).path == tmp_path / "session"


def test_a_change_of_the_info_leaves_no_draft_behind(tmp_path: Path) -> None:
    session = made(tmp_path)
    session.write_info(state="complete", exit_code=0)
    assert sessions.open(tmp_path).info["exit_code"] == 0
    assert [each.name for each in session.path.iterdir()] == ["session.json"]


def test_a_gap_is_written_down_once(tmp_path: Path) -> None:
    session = made(tmp_path)
    for _ in range(2):
        session.add_gap("everything", "no agent", "leakscope doctor")
    expected = [{"claim": "everything", "missing": "no agent", "command": "leakscope doctor"}]
    assert sessions.open(tmp_path).info["gaps"] == expected


@pytest.mark.parametrize(("content", "sentence", "hint"), [
    ('{"format": 7}', "is of format 7, this leakscope reads up to 1.", "pip install -U leakscope-forensics"),
    ('{"format": 1, "comm', "is damaged: it ends in the middle.", "record again"),
    ('{"format": 1,, "x": 2}\n{}', "is damaged: line 1, column 14 is not JSON.", "record again"),
    ("", "is damaged: it ends in the middle.", "record again"),
    ("\udcff\udcfe", "is damaged: it is not text.", "record again"),
    ("[1]", "does not say of which format the session is.", "record again"),
    ('{"format": "new"}', "does not say of which format the session is.", "record again"),
])
def test_a_session_that_cannot_be_read_says_why(tmp_path: Path, content: str, sentence: str, hint: str) -> None:
    (tmp_path / "session.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(SessionError) as caught:
        sessions.open(tmp_path)
    assert caught.value.sentence.endswith(sentence)
    assert hint in caught.value.hint


def test_a_folder_that_is_not_there_is_named_with_the_newest_session_beside_it(tmp_path: Path) -> None:
    made(tmp_path / "out-2")
    with pytest.raises(SessionError, match="There is no folder '.*/out-3'.") as caught:
        sessions.open(tmp_path / "out-3")
    assert caught.value.hint == f"the newest session here: {tmp_path / 'out-2' / 'session'}"


def test_a_folder_that_is_no_session_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(SessionError, match="is no session: it holds no session.json") as caught:
        sessions.open(tmp_path)
    assert caught.value.hint == "make one: leakscope run -- COMMAND"


def test_the_main_process_comes_first_then_the_others_as_they_came_up(tmp_path: Path) -> None:
    session = made(tmp_path)
    add_process(session, 30, "fork", started_ns=9)
    add_process(session, 20, "spawn", started_ns=5)
    add_process(session, 40, started_ns=7)
    (session.path / "50").mkdir()  # its agent has not written process.json yet
    assert [each.pid for each in session.processes()] == [40, 20, 30]
    assert session.reported() == {20, 30, 40, 50}


def test_the_started_command_is_the_main_process_even_where_it_is_not_the_first(tmp_path: Path) -> None:
    session = made(tmp_path)
    add_snapshot(add_process(session, 20, started_ns=1), "0001", 1)
    add_snapshot(add_process(session, 40, started_ns=7), "0001", 2)
    session.write_info(pid=40)
    assert [each.t_ns for each in session.snapshots()] == [2]


def test_a_session_without_any_process_has_no_evidence_and_no_error(tmp_path: Path) -> None:
    session = made(tmp_path)
    assert (session.processes(), session.timeline(), session.snapshots(), session.main()) == ([], [], [], None)


def test_lines_that_are_not_complete_or_broken_are_left_out_of_the_timeline(tmp_path: Path) -> None:
    session = made(tmp_path)
    folder = add_process(session, 30)
    (folder / "timeline.jsonl").write_bytes(b'{"t_ns": 1}\n{"t_ns": 2, \n[]\n{"t_ns": 3}\n{"t_ns": 4}')
    assert [row["t_ns"] for row in session.timeline()] == [1, 3]
    assert session.processes()[0].latest() == {"t_ns": 3}
    assert sessions.check(session) == ["2 lines of 30/timeline.jsonl cannot be read."]


def test_a_snapshot_without_a_complete_done_does_not_exist(tmp_path: Path) -> None:
    session = made(tmp_path)
    folder = add_process(session, 30)
    add_snapshot(folder, "0002", 20)
    add_snapshot(folder, "0001", 10)
    add_snapshot(folder, "0003", 30)
    (folder / "snapshots" / "0003" / "done.json").write_text('{"t_ns": 3')
    (folder / "snapshots" / "0004").mkdir()
    assert [each.path.name for each in session.snapshots()] == ["0001", "0002"]
    assert session.unfinished_bytes() is None
    (folder / "snapshots" / "0004" / "address.npy").write_bytes(b"x" * 7)
    assert session.unfinished_bytes() == 7
    assert sessions.check(session) == ["The snapshot 30/0003 is not complete and not used.",
                                       "The snapshot 30/0004 is not complete and not used."]


def test_a_process_is_complete_after_its_exit_running_while_alive_and_died_otherwise(tmp_path: Path) -> None:
    session = made(tmp_path)
    add_process(session, os.getpid(), started_ns=1)
    (add_process(session, ended_pid()) / "exit.json").write_text("{}")
    add_process(session, ended_pid())
    assert {each.status for each in session.processes()} == {"running", "complete", "died"}
    assert [each.status for each in session.processes() if each.pid == os.getpid()] == ["running"]


def test_a_pid_that_was_used_again_is_not_the_process_of_the_session(tmp_path: Path) -> None:
    session = made(tmp_path)
    session.write_info(started_monotonic_ns=-3600 * 10**9)  # an hour before this machine was up
    add_process(session, os.getpid())
    assert session.processes()[0].status == "died"


def test_nothing_of_an_earlier_boot_is_running(tmp_path: Path) -> None:
    session = made(tmp_path)
    add_process(session, os.getpid(), started_ns=1)
    session.write_info(host={**session.info["host"], "boot_id": "another"}, pid=os.getpid())
    assert session.processes()[0].status == "died"
    assert session.state == "died"


def test_a_session_whose_leakscope_was_killed_ends_with_its_processes(tmp_path: Path) -> None:
    session = made(tmp_path)
    session.write_info(pid=ended_pid())
    add_process(session, os.getpid(), started_ns=1)
    assert session.state == "running"
    (session.path / str(os.getpid()) / "exit.json").write_text("{}")
    assert session.state == "died"


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SessionError, match="cannot be written: Not a directory"):
        sessions.create(tmp_path / "file" / "session", [], {})


@pytest.mark.parametrize("name", ["session.json", "session", "report.json", "report.md", "report.html"])
def test_a_folder_with_a_session_or_a_report_is_taken(tmp_path: Path, name: str) -> None:
    assert sessions.is_taken(tmp_path) is None
    (tmp_path / name).write_text("")
    assert sessions.is_taken(tmp_path) == name


def test_a_value_that_is_no_number_is_not_measured(tmp_path: Path) -> None:
    process = add_process(made(tmp_path), ended_pid())
    rows = ['{"t_ns": 5, "rss_bytes": null, "pss_bytes": 7, "threads": "x"}', '{"rss_bytes": 1}', ""]
    (process / "timeline.jsonl").write_text("\n".join(rows))
    assert sessions.open(tmp_path).timeline() == [{"t_ns": 5, "pss_bytes": 7}]


def test_a_field_of_the_wrong_kind_is_damage_and_no_error_of_ours(tmp_path: Path) -> None:
    made(tmp_path).write_info(host=[])
    with pytest.raises(SessionError, match="its host is not what it should be"):
        sessions.open(tmp_path)


@pytest.mark.parametrize("broken", [
    {"index": None}, {"index": "x"}, {"index": 1e300}, {"used_bytes": -1}, {"used_bytes": "x"}, {"processes": 1},
    {"processes": [[1]]}, {"processes": [[None, 5]]}, {"processes": [[1, "x"]]}, {"names": {"x": "python"}}, {"names": 3},
    ], ids=str)
def test_a_device_of_the_driver_that_is_damaged_is_left_out_and_the_others_stay(tmp_path: Path, broken: dict[str, Any]) -> None:
    session = made(tmp_path)
    whole = {"index": 0, "used_bytes": 5, "processes": [[1, 3], [2, None]], "names": {"1": "python"}}
    for t_ns, found in ((1, [whole]), (2, [{**whole, **broken}, whole]), (3, 4)):
        session.add_device_use({"t_ns": t_ns, "devices": found})
    assert session.device_use() == [{"t_ns": 1, "devices": [whole]}, {"t_ns": 2, "devices": [whole]}]
