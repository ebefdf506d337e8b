"""Reads what the driver says of the devices, about once a second, from when an observed process uses one.

In a thread of its own: the first connection to a driver may take seconds, and a device that fell off its bus never answers.
What it reads goes into nvml.jsonl. session.json is written by the main thread alone, in `look` and `end`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from leakscope.commands import _nvml
from leakscope.commands._absence import tree
from leakscope.session import Session, SessionProcess

Json = dict[str, Any]

CLAIM = "memory on the device outside PyTorch's allocator, and what other processes use of it"

_EVERY_S, _EARLY_S, _EARLY_FOR_S = 1.0, 0.25, 30.0  # as the timeline: a short program is seen closely
_LATER = 3600  # after an hour the spacing is this part of the time so far: a run of any length stays a few MiB
_BUDGET = 100  # reading takes at most one part in so many of a core's time, as a gauge of the agent
_MOST_FAILURES = 5  # in a row, then it is given up
_END_S = 0.5  # how long the last answer of a driver is waited for
_SLOW_S, _SLOWEST_S = 2.0, 60.0  # between two looks for a process that uses a device without telling
_MOST_FILES = 4096  # descriptors of a process that are looked at
_OTHER_FILES = ("/dev/kfd",)  # of AMD's devices, which NVML does not know
_COLUMN = re.compile(r"cuda\d+_")
_VISIBLE = re.compile(r"(?:(?:\d{1,4}|(?:GPU|MIG)-[0-9A-Fa-f/-]{1,80}|-1|NoDevFiles)?(?:, *|$))*")


class Reader(Protocol):
    """Whoever says what devices are used for."""

    driver: str | None
    version: str | None

    def row(self) -> Json | None:
        """Return {"devices": ...} of now, or None."""

    def close(self) -> None:
        """Let go."""


class Recorded:
    """Reads DIR/nvml.json, which the program under test writes, in place of a driver's answers."""

    driver: str | None = None
    version: str | None = "recorded"

    def __init__(self, folder: Path) -> None:
        self._file = folder / "nvml.json"

    def row(self) -> Json | None:
        """Return what is in the file; None where there is none, or no whole one."""
        try:
            found = json.loads(self._file.read_bytes())
        except (OSError, ValueError):
            return None
        devices = found.get("devices") if isinstance(found, dict) else None
        return {"devices": devices} if isinstance(devices, list) else None

    def close(self) -> None:
        """There is nothing to let go of."""


