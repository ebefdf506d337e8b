"""`leakscope run` as a person, a shell and a supervisor meet it: real processes, compared with the bare run."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import leakscope
from leakscope import session as sessions

ROOT = Path(leakscope.__file__).parent.parent
LEAKSCOPE = [sys.executable, "-m", "leakscope"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
DEADLINE_S = 30.0

# Says when it is ready, counts what it gets, ends on SIGTERM with the counts as its output.
COUNTER = """
import signal, sys, time
counts = {}
def count(number, frame):
    name = signal.Signals(number).name
    counts[name] = counts.get(name, 0) + 1
    print("got", name, flush=True)
for name in ("SIGINT", "SIGUSR1", "SIGHUP", "SIGQUIT", "SIGTERM", "SIGWINCH"):
    signal.signal(getattr(signal, name), count)
print("ready", flush=True)
while "SIGTERM" not in counts:
    time.sleep(0.01)
time.sleep(0.3)
print(sorted(counts.items()), flush=True)
"""


def run(folder: Path, *arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run leakscope to its end."""
    return subprocess.run([*LEAKSCOPE, *arguments], cwd=folder, env=more.pop("env", ENVIRONMENT), text=True,
                          capture_output=True, timeout=DEADLINE_S, stdin=more.pop("stdin", subprocess.DEVNULL), **more)


def observe(folder: Path, *command: str, options: tuple[str, ...] = (), **more: Any) -> subprocess.CompletedProcess[str]:
    """Run a command under `leakscope run` into `folder`/out."""
    return run(folder, "run", "-o", "out", "--format", "json", *options, "--", *command, **more)


def until(is_so: Callable[[], Any], what: str) -> Any:
    """Poll until `is_so` answers, and return its answer."""
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        answer = is_so()
        if answer:
            return answer
        time.sleep(0.02)
    raise AssertionError(f"waited {DEADLINE_S:g} s for {what}")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start leakscope with a command as the head of its own process group; whatever is left of it is killed at the end."""
    started: list[subprocess.Popen[str]] = []

    def start_one(*command: str, options: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        process = subprocess.Popen([*LEAKSCOPE, "run", "-o", "out", "--format", "json", *options, "--", *command], cwd=tmp_path,
                                   env=ENVIRONMENT, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, start_new_session=True)
        started.append(process)
        return process

    yield start_one
    for process in started:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.communicate(timeout=DEADLINE_S)


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def opened(folder: Path) -> sessions.Session:
    return sessions.open(folder / "out")


def test_the_exit_code_is_that_of_the_command(tmp_path: Path) -> None:
    done = observe(tmp_path, sys.executable, "-c", "raise SystemExit(7)")
    assert done.returncode == 7
    assert opened(tmp_path).info["exit_code"] == 7
    assert opened(tmp_path).state == "complete"


def test_a_command_killed_by_a_signal_gives_128_plus_its_number(tmp_path: Path) -> None:
    done = observe(tmp_path, sys.executable, "-c", "import os; os.kill(os.getpid(), 9)")
    assert done.returncode == 137
    info = opened(tmp_path).info
    assert (info["signal"], info["exit_code"], info["state"]) == (9, None, "died")


def test_stdout_is_that_of_the_bare_run_and_leakscope_speaks_on_stderr_only(tmp_path: Path) -> None:
    program = "import sys; sys.stdout.buffer.write(bytes(range(256)) * 300); print('x' * 70000, end='')"
    bare = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=DEADLINE_S)
    done = subprocess.run([*LEAKSCOPE, "run", "-o", "out", "--", sys.executable, "-c", program], cwd=tmp_path, env=ENVIRONMENT,
                          capture_output=True, timeout=DEADLINE_S)
    assert done.stdout == bare.stdout
    assert done.stderr


def test_stdin_reaches_the_command(tmp_path: Path) -> None:
    done = subprocess.run([*LEAKSCOPE, "run", "-o", "out", "--", sys.executable, "-c", "print(input() + '!')"], cwd=tmp_path,
                          env=ENVIRONMENT, input="three in the morning\n", text=True, capture_output=True, timeout=DEADLINE_S)
    assert done.stdout == "three in the morning!\n"


def test_the_command_sees_its_own_arguments_folder_and_environment(tmp_path: Path) -> None:
    program = tmp_path / "show.py"
    program.write_text("import os, sys\nprint(sys.argv[1:], os.getcwd(), sorted(os.environ.items()), sys.path)\n")
    command = [sys.executable, "show.py", "-o", "mine", "--", "--quiet"]
    bare = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=DEADLINE_S)
    assert observe(tmp_path, *command).stdout == bare.stdout


def test_options_end_at_the_command_even_without_dashes(tmp_path: Path) -> None:
    done = run(tmp_path, "run", "-o", "out", sys.executable, "-c", "import sys; print(sys.argv[1:])", "--every", "1s")
    assert done.stdout == "['--every', '1s']\n"


def test_a_reader_of_the_output_sees_its_end_while_leakscope_goes_on(start: Callable[..., subprocess.Popen[str]]) -> None:
    process = start("/bin/sh", "-c", "echo done; exec >&-; read nothing < /dev/zero")
    assert process.stdout is not None
    assert process.stdout.read() == "done\n"
    assert process.poll() is None


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


def _on_a_terminal(folder: Path, command: list[str], talk: Callable[[int, Callable[[str], str]], None]) -> tuple[int, str]:
    """Run a command on a terminal of its own; `talk` gets the terminal and a function that reads until a text appears."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execve(command[0], command, {**ENVIRONMENT, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"})
    seen = ""

    def read_until(text: str) -> str:
        nonlocal seen
        end = time.monotonic() + DEADLINE_S
        while text not in seen:
            assert time.monotonic() < end, f"no {text!r} in {seen!r}"
            if select.select([terminal], [], [], 0.1)[0]:
                seen += os.read(terminal, 65536).decode()
        return seen

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
    finally:
        os.close(terminal)
        _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status), seen


