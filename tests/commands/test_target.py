"""The observed command notices nothing: signals arrive once, the terminal and its job control work, nobody dies with us."""

from __future__ import annotations

import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.commands.runs import DEADLINE_S, ENVIRONMENT, LEAKSCOPE, line, observe, opened, until

# Says when it is ready, counts what it gets, ends on SIGTERM with the counts as its output.
COUNTER = """
import os, signal, sys, time
counts = {}
def say(text):
    os.write(1, text.encode() + b"\\n")  # a handler may not print while another print is at its flush
def count(number, frame):
    name = signal.Signals(number).name
    counts[name] = counts.get(name, 0) + 1
    say(f"got {name}")
for name in ("SIGINT", "SIGUSR1", "SIGHUP", "SIGQUIT", "SIGTERM", "SIGWINCH"):
    signal.signal(getattr(signal, name), count)
say("ready")
while "SIGTERM" not in counts:
    time.sleep(0.01)
time.sleep(0.3)
say(str(sorted(counts.items())))
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGUSR1", "SIGHUP", "SIGQUIT"])
def test_a_signal_to_leakscope_alone_is_forwarded_once(start: Callable[..., subprocess.Popen[str]], name: str) -> None:
    process = start(sys.executable, "-c", COUNTER)
    assert line(process) == "ready"
    process.send_signal(getattr(signal, name))
    assert line(process) == f"got {name}"
    process.send_signal(signal.SIGTERM)
    assert line(process) == "got SIGTERM"
    assert line(process) == f"{sorted([(name, 1), ('SIGTERM', 1)])}"


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_to_the_whole_group_reaches_the_command_once(start: Callable[..., subprocess.Popen[str]], name: str) -> None:
    process = start(sys.executable, "-c", COUNTER)
    assert line(process) == "ready"
    os.killpg(process.pid, getattr(signal, name))
    assert line(process) == f"got {name}"
    if name != "SIGTERM":
        time.sleep(0.3)  # a second one would have come by now; the counts below say whether it did
        process.send_signal(signal.SIGTERM)
        assert line(process) == "got SIGTERM"
    assert line(process) == f"{sorted({(name, 1), ('SIGTERM', 1)})}"


def test_signals_ignored_before_leakscope_stay_ignored_and_others_do_not(tmp_path: Path) -> None:
    show = "import signal; print(*[int(signal.getsignal(n) == signal.SIG_IGN) for n in (1, 2, 3, 10)])"
    script = f"trap '' HUP USR1; exec {' '.join(LEAKSCOPE)} run -o out --quiet -- {sys.executable} -c '{show}'"
    done = subprocess.run(["/bin/sh", "-c", script], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True,
                          timeout=DEADLINE_S)
    assert done.stdout == "1 0 0 1\n"


def test_streams_that_are_closed_stay_closed_for_the_command(tmp_path: Path) -> None:
    (tmp_path / "show.py").write_text("""
import os
def is_open(number):
    try:
        return bool(os.fstat(number))
    except OSError:
        return False
with open("seen", "a") as file:
    file.write(f"{[is_open(number) for number in (0, 1, 2)]}\\n")
""")
    for start in ([], [*LEAKSCOPE, "run", "-o", "out", "--format", "json", "--"]):
        script = f"exec {shlex.join([*start, sys.executable, 'show.py'])} <&- >&- 2>&-"
        subprocess.run(["/bin/sh", "-c", script], cwd=tmp_path, env=ENVIRONMENT, timeout=DEADLINE_S, check=True)
    bare, observed = (tmp_path / "seen").read_text().splitlines()
    assert observed == bare


def test_leakscope_killed_with_9_leaves_the_command_running_and_a_readable_session(
        tmp_path: Path, start: Callable[..., subprocess.Popen[str]]) -> None:
    process = start(sys.executable, "-c", COUNTER)
    assert line(process) == "ready"
    pid = until(lambda: opened(tmp_path).info["pid"], "the pid in session.json")
    process.kill()
    assert process.wait(DEADLINE_S) == -9
    assert opened(tmp_path).state == "running"
    os.kill(pid, signal.SIGTERM)
    assert line(process) == "got SIGTERM"
    until(lambda: opened(tmp_path).state == "died", "the session to notice the end")


def _on_a_terminal(folder: Path, command: list[str], talk: Callable[[int, Callable[[str], None]], None]) -> tuple[int, str]:
    """Run a command on a terminal of its own; `talk` gets the terminal and a function that reads on until a text appears."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execve(command[0], command, {**ENVIRONMENT, "TERM": "xterm", "COLUMNS": "120", "LINES": "40", "PS1": "PROMPT "})
    seen, place = "", 0

    def read_until(text: str) -> None:
        nonlocal seen, place
        end = time.monotonic() + DEADLINE_S
        while text not in seen[place:]:
            assert time.monotonic() < end, f"no {text!r} in {seen[place:]!r} after {seen[:place]!r}"
            if select.select([terminal], [], [], 0.1)[0]:
                seen += os.read(terminal, 65536).decode()
        place = seen.index(text, place) + len(text)

    try:
        talk(terminal, read_until)
        while True:
            try:
                chunk = os.read(terminal, 65536)
            except OSError:  # Linux: EIO when the last process has left the terminal
                break
            if not chunk:
                break
            seen += chunk.decode()
    except BaseException:
        os.killpg(pid, signal.SIGKILL)
        raise
    finally:
        os.close(terminal)
        _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status), seen


