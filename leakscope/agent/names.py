"""Names that may be shown, and the string table of a snapshot.

Private by default: a name is shown when it is the program's own word. Attribute, variable, function, class and module
names are; a dict key, thread name or task name is one only if it is a constant of the program's code and looks like a
name. Everything else is shown as type and length: `str:17`, `int`, `tuple:2`.
"""

import os
import sys

from . import classes
from .format import ATTRIBUTE, CELL, EDGE_KIND_SHIFT, EDGE_VALUE_MASK, INTERNAL, LOCAL

LONGEST_NAME = 60
_LONGEST_NUMBER = 5  # digits; longer ones are times, accounts, telephones
_LARGEST_SOURCE_BYTES = 1 << 20
_MOST_SOURCES = 4000  # modules; of them only the program's own are read
_DIGITS = frozenset("0123456789")
_FIRST = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_")
_FURTHER = _FIRST | _DIGITS | frozenset(" ./:-")
_OF_FILES = _FURTHER | frozenset("\\<>+")
_MADE_UP = frozenset(("<string>", "<stdin>", "<console>"))
# Names that the standard library gives by itself, before a number.
_DEFAULT_STEMS = ("Thread", "Dummy", "Task", "asyncio", "ThreadPoolExecutor", "MainThread", "QueueFeederThread",
                  "QueueManagerThread")

# Words of modules that were imported long ago: their code objects are gone, so their sources are asked, once a process.
_words_of_sources = {}


def is_name_like(text):
    """True if `text` (an exact str) reads like a name and holds no long number and no address."""
    is_short = 0 < len(text) <= LONGEST_NAME
    return is_short and text[0] in _FIRST and _FURTHER.issuperset(text) and not _has_long_number(text)


def _has_long_number(text):
    if _DIGITS.isdisjoint(text):
        return False
    run = 0
    for letter in text:
        run = run + 1 if letter in _DIGITS else 0
        if run > _LONGEST_NUMBER:
            return True
    return False


def library_part(path):
    """Return a path from site-packages or the standard library on, "" for a file of neither."""
    parts = path.replace("\\", "/").split("/")
    for place, part in enumerate(parts[:-1]):
        if part in ("site-packages", "dist-packages"):
            return "/".join(parts[place:])
    for place, part in enumerate(parts[:-1]):
        if part.startswith("python3.") and part[8:].isdigit():
            return "/".join(parts[place:])
    return ""


def file_name(path):
    """Return a source file relative to the working directory, or from site-packages or the standard library on."""
    if type(path) is not str or not _OF_FILES.issuperset(path) or _has_long_number(path):
        return "?"
    if path[:1] == "<":
        return path if path in _MADE_UP or path.startswith("<frozen ") else "<generated>"
    if not path.endswith(".py"):
        return "?"
    library = library_part(path)
    if library:
        return library
    try:
        here = os.getcwd() + os.sep
    except OSError:
        here = os.sep
    if path.startswith(here):
        return path[len(here):]
    return os.path.join(*path.split(os.sep)[-2:]) if os.path.isabs(path) else path


