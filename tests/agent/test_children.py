"""Every Python process of the tree is followed, and none of them sees how."""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from leakscope.agent import children
from tests.agent.staged import OLDEST_AND_NEWEST, Stage, python, until  # noqa: F401

# A child that lives long enough to be recorded, and prints what it sees.
CHILD = "import os, time; time.sleep(0.3); print(os.environ.get('PYTHONPATH'), os.environ.get('A'), flush=True)"


def roles(stage: Stage) -> list[str]:
    return [process.role for process in stage.processes]


def check(stage: Stage, command: list[str], expected: list[str], out: str | None = None, **variables: str) -> None:
    """Run with the agent and without: the same output, and processes of the expected roles."""
    observed = stage.run(*command, **variables)
    alone = stage.run(*command, observed=False, **variables)
    assert (observed.stdout, observed.stderr, observed.returncode) == (alone.stdout, alone.stderr, alone.returncode)
    assert out is None or observed.stdout == out
    assert sorted(roles(stage)) == sorted(expected)


@pytest.mark.parametrize("given", ["env=None", "env=dict(os.environ, A='1')", "env={'A': '1'}", "close_fds=False",
                                   "env=dict(os.environ, PYTHONPATH='x')", "env=dict(os.environ, PYTHONPATH='')"])
def test_a_child_of_subprocess_is_followed(python: str, given: str, tmp_path: Path) -> None:  # noqa: F811
    stage = Stage(tmp_path)
    child = str(stage.write("child.py", CHILD))
    call = f"subprocess.run([sys.executable, {child!r}], {given})"
    parent = str(stage.write("parent.py", f"import os, subprocess, sys; {call}"))
    check(stage, [python, parent], ["main", "spawn"])


