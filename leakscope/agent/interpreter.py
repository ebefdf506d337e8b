"""What only the interpreter's own memory says: callbacks of atexit (3.10+), names of inline attributes (3.11+), registries.

That memory is read through /proc/self/mem: a wrong guess is an error there and no crash. Nothing is dereferenced: what
is found are numbers, and they count only where each is the address of an object that we know already.
"""

import os

from . import classes, threads

_DICT_BEFORE = 24  # three words: _PyObject_ManagedDictPointer, Include/internal/pycore_object.h, 3.11 to 3.13
_STATE_BYTES = 1 << 19  # more than the state of any interpreter from 3.10 to 3.13
_MOST_CALLBACKS = 100_000
_MOST_NEW = 256  # callbacks that other threads register between the count and the reading of the table
_WORD = 8


def atexit_callbacks(count, known):
    """Return [(function, arguments, keywords)] of `count` registered callbacks; arguments are None where they are not
    in `known`.

    `known`: {address: object} of everything that could be one. None if the table is not found.
    """
    return _of_state(lambda memory, state: _search(memory, state, count, known)) if 0 < count < _MOST_CALLBACKS else None


def _of_state(find):
    """Return find(memory, words of the interpreter's state); None where they cannot be read."""
    start = threads.interpreter_state()
    if start is None:
        return None
    try:
        memory = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return find(memory, _read(memory, start, _STATE_BYTES))
    finally:
        os.close(memory)


def registries(known):
    """Yield (object, label): lists and dicts that only the state of the interpreter holds, of `known`, {address: object}.

    Those of codecs, told by the search function of `encodings`. Nothing tells those of os.register_at_fork() and
    sys.addaudithook() from what free lists have left there.
    """
    words = _of_state(lambda memory, state: state) or ()
    for place, word in enumerate(words):
        thing = known.get(word)
        if type(thing) is list and any(type(one) is classes.FunctionType and one.__module__ == "encodings" for one in thing):
            for part, label in zip(words[place:place + 3], ("codecs.register()", "cache of codecs", "codecs.register_error()")):
                if part in known:
                    yield known[part], label
            return


class InlineNames:
    """The attribute names of a class in the order in which its instances keep the values inline (3.11 and later).

    They are the keys that all instances share (ht_cached_keys of the type). Where that lies is found by a class of our
    own.
    """

    def __init__(self, words):
        self._words = words  # a set of str: names are shown only if code mentions them
        self._by_id = None
        self._memory = None

    def of(self, cls):
        """Return the names, None in places where a name is no word of the program's code; () where nothing is known."""
        if _keys_offset() is None:
            return ()
        if self._by_id is None:
            self._by_id = {id(word): word for word in self._words}
            try:
                self._memory = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                self._by_id = {}
        if not self._by_id:
            return ()
        return tuple(self._by_id.get(word) for word in _shared_keys(self._memory, cls, _keys_offset()))

    def dict_of(self, thing):
        """Return the address of the __dict__ of an instance that keeps attributes inline, another number if it has none, None
        where that cannot be read.
        """
        if not self._by_id:
            return None
        words = _read(self._memory, id(thing) - _DICT_BEFORE, _WORD)
        return words[0] if words else None

    def close(self):
        """Close the memory and drop the words."""
        if self._memory is not None:
            os.close(self._memory)
        self._memory = self._by_id = self._words = None


class _Known:
    def __init__(self):
        self.leakscope_first = self.leakscope_second = None


_offsets = []


def _keys_offset():
    """Return where a type keeps the pointer to its shared keys, None if that is not found; searched once a process."""
    if not _offsets:
        _offsets.append(_search_keys() if classes.MANAGED_DICT else None)
    return _offsets[0]


def _search_keys():
    known = _Known()
    names = [id(name) for name in _Known.__init__.__code__.co_names if name.startswith("leakscope_")]
    try:
        memory = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        for offset in range(0, _type_bytes(), _WORD):
            if _shared_keys(memory, type(known), offset) == names:
                return offset
    finally:
        os.close(memory)
    return None


def _type_bytes():
    return type.__sizeof__(_Known) // _WORD * _WORD


_KEYS_HEADER = 4 * _WORD  # PyDictKeysObject: references; sizes, kind, version; usable; entries in use
_SPLIT = 2  # its kind: keys without values
_MOST_KEYS = 30


def _shared_keys(memory, cls, offset):
    """Return the addresses of the names that the instances of a class share, [] if it is not so."""
    pointer = _read(memory, id(cls) + offset, _WORD)
    header = _read(memory, pointer[0], _KEYS_HEADER) if pointer and _is_address(pointer[0]) else ()
    if len(header) != 4:
        return []
    sizes, count = header[1].to_bytes(_WORD, "little"), header[3]
    if sizes[2] != _SPLIT or not 0 < count <= _MOST_KEYS or sizes[1] > 8:
        return []
    entries = _read(memory, pointer[0] + _KEYS_HEADER + (1 << sizes[1]), count * 2 * _WORD)
    return list(entries[::2])


_place = []  # where in the state of the interpreter the table was found: the same for the life of the process


def _search(memory, state, count, known):
    for place in _place or range(len(state) - 1):
        # struct atexit_state: {callbacks, number of callbacks (int), room for callbacks (int)}
        table, used, room = state[place], state[place + 1] & 0xFFFFFFFF, state[place + 1] >> 32
        if count <= used <= count + _MOST_NEW and used <= room < 2 * _MOST_CALLBACKS and _is_address(table):
            found = _callbacks(memory, table, used, known)
            if found is not None:
                _place[:] = [place]
                return found
    return None


def _callbacks(memory, table, count, known):
    found = []
    entries = [entry for entry in _read(memory, table, count * _WORD) if entry]  # 0 after atexit.unregister
    for entry in entries:
        words = _read(memory, entry, 3 * _WORD)
        if len(words) == 3 and words[0] in known:  # else it was registered since the walk began
            found.append(tuple(known.get(word) for word in words))
    return found if 2 * len(found) > len(entries) else None


def _is_address(word):
    return word > 1 << 12 and word % _WORD == 0


def _read(memory, address, size):
    """Return the words at an address; fewer where the memory ends, none where there is none."""
    try:
        data = os.pread(memory, size, address)
    except (OSError, OverflowError):
        return ()
    return memoryview(data[:len(data) // _WORD * _WORD]).cast("Q")
