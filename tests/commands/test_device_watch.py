"""The driver is asked only once a process uses a device, and whatever it answers the target goes on (simulated drivers)."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from leakscope import session as sessions
from leakscope.commands import _device_watch, _nvml
from leakscope.commands._device_watch import DeviceWatch
from tests.test_session import add_process, made

GIB = 1 << 30
DEVICE = {"index": 0, "uuid": "GPU-1", "used_bytes": 5 * GIB, "total_bytes": 80 * GIB, "processes": [[7, GIB]]}


class Answers:
    """A driver that gives one answer after the other, then the last one again and again."""

    driver, version = "580.1", "13.580.1"

    def __init__(self, *rows: dict[str, Any] | None) -> None:
        self.rows, self.is_closed = list(rows), False

    def row(self) -> dict[str, Any] | None:
        return self.rows.pop(0) if len(self.rows) > 1 else self.rows[0]

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A watch that reads at once and again; no device of this machine is seen."""
    monkeypatch.setattr(_device_watch, "_EARLY_S", 0.001)
    monkeypatch.setattr(_device_watch, "_BUDGET", 0)
    monkeypatch.setattr(_nvml, "DEVICE_FILES", (str(tmp_path / "no-device"),))
    monkeypatch.setattr(_device_watch, "_OTHER_FILES", ())


def session_with(folder: Path, *columns: str, gpu: str = "auto") -> sessions.Session:
    session = sessions.create(folder / "session", ["python", "x.py"], {"sites": "off", "gpu": gpu})
    process = add_process(session, os.getpid())
    (process / "timeline.jsonl").write_text(json.dumps({"t_ns": 1, **dict.fromkeys(columns, 1)}) + "\n" + '{"t_ns": 2}\n')
    return session


