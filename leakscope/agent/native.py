"""The few C functions that have no Python face, called through `_ctypes` alone.

The `ctypes` package would load `struct` and `types` before the target's first line (see jsontext.py). Everything here
is None, and says so, where the C library or the interpreter lacks it.
"""

import sys
from _functools import partial

try:
    import _ctypes
except ImportError:  # an interpreter built without libffi
    _ctypes = None  # type: ignore[assignment]

_MANAGED_DICT = 1 << 4  # Py_TPFLAGS_MANAGED_DICT of CPython 3.11


def allocator_reader():
    """Return a function that gives glibc's mallinfo2 as a dict in bytes; None before glibc 2.33 and elsewhere.

    The GIL is released during the call: it takes the locks of the arenas one after the other and looks at every free
    chunk.
    """
    function = _function("mallinfo2", _mallinfo2()) if _ctypes else None
    if function is None:
        return None

    def read():
        info = function()
        return {"malloc_used_bytes": info.uordblks + info.hblkhd, "malloc_free_bytes": info.fordblks,
                "malloc_mmapped_bytes": info.hblkhd, "malloc_arena_bytes": info.arena}

    return read


def traceback_reader():
    """Return a function from an object to tracemalloc's frames of it, [(file, line), ...] innermost first, or None.

    On CPython 3.11 `_tracemalloc._get_object_traceback` looks 16 bytes before an instance, where the collector's
    header would be; the block of an instance with a managed __dict__ begins 32 bytes before it (cpython #101430,
    mended in 3.12).
    """
    import _tracemalloc

    plain = _tracemalloc._get_object_traceback
    by_address = _traceback_by_address() if sys.version_info[:2] == (3, 11) and _ctypes else None
    if by_address is None:
        return plain
    flags_of = type.__dict__["__flags__"].__get__

    def read(thing):
        if flags_of(type(thing)) & _MANAGED_DICT:
            return by_address(0, id(thing) - 32)
        return plain(thing)

    return read


def reference_tracer():
    """Return the address of what holds CPython 3.13's one place for a reference tracer, or None; starting tracemalloc
    overwrites it, and stopping leaves it there."""
    if sys.version_info < (3, 13) or not _ctypes:
        return None
    pointer = _value_type("P")
    function = _function("PyRefTracer_GetTracer", pointer, _ctypes.FUNCFLAG_PYTHONAPI)
    return None if function is None else function(_ctypes.byref(pointer()))


def soon_caller(statement):
    """Return a callable that lets the main thread run `statement` (bytes) as soon as it is back in Python, or None.

    It is no Python function: the interpreter looks for waiting calls in those, so that "soon" would be before it returns.
    """
    add = _function("Py_AddPendingCall", _value_type("i"), _ctypes.FUNCFLAG_PYTHONAPI) if _ctypes else None
    if add is None:
        return None
    add.argtypes = (_value_type("P"), _value_type("z"))
    # int PyRun_SimpleString(const char *) has the very shape of a pending call.
    run = _ctypes.dlsym(_ctypes.dlopen(None, 0), "PyRun_SimpleString")  # type: ignore[arg-type]
    return partial(add, run, statement)


def plain_function(name, result, *arguments):
    """Return a C function of this process that is called without the GIL; None where there is none of that name.

    `result` and `arguments` are letters: i int, L unsigned long.
    """
    function = _function(name, _value_type(result)) if _ctypes else None
    if function is not None:
        function.argtypes = tuple(map(_value_type, arguments))
    return function


def _function(name, result, flags=0):
    try:
        address = _ctypes.dlsym(_ctypes.dlopen(None, 0), name)  # type: ignore[arg-type]
    except OSError:
        return None
    return _derived(_ctypes.CFuncPtr, _flags_=_ctypes.FUNCFLAG_CDECL | flags, _restype_=result)(address)


def _derived(cls, **attributes):
    """Return a subclass; it needs its attributes while it is made."""
    return type(cls)("leakscope_" + cls.__name__, (cls,), attributes)


def _value_type(code):
    return _derived(_ctypes._SimpleCData, _type_=code)


def _mallinfo2():
    size = _value_type("L")
    names = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    return _derived(_ctypes.Structure, _fields_=[(name, size) for name in names])


def _traceback_by_address():
    """Return `_PyTraceMalloc_GetTraceback(domain, address)`; it runs with the GIL and gives None when unknown."""
    function = _function("_PyTraceMalloc_GetTraceback", _value_type("O"), _ctypes.FUNCFLAG_PYTHONAPI)
    if function is not None:
        function.argtypes = (_value_type("I"), _value_type("L"))
    return function
