"""Roots: what lives by itself, with the label that a person would use."""

from __future__ import annotations

import pytest

from leakscope.agent import format as layout
from tests.agent.staged import VERSIONS
from tests.agent.walking import WAYS, Snapshot, taken

PROGRAM = '''
import asyncio, atexit, functools, gc, signal, socket, threading

class Service:
    def stop(self, number, frame): pass
    def close(self): pass
service = Service()
signal.signal(signal.SIGTERM, service.stop)
atexit.register(service.close)
atexit.register(functools.partial(print, "x", sep="y"), "z")
gc.callbacks.append(lambda phase, info: None)

open_socket, closed_socket = socket.socket(), socket.socket()
closed_socket.close()
open_file, closed_file = open(sys.argv[0], "rb", buffering=0), open(sys.argv[0], "rb", buffering=0)
closed_file.close()

def numbers():
    yield 1
fresh, spent, suspended = numbers(), numbers(), numbers()
list(spent)
next(suspended)

class Handled(Exception): pass

def wait():
    try:
        raise Handled()
    except Handled:
        ready.set()
        over.wait()
ready, over = threading.Event(), threading.Event()
thread = threading.Thread(target=wait, name="reader-1", daemon=True)
NAME = "reader"
thread.start()
ready.wait()

async def sleep(): await asyncio.sleep(3600)
async def nothing(): pass

async def main():
    pending, finished = asyncio.ensure_future(sleep()), asyncio.ensure_future(nothing())
    await finished
    await asyncio.sleep(0)
    snapshot()
    pending.cancel()
asyncio.run(main())
over.set()
atexit.unregister(service.close)
'''


@pytest.fixture(params=WAYS)
def snapshot(request: pytest.FixtureRequest) -> Snapshot:
    return taken(request.param, PROGRAM)


def states(snapshot: Snapshot, *steps: str) -> list[str]:
    return [layout.STATES[snapshot.state[node]] for node in snapshot.follow(snapshot.module(), *steps)]


def kinds(snapshot: Snapshot) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for kind, label in zip(snapshot.root_kind.tolist(), snapshot.root_label.tolist(), strict=True):
        found.setdefault(layout.ROOT_KINDS[kind], set()).add(snapshot.strings[label])
    return found


def test_roots_have_the_names_that_a_person_uses(snapshot):
    found = kinds(snapshot)
    assert {"module __main__", "module sys", "module builtins", "module asyncio.tasks"} <= found["module"]
    assert {"thread 'MainThread'", "thread 'reader-1'"} <= found["frame"]
    assert found["signal"] >= {"SIGTERM handler"}
    assert {"atexit callback Service.close()", "atexit callback"} <= found["atexit"]
    assert "event loop" in found["event-loop"]
    assert {"sys.modules", "gc.callbacks", "gc.garbage"} <= found["interpreter"]


def test_a_pending_task_is_a_root_and_a_finished_one_is_not(snapshot):
    tasks = snapshot.nodes("_asyncio.Task")
    roots = {int(node) for node, kind in zip(snapshot.root_node, snapshot.root_kind, strict=True)
             if layout.ROOT_KINDS[kind] == "task"}
    ended = {node for node in tasks if layout.STATES[snapshot.state[node]] == "ended"}
    assert roots
    assert not roots & ended


def test_a_signal_handler_leads_to_its_object(snapshot):
    (service,) = snapshot.follow(snapshot.module(), "attribute service")
    assert snapshot.follow(snapshot.roots("signal", "SIGTERM handler"), "internal __self__") == [service]


def test_an_atexit_callback_leads_to_its_object(snapshot):
    (service,) = snapshot.follow(snapshot.module(), "attribute service")
    assert service in snapshot.follow(snapshot.roots("atexit", "atexit callback Service.close()"), "internal __self__")


def test_things_say_whether_they_have_ended(snapshot):
    assert states(snapshot, "attribute open_socket") == ["live"]
    assert states(snapshot, "attribute closed_socket") == ["ended"]
    assert states(snapshot, "attribute open_file") == ["live"]
    assert states(snapshot, "attribute closed_file") == ["ended"]
    assert states(snapshot, "attribute fresh") == ["live"]
    assert states(snapshot, "attribute suspended") == ["live"]
    assert states(snapshot, "attribute spent") == ["ended"]


@pytest.mark.parametrize("version", VERSIONS[1:])  # 3.9 does not tell
def test_an_exception_that_is_being_handled_is_held_by_its_thread(version):
    snapshot = taken(version, PROGRAM)
    assert snapshot.roots("frame", "exception in thread 'reader-1'") == [snapshot.node("__main__.Handled")]
