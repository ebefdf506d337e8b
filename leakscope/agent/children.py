"""Follows the target's children without letting the target see how.

The target's `os.environ` shows PYTHONPATH as it was without us, while the process's own environment, which the system
hands to a child when none is given (`subprocess` and multiprocessing by default, `os.execv`, `os.system`), still names
the boot folder. Where a program gives an environment, made from the `os.environ` it sees, the boot folder is put in
front at the last moment, in the few functions of `os` and `_posixsubprocess` that everything else ends in. Forked
children are told by `os.register_at_fork`.
"""

import os
import sys

_NAME = "PYTHONPATH"
_KEY = b"PYTHONPATH"
_replacements = []  # so that the walk knows them as ours, though modules of the target hold them
# After the environment argument was put right, the original is called: nothing else changes.
_ENVIRONMENT_POSITION = {"fork_exec": 5, "execve": 2, "posix_spawn": 2, "posix_spawnp": 2}


class Replacement:
    """Stands where a builtin stood; an instance, so that like a builtin it does not become a method in a class."""

    def __init__(self, original, change):
        self.original = original
        self._change = change
        _replacements.append(self)
        self.__name__ = self.__qualname__ = original.__name__
        self.__doc__ = original.__doc__
        self.__module__ = original.__module__

    def __call__(self, *args, **kwargs):
        try:
            args, kwargs = self._change(args, kwargs)
        except Exception:  # whatever was wrong with the call, the original says it better
            pass
        return self.original(*args, **kwargs)

    def __repr__(self):
        return repr(self.original)


def hide(boot, keep_following):
    """Take the boot folder out of os.environ; with `keep_following` children of the process still get it."""
    data = os.environ._data  # type: ignore[attr-defined]  # what the mapping shows; os.environ[...] would also putenv
    key = os.environ.encodekey(_NAME)
    if key not in data:
        return
    first, separator, rest = os.environ[_NAME].partition(os.pathsep)
    if os.path.abspath(first) != boot:
        return
    if not separator:
        if keep_following:
            del data[key]
        else:
            del os.environ[_NAME]
        return
    before = "" if rest == boot else rest  # see in_front: how an empty value is told from none
    if keep_following:
        data[key] = os.environ.encodevalue(before)
    else:
        os.environ[_NAME] = before


def in_front(boot, value):
    """Return PYTHONPATH for a child. To Python an empty value is none; the boot folder twice remembers which."""
    if value is None:
        return boot
    if value == boot or value.startswith(boot + os.pathsep.encode()):
        return value
    return boot + os.pathsep.encode() + (value or boot)


def follow(boot):
    """Put the boot folder in front in every environment that is given to a new program."""
    boot = os.fsencode(boot)

    def given_to(name):
        position = _ENVIRONMENT_POSITION[name]

        def change(args, kwargs):
            by_name = len(args) <= position
            environment = kwargs["env"] if by_name else args[position]
            if environment is None:
                return args, kwargs
            given = _with_list(environment, boot) if name == "fork_exec" else _with_mapping(environment, boot)
            if by_name:
                return args, dict(kwargs, env=given)
            return args[:position] + (given,) + args[position + 1:], kwargs

        return change

    for name in ("execve", "posix_spawn", "posix_spawnp"):
        if hasattr(os, name):
            setattr(os, name, Replacement(getattr(os, name), given_to(name)))
    os.putenv = Replacement(os.putenv, lambda args, kwargs: (_with_value(args, boot), kwargs))
    os.unsetenv = _Unset(os.unsetenv, os.putenv, boot)
    _follow_subprocess(given_to("fork_exec"))


def before_exec(do):
    """Have `do()` called before another program takes the place of this one."""
    def change(args, kwargs):
        do()
        return args, kwargs

    for name in ("execv", "execve"):
        if hasattr(os, name):
            setattr(os, name, Replacement(getattr(os, name), change))


class _Unset(Replacement):
    """`os.unsetenv` that leaves the boot folder in the process's environment."""

    def __init__(self, original, put, boot):
        Replacement.__init__(self, original, None)
        self._put = put.original
        self._boot = boot

    def __call__(self, *args):
        if len(args) == 1 and args[0] in (_NAME, _KEY):
            return self._put(_KEY, self._boot)
        return self.original(*args)


def _follow_subprocess(change):
    import _posixsubprocess

    replaced = Replacement(_posixsubprocess.fork_exec, change)
    _posixsubprocess.fork_exec = replaced
    subprocess = sys.modules.get("subprocess")  # a .pth file may have loaded it before us
    if subprocess is not None and "_fork_exec" in subprocess.__dict__:
        subprocess._fork_exec = replaced  # type: ignore[attr-defined]


def _with_list(environment, boot):
    """Return the [b"NAME=value", ...] of a child with the boot folder in front of its PYTHONPATH."""
    value, rest = None, []
    for entry in environment:
        if entry.startswith(_KEY + b"="):
            value = entry[len(_KEY) + 1:]
        else:
            rest.append(entry)
    rest.append(_KEY + b"=" + in_front(boot, value))
    return rest


def _with_mapping(environment, boot):
    """Return the same for the mapping of text or bytes that `os.execve` takes."""
    given = dict(environment)
    value = given.pop(_KEY, None)
    value = given.pop(_NAME, value)
    given[_KEY] = in_front(boot, None if value is None else os.fsencode(value))
    return given


def _with_value(args, boot):
    if args[0] in (_NAME, _KEY):
        return (args[0], in_front(boot, os.fsencode(args[1])))
    return args
