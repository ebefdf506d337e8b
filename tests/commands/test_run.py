"""`leakscope run` as a person and a script meet it: real processes, compared with the bare run."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from leakscope import session as sessions
from leakscope.commands import run as run_command
from leakscope.commands._target import Ending
from leakscope.errors import SessionError
from leakscope.model import Confidence, Verdict, VerdictClass
from leakscope.report import Report, SessionInfo
from tests.commands.runs import DEADLINE_S, ENVIRONMENT, LEAKSCOPE, observe, opened, run


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
    (["--settle", "banana", "--", "python"], "--settle: 'banana' is not a duration such as 30s, 5m or 2h.", "--settle 30s"),
    (["--settle", "0s", "--", "python"], "--settle: 0s is no time or space at all.", "--settle 30s"),
    (["--settle-collect", "--", "python"], "--settle-collect says what to do in the settle step, and there is none.",
     "leakscope run --settle 30s --settle-collect -- COMMAND"),
    (["--max-disk", "0", "--", "python"], "--max-disk: 0 is no time or space at all.", "--max-disk 500M"),
    (["--sites", "yes", "--", "python"], "--sites: 'yes' is neither sampled nor off nor tracemalloc with 1 to 99 frames.",
     "--sites"),
    (["--gpu", "yes", "--", "python"], "--gpu: 'yes' is neither auto nor off nor state nor trace nor recorded:DIR.",
     "--gpu state"),
    (["--gpu", "recorded", "--", "python"], "--gpu: recorded needs the folder that the device's records are in.",
     "--gpu recorded:DIR"),
    (["--gpu", "recorded:none", "--", "python"], "--gpu: there is no folder 'none' with the records of a device.",
     "mkdir none"),
    (["--redact", "none", "--", "python"], "--redact: 'none' is not available", "--redact structure"),
    (["--format", "html,pdf", "--", "python"], "--format: there is no format 'pdf'.", "--format html,md,json"),
    (["--known", "x.toml", "--", "python"], "The list of known leaks 'x.toml' cannot be read: No such file", "explain known"),
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


def test_a_session_that_the_command_removes_is_said_to_be_gone(tmp_path: Path) -> None:
    code = f"import shutil, time; time.sleep(0.2); shutil.rmtree({str(tmp_path / 'out')!r}); time.sleep(0.7); print('done')"
    ran = observe(tmp_path, sys.executable, "-c", code)
    assert (ran.returncode, ran.stdout) == (0, "done\n")
    assert "was removed while the command ran" in ran.stderr and "No Python process" not in ran.stderr
    assert not list(tmp_path.glob("out/session/*/snapshots"))  # nothing half is left of it


def test_a_snapshot_that_still_grows_when_the_target_was_killed_is_waited_for(tmp_path: Path) -> None:
    code = """
