"""The part of LeakScope that runs inside the target: records, judges nothing, and is not noticed.

`start(boot)` is called by the staged sitecustomize, `snapshot()` by whoever wants one now, `stop()` by whoever wants
us gone. Each may be called at any time, any number of times; none raises.
"""

import _thread
import atexit
import os
import sys
import time as _time

_recorder = None
_is_prepared = False
_paused = None
_resumes_later = False
_main_thread = _thread.get_ident()
_RESUME = f"__import__({__name__!r})._resume()".encode()
_COLLECT = f"__import__({__name__!r})._collect()".encode()


def start(boot):
    """Bring the agent up in this process with the options of a boot folder; return whether it records."""
    global _recorder
    if _recorder is not None:
        return True
    try:
        from . import format as fmt
        from . import jsontext, thread

        if thread.is_here_already():
            return False
        boot = os.path.abspath(boot)
        options = jsontext.read(thread.read_small(os.path.join(boot, fmt.OPTIONS_FILE), 1 << 20).decode())
        _load_privately()
        _prepare(boot, options.get("follow", True))
        from .recorder import Recorder

        recorder = Recorder(options, boot, soon=_soon_collecting(options))
        if not recorder.open():
            return False
        _recorder = recorder
        recorder.begin()
        return True
    except Exception as error:
        _note(f"The agent did not come up: {type(error).__name__}.")
        return False


def snapshot():
    """Take a snapshot now, in this thread; return done.json as a dict, or None (a note says why)."""
    try:
        return None if _recorder is None else _recorder.take("manual")
    except Exception as error:
        _note(f"The snapshot asked for was not taken: {type(error).__name__}.")
        return None


def tick(count=1, batch=None, tokens=None):
    """Count units of work that the program says it has done, and how large they were (leakscope.tick)."""
    recorder = _recorder
    try:
        if recorder is not None:
            recorder.ticks.add(count, batch, tokens)
    except Exception:  # a count that is none
        pass


def settle(seconds, collect=False):
    """Sleep in this thread, collect here if asked to, and take a snapshot of what is left (leakscope.settle)."""
    recorder = _recorder
    if recorder is None or recorder.is_ended:
        return
    if type(seconds) not in (int, float) or not 0 <= seconds < 1e9:
        _note(f"leakscope.settle() was given a {type(seconds).__name__} that is no number of seconds, so nothing was done.")
        return
    before_ns = recorder.timeline.cpu_ns()
    _time.sleep(seconds)  # what a handler of a signal raises meanwhile is the program's
    try:
        recorder.settle.now(seconds, collect is True, recorder.timeline.cpu_ns() - before_ns)
    except Exception as error:
        _note(f"The snapshot of leakscope.settle() was not taken: {type(error).__name__}.")


def stop(reason="stopped"):
    """Write the end of this process's evidence and take the agent out of the process."""
    global _recorder
    recorder, _recorder = _recorder, None
    try:
        if recorder is not None:
            recorder.end(reason)
    except Exception as error:
        _note(f"The end of this process was not recorded in full: {type(error).__name__}.")


def _note(sentence):
    try:
        if _recorder is not None:
            _recorder.files.note(sentence)
    except Exception:
        pass


def _load_privately():
    """Load what the agent needs of the standard library now, in the main thread, from the standard library.

    Later, in our thread, an import could find the target's own file by that name; and a fork during it would leave the
    child with the lock of that import taken for ever. These are C modules that no program has a file of its own for.
    """
    library = os.path.dirname(os.__file__)
    before = sys.path[:]
    sys.path[:] = [entry for entry in before if entry == library or entry == os.path.join(library, "lib-dynload")
                   or entry.endswith(".zip")] or before
    try:
        for name in ("recorder", "walk", "probe", "sites", "devices", "native", "allocators", "outside", "children"):
            try:
                __import__(f"{__name__}.{name}")
            except ImportError:
                pass
    finally:
        sys.path[:] = before


def _prepare(boot, is_following):
    global _is_prepared
    from . import children, native_sites

    children.hide(boot, is_following)
    native_sites.hide(boot)
    if _is_prepared:
        return
    _is_prepared = True
    if is_following:
        children.follow(boot)
    children.before_exec(_before_exec)
    atexit.register(_at_exit)
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_born)
    _resume_later()


def _soon_collecting(options):
    """Return what lets the main thread collect soon, None where nobody wants that or it cannot be."""
    from . import native

    return native.soon_caller(_COLLECT) if options.get("settle_collect") else None


def _collect():
    try:
        recorder = _recorder
        if recorder is not None:
            recorder.settle.collect()
    except Exception:
        pass


def _resume_later():
    """From CPython 3.13 on threads are counted, for the warning, only after the hooks of the parent: ours is started later.

    It matters only where the main thread forks: another thread is one thread too many without us, too.
    """
    global _resumes_later
    from . import native

    later = native.soon_caller(_RESUME) if sys.version_info >= (3, 13) else None
    if later is not None:
        os.register_at_fork(after_in_parent=later)
        _resumes_later = True


def _at_exit():
    stop("exit")


def _before_exec():
    # The next program in this process could not know of a child of ours, and would have it as a zombie.
    try:
        recorder = _recorder
        if recorder is not None and recorder.pid == os.getpid():
            recorder.snapshots.end_child()
    except Exception:
        pass


def _before_fork():
    # No thread of ours may exist at the fork: it could hold a lock, and from CPython 3.12 on a fork with threads warns
    # on stderr.
    global _paused
    try:
        recorder = _recorder
        if recorder is not None and recorder.thread is not None:
            _paused = recorder
            recorder.pause()
        _tell_multiprocessing()
    except Exception:
        pass


def _after_fork():
    try:
        if not _resumes_later or _thread.get_ident() != _main_thread:
            _resume()
    except Exception:
        pass


def _resume():
    global _paused
    recorder, _paused = _paused, None
    try:
        if recorder is not None:
            recorder.resume()
    except Exception:
        pass


def _born():
    """In a forked child: begin anew as another process, or be gone when children are not followed."""
    global _recorder, _paused
    parent, _recorder, _paused = _recorder, None, None
    try:
        if parent is None:
            return
        parent.timeline.end()
        if not parent.options.get("follow", True):
            parent.sampler.close()
            parent.timeline.close()
            return
        from .recorder import Recorder

        _recorder = Recorder(parent.options, parent.boot, role="fork", parent=parent.pid, soon=parent.soon)
        _recorder.begin()
    except Exception:
        pass


class _Afterwards:
    """What multiprocessing calls in its children: they end with os._exit, without atexit."""

    def __init__(self):
        self.util = None

    def born(self):
        try:
            self.util.Finalize(None, _at_exit, exitpriority=-1_000_000)
        except Exception:
            pass


_afterwards = _Afterwards()


def _tell_multiprocessing():
    from . import classes

    util = sys.modules.get("multiprocessing.util")
    if _afterwards.util is None and "register_after_fork" in classes.space_named("multiprocessing.util"):
        util.register_after_fork(_afterwards, _Afterwards.born)
        _afterwards.util = util
