"""A session: the directory of evidence that one run leaves. Readable at any time, while it is written and after SIGKILL.

Only this module and the agent touch the files of a session; what is in them is written down in `agent/format.py`.
"""

from __future__ import annotations

import json
import os
import platform
import secrets
import shutil
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import leakscope
from leakscope.agent import format as layout
from leakscope.errors import SessionError

Json = dict[str, Any]

# A process is started before its agent comes up; a pid that was started later than this after it has been used again.
_START_SLACK_S = 1.0


@dataclass(frozen=True)
class SnapshotFolder:
    """One complete snapshot: `path` holds the columns, `done` is its done.json."""

    path: Path
    done: Json

    @property
    def t_ns(self) -> int:
        """When it was taken, nanoseconds since the start of the session."""
        return int(self.done.get("t_ns", 0))

    @property
    def raw_bytes(self) -> int:
        """The size of its files while its columns are as the agent wrote them; 0 once they are packed, or gone."""
        if (self.path / layout.PACK_FILE).exists():
            return 0
        try:
            return sum(each.stat().st_size for each in os.scandir(self.path))
        except OSError:
            return 0  # the agent has let go of it


@dataclass(frozen=True)
class SessionProcess:
    """One process that an agent reported from; `info` is its process.json."""

    folder: Path
    info: Json
    session: Session

    @property
    def pid(self) -> int:
        """The process number."""
        return int(self.info["pid"])

    @property
    def parent(self) -> int | None:
        """The process number of its parent, if known."""
        parent = self.info.get("parent")
        return parent if isinstance(parent, int) else None

    @property
    def role(self) -> str:
        """How it came to be: main, fork, spawn or exec."""
        return str(self.info.get("role", "main"))

    @property
    def python(self) -> str:
        """The version of its interpreter."""
        return str(self.info.get("python", ""))

    @property
    def status(self) -> str:
        """`complete` after a normal exit of the interpreter, `running`, or `died`."""
        if (self.folder / layout.EXIT_FILE).exists():
            return "complete"
        return "running" if self._is_alive() else "died"

    def timeline(self) -> list[Json]:
        """Return the samples in the order they were taken; a line that is not complete is left out."""
        rows = _read_lines(self.folder / layout.TIMELINE_FILE)
        numbers = [{name: value for name, value in row.items() if isinstance(value, (int, float))} for row in rows]
        return [row for row in numbers if "t_ns" in row]

    def recent(self) -> list[Json]:
        """Return the last complete samples, oldest first, without reading the whole timeline."""
        try:
            with (self.folder / layout.TIMELINE_FILE).open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - 8192))  # a sample is about 1 KiB
                tail = file.read()
        except OSError:
            return []
        return [row for line in tail.split(b"\n")[:-1] if (row := _object(line)) is not None]

    def latest(self) -> Json | None:
        """Return the newest complete sample without reading the whole timeline, or None if there is none yet."""
        return next(reversed(self.recent()), None)

    def notes(self) -> list[Json]:
        """Return what the agent could not do and why: {"t_ns", "note"}."""
        return _read_lines(self.folder / layout.NOTES_FILE)

    def snapshots(self) -> list[SnapshotFolder]:
        """Return the complete snapshots in time order; one without a readable done.json does not exist."""
        found = []
        for done_file in (self.folder / layout.SNAPSHOT_FOLDER).glob(f"*/{layout.DONE_FILE}"):
            done = _read_json(done_file)
            if done is not None:
                found.append(SnapshotFolder(done_file.parent, done))
        return sorted(found, key=lambda each: (each.t_ns, each.path.name))

    def _is_alive(self) -> bool:
        boot_id = self.session.info.get("host", {}).get("boot_id")
        if boot_id and boot_id != _boot_id():
            return False
        # Only a process that had started when the agent came up is this one; a later start means the pid was used again.
        agent_start_s = (self.info.get("started_ns", 0) + self.session.info.get("started_monotonic_ns", 0)) / 1e9
        started_s = _start_of_process(self.pid)
        return started_s is not None and started_s <= agent_start_s + _START_SLACK_S


