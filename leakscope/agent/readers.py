"""Readers of the exact builtin types: what an object holds, and by which name. A reader maps an object to (targets,
labels).

Two lists of one length, or a list and anything iterable of that length. There is one entry for each reference that
tp_traverse shows, so that the host can compute garbage from reference counts; what is added or moved is said at the
reader.
"""

import gc
import sys
from _collections import deque

from . import classes, threads
from .format import CONTENTS, EDGE_KIND_SHIFT, ELEMENT, INDEX, INTERNAL, KEY, KEY_OBJECT, STACK, UNKNOWN
from .instances import TYPE_LABEL, UNKNOWN_LABEL

_get_referents = gc.get_referents
_INDEX = INDEX << EDGE_KIND_SHIFT
_KEY = KEY << EDGE_KIND_SHIFT
_KEY_OBJECT = KEY_OBJECT << EDGE_KIND_SHIFT
_STACK = STACK << EDGE_KIND_SHIFT
_ELEMENT = ELEMENT << EDGE_KIND_SHIFT
_CONTENTS = (CONTENTS << EDGE_KIND_SHIFT,)
_LONGEST_INLINE = 30  # most attributes that an instance of 3.13 keeps inline
_EMPTY = ((), ())

# Types that hold nothing.
LEAVES = (str, bytes, bytearray, int, float, complex, bool, type(None), type(Ellipsis), type(NotImplemented), range)
CONTAINERS = (dict, list, tuple, set, frozenset, deque)
GENERATORS = (classes.GeneratorType, classes.CoroutineType, classes.AsyncGeneratorType)


def container_of(cls):
    """Return the builtin container that `cls` is or is derived from, else None."""
    for base in classes.mro_of(cls):
        for container in CONTAINERS:
            if base is container:
                return container
    return None


_FRAME_PARTS = {id(classes.FrameType): "f_back", id(classes.FunctionType): "f_func", id(classes.CodeType): "f_code"}


def prefix_of(thing):
    """Return "gi", "cr" or "ag": how the attributes of a generator, coroutine or asynchronous generator begin."""
    kind = type(thing)
    return "gi" if kind is classes.GeneratorType else "cr" if kind is classes.CoroutineType else "ag"


