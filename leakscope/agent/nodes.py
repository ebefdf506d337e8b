"""What is said of each node beyond its edges: type, kind, state, length, label, reference count."""

import gc
import sys
from _bisect import bisect_right
from _functools import _lru_cache_wrapper
from _weakref import ReferenceType
from itertools import compress, repeat

from . import classes, columns, roots
from .format import IMMORTAL, NODE_KINDS, STORAGE_COLUMNS
from .keys import Keys
from .readers import CONTAINERS, GENERATORS, container_of, prefix_of

_UNKNOWN, _LIVE, _ENDED = range(3)
_IMMORTAL_FROM = 1 << 29
# What caches call their limit: cachetools, SQLAlchemy, queues, logging's MemoryHandler and many programs.
_LIMIT_NAMES = ("maxsize", "_maxsize", "max_size", "_max_size", "maxlen", "_maxlen", "capacity", "_capacity", "max_entries",
                "_max_entries", "max_items", "_max_items", "limit", "_limit", "_Cache__maxsize")
_LENGTHS = {container: container.__len__ for container in CONTAINERS}


class Nodes:
    """The columns of the nodes of a finished walk; `types`, `caches` and `tables` are those of names.json."""

    def __init__(self, walk):
        self.walk = walk
        self.types = []
        self.caches = []
        self.keys = Keys(walk)
        kinds, lengths, states, labellers = [], [], [], []
        rows = {}
        objects = walk.objects
        for cls in dict(zip(map(id, map(type, objects)), map(type, objects))).values():
            rows[id(cls)] = len(rows)
            self._describe(cls)
            kind = kind_of(cls)
            kinds.append(NODE_KINDS.index(kind))
            container = container_of(cls)
            lengths.append(_LENGTHS[container] if container else None)
            states.append(_state_reader(cls))
            labellers.append(getattr(self, "_label_" + kind, None))
        type_id = columns.column("type_id", map(rows.__getitem__, map(id, map(type, objects))))
        self.columns = {"type_id": type_id, "kind": columns.column("kind", map(kinds.__getitem__, type_id))}
        self.columns["length"] = self._by_type(type_id, lengths, "length")
        self.columns["state"] = self._by_type(type_id, states, "state")
        self.columns["label"] = self._by_type(type_id, labellers, "label")
        self.tables = self.keys.tables(self.columns["length"])
        self.columns["device"] = columns.column("device", bytes(len(type_id)))
        self._memories()

    def _describe(self, cls):
        names = self.walk.names
        module, qualname = classes.names_of(cls)
        if id(cls) in self.walk.own_ids:
            module, qualname = "", "memory"
        self.types.append([names.strings[names.dotted(module)] if module else "", names.strings[names.dotted(qualname)],
                           classes.flag_letters(cls)])

    def _by_type(self, type_id, readers, name):
        """Return a column of reader(object) for the types that have a reader, 0 for the others."""
        values = columns.column(name, repeat(0, len(type_id)))
        objects = self.walk.objects
        wanted = [reader is not None for reader in readers]
        for place in compress(range(len(type_id)), map(wanted.__getitem__, type_id)):
            try:
                values[place] = readers[type_id[place]](objects[place])
            except Exception as error:
                self.walk.note("%s of a node could not be read (%s)" % (name, type(error).__name__))
        return values

    def _memories(self):
        for memory in self.walk.memories.values():
            row = self.walk.index.get(id(memory))
            if row is not None:
                self.columns["kind"][row] = NODE_KINDS.index(memory.kind)
                self.columns["device"][row] = memory.device

    def addresses(self):
        """Return the column `address`: 0 for memory that is no object."""
        addresses = columns.column("address", map(id, self.walk.objects))
        for memory in self.walk.memories.values():
            row = self.walk.index.get(id(memory))
            if row is not None:
                addresses[row] = 0
        return addresses

    def storages(self):
        """Return the columns of STORAGE_COLUMNS, {} where no storage was met."""
        rows = [(self.walk.index[id(memory)], memory.address) for memory in self.walk.memories.values()
                if memory.address and self.walk.index.get(id(memory)) is not None]
        return {name: columns.column(name, values) for name, values in zip(STORAGE_COLUMNS, zip(*rows))}

    def bounds(self):
        """Return [address, limit, what] of the containers that declare a limit, and of instances with a number called so."""
        return [list(bound) for bound in self.walk.bounds] + list(self._limits())

    def _limits(self):
        walk = self.walk
        wanted = {walk.names.attribute_label(name): name for name in _LIMIT_NAMES}
        labels, objects, starts = walk.edge_label, walk.objects, walk.edge_start
        for edge in compress(range(len(labels)), map(wanted.__contains__, labels)):
            value = objects[walk.edge_target[edge]]
            if type(value) is int and value > 0:
                # The holder is the instance, or its __dict__ where that is an object.
                yield [id(objects[bisect_right(starts, edge) - 1]), value, wanted[labels[edge]].rpartition("__")[2]]

    def refcounts(self):
        """Return the column `refcount`: the target's own references. Call it when readers and other lists are gone."""
        walk = self.walk
        objects = walk.objects
        ours = list(map(sys.getrefcount, [object()]))[0]  # the list, and the argument
        counts = list(map(sys.getrefcount, objects))
        held = walk.names.held()
        for thing in walk.own:
            if thing is not objects and thing is not walk.index:
                for target in gc.get_referents(thing):
                    held[id(target)] = held.get(id(target), 0) + 1
        counts = [IMMORTAL if count >= _IMMORTAL_FROM else count - ours for count in counts]
        for address, count in held.items():
            row = walk.index.get(address, -1)
            if row >= 0 and counts[row] != IMMORTAL:
                counts[row] = max(counts[row] - count, 0)
        for memory in walk.memories.values():
            row = walk.index.get(id(memory))
            if row is not None:
                counts[row] = IMMORTAL
        return columns.column("refcount", counts)

    # --- labels ---

    def _text(self, text):
        return self.walk.names.row(text)

    def _dotted(self, *parts):
        names = self.walk.names
        words = [part for part in parts if type(part) is str and part and part != "builtins"]
        return ".".join(names.strings[names.dotted(word)] for word in words)

    def _label_module(self, thing):
        text = self.walk.labels.get(id(thing))
        if text is None:
            space = classes.space_of(thing)
            text = "module " + self._dotted(dict.get(space or {}, "__name__"))
        return self._text(text)

    def _label_type(self, thing):
        return self._text("class " + self._dotted(*classes.names_of(thing)))

    def _label_function(self, thing):
        if type(thing) is classes.FunctionType:
            return self._text(self._dotted(thing.__module__, thing.__qualname__) + "()")
        return self._text(self._dotted(thing.__name__) + "()")

    def _label_code(self, thing):
        return self._text("code of " + self.walk.names.place(thing))

    def _label_frame(self, thing):
        return self._text(self.walk.names.place(thing.f_code, thing.f_lineno))

    def _label_generator(self, thing):
        kind = type(thing)
        word, code = (("generator", "gi_code") if kind is classes.GeneratorType else ("coroutine", "cr_code")
                      if kind is classes.CoroutineType else ("async generator", "ag_code"))
        return self._text("%s %s" % (word, self.walk.names.place(getattr(thing, code))))

    def _label_task(self, thing):
        return self._text(roots.task_label(self.walk, thing))

    def _label_thread(self, thing):
        active = dict.get(classes.space_named("threading"), "_active")
        for ident, known in list(dict.items(active)) if type(active) is dict else ():
            if known is thing:
                return self._text(self.walk.thread_label(ident))
        return 0

    def _label_cache(self, thing):
        for target in gc.get_referents(thing):
            if type(target) is classes.FunctionType:
                name = self._dotted(target.__module__, target.__qualname__)
                info = _lru_cache_wrapper.cache_info(thing)
                self.caches.append({"address": id(thing), "name": name, "maxsize": info[2], "currsize": info[3],
                                    "hits": info[0], "misses": info[1], **self.keys.of_cache(thing, target)})
                if info[2] is not None:
                    self.walk.bound(thing, info[2], "maxsize")
                return self._text("lru_cache of %s()" % name)
        return 0