def until(is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def watched(session: sessions.Session, connect: Callable[[], Any]) -> DeviceWatch:
    return DeviceWatch(session, os.getpid(), connect)


def test_a_process_that_uses_a_device_has_the_driver_asked(tmp_path: Path) -> None:
    session, driver = session_with(tmp_path, "cuda0_reserved_bytes"), Answers({"devices": [DEVICE]})
    watch = watched(session, lambda: driver)
    watch.look(0.0)
    until(lambda: len(session.device_use()) > 2)
    watch.end()
    assert driver.is_closed
    first = sessions.open(tmp_path).device_use()[0]
    assert first == {"t_ns": first["t_ns"], "devices": [DEVICE]} and first["t_ns"] > 0
    gpu = sessions.open(tmp_path).info["gpu"]
    assert (gpu["driver"], gpu["nvml"], session.info["gaps"]) == ("580.1", "13.580.1", [])


@pytest.mark.parametrize("columns", [[], ["xpu0_reserved_bytes"], ["mps0_allocated_bytes"]])
def test_a_process_without_such_a_device_has_nobody_asked(tmp_path: Path, columns: list[str]) -> None:
    session, asked = session_with(tmp_path, *columns), []
    watch = watched(session, lambda: asked.append(1) or "no")
    watch.look(0.0)
    watch.end()
    assert not asked and "gpu" not in session.info and not session.info["gaps"]


def test_switched_off_nobody_is_asked(tmp_path: Path) -> None:
    session, asked = session_with(tmp_path, "cuda0_reserved_bytes", gpu="off"), []
    watch = watched(session, lambda: asked.append(1) or "no")
    watch.look(0.0)
    watch.end()
    assert not asked


def test_a_program_that_opened_the_drivers_file_uses_a_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "nvidiactl"
    file.write_text("")
    monkeypatch.setattr(_nvml, "DEVICE_FILES", (str(file),))
    session = session_with(tmp_path)
    watch = watched(session, lambda: Answers({"devices": [DEVICE]}))
    watch.look(0.0)
    watch.look(0.5)
    assert "gpu" not in session.info and not session.device_use()
    with file.open():
        watch.look(60.0)
        until(session.device_use)
    watch.end()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that uses a device without PyTorch."""
    monkeypatch.setattr(_nvml, "is_device_here", lambda: True)
    monkeypatch.setattr(_device_watch, "_has_open", lambda pid: True)


def test_why_nobody_could_be_asked_is_a_gap_with_the_command(tmp_path: Path, opened: None) -> None:
    session = session_with(tmp_path)
    watch = watched(session, lambda: _nvml.NOT_INSTALLED)
    watch.look(0.0)
    watch.end()
    assert session.info["gpu"]["nvml"] == _nvml.NOT_INSTALLED
    assert session.info["gaps"] == [{
        "claim": "memory on the device outside PyTorch's allocator, and what other processes use of it",
        "missing": "NVML could not be read: nvidia-ml-py is not installed where leakscope runs.",
        "command": "pip install leakscope-forensics[gpu]"}]


def test_of_a_device_that_the_report_speaks_of_the_reason_is_left_to_it(tmp_path: Path) -> None:
    session = session_with(tmp_path, "cuda0_reserved_bytes")
    watch = watched(session, lambda: _nvml.NOT_INSTALLED)
    watch.look(0.0)
    watch.end()
    assert session.info["gpu"] == {"driver": None, "nvml": _nvml.NOT_INSTALLED} and session.info["gaps"] == []


def test_amds_devices_are_said_to_be_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_device_watch, "_OTHER_FILES", (str(tmp_path),))
    session = session_with(tmp_path, "cuda0_reserved_bytes")
    watch = watched(session, lambda: _nvml.NOT_INSTALLED)
    watch.look(0.0)
    watch.end()
    assert session.info["gpu"]["nvml"].startswith("the device is AMD's")


def test_a_driver_that_stops_answering_is_given_up_and_what_it_said_stays(tmp_path: Path) -> None:
    session = session_with(tmp_path, "cuda0_reserved_bytes")
    watch = watched(session, lambda: Answers({"devices": [DEVICE]}, None))
    watch.look(0.0)
    until(lambda: watch._why_not)
    watch.end()
    assert len(session.device_use()) == 1
    assert session.info["gaps"][0]["missing"] == "NVML could not be read: no device answers any more."


def test_a_driver_that_hangs_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_device_watch, "_END_S", 0.0)
    session, release = session_with(tmp_path, "cuda0_reserved_bytes"), threading.Event()
    watch = watched(session, lambda: release.wait(10) and "late")
    watch.look(0.0)
    watch.end()
    release.set()
    assert session.info["gpu"] == {"driver": None, "nvml": "the NVIDIA driver did not answer"}


def test_a_full_disk_costs_rows_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session, failures = session_with(tmp_path, "cuda0_reserved_bytes"), [1, 2, 3]
    write = session.add_device_use

    def full(row: dict[str, Any]) -> None:
        if failures:
            failures.pop()
            raise OSError(28, "No space left on device")
        write(row)

    monkeypatch.setattr(session, "add_device_use", full)
    watch = watched(session, lambda: Answers({"devices": [DEVICE]}))
    watch.look(0.0)
    until(session.device_use)
    watch.end()
    assert not failures and not session.info["gaps"]


def test_a_line_that_is_cut_off_is_left_out_and_said_to_be(tmp_path: Path) -> None:
    session = made(tmp_path)
    session.add_device_use({"t_ns": 5, "devices": [DEVICE]})
    with (session.path / "nvml.jsonl").open("a") as file:
        file.write('{"t_ns": 6, "dev\n{"t_ns": 7}\n[1]\n{"t_ns": 8, "devi')
    assert [row["t_ns"] for row in session.device_use()] == [5]
    assert "2 lines of nvml.jsonl cannot be read." in sessions.check(session)


def test_a_recording_is_read_in_the_drivers_place(tmp_path: Path) -> None:
    session = session_with(tmp_path, gpu=f"recorded:{tmp_path}")
    watch = DeviceWatch(session, os.getpid())
    watch.look(0.0)  # there is no file yet, then half a one
    (tmp_path / "nvml.json").write_text('{"devices": [')
    (tmp_path / "nvml.json").write_text(json.dumps({"devices": [DEVICE]}))
    until(session.device_use)
    watch.end()
    assert session.info["gpu"] == {"driver": None, "nvml": "recorded"} and not session.info["gaps"]


@pytest.mark.parametrize(("value", "is_kept"), [
    ("0", True), ("1,0", True), ("GPU-8b5c2f1e-1234,MIG-77/1/0", True), ("", True), ("-1", True), ("hunter2", False),
    ("0,password=x", False),
])
def test_what_a_process_may_see_is_kept_only_where_it_names_devices(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, is_kept: bool) -> None:
    environ = tmp_path / "environ"
    environ.write_bytes(b"A=b\0CUDA_VISIBLE_DEVICES=" + value.encode() + b"\0C=d\0")
    monkeypatch.setattr(_device_watch, "Path", lambda _name: environ)
    assert _device_watch._visible(1) == (value if is_kept else None)


def test_the_numbers_of_a_process_in_the_namespaces_around_it_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    session = session_with(tmp_path)
    monkeypatch.setattr(_device_watch, "_numbers", lambda pid: [40_000, os.getpid()])
    monkeypatch.setattr(_device_watch, "_visible", lambda pid: "1")
    found = _device_watch._of_processes(session.processes(), os.getpid(), session.boot_folder)
    assert found == {os.getpid(): {"nspid": [40_000], "visible": "1"}}
