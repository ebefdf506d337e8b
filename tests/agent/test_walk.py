"""The walk as a guest: it runs none of the target's code, keeps nothing alive, changes nothing, and counts right."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from leakscope.agent import format as layout
from tests.agent.staged import interpreter
from tests.agent.walking import PREAMBLE, WAYS, Native, take, take_on, taken

HOSTILE = r'''
import gc
called = []

def refuse(name):
    def method(self, *args, **kwargs):
        called.append(name)
        raise RuntimeError("code of the target ran: " + name)
    return method

NAMES = """repr str eq ne hash len iter getitem contains getattr getattribute sizeof bool dir lt format bytes int float
index call reduce_ex keys items values next length_hint instancecheck subclasscheck mro_entries enter missing reversed
del_ weakref""".split()
dunders = {"__%s__" % name: refuse(name) for name in NAMES}

class Meta(type):
    armed = False
    def __getattribute__(cls, name):
        if Meta.__dict__["armed"]:
            called.append("metaclass " + name)
            raise RuntimeError("metaclass")
        return type.__getattribute__(cls, name)
    __repr__ = __eq__ = __instancecheck__ = __subclasscheck__ = refuse("metaclass method")
    __hash__ = refuse("metaclass hash")
    __module__ = __name__ = __mro__ = __dict__ = __flags__ = property(refuse("metaclass property"))

def make(name, *bases):
    return Meta(name, bases, dict(dunders, __class__=property(refuse("class")), marker=property(refuse("property")),
                                  held=property(refuse("held"))))

class Descriptor:
    def __get__(self, thing, owner):
        called.append("descriptor")
        raise RuntimeError("descriptor")

class Shadowed:
    held = Descriptor()

KEEP = []
for base in (object, dict, list, set, frozenset, tuple, str, bytes, int, float, Exception):
    KEEP.append(base.__new__(make("Hostile_" + base.__name__, base)))
shadowed = Shadowed()
object.__setattr__(shadowed, "other", [1])
KEEP.append(shadowed)
bad = type("Bad", (), {"__module__": property(refuse("module"))})
KEEP.append(bad())
class Sizes:
    def __sizeof__(self):
        called.append("sizeof")
        raise RuntimeError
KEEP.append(Sizes())
class Key:
    def __eq__(self, other):
        called.append("key eq")
        raise RuntimeError
    def __hash__(self):
        return 1
TABLE = {Key(): 1}
type.__setattr__(Meta, "armed", True)
armed_ran = len(called)
done = snapshot()
type.__setattr__(Meta, "armed", False)
assert called == [], called
assert gc.isenabled()
'''

GUEST = '''
import gc, sys, threading, weakref

class Plain:
    def __init__(self, i):
        self.a, self.b, self.c = i, [i], str(i)

class Once: pass

things = [Plain(i) for i in range(50)]
once = Once()
lists = [[Once()]]
shared = Once()
twice = [shared, shared]
del shared
alive = weakref.ref(once)
before = [sys.getsizeof(thing) for thing in things]
shapes = [list(map(type, gc.get_referents(thing))) for thing in things]
count = sys.getrefcount(once)
gc.disable()
gc.set_threshold(11, 12, 13)
frame = sys._getframe()
snapshot()
assert not gc.isenabled() and gc.get_threshold() == (11, 12, 13)
gc.enable()
assert [sys.getsizeof(thing) for thing in things] == before
assert [list(map(type, gc.get_referents(thing))) for thing in things] == shapes
assert sys.getrefcount(once) == count
gc.disable()
del once
assert alive() is None, gc.get_referrers(alive())
'''

SECRETS = '''
import threading, asyncio
secrets = ["sword" + "fish " + letter * 3 for letter in "xyz"]

class Account:
    def __init__(self, name):
        self.name = name
        self.data = {name: [name]}

accounts = {name: Account(name) for name in secrets}
thread = threading.Thread(target=lambda: (ready.set(), over.wait()), name=secrets[0], daemon=True)
ready, over = threading.Event(), threading.Event()
thread.start()
ready.wait()
ORDERS = {"orders": 1, ("sword", secrets[1]): 2, secrets[1].encode(): 3}
made = type(secrets[2], (), {})()
made_in = {made: secrets[0]}
class Empty: pass
odd = Empty()
setattr(odd, secrets[1], 1)
module = type(sys)(secrets[2])
sys.modules[secrets[2]] = module
exec(compile("def f(): pass", secrets[0], "exec"))
async def main():
    task = asyncio.ensure_future(asyncio.sleep(100))
    getattr(task, "set_name", lambda name: None)(secrets[1])
    await asyncio.sleep(0)
    snapshot()
    task.cancel()
asyncio.run(main())
over.set()
'''

GRAPH = '''
import gc
class Marker: pass
class Other:
    def __init__(self): self.x = 1
single = Marker()
pair = Other()
KEEP = [pair]
snapshot()
'''


@pytest.fixture(params=WAYS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def text_of(folder: Path) -> str:
    return "".join(path.read_bytes().decode("latin1") for path in folder.iterdir())


def test_no_code_of_the_target_runs(version):
    snapshot = taken(version, HOSTILE)
    assert len([name for name in snapshot.types if ".Hostile_" in name]) == 11
    assert snapshot.nodes("?.Bad")
    assert not [note for note in snapshot.done["notes"] if "could not be read" in note]


def test_the_target_is_as_it_was_and_nothing_of_it_lives_on(version):
    taken(version, GUEST)


def test_counts_of_references_are_those_of_the_target(version):
    snapshot = taken(version, GUEST)
    counts = {name: {int(snapshot.refcount[node]) for node in snapshot.nodes(f"__main__.{name}")}
              for name in ("Plain", "Once")}
    assert counts == {"Plain": {1}, "Once": {1, 2}}
    for node in snapshot.nodes("__main__.Plain") + snapshot.nodes("__main__.Once"):
        assert snapshot.refcount[node] == len(snapshot.holders(node))


def test_no_object_has_more_edges_than_references(version):
    snapshot = taken(version, GRAPH)
    edges = np.bincount(snapshot.edge_target, minlength=len(snapshot.address))
    known = snapshot.refcount != layout.IMMORTAL
    assert known.any()
    wrong = known & (edges > snapshot.refcount)
    assert [snapshot.type(node) for node in np.flatnonzero(wrong)] == []


def test_a_class_that_was_let_go_explains_its_own_counts(tmp_path, version):
    """A class is in cycles with its MRO and its descriptors; garbage is seen only if all of them are edges."""
    snapshot = take_on(version, '''
import gc
gc.disable()
def make():
    class Gone:
        __slots__ = ("first", "__dict__", "__weakref__")
        @property
        def second(self): return 1
        def method(self): return __class__
    return Gone
make()
snapshot()
''', tmp_path)
    labels = [snapshot.strings[label] for label in snapshot.label]
    (node,) = [node for node in snapshot.nodes("builtins.type") if labels[node].endswith("make.<locals>.Gone")]
    assert snapshot.refcount[node] == len(snapshot.holders(node))


def test_edges_explain_the_references_of_nearly_all_containers_and_functions(version):
    snapshot = taken(version, GRAPH)
    edges = np.bincount(snapshot.edge_target, minlength=len(snapshot.address))
    nodes = [node for name in ("list", "set", "function", "cell") for node in snapshot.nodes(f"builtins.{name}")]
    assert (edges == snapshot.refcount)[nodes].mean() > 0.97


def test_the_columns_fit_together(version):
    snapshot = taken(version, GRAPH)
    count = len(snapshot.address)
    for name, dtype in layout.COLUMNS.items():
        assert snapshot.columns[name].dtype == np.dtype(dtype), name
    assert snapshot.edge_start[0] == 0
    assert snapshot.edge_start[-1] == len(snapshot.edge_target) == len(snapshot.edge_label)
    assert snapshot.done["edge_count"] == len(snapshot.edge_target)
    assert (np.diff(snapshot.edge_start.astype(np.int64)) >= 0).all()
    assert snapshot.edge_target.max() < count == snapshot.done["node_count"]
    addresses = snapshot.address[snapshot.address != 0]  # frames that run need not be objects
    assert len(set(addresses.tolist())) == len(addresses) > count - 20
    assert snapshot.type_id.max() < len(snapshot.types)
    assert snapshot.done["walk"] == ("native" if isinstance(version, Native) else "python")
    assert (snapshot.done["index"], snapshot.done["t_ns"], snapshot.done["kind"]) == (1, 5, "manual")


def test_few_edges_are_without_a_name(version):
    snapshot = taken(version, GRAPH)
    assert (snapshot.edge_label >> layout.EDGE_KIND_SHIFT == 0).mean() < 0.01


def test_the_agent_is_not_in_its_own_snapshot(version):
    snapshot = taken(version, GRAPH)
    assert not [name for name in snapshot.types if "_leakscope_agent" in name]
    assert not [text for text in snapshot.strings if "_leakscope_agent/" in text or "_leakscope_agent." in text]


def test_no_secret_is_in_any_file(version):
    snapshot = taken(version, SECRETS)
    assert "swordfish" not in text_of(snapshot.folder)


def test_words_of_the_program_are_shown(version):
    assert "'orders'" in taken(version, SECRETS).strings


def test_frozen_objects_are_found_from_the_roots(tmp_path, version):
    snapshot = take_on(version, '''
import gc
class Frozen: pass
KEEP = [Frozen() for _ in range(2000)]
gc.freeze()
snapshot()
''', tmp_path)
    assert len(snapshot.nodes("__main__.Frozen")) == 2000
    # The native walk also sees those that no root reaches.
    assert any("frozen" in note for note in snapshot.done["notes"]) != isinstance(version, Native)


def test_a_tracer_gets_every_object_once_and_its_rows_are_kept(tmp_path, version):
    if isinstance(version, Native):
        pytest.skip("sites by tracemalloc are for the walk in Python")
    snapshot = take_on(version, '''
def tracer(objects):
    ids = [1 if type(thing) is Marker else 0 for thing in objects]
    return ids, [None, {"frames": [["a.py", 3, "f"]], "bytes": 10, "count": 1}]
class Marker: pass
one = Marker()
snapshot(tracer=tracer, sample={"t_ns": 4}, notes=["a sentence"])
''', tmp_path)
    assert snapshot.site_id[snapshot.node("__main__.Marker")] == 1
    assert snapshot.site_id.sum() == 1
    assert snapshot.names["sites"][1]["count"] == 1
    assert snapshot.done["sample"] == {"t_ns": 4}
    assert "a sentence" in snapshot.done["notes"]


def test_a_disk_that_is_full_leaves_no_folder_behind(tmp_path, version):
    if isinstance(version, Native):
        pytest.skip("it is among the tests of the probe")
    snapshot = tmp_path / "program.py"
    snapshot.write_text(PREAMBLE + '''
import resource, signal, os
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    snapshot()
except OSError as error:
    print("OSError", os.path.exists(sys.argv[2]))
''')
    import shutil

    from tests.agent.staged import AGENT

    shutil.copytree(AGENT, tmp_path / "_leakscope_agent", ignore=shutil.ignore_patterns("__pycache__", "boot"))
    result = subprocess.run([interpreter(version), "-B", str(snapshot), str(tmp_path), str(tmp_path / "out")],
                            capture_output=True, text=True, timeout=120)
    assert (result.stdout, result.stderr) == ("OSError False\n", "")


def test_snapshots_under_busy_threads_neither_hang_nor_crash(tmp_path, version):
    result = take_on(version, '''
import contextvars, shutil, threading
from collections import deque
over = threading.Event()
tenant = contextvars.ContextVar("tenant")
class Thing:
    def __init__(self, i):
        self.a, self.b = i, [i]
def churn():
    kept = deque(maxlen=200)
    mine = threading.local()
    i = 0
    while not over.is_set():
        i += 1
        tenant.set(i)
        mine.value = [i]
        kept.append(Thing(i))
        space = {str(j): j for j in range(i % 7)}
        worker = threading.Thread(target=lambda: tenant.set([i])) if i % 50 == 0 else None
        if worker:
            worker.start()
            worker.join()
threads = [threading.Thread(target=churn) for _ in range(4)]
for thread in threads:
    thread.start()
try:
    for turn in range(4):
        shutil.rmtree(sys.argv[2], ignore_errors=True)
        snapshot()
finally:
    over.set()
for thread in threads:
    thread.join()
print("over")
''', tmp_path)
    assert result.output == "over\n"
    assert result.nodes("__main__.Thing")


def test_the_free_list_that_asyncio_shows_is_left_alone(tmp_path, version):
    """On 3.12 gc.get_referents(_asyncio) makes its free list endless: the second traversal takes all memory."""
    result = take_on(version, '''
import asyncio, resource, shutil
async def main():
    future = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(future.set_result, 1)
    await future
asyncio.run(main())
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
for turn in range(2):
    shutil.rmtree(sys.argv[2], ignore_errors=True)
    snapshot()
asyncio.run(main())
print("over")
''', tmp_path)
    assert result.output == "over\n"
    assert not [note for note in result.done["notes"] if "could not be read" in note]


def test_objgraph_sees_the_same_chain_of_types(tmp_path):
    pytest.importorskip("objgraph")
    snapshot = take(sys.executable, '''
import objgraph, json
class Marker: pass
class Box:
    def __init__(self): self.items = {"first": [Marker()]}
    __slots__ = ("items",)
BOX = Box()
chain = objgraph.find_backref_chain(objgraph.by_type("Marker")[0], objgraph.is_proper_module)
print(json.dumps([type(thing).__name__ for thing in chain]))
del chain
snapshot()
''', tmp_path)
    chain = json.loads(snapshot.output)
    here = [node for node in snapshot.module()]
    for name in chain[1:]:
        here = [target for node in here for _kind, _text, target in snapshot.edges(node)
                if snapshot.type(target).rpartition(".")[2] == name]
    assert snapshot.node("__main__.Marker") in here
