"""Garbage computed from a snapshot is what the collector of that process then finds: the collector is the oracle."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest

from leakscope.analyse.reachability import garbage
from leakscope.heap.load import load
from tests.agent.staged import VERSIONS, interpreter
from tests.agent.walking import take

PROGRAM = """
import collections, functools, gc, threading, types, weakref

gc.disable()
KEPT = []

class Parser:
    pass

class Response:
    __slots__ = ("parser", "body", "shared", "__weakref__")

class Sub(dict):
    pass

def pair():
    parser, response = Parser(), Response()
    parser.response, response.parser = response, parser
    response.body, response.shared = [bytearray(1000), ("a", 1)], KEPT
    return parser

def closure():
    def inner():
        return inner
    inner.cache = {"inner": [inner]}

def failure():
    try:
        local = Parser()
        raise ValueError
    except ValueError as error:
        kept = error
        local.error = kept

def generator():
    me = []
    def steps():
        mine = me
        yield mine
        yield mine
    one = steps()
    me.append(one)
    next(one)

def made_class():
    class Local(Parser):
        def method(self):
            return Local
    Local.instance = Local()

def containers():
    row = collections.deque()
    row.append({"row": row})
    names = Sub()
    names["self"] = names
    pile = []
    pile.append(pile)
    parser = Parser()
    parser.bound = parser.__init__
    parser.call = functools.partial(print, parser)
    parser.space = types.SimpleNamespace(parser=parser)
    parser.back = weakref.ref(parser, lambda gone, mine=parser: mine)
    parser.set = {parser}

def everything():
    for _ in range(20):
        pair(), closure(), failure(), generator(), made_class(), containers()

kept = pair()                                  # a cycle that is held
threading.Thread(target=pair, daemon=True).start()
gc.collect()
everything()
tracked = list(map(id, gc.get_objects()))
snapshot()
gc.set_debug(gc.DEBUG_SAVEALL)
gc.collect()
# Up to 3.12 the collector closes a suspended generator first, and what was only in its cycle dies of that at once.
gone = set(tracked).difference(map(id, gc.get_objects()))
import json
print(json.dumps([tracked, list(map(id, gc.garbage)), list(gone)]))
"""


@pytest.mark.parametrize("version", VERSIONS)
def test_what_the_snapshot_says_is_garbage_is_what_the_collector_finds(version, tmp_path):
    run = take(interpreter(version), PROGRAM, tmp_path)
    tracked, collected, gone = map(set, json.loads(run.output))
    graph = load(run.folder)
    found = garbage(graph)
    ours = {int(graph.address[node]) for node in np.flatnonzero(found)} & tracked
    theirs = collected & tracked & set(graph.address.tolist())

    def names(addresses: set[int]) -> Counter[str]:
        return Counter(graph.type_name(graph.index_of[address]) for address in addresses)

    assert names(theirs)["__main__.Parser"] == 20 * 3, "the program no longer makes the garbage that this test is about"
    assert names(theirs - ours) == {}, "garbage that the snapshot takes for held"
    assert names(ours - theirs - gone) == {}, "held objects that the snapshot takes for garbage"
