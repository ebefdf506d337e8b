"""The fingerprint LS1: the same leak has the same name whatever varies between runs, another leak another."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path as File

import numpy as np
import pytest

from leakscope.analyse import retention
from leakscope.analyse.fingerprint import Fingerprint, fingerprint, of_words, script_of, suspect_part, words
from leakscope.heap import layout
from leakscope.heap.load import load
from leakscope.model import CycleStep, Path, Step
from tests.agent.probes import stage_probe
from tests.agent.staged import AGENT, VERSIONS, interpreter
from tests.agent.walking import PREAMBLE, Native

SEEDS = range(20)

# What leaks in two attributes of one class, in a closure, in a set, and in a variable of a suspended coroutine.
PROGRAM = '''
import collections

class Order:
    def __init__(self, number):
        self.number = number

class Pause:
    def __await__(self):
        yield

class Shop:
    def __init__(self):
        self.orders, self.returns = {}, []

    async def serve(self, waiting):
        await Pause()

def counter():
    seen = []
    def count(order):
        seen.append(order)
    return count

shop, count, tags = Shop(), counter(), set()
tasks = [shop.serve(collections.deque(Order(number) for number in range(LOAD)))]
tasks[0].send(None)
for number in range(LOAD):
    shop.orders["order %d" % number] = Order(number)
    shop.returns.append(Order(number))
    count(Order(number))
    tags.add(frozenset([str(number)]))
snapshot()
tasks[0].close()
'''
OWNERS = {"orders": "dict", "returns": "list", "seen": "list", "tags": "set", "waiting": "collections.deque"}
ENTRIES = ("__main__.Order", "frozenset")


class Taken:
    """Runs variants of the program, with one staged agent for each interpreter and walk."""

    def __init__(self, folder: File) -> None:
        self.folder, self.runs = folder, 0

    def prints(self, version: str = VERSIONS[2], load_count: int = 300, above: str = "", name: str = "shop", seed: str = "0",
               home: str = "") -> dict[str, Fingerprint]:
        """The fingerprint of each container of OWNERS, by the name that holds it."""
        agent = self.folder / f"agent-{version}-{isinstance(version, Native)}"
        if not agent.exists():
            _stage(version, agent)
        self.runs += 1
        place = self.folder / (home or "home")
        place.mkdir(exist_ok=True)
        script, out = place / f"{name}.py", self.folder / f"out-{self.runs}"
        script.write_text(above + PREAMBLE + PROGRAM.replace("LOAD", str(load_count)))
        done = subprocess.run([interpreter(version), "-S", script.name, str(agent), str(out)], cwd=place,
                              capture_output=True, text=True, timeout=120, env={"PYTHONHASHSEED": seed})
        assert done.returncode == 0, done.stderr[-3000:]
        return dict(_prints(out, script_of(["python", script.name])))


def _stage(version: str, agent: File) -> None:
    shutil.copytree(AGENT, agent / "_leakscope_agent", ignore=shutil.ignore_patterns("__pycache__", "boot", "_probe", "*.so"))
    if isinstance(version, Native):
        stage_probe(interpreter(version), agent / "_leakscope_agent")


def _prints(out: File, script: str) -> Iterator[tuple[str, Fingerprint]]:
    """What `leakscope run` would say of the containers, each with an entry."""
    graph = load(out)
    tree = retention.growth_tree(graph)
    for name, kind in OWNERS.items():
        codes = [layout.edge_label(each, graph.strings.index(name)) for each in _NAMING]
        held = [graph.edge(number).target for number in np.flatnonzero(np.isin(graph.edge_label, codes)).tolist()]
        held += [edge.target for node in held if graph.type_name(node) == "cell" for edge in graph.edges_from(node)]
        (owner,) = {node for node in held if graph.type_name(node) == kind and graph.length[node] >= 100}
        entry = next(node for node in retention.entries(graph, owner).tolist() if graph.type_name(node) in ENTRIES)
        path = retention.path(graph, tree, entry)
        assert path is not None
        yield name, fingerprint(path, script=script)


_NAMING = (layout.ATTRIBUTE, layout.LOCAL, layout.CELL)


@pytest.fixture(scope="module")
def taken(tmp_path_factory):
    return Taken(tmp_path_factory.mktemp("prints"))


@pytest.fixture(scope="module")
def usual(taken):
    return taken.prints()


@pytest.mark.slow
def test_a_leak_has_one_name_under_twenty_hash_seeds(taken, usual):
    for seed in SEEDS:
        assert taken.prints(Native(VERSIONS[2]), seed=str(seed)) == usual


@pytest.mark.parametrize("version", [*VERSIONS, *(pytest.param(Native(each), id=f"{each}-native") for each in VERSIONS[1:])])
def test_a_leak_has_one_name_on_every_python_and_by_both_walks(version, taken, usual):
    assert taken.prints(version) == usual


def test_a_leak_has_one_name_under_twice_the_load_in_a_moved_program_and_below_other_code(taken, usual):
    above = "import json, decimal\n\ndef other():\n    return [lambda: 1, lambda: 2]\n\nothers = other()\n"
    assert taken.prints(Native(VERSIONS[2]), load_count=600, above=above, home="moved/elsewhere".replace("/", "-")) == usual


def test_five_leaks_of_one_program_have_five_names(usual):
    assert len({each.text for each in usual.values()}) == len(OWNERS)
    assert {each.preimage for each in usual.values()} == {
        "module shop.shop > shop.Shop.orders > dict[*] > shop.Order",
        "module shop.shop > shop.Shop.returns > list[*] > shop.Order",
        "function shop.counter.<locals>.count.<closure>.seen > cell[*] > shop.Order",
        "module shop.tags > set[*] > frozenset",
        "coroutine serve.waiting > collections.deque[*] > shop.Order",
    }


# --- words -------------------------------------------------------------------------------------------------------------------


def path(*steps: tuple[str, ...], root_kind: str = "module") -> Path:
    """A path of (name, type, edge[, status]) steps."""
    return Path(tuple(Step(*step) for step in steps), root_kind, "", "")


STORE = (("module serve", "module", ".store", "no"), ("Store", "serve.Store", "._by_id"), ("dict", "dict", "[*]"),
         ("Session", "serve.Session", ""))


def test_a_renamed_attribute_has_another_name_and_the_same_shape():
    renamed = replace(path(*STORE), steps=(Step("module serve", "module", ".sessions", "no"),
                                           Step("Store", "serve.Store", ".entries"), *path(*STORE).steps[2:]))
    assert fingerprint(renamed).text != fingerprint(path(*STORE)).text
    assert fingerprint(renamed).similar == fingerprint(path(*STORE)).similar


def test_another_kind_of_container_has_another_shape():
    other = path(STORE[0], STORE[1], ("list", "list", "[*]"), STORE[3])
    assert fingerprint(other).similar != fingerprint(path(*STORE)).similar


def test_a_script_and_the_module_of_its_name_are_one():
    started = path(("module __main__", "module", ".store", "no"), ("Store", "__main__.Store", "._by_id"), STORE[2],
                   ("Session", "__main__.Session", ""))
    assert fingerprint(started, script="serve") == fingerprint(path(*STORE))


def test_the_way_from_a_root_of_the_runtime_to_the_program_does_not_count():
    channel = (("coroutine main() at rpc.py:3", "coroutine", ".channel"), ("Channel", "rpc.Channel", ".waiters"),
               ("deque", "collections.deque", "[*]"), ("Future", "_asyncio.Future", ""))
    by_signal = path(("SIGINT handler", "functools.partial", ".keywords"), ("dict", "dict", "['main_task']"),
                     ("Task 'Task-1'", "_asyncio.Task", "._coro"), *channel, root_kind="signal")
    by_loop = path(("event loop", "uvloop.Loop", "._ready"), ("deque", "collections.deque", "[*]"), *channel,
                   root_kind="event-loop")
    assert fingerprint(by_signal) == fingerprint(by_loop)
    by_frame = path(("thread 'w' run()", "frame", ".self", "no"), *channel[1:], root_kind="frame")
    assert fingerprint(by_loop) == fingerprint(by_frame)
    assert fingerprint(by_loop).preimage == "rpc.Channel.waiters > collections.deque[*] > _asyncio.Future"


def test_an_object_that_only_c_code_holds_begins_at_the_first_class_of_the_program():
    held = path(("method", "method", ".__self__"), ("Store", "serve.Store", "._by_id"), *STORE[2:], root_kind="c-held")
    assert fingerprint(held).preimage == "serve.Store._by_id > dict[*] > serve.Session"


def test_the_frame_of_a_generator_is_the_generator():
    new = path(("generator rows() at a.py:3", "generator", ".seen"), ("list", "list", "[*]"), ("int", "int", ""))
    old = path(("generator rows() at a.py:3", "generator", ".gi_frame"), ("rows() at a.py:5", "frame", ".seen", "no"),
               ("list", "list", "[*]"), ("int", "int", ""))
    assert words(new) == words(old) == ["generator rows.seen", "list[*]", "int"]
    assert fingerprint(new) == fingerprint(old)


def test_a_chain_is_told_once_however_long_it_is():
    link = [("Check", "net.Check", "._error"), ("OSError", "OSError", ".__traceback__"),
            ("traceback", "traceback", ".tb_frame"), ("check() at net.py:7", "frame", ".last")]
    short, long = (path(("module net", "module", ".last", "no"), *link * times, ("Check", "net.Check", ""))
                   for times in (2, 40))
    assert fingerprint(short) == fingerprint(long)


def test_what_should_be_gone_ends_the_part_that_counts():
    ended = path(("module notify", "module", ".running", "no"), ("set", "set", "[*]"),
                 ("Task 'Task-722'", "_asyncio.Task", "._result", "yes"), ("dict", "dict", ""))
    assert suspect_part(ended) == range(3)
    assert fingerprint(ended).preimage == "module notify.running > set[*] > _asyncio.Task"


@pytest.mark.parametrize("name, shown", [
    ("worker-0x7f3a11", "worker-*"), ("by_1764538262", "by_*"), ("6f1d2c3b-0a1b-4c2d-8e3f-001122334455", "*"),
    ("Thread-12 (drain)", "Thread-*"), ("Task-7", "Task-*"), ("/tmp/pytest-3/x", "*"), ("cafe0123beef", "*"),
    ("conv2", "conv2"), ("feedback", "feedback"), ("v1_orders", "v1_orders")])
def test_what_varies_from_run_to_run_is_masked(name, shown):
    assert words(path(("module a", "module", f"['{name}']", "no"), ("int", "int", "")))[0] == f"module a['{shown}']"


def test_a_cycle_has_one_name_wherever_it_is_said_to_begin():
    turn = [CycleStep("Response", ".parser"), CycleStep("Parser", ".response"), CycleStep("frame Runtime.run()", ".reason")]
    first = fingerprint(path(*STORE), turn)
    assert {fingerprint(path(*STORE), turn[start:] + turn[:start]) for start in range(3)} == {first}
    assert first.preimage == "Parser.response > frame run.reason > Response.parser"


def test_names_have_the_form_that_is_promised():
    found = fingerprint(path(*STORE))
    assert found.text.startswith("LS1-") and len(found.text) == 20 and found.similar.startswith("LS1s-")
    assert found.text == "LS1-S4O4FS5YH4SGYONG"  # for ever: tickets have it
    assert of_words("known", "x") != of_words("known", "y")


@pytest.mark.parametrize("command, script", [
    ("python serve.py --port ***", "serve"), ("python -X dev cases/serve.py", "serve"),
    ("python -m shop.worker ***", "shop.worker"),
    ("python -mshop", "shop"), ("python -c ***", ""), ("python ***", ""), ("python", ""), ("gunicorn", ""), ("", "")])
def test_the_script_of_a_command(command, script):
    assert script_of(command.split()) == script
