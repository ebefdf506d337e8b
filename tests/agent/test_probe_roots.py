"""What lives by itself, natively: roots, running frames, generators, contexts, thread-locals are those of the twin, by name."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest

from leakscope.agent import format as layout
from tests.agent.twins import ROOTS_OF_THE_NATIVE, VERSIONS, Twins, taken
from tests.agent.walking import Snapshot

# Threads that wait in C code in every way, tasks, generators, callbacks; while it walks, the main thread handles an exception.
PROGRAM = '''
import asyncio, atexit, contextvars, functools, gc, os, signal, socket, threading, time

class Thing:
    """Held in one place only, under the name it was given."""
    def __init__(self, name): self.name = name
    def stop(self, number, frame): pass
    def close(self, *args, **more): pass

class Handled(Exception): pass
class Waiting(Exception): pass

SECRET = "hunter2-" + str(len(sys.argv) * 424242)
started, over = [], threading.Event()

def begin(name, target, *args):
    ready = threading.Event()
    thread = threading.Thread(target=target, name=name, args=(ready, *args), daemon=True)
    thread.start()
    ready.wait()
    started.append(thread)

# --- threads that wait in C code, in every way ---

def in_event(ready):
    held_in_event = Thing("event")
    ready.set()
    over.wait()

def in_sleep(ready):
    held_in_sleep = Thing("sleep")
    ready.set()
    time.sleep(3600)

near, far = socket.socketpair()
def in_receive(ready):
    held_in_receive = Thing("receive")
    ready.set()
    near.recv(1)

def deeper(ready, left, *held):
    here = Thing("deep")
    if left:
        return [deeper(ready, left - 1, *held), here]
    ready.set()
    over.wait()

def in_generator(ready):
    def inner(held):
        mine = Thing("inner")
        yield 1
        ready.set()
        over.wait()
        yield mine
    def outer():
        around = Thing("outer")
        yield from inner(Thing("argument"))
    for number in outer():
        pass

def in_except(ready):
    try:
        raise Waiting()
    except Waiting:
        def handles():
            try:
                raise Handled()
            except Handled:
                ready.set()
                over.wait()
                yield
        list(handles())

def in_callback(ready):
    def key(number):
        compared = Thing("key")
        ready.set()
        over.wait()
        return number
    sorted([2], key=key)

def in_comprehension(ready):
    outside = Thing("outside")
    def wait(thing):
        ready.set()
        over.wait()
    return [[wait(outside) for inner in (Thing("nested"),)] for number in (1,)]

def in_cell(ready):
    captured = Thing("captured")
    def reads():
        return captured
    ready.set()
    over.wait()
    return reads

BODY = """
held_in_body = Thing("body")
class Made:
    held_in_class = Thing("class")
    ready.set()
    over.wait()
