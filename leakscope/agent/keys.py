"""What the keys of caches and tables look like: which part of a key differs from entry to entry, and how.

No code of the target runs: an int, a str, a float ... is told by its value, a tuple or a dataclass by its parts, what is
compared by identity by its address; of anything else, whose own code would have to compare it, only the type is known
("opaque"). Values leave the process only as how many different ones there are; small ints are lengths and shapes, and are
shown. The native walk does the same in _probe/keys.c.
"""

import gc
from _collections import OrderedDict
from _functools import _lru_cache_wrapper
from itertools import compress, islice

from . import classes
from .names import _arguments_of
from .readers import container_of

_MOST_KEYS = 4096  # of one cache or table, the newest ones
_MOST_TABLES, _LEAST_TABLE = 256, 8  # the longest ones
_MOST_KEY_PARTS = 1 << 20  # of all tables together, and of all caches: bounds the time
_MOST_POSITIONS, _MOST_INNER, _MOST_ITEMS, _MOST_FIELDS, _MOST_TYPES, _MOST_SAMPLES, _MOST_ARGUMENTS = 32, 8, 64, 16, 6, 64, 32
_MOST_STEPS, _MOST_PARTS = 4, 256  # an argument, and three levels inside it; of a key
_SHOWN_BELOW = 1 << 20  # a larger int may be a secret

_PLAIN = (int, bool, str, bytes, float, type(None))
_VALUE, _ITEMS, _ELEMENTS, _FIELDS, _IDENTITY, _OPAQUE = range(6)
_getattribute = object.__getattribute__
_object_hash, _tuple_hash = object.__dict__["__hash__"], tuple.__dict__["__hash__"]


class _Position:
    """One place in the keys, such as the second item of the first argument."""

    __slots__ = ("number", "at", "types", "marks", "ints", "identity", "opaque", "last_key")

    def __init__(self, number, at):
        self.number, self.at = number, at
        self.types, self.marks, self.ints, self.identity, self.opaque = {}, set(), [0, None, None], 0, 0
        self.last_key = -1  # that was counted here: each is counted once

    def told(self):
        """Return it as names.json has it."""
        steps = [step if type(step) is int else step[0] for step in self.at]
        shown, least, most = self.ints
        return {"at": steps, "types": self.types, "distinct": len(self.marks), "min": least, "max": most, "shown": shown,
                "identity": self.identity, "opaque": self.opaque}