class DeviceWatch:
    """Called by Watch again and again; `pid` is the command's."""

    def __init__(self, session: Session, pid: int, connect: Callable[[], Reader | str] | None = None) -> None:
        self.session, self._pid = session, pid
        mode = str(session.info["options"].get("gpu") or "auto")
        folder = mode.partition(":")[2] if mode.startswith("recorded:") else None
        self._is_recorded, self._is_off = folder is not None, mode == "off"
        self._connect = connect or ((lambda: Recorded(Path(folder))) if folder is not None else _nvml.connect)
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._about: Json | None = None  # what the thread has found out, for session.json
        self._why_not = ""
        self._has_columns = self._has_rows = False
        self._slow_next_s, self._slow_step_s = 0.0, _SLOW_S
        self._known: dict[int, Json] = {}

    def look(self, elapsed_s: float) -> None:
        """Begin to read once a process uses a device; write down what is known of the devices. Short, and raises nothing."""
        if self._is_off or self._stop.is_set():
            return
        with contextlib.suppress(OSError):  # a folder that went, a full disk
            processes = self.session.processes()
            if self._thread is None and self._is_wanted(processes, elapsed_s):
                self._thread = threading.Thread(target=self._read, name="devices", daemon=True)
                self._thread.start()
            if self._thread is not None:
                self._write_down(processes)

    def end(self) -> None:
        """Stop reading, and say in the session what could not be read."""
        self._stop.set()
        if self._thread is None:
            return
        self._thread.join(_END_S)
        if self._thread.is_alive() and not self._is_recorded:
            self._why_not = self._why_not or "the NVIDIA driver did not answer"
        with contextlib.suppress(OSError):
            self._write_down(self.session.processes())
            # of a device that PyTorch counts, the report says itself that NVML was not read
            if self._why_not and (self._has_rows or not self._has_columns):
                self.session.add_gap(CLAIM, f"NVML could not be read: {self._why_not}.", _nvml.command_for(self._why_not))

    def _is_wanted(self, processes: list[SessionProcess], elapsed_s: float) -> bool:
        if self._is_recorded:
            return bool(processes)
        self._has_columns = any(_COLUMN.match(name) for each in processes for row in each.recent() for name in row)
        if self._has_columns or elapsed_s < self._slow_next_s:
            return self._has_columns
        self._slow_step_s = min(_SLOWEST_S, 2 * self._slow_step_s)
        self._slow_next_s = elapsed_s + self._slow_step_s
        return _nvml.is_device_here() and any(_has_open(each.pid) for each in processes if each.status == "running")

    def _write_down(self, processes: list[SessionProcess]) -> None:
        if self._about is None:  # the driver has not answered yet
            if self._stop.is_set():
                self._about = {"driver": None, "nvml": self._why_not or "the program ended before the driver answered"}
            else:
                return
        new = [each for each in processes if each.pid not in self._known]
        if new:
            self._known |= _of_processes(new, self._pid, self.session.boot_folder)
        found = {"processes": about} if (about := {str(pid): each for pid, each in self._known.items() if each}) else {}
        gpu = {**self._about, **found}
        if gpu != self.session.info.get("gpu"):
            self.session.write_info(gpu=gpu)

    # --- the thread ----------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are the main thread's, which hands them on
        reader = self._connect()
        if isinstance(reader, str):
            self._why_not = _amd() or reader
            self._about = {"driver": None, "nvml": self._why_not}
            return
        self._about = {"driver": reader.driver, "nvml": reader.version}
        self._read_on(reader)
        reader.close()

    def _read_on(self, reader: Reader) -> None:
        begun_s, failures = time.monotonic(), 0
        while failures < _MOST_FAILURES:
            before_ns = time.monotonic_ns()
            row = reader.row()
            cost_s = (time.monotonic_ns() - before_ns) / 1e9
            if self._stop.is_set():
                return
            if row is None:
                failures += not self._is_recorded  # a program that records may not have begun to
            else:
                failures = 0
                with contextlib.suppress(OSError):  # a full disk may have room again; a row is lost
                    t_ns = before_ns - int(self.session.info["started_monotonic_ns"])
                    self.session.add_device_use({"t_ns": t_ns, **row})
                    self._has_rows = True
            since_s = time.monotonic() - begun_s
            spacing_s = _EARLY_S if since_s < _EARLY_FOR_S else max(_EVERY_S, since_s / _LATER)
            if self._stop.wait(max(spacing_s, _BUDGET * cost_s)):
                return
        self._why_not = "no device answers any more"


def _of_processes(processes: list[SessionProcess], root: int, boot: Path) -> dict[int, Json]:
    """Return, by the pid that each process has for itself, its numbers in the namespaces around it and the devices it may see.

    Both are in /proc: NSpid has the numbers from the outermost namespace that is visible from here to its own (proc(5)).
    """
    found: dict[int, Json] = {each.pid: {} for each in processes}
    for seen in tree(root, boot):
        numbers = _numbers(seen.pid)
        own = numbers[-1] if numbers else seen.pid
        if own not in found:
            continue
        if len(numbers) > 1:
            found[own]["nspid"] = numbers[:-1]
        visible = _visible(seen.pid)
        if visible is not None:
            found[own]["visible"] = visible
    return found


def _numbers(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/status").read_text("utf-8", "replace")
    except OSError:
        return []
    return next(([int(word) for word in line.split()[1:]] for line in text.splitlines() if line.startswith("NSpid:")), [])


def _visible(pid: int) -> str | None:
    """Return CUDA_VISIBLE_DEVICES as the process was started with it; None where it is absent or names no devices."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    value = next((each.partition(b"=")[2].decode("ascii", "replace") for each in environment
                  if each.startswith(b"CUDA_VISIBLE_DEVICES=")), None)
    return value if value is not None and len(value) <= 1024 and _VISIBLE.fullmatch(value) else None


def _has_open(pid: int) -> bool:
    """True if a process has the driver's file open, as whoever uses a device has. To read its mappings would hold it up."""
    with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as entries:
        for number, entry in enumerate(entries):
            if number >= _MOST_FILES:
                return False
            with contextlib.suppress(OSError):
                if os.readlink(entry.path) in _nvml.DEVICE_FILES:
                    return True
    return False


def _amd() -> str:
    """Return why NVML says nothing where the devices are AMD's."""
    is_amd = any(map(os.path.exists, _OTHER_FILES)) and not _nvml.is_device_here()
    return "the device is AMD's, and only NVIDIA's driver is asked in this version" if is_amd else ""
