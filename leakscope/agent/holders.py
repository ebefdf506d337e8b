"""Readers of builtin types that show without names, or not at all, what they hold: caches, contexts, thread-locals."""

import gc
import sys
from _collections import OrderedDict
from _contextvars import Context, ContextVar
from _functools import _lru_cache_wrapper

from . import classes
from .format import EDGE_KIND_SHIFT, KEY, KEY_OBJECT
from .instances import TYPE_LABEL, UNKNOWN_LABEL, InstanceReader

_get_referents = gc.get_referents
_KEY = KEY << EDGE_KIND_SHIFT
_KEY_OBJECT = KEY_OBJECT << EDGE_KIND_SHIFT
_variable_name = ContextVar.__dict__["name"].__get__


class CacheReader:
    """Reads a functools.lru_cache: its dict under "cache"; with a limit, tp_traverse shows keys and values of the links
    as well.

    A link is no object that the collector knows, so its key and its value hang on the cache itself: "cache key",
    "cache[*]".
    """

    def __init__(self, readers, cls):
        self.words = readers.words
        self.walk = readers.walk
        self.class_id = id(cls)

    def __call__(self, thing):
        referents = _get_referents(thing)
        info = _lru_cache_wrapper.cache_info(thing)
        words = self.words
        link = (words["cache key"], words["cache[*]"])
        labels = []
        if sys.version_info >= (3, 10):  # the type of the cache first, and that of each link
            link += (words["link type"],)
            labels.append(TYPE_LABEL)
        if info[2] is not None and len(link) * info[3] < len(referents):
            labels += link * info[3]
        for target in referents[len(labels):]:
            labels.append(self._label(target))
        return referents, labels

    def _label(self, target):
        kind = type(target)
        if id(target) == self.class_id:
            return TYPE_LABEL
        if kind is dict:
            if "__wrapped__" in list(map(_plain_text, target)):
                self.walk.name_space(target)
                return self.words["__dict__"]
            return self.words["cache"]
        if kind is object:
            return self.words["kwd_mark"]
        is_own = classes.is_class(target) and classes.names_of(target)[1] in ("_lru_list_elem", "CacheInfo", "_CacheInfo")
        return self.words["link type" if is_own else "__wrapped__"]


def _plain_text(key):
    return key if type(key) is str else ""


class ContextReader:
    """Reads a contextvars.Context: KEY with the name of the variable.

    The values hang in nodes of a tree (HAMT) that copies of a context share. Their references are shown at the context;
    the nodes show each other only. So a value in n contexts has n edges where the tree may hold one reference.
    """

    def __init__(self, walk):
        self.names = walk.names

    def __call__(self, thing):
        referents = _get_referents(thing)
        label = self.names.internal_label("hamt")
        targets, labels = list(referents), [label] * len(referents)
        for variable, value in list(Context.items(thing)):
            name = self.names.key(_variable_name(variable))
            targets += (value, variable)
            labels += (_KEY + name, _KEY_OBJECT + name)
        return targets, labels

    def tree(self, thing):
        """The nodes below a node of the tree."""
        targets = [target for target in _get_referents(thing) if is_tree(type(target))]
        return targets, [self.names.internal_label("hamt")] * len(targets)


def is_tree(cls):
    """True for the types of the tree in a context."""
    return not classes.flags_of(cls) & classes.HEAP_TYPE and classes.names_of(cls)[1].startswith("hamt")


class LocalReader:
    """Reads a threading.local: KEY "thread 'x'" to the values of each thread, kept in a dict by dummies."""

    def __init__(self, walk, cls):
        self.walk = walk
        self.instances = InstanceReader(walk, cls)

    def __call__(self, thing):
        targets, labels = map(list, self.instances(thing))
        for place, dummies in enumerate(targets[:]):
            if type(dummies) is dict:
                labels[place] = self.walk.names.internal_label("state")
                for space in list(dict.values(dummies)):
                    if type(space) is dict:
                        self.walk.local_spaces.add(id(dummies))
                        self.walk.name_space(space)
                        owner = self.walk.local_owners.get(id(space), "thread ?")
                        targets.append(space)
                        labels.append(_KEY + self.walk.names.row(owner))
        return targets, labels


class ContainerReader:
    """Reads instances of a subclass of a builtin container: contents by its own methods, then attributes."""

    def __init__(self, readers, cls, container):
        self.readers, self.container = readers, container
        self.instances = InstanceReader(readers.walk, cls)
        self.fields = _fields(readers.names, cls) if container is tuple else None
        self.heap = bool(classes.flags_of(cls) & classes.HEAP_TYPE)
        self.ordered = any(base is OrderedDict for base in classes.mro_of(cls))

    def __call__(self, thing):
        targets, labels = self.readers.contents(self.container, thing)
        if self.fields is not None and len(self.fields) == len(targets):
            labels = self.fields
        held = {}
        for target in targets:
            held[id(target)] = held.get(id(target), 0) + 1
        rest = []
        for target in _get_referents(thing):
            count = held.get(id(target), 0)
            if count:
                held[id(target)] = count - 1
            else:
                rest.append(target)
        if len(rest) == 1 and id(rest[0]) == self.instances.class_id:
            return list(targets) + rest, list(labels) + [TYPE_LABEL]
        if rest:
            more = self.instances.name_all(thing, rest)
            if self.ordered:
                keys = set(map(id, targets))
                more = [self.readers.words["order"] if id(target) in keys and label == UNKNOWN_LABEL else label
                        for target, label in zip(rest, more)]
            return list(targets) + rest, list(labels) + more
        return targets, labels


def _fields(names, cls):
    """Return the labels of a named tuple's items, None for another tuple."""
    found, fields = classes.lookup(cls, "_fields")
    if found and type(fields) is tuple and all(type(field) is str for field in fields):
        return [names.attribute_label(field) for field in fields]
    return None
