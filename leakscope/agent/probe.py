"""The walk in C: `_probe`, where it was built for the interpreter that runs here. walk.py is the same walk in Python.

The target stands still while it walks: the GIL is held from the first object to the last file. It allocates no object,
takes no reference and calls nobody, so nothing of the target can change meanwhile.
"""

import errno
import gc
import os
import sys

from . import jsontext, names, torch_layout
from .format import FORMAT
from .walk import GivenUp, own_idents

_PACKAGE = __name__.rpartition(".")[0]
_VERSION = sys.version.split(" ", 1)[0]
# A probe that was built for this very version lies there (inject/_probes.py); that of the installation lies beside this file.
_built = os.path.join(os.path.dirname(os.path.abspath(__file__)), "probes", _VERSION)
sys.modules[_PACKAGE].__path__.insert(0, _built)
try:
    from . import _probe

    _why_not = "" if hasattr(_probe, "walk") else "There is no probe for this interpreter."  # else the folder of its sources
except ImportError as error:
    _probe = None
    _why_not = ("There is no probe for this interpreter." if isinstance(error, ModuleNotFoundError) or "_probe" in str(error)
                else "The probe for this interpreter could not be loaded.")
sys.modules[_PACKAGE].__path__.remove(_built)

# What the walk gives for want of time or memory, as its last words.
_GIVEN_UP = {errno.ETIMEDOUT: "it took too long.", errno.ENOMEM: "it would need more memory than it may take.",
             errno.EOVERFLOW: "there are too many objects."}


def why_not():
    """Return why the native walk cannot be used in this process, in one sentence; "" if it can."""
    if hasattr(sys, "gettotalrefcount"):  # it would load, and find objects of another layout
        return "The probe knows release builds of CPython, and this is a debug build."
    if not _why_not and _probe.version != _VERSION:
        return "The probe was built for CPython %s, not for this one." % _probe.version
    return _why_not


def take(folder, index, kind, t_ns, own=(), sample=None, tracer=None, notes=(), go_on=None, max_bytes=0, deadline_ns=0,
         more=None):
    """Write one snapshot as walk.take does, with the same arguments and result.

    `tracer` is not asked: the sites of tracemalloc are those of the Python walk. `max_bytes`: the most that the walk may
    take for itself, 0: no limit; `deadline_ns`: by time.monotonic_ns(), 0: none. `go_on` is asked once, at the beginning.
    """
    if go_on is not None:
        go_on(0)
    begun, given = order(folder, index, kind, t_ns, "in-place", own, sample, notes, max_bytes, deadline_ns, more)
    made = not os.path.isdir(folder)
    os.makedirs(folder, exist_ok=True)
    result = _probe.walk(*given)
    if "error" in result:
        if made:
            _remove(folder)
        raise failure(result, folder)
    begun.update(result, walk="native")
    return begun


def fork(folder, index, kind, t_ns, own=(), sample=None, notes=(), max_bytes=0, deadline_ns=0, more=None):
    """Let a forked child write the snapshot, done.json too; return (its pid, how many nanoseconds the target stood still).

    Raises OSError where the system gives no child or the folder cannot be made. One at a time; `forked` fetches it.
    """
    _begun, given = order(folder, index, kind, t_ns, "fork", own, sample, notes, max_bytes, deadline_ns, more)
    os.mkdir(folder)
    try:
        return _probe.fork_walk(*given)
    except OSError:
        _remove(folder)
        raise


def forked():
    """Return None while the child walks; then, once, what became of it (see snapshot.c). Never waits.

    Raises OSError where there is no child.
    """
    return _probe.forked_walk()


def kill():
    """End the child that walks; it must still be fetched."""
    return _probe.kill_forked_walk()


def failure(result, folder):
    """Return the exception for a walk that failed, with the errno and the word that it left."""
    number = result["error"]
    if number in _GIVEN_UP:
        return GivenUp(_GIVEN_UP[number])
    return OSError(number, os.strerror(number), folder)


def order(folder, index, kind, t_ns, method, own, sample, notes, max_bytes, deadline_ns, more=None):
    """Return (what done.json says before the walk, `more` among it, and the arguments of _probe.walk)."""
    torch_layout.learn(_probe)
    begun = {"format": FORMAT, "index": index, "t_ns": t_ns, "kind": kind, "method": method, "sample": sample or {},
             "gc": {"enabled": gc.isenabled(), "thresholds": list(gc.get_threshold()), "counts": list(gc.get_count()),
                    "freeze_count": gc.get_freeze_count(), "uncollectable_count": len(gc.garbage)},
             **(more or {})}
    text = jsontext.write(begun)[:-1] + ","
    carried = jsontext.write(list(notes))[1:-1]
    own = list(own)
    words = names.words_of_program()
    return begun, (os.fspath(folder), text, carried, _PACKAGE, own, words, own_idents(own), max_bytes, deadline_ns)


def _remove(folder):
    try:
        os.rmdir(folder)
    except OSError:
        pass