def test_ctrl_c_on_a_terminal_reaches_the_command_once_and_leakscope_finishes(tmp_path: Path) -> None:
    def talk(terminal: int, read_until: Callable[[str], str]) -> None:
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

    def talk(terminal: int, read_until: Callable[[str], str]) -> None:
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

    def talk(terminal: int, read_until: Callable[[str], str]) -> None:
        command = [*LEAKSCOPE, "run", "-o", "out", "--format", "json", "--quiet", "--", sys.executable, "echo.py"]
        os.write(terminal, f"{shlex.join(command)}\n".encode())
        read_until("it is up\r\n")
        os.write(terminal, b"\x1a")
        read_until("Stopped")
        os.write(terminal, b"fg\n")
        os.write(terminal, b"it goes on\n")
        read_until("heard: it goes on")
        os.write(terminal, b"exit 0\n")

    code, _ = _on_a_terminal(tmp_path, ["/bin/bash", "--norc", "--noprofile", "-i"], talk)
    assert code == 0


@pytest.mark.parametrize(("arguments", "sentence", "hint"), [
    ([], "There is no command to run.", "leakscope run -- python serve.py"),
    (["no-such-command-at-all"], "There is no command 'no-such-command-at-all' on PATH.", "leakscope run --"),
    (["serve.py", "--port", "1"], "There is no command 'serve.py' on PATH.", "leakscope run -- python serve.py --port 1"),
    (["./serve.py"], "The file 'serve.py' cannot be started as a command.", "leakscope run -- python ./serve.py"),
    (["./data.txt"], "The file 'data.txt' cannot be started as a command.", "chmod +x data.txt"),
    (["./sreve.py"], "There is no file 'sreve.py'.", "leakscope run -- ./serve.py"),
    (["./folder"], "'folder' is a folder, not a command.", "ls folder"),
    (["./lost"], "The file 'lost' asks for the interpreter '/no/such/python', which is not there.", "head -1 lost"),
    (["-m", "http.server"], "No such option '-m'.", "leakscope run --help"),
    (["--every", "soon", "--", "python"], "--every: 'soon' is not a duration such as 30s, 5m or 2h.", "--every 30s"),
    (["--max-disk", "0", "--", "python"], "--max-disk: 0 is no time or space at all.", "--max-disk 500M"),
    (["--sites", "sampled", "--", "python"], "--sites: 'sampled' is not available yet in this version.", "--sites tracemalloc"),
    (["--sites", "yes", "--", "python"], "--sites: 'yes' is neither off nor tracemalloc with 1 to 99 frames.", "--sites"),
    (["--redact", "none", "--", "python"], "--redact: 'none' is not available", "--redact structure"),
    (["--format", "html,pdf", "--", "python"], "--format: there is no format 'pdf'.", "--format html,md,json"),
    (["-o", "full", "--", "python"], "The folder 'full' already holds 'report.json'.", "-o full-2"),
    (["-o", "data.txt", "--", "python"], "'data.txt' is a file, not a folder for a report.", "-o data.txt-report"),
])
def test_a_mistake_is_one_sentence_and_a_hint_with_exit_code_2(
        tmp_path: Path, arguments: list[str], sentence: str, hint: str) -> None:
    (tmp_path / "serve.py").write_text("print(1)\n")
    (tmp_path / "data.txt").write_text("1\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "report.json").write_text("{}")
    (tmp_path / "lost").write_text("#!/no/such/python\n")
    (tmp_path / "lost").chmod(0o755)
    done = run(tmp_path, "run", *arguments)
    first, second = done.stderr.splitlines()
    assert first.startswith(f"leakscope: {sentence}")
    assert second.startswith("  hint: ") and hint in second
    assert (done.returncode, done.stdout) == (2, "")
    assert not list(tmp_path.glob("leakscope-report*")), "nothing was started, nothing is left behind"


def test_an_output_folder_that_cannot_be_made_stops_before_the_command(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run(tmp_path, "run", "-o", "file/out", "--", sys.executable, "-c", "print('started')")
    assert (done.returncode, done.stdout) == (1, "")
    assert "The report folder 'file/out' cannot be made: Not a directory." in done.stderr


def test_without_an_output_folder_each_run_gets_a_fresh_one(tmp_path: Path) -> None:
    for _ in range(2):
        run(tmp_path, "run", "--format", "json", "--", "/bin/true")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["leakscope-report", "leakscope-report-2"]


@pytest.mark.parametrize(("command", "reason"), [
    ([sys.executable, "-I", "-c", "pass"], "it runs with -I, which ignores PYTHONPATH"),
    ([sys.executable, "-bE", "-c", "pass"], "it runs with -E, which ignores PYTHONPATH"),
    ([sys.executable, "-S", "-c", "pass"], "it runs with -S, which leaves out sitecustomize"),
    (["/bin/true"], "it is not Python and started none"),
    (["/usr/bin/env", "-i", sys.executable, "-c", "import time; time.sleep(0.5)"], "its PYTHONPATH was replaced on the way"),
])
def test_a_run_without_an_agent_says_why_and_keeps_the_exit_code(tmp_path: Path, command: list[str], reason: str) -> None:
    done = observe(tmp_path, *command)
    assert f"): {reason}." in done.stderr
    assert "hint: " in done.stderr
    assert reason in opened(tmp_path).info["gaps"][0]["missing"]


def test_what_was_typed_is_masked_in_the_session(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("")
    observe(tmp_path, sys.executable, "-W", "ignore", "x.py", "--token", "hunter2", "--key=hunter2", "-phunter2", "hunter2",
            env={**ENVIRONMENT, "SECRET": "hunter2"})
    assert opened(tmp_path).info["command"][1:] == ["-W", "***", "x.py", "--token", "***", "--key=***", "-p***", "***"]
    for file in (tmp_path / "out").rglob("*"):
        assert file.is_dir() or b"hunter2" not in file.read_bytes(), file


def test_json_of_the_session_names_the_options_for_the_agent(tmp_path: Path) -> None:
    observe(tmp_path, sys.executable, "-c", "pass", options=("--every", "2m", "--max-disk", "50M", "--sites", "tracemalloc:5"))
    options = json.loads((tmp_path / "out" / "session" / "boot" / "options.json").read_text())
    assert (options["every_s"], options["max_disk_bytes"], options["sites"]) == (120.0, 50 << 20, "tracemalloc:5")