def test_ctrl_c_on_a_terminal_reaches_the_command_once_and_leakscope_finishes(tmp_path: Path) -> None:
    def talk(terminal: int, read_until: Callable[[str], None]) -> None:
        read_until("ready")
        os.write(terminal, b"\x03")
        read_until("got SIGINT")
        pid = until(lambda: opened(tmp_path).info["pid"], "the pid in session.json")
        time.sleep(0.3)  # a second one would have come by now; the counts below say whether it did
        os.kill(pid, signal.SIGTERM)

    command = [*LEAKSCOPE, "run", "-o", "out", "--format", "json", "--quiet", "--", sys.executable, "-c", COUNTER]
    code, seen = _on_a_terminal(tmp_path, command, talk)
    assert code == 0
    assert "[('SIGINT', 1), ('SIGTERM', 1)]" in seen


def test_the_status_line_leaves_the_text_of_the_command_whole(tmp_path: Path) -> None:
    program = "import time\nfor n in range(4): print('line', n, flush=True); time.sleep(0.2)\nprint(input('name? '))"

    def talk(terminal: int, read_until: Callable[[str], None]) -> None:
        read_until("name? ")
        os.write(terminal, b"kim\n")

    command = [*LEAKSCOPE, "run", "-o", "out", "--format", "json", "--", sys.executable, "-c", program]
    code, seen = _on_a_terminal(tmp_path, command, talk)
    assert code == 0
    status = re.compile(r"\x1b7\x1b\[999C\x1b\[\d+D\x1b\[2m([^\x1b]*)\x1b\[0m\x1b8")
    assert any("leakscope" in each for each in status.findall(seen))
    assert status.sub("", seen).startswith("line 0\r\nline 1\r\nline 2\r\nline 3\r\nname? kim\r\nkim\r\n")


def test_there_is_no_status_line_when_stderr_is_no_terminal(tmp_path: Path) -> None:
    done = observe(tmp_path, sys.executable, "-c", "import time; time.sleep(0.3)")
    assert "\x1b" not in done.stderr


def test_ctrl_z_stops_both_and_fg_continues_both(tmp_path: Path) -> None:
    (tmp_path / "echo.py").write_text("print('it is', 'up', flush=True)\nprint('heard:', input(), flush=True)\n")

    def talk(terminal: int, read_until: Callable[[str], None]) -> None:
        command = [*LEAKSCOPE, "run", "-o", "out", "--format", "json", "--quiet", "--", sys.executable, "echo.py"]
        read_until("PROMPT ")
        os.write(terminal, f"{shlex.join(command)}\n".encode())
        read_until("it is up\r\n")
        os.write(terminal, b"\x1a")
        read_until("Stopped")
        read_until("PROMPT ")
        os.write(terminal, b"fg\n")
        read_until("echo.py\r\n")
        os.write(terminal, b"it goes on\n")
        read_until("heard: it goes on")
        read_until("PROMPT ")
        os.write(terminal, b"exit 0\n")

    code, _ = _on_a_terminal(tmp_path, ["/bin/bash", "--norc", "--noprofile", "--noediting", "-i"], talk)
    assert code == 0
