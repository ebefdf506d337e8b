"""Reading any object that has no reader of its own: instances of classes, and objects of C types.

What an object refers to is what its tp_traverse shows (gc.get_referents). The names come from asking:
object.__getattribute__, called unbound, with names that run no code of the target (classes.is_safe_name), and a name
fits where it gives the very same object. On 3.11 and later this leaves the inline attributes inline. What worked once
is tried first for the next instance of the type.
"""

import gc
from _collections import deque
from _operator import is_
from itertools import repeat

from . import classes
from .format import EDGE_KIND_SHIFT, ELEMENT, TYPE, UNKNOWN

_getattribute = object.__getattribute__
_get_referents = gc.get_referents
TYPE_LABEL = TYPE << EDGE_KIND_SHIFT
UNKNOWN_LABEL = UNKNOWN << EDGE_KIND_SHIFT
ELEMENT_LABEL = ELEMENT << EDGE_KIND_SHIFT
_MOST_SEARCHES = 40  # of one type, for names that the type does not show
_MOST_PLANS = 64

# Getset descriptors of C types that only hand out what is there. (type name -> names); the types are looked up by
# `extra_names`.
EXTRA = {
    ("builtins", "BaseException"): ("args", "__traceback__", "__context__", "__cause__"),
    ("builtins", "traceback"): ("tb_next", "tb_frame"),
    ("builtins", "builtin_function_or_method"): ("__self__",),
    ("builtins", "getset_descriptor"): ("__objclass__",),
    ("_contextvars", "Token"): ("var", "old_value"),
    ("_asyncio", "Future"): ("_loop", "_result", "_exception"),
    ("_asyncio", "Task"): ("_coro", "_fut_waiter", "_loop", "_result", "_exception"),
    ("_io", "TextIOWrapper"): ("buffer",),
    ("_io", "BufferedReader"): ("raw",),
    ("_io", "BufferedWriter"): ("raw",),
    ("_io", "BufferedRandom"): ("raw",),
    ("_struct", "Struct"): ("format",),
    ("pandas._libs.internals", "BlockManager"): ("blocks", "axes"),
    ("pandas._libs.internals", "Block"): ("values", "refs", "_mgr_locs"),
    ("pandas._libs.internals", "SharedBlock"): ("refs", "_mgr_locs"),
    ("pandas._libs.internals", "NumpyBlock"): ("values",),
}


