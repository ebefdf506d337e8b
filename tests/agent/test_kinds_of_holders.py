"""Every kind of holder is named as a person would name it, by both walks: one program, one snapshot of each.

The traps of knowledge/cpython-heap.md that this shows, by number: P2 (running frames and their stack), P3 (a dead frame is no
root), P4 and P28, P29 (generators, thread-locals, contexts), P5 (untracked containers), P6 (memoryviews), P20 (frozen heaps),
P25 (caches), P26 (weak references), P34 (the shortest path is not the cause), P40 (exceptions).
"""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from leakscope.analyse import retention
from leakscope.analyse.paths import Tree
from leakscope.heap.graph import HeapGraph
from leakscope.heap.load import load
from tests.agent.twins import differences, taken
from tests.agent.walking import Snapshot

PROGRAM = Path(__file__).with_name("programs").joinpath("kinds.py").read_text()
CALL = "__main__.call()"
NOTE = "keywords['note']"

# Two of the four layouts: each run costs seconds, and the other versions have the laws of test_walk_holders.py.
VERSIONS = ("3.11", "3.13")

# Name of the class -> (kind of root, path).
PATHS = {
    "CachedProperty": ("module", "__main__.STORE.table"),
    "PartialMethod": ("module", f"__main__.Store.quick({CALL}).args[0]"),
    "Property": ("module", "__main__.Store.body.fget.<closure>.state"),
    "MethodCache": ("module", "__main__.Store.load.cache.keys()[*][0].pages"),
    "BoundedMethodCache": ("module", "__main__.Store.find.cache key[0].pages"),
    "SingleDispatch": ("module", f"__main__.show.registry.mapping[int]({CALL}).{NOTE}"),
    "MethodInDict": ("module", f"__main__.METHODS['run']({CALL}).__self__"),
    "MetaclassAttribute": ("module", "__main__.Meta.seen"),
    "InSubclassRegistry": ("module", "__main__.Plugin.registry['Export'].writer"),
    "EnumMember": ("module", "__main__.Color.RED._value_"),
    "LostModule": ("module", "__main__.HOOK.__globals__['table']"),
    "ModuleApart": ("module", "__main__.MODULE.state"),
    "YieldFrom": ("module", "__main__.STREAM generator outer().gi_yieldfrom generator inner().page"),
    "GeneratorExpression": ("module", "__main__.LINES generator <genexpr>()..0.iterated[1]"),
    "AwaitChain": ("task", "Task 'relay'._coro coroutine relay().cr_await coroutine consume().buffer"),
    "TaskContext": ("contextvar", "context of Task 'serve'['tenant']"),
    "FutureCallback": ("module", f"__main__.FUTURES[0]._callbacks({CALL}).{NOTE}"),
    "CallLater": ("event-loop", f"event loop._scheduled[0]({CALL})._args[0]"),
    "CallLaterMethod": (
        "event-loop", "event loop._scheduled[1]._callback(__main__.Session.expire()).__self__.cart"),
    "LoopSignal": ("event-loop", f"event loop._signal_handlers[Signals]({CALL})._args[0]"),
    "Token": ("module", "__main__.TOKEN.old_value"),
    "ContextDefault": ("module", "__main__.DEFAULT.default"),
    "ThreadContext": ("contextvar", "context of thread 'worker-a'['level']"),
    "HandledException": ("frame", "exception in thread 'worker-a' KeyError.args[0]"),
    "TimerArgument": ("module", f"threading._active[int] thread 'timer-a'({CALL}).args[0]"),
    "Cause": ("module", "__main__.FINISHED[0].__cause__.args[0]"),
    "LastValue": ("module", "sys.last_value.args[0]"),
    "AtExitMethod": ("atexit", "atexit callback Session.expire().__self__.cart"),
    "SignalMethod": ("signal", "SIGHUP handler __main__.Session.expire().__self__.cart"),
    "CollectorCallback": ("interpreter", f"gc.callbacks[0]({CALL}).{NOTE}"),
    "CodecErrors": ("interpreter", f"codecs.register_error()['logged']({CALL}).{NOTE}"),
    "CopyReg": ("module", f"copyreg.dispatch_table[Session]({CALL}).{NOTE}"),
    "ExitStack": ("module", f"__main__.STACK._exit_callbacks[0][1]({CALL}).<closure>.args[0]"),
    "Finalize": ("module", f"weakref.finalize._registry[finalize]({CALL}).args[0]"),
    "WeakKey": ("module", "__main__.STYLES.data[ReferenceType]"),
    "LogArgument": ("module", "__main__.log.handlers[0].buffer[0].args[0]"),
    "Map": ("module", "__main__.MAPPED.iterated[0].iterated[0]"),
    "DictValues": ("module", "__main__.VALUES.mapping['a']"),
    "MappingProxy": ("module", "__main__.PROXY.mapping['a']"),
    "DefaultFactory": ("module", f"__main__.FACTORY.default_factory({CALL}).{NOTE}"),
    "CounterKey": ("module", "__main__.HITS.keys()[*]"),
    "MemoryView": ("module", "__main__.VIEW.buffer.obj"),
    "CtypesCallback": ("module", f"__main__.CALLBACK.callable({CALL}).{NOTE}"),
    "PicklerMemo": ("module", "__main__.PICKLER.memo"),
    "FrameCycle": ("garbage", "ValueError.__traceback__.tb_frame attempt().form"),
    "ClassCycle": ("garbage", "class __main__.Row.schema"),
    "WeakValueCycle": ("garbage", "Node.payload"),
}
# Those that read differently on some versions, as what has to be in the path, in this order.
PARTS = {
    "MethodCaller": ("module", ("__main__.ASK[0].args",)),
    "AsyncFor": ("task", ("Task 'watch'", "watch()", "async generator waiting().buffer")),
    "TaskException": ("module", ("__main__.FINISHED[", "_exception", "fail().response")),
    "FrameStack": ("frame", ("thread 'worker-a' work().<stack ",)),
    "ExecutorQueue": ("module", ("__main__.POOL._work_queue.queue", f"({CALL})", ".args[0]")),
    "SimpleQueue": ("module", ("__main__.JOBS.queue", "[0]")),
    "TypingCache": ("module", ("typing._c", ".cache key[1]")),
}


class Named:
    """A snapshot with the words for whatever is asked for."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.graph: HeapGraph = load(snapshot.folder)
        self.tree: Tree = retention.holder_tree(self.graph)
        self.snapshot = snapshot

    def path(self, name: str) -> tuple[str, str]:
        """(kind of root, path text) of the only instance of a class of the program."""
        node = self.snapshot.node(f"__main__.{name}")
        found = retention.path(self.graph, self.tree, node, merged=False)
        assert found is not None
        return found.root_kind, found.text


@functools.lru_cache(maxsize=1)
def both(version: str) -> dict[str, Named]:
    found = taken(version, PROGRAM)
    return {"native": Named(found.native), "python": Named(found.twin)}


@pytest.mark.parametrize("version", VERSIONS)
def test_both_walks_see_every_kind_of_holder_alike(version: str) -> None:
    assert differences(taken(version, PROGRAM)) == ""


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("way", ("native", "python"))
def test_every_kind_of_holder_is_named(version: str, way: str) -> None:
    named = both(version)[way]
    wrong = {name: named.path(name) for name, expected in PATHS.items() if named.path(name) != expected}
    for name, (kind, parts) in PARTS.items():
        found_kind, text = named.path(name)
        places = [text.find(part) for part in parts]
        if kind != found_kind or -1 in places or places != sorted(places):
            wrong[name] = (found_kind, text)
    assert wrong == {}
