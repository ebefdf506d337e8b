"""How much work was done, and how much is under way: what the program ticks, and what frameworks count themselves.

Nothing is wrapped and nothing is called: the counters are attributes that the frameworks keep anyway, and they are read
without running code (classes.py). Where the objects are that keep them is looked for in the variables of running
functions and of waiting coroutines, which hold every server that serves and every trainer that trains. This is done
seldom, in few steps, and what was found is held weakly.

A framework that counts nothing (http.server, Flask's and Django's own servers, a plain asyncio server, a training loop with
an optimizer that keeps no step) has no counter here either: such a program says `leakscope.tick()`.
"""

import gc
import sys
from _operator import index
from _thread import get_ident
from _weakref import ref
from time import thread_time_ns

from . import classes, threads

_SECOND = 1_000_000_000
# The first searches, while a program sets itself up, and the later ones; each may take this part of one core's time.
_FIRST_NS, _RATIO, _LONGEST_NS, _PART = _SECOND // 2, 2, 60 * _SECOND, 500
_MOST_FRAMES, _MOST_LOOKS = 400, 20_000  # of one search
_MOST_HELD = 200  # variables of a function, attributes of an object
_MOST_COUNTERS = 32
_MOST_LOAD = 1 << 40  # no batch is larger: a number that is none
_MOST_CONNECTIONS = 2000  # that are asked one by one what they do


class Source:
    """Objects of one class that count work. `rank`: only those of the least rank that has any are added up, as a trainer's
    steps are its optimizer's and its scheduler's too. `done` and `inflight` return an int or None."""

    def __init__(self, name, rank, module, cls, done, inflight=None):
        self.name, self.rank, self.module, self.cls = name, rank, module, cls
        self.done, self.inflight = done, inflight


class Ticks:
    """What the program itself counts. Each thread writes to an entry of its own, so that no lock is needed."""

    def __init__(self):
        self._counts = {}
        self._loads = {}  # thread -> (size, batch, tokens) of its largest load since they were taken

    def add(self, count, batch=None, tokens=None):
        """Count; whatever is no count is left alone, as the program must not notice us."""
        count = _whole(count)
        if count > 0:
            ident = get_ident()
            counts = self._counts
            counts[ident] = counts.get(ident, 0) + count
        if batch is not None or tokens is not None:
            self._note_load(min(_whole(batch), _MOST_LOAD), min(_whole(tokens), _MOST_LOAD))

    def _note_load(self, batch, tokens):
        size = max(batch, 1) * max(tokens, 1)
        ident = get_ident()
        held = self._loads.get(ident)
        if (batch > 0 or tokens > 0) and (held is None or size > held[0]):
            self._loads[ident] = (size, batch, tokens)

    def take_load(self):
        """Return (batch, tokens) of the largest load since the last call, 0 for what was not said; None: there was none."""
        loads = self._loads
        taken = [held for ident in list(loads) if (held := loads.pop(ident, None)) is not None]
        return max(taken)[1:] if taken else None

    @property
    def total(self):
        """All that was counted."""
        while True:
            try:
                return sum(self._counts.values())
            except RuntimeError:  # a new thread counted meanwhile
                pass


def _whole(number):
    """Return what is a whole number, else 0."""
    if type(number) is int:
        return number
    try:
        return index(number)
    except TypeError:
        return 0


