"""Reading the memory of this process where Python gives no safe way: locals of frames, states of threads.

`frame.f_locals` leaves a dict behind in the frame on 3.9-3.12, and no function shows the context or the thread-locals
of another thread. So their places in the interpreter's structures are found by calibration - markers of our own are
searched in objects of our own - and checked before use. What cannot be found is left out and said in `notes`.

Another thread may run between two bytecodes and free what a pointer leads to. Therefore each read goes from an object
that we hold to a new reference inside one expression without a call: the interpreter gives up the GIL only at calls and
backward jumps.
"""

import gc
import sys
from _thread import _local, get_ident

from . import classes

try:
    import _ctypes  # the package `ctypes` would load more (see jsontext.py)
except ImportError:  # a Python built without libffi
    _ctypes = None

_main_ident = get_ident()  # the agent is loaded by the thread that starts the interpreter
_WORD = 8
_MOST_THREADS = 400
_MOST_SLOTS = 4096  # of one frame


_layout = {}  # what was found once holds for the life of the process, and so do the types made for it


def _derived(cls, **attributes):
    return type(cls)("leakscope_" + cls.__name__, (cls,), attributes)


def _c_type(code):
    """Return the C type of a letter: O reference, L machine word, i int, c byte, P address."""
    if code not in _layout:
        _layout[code] = _derived(_ctypes._SimpleCData, _type_=code)
    return _layout[code]


def _array(kind, length):
    return _derived(_ctypes.Array, _type_=kind, _length_=length)


def _structure(**fields):
    return _derived(_ctypes.Structure, _fields_=list(fields.items()))


def _pointer(kind):
    return _derived(_ctypes._Pointer, _type_=kind)


def _function(name, result):
    address = _ctypes.dlsym(_ctypes.dlopen(None, 0), name)
    flags = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_PYTHONAPI
    return _derived(_ctypes.CFuncPtr, _flags_=flags, _restype_=result)(address)


def machine_words(address, count):
    """Return `count` machine words at `address`, which must lie inside an object that lives and has so many."""
    if ("words", count) not in _layout:
        _layout["words", count] = _array(_c_type("L"), count)
    return list(_layout["words", count].from_address(address))


def _marked_generator(first, second):
    yield first, second


