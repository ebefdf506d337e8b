"""Why is this object alive? The walk names thirty ways to hold one, on every Python, from the root."""

from __future__ import annotations

import pytest

from tests.agent.walking import WAYS, Snapshot, taken

PROGRAM = '''
import asyncio, atexit, contextvars, functools, gc, threading, weakref
from collections import OrderedDict, defaultdict, deque

class Marker:
    def __init__(self, size=0):
        self.size = size

for _name in """InDict InCache InBoundedCache InLocal InFrame InGenerator InTask InClosure InTraceback InContext OnClass
        OnMethod InCallback Leaked InCycle InSlot InDeque InPartial AtExit OnMain InOrdered InDefault InSubclass InSet
        InNamed OnTheStack InGlobalContext InLateDict""".split():
    globals()[_name] = type(_name, (Marker,), {})

KEEP = {"req": [InDict()], ("pair", 1): None, "alice@example.org": 1}

@functools.lru_cache(maxsize=None)
def resolve(key):
    return InCache()
resolve("eu")

@functools.lru_cache(maxsize=8)
def bounded(key):
    return InBoundedCache()
bounded("eu")

class Kept(threading.local):
    pass
locals_of_threads = threading.local()
kept = Kept()
kept.note = []
ready, over = threading.Barrier(3), threading.Event()

def work():
    locals_of_threads.worker = InLocal()
    ready.wait()
    over.wait()

def drain():
    batch = InFrame()
    def wait():
        ready.wait()
        over.wait()
    wait()

def pump(session):
    seen = session
    yield 1
    return seen

generator = pump(InGenerator())
next(generator)

async def serve():
    request = InTask()
    await asyncio.sleep(3600)

def make_adder():
    amount = InClosure()
    def add(x):
        return amount, x
    return add
adder = make_adder()

def inner():
    loc = InTraceback()
    raise ValueError("x")

def store():
    try:
        inner()
    except ValueError as error:
        KEEP["last_error"] = error
store()

request_id = contextvars.ContextVar("request_id")
context = contextvars.Context()
context.run(request_id.set, InContext())
tenant = contextvars.ContextVar("tenant")
tenant.set(InGlobalContext())

class Registry:
    shared = OnClass()
    def __init__(self):
        self.owner = OnMethod()
    def handle(self):
        pass

SUBSCRIBERS = [Registry().handle]

class Target: pass
target = Target()
ref = weakref.ref(target, lambda ref, note=InCallback(): None)

class Slotted:
    __slots__ = ("payload", "other")
slotted = Slotted()
slotted.payload = InSlot()
queue = deque([None, InDeque()], maxlen=5)
later = functools.partial(print, 1, sep=InPartial())
def flush(journal): pass
atexit.register(flush, AtExit())
ordered = OrderedDict(orders=InOrdered())
default = defaultdict(list, orders=[InDefault()])
class Table(dict): pass
table = Table(orders=InSubclass())
table.note = "x"
members = {InSet()}
from collections import namedtuple
Pair = namedtuple("Pair", "left right")
pair = Pair(1, InNamed())
space = {"first": InLateDict()}
holder = Target()
holder.__dict__ = space

import ctypes
leaked = Leaked()
ctypes.pythonapi.Py_IncRef(ctypes.py_object(leaked))
del leaked

class Node: pass
first, second = Node(), Node()
first.peer, second.peer, first.load = second, first, InCycle()
gc.disable()
del first, second

threads = [threading.Thread(target=work, name="report_0", daemon=True),
           threading.Thread(target=drain, name="feed-eu", daemon=True)]
NAMES = ("report", "feed-eu")
for thread in threads:
    thread.start()
ready.wait()

def calls():
    for it in [OnTheStack()]:
        look()

def look():
    own_frame = OnMain()
    snapshot()

async def main():
    task = asyncio.ensure_future(serve())
    task.set_name("reader-eu")
    await asyncio.sleep(0)
    calls()
    task.cancel()
asyncio.run(main())
over.set()
atexit.unregister(flush)
'''

