"""The heap walk in pure Python: the reference implementation, and the fallback where the native one does not fit.

It runs in place, in the thread that calls `take`. It never runs code of the target: every object is read by the unbound
methods of its exact builtin type or through gc.get_referents, and types by id() (classes.py). While it runs it holds
every object, so finalizers of objects that die meanwhile run when it ends. Other threads go on running; refcount 0
marks an object that died during the walk.
"""

import gc
import os
import sys
import time
from _contextvars import Context
from _functools import _lru_cache_wrapper
from _thread import _local
from array import array
from itertools import repeat

from . import classes, columns, duplicates, expanders, jsontext, roots, sizes, threads
from .format import COLUMNS, DONE_FILE, EDGE_KIND_SHIFT, FORMAT, NAMES_FILE, ROOT_KINDS, STORAGE, STORAGE_COLUMNS
from .holders import CacheReader, ContainerReader, ContextReader, LocalReader, is_tree
from .instances import InstanceReader
from .interpreter import InlineNames
from .names import Names
from .nodes import Nodes
from .readers import Readers, container_of

_PACKAGE = __name__.rpartition(".")[0]
_SINGLETONS = (None, True, False, Ellipsis, NotImplemented)
_EDGES_BETWEEN_LOOKS = 50_000  # some 0.1 s
_FROZEN_BY_ITSELF = 1000  # 3.12 freezes 375 objects when it starts; a service that freezes has tens of thousands


class GivenUp(Exception):
    """A walk that must not go on; says why in one sentence."""


def take(folder, index, kind, t_ns, own=(), sample=None, tracer=None, notes=(), go_on=None, more=None):
    """Write one snapshot of this process into `folder` (made here) and return what was written to done.json.

    `own`: objects of the agent to leave out, with what only they hold; `tracer`: None, or a function of the list of
    objects that returns (site_id of each, rows of "sites"), with a `begin` that is called before the walk if there is
    one; `notes`: sentences to carry into done.json; `go_on`: None, or what is called with the number of objects now and
    then, and raises GivenUp to end the walk; `more`: None, or a dict that done.json is to hold, too. Raises OSError (disk
    full, not writable) after removing what was written; a failure with one object is counted in the notes instead.
    """
    started = time.monotonic_ns()
    thresholds = gc.get_threshold()
    # Not gc.disable(): if the target calls gc.disable() while we walk, nobody could tell its wish from ours afterwards.
    # With a first threshold of 0 the collector does not start by itself either.
    gc.set_threshold(0, *thresholds[1:])
    walk = None
    try:
        begin = getattr(tracer, "begin", None)
        if begin is not None:
            begin()
        walk = Walk(own, folder)
        walk.go_on = go_on
        for note in notes:
            walk.note(note)
        walk.run()
        written, tables = walk.columns(tracer)
        done = walk.done()
    finally:
        if walk is not None:
            walk.clear()
        if gc.get_threshold() == (0, *thresholds[1:]):  # else the target set its own meanwhile, and that stays
            gc.set_threshold(*thresholds)
    done.update(format=FORMAT, index=index, t_ns=t_ns, kind=kind, method="in-place", walk="python", sample=sample or {},
                pause_ns=time.monotonic_ns() - started, **(more or {}))
    done["gc"]["thresholds"] = list(thresholds)
    _write(folder, written, tables, done)
    return done


def _write(folder, written, tables, done):
    made = not os.path.isdir(folder)
    try:
        if made:
            os.mkdir(folder)  # not those above: a session that somebody removed stays removed
        for name in written:
            columns.write(folder, name, written[name])
        _write_json(os.path.join(folder, NAMES_FILE), tables)
        _write_json(os.path.join(folder, DONE_FILE), done)
    except OSError:
        for name in [name + ".npy" for name in (*COLUMNS, *STORAGE_COLUMNS)] + [NAMES_FILE, DONE_FILE, DONE_FILE + ".new"]:
            try:
                os.remove(os.path.join(folder, name))
            except OSError:
                pass
        if made:
            try:
                os.rmdir(folder)
            except OSError:
                pass
        raise


def _write_json(path, content):
    with open(path + ".new", "wb") as file:
        file.write(jsontext.write(content).encode())
    os.replace(path + ".new", path)


class Memory:
    """A node that is no Python object: a storage, a mapping. `address`: of a storage's data, 0 for others."""

    __slots__ = ("kind", "size", "device", "address")

    def __init__(self, kind, size, device, address):
        self.kind, self.size, self.device, self.address = kind, size, device, address