class Work:
    """The counters of one process. `found` is called when the names of the sources change."""

    def __init__(self, ticks, found):
        self.sources = []  # names, as in process.json
        self._ticks = ticks
        self._found = found
        self._counters = []  # [(source, weak reference, last count)]
        self._ended = {}  # source name -> units counted by objects that are gone
        self._total = self._offset = 0
        self._due_ns = self._step_ns = _FIRST_NS
        self._rests_until_ns = 0

    def read(self, row):
        """Add `work_count` and `inflight_count` where something counts, and the largest load that was told of."""
        done, inflight, alive = {}, None, set()
        ticked = self._ticks.total
        if ticked:
            done["leakscope.tick"] = (0, ticked)
        for counter in list(self._counters):
            source, reference, last = counter
            thing = reference()
            if thing is None:
                self._counters.remove(counter)
                self._ended[source.name] = self._ended.get(source.name, 0) + last
                self._due_ns = self._rests_until_ns  # perhaps another one takes its place
                self._step_ns = _FIRST_NS
                continue
            count = source.done(thing)
            under_way = source.inflight(thing) if source.inflight else None
            del thing
            if count is not None:
                counter[2] = max(last, count)
                alive.add(source)
            if under_way is not None:
                inflight = (inflight or 0) + under_way
        for source in alive:
            count = self._ended.get(source.name, 0) + sum(each[2] for each in self._counters if each[0] is source)
            if count:
                done[source.name] = (source.rank, count)
        celery = _celery()
        if celery is not None and celery[0]:
            done["celery tasks"] = (1, celery[0])
            inflight = celery[1] if inflight is None else inflight + (celery[1] or 0)
        if inflight is not None:
            row["inflight_count"] = inflight
        self._add_up(row, done)
        for column, number in zip(("load_batch", "load_tokens"), self._ticks.take_load() or ()):
            if number > 0:
                row[column] = number

    def _add_up(self, row, done):
        if not done:  # nothing counts any more, or nothing does yet
            if self._total:
                row["work_count"] = self._total
            return
        rank = min(rank for rank, _ in done.values())
        chosen = {name: count for name, (each, count) in done.items() if each == rank}
        names, total = sorted(chosen), sum(chosen.values())
        is_new = names != self.sources
        if is_new and self._total:
            self._offset = self._total - total  # something else counts from here on: the count goes on where it was
        self._total = max(self._total, total + self._offset)
        row["work_count"] = self._total
        if is_new:
            self.sources = names
            self._found()

    def search(self, elapsed_ns):
        """Look for objects that count, when it is time again and a module of theirs is there."""
        if elapsed_ns < self._due_ns:
            return
        begun_ns = thread_time_ns()
        wanted = _wanted()
        if wanted:
            known = {id(thing) for _, reference, _ in self._counters if (thing := reference()) is not None}
            for source, thing in _Search(wanted).run():
                if id(thing) not in known and len(self._counters) < _MOST_COUNTERS:
                    try:
                        self._counters.append([source, ref(thing), 0])
                    except TypeError:  # it allows no weak reference, and it is not kept alive
                        pass
        # While a program sets itself up it loads modules: the searches for it begin anew with the first that is known.
        self._step_ns = min(self._step_ns * _RATIO, _LONGEST_NS) if wanted else _FIRST_NS
        self._rests_until_ns = elapsed_ns + max(_FIRST_NS, (thread_time_ns() - begun_ns) * _PART)
        self._due_ns = max(self._rests_until_ns, elapsed_ns + self._step_ns)


class _Search:
    """One look through the variables of all running frames and of all waiting tasks."""

    def __init__(self, wanted):
        self._wanted = wanted
        self._kinds = {}  # id of a type -> its Source, None, or False: not to be looked into
        self._seen = set()
        self._looks = 0
        self._found = []

    def run(self):
        """Return [(source, object)]."""
        try:
            for frame in list(sys._current_frames().values()):
                self._frames(frame)
            for waiting in _tasks():
                self._coroutines(waiting)
        finally:
            self._seen.clear()
        return self._found

    def _frames(self, frame):
        slots = threads.slots()
        for _ in range(_MOST_FRAMES):
            if frame is None:
                return
            space = frame.f_globals
            if dict.get(space, "__package__") != __package__:  # else it is a frame of ours: this very search
                names = threads.local_names(frame.f_code)[:_MOST_HELD]
                self._look_at([value for _, value in slots.of_frame(frame, names)])
                if dict.get(space, "__name__") == "__main__" and id(space) not in self._seen:
                    self._seen.add(id(space))
                    self._look_at(list(dict.values(space)))
            frame = frame.f_back

    def _coroutines(self, thing):
        """Follow what a task waits for, coroutine by coroutine."""
        for _ in range(_MOST_FRAMES):
            held = gc.get_referents(thing)
            if type(thing) is classes.CoroutineType and sys.version_info < (3, 11):
                held = [each for frame in held if type(frame) is classes.FrameType for each in gc.get_referents(frame)]
            self._look_at(held)
            thing = next((each for each in held if type(each) is classes.CoroutineType and id(each) not in self._seen), None)
            if thing is None:
                return
            self._seen.add(id(thing))

    def _look_at(self, things):
        """Take what is wanted among the things, and among the attributes of those that are instances."""
        for thing in things:
            kind = self._kind(thing)
            if kind:
                self._take(kind, thing)
            elif kind is None and self._is_new(thing):
                for held in _attributes(thing):
                    kind = self._kind(held)
                    if kind:
                        self._take(kind, held)

    def _take(self, source, thing):
        if self._is_new(thing):
            self._found.append((source, thing))

    def _is_new(self, thing):
        self._looks += 1
        if id(thing) in self._seen or self._looks > _MOST_LOOKS:
            return False
        self._seen.add(id(thing))
        return True

    def _kind(self, thing):
        cls = type(thing)
        found = self._kinds.get(id(cls), self)
        if found is self:
            bases = classes.mro_ids(cls)
            found = next((source for place, source in self._wanted.items() if place in bases), None)
            flags = classes.HEAP_TYPE | classes.HAVE_GC
            if found is None and (classes.flags_of(cls) & flags != flags or id(type) in bases):
                found = False
            self._kinds[id(cls)] = found
        return found