class Keys:
    """Reads the keys of caches and tables of one walk."""

    def __init__(self, walk):
        self.walk = walk
        self.kinds = {}
        self.inner = set()  # dicts of functools caches: they are no tables
        self.positions, self.sample = {}, None
        self.key_now = self.parts_left = self.parts_of_caches = 0
        self.hashed_seq = dict.get(classes.space_named("functools"), "_HashedSeq")
        meta = dict.get(classes.space_named("enum"), "EnumMeta")
        self.enum_meta = meta if meta is not None and classes.is_class(meta) else None

    # --- how the objects of a type are compared ---

    def _kind(self, cls):
        known = self.kinds.get(id(cls))
        if known is None:
            known = self.kinds[id(cls)] = self._learn(cls)
        return known

    def _learn(self, cls):
        names = self.walk.names
        module, qualname = classes.names_of(cls)
        words = [names.strings[names.dotted(part)] for part in (module, qualname) if part and part != "builtins"]
        name = ".".join(words)
        found, method = classes.lookup(cls, "__hash__")
        fields = classes.lookup(cls, "__dataclass_fields__")[1]
        if classes.is_one_of(cls, _PLAIN):
            return _VALUE, name, None
        mro = classes.mro_of(cls)
        if method is _tuple_hash and any(base is tuple for base in mro):
            return _ITEMS, name, None
        if cls is frozenset:
            return _ELEMENTS, name, None
        is_enum = self.enum_meta is not None and any(base is self.enum_meta for base in classes.mro_of(type(cls)))
        if cls is classes.FunctionType or found and _is_identity(method) or is_enum:
            return _IDENTITY, name, None
        if type(fields) is dict:
            fields = self._fields(fields)
            if fields:
                return _FIELDS, name, fields
        return _OPAQUE, name, None

    def _fields(self, fields):
        """Return [(name, shown)] of the fields of a dataclass that take part in comparing (dataclasses.Field)."""
        found = []
        for name, field in list(dict.items(fields)):
            if type(name) is str and name.isascii() and len(found) < _MOST_FIELDS:
                try:
                    hashed, compared = _getattribute(field, "hash"), _getattribute(field, "compare")
                except AttributeError:
                    hashed, compared = None, None
                if hashed is True or hashed is None and compared is not False:
                    found.append((name, "." + self.walk.names.strings[self.walk.names.attribute(name)]))
        return found

    # --- fingerprints ---

    def _look(self, thing, at, is_told):
        """Return the fingerprint of what lies at a path; if it is told, the position there counts it."""
        if not self.parts_left:
            return "more", 0
        self.parts_left -= 1
        cls = type(thing)
        by, name, fields = self._kind(cls)
        position = self._position(at) if is_told else None
        mark = self._mark(thing, cls, by, fields, at, is_told)
        if position is None or position.last_key == self.key_now:  # keywords and fields without a name share a path
            return mark
        position.last_key = self.key_now
        if cls is classes.FunctionType and thing.__code__.co_name == "<lambda>":
            name = "lambda"
        types = position.types
        if name not in types and len(types) - ("..." in types) >= _MOST_TYPES:
            name = "..."
        types[name] = types.get(name, 0) + 1
        position.marks.add(mark)
        position.identity += by == _IDENTITY
        position.opaque += by == _OPAQUE
        if cls is int and 0 <= thing < _SHOWN_BELOW:
            shown, least, most = position.ints
            least, most = (thing, thing) if least is None else (min(least, thing), max(most, thing))
            position.ints = [shown + 1, least, most]
            if self.sample is not None:
                self.sample[position.number] = thing
        return mark

    def _mark(self, thing, cls, by, fields, at, is_told):
        if by == _VALUE:
            return cls.__name__, float.hex(thing) if cls is float else thing
        if by == _IDENTITY:
            return "identity", id(thing)
        if by == _OPAQUE:
            return "opaque", id(cls)
        is_deep = len(at) == _MOST_STEPS
        if by == _ITEMS:
            items = list(tuple.__iter__(thing))
            if is_deep:
                return "deep", len(items)
            told = len(items) if not at else _MOST_INNER
            return "items", len(items), tuple(self._look(item, at + (place,), is_told and place < told)
                                              for place, item in enumerate(items[:_MOST_ITEMS]))
        if is_deep:
            return "deep", id(cls)
        if by == _ELEMENTS:
            counts = {}
            for item in islice(frozenset.__iter__(thing), _MOST_ITEMS):
                mark = self._look(item, at + (0,), False)
                counts[mark] = counts.get(mark, 0) + 1
            return "elements", frozenset(counts.items())
        marks = [self._look_at_field(thing, cls, field, at, is_told and place < _MOST_INNER)
                 for place, field in enumerate(fields)]
        return "fields", id(cls), tuple(marks)

    def _look_at_field(self, thing, cls, field, at, is_told):
        name, shown = field
        if not classes.is_safe_name(cls, name):
            return None
        try:
            value = _getattribute(thing, name)
        except AttributeError:
            return None
        return self._look(value, at + ((shown,),), is_told)

    def _position(self, at):
        position = self.positions.get(at)
        if position is None and len(self.positions) < _MOST_POSITIONS:
            position = self.positions[at] = _Position(len(self.positions), at)
        return position

    # --- a key ---

    def _arguments(self, items, mark, is_typed):
        """Arguments, then names and values behind the mark (functools._make_key); their types follow where it is typed."""
        count = len(items)
        given = mark if mark >= 0 else count // 2 if is_typed else count
        pairs = 0 if mark < 0 else (count - 2 * mark - 1) // 3 if is_typed else (count - mark - 1) // 2
        for place, item in enumerate(items[:min(given, _MOST_ITEMS)]):
            self._look(item, (place,), True)
        for pair in range(min(pairs, _MOST_ITEMS)):
            name, value = items[mark + 1 + 2 * pair:mark + 3 + 2 * pair]
            names = self.walk.names
            word = names.strings[names.attribute(name)] if type(name) is str and names.is_constant(name) else "?"
            self._look(value, ((word + "=",),), True)

    def _table_key(self, key):
        cls = type(key)
        is_seq = cls is self.hashed_seq
        if not is_seq and self._kind(cls)[0] != _ITEMS:
            self._look(key, (), True)
            return
        items = list((list if is_seq else tuple).__iter__(key))
        marks = (place for place, item in enumerate(items) if type(item) is object or item is cls)
        self._arguments(items, next(marks, -1), False)

    def _cache_key(self, key, kwd_mark, is_typed):
        if type(key) is not tuple:  # one str or int alone is its own key
            self._look(key, (0,), True)
            return
        items = list(key)
        marks = (place for place, item in enumerate(items) if item is kwd_mark)
        self._arguments(items, next(marks, -1), is_typed)

    # --- all keys of one ---

    def _read(self, keys, values, look):
        """Return "keys" of names.json."""
        self.positions = {}
        rows, parts = [], 0
        for number, (key, value) in enumerate(zip(keys, values)):
            is_sampled = number + _MOST_SAMPLES >= len(keys) and (
                not classes.is_one_of(type(value), _PLAIN) or type(value) is bytes)
            self.sample = {} if is_sampled else None
            self.key_now, self.parts_left = number, _MOST_PARTS
            look(key)
            parts += _MOST_PARTS - self.parts_left
            if self.sample:
                rows.append((self.sample, id(value)))
        self.sample = None
        found = list(self.positions.values())
        samples = [[[row.get(position.number) for position in found], address] for row, address in rows]
        self.positions = {}
        return {"looked": len(keys), "positions": [position.told() for position in found], "samples": samples}, parts

    def of_cache(self, cache, function):
        """Return {"arguments", "keys"} of a functools cache of a Python function."""
        names = self.walk.names
        told = {"arguments": [names.strings[names.attribute(name)] for name in islice(_arguments_of(function.__code__),
                                                                                   _MOST_ARGUMENTS)]}
        referents = gc.get_referents(cache)
        space, mark = None, None
        for target in referents:
            if type(target) is object:
                mark = target
            elif type(target) is dict and space is None and len(target) == _lru_cache_wrapper.cache_info(cache)[3]:
                if not any(type(key) is str and key == "__wrapped__" for key in islice(target, 32)):
                    space = target
        if space is None:
            told["keys"] = {"looked": 0, "positions": [], "samples": []}
            return told
        self.inner.add(id(space))
        if self.parts_of_caches >= _MOST_KEY_PARTS:
            told["keys"] = {"looked": 0, "positions": [], "samples": []}
            return told
        keys = list(space)[-_MOST_KEYS:]
        values = list(dict.values(space))[-_MOST_KEYS:]
        if any("_lru_list_elem" in classes.names_of(type(value))[1] for value in values[-1:]):
            # With a limit: tp_traverse shows each key with its value behind it.
            after = {id(one): other for one, other in zip(referents, referents[1:])}
            values = [after.get(id(key)) for key in keys]
        is_typed = any(_is_typed(target) for target in referents)
        told["keys"], parts = self._read(keys, values, lambda key: self._cache_key(key, mark, is_typed))
        self.parts_of_caches += parts
        return told

    def tables(self, lengths):
        """Return "tables" of names.json; `lengths` is the column. Called after of_cache has seen all caches."""
        objects = self.walk.objects
        chosen = []
        for thing in compress(objects, map(_LEAST_TABLE.__le__, lengths)):
            if container_of(type(thing)) is dict and id(thing) not in self.inner:
                if type(thing) is OrderedDict:
                    key = next(OrderedDict.__reversed__(thing), None)
                else:
                    key = next(dict.__reversed__(thing), None)
                cls = type(key)
                if cls is int or cls is self.hashed_seq or any(base is tuple for base in classes.mro_of(cls)):
                    chosen.append((-dict.__len__(thing), id(thing), thing))
        chosen.sort(key=lambda row: row[:2])
        left, found = _MOST_KEY_PARTS, []
        for size, address, thing in chosen[:_MOST_TABLES]:
            if left <= 0:
                break
            keys, values = list(dict.keys(thing))[-_MOST_KEYS:], list(dict.values(thing))[-_MOST_KEYS:]
            told, parts = self._read(keys, values, self._table_key)
            found.append({"address": address, "size": -size, "keys": told})
            left -= parts
        return found


def _is_typed(space):
    """True for the __dict__ of a cache that tells keys apart by type, too: functools leaves a function there that knows."""
    told = dict.get(space, "cache_parameters") if type(space) is dict and len(space) < _MOST_ITEMS else None
    if type(told) is not classes.FunctionType or told.__closure__ is None:
        return False
    cells = dict(zip(told.__code__.co_freevars, told.__closure__))
    return "typed" in cells and gc.get_referents(cells["typed"]) == [True]


def _is_identity(method):
    """True for a __hash__ that tells objects apart by their address: object's own, or `return id(self)`."""
    if method is _object_hash:
        return True
    return type(method) is classes.FunctionType and method.__code__.co_names == ("id",)