class InstanceReader:
    """Reads the instances of one class: call it with an instance, get (targets, labels).

    Keeps the id and the names of the class, never the class: nothing here may count as a reference to it.
    """

    def __init__(self, walk, cls):
        self.walk = walk
        self.names = walk.names
        self.class_id = id(cls)
        self.has_dict = classes.has_dict(cls)
        self.managed = classes.is_managed(cls)
        self.known = []  # attribute names that worked, in the order of the referents
        self.inline = ()
        self.candidates = None
        self.plans = {}
        self.searches = 0
        self.extra = extra_names(cls)
        self.rest = words_for_the_rest(cls)

    def __call__(self, thing):
        referents = _get_referents(thing)
        plan = self.plans.get(len(referents))
        if plan is not None:
            names, places, labels, dict_place = plan
            shown = referents if places is None else [referents[place] for place in places]
            try:
                if all(map(is_, map(_getattribute, repeat(thing), names), shown)) and (
                        dict_place is None or type(referents[dict_place]) is dict):
                    if dict_place is not None:
                        self.walk.name_space(referents[dict_place])
                    return referents, labels
            except AttributeError:
                pass
        return referents, self.name_all(thing, referents)

    def name_all(self, thing, referents):
        """Return the labels of all referents of an instance, and keep a plan if its order can be used again."""
        labels = [None] * len(referents)
        places = {}
        for place, target in enumerate(referents):
            places.setdefault(id(target), []).append(place)
        if self.class_id in places:
            labels[places[self.class_id].pop()] = TYPE_LABEL
        found = {}
        if self.managed and len(self.inline) < len(referents) and self.searches < _MOST_SEARCHES:
            self._learn_inline(thing)
        if self._is_in_order(thing, referents, labels):
            return self._in_order(labels)
        self._ask(thing, self.known, places, labels, found)
        if None in labels:
            self._ask_extra(thing, places, labels)
        dict_place = self._own_dict(thing, referents, labels)
        if None in labels and self.searches < _MOST_SEARCHES:
            self.searches += 1
            if self.candidates is None:
                self.candidates = candidate_names(type(thing))
            self._ask(thing, self.candidates, places, labels, found)
            if dict_place is None:
                dict_place = self._own_dict(thing, referents, labels)
        labels = [self._rest_label(target) if label is None else label for label, target in zip(labels, referents)]
        self._keep_plan(found, labels, dict_place)
        return labels

    def _rest_label(self, target):
        for held, word in self.rest:
            if not held or held == classes.names_of(type(target))[1]:
                return ELEMENT_LABEL if word is None else self.names.internal_label(word)
        return UNKNOWN_LABEL

    def _learn_inline(self, thing):
        """Take the names of the inline attributes from the class; those that are safe to ask for are asked first."""
        cls = type(thing)
        self.inline = self.walk.inline.of(cls)
        for name in self.inline:
            if name is not None and name not in self.known and classes.is_safe_name(cls, name):
                self.known.append(name)

    def _is_in_order(self, thing, referents, labels):
        """True for an instance that has all attributes of its class inline: in the order of the shared names."""
        if not self.inline or len(self.inline) != len(referents) - 1 or labels[-1] != TYPE_LABEL:
            return False
        asked = [(name, target) for name, target in zip(self.inline, referents) if name in self.known]
        try:
            return (len(asked) > 0 or type(referents[0]) is not dict) and all(
                _getattribute(thing, name) is target for name, target in asked)
        except AttributeError:
            return False

    def _in_order(self, labels):
        """Name the attributes by the order, also those that must not be asked for, such as a cached property's."""
        for place, name in enumerate(self.inline):
            labels[place] = UNKNOWN_LABEL if name is None else self.names.attribute_label(name)
        places = [place for place, name in enumerate(self.inline) if name in self.known]
        if places:
            self.plans[len(labels)] = (tuple(self.inline[place] for place in places), places, labels, None)
        return labels

    def _ask(self, thing, names, places, labels, found):
        for name in names:
            try:
                value = _getattribute(thing, name)
            except Exception:  # not set on this instance; a C getter may say so in its own way
                continue
            waiting = places.get(id(value))
            if waiting:
                place = waiting.pop(0)
                labels[place] = self.names.attribute_label(name)
                found[place] = name
                if name not in self.known:
                    self.known.append(name)

    def _ask_extra(self, thing, places, labels):
        for name, getter in self.extra:
            try:
                value = getter(thing)
            except Exception:
                continue
            waiting = places.get(id(value))
            if waiting:
                label = self.names.internal_label if name.startswith("_") else self.names.attribute_label
                labels[waiting.pop(0)] = label(name)

    def _own_dict(self, thing, referents, labels):
        """Return the place of the instance's __dict__ among the referents and label it; None if there is none."""
        if not self.has_dict:
            return None
        for place in range(len(referents) - 1, -1, -1):
            if labels[place] is None and type(referents[place]) is dict and self._is_own(thing, referents[place]):
                labels[place] = self.names.internal_label("__dict__")
                self.walk.name_space(referents[place])
                return place
        return None

    def _is_own(self, thing, candidate):
        """True if `candidate` is the __dict__ of `thing`: to read an attribute gives what the dict holds."""
        if not self.managed:
            return True
        address = self.walk.inline.dict_of(thing)
        if address is not None:
            return address == id(candidate)
        cls = type(thing)
        for key, value in list(dict.items(candidate))[:8]:
            if type(key) is str and classes.is_safe_name(cls, key):
                try:
                    return _getattribute(thing, key) is value
                except AttributeError:
                    return False
        return False

    def _keep_plan(self, found, labels, dict_place):
        """A plan is good when the asked names cover the first referents and the type or the dict the others."""
        names = []
        while len(names) in found:
            names.append(found[len(names)])
        rest = len(labels) - len(names)
        if rest == (dict_place is not None) + (TYPE_LABEL in labels) and len(self.plans) < _MOST_PLANS:
            # The known names in the order of the referents: the next instance with fewer attributes is named right.
            self.known = names + [name for name in self.known if name not in names]
            self.plans[len(labels)] = (tuple(names), None, labels, dict_place)


def extra_names(cls):
    """Return [(name, getter)]: the C members of `cls` and the harmless getters of EXTRA along its MRO."""
    getters = [(name, member.__get__) for name, member in classes.members_of(cls)]
    for base in classes.mro_of(cls):
        if not classes.flags_of(base) & classes.HEAP_TYPE or classes.names_of(base) in EXTRA:
            for name in EXTRA.get(classes.names_of(base), ()):
                getter = dict.get(classes.namespace_of(base), name)
                if classes.is_one_of(type(getter), (classes.GetSetDescriptorType, classes.MemberDescriptorType)):
                    getters.append((name, getter.__get__))
    return getters