def _attributes(thing):
    """Return what an instance holds: in the object itself, or in its dict."""
    held = gc.get_referents(thing)[:_MOST_HELD]
    for each in list(held):
        if type(each) is dict:  # its __dict__, or one more step
            held.extend(list(each.values())[:_MOST_HELD])
    return held


def _tasks():
    """Yield the pending tasks that asyncio knows."""
    for kept in classes.sets_of_tasks(classes.space_named("asyncio.tasks")):
        for each in list(kept)[:_MOST_FRAMES]:
            task = each() if type(each) is ref else each
            if task is not None:
                yield task


def _wanted():
    """Return {id of a class: its Source} of those that are loaded."""
    found = {}
    for source in _SOURCES:
        cls = classes.space_named(source.module).get(source.cls)
        if cls is not None and classes.is_class(cls):
            found[id(cls)] = source
    return found


# --- reading counters ---


def _attribute(thing, *names):
    """Return an attribute of an attribute ..., None where there is none, or asking for it could run code."""
    for name in names:
        if thing is None or not classes.is_safe_name(type(thing), name):
            return None
        try:
            thing = object.__getattribute__(thing, name)
        except AttributeError:
            return None
    return thing


def _count(*names, less=0):
    def read(thing):
        value = _attribute(thing, *names)
        return max(0, value - less) if type(value) is int else None
    return read


def _size(*names):
    def read(thing):
        value = _attribute(thing, *names)
        return len(value) if type(value) in (set, dict, list) else None
    return read


def _aiohttp_requests(server):
    """Requests under way: connections (web_protocol.RequestHandler) that have a current one."""
    connections = _attribute(server, "_connections")
    if type(connections) is not dict or len(connections) > _MOST_CONNECTIONS:
        return None
    return sum(_attribute(handler, "_current_request") is not None for handler in list(connections))


def _celery():
    """Return (tasks accepted, tasks under way or None) of a celery worker, which counts them in a module."""
    state = classes.space_named("celery.worker.state")
    accepted, active = state.get("all_total_count"), state.get("active_requests")
    if type(accepted) is not list or len(accepted) != 1 or type(accepted[0]) is not int:
        return None
    active = getattr(active, "data", active) if active is not None else None
    return accepted[0], len(active) if type(active) is set else None


def _optimizer_steps(optimizer):
    """Steps of a torch optimizer that counts them with its parameters, as Adam does: of the first parameter, where the
    number is a plain one or a single float in the memory of the host."""
    state = _attribute(optimizer, "state")
    if not any(base is dict for base in classes.mro_of(type(state))):
        return None
    try:
        kept = next(iter(dict.values(state)), None)
    except RuntimeError:  # it was changed meanwhile
        return None
    step = dict.get(kept, "step") if type(kept) is dict else None
    return step if type(step) is int else _float_of(step)


def _float_of(tensor):
    cls = classes.space_named("torch").get("Tensor")
    if cls is None or type(tensor) is not cls or tensor.device.type != "cpu" or tensor.numel() != 1:
        return None
    value = tensor.item()
    return int(value) if 0 <= value < 1 << 53 else None


# The names are those in the sources of uvicorn 0.54, aiohttp 3.14, gunicorn 27, torch 2.13, CPython 3.9 to 3.13, celery 5,
# transformers 4 and lightning 2 (the last three were read, not run here). What has another name is not counted.
_SOURCES = (
    Source("uvicorn requests", 1, "uvicorn.server", "Server", _count("server_state", "total_requests"),
           _size("server_state", "tasks")),
    Source("aiohttp requests", 1, "aiohttp.web_server", "Server", _count("requests_count"), _aiohttp_requests),
    Source("gunicorn requests", 1, "gunicorn.workers.base", "Worker", _count("nr")),
    Source("transformers steps", 2, "transformers.trainer_callback", "TrainerState", _count("global_step")),
    Source("lightning steps", 2, "lightning.pytorch.loops.training_epoch_loop", "_TrainingEpochLoop",
           _count("_batches_that_stepped")),
    Source("lightning steps", 2, "pytorch_lightning.loops.training_epoch_loop", "_TrainingEpochLoop",
           _count("_batches_that_stepped")),
    Source("torch optimizer steps", 3, "torch.optim.optimizer", "Optimizer", _optimizer_steps),
    Source("torch scheduler steps", 4, "torch.optim.lr_scheduler", "LRScheduler", _count("_step_count", less=1)),
    Source("process pool items", 5, "concurrent.futures.process", "ProcessPoolExecutor", _count("_queue_count"),
           _size("_pending_work_items")),
)