class Session:
    """A directory of evidence. Make one with `create` or `open`."""

    def __init__(self, path: Path, info: Json) -> None:
        self.path = path
        self.info = info

    @property
    def boot_folder(self) -> Path:
        """Where the agent is staged; the only folder that the target gets on its PYTHONPATH."""
        return self.path / layout.BOOT_FOLDER

    @property
    def state(self) -> str:
        """`running`, `complete` or `died`; also right when leakscope was killed before it could write it down."""
        state = str(self.info.get("state", "running"))
        if state != "running" or any(process.status == "running" for process in self.processes()):
            return state
        return "running" if self._command_is_alive() else "died"

    def processes(self) -> list[SessionProcess]:
        """Return the observed processes, the main one first, then in the order they came up."""
        found = []
        for file in self.path.glob(f"*/{layout.PROCESS_FILE}"):
            info = _read_json(file)
            if info is not None and isinstance(info.get("pid"), int):
                found.append(SessionProcess(file.parent, info, self))
        return sorted(found, key=lambda each: (each.role != "main", each.info.get("started_ns", 0), each.folder.name))

    def main(self) -> SessionProcess | None:
        """Return the process that the command became, or None if no agent reported in."""
        processes = self.processes()
        started = [each for each in processes if each.pid == self.info.get("pid")]
        return next(iter(started or processes), None)

    def reported(self) -> set[int]:
        """Return the pids from which an agent has reported, also those that have ended."""
        try:
            with os.scandir(self.path) as entries:
                return {int(stem) for each in entries if (stem := each.name.split(".")[0]).isdecimal()}
        except OSError:  # somebody removed the folder; the command goes on
            return set()

    def timeline(self) -> list[Json]:
        """Return the samples of the main process, oldest first."""
        main = self.main()
        return main.timeline() if main else []

    def snapshots(self) -> list[SnapshotFolder]:
        """Return the complete snapshots of the main process, oldest first."""
        main = self.main()
        return main.snapshots() if main else []

    def unfinished_bytes(self) -> int | None:
        """Return the bytes of all snapshots that are being written, or were given up; None: there are none."""
        folders = [each for each in self.path.glob(f"*/{layout.SNAPSHOT_FOLDER}/*") if not (each / layout.DONE_FILE).exists()]
        sizes = [each.stat().st_size for folder in folders for each in folder.glob("*")]
        return sum(sizes) if sizes else None

    def write_info(self, **changes: Any) -> None:
        """Change fields of session.json; the file is replaced whole, so that a reader never sees half of it."""
        self.info = {**self.info, **changes}
        _write_json(self.path / layout.SESSION_FILE, self.info)

    def write_options(self, options: Json) -> None:
        """Write what the agent is to do to the staged boot/options.json."""
        _write_json(self.boot_folder / layout.OPTIONS_FILE, options)

    def add_device_use(self, row: Json) -> None:
        """Add a row to nvml.jsonl: {"t_ns", "devices"}; raises OSError where the disk is full or the folder gone."""
        line = json.dumps(row, separators=(",", ":")).encode() + b"\n"
        file = os.open(self.path / layout.NVML_FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            os.write(file, line)
        finally:
            os.close(file)

    def device_use(self) -> list[Json]:
        """Return what the driver said of the devices, oldest first; a line or a device that is not complete is left out."""
        rows = [row for row in _read_lines(self.path / layout.NVML_FILE) if isinstance(row.get("devices"), list)]
        return [{**row, "devices": [each for each in row["devices"] if _is_device(each)]} for row in rows
                if _is_count(row.get("t_ns"))]

    def add_gap(self, claim: str, missing: str, command: str) -> None:
        """Write down a claim that cannot be made, what is missing for it, and the command that closes the gap."""
        gap = {"claim": claim, "missing": missing, "command": command}
        if gap not in self.info.get("gaps", []):
            self.write_info(gaps=[*self.info.get("gaps", []), gap])

    def discard(self) -> None:
        """Remove a session whose command never started."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _command_is_alive(self) -> bool:
        pid = self.info.get("pid")
        if not isinstance(pid, int) or self.info.get("host", {}).get("boot_id") != _boot_id():
            return False
        started_s = _start_of_process(pid)
        session_started_s = self.info.get("started_monotonic_ns", 0) / 1e9
        return started_s is not None and abs(started_s - session_started_s) < 60  # it is started within seconds


def create(path: Path, command: list[str], options: Json, label: str = "") -> Session:
    """Make the directory of a new session and its session.json.

    Args:
        path: the folder to make; its parents are made too.
        command: the command as it may be shown, values masked.
        options: what was asked of the agent; the session's own path and clock are added.
        label: what the person calls this run.

    Raises:
        SessionError: the folder cannot be made or written.
    """
    session = Session(path.absolute(), {})
    started_ns = time.monotonic_ns()
    options = {**options, "session": str(session.path), "started_monotonic_ns": started_ns}
    try:
        path.mkdir(parents=True, exist_ok=True)
        session.write_info(
            format=layout.FORMAT, tool_version=leakscope.__version__, id=secrets.token_hex(6), pid=None,
            command=command, started=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            started_monotonic_ns=started_ns, state="running", duration_s=None, exit_code=None, signal=None,
            label=label, options=options, host=_host(), gaps=[],
        )
    except OSError as error:
        raise SessionError(f"The session folder '{path}' cannot be written: {error.strerror}.",
                           "leakscope run -o DIR -- COMMAND, with a DIR that you may write to") from error
    return session


def open(path: str | Path) -> Session:
    """Open the session at `path`: its folder, the report folder that holds it, or a file directly in one of them.

    Raises:
        SessionError: there is no such folder, it is no session, it is damaged, or its format is newer than this version.
    """
    folder = _find_folder(Path(path))
    file = folder / layout.SESSION_FILE
    try:
        text = file.read_text("utf-8")
        info = json.loads(text)
    except OSError as error:
        raise SessionError(f"The session '{folder}' cannot be read: {error.strerror}.", f"ls -l {file}") from error
    except ValueError as error:  # JSON and UTF-8 errors both are
        raise SessionError(f"The file '{file}' is damaged: {_what_broke(error)}.",
                           "record again: leakscope run -- COMMAND") from error
    written = info.get("format") if isinstance(info, dict) else None
    if not isinstance(written, int):
        raise SessionError(f"The file '{file}' does not say of which format the session is.",
                           "record again: leakscope run -- COMMAND")
    wrong = [name for name, kind in (("host", dict), ("options", dict), ("command", list), ("gaps", list))
             if not isinstance(info.get(name, kind()), kind)]
    if wrong:
        raise SessionError(f"The file '{file}' is damaged: its {wrong[0]} is not what it should be.",
                           "record again: leakscope run -- COMMAND")
    if written > layout.FORMAT:
        raise SessionError(f"The session '{folder}' is of format {written}, this leakscope reads up to {layout.FORMAT}.",
                           "pip install -U leakscope-forensics")
    return Session(folder.absolute(), info)


def is_taken(folder: Path) -> str | None:
    """Return the name of the session or report that `folder` already holds, or None."""
    for name in (layout.SESSION_FILE, "session", "report.json", "report.html", "report.md"):
        if os.path.lexists(folder / name):
            return name
    return None


def check(session: Session) -> list[str]:
    """Return what is damaged or incomplete in a session, one whole sentence each; nothing of it stops the reading."""
    found = []
    for folder in sorted({file.parent for file in session.path.glob(f"*/{layout.TIMELINE_FILE}")}):
        if _read_json(folder / layout.PROCESS_FILE) is None:
            found.append(f"The process {folder.name} left no readable {layout.PROCESS_FILE}; its samples are not used.")
    broken = _broken_lines(session.path / layout.NVML_FILE)
    if broken:
        found.append(f"{broken} line{'s' * (broken > 1)} of {layout.NVML_FILE} cannot be read.")
    for process in session.processes():
        for name in (layout.TIMELINE_FILE, layout.NOTES_FILE):
            broken = _broken_lines(process.folder / name)
            if broken:
                found.append(f"{broken} line{'s' * (broken > 1)} of {process.folder.name}/{name} cannot be read.")
        for snapshot in sorted((process.folder / layout.SNAPSHOT_FOLDER).glob("*")):
            if snapshot.is_dir() and _read_json(snapshot / layout.DONE_FILE) is None:
                found.append(f"The snapshot {process.folder.name}/{snapshot.name} is not complete and not used.")
    return found


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _is_device(value: Any) -> bool:
    """True for a device of a line of nvml.jsonl (agent/format.py) whose numbers are such."""
    if not isinstance(value, dict) or not _is_count(value.get("index")):
        return False
    used, users, names = value.get("used_bytes"), value.get("processes") or [], value.get("names") or {}
    return (used is None or _is_count(used)) and isinstance(names, dict) and all(map(str.isdecimal, names)) and isinstance(
        users, list) and all(isinstance(user, list) and len(user) == 2 and _is_count(user[0])
                             and (user[1] is None or _is_count(user[1])) for user in users)


def _find_folder(path: Path) -> Path:
    """Return the folder that holds session.json for what a person typed."""
    folder = path.parent if path.is_file() else path
    for candidate in (folder, folder / "session"):
        if (candidate / layout.SESSION_FILE).is_file():
            return candidate
    if not folder.is_dir():
        raise SessionError(f"There is no folder '{path}'.", _nearby_hint(folder.parent))
    try:
        os.listdir(folder)
    except OSError as error:
        raise SessionError(f"The folder '{path}' cannot be read: {error.strerror}.", f"ls -ld {path}") from error
    raise SessionError(f"The folder '{path}' is no session: it holds no {layout.SESSION_FILE}.", _nearby_hint(folder))


def _nearby_hint(folder: Path) -> str:
    """Return which sessions there are in `folder`, or how to make one."""
    found = sorted((file.parent for pattern in (f"*/{layout.SESSION_FILE}", f"*/session/{layout.SESSION_FILE}")
                    for file in folder.glob(pattern)), key=lambda each: each.stat().st_mtime)
    return f"the newest session here: {found[-1]}" if found else "make one: leakscope run -- COMMAND"


def _what_broke(error: ValueError) -> str:
    if isinstance(error, json.JSONDecodeError):
        if error.pos >= len(error.doc.rstrip()) or "Unterminated" in error.msg:
            return "it ends in the middle"
        return f"line {error.lineno}, column {error.colno} is not JSON"
    return "it is not text"


def _read_json(file: Path) -> Json | None:
    """Return the object in `file`, or None if it is missing, not complete or no object."""
    try:
        return _object(file.read_bytes())
    except OSError:
        return None


def _object(text: bytes) -> Json | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _read_lines(file: Path) -> list[Json]:
    """Return the objects in the complete lines of `file`; none if there is no such file."""
    return [row for line in _complete_lines(file) if (row := _object(line)) is not None]


def _broken_lines(file: Path) -> int:
    return len(_complete_lines(file)) - len(_read_lines(file))


def _complete_lines(file: Path) -> list[bytes]:
    try:
        content = file.read_bytes()
    except OSError:
        return []
    return [line for line in content.split(b"\n")[:-1] if line.strip()]


def _write_json(file: Path, value: Json) -> None:
    """Replace `file` in one step: a reader, or a kill in between, sees the old content or the new."""
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        draft.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n", "utf-8")
        os.replace(draft, file)
    except OSError:
        draft.unlink(missing_ok=True)
        raise


def _host() -> Json:
    return {
        "platform": platform.platform(terse=True), "cpu_count": os.cpu_count(), "memory_bytes": memory_bytes(),
        "boot_id": _boot_id(),
    }


def memory_bytes() -> int | None:
    """Return the physical memory of this machine, or None where it cannot be told."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _boot_id() -> str | None:
    """Return the kernel's name for this boot; a pid of another boot is dead. None where there is no such name."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return None


def _start_of_process(pid: int) -> float | None:
    """Return when a live process was started, in seconds of CLOCK_MONOTONIC; None if there is none or only a zombie.

    Field 22 of /proc/PID/stat counts clock ticks of CLOCK_BOOTTIME (proc(5)). Where there is no /proc, a process that
    exists counts as old: 0.0.
    """
    if not os.path.isdir("/proc/self"):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return None
        except PermissionError:
            pass
        return 0.0
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return None
    fields = stat[stat.rindex(")") + 2:].split()  # the name may hold spaces and brackets
    if fields[0] in "ZX":
        return None
    ticks = int(fields[19])
    if sys.platform == "linux":
        asleep_s = time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)
    else:
        asleep_s = 0.0
    return ticks / os.sysconf("SC_CLK_TCK") - asleep_s