import os, signal, subprocess, sys, time
folder = os.path.join(sys.argv[1], "out", "session", str(os.getpid()), "snapshots", "9999")
os.makedirs(folder)
write = f"for n in 1 2 3 4 5 6; do echo $n >> {folder}/address.npy; sleep 0.3; done; echo '{{}}' > {folder}/done.json"
open(os.path.join(folder, "address.npy"), "w").close()
subprocess.Popen(["sh", "-c", write], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert observe(tmp_path, sys.executable, "-c", code, str(tmp_path)).returncode == 128 + signal.SIGKILL
    assert list(tmp_path.glob("out/session/*/snapshots/9999/done.json"))


def test_what_was_typed_is_masked_in_the_session(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("")
    observe(tmp_path, sys.executable, "-W", "ignore", "x.py", "--token", "hunter2", "--key=hunter2", "-phunter2", "hunter2",
            env={**ENVIRONMENT, "SECRET": "hunter2"})
    assert opened(tmp_path).info["command"][1:] == ["-W", "***", "x.py", "--token", "***", "--key=***", "-p***", "***"]
    for file in (tmp_path / "out").rglob("*"):
        assert file.is_dir() or b"hunter2" not in file.read_bytes(), file


def test_json_of_the_session_names_the_options_for_the_agent(tmp_path: Path) -> None:
    observe(tmp_path, sys.executable, "-c", "pass", options=("--every", "2m", "--max-disk", "50M", "--sites", "tracemalloc:5",
                                                                         "--gpu", f"recorded:{tmp_path}"))
    options = json.loads((tmp_path / "out" / "session" / "boot" / "options.json").read_text())
    assert (options["every_s"], options["max_disk_bytes"], options["sites"]) == (120.0, 50 << 20, "tracemalloc:5")
    assert options["gpu"] == f"recorded:{tmp_path}"


def a_report(kind: VerdictClass) -> Report:
    info = SessionInfo("0" * 12, ("python",), "2026-11-30T00:00:00Z", 1.0, 0, None, "", ())
    return Report("0", info, Verdict(kind, Confidence.HIGH, "So it is."), (), ())


def a_wish(fail_on: str | None = None) -> run_command.Wish:
    return run_command.Wish(Path("out"), ("json",), fail_on, None, "", False, True)


@pytest.mark.parametrize(("ending", "kind", "fail_on", "code"), [
    (Ending(0, None), VerdictClass.PYTHON_LEAK, None, 0),
    (Ending(0, None), VerdictClass.PYTHON_LEAK, "leak", 3),
    (Ending(0, None), VerdictClass.PYTHON_LEAK, "growth", 3),
    (Ending(0, None), VerdictClass.BOUNDED_GROWTH, "leak", 0),
    (Ending(0, None), VerdictClass.BOUNDED_GROWTH, "growth", 3),
    (Ending(0, None), VerdictClass.NO_LEAK, "growth", 0),
    (Ending(0, None), VerdictClass.INSUFFICIENT_EVIDENCE, "leak", 0),
    (Ending(4, None), VerdictClass.PYTHON_LEAK, "leak", 4),
    (Ending(None, 15), VerdictClass.PYTHON_LEAK, "leak", 143),
    (Ending(0, None), None, None, 1),
    (Ending(4, None), None, None, 4),
])
def test_the_code_of_the_command_comes_before_what_leakscope_has_to_say(
        ending: Ending, kind: VerdictClass | None, fail_on: str | None, code: int) -> None:
    report = None if kind is None else a_report(kind)
    assert run_command._exit_code(ending, report, a_wish(fail_on)) == code


@pytest.mark.parametrize(("error", "said"), [
    (ZeroDivisionError("oh"), "leakscope: The report could not be made (ZeroDivisionError: oh); the session is kept.\n"),
    (SessionError("It is damaged."), "leakscope: It is damaged.\n"),
])
def test_a_report_that_fails_keeps_the_session_and_says_how_to_try_again(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, said: str,
) -> None:
    def fail(*_arguments: object) -> Report:
        raise error

    monkeypatch.setattr("leakscope.commands._make_report.make_report", fail)
    session = sessions.create(tmp_path / "session", ["python"], {})
    reporting = run_command._Reporting(session, a_wish())
    reporting.make()
    assert reporting.report is None
    assert capsys.readouterr().err == f"{said}  hint: leakscope report {session.path}\n"


def test_after_its_duration_the_report_is_there_and_the_command_goes_on(tmp_path: Path) -> None:
    program = "import os, time\nwhile not os.path.exists('out/report.json'): time.sleep(0.05)\nprint('goes on')\nexit(5)"
    done = observe(tmp_path, sys.executable, "-c", program, options=("--duration", "1s"))
    assert (done.returncode, done.stdout) == (5, "goes on\n")
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert (report["session"]["duration_s"], report["session"]["exit_code"]) == (1.0, None)
    assert (opened(tmp_path).info["duration_s"], opened(tmp_path).info["exit_code"]) == (1.0, 5)


def test_a_child_without_an_agent_is_named_even_where_others_reported(tmp_path: Path) -> None:
    program = "import subprocess, sys; subprocess.run([sys.executable, '-I', '-c', 'import time; time.sleep(4)'])"
    done = observe(tmp_path, sys.executable, "-c", program)
    assert "): it runs with -I, which ignores PYTHONPATH." in done.stderr
    assert len(opened(tmp_path).info["gaps"]) == 1
    assert len(opened(tmp_path).processes()) == 1