# What C types hold without a name of its own: (module or "" for any, qualified name, type of what is held or "" for any, word).
# The first row that fits, most derived class first; the same table is in _probe/layouts.c.
_REST = (
    ("_asyncio", "Future", "traceback", "_exception_tb"), ("_asyncio", "Future", "Context", "_context"),
    ("_asyncio", "Future", "str", "_name"), ("_asyncio", "Future", "", "_callbacks"),
    ("", "Token", "Context", "_context"), ("", "ContextVar", "", "default"),
    ("builtins", "memoryview", "", "buffer"), ("builtins", "managedbuffer", "", "obj"),
    ("builtins", "mappingproxy", "", "mapping"),
    ("", "dict_keys", "", "mapping"), ("", "dict_values", "", "mapping"), ("", "dict_items", "", "mapping"),
    ("", "odict_keys", "", "mapping"), ("", "odict_values", "", "mapping"), ("", "odict_items", "", "mapping"),
    ("_queue", "SimpleQueue", "", "queue"), ("operator", "methodcaller", "", "args"),
    ("_csv", "reader", "", "iterated"), ("_csv", "writer", "", "write"),
    ("_pickle", "Pickler", "builtin_function_or_method", "write"), ("_pickle", "Pickler", "", "memo"),
    ("_pickle", "Unpickler", "builtin_function_or_method", "read"), ("_pickle", "Unpickler", "", "memo"),
    ("pyexpat", "xmlparser", "", "handlers"), ("_ctypes", "CFuncPtr", "", "callable"),
    ("_ctypes", "CThunkObject", "", "callable"), ("numpy", "ufunc", "", "callable"),
    # What C++ calls for a tensor holds the same dict of hooks once more.
    ("torch._C", "TensorBase", "OrderedDict", "_backward_hooks"), ("torch._C", "_TensorBase", "OrderedDict", "_backward_hooks"),
    ("builtins", "coroutine_wrapper", "", "awaited"), ("builtins", "async_generator_asend", "", "awaited"),
    ("builtins", "async_generator_athrow", "", "awaited"), ("builtins", "anext_awaitable", "", "awaited"),
    ("_asyncio", "FutureIter", "", "awaited"),
)
_ITERATORS = ("zip", "map", "filter", "enumerate", "reversed")
_WEAK = ("ReferenceType", "weakref", "ProxyType", "CallableProxyType", "weakproxy", "weakcallableproxy")
_C_METHODS = (classes.WrapperDescriptorType, classes.MethodDescriptorType)
_BUILTIN_CONTAINERS = (dict, list, tuple, set, frozenset, deque)


def words_for_the_rest(cls):
    """Return [(name of the held type or "", word)] for what the instances of a class hold and nothing names; [] for no word.

    A word None: an item of an opaque container, which is a C type with entries.
    """
    bases = [classes.names_of(base) for base in classes.mro_of(cls)]
    for name in bases:
        found = [(held, word) for module, qualname, held, word in _REST if qualname == name[1] and module in ("", name[0])]
        if found:
            return found
    module, qualname = bases[0]
    if "iterator" in qualname or qualname in _ITERATORS or module == "itertools":
        return [("", "iterated")]
    if any(name in _WEAK for _module, name in bases):
        return [("", "__callback__")]
    if not any(classes.is_one_of(base, _BUILTIN_CONTAINERS) for base in classes.mro_of(cls)):
        found, method = classes.lookup(cls, "__getitem__")
        if found and classes.is_one_of(type(method), _C_METHODS):
            return [("", None)]
    return []


def candidate_names(cls):
    """Return the attribute names that the code of a class mentions and that are safe to ask for, likely ones first."""
    names = {}
    bases = list(classes.mro_of(cls)) + list(classes.mro_of(type(cls)))
    for base in bases:
        if classes.flags_of(base) & classes.HEAP_TYPE:
            for name, value in list(dict.items(classes.namespace_of(base))):
                if type(name) is str and name[:2] != "__":
                    names[name] = None
                for code in _codes_in(value):
                    names.update(dict.fromkeys(code.co_names))
                if type(name) is str and name == "__annotations__" and type(value) is dict:
                    names.update((word, None) for word in list(value) if type(word) is str)
    return [name for name in names if classes.is_safe_name(cls, name)]


def _codes_in(value):
    """Yield the code objects of a class attribute: functions, methods, properties, and the functions inside."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        kind = type(value)
        if kind is classes.FunctionType:
            waiting.append(value.__code__)
        elif kind is classes.CodeType:
            yield value
            waiting.extend(const for const in value.co_consts if type(const) is classes.CodeType)
        elif kind is staticmethod or kind is classmethod:
            waiting.append(value.__func__)
        elif kind is property:
            waiting.extend((value.fget, value.fset))