class Names:
    """The string table: `strings` (row 0 is ""), and the masking of everything that becomes a row."""

    def __init__(self):
        self.strings = [""]
        self.constants = set()
        self._rows = {"": 0}
        self._codes = set()
        self._shown = {}
        self._files = {}
        self._lengths = {}

    def row(self, text):
        """Return the row of `text`, which must be fit to be shown."""
        row = self._rows.get(text)
        if row is None:
            row = self._rows[text] = len(self.strings)
            self.strings.append(text)
        return row

    # --- constants of the program ---

    def learn_code(self, code):
        """Take in the constants and names of a code object and of those inside it."""
        codes, constants = self._codes, self.constants
        waiting = [code]
        while waiting:
            code = waiting.pop()
            if id(code) in codes:
                continue
            codes.add(id(code))
            constants.update(code.co_names)
            constants.update(_arguments_of(code))
            for value in code.co_consts:
                kind = type(value)
                if kind is str:
                    constants.add(value)
                elif kind is tuple or kind is frozenset:
                    constants.update(_strings_in(value))
                elif kind is classes.CodeType:
                    waiting.append(value)

    def learn_functions(self, functions):
        """Take in the code of exact Python functions."""
        for function in functions:
            self.learn_code(function.__code__)

    def learn_sources(self, modules):
        """Take in the quoted words of the sources of the program's own modules, not of libraries."""
        for module in modules[:_MOST_SOURCES]:
            if type(module) is classes.ModuleType:
                path = dict.get(classes.space_of(module) or {}, "__file__")
                if type(path) is str and path.endswith(".py") and not library_part(path):
                    self.constants.update(_words_of(path))

    def is_constant(self, text):
        """True if `text` is a word of the program and reads like a name."""
        return text in self.constants and is_name_like(text)

    # --- texts ---

    def key(self, key):
        """Return the row of a mapping's key."""
        if type(key) is not str:
            return self.row(self._other_key(key))
        row = self._shown.get(key)
        if row is None:
            if not self.is_constant(key):
                return self._masked(key)
            row = self._shown[key] = self.row("'%s'" % key)
        return row

    def _masked(self, text):
        length = len(text)
        row = self._lengths.get(length)
        if row is None:
            row = self._lengths[length] = self.row("str:%d" % length)
        return row

    def _other_key(self, key):
        kind = type(key)
        if key is None or kind is bool:
            return str(key)
        if kind is bytes or kind is tuple or kind is frozenset:
            return "%s:%d" % (kind.__name__, len(key))
        if kind is int or kind is float or kind is complex:
            return kind.__name__
        if kind is classes.FunctionType or kind is classes.BuiltinFunctionType:
            name = key.__qualname__
            return self.strings[self.dotted(name)] if type(name) is str else kind.__name__
        return self.strings[self.dotted(classes.qualname_of(key if classes.is_class(key) else kind))]

    def attribute(self, name):
        """Return the row of an attribute or variable name; what is no identifier is masked."""
        if type(name) is not str:
            return self.key(name)
        row = self._rows.get(name)
        if row is not None:
            return row
        if name.isidentifier() and len(name) <= LONGEST_NAME and not _has_long_number(name):
            return self.row(name)
        if name[:1] == "." and name[1:].isdigit():  # the iterable of a comprehension
            return self.row(name)
        return self._masked(name)

    def dotted(self, name):
        """Return the row of a module, class or function name; parts that are no identifiers are masked."""
        if type(name) is not str:
            return self.row("?")
        row = self._rows.get(name)
        if row is None:
            row = self.row(".".join(self._part(part) for part in name.split("."))[:200])
        return row

    def _part(self, part):
        return part if part in _CODE_NAMES or part == "?" else self.strings[self.attribute(part)]

    def given(self, name):
        """Return the text of a name that the program gave to a thread or task, quoted, or masked."""
        if type(name) is not str:
            return type(name).__name__
        if self.is_constant(name) or is_name_like(name.replace("(", "").replace(")", "")) and self._is_numbered(name):
            return "'%s'" % name
        return "str:%d" % len(name)

    def _is_numbered(self, name):
        """True for a word of the program or the standard library with a number: feed-3, Thread-12 (run), asyncio_0."""
        stem, _, target = name.partition(" (")
        if target and not (target.endswith(")") and target[:-1].isidentifier()):
            return False
        stem = stem.rstrip("0123456789-_")
        return stem in _DEFAULT_STEMS or any(
            word in self.constants for word in (stem, stem + "-", stem + "_", name[:len(stem) + 1])) and not target

    def place(self, code, line=None):
        """Return "parse() at app.py:12" for a code object."""
        name = getattr(code, "co_qualname", code.co_name)
        if type(name) is not str:
            name = code.co_name
        shown = self.strings[self.dotted(name)]
        path = code.co_filename
        file = self._files.get(path)
        if file is None:
            file = self._files[path] = file_name(path)
        return "%s at %s:%d" % (shown if name == "<module>" else shown + "()", file, line or code.co_firstlineno)

    # --- edges ---

    def attribute_label(self, name):
        """Return the code of an edge by an attribute name."""
        return ATTRIBUTE << EDGE_KIND_SHIFT | self.attribute(name)

    def local_label(self, name):
        """Return the code of an edge by a local variable."""
        return LOCAL << EDGE_KIND_SHIFT | self.attribute(name)

    def cell_label(self, name):
        """Return the code of an edge from the closure of a function to a cell."""
        return CELL << EDGE_KIND_SHIFT | self.attribute(name)

    def internal_label(self, name):
        """Return the code of an edge that C code calls `name`, one of our own words."""
        return INTERNAL << EDGE_KIND_SHIFT | self.row(name) & EDGE_VALUE_MASK

    def held(self):
        """Return {id: count}: the references that gc.get_referents hides, those of the keys of our tables."""
        held = {}
        for table in (self._rows, self._shown, self._files):
            for text in table:
                held[id(text)] = held.get(id(text), 0) + 1
        return held


_CODE_NAMES = frozenset(("<locals>", "<lambda>", "<module>", "<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>"))


def _arguments_of(code):
    """Return the names of the arguments of a code object: they become keys when it is called by keywords."""
    count = code.co_argcount + code.co_kwonlyargcount
    if sys.version_info < (3, 11):
        return code.co_varnames[:count]
    # From 3.11 on `co_varnames` makes and keeps a new tuple for each code object.
    return map(code._varname_from_oparg, range(count))


def _strings_in(values):
    """Yield the exact strings in a constant tuple or frozenset, however deep."""
    for value in values:
        kind = type(value)
        if kind is str:
            yield value
        elif kind is tuple or kind is frozenset:
            yield from _strings_in(value)


_of_program = [0, frozenset()]  # how many sources were read, and the words of all of them


def words_of_program():
    """Return a frozenset of the quoted words of the program's own sources, for the probe; read before the target stands
    still.
    """
    words = Names()
    words.learn_sources(list(dict.values(sys.modules)))
    if _of_program[0] != len(_words_of_sources):
        _of_program[:] = [len(_words_of_sources), frozenset(words.constants)]
    return _of_program[1]


def _words_of(path):
    """Return the quoted words of a source file, from a table that lives as long as the agent."""
    words = _words_of_sources.get(path)
    if words is None:
        text = ""
        try:
            if os.stat(path).st_size <= _LARGEST_SOURCE_BYTES:
                with open(path, "rb") as file:
                    text = file.read().decode("utf-8", "ignore")
        except OSError:
            pass
        # What lies between quotes, and a little more, and the names before an equals sign: all of it is the program's text.
        quoted = filter(is_name_like, text.replace('"', "'").split("'"))
        words = _words_of_sources[path] = frozenset(quoted).union(_names_before_equals(text))
    return words


def _names_before_equals(text):
    """Yield the identifiers that something is assigned to, keyword arguments among them."""
    for part in text.split("=")[:-1]:
        words = part[-LONGEST_NAME:].split()
        if words:
            word = words[-1].rpartition("(")[2].rpartition(",")[2].rpartition(".")[2]
            if word.isidentifier() and is_name_like(word):
                yield word