class Slots:
    """Where frames and generators keep their variables; `notes` says what was not found."""

    def __init__(self):
        self.notes = []
        self.generator_offset = self.frame_offset = self.pointer_offset = None
        if _ctypes is None:
            self.notes.append("_ctypes is missing: no names for variables of frames, no threads for thread-locals")
            return
        if sys.implementation.name != "cpython" or sys.maxsize != (1 << 63) - 1:
            self.notes.append("this interpreter is no 64-bit CPython: local variables of frames are not named")
            return
        self._calibrate()
        if not self._is_right():
            self.frame_offset = self.generator_offset = None
            self.notes.append("the layout of frames is unknown: local variables of running frames are not seen")

    def _calibrate(self):
        first, second = object(), object()
        pair = [id(first), id(second)]
        generator = _marked_generator(first, second)
        next(generator)
        if sys.version_info >= (3, 11):
            self.generator_offset = _find(pair, machine_words(id(generator), sys.getsizeof(generator) // _WORD - 2))
            frame = _frame_with(first, second)
            # A finished frame owns its variables: the pointer leads into the frame object itself.
            size = sys.getsizeof(frame)
            for offset in range(2 * _WORD, 8 * _WORD, _WORD):
                target = machine_words(id(frame) + offset, 1)[0]
                if id(frame) < target < id(frame) + size:
                    found = _find(pair, machine_words(target, (id(frame) + size - target) // _WORD))
                    if found is not None:
                        self.pointer_offset, self.frame_offset = offset, found
                        break
            frame.clear()
        else:
            frame = generator.gi_frame
            self.frame_offset = _find(pair, machine_words(id(frame), sys.getsizeof(frame) // _WORD))
        del frame  # it leads back to this frame: a cycle of ours would be in the snapshot

    def _is_right(self):
        """Read the variables of a running and of a suspended frame of our own."""
        if self.frame_offset is None:
            return False
        marker, other = [], ()
        generator = _marked_generator(marker, other)
        next(generator)
        here = sys._getframe()
        names = local_names(here.f_code)
        found = dict(self.of_frame(here, names))  # with `here`, a cycle, which is broken below
        right = found.get("marker") is marker and found.get("here") is here and found.get("self") is self
        if self.generator_offset is not None:
            found.clear()
            found = dict(self.of_generator(generator, local_names(generator.gi_code)))
            right = right and found.get("first") is marker and found.get("second") is other
        found.clear()
        del here
        return right

    def _overlay(self, count):
        """Return the ctypes type that shows at least `count` slots of a frame."""
        count = -(-count // 16) * 16  # few types: only the slots asked for are read
        overlay = _layout.get(count)
        if overlay is None:
            overlay = _array(_c_type("O"), count)
            if self.pointer_offset is not None:
                byte = _c_type("c")
                data = _structure(_before=_array(byte, self.frame_offset - _WORD), stack_top=_c_type("i"),
                                  _flags=_array(byte, _WORD - 4), slots=overlay)
                overlay = _structure(_before=_array(byte, self.pointer_offset), data=_pointer(data))
            _layout[count] = overlay
        return overlay

    def _plain(self, count):
        count = -(-count // 16) * 16
        if ("slots", count) not in _layout:
            _layout["slots", count] = _array(_c_type("O"), count)
        return _layout["slots", count]

    def of_frame(self, frame, names):
        """Return [(name, value)] of the variables of a frame that are set; `names` are local_names() of its code."""
        if self.frame_offset is None or not names:
            return []
        found = []
        if self.pointer_offset is None:
            return _read_slots(self._plain(len(names)).from_address(id(frame) + self.frame_offset), names)
        view = self._overlay(len(names)).from_address(id(frame))
        for number, name in enumerate(names):
            try:
                found.append((name, view.data.contents.slots[number]))
            except ValueError:  # not set
                pass
        return found

    def stack_of(self, frame, variables, size):
        """Return [(slot, value)] of the evaluation stack of a frame that waits for a Python function, else []."""
        if self.pointer_offset is None or self.frame_offset is None or size > _MOST_SLOTS:
            return []
        view = self._overlay(variables + size).from_address(id(frame))
        found = []
        for slot in range(variables, variables + size):
            try:
                # While a frame runs, its stack top is -1: what lies above the variables may be stale.
                value = data.slots[slot] if (data := view.data.contents).stack_top > slot else _NOTHING
            except ValueError:
                continue
            if value is _NOTHING:
                break
            found.append((slot - variables, value))
        return found

    def of_generator(self, generator, names):
        """Return [(name, value)] of the variables of a suspended generator, coroutine or async generator (3.11+)."""
        if self.generator_offset is None or not names:
            return []
        return _read_slots(self._plain(len(names)).from_address(id(generator) + self.generator_offset), names)


_NOTHING = object()


def slots():
    """Return the Slots of this process, calibrated once."""
    if "slots" not in _layout:
        _layout["slots"] = Slots()
    return _layout["slots"]


def _read_slots(slots, names):
    found = []
    for number, name in enumerate(names):
        try:
            found.append((name, slots[number]))
        except ValueError:  # not set
            pass
    return found


def _find(pair, words):
    """Return the byte offset of two neighbouring words, None where they are not or are there twice."""
    places = [place for place in range(len(words) - 1) if words[place:place + 2] == pair]
    return places[0] * _WORD if len(places) == 1 else None


def _frame_with(first, second):
    try:
        raise KeyError
    except KeyError as error:
        return error.__traceback__.tb_frame


def local_names(code):
    """Return the variables of a code object in the order of their slots: arguments and locals, cells, free variables.

    From 3.11 on `co_varnames` makes and keeps a new tuple for each code object, so the names are asked one by one.
    """
    if sys.version_info < (3, 11):
        return code.co_varnames + code.co_cellvars + code.co_freevars
    names = []
    name_of = code._varname_from_oparg
    try:
        while len(names) < _MOST_SLOTS:
            names.append(name_of(len(names)))
    except IndexError:
        pass
    return tuple(names)


class States:
    """The thread states of this interpreter: `found` is [(ident, context or None, dict of the state or None, dummy or
    None)].

    The dummy is the object under which a threading.local keeps the values of the thread (3.13; before, it is in the
    dict of the state). The list is walked from our own state, which lives while we run, by expressions without a call
    (see above).
    """

    def __init__(self):
        self.notes = []
        self.found = []
        if _ctypes is None:
            return
        try:
            self._walk()
        except (AttributeError, OSError) as error:
            self.notes.append("thread states could not be read: %s" % type(error).__name__)

    def _walk(self):
        own, offsets = _own_state()
        if offsets is None:
            self.notes.append("the layout of thread states is unknown: contexts and thread-locals have no thread")
            return
        scope = {name: view.from_address(own) for name, view in _state_views().items()}
        ident_slot, context_slot, dict_slot, dummy_slot = offsets
        for direction, first in (("next", 0), ("previous", 1)):
            for steps in range(first, _MOST_THREADS):
                way = (".%s.contents" % direction) * steps + ".words[%d]"
                try:
                    # One expression each. A thread that ends between them makes a pair that does not fit, never a wild
                    # pointer.
                    before = eval("numbers" + way % ident_slot, scope)
                    context = _get("objects" + way % context_slot, scope)
                    space = _get("objects" + way % dict_slot, scope)
                    dummy = _get("objects" + way % dummy_slot, scope) if dummy_slot else None
                    after = eval("numbers" + way % ident_slot, scope)
                except (_EndOfList, ValueError):  # ValueError: the NULL pointer at the end of the list
                    break
                if before == after:
                    self.found.append((before, context, space, dummy))


_STATE_WORDS = 96
def _state_views():
    """Return {"objects", "numbers"}: the memory of a thread state seen as references and as numbers."""
    if "views" not in _layout:
        views = {}
        for name, code in (("objects", "O"), ("numbers", "L")):
            view = _derived(_ctypes.Structure)
            link = _pointer(view)
            view._fields_ = [("previous", link), ("next", link), ("words", _array(_c_type(code), _STATE_WORDS))]
            views[name] = view
        _layout["views"] = views
    return _layout["views"]


def _own_state():
    """Return the address of our thread state and the places in `words` of (ident, context, dict, dummy)."""
    if "api" not in _layout:
        # The dict is borrowed: asked for as a reference it would be released once too often.
        _layout["api"] = _function("PyThreadState_Get", _c_type("P")), _function("PyThreadState_GetDict", _c_type("P"))
    state, state_dict = _layout["api"]
    own = state()
    if "offsets" not in _layout:
        _layout["offsets"] = _state_offsets(own, state_dict())
    return own, _layout["offsets"]


class _EndOfList(Exception):
    pass


def _get(expression, scope):
    try:
        return eval(expression, scope)
    except ValueError as error:
        if "PyObject is NULL" in str(error):
            return None
        raise _EndOfList from None


def _state_offsets(own, own_dict):
    """Return where (ident, context, dict, dummy) are in the words of our thread state, whose dict is at `own_dict`."""
    import _contextvars

    address = own + 2 * _WORD
    local = _local()
    local.x = None  # a thread that has never used one has no dummy (3.13)
    words = machine_words(address, _STATE_WORDS)
    fresh = _contextvars.Context()
    inside = fresh.run(machine_words, address, _STATE_WORDS)
    dummies = next((thing for thing in gc.get_referents(local) if type(thing) is dict and len(thing) == 1), {})
    dummy = next(iter(dummies), None)
    try:
        context = next(i for i in range(_STATE_WORDS) if inside[i] == id(fresh) and words[i] != id(fresh))
        return (words.index(get_ident()), context, words.index(own_dict),
                words.index(id(dummy)) if id(dummy) in words else 0)
    except (StopIteration, ValueError):
        return None


def interpreter_state():
    """Return the address of the interpreter's state, None where it cannot be asked."""
    if _ctypes is None:
        return None
    if "interpreter" not in _layout:
        try:
            _layout["interpreter"] = _function("PyInterpreterState_Get", _c_type("P"))()
        except OSError:
            _layout["interpreter"] = None
    return _layout["interpreter"]


def thread_names():
    """Return {ident: name} of the threads that the threading module knows; a name that is no exact str is "?"."""
    names = {}
    active = dict.get(classes.space_named("threading"), "_active")
    for ident, thread in list(dict.items(active)) if type(active) is dict else ():
        name = None
        for candidate in gc.get_referents(thread):
            # The attributes of an instance: in its __dict__, or (3.11+) asked by a name that runs no code.
            if type(candidate) is dict and type(dict.get(candidate, "_name")) is str:
                name = dict.get(candidate, "_name")
        if name is None:
            try:
                name = object.__getattribute__(thread, "_name")
            except AttributeError:
                pass
        names[ident] = name if type(name) is str else "?"
    names.setdefault(_main_ident, "MainThread")  # a program that never loads threading has that one all the same
    return names
