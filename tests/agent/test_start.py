"""The target does not notice the agent: streams, exit code, environment, path, modules, threads, signals."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

from tests.agent.staged import OLDEST_AND_NEWEST, Stage, interpreter, python, until  # noqa: F401

# Everything about itself that a program can easily see, as one line of JSON on stdout.
SELF = """
import gc, json, os, sys, threading
print(json.dumps({
    "argv": sys.argv, "path": sys.path, "environment": dict(os.environ),
    "bytes": {k.decode(): v.decode() for k, v in os.environb.items()},
    "threads": [repr(type(t)) + t.name for t in threading.enumerate()], "active": threading.active_count(),
    "sitecustomize": "sitecustomize" in sys.modules, "gc": [gc.isenabled(), gc.get_threshold()],
    "hooks": [sys.getprofile() is None, sys.gettrace() is None, repr(sys.excepthook)], "switch": sys.getswitchinterval(),
    "importers": [name for name in sys.path_importer_cache if "session" in name],
    "flags": repr(sys.flags), "warnings": sys.warnoptions,
}))
"""


def test_a_program_sees_the_same_of_itself_with_and_without_the_agent(python: str, tmp_path: Path) -> None:  # noqa: F811
    stage = Stage(tmp_path)
    program = str(stage.write("program.py", SELF))
    for variables in ({}, {"PYTHONPATH": str(stage.work / "extra")}, {"PYTHONPATH": "a:b", "OTHER": "ä"}):
        observed = stage.run(python, program, "one", **variables)
        alone = stage.run(python, program, "one", observed=False, **variables)
        assert observed.stderr == alone.stderr == ""
        assert json.loads(observed.stdout) == json.loads(alone.stdout)
    assert len(stage.processes) == 3


def test_only_c_modules_are_loaded_before_the_target(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    code = "import sys; print(*sorted(sys.modules))"
    observed = set(stage.run(sys.executable, "-c", code).stdout.split())
    alone = set(stage.run(sys.executable, "-c", code, observed=False).stdout.split())
    ours = {name for name in observed if name.startswith("_leakscope_agent")}
    assert observed - alone - ours <= {"_json", "_ctypes", "_posixsubprocess", *sys.builtin_module_names}


def test_a_program_that_writes_no_bytecode_has_the_agent_compiled_once_in_our_folder_only(tmp_path: Path) -> None:
    """Images of containers set PYTHONDONTWRITEBYTECODE; compiling the agent costs each of their processes 0.1 s."""
    stage = Stage(tmp_path)
    stage.write("other.py", "")
    program = str(stage.write("program.py", "import other, sys; print(sys.dont_write_bytecode)"))
    assert stage.run(sys.executable, program, PYTHONDONTWRITEBYTECODE="1").stdout == "True\n"
    written = {path.relative_to(tmp_path) for path in tmp_path.rglob("*.pyc")}
    assert written and all("_leakscope_agent" in path.parts for path in written), written


def test_exit_code_streams_and_traceback_are_those_of_the_target(python: str, tmp_path: Path) -> None:  # noqa: F811
    stage = Stage(tmp_path)
    for text in ("import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)", "raise ValueError('seven')",
                 "import os; print('half', end='', flush=True); os._exit(3)", "import os; os.abort()",
                 "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"):
        program = str(stage.write("program.py", text))
        observed, alone = stage.run(python, program), stage.run(python, program, observed=False)
        assert (observed.returncode, observed.stdout, observed.stderr) == (alone.returncode, alone.stdout, alone.stderr)


def test_the_targets_own_sitecustomize_still_runs_as_sitecustomize(python: str, tmp_path: Path) -> None:  # noqa: F811
    stage = Stage(tmp_path)
    stage.write("own/sitecustomize.py", "import sys\nprint('own', __name__, __file__)\n"
                "assert sys.modules['sitecustomize'].__file__ == __file__\nmark = 1\n")
    code = "import sitecustomize; print(sitecustomize.mark, sitecustomize.__file__)"
    own = str(stage.work / "own")
    observed = stage.run(python, "-c", code, PYTHONPATH=own)
    assert observed.stdout == stage.run(python, "-c", code, PYTHONPATH=own, observed=False).stdout
    assert observed.stdout.startswith("own sitecustomize") and observed.stderr == ""


@OLDEST_AND_NEWEST
def test_an_error_of_the_targets_own_sitecustomize_is_shown_as_python_shows_it(python: str, tmp_path: Path) -> None:  # noqa: F811
    stage = Stage(tmp_path)
    own = str(stage.work / "own")
    for text in ("raise RuntimeError('broken')", "import not_there_at_all", "import sitecustomize.deeper"):
        stage.write("own/sitecustomize.py", text)
        observed = stage.run(python, "-c", "print(1)", PYTHONPATH=own)
        alone = stage.run(python, "-c", "print(1)", PYTHONPATH=own, observed=False)
        assert (observed.stdout, observed.stderr) == (alone.stdout, alone.stderr)


def test_a_python_that_is_too_old_or_has_no_agent_goes_on_as_ever(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    (stage.boot / "_leakscope_agent" / "__init__.py").write_text("raise SystemError('damaged')")
    ran = stage.run(sys.executable, "-c", "import sys; print('boot' in str(sys.path))")
    assert (ran.stdout, ran.stderr, ran.returncode) == ("False\n", "", 0)


def test_a_signal_that_the_target_waits_for_is_not_caught_by_our_thread(python: str, tmp_path: Path) -> None:  # noqa: F811
    stage = Stage(tmp_path)
    code = ("import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]); print('ready', flush=True);"
            "print(signal.sigwait([signal.SIGTERM]) == signal.SIGTERM)")
    target = stage.start(python, "-c", code)
    assert target.stdout is not None and target.stdout.readline() == "ready\n"
    until(lambda: stage.processes and stage.processes[0].rows)
    target.send_signal(signal.SIGTERM)
    out, error = target.communicate(timeout=120)
    assert (out, error, target.returncode) == ("True\n", "", 0)


@OLDEST_AND_NEWEST
def test_control_c_reaches_a_target_that_sleeps(python: str, tmp_path: Path) -> None:  # noqa: F811
    stage = Stage(tmp_path)
    code = "import time\ntry: print('ready', flush=True); time.sleep(60)\nexcept KeyboardInterrupt: print('caught')"
    target = stage.start(python, "-c", code)
    assert target.stdout is not None and target.stdout.readline() == "ready\n"
    target.send_signal(signal.SIGINT)
    out, error = target.communicate(timeout=120)
    assert (out, error, target.returncode) == ("caught\n", "", 0)


@OLDEST_AND_NEWEST
def test_a_kill_leaves_whole_rows(python: str, tmp_path: Path) -> None:  # noqa: F811
    stage = Stage(tmp_path)
    target = stage.start(python, "-c", "import time; time.sleep(60)")
    until(lambda: stage.processes and len(stage.processes[0].rows) >= 3 and stage.processes[0].snapshots)
    target.send_signal(signal.SIGKILL)
    target.communicate(timeout=120)
    (process,) = stage.processes
    assert process.role == "main" and not process.has_exit
    assert all(later["t_ns"] > earlier["t_ns"] for earlier, later in zip(process.rows, process.rows[1:], strict=False))


def test_arguments_are_masked_and_a_secret_is_nowhere_in_the_session(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    program = str(stage.write("program.py", "import time; time.sleep(0.3)"))
    stage.run(sys.executable, program, "--token=hunter2secret", "--key", "hunter2secret", "-phunter2secret", "8080",
              SECRET="hunter2secret")
    (process,) = stage.processes
    assert process.json("process.json")["argv"][1:] == ["program.py", "--token=***", "--key", "***", "-p***", "***"]
    found = subprocess.run(["grep", "-r", "hunter2secret", str(stage.session)], capture_output=True)
    assert found.returncode == 1


def test_a_second_interpreter_in_one_process_is_not_another_process(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    code = ("import time; time.sleep(.3); import _xxsubinterpreters as s; i = s.create();"
            "s.run_string(i, 'import sys; print(sys.path)'); s.destroy(i)")
    ran = stage.run(interpreter("3.11"), "-c", code)
    assert ran.returncode == 0 and str(stage.boot) not in ran.stdout
    assert len(stage.processes) == 1