@pytest.mark.parametrize("change", ["os.environ['PYTHONPATH'] = 'own'", "del os.environ['PYTHONPATH']", "os.environ.clear()"])
def test_a_target_that_changes_pythonpath_is_obeyed_and_still_followed(change: str, tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    child = str(stage.write("child.py", CHILD))
    call = f"subprocess.run([sys.executable, {child!r}])"
    parent = str(stage.write("parent.py", f"import os, subprocess, sys; {change}\n{call}"))
    check(stage, [sys.executable, parent], ["main", "spawn"], PYTHONPATH="before")


@OLDEST_AND_NEWEST
def test_a_shell_between_two_pythons_hands_the_agent_on(python: str, tmp_path: Path) -> None:  # noqa: F811
    stage = Stage(tmp_path)
    child = str(stage.write("child.py", CHILD))
    code = f"import os, sys; sys.exit(os.system(sys.executable + ' {child}'))"
    check(stage, [python, "-c", code], ["main", "spawn"])


@pytest.mark.parametrize("call", ["os.execv(sys.executable, argv)", "os.execve(sys.executable, argv, dict(os.environ, A='1'))",
                                  "os.execvpe(sys.executable, argv, env={'A': '1'})"])
def test_exec_gives_a_second_folder_to_the_same_pid(python: str, call: str, tmp_path: Path) -> None:  # noqa: F811
    stage = Stage(tmp_path)
    child = str(stage.write("child.py", CHILD))
    argv = f"argv = [sys.executable, {child!r}]"
    parent = str(stage.write("parent.py", f"import os, sys, time; time.sleep(0.2); {argv}; {call}"))
    check(stage, [python, parent], ["main", "exec"])
    first, second = stage.processes
    assert first.pid == second.pid and second.path.name == f"{first.path.name}.2"
    assert not first.has_exit and second.has_exit


@pytest.mark.parametrize("call", ["os.posix_spawn(sys.executable, argv, os.environ)",
                                  "os.spawnv(os.P_NOWAIT, sys.executable, argv)",
                                  "os.spawnve(os.P_NOWAIT, sys.executable, argv, {'A': '1'})"])
def test_spawn_functions_of_os_are_followed(python: str, call: str, tmp_path: Path) -> None:  # noqa: F811
    stage = Stage(tmp_path)
    child = str(stage.write("child.py", CHILD))
    parent = str(stage.write("parent.py", f"import os, sys; argv = [sys.executable, {child!r}]; os.waitpid({call}, 0)"))
    check(stage, [python, parent], ["main", "spawn"])


@pytest.mark.parametrize("method, expected", [
    ("fork", {"main": 1, "fork": 2}), ("spawn", {"main": 1, "spawn": 3}), ("forkserver", {"main": 1, "spawn": 2, "fork": 2})])
def test_multiprocessing_is_followed_and_its_children_leave_an_end(
        python: str, method: str, expected: dict[str, int], tmp_path: Path) -> None:  # noqa: F811
    stage = Stage(tmp_path)
    program = str(stage.write("program.py", f"""
import multiprocessing, time

def work(number):
    time.sleep(0.3)
    print(number, flush=True)

if __name__ == "__main__":
    context = multiprocessing.get_context({method!r})
    children = [context.Process(target=work, args=(7,)) for number in range(2)]
    [child.start() for child in children]
    [child.join() for child in children]
    print([child.exitcode for child in children])
"""))
    check(stage, [python, program], [role for role, count in expected.items() for _ in range(count)], out="7\n7\n[0, 0]\n")
    workers = [process for process in stage.processes if process.role == ("spawn" if method == "spawn" else "fork")]
    assert sum(process.has_exit for process in workers) >= 2  # multiprocessing's resource tracker is among the spawned
    assert all(process.rows for process in workers)


def test_a_fork_with_threads_is_as_quiet_as_without_the_agent(python: str, tmp_path: Path) -> None:  # noqa: F811
    """CPython 3.12 and later warn on stderr when a process with several threads forks in __main__."""
    stage = Stage(tmp_path)
    code = """
import os, time
for number in range(60):
    time.sleep(0.021)
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
"""
    check(stage, [python, "-W", "always", str(stage.write("program.py", code))], ["main"])
    (process,) = stage.processes
    assert len(process.rows) >= 2  # the timeline went on after each fork


def test_a_child_forked_while_threads_work_is_recorded(python: str, tmp_path: Path) -> None:  # noqa: F811
    stage = Stage(tmp_path)
    code = """
import os, sys, threading, time
stop = False
def busy():
    while not stop:
        sum(range(1000))
threads = [threading.Thread(target=busy) for number in range(4)]
[thread.start() for thread in threads]
time.sleep(0.2)
pids = []
for number in range(3):
    pid = os.fork()
    if pid == 0:
        stop = True
        time.sleep(0.3)
        sys.stdout.flush()
        os._exit(number)
    pids.append(pid)
print([os.waitpid(pid, 0)[1] >> 8 for pid in pids])
stop = True
"""
    ran = stage.run(python, "-W", "ignore", str(stage.write("program.py", code)))
    assert (ran.stdout, ran.stderr) == ("[0, 1, 2]\n", "")
    assert sorted(roles(stage)) == ["fork", "fork", "fork", "main"]
    assert all(process.rows for process in stage.processes)


def test_a_forked_child_that_execs_at_once_leaves_no_folder_of_its_own(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    code = """
import os
pid = os.fork()
if pid == 0:
    os.execv('/bin/true', ['true'])
print(os.waitpid(pid, 0)[1])
"""
    assert stage.run(sys.executable, "-c", code).stdout == "0\n"
    assert roles(stage) == ["main"]


def test_a_forked_child_that_ends_through_sys_exit_has_an_end(python: str, tmp_path: Path) -> None:  # noqa: F811
    """As the workers of gunicorn do."""
    stage = Stage(tmp_path)
    code = ("import os, sys, time\npid = os.fork()\nif pid == 0:\n    time.sleep(0.2); sys.exit(3)\n"
            "print(os.waitpid(pid, 0)[1] >> 8)")
    assert stage.run(python, "-W", "ignore", str(stage.write("program.py", code))).stdout == "3\n"
    assert [(process.role, process.has_exit) for process in stage.processes] == [("main", True), ("fork", True)]
    main, child = (process.json("process.json") for process in stage.processes)
    assert child["parent"] == main["pid"]


@OLDEST_AND_NEWEST
def test_children_are_left_alone_when_not_followed(python: str, tmp_path: Path) -> None:  # noqa: F811
    stage = Stage(tmp_path, {"follow": False})
    child = str(stage.write("child.py", CHILD))
    code = f"""
import os, subprocess, sys, time
subprocess.run([sys.executable, {child!r}])
os.system("echo [$PYTHONPATH]")
pid = os.fork()
if pid == 0:
    time.sleep(0.2)
    os._exit(len(os.listdir("/proc/self/task")))
print(os.waitpid(pid, 0)[1] >> 8, flush=True)
"""
    check(stage, [python, "-W", "ignore", str(stage.write("program.py", code))], ["main"])
    check(stage, [python, "-W", "ignore", str(stage.write("program.py", code))], ["main", "spawn"], PYTHONPATH="kept")


def test_a_daemon_that_closes_every_descriptor_keeps_its_files_to_itself(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    code = """
import os, time
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
os.closerange(3, 64)
files = [open(f"own{number}.txt", "w") for number in range(20)]
time.sleep(1.2)
[file.write("mine") for file in files]
"""
    stage.run(sys.executable, "-W", "ignore", str(stage.write("program.py", code)))
    until(lambda: any(process.has_exit for process in stage.processes))
    assert {path.read_text() for path in stage.work.glob("own*.txt")} == {"mine"}


QUIET = ("--log-level", "critical")
SERVERS = {
    "uvicorn": (["-m", "uvicorn", "app:app", "--workers", "2", "--port", "{port}", *QUIET], "spawn", 3),
    "gunicorn": (["-m", "gunicorn", "app:app", "--workers", "2", "--bind", "127.0.0.1:{port}", *QUIET], "fork", 2),
}


@pytest.mark.slow
@pytest.mark.parametrize("server", SERVERS)
def test_workers_of_a_server_are_followed_and_end(server: str, tmp_path: Path) -> None:
    pytest.importorskip(server)
    command, role, count = SERVERS[server]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    stage = Stage(tmp_path)
    stage.write("app.py", {"uvicorn": "async def app(scope, receive, send): pass",
                           "gunicorn": "def app(environ, start): return []"}[server])
    target = stage.start(sys.executable, *(word.format(port=port) for word in command))
    try:
        # With uvicorn one of the spawned is multiprocessing's resource tracker; workers need a moment to serve.
        until(lambda: sum(process.role == role and len(process.rows) > 10 for process in stage.processes) >= count)
    finally:
        target.send_signal(signal.SIGTERM)
        target.communicate(timeout=120)
    ended = sum(process.role == role and process.has_exit for process in stage.processes)
    assert ended >= 2 or server == "uvicorn"  # its workers end by raising the signal again
    assert any(process.role == "main" and process.has_exit for process in stage.processes)


def test_a_replaced_builtin_still_looks_and_binds_like_one() -> None:
    replaced = children.Replacement(os.getcwd, lambda args, kwargs: (args, kwargs))
    holder = type("Holder", (), {"call": replaced})()
    assert holder.call() == os.getcwd()
    assert (replaced.__name__, repr(replaced)) == ("getcwd", repr(os.getcwd))


def test_an_empty_pythonpath_is_told_from_none() -> None:
    boot = b"/s/boot"
    assert children.in_front(boot, None) == b"/s/boot"
    assert children.in_front(boot, b"") == b"/s/boot:/s/boot"
    assert children.in_front(boot, b"a:b") == b"/s/boot:a:b"
    assert children.in_front(boot, b"/s/boot:a") == b"/s/boot:a"
