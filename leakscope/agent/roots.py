"""What lives by itself: modules, running frames, thread-locals, tasks, contexts, callbacks of the interpreter.

`collect(walk)` returns [(object, root kind, label)]. Kinds are those of format.ROOT_KINDS by name; labels are fit to be
shown.
"""

import gc
import sys
from _contextvars import Context
from _thread import _local
from _weakref import ReferenceType

from . import classes, threads
from .interpreter import atexit_callbacks, registries


class _Bound:
    def method(self):
        """A bound method, for its type."""


_METHOD = type(_Bound().method)


def collect(walk):
    """Return the roots of this process, those first that a person names first; failures go to the notes of the walk.

    The native walk has a few more: what sys.settrace(), sys.setprofile(), sys.monitoring, os.register_at_fork() and
    sys.addaudithook() were given.
    """
    found = []
    for part in (_modules, _frames, _exceptions, _threads, _interpreter, _signals, _atexit, _asyncio):
        try:
            found.extend(part(walk))
        except Exception as error:  # one kind of root less; the walk goes on
            walk.note("roots: %s could not be read (%s)" % (part.__name__.strip("_"), type(error).__name__))
    return found


def _modules(walk):
    names = walk.names
    for name, module in list(dict.items(sys.modules)):
        if id(module) in walk.own_ids or module is None:
            continue
        text = "module " + names.strings[names.dotted(name)]
        if walk.labels.setdefault(id(module), text) is text:  # under a second name it is the same module: __mp_main__
            yield module, "module", text


def functions_of_modules():
    """Yield the functions of all modules, and of their classes."""
    for module in list(dict.values(sys.modules)):
        if type(module) is classes.ModuleType:
            for value in list(dict.values(classes.space_of(module) or {})):
                inside = list(dict.values(classes.namespace_of(value))) if classes.is_class(value) else ()
                for one in (value, *inside):
                    if classes.is_one_of(type(one), (staticmethod, classmethod)):
                        one = one.__func__
                    for function in (one.fget, one.fset) if type(one) is property else (one,):
                        if type(function) is classes.FunctionType:
                            yield function


def _frames(walk):
    """The frames of all threads, innermost first; those of the agent are left out."""
    for ident, frame in list(sys._current_frames().items()):
        if ident in walk.own_threads:
            continue
        label = walk.thread_label(ident)
        while frame is not None:
            if id(frame.f_globals) not in walk.own_ids:
                walk.running[id(frame)] = id(frame.f_code)
                yield frame, "frame", label
            frame = frame.f_back


def _exceptions(walk):
    """Exceptions that a thread handles right now (3.10 and later)."""
    for ident, handled in list(getattr(sys, "_current_exceptions", dict)().items()):
        error = handled[1] if type(handled) is tuple else handled
        if error is not None and ident not in walk.own_threads:
            yield error, "frame", "exception in " + walk.thread_label(ident)


def _threads(walk):
    """Contexts and dictionaries of the thread states, and the values of thread-local objects."""
    states = threads.States()
    for note in states.notes:
        walk.note(note)
    owners = {}  # id(_localdummy) -> label of its thread
    for ident, context, space, dummy in states.found:
        if ident in walk.own_threads:
            continue
        label = walk.thread_label(ident)
        if dummy is not None:
            owners[id(dummy)] = label
        if context is not None:
            yield context, "contextvar", "context of " + label
        if space is not None:
            owners.update((id(value), label) for value in list(dict.values(space)))
            yield space, "thread-local", "state of " + label
    for thing in walk.instances_of(_local):
        yield from _values_of_local(walk, thing, owners)


def _values_of_local(walk, local, owners):
    """threading.local keeps a dict for each thread, in a dict by (a weak reference to) a dummy that the state holds."""
    for dummies in gc.get_referents(local):
        if type(dummies) is dict:
            for key, space in list(dict.items(dummies)):
                if type(space) is dict:
                    dummy = key() if type(key) is ReferenceType else key
                    label = owners.get(id(dummy), "thread ?")
                    walk.local_owners[id(space)] = label
                    yield space, "thread-local", label


def _interpreter(walk):
    yield sys.modules, "interpreter", "sys.modules"
    for name in ("callbacks", "garbage"):
        yield getattr(gc, name), "interpreter", "gc." + name
    known = {id(thing): thing for thing in walk.tracked if type(thing) is list or type(thing) is dict}
    for thing, label in registries(known):
        yield thing, "interpreter", label


def _signals(walk):
    getsignal = dict.get(classes.space_named("_signal"), "getsignal")
    if type(getsignal) is not classes.BuiltinFunctionType or "signal" not in sys.modules:
        return
    for number in range(1, 65):
        try:
            handler = getsignal(number)
        except ValueError:
            continue
        if handler is None or type(handler) is int or type(handler) is classes.BuiltinFunctionType:
            continue
        yield handler, "signal", "%s handler" % _signal_name(number)


def _signal_name(number):
    for name, value in list(dict.items(classes.space_named("_signal"))):
        if type(value) is int and value == number and name[:3] == "SIG" and name[3:4] != "_":
            return name
    return "signal %d" % number


def _atexit(walk):
    """Callbacks with their arguments: on 3.9 the module shows them, later the interpreter's state is searched."""
    counter = dict.get(classes.space_named("atexit"), "_ncallbacks")
    count = counter() if type(counter) is classes.BuiltinFunctionType else 0
    if not count:
        return
    if sys.version_info < (3, 10):
        label = "atexit callback"
        for thing in gc.get_referents(dict.get(sys.modules, "atexit")):
            if not classes.is_one_of(type(thing), (dict, tuple)):
                label = _callback_label(walk, thing)
            yield thing, "atexit", label
        return
    callbacks = atexit_callbacks(count, {id(thing): thing for thing in walk.tracked})
    if callbacks is None:
        walk.note("%d atexit callbacks are registered and could not be found" % count)
    for function, arguments, keywords in callbacks or ():
        if id(function) in walk.own_ids:
            continue
        label = _callback_label(walk, function)
        yield function, "atexit", label
        for thing in (arguments, keywords):
            if thing is not None:
                yield thing, "atexit", label


def _callback_label(walk, function):
    """Return "atexit callback flush()" for functions and bound methods, "atexit callback" for other things."""
    if type(function) is _METHOD:
        function = function.__func__
    if type(function) is classes.FunctionType and type(function.__qualname__) is str:
        return "atexit callback %s()" % walk.names.strings[walk.names.dotted(function.__qualname__)]
    return "atexit callback"


def _asyncio(walk):
    """Pending tasks and their contexts, and event loops: instances of AbstractEventLoop."""
    loop_class = dict.get(classes.space_named("asyncio.events"), "AbstractEventLoop")
    if loop_class is None:
        return
    task_class = dict.get(classes.space_named("_asyncio"), "Task")
    if task_class is not None:
        for task in walk.instances_of(task_class):
            if task_class.__dict__["_state"].__get__(task) == "PENDING":
                label = task_label(walk, task)
                yield task, "task", label
                for held in gc.get_referents(task):  # its own context comes before those of its callbacks
                    if type(held) is Context:
                        yield held, "contextvar", "context of " + label
                        break
    for loop in walk.instances_of(loop_class):
        yield loop, "event-loop", "event loop"


def task_label(walk, task):
    """Return "Task 'reader-eu'". get_name() of the C type is safe: the name of a task is always made an exact str."""
    return "Task " + walk.names.given(classes.space_named("_asyncio")["Task"].get_name(task))