class Readers:
    """The readers of one walk."""

    def __init__(self, walk):
        self.walk = walk
        self.names = walk.names
        word = self.names.internal_label
        self.words = {name: word(name) for name in (
            "__code__", "__globals__", "__module__", "__defaults__", "__kwdefaults__", "__closure__", "__doc__",
            "__name__", "__qualname__", "__builtins__", "__dict__", "__annotations__", "__type_params__", "__mro__",
            "__bases__", "__base__", "co_consts", "co_names", "f_code", "f_locals", "<state>", "order", "cache",
            "cache[*]", "cache key", "__wrapped__", "kwd_mark", "link type",
            "__objclass__")}
        self.slots = threads.slots()
        self.by_id = {id(leaf): None for leaf in LEAVES}
        self.by_id.update({
            id(dict): self.dict, id(list): self.list, id(tuple): self.tuple, id(set): self.set, id(frozenset): self.set,
            id(deque): self.deque, id(classes.CellType): self.cell, id(classes.FunctionType): self.function,
            id(classes.CodeType): self.code, id(classes.ModuleType): self.module, id(classes.FrameType): self.frame})
        self.by_id.update((id(kind), self.generator) for kind in GENERATORS)
        self.by_id.update((id(kind), self.descriptor) for kind in classes.DESCRIPTORS)
        self.by_id[id(classes.BuiltinFunctionType)] = self.builtin_function

    # --- containers ---

    def dict(self, thing):
        """Values under KEY and keys under KEY_OBJECT labels (added: tp_traverse hides the keys of most dicts)."""
        if id(thing) in self.walk.name_spaces and id(thing) not in self.walk.local_spaces:
            return self.name_space(thing)
        keys, values = list(dict.keys(thing)), list(dict.values(thing))
        if id(thing) in self.walk.local_spaces:  # the values of a threading.local are shown by itself, with the thread
            return keys, [_KEY_OBJECT + self.names.key(key) for key in keys]
        if sys.version_info >= (3, 13) and 0 < len(keys) <= _LONGEST_INLINE and not _get_referents(thing):
            return _EMPTY  # it only shows the inline attributes of its instance
        rows = list(map(self.names.key, keys))
        labels = [_KEY + row for row in rows]
        labels += [_KEY_OBJECT + row for row in rows]
        values += keys
        return values, labels

    def name_space(self, thing):
        """The dict of an instance, class or module: its values as attributes."""
        keys, values = list(dict.keys(thing)), list(dict.values(thing))
        if sys.version_info >= (3, 13) and 0 < len(keys) <= _LONGEST_INLINE and not _get_referents(thing):
            return _EMPTY
        return values, list(map(self.names.attribute_label, keys))

    def list(self, thing):
        """INDEX. By tp_traverse, which begins at the end: to copy a list with empty places, as an XML parser has it, is a
        crash.
        """
        values = _get_referents(thing)
        values.reverse()
        return values, range(_INDEX, _INDEX + len(values))

    def tuple(self, thing):
        """INDEX; the closure of a function: CELL with the name of the free variable. By tp_traverse, as lists: tuple(generator)
        is half empty while the generator runs.
        """
        labels, values = self.walk.tuple_labels.get(id(thing)), _get_referents(thing)
        values.reverse()
        if labels is not None and len(labels) == len(values):
            return values, labels
        return values, range(_INDEX, _INDEX + len(values))

    def set(self, thing):
        """ELEMENT."""
        values = list(thing)
        return values, [_ELEMENT] * len(values)

    def deque(self, thing):
        """INDEX."""
        limit = deque.maxlen.__get__(thing)
        if limit is not None:
            self.walk.bound(thing, limit, "maxlen")
        values = list(deque.__iter__(thing))
        return values, range(_INDEX, _INDEX + len(values))

    def contents(self, container, thing):
        """Read the contents of an instance of a subclass of `container` by the methods of `container` itself."""
        if container is dict:
            keys, values = list(dict.keys(thing)), list(dict.values(thing))
            rows = list(map(self.names.key, keys))
            return values + keys, [_KEY + row for row in rows] + [_KEY_OBJECT + row for row in rows]
        if container is deque:
            return self.deque(thing)
        values = list(container.__iter__(thing))
        if container in (set, frozenset):
            return values, [_ELEMENT] * len(values)
        return values, range(_INDEX, _INDEX + len(values))

    # --- code ---

    def cell(self, thing):
        """CONTENTS."""
        return _get_referents(thing), _CONTENTS

    def function(self, thing):
        """INTERNAL, by the C members of functions; `__dict__` and `__annotations__` are told apart, not asked for."""
        referents = _get_referents(thing)
        words = self.words
        code, closure = thing.__code__, thing.__closure__
        named = {id(code): words["__code__"], id(thing.__globals__): words["__globals__"]}
        for name, value in (("__defaults__", thing.__defaults__), ("__kwdefaults__", thing.__kwdefaults__),
                            ("__doc__", thing.__doc__), ("__module__", thing.__module__), ("__name__", thing.__name__),
                            ("__qualname__", thing.__qualname__)):
            if value is not None:
                named[id(value)] = words[name]
        if closure is not None:
            named[id(closure)] = words["__closure__"]
            variables = threads.local_names(code)[-len(closure):]
            self.walk.name_tuple(closure, [self.names.cell_label(name) for name in variables])
        labels = [named.get(id(target)) for target in referents]
        for place, label in enumerate(labels):
            if label is None:
                labels[place] = self._rest_of_function(code, referents, labels, place)
        return referents, labels

    def _rest_of_function(self, code, referents, labels, place):
        target, later = referents[place], referents[place + 1:]
        if type(target) is tuple:
            return self.words["__annotations__" if target and type(target[0]) is str else "__type_params__"]
        if type(target) is dict:
            if place == 2 and sys.version_info >= (3, 10):
                return self.words["__builtins__"]
            # __dict__ comes before __closure__ and __annotations__.
            is_first = self.words["__closure__"] in labels[place:] or any(
                type(one) is dict for one, label in zip(later, labels[place + 1:]) if label is None)
            if self.words["__dict__"] in labels or not is_first and self._are_annotations(code, list(target)):
                return self.words["__annotations__"]
            if not is_first and not target:  # somebody asked for one of the two, and it is empty
                return UNKNOWN_LABEL
            self.walk.name_space(target)
            return self.words["__dict__"]
        return UNKNOWN_LABEL

    def _are_annotations(self, code, keys):
        count = code.co_argcount + code.co_kwonlyargcount + 2
        arguments = ("return",) + tuple(self.variables(code)[:count])
        return len(keys) > 0 and all(key in arguments for key in keys if type(key) is str)

    def code(self, thing):
        """INTERNAL: constants and names (added: code objects have no tp_traverse)."""
        return (thing.co_consts, thing.co_names), (self.words["co_consts"], self.words["co_names"])

    def builtin_function(self, thing):
        """`__self__` of a bound C method; the module and its name of a C function."""
        referents = _get_referents(thing)
        if not referents:
            return _EMPTY
        own = thing.__self__
        label = self.names.internal_label("__self__")
        return referents, [label if target is own else self.words["__module__"] for target in referents]

    def descriptor(self, thing):
        """The class that a slot or C method belongs to; without it no class with slots could be garbage."""
        referents = _get_referents(thing)
        return referents, [self.words["__objclass__"]] * len(referents)

    # --- modules and types ---

    def module(self, thing):
        """`__dict__`, and the state of a C module under INTERNAL "<state>"."""
        referents = classes.module_referents(thing)
        own = classes.space_of(thing)
        labels = []
        for target in referents:
            if target is own:
                self.walk.name_space(target)
            labels.append(self.words["__dict__" if target is own else "<state>"])
        return referents, labels

    def type(self, thing):
        """`__dict__`, `__mro__`, `__bases__`, `__base__`, and the metaclass."""
        referents = _get_referents(thing)
        if not referents:
            return _EMPTY
        words = self.words
        own, mro = classes.namespace_of(thing), classes.mro_of(thing)
        bases, base = type.__dict__["__bases__"].__get__(thing), type.__dict__["__base__"].__get__(thing)
        self.walk.name_space(own)
        labels = []
        for target in referents:
            if target is own:
                labels.append(words["__dict__"])
            elif target is mro:
                labels.append(words["__mro__"])
            elif target is bases:
                labels.append(words["__bases__"])
            elif target is base:
                labels.append(words["__base__"])
            elif target is type(thing):
                labels.append(TYPE_LABEL)
            else:
                labels.append(words["__module__"] if type(target) is classes.ModuleType else UNKNOWN_LABEL)
        return referents, labels

    # --- frames and generators ---

    def frame(self, thing):
        """LOCAL and STACK. Frames that run show nothing from 3.11 on: their variables and stack are added."""
        referents = _get_referents(thing)
        code = thing.f_code
        variables = self.variables(code)
        running = id(thing) in self.walk.running
        targets, labels = self._named(referents, self.slots.of_frame(thing, variables), strict=not running)
        if running and sys.version_info >= (3, 11) and not any(target is code for target in referents):
            targets.append(code)
            labels.append(self.words["f_code"])
            for slot, value in self.slots.stack_of(thing, len(variables), code.co_stacksize):
                targets.append(value)
                labels.append(_STACK | slot)
        words = {}
        if not code.co_flags & 1:  # a module or class body: its variables are a dict that exists already
            space = thing.f_locals
            if type(space) is dict:
                words[id(space)] = "f_locals"
            if type(space) is dict and running:
                self.walk.name_space(space)
                if not any(target is space for target in referents):
                    targets.append(space)
                    labels.append(self.words["f_locals"])
        words.update({id(code): "f_code", id(thing.f_globals): "f_globals", id(thing.f_builtins): "f_builtins"})
        # Up to 3.10 the stack of a generator that waits is in its frame.
        self._name_rest(labels, targets, words, UNKNOWN_LABEL if sys.version_info >= (3, 11) else _STACK)
        return targets, labels

    def generator(self, thing):
        """LOCAL for the variables of a suspended frame, INTERNAL for what it waits for, STACK for the rest."""
        referents = _get_referents(thing)
        prefix = prefix_of(thing)
        code = getattr(thing, prefix + "_code")
        pairs = []
        if sys.version_info >= (3, 11) and any(type(target) is classes.FunctionType for target in referents):
            pairs = self.slots.of_generator(thing, self.variables(code))
        targets, labels = self._named(referents, pairs, strict=True)
        awaited = "gi_yieldfrom" if prefix == "gi" else prefix + "_await"
        words = {id(getattr(thing, awaited)): awaited, id(code): prefix + "_code"}
        # Its frame comes before what may be on the stack; from 3.11 on it is there if somebody has asked for it.
        words.update([(id(target), prefix + "_frame") for target in referents if type(target) is classes.FrameType][:1])
        words.update((id(target), "__name__") for target in referents if type(target) is str and id(target) not in words)
        self._name_rest(labels, targets, words, _STACK)
        # An asynchronous generator says that it runs also while it waits: then no frame that runs has its code.
        runs = getattr(thing, prefix + "_running") and (prefix != "ag" or id(code) in self.walk.running.values())
        if sys.version_info >= (3, 11) and runs:
            # Its frame is among the running ones and shows variables and stack; here they would be counted twice.
            kept = [place for place, label in enumerate(labels) if label >> EDGE_KIND_SHIFT == INTERNAL]
            return [targets[place] for place in kept], [labels[place] for place in kept]
        return targets, labels

    def variables(self, code):
        """Return the variables of a code object, kept for the walk."""
        names = self.walk.variables.get(id(code))
        if names is None:
            names = self.walk.variables[id(code)] = threads.local_names(code)
        return names

    def _named(self, referents, pairs, strict=False):
        """Label referents by (name, value) pairs; pairs that no referent matches are added unless strict."""
        targets, labels = list(referents), [None] * len(referents)
        places = {}
        for place, target in enumerate(referents):
            places.setdefault(id(target), []).append(place)
        for name, value in pairs:
            waiting = places.get(id(value))
            if waiting:
                labels[waiting.pop(0)] = self.names.local_label(name)
            elif not strict:
                targets.append(value)
                labels.append(self.names.local_label(name))
        return targets, labels

    def _name_rest(self, labels, targets, words, otherwise=UNKNOWN << EDGE_KIND_SHIFT):
        for place, label in enumerate(labels):
            if label is None:
                target = targets[place]
                kind = type(target)
                word = words.get(id(target))
                if word is None:
                    word = _FRAME_PARTS.get(id(kind))
                labels[place] = otherwise if word is None else self.names.internal_label(word)