class Walk:
    """One walk. Readers get it to leave word: names of dicts and tuples to come, bounds, memory that is no object."""

    def __init__(self, own, folder):
        self.names = Names()
        self.objects = []
        self.index = {}  # id -> row; -1: not part of the snapshot
        self.edge_start, self.edge_target, self.edge_label = columns.column("edge_start"), array("I"), array("I")
        self.sizes = array("Q")
        self.name_spaces, self.local_spaces, self.local_owners = set(), set(), {}
        self.tuple_labels, self.variables, self.running, self.labels = {}, {}, {}, {}
        self.bounds, self.notes, self.memories, self.late = [], {}, {}, []
        self.entries, self.sizes_of = {}, {}
        self.root_rows = []
        self.inline = InlineNames(self.names.constants)
        self.storage_label = STORAGE << EDGE_KIND_SHIFT
        self._tracked_types = None
        self.thread_names = threads.thread_names()
        self.go_on = None
        self.readers = Readers(self)
        self.expanders = expanders.loaded(self)
        self.tracked = gc.get_objects()
        self.own_threads = set(own_idents(own))
        self._leave_out(own)

    # --- what readers leave here ---

    def note(self, sentence):
        """Count a sentence for done.json."""
        self.notes[sentence] = self.notes.get(sentence, 0) + 1

    def name_space(self, space):
        """Say that `space` (a dict) holds attributes; one that was read already is named afterwards."""
        if id(space) not in self.name_spaces:
            self.name_spaces.add(id(space))
            if self._is_read(space):
                self.late.append(space)

    def _is_read(self, thing):
        return -1 < self.index.get(id(thing), -1) < len(self.edge_start)

    def name_tuple(self, closure, labels):
        """Give the labels of a tuple's items."""
        self.tuple_labels[id(closure)] = labels
        if self._is_read(closure):
            self.late.append(closure)

    def bound(self, thing, limit, what):
        """Record a declared limit of a container."""
        self.bounds.append((id(thing), limit, what))

    def memory(self, key, kind, size, device=0, address=0):
        """Return the node of a piece of memory that is no object, one for each key."""
        found = self.memories.get(key)
        if found is None:
            found = self.memories[key] = Memory(kind, size, device, address)
        return found

    def instances_of(self, *wanted):
        """Return the tracked objects whose type has one of the classes in its MRO; asks only the types."""
        tracked = self.tracked
        if self._tracked_types is None:
            self._tracked_types = dict(zip(map(id, map(type, tracked)), map(type, tracked)))
        found = {key for key, cls in self._tracked_types.items()
                 if any(classes.is_one_of(base, wanted) for base in classes.mro_of(cls))}
        return [thing for thing in tracked if id(type(thing)) in found] if found else []

    def thread_label(self, ident):
        """Return "thread 'feed-eu'"."""
        name = self.thread_names.get(ident)
        return "thread ?" if name is None else "thread " + self.names.given(name)

    # --- what is left out ---

    def _leave_out(self, own):
        """Mark the agent's objects: its modules, `own`, this walk, and what they reach short of the target's things."""
        index = self.index
        index.update((id(thing), -1) for thing in _SINGLETONS)
        stops = {id(sys.modules), id(os.environ), id(self.tracked), id(sys.path)}
        own_modules = []
        for name, module in list(dict.items(sys.modules)):
            if type(module) is classes.ModuleType:
                if type(name) is str and (name == _PACKAGE or name.startswith(_PACKAGE + ".")):
                    own_modules.append(module)
                    # What imported us is not ours: in a test process that is pytest's hook, which holds session and tests.
                    stops.add(id(dict.get(classes.space_of(module), "__loader__")))
                else:
                    stops.add(id(module))
                    stops.add(id(classes.space_of(module)))
        own_spaces = set(id(module.__dict__) for module in own_modules)
        self.own = []
        self.own_ids = set()
        waiting = [self] + own_modules + list(own)
        while waiting:
            thing = waiting.pop()
            if id(thing) in self.own_ids or id(thing) in stops or not _is_own(thing, own_spaces):
                continue
            self.own_ids.add(id(thing))
            self.own.append(thing)
            if thing is not self.index:
                waiting.extend(gc.get_referents(thing))
            if type(thing) is classes.CodeType:
                waiting += (thing.co_consts, thing.co_names)
        # Nothing that dies before the walk ends: its address would be used again, and that object be left out.
        self.own_ids.update(map(id, (self.tracked, self.own)))
        index.update(zip(self.own_ids, repeat(-1)))

    # --- the loop ---

    def run(self):
        """Find all objects and edges."""
        names, tracked = self.names, self.tracked
        names.learn_functions(thing for thing in tracked if type(thing) is classes.FunctionType)
        if gc.get_freeze_count() > _FROZEN_BY_ITSELF:  # the collector does not list those functions
            names.learn_functions(roots.functions_of_modules())
        for frame in list(sys._current_frames().values()):
            while frame is not None:
                names.learn_code(frame.f_code)
                frame = frame.f_back
        names.learn_sources(list(dict.values(sys.modules)))
        for thing, kind, label in roots.collect(self):
            if self.index.get(id(thing), 0) >= 0:
                self._drain((thing,))
                self.root_rows.append((self.index[id(thing)], ROOT_KINDS.index(kind), names.row(label)))
        # Holders first: a dict or a tuple is named by its holder.
        later = {id(dict), id(tuple), id(classes.CellType)}
        self._drain(thing for thing in tracked if id(type(thing)) not in later)
        self._drain(tracked)
        self._name_late()
        frozen = gc.get_freeze_count()
        if frozen > _FROZEN_BY_ITSELF:
            self.note("%d objects are frozen (gc.freeze): those that no root reaches are not seen" % frozen)

    def _drain(self, starts):
        """Add the objects of `starts` and everything they reach, reading each once, in order of discovery.

        This loop is where the time goes: names are local, nothing is called twice, and the iterator over `objects` sees
        what is added meanwhile.
        """
        objects, index, entries = self.objects, self.index, self.entries
        find, entry_of, add_object = index.get, entries.get, objects.append
        add_target, add_label, add_start, add_size = (
            self.edge_target.append, self.edge_label.append, self.edge_start.append, self.sizes.append)
        edges = self.edge_target
        go_on, next_look = self.go_on, len(edges) + _EDGES_BETWEEN_LOOKS
        for start in starts:
            if id(start) in index:
                continue
            row = index[id(start)] = len(objects)
            add_object(start)
            unread = iter(objects)
            unread.__setstate__(row)
            for thing in unread:
                count = len(edges)
                add_start(count)
                if count > next_look:
                    next_look = count + _EDGES_BETWEEN_LOOKS
                    if go_on is not None:
                        go_on(len(objects))
                try:
                    reader, size = entry_of(id(type(thing))) or self._learn(type(thing))
                    add_size(size(thing))
                    if reader is None:
                        continue
                    targets, labels = reader(thing)
                except Exception as error:
                    self._failed(thing, error)
                    continue
                for target, label in zip(targets, labels):
                    row = find(id(target))
                    if row is None:
                        row = index[id(target)] = len(objects)
                        add_object(target)
                    elif row < 0:
                        continue
                    add_target(row)
                    add_label(label)

    def _failed(self, thing, error):
        module, qualname = classes.names_of(type(thing))
        text = self.names.strings[self.names.dotted(module + "." + qualname)]
        self.note("an object of type %s could not be read (%s)" % (text, type(error).__name__))
        if len(self.sizes) < len(self.edge_start):
            self.sizes.append(0)

    def _learn(self, cls):
        """Return (reader, size) of a type and keep it by the id of the type."""
        entry = self.entries[id(cls)] = (self._reader(cls), self.sizes_of.get(id(cls)) or self._size(cls))
        return entry

    def _reader(self, cls):
        readers = self.readers
        if cls is Memory:
            return None
        if id(cls) in readers.by_id:
            return readers.by_id[id(cls)]
        for make in self.expanders:
            try:
                reader = make(self, cls)
            except Exception as error:  # another version of the library, or something that only bears its name
                self.note("a library could not be asked for what its objects hold (%s)" % type(error).__name__)
                continue
            if reader is not None:
                return reader
        mro = classes.mro_ids(cls)
        if cls is Context:
            return ContextReader(self)
        if is_tree(cls):
            return ContextReader(self).tree
        if id(_lru_cache_wrapper) in mro:
            return CacheReader(readers, cls)
        if id(type) in mro:
            return readers.type
        if id(classes.ModuleType) in mro:
            return readers.module
        if id(_local) in mro:
            return LocalReader(self, cls)
        container = container_of(cls)
        if container is not None:
            return ContainerReader(readers, cls, container)
        return InstanceReader(self, cls)

    def _size(self, cls):
        if cls is Memory:
            return lambda memory: memory.size
        inline = self._inline_size(cls)
        if not classes.has_safe_size(cls):
            basic = self.basic_size(cls) + inline
            return lambda thing: basic
        beside = sizes.beside(cls)
        if beside is not None:
            return lambda thing, size=sys.getsizeof: size(thing) + inline + beside(thing)
        return (lambda thing, size=sys.getsizeof: size(thing) + inline) if inline else sys.getsizeof

    def _inline_size(self, cls):
        """Return the bytes of inline attributes, which sys.getsizeof omits; estimated by the names in use (3.11+)."""
        count = len(self.inline.of(cls)) if classes.is_managed(cls) else 0
        # Values, their header (one byte each, rounded up), and on 3.11 the two words before the object.
        return count * 8 + (count + 11) // 8 * 8 + (16 if sys.version_info[:2] == (3, 11) else 0) if count else 0

    def basic_size(self, cls):
        """Return the bytes of an instance without its items: the fixed part and the collector's header."""
        return classes.basicsize_of(cls) + (16 if classes.flags_of(cls) & classes.HAVE_GC else 0)

    def _name_late(self):
        """Name the edges of dicts and closures whose holder came after them."""
        for thing in self.late:
            row = self.index[id(thing)]
            edge = self.edge_start[row]
            end = self.edge_start[row + 1] if row + 1 < len(self.edge_start) else len(self.edge_target)
            labels = self.tuple_labels.get(id(thing))
            if labels is None:
                pairs = list(dict.items(thing))
                labels = [self.names.attribute_label(key) for key, _value in pairs]
                targets = [value for _key, value in pairs]
            else:
                targets = thing
            for target, label in zip(targets, labels):
                row = self.index.get(id(target), -1)
                if edge < end and row >= 0 and self.edge_target[edge] == row:
                    self.edge_label[edge] = label
                    edge += 1

    # --- results ---

    def columns(self, tracer):
        """Return the columns by name and the content of names.json. After this the readers are gone."""
        self.edge_start.append(len(self.edge_target))
        nodes = Nodes(self)
        site_id, sites = tracer(self.objects) if tracer is not None else ((), [None])
        self.entries.clear()
        self.variables.clear()
        # The readers know their own bound methods: a cycle, which would wait in the target for a collector that may be
        # off.
        vars(self.readers).clear()
        self.readers = self.expanders = None
        self.inline.close()
        self.tracked = self._tracked_types = None
        count = len(self.objects)
        written = nodes.columns
        written.update(
            address=nodes.addresses(), shallow_bytes=self.sizes, edge_start=self.edge_start,
            edge_target=self.edge_target, edge_label=self.edge_label, birth=columns.column("birth", repeat(0, count)),
            site_id=columns.column("site_id", site_id or repeat(0, count)))
        for place, name in enumerate(("root_node", "root_kind", "root_label")):
            written[name] = columns.column(name, [root[place] for root in self.root_rows])
        written["refcount"] = nodes.refcounts()
        written.update(nodes.storages())
        tables = {"strings": list(self.names.strings), "types": nodes.types, "sites": list(sites) or [None],
                  "bounds": nodes.bounds(), "caches": nodes.caches, "tables": nodes.tables,
                  "duplicates": duplicates.groups(self.objects), "line_growth": getattr(tracer, "line_growth", [])}
        return written, tables

    def done(self):
        """Return what done.json says of the walk itself."""
        notes = [note if count == 1 else "%s; %d times" % (note, count) for note, count in self.notes.items()]
        return {"node_count": len(self.objects), "edge_count": len(self.edge_target), "root_count": len(self.root_rows),
                "excluded_count": len(self.own_ids), "agent_bytes": sum(map(sys.getsizeof, self.own)), "notes": notes,
                "gc": {"enabled": gc.isenabled(), "counts": list(gc.get_count()),
                       "freeze_count": gc.get_freeze_count(), "uncollectable_count": len(gc.garbage)}}

    def clear(self):
        """Let go of everything: no object of the target may live on because it was looked at, nor any of ours as
        garbage.

        A cycle of ours would wait in the target for a collector that may be off: the readers know their own bound
        methods, and `own` lists everything of ours, and so itself.
        """
        if "inline" in self.__dict__:
            self.inline.close()
        if self.__dict__.get("readers") is not None:
            vars(self.readers).clear()
        if "own" in self.__dict__:
            del self.own[:]
        self.__dict__.clear()


def own_idents(own):
    """Return the idents of the agent's threads: of things of its own with an `ident`."""
    things = [thing for thing in own if not classes.is_class(thing) and type(thing) is not classes.ModuleType]
    return tuple({getattr(thing, "ident", None) for thing in things} - {None, 0})


def _is_own(thing, own_spaces):
    """True unless `thing` is somebody else's: a module, class, function, frame or descriptor not made by the agent."""
    kind = type(thing)
    if kind is classes.FunctionType:
        return id(thing.__globals__) in own_spaces
    if kind is classes.ModuleType:
        return id(thing.__dict__) in own_spaces
    if kind is classes.FrameType:
        return id(thing.f_globals) in own_spaces
    if classes.is_one_of(kind, classes.DESCRIPTORS):
        thing = thing.__objclass__
    if classes.is_class(thing):
        return classes.names_of(thing)[0].startswith(_PACKAGE)
    if kind is tuple:
        return len(thing) > 0  # there is one empty tuple for all
    return not classes.is_one_of(kind, (str, bytes, int, float, classes.BuiltinFunctionType))