MAIN = "module __main__"
CHAINS = {
    "InDict": ("module", MAIN, "attribute KEEP", "key 'req'", "index 0"),
    "InCache": ("module", MAIN, "attribute resolve", "internal cache", "key 'eu'"),
    "InBoundedCache": ("module", MAIN, "attribute bounded", "internal cache[*]"),
    "InLocal": ("thread-local", "thread 'report_0'", "attribute worker"),
    "InFrame": ("frame", "thread 'feed-eu'", "local batch"),
    "InTask": ("task", "Task 'reader-eu'", "internal _coro", "local request"),
    "InClosure": ("module", MAIN, "attribute adder", "internal __closure__", "cell amount", "contents"),
    "InTraceback": ("module", MAIN, "attribute KEEP", "key 'last_error'", "internal __traceback__", "attribute tb_next",
                    "attribute tb_frame", "local loc"),
    "InContext": ("module", MAIN, "attribute context", "key 'request_id'"),
    "InGlobalContext": ("contextvar", "context of thread 'MainThread'", "key 'tenant'"),
    "OnClass": ("module", MAIN, "attribute Registry", "attribute shared"),
    "OnMethod": ("module", MAIN, "attribute SUBSCRIBERS", "index 0", "internal __self__", "attribute owner"),
    "InCallback": ("module", MAIN, "attribute ref", "internal __callback__", "internal __defaults__", "index 0"),
    "InSlot": ("module", MAIN, "attribute slotted", "attribute payload"),
    "InDeque": ("module", MAIN, "attribute queue", "index 1"),
    "InPartial": ("module", MAIN, "attribute later", "attribute keywords", "key 'sep'"),
    "AtExit": ("atexit", "atexit callback flush()", "index 0"),
    "OnMain": ("frame", "thread 'MainThread'", "local own_frame"),
    "OnTheStack": ("frame", "thread 'MainThread'", "local it"),
    "InOrdered": ("module", MAIN, "attribute ordered", "key 'orders'"),
    "InDefault": ("module", MAIN, "attribute default", "key 'orders'", "index 0"),
    "InSubclass": ("module", MAIN, "attribute table", "key 'orders'"),
    "InSet": ("module", MAIN, "attribute members", "element"),
    "InNamed": ("module", MAIN, "attribute pair", "attribute right"),
    "InLateDict": ("module", MAIN, "attribute holder", "attribute first"),
}


@pytest.fixture(params=WAYS)
def snapshot(request: pytest.FixtureRequest) -> Snapshot:
    return taken(request.param, PROGRAM)


@pytest.mark.parametrize("name", CHAINS)
def test_the_chain_to_what_is_held_has_its_names(snapshot, name):
    kind, label, *steps = CHAINS[name]
    assert snapshot.node(f"__main__.{name}") in snapshot.follow(snapshot.roots(kind, label), *steps)


def test_a_suspended_generator_names_its_variables(snapshot):
    (generator,) = snapshot.follow(snapshot.module(), "attribute generator")
    held = snapshot.node("__main__.InGenerator")
    frames = snapshot.follow([generator], "internal gi_frame")  # up to 3.10 the variables are in a frame of their own
    assert held in snapshot.follow([generator, *frames], "local session")
    assert held in snapshot.follow([generator, *frames], "local seen")


def test_a_thread_local_holds_the_values_of_each_thread_once(snapshot):
    for name, thread in (("locals_of_threads", "thread 'report_0'"), ("kept", "thread 'MainThread'")):
        (space,) = snapshot.follow(snapshot.module(), f"attribute {name}", f"key {thread}")
        assert snapshot.refcount[space] == len(snapshot.holders(space)) == 1


def test_a_leaked_reference_shows_as_a_count_that_no_edge_explains(snapshot):
    node = snapshot.node("__main__.Leaked")
    assert (snapshot.refcount[node], len(snapshot.holders(node))) == (1, 0)


def test_an_uncollected_cycle_explains_its_own_counts(snapshot):
    nodes = snapshot.nodes("__main__.Node")
    assert len(nodes) == 2
    for node in nodes:
        holders = snapshot.holders(node)
        assert snapshot.refcount[node] == len(holders) == 1
        assert holders[0][1:] == ("attribute", "peer")
    assert snapshot.follow(nodes, "attribute load") == [snapshot.node("__main__.InCycle")]


def test_a_dead_frame_is_no_root(snapshot):
    roots = {int(node) for node in snapshot.root_node}
    frames = {node for node in snapshot.nodes("builtins.frame")
              if snapshot.strings[snapshot.label[node]].startswith("inner()")}
    assert len(frames) == 1
    assert not frames & roots


def test_keys_that_are_no_words_of_the_program_are_masked(snapshot):
    (keep,) = snapshot.follow(snapshot.module(), "attribute KEEP")
    texts = [text for kind, text, _ in snapshot.edges(keep) if kind == "key-object"]
    assert sorted(texts) == ["'last_error'", "'req'", "str:17", "tuple:2"]


def test_limits_and_caches_are_listed(snapshot):
    limits = {what: limit for _address, limit, what in snapshot.names["bounds"] if limit in (5, 8)}
    assert limits == {"maxlen": 5, "maxsize": 8}
    caches = {cache["name"]: cache for cache in snapshot.names["caches"]}
    assert caches["__main__.resolve"]["maxsize"] is None
    assert caches["__main__.bounded"]["currsize"] == 1


def test_nodes_say_what_they_are(snapshot):
    labels = {snapshot.strings[label] for label in snapshot.label}
    for expected in (MAIN, "class __main__.Registry", "__main__.resolve()", "Task 'reader-eu'", "thread 'feed-eu'",
                     "lru_cache of __main__.resolve()"):
        assert expected in labels
    assert any(label.startswith("drain() at ") for label in labels)
    assert any(label.startswith("generator pump() at ") for label in labels)
