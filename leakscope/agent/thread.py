"""A thread that the target does not notice.

`threading` does not know it (`threading.enumerate()` stays as it was), gevent's and eventlet's patches do not reach it
because the originals are taken here before the target runs, it never delays the interpreter's exit, and no signal is
ever delivered to it: one that the target waits for with `sigwait` would otherwise end the process in our thread.
"""

import os
from _signal import (  # type: ignore[import-not-found]  # `signal` would load enum
    SIG_BLOCK,
    SIG_SETMASK,
    SIGABRT,
    SIGBUS,
    SIGFPE,
    SIGILL,
    SIGSEGV,
    pthread_sigmask,
    valid_signals,
)
from _thread import allocate_lock, get_ident, get_native_id, start_new_thread
from time import monotonic, sleep

# A fault of the thread itself must still be reported as ever (faulthandler).
_BLOCKED = set(valid_signals()) - {SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV}
SYSTEM_NAME = "leakscope"
# Below the size from which glibc maps a block: to free a larger one would raise that size for the whole program (mallopt(3),
# M_MMAP_THRESHOLD), and its malloc would keep what it gives back now.
_PIECE_BYTES = 64 << 10


class Thread:
    """Runs `run(thread)` once; `run` ends soon after `wait` has returned True."""

    def __init__(self, run):
        self._run = run
        self._wake = allocate_lock()
        self._wake.acquire()
        self._ended = allocate_lock()
        self._ended.acquire()
        self.is_stopping = False
        self.ident = 0
        self.native_id = 0

    def start(self):
        """Start; raises RuntimeError when the system gives no more threads."""
        before = pthread_sigmask(SIG_BLOCK, _BLOCKED)
        try:
            start_new_thread(self._main, ())
        finally:
            pthread_sigmask(SIG_SETMASK, before)

    def wait(self, seconds):
        """Sleep; return True as soon as the thread is to stop."""
        if not self.is_stopping and self._wake.acquire(True, max(0.0, seconds)):
            self.is_stopping = True
        return self.is_stopping

    def stop(self, seconds):
        """Wake the thread and wait until the system has forgotten it; return whether it has ended in that time."""
        self.is_stopping = True
        if self._wake.locked():
            try:
                self._wake.release()
            except RuntimeError:  # somebody else woke it meanwhile
                pass
        if get_ident() == self.ident:
            return False
        deadline = monotonic() + seconds
        if not self._ended.acquire(True, seconds):
            return False
        # A moment passes between the last line of Python and the end of the thread. A fork in that moment would warn
        # of threads.
        while self.native_id and os.path.exists(f"/proc/self/task/{self.native_id}") and monotonic() < deadline:
            sleep(0.0001)
        return True

    def _main(self):
        try:
            self.ident = get_ident()
            self.native_id = get_native_id()
            name_thread(self.native_id)
            self._run(self)
        except BaseException:  # a traceback on stderr would be the target's output
            pass
        finally:
            self._ended.release()


def name_thread(native_id):
    """Let `top -H` and gdb show whose thread it is; silent where /proc does not allow that."""
    try:
        handle = os.open(f"/proc/self/task/{native_id}/comm", os.O_WRONLY)
    except OSError:
        return
    try:
        os.write(handle, SYSTEM_NAME.encode())
    except OSError:
        pass
    finally:
        os.close(handle)


def is_here_already():
    """Return whether this process has a thread of ours: then this is another interpreter in one process."""
    try:
        for task in os.listdir("/proc/self/task"):
            if read_small(f"/proc/self/task/{task}/comm").strip() == SYSTEM_NAME.encode():
                return True
    except OSError:
        pass
    return False


def read_small(path, limit=65536):
    """Return the first `limit` bytes of a file, as one or more reads give them; no descriptor stays open."""
    handle = os.open(path, os.O_RDONLY)
    try:
        text = os.read(handle, min(limit, _PIECE_BYTES))
        while text and len(text) < limit:
            more = os.read(handle, min(limit - len(text), _PIECE_BYTES))
            if not more:
                break
            text += more
        return text
    finally:
        os.close(handle)