def kind_of(cls):
    """Return the word of NODE_KINDS for instances of a type."""
    mro = classes.mro_ids(cls)
    if id(type) in mro:
        return "type"
    thread = dict.get(classes.space_named("threading"), "Thread")
    task = dict.get(classes.space_named("_asyncio"), "Task")
    for kind, bases in _KINDS + (("task", (task,)), ("thread", (thread,))):
        if any(base is not None and id(base) in mro for base in bases):
            return kind
    return "object"


_KINDS = (
    ("module", (classes.ModuleType,)), ("function", (classes.FunctionType, classes.BuiltinFunctionType)),
    ("code", (classes.CodeType,)), ("frame", (classes.FrameType,)), ("generator", GENERATORS),
    ("weakref", (ReferenceType,)), ("exception", (BaseException,)), ("cache", (_lru_cache_wrapper,)))


def _state_reader(cls):
    """Return a function that gives STATES of an instance by C code only, None where there is none."""
    if classes.is_one_of(cls, GENERATORS):
        return _generator_state
    for module, name, state in (("_asyncio", "Future", _future_state), ("_socket", "socket", _socket_state),
                                ("_io", "FileIO", _file_state)):
        known = dict.get(classes.space_named(module), name)
        if known is not None and any(base is known for base in classes.mro_of(cls)):
            return state(known.__dict__)
    return None


def _future_state(space):
    state = space["_state"].__get__
    return lambda thing: _LIVE if state(thing) == "PENDING" else _ENDED


def _socket_state(space):
    fileno = space["fileno"]
    return lambda thing: _ENDED if fileno(thing) == -1 else _LIVE


def _file_state(space):
    closed = space["closed"].__get__
    return lambda thing: _ENDED if closed(thing) else _LIVE


def _generator_state(thing):
    if sys.version_info < (3, 11):
        frame = getattr(thing, prefix_of(thing) + "_frame")
        return _ENDED if frame is None else _LIVE
    # Asking for gi_frame would make a frame; a generator that has ended no longer holds its function.
    held = any(type(target) is classes.FunctionType for target in gc.get_referents(thing))
    running = getattr(thing, prefix_of(thing) + "_running")
    return _LIVE if held or running else _ENDED