"""

def in_body(ready):
    exec(compile(BODY, "body.py", "exec"), {"__name__": "body", "Thing": Thing, "ready": ready, "over": over})

# --- what threads keep ---

plain = threading.local()
class Special(threading.local):
    def __init__(self, first=None, **more): self.first = first
special = Special(Thing("argument of local"), more=Thing("keyword of local"))
special.mine = plain.mine = Thing("local of main")
plain.secret = SECRET
request = contextvars.ContextVar("request")
many = [contextvars.ContextVar("v%d" % number) for number in range(60)]

def with_locals(ready):
    plain.theirs, special.theirs = Thing("local of thread"), Thing("special of thread")
    request.set(Thing("context of thread"))
    ready.set()
    over.wait()

for name, target in list(globals().items()):
    if name.startswith("in_") or name == "with_locals":
        begin("reader-%d" % len(started), target)
begin("deep", deeper, 20, Thing("passed"))
names = ("reader", "deep")  # words of the program: names of threads may be shown
for var in many: var.set(Thing("many"))
copied = contextvars.copy_context()

# --- generators that wait ---

def counts(limit, *more, key=None):
    total = Thing("total")
    yield limit
    yield total

def delegates():
    mine = Thing("delegating")
    yield from counts(2)

async def walks():
    step = Thing("step")
    yield step
    await asyncio.sleep(3600)
    yield step

async def consumes():
    last = Thing("last")
    async for each in walks(): pass

async def sleeps(thing):
    request.set(Thing("context of task"))
    await asyncio.sleep(3600)

async def nothing(): pass

fresh, suspended, spent, delegating = counts(1), counts(1), counts(1), delegates()
next(suspended), list(spent), next(delegating)
async def handles_and_waits():
    try:
        raise Handled()
    except Handled as error:
        await asyncio.sleep(3600)

def fails():
    kept_by_traceback = Thing("traceback")
    raise Handled()
try:
    fails()
except Handled as error:
    kept = error

# --- callbacks ---

signal.signal(signal.SIGUSR1, Thing("signal").stop)
signal.signal(signal.SIGTERM, lambda number, frame: None)
signal.signal(signal.SIGUSR2, signal.SIG_IGN)
atexit.register(Thing("atexit").close, Thing("atexit argument"), keyword=Thing("atexit keyword"))
atexit.register(functools.partial(print, end=""), "")
def flush(): pass
atexit.register(flush)
atexit.register(nothing)
atexit.unregister(nothing)
gc.callbacks.append(lambda phase, info: None)

open_socket, closed_socket = socket.socket(), socket.socket()
closed_socket.close()
open_file, closed_file = open(sys.argv[0], "rb", buffering=0), open(sys.argv[0], "rb", buffering=0)
closed_file.close()

async def echo(reader, writer):
    line = await reader.read(10)

def walk_below():
    here = Thing("while walking")
    both()

async def main():
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    client = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
    tasks = [asyncio.ensure_future(each) for each in (sleeps(Thing("of task")), consumes(), handles_and_waits())]
    named = asyncio.create_task(sleeps(Thing("of named")), name="reader-eu")
    private = asyncio.create_task(sleeps(Thing("of private")), name=SECRET)
    finished = asyncio.ensure_future(nothing())
    future, done = asyncio.get_running_loop().create_future(), asyncio.get_running_loop().create_future()
    done.set_result(1)
    await finished
    await asyncio.sleep(0.01)
    try:
        raise Handled()
    except Handled:
        walk_below()
    sys.stdout.flush()
    os._exit(0)  # threads and tasks wait for ever

asyncio.run(main())
'''

# A running frame has a frame object in the twin only: frames are compared by label.
COMPARED = ("frame", "generator", "task", "thread")
COMPARED_TYPES = ("_thread._local", "__main__.Special", "_contextvars.Context", "_socket.socket", "socket.socket", "_io.FileIO",
                  "_asyncio.Future", "hamt", "hamt_array_node", "hamt_bitmap_node", "hamt_collision_node")


@pytest.fixture(params=VERSIONS)
def twins(request: pytest.FixtureRequest) -> Twins:
    return taken(request.param, PROGRAM)


def key(snapshot: Snapshot, node: int) -> object:
    is_frame = layout.NODE_KINDS[snapshot.kind[node]] == "frame"
    return snapshot.strings[snapshot.label[node]] if is_frame or not snapshot.address[node] else int(snapshot.address[node])


def roots(snapshot: Snapshot) -> Counter[tuple[object, str, str]]:
    rows = zip(snapshot.root_node.tolist(), snapshot.root_kind.tolist(), snapshot.root_label.tolist(), strict=True)
    return Counter((key(snapshot, node), layout.ROOT_KINDS[kind], snapshot.strings[label]) for node, kind, label in rows)


def said(snapshot: Snapshot) -> dict[object, Counter[object]]:
    """What a snapshot says of the compared nodes: their edges, labels, states; of objects their sizes too."""
    found: dict[object, Counter[object]] = defaultdict(Counter)
    for node, kind in enumerate(snapshot.kind.tolist()):
        if layout.NODE_KINDS[kind] not in COMPARED and snapshot.type(node).removeprefix("builtins.") not in COMPARED_TYPES:
            continue
        about = found[key(snapshot, node)]
        about[layout.NODE_KINDS[kind], snapshot.strings[snapshot.label[node]], layout.STATES[snapshot.state[node]]] += 1
        if layout.NODE_KINDS[kind] != "frame":
            about["bytes", int(snapshot.shallow_bytes[node])] += 1
        for edge, text, target in snapshot.edges(node):
            # The number of a task becomes its name when the twin asks for that.
            is_name = snapshot.type(target) in ("builtins.int", "builtins.str") and layout.NODE_KINDS[kind] == "task"
            about[edge, text, None if is_name else key(snapshot, target)] += 1
    return found


def nodes_called(snapshot: Snapshot, word: str) -> list[int]:
    """The nodes with `word` in their label."""
    return [node for node, label in enumerate(snapshot.label.tolist()) if word in snapshot.strings[label]]


def assert_held(snapshot: Snapshot, **variables: str) -> None:
    """Fails unless each variable holds exactly one Thing; variable=word: word is in the label of its frame or generator."""
    for variable, word in variables.items():
        found = snapshot.follow(nodes_called(snapshot, word), f"local {variable}")
        assert [snapshot.type(node) for node in found] == ["__main__.Thing"], (variable, word)


def test_the_roots_are_those_of_the_twin(twins: Twins) -> None:
    native, twin = roots(twins.native), roots(twins.twin)
    # The twin makes the dictionary of its thread by asking for it. It sees the innermost of the exceptions that a thread
    # handles, and arguments of callbacks only as long as the collector lists them.
    more = {root[1:] for root in native - twin if not root[2].startswith(ROOTS_OF_THE_NATIVE)}
    assert more <= {("frame", "exception in thread 'reader-4'"), ("atexit", "atexit callback")}
    assert {root[1:] for root in twin - native} <= {("thread-local", "state of thread 'MainThread'")}


def test_frames_generators_contexts_and_locals_hold_what_they_hold_in_the_twin(twins: Twins) -> None:
    native, twin = said(twins.native), said(twins.twin)
    assert len(native) > 100
    assert {name: native[name] - twin[name] for name in native if native[name] - twin[name]} == {}
    assert {name: twin[name] - native[name] for name in twin if twin[name] - native[name]} == {}


def test_a_frame_without_a_frame_object_is_named_by_its_current_line(twins: Twins) -> None:
    labels = [str(root[0]) for root in roots(twins.native) if root[1:] == ("frame", "thread 'reader-1'")]
    program = (twins.native.folder.parent / "program.py").read_text().splitlines()
    line = program.index("    time.sleep(3600)") + 1
    assert [label for label in labels if label.startswith("in_sleep() at ") and label.endswith(f"program.py:{line}")], labels


def test_threads_deep_in_c_code_show_their_variables(twins: Twins) -> None:
    assert_held(twins.native, held_in_event="in_event()", held_in_sleep="in_sleep()", held_in_receive="in_receive()",
                here="walk_below()", around="outer()", mine="inner()", compared="key()")
    captured = twins.native.follow(nodes_called(twins.native, "in_cell()"), "local captured", "contents")
    assert [twins.native.type(node) for node in captured] == ["__main__.Thing"]
    deep = nodes_called(twins.native, "deeper() at")
    assert len({target for node in deep for _kind, text, target in twins.native.edges(node) if text == "here"}) == 21


def test_a_body_that_runs_shows_its_namespace(twins: Twins) -> None:
    snapshot = twins.native
    for body, name in (("<module> at body.py", "held_in_body"), ("Made() at body.py", "held_in_class")):
        held = snapshot.follow(nodes_called(snapshot, body), "internal", f"attribute {name}")  # f_locals, or f_globals
        assert [snapshot.type(node) for node in held] == ["__main__.Thing"], body


def test_what_only_a_traceback_holds_is_no_root(twins: Twins) -> None:
    assert_held(twins.native, kept_by_traceback="fails()")
    assert not any("fails()" in str(root[0]) for root in roots(twins.native))


def test_an_asynchronous_generator_that_waits_shows_its_variables(twins: Twins) -> None:
    for snapshot in (twins.native, twins.twin):
        assert_held(snapshot, step="walks()")


def test_every_exception_that_a_thread_handles_is_a_root(twins: Twins) -> None:
    held = [twins.native.type(node) for node in twins.native.roots("frame", "exception in thread 'reader-4'")]
    assert held == ["__main__.Handled", "__main__.Waiting"]


def test_values_of_a_context_and_of_a_thread_have_names(twins: Twins) -> None:
    snapshot = twins.native
    context = snapshot.roots("contextvar", "context of thread 'reader-9'")
    assert [snapshot.type(node) for node in snapshot.follow(context, "key 'request'")] == ["__main__.Thing"]
    (plain,) = snapshot.follow(snapshot.module(), "attribute plain")
    (theirs,) = snapshot.follow([plain], "key thread 'reader-9'", "attribute theirs")
    assert snapshot.type(theirs) == "__main__.Thing"
    (copied,) = snapshot.follow(snapshot.module(), "attribute copied")
    assert len(snapshot.follow([copied], "key-object")) == 60  # a tree of several levels


def test_what_the_program_keeps_to_itself_is_not_written(twins: Twins) -> None:
    text = (twins.native.folder / "names.json").read_text() + (twins.native.folder / "done.json").read_text()
    assert "hunter2" not in text
