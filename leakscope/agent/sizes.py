"""What lies beside instances of C types that have no __sizeof__ to say so; the same in _probe/sizes.c."""

import io
import sys

from . import classes, threads

# Words of a StringIO, in Modules/_io/stringio.c: where it is, letters written, room in letters of four bytes; from 3.12 on what
# is written is put together in a str (its address, its letters, bytes a letter, room) until somebody reads.
_POSITION, _ROOM, _STATE, _TEXT = 3, 5, 6, 7
_HAS_TEXT = sys.version_info >= (3, 12)
_WORDS = _TEXT + 4 if _HAS_TEXT else _TEXT
_REALIZED, _INT = 1, 0xFFFFFFFF

_known = {}


def beside(cls):
    """Return a function of an instance to bytes; None for a class with nothing beside it or whose layout is not as expected."""
    if not any(base is io.StringIO for base in classes.mro_of(cls)):
        return None
    if "StringIO" not in _known:
        try:
            _known["StringIO"] = _has_expected_layout()
        except AttributeError:  # without _ctypes
            _known["StringIO"] = False
    return _of_string_io if _known["StringIO"] else None


def _of_string_io(thing):
    words = threads.machine_words(id(thing), _WORDS)
    size = words[_ROOM] * 4
    if _HAS_TEXT and words[_STATE] & _INT != _REALIZED and words[_TEXT]:
        text, letters, kind, room = words[_TEXT:]
        if threads.machine_words(text, 1)[0] & _INT == 1:  # after one write it is what was written, which others may hold
            size += letters - text + (room + 1) * (kind & _INT)
    return size


def _has_expected_layout():
    mine = io.StringIO()
    for _ in range(2):
        mine.write("x" * 100)
    words = threads.machine_words(id(mine), _WORDS)
    if _HAS_TEXT and not 200 <= words[_TEXT + 3] < 500:
        return False
    mine.seek(7)
    mine.read(1)
    words = threads.machine_words(id(mine), _WORDS)
    return words[_POSITION:_ROOM] == [8, 200] and 201 <= words[_ROOM] < 500 and words[_STATE] & _INT == _REALIZED
