"""The observed command as a child process that notices nothing: same group, same terminal, same signals, each once.

The target stays in leakscope's process group, so what a terminal sends (Ctrl-C, Ctrl-\\, Ctrl-Z, a new window size) reaches
both, and the shell's job control sees one job. What somebody sends to leakscope alone is forwarded. The two are told
apart by a witness: an idle process in the same group. What has reached the witness too was sent to all of us.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from leakscope.commands._command import Command
from leakscope.errors import LeakScopeError

FORWARDED = tuple(getattr(signal, name) for name in ("SIGINT", "SIGQUIT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2",
                                                     "SIGWINCH") if hasattr(signal, name))

# A sender that goes through a list of processes (systemd, pkill) may reach leakscope before the witness.
_WITNESS_DELAY_S = 0.02
_WITNESS_ANSWER_S = 1.0

_WITNESS = """
import os, signal
watched = set(map(int, WATCHED))
while os.read(0, 1):
    seen = signal.sigpending() & watched
    for number in seen:
        signal.sigwait({number})
    os.write(1, bytes([len(seen), *seen]))
"""


@dataclass(frozen=True)
class Ending:
    """How the target ended: with an exit code, or by a signal."""

    exit_code: int | None
    signal: int | None

    @property
    def shell_code(self) -> int:
        """The exit code as a shell shows it: 128 + N after signal N."""
        return 128 + self.signal if self.signal is not None else self.exit_code or 0


class Target:
    """A started command. From `start` to `close` the signals of leakscope belong to the target."""

    def __init__(self, command: Command, environment: Mapping[str, str]) -> None:
        self.command, self.environment = command, environment
        self.pid = 0
        self._handlers: dict[int, object] = {}
        self._wake_read, self._wake_write = -1, -1
        self._witness: _Witness | None = None

    def start(self) -> None:
        """Start the command with our streams, working directory, signal mask and ignored signals.

        Raises:
            LeakScopeError: the system does not start it.
        """
        self._wake_read, self._wake_write = _pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        # A handler is reset to the default in the child by exec, an ignored signal stays ignored: those are left alone here.
        for number in (signal.SIGCHLD, signal.SIGCONT, *FORWARDED):
            if signal.getsignal(number) is not signal.SIG_IGN or number == signal.SIGCHLD:
                self._handlers[number] = signal.signal(number, _only_wake)
        try:
            self.pid = os.posix_spawn(self.command.path, self.command.argv, dict(self.environment),
                                      setsigdef=_changed_by_python())
        except OSError as error:
            self.close()
            raise LeakScopeError(f"The command '{self.command.argv[0]}' cannot be started: {error.strerror}.",
                                 f"try it alone: {self.command.path}") from error
        self._witness = _Witness.start()

    def wait(self, tick: Callable[[], float]) -> Ending:
        """Wait for the end of the target and return it.

        Args:
            tick: called again and again meanwhile; returns the seconds until it wants to be called next.
        """
        ending = self._ending()
        while ending is None:
            select.select([self._wake_read], [], [], tick())
            for number in self._arrived():
                if number in FORWARDED and not (self._witness and self._witness.has_seen(number)):
                    self._send(number)
                elif number == signal.SIGCONT and _is_stopped(self.pid):
                    self._send(number)
            ending = self._ending()
        return ending

    def close(self) -> None:
        """Take the signals back."""
        if self._witness:
            self._witness.stop()
        signal.set_wakeup_fd(-1)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        for descriptor in (self._wake_read, self._wake_write):
            if descriptor >= 0:
                os.close(descriptor)
        self._handlers, self._wake_read, self._wake_write = {}, -1, -1

    def _arrived(self) -> set[int]:
        try:
            return set(os.read(self._wake_read, 4096))
        except BlockingIOError:
            return set()

    def _send(self, number: int) -> None:
        try:
            os.kill(self.pid, number)
        except (ProcessLookupError, PermissionError):
            pass  # it has ended, or became another user: then nobody like us could have sent it either

    def _ending(self) -> Ending | None:
        pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)
        if pid == 0:
            return None
        if os.WIFSTOPPED(status):
            self._stop_too()
            return None
        if os.WIFSIGNALED(status):
            return Ending(None, os.WTERMSIG(status))
        return Ending(os.WEXITSTATUS(status), None)

    def _stop_too(self) -> None:
        """Stop with a target that has stopped itself, so that the shell gives its prompt; its `fg` continues both."""
        time.sleep(0.05)  # after `fg` the kernel continues the group one by one
        if _is_stopped(self.pid) and is_foreground(2):
            os.kill(os.getpid(), signal.SIGSTOP)


class _Witness:
    """An idle process in our group, with all forwarded signals blocked, that says which of them have reached it."""

    def __init__(self, pid: int, ask: int, answer: int) -> None:
        self.pid, self.ask, self.answer = pid, ask, answer

    @classmethod
    def start(cls) -> _Witness | None:
        """Start the witness; None if there can be none. Then signals are forwarded even where the target had them already."""
        ask_read, ask_write = _pipe()
        answer_read, answer_write = _pipe()
        # Not a fork of leakscope: `pkill -f leakscope` shall reach us alone, and then it is forwarded.
        python = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
        script = _WITNESS.replace("WATCHED", repr([int(number) for number in FORWARDED]))
        try:
            pid = os.posix_spawn(
                python, [python, "-I", "-S", "-c", script], {}, setsigmask=FORWARDED,
                file_actions=[(os.POSIX_SPAWN_DUP2, ask_read, 0), (os.POSIX_SPAWN_DUP2, answer_write, 1),
                              (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0)])
        except OSError:
            os.close(ask_write)
            os.close(answer_read)
            return None
        finally:
            os.close(ask_read)
            os.close(answer_write)
        return cls(pid, ask_write, answer_read)

    def has_seen(self, number: int) -> bool:
        """True if the signal was sent to the whole group, or to each of us."""
        time.sleep(_WITNESS_DELAY_S)
        try:
            os.write(self.ask, b"?")
        except OSError:
            return False
        if not select.select([self.answer], [], [], _WITNESS_ANSWER_S)[0]:
            return False
        return number in os.read(self.answer, 64)[1:]

    def stop(self) -> None:
        """End the witness."""
        os.close(self.ask)
        os.close(self.answer)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def leave_streams_to_target() -> None:
    """Let go of stdin and stdout: whoever reads the target's output sees its end, not that of the report."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):
        os.dup2(null, stream)
    if null > 1:
        os.close(null)


def _pipe() -> tuple[int, int]:
    """Return a pipe, also where the standard streams are closed, clear of their numbers."""
    import fcntl  # POSIX alone has it, and `run` is to say itself what Windows lacks

    ends = os.pipe()
    moved = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 3) for end in ends)
    for end in ends:
        os.close(end)
    return moved[0], moved[1]


def is_foreground(descriptor: int) -> bool:
    """True if `descriptor` is a terminal in whose foreground we are."""
    try:
        return os.isatty(descriptor) and os.tcgetpgrp(descriptor) == os.getpgrp()
    except OSError:
        return False


def _only_wake(_number: int, _frame: object) -> None:
    """Do nothing: the wakeup descriptor has the number."""


def _changed_by_python() -> list[int]:
    """Return the signals that our interpreter ignores for its own sake (Python/pylifecycle.c); a shell leaves them."""
    return [getattr(signal, name) for name in ("SIGPIPE", "SIGXFSZ") if hasattr(signal, name)]


def _is_stopped(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] in ("T", "t")
    except OSError:
        return sys.platform != "linux"
