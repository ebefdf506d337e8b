"""Which native code keeps memory: the preloaded sampler of `--native`, woken and read from here.

`leakscope run --native` names the shared object in LD_PRELOAD (inject/environment.py). It sleeps until `start`, so that
processes without an agent pay next to nothing. glibc on Linux only.
"""

import os

from . import native
from .format import NATIVE_FILE

_MEAN_BYTES = 512 << 10
_PRELOADED = "libleakscope_native.so"


def start():
    """Wake the sampler of this process; return None, or a sentence that says why there is none."""
    begin = native.plain_function("leakscope_native_start", "i", "L")
    if begin is None:
        return "Native memory was not sampled in this process: the preloaded sampler is not in it."
    try:
        from .probe import _probe  # it knows where the one for this interpreter lies

        _probe.native_begin()
    except (ImportError, AttributeError):  # then the sites have C frames alone
        pass
    error = begin(_MEAN_BYTES)
    return f"Native memory was not sampled: {os.strerror(error)}." if error else None


def stop():
    """Let the sampler sleep again; what it knows it follows to its end."""
    end = native.plain_function("leakscope_native_stop", "i")
    if end is not None:
        end()


def write(folder):
    """Write native.json into the folder of a snapshot; raises OSError. Does nothing where nothing is sampled."""
    record = native.plain_function("leakscope_native_write", "i", "i")
    if record is None:
        return
    path = os.path.join(folder, NATIVE_FILE)
    file = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        error = record(file)
    finally:
        os.close(file)
    if error:
        os.remove(path + ".new")
        raise OSError(error, os.strerror(error), path)
    os.replace(path + ".new", path)


def hide(boot):
    """Take the shared object out of LD_PRELOAD as the program sees it; children still inherit it with the environment."""
    data = os.environ._data  # type: ignore[attr-defined]  # what the mapping shows; os.environ[...] would also putenv
    key = os.environ.encodekey("LD_PRELOAD")
    value = data.get(key)
    ours = os.fsencode(os.path.join(boot, _PRELOADED))
    if value is None:
        return
    rest = [part for part in value.split(b":") if part != ours]
    if rest:
        data[key] = b":".join(rest)
    else:
        del data[key]
