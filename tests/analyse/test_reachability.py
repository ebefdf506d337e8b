"""Reachability, what is held from outside, and garbage."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leakscope.agent.format import IMMORTAL
from leakscope.analyse.reachability import garbage, held_from_outside, reachable
from tests.analyse.graphs import chain, closure, rows, small
from tests.heaps import heap

pytestmark = pytest.mark.usefixtures("loops")
EACH = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)


def types(graph, mask):
    return sorted(graph.type_name(int(node)) for node in np.flatnonzero(mask))


@EACH
@given(small(), st.sets(st.integers(0, 8)))
def test_what_is_reachable_is_what_brute_force_reaches(held, wanted):
    sources = {node for node in wanted if node < len(held)}
    found = reachable(*rows(held), np.array(sorted(sources), dtype=np.uint32))
    assert set(np.flatnonzero(found)) == closure(held, sources)


def test_an_edge_that_is_not_allowed_is_not_followed():
    start, target = rows([[1, 2], [3], [], []])
    found = reachable(start, target, np.array([0]), edge_allowed=np.array([False, True, True]))
    assert found.tolist() == [True, False, True, False]


def test_a_list_of_a_million_links_is_reached_to_its_end():
    assert reachable(*chain(1_000_000), np.array([0])).all()


def test_nothing_is_reachable_in_an_empty_heap():
    assert reachable(*rows([]), np.array([], dtype=np.uint32)).tolist() == []
    assert garbage(heap("")).tolist() == []


@pytest.mark.parametrize("start, target, sources", [
    ([0, 1, 2], [0, 2], [0]), ([0, 2, 1], [0], [0]), ([0, 1, 1], [0, 1], [0]), ([1, 1, 1], [0], [0]),
    ([0, 1, 2], [0, 1], [2]), ([], [], []),
])
def test_arrays_that_are_no_graph_are_refused(start, target, sources):
    with pytest.raises(ValueError, match="graph"):
        reachable(np.array(start, dtype=np.uint64), np.array(target, dtype=np.uint32), np.array(sources, dtype=np.uint32))


def test_an_unheld_cycle_is_garbage_with_all_that_hangs_on_it_and_a_held_one_is_not():
    graph = heap("""
        module app
        app .kept -> kept:app.Kept
        kept .peer -> peer:app.Peer
        peer .back -> kept
        garbage parser:sdk.StreamParser
        parser .response -> response:sdk.Response
        response .parser -> parser
        response .body -> bytes 1MiB
        response .shared -> kept""")
    assert types(graph, garbage(graph)) == ["bytes", "sdk.Response", "sdk.StreamParser"]


def test_a_cycle_that_c_code_holds_is_no_garbage():
    graph = heap("""
        module app
        garbage node:app.Node refs+1
        node .next -> other:app.Other
        other .back -> node""")
    assert not garbage(graph).any()
    assert held_from_outside(graph)[1:].tolist() == [True, False]


def test_a_count_below_the_edges_is_a_target_that_went_on_and_no_holder():
    graph = heap("module app\napp .x -> x:app.X refs 0")
    assert held_from_outside(graph).tolist() == [True, False] and not garbage(graph).any()


def test_immortal_objects_are_held():
    graph = heap("garbage x:app.X immortal\nx .y -> app.Y")
    assert graph.refcount[0] == IMMORTAL
    assert not garbage(graph).any() and held_from_outside(graph).tolist() == [True, False]


def test_what_was_found_once_is_kept_with_the_graph_and_cannot_be_changed():
    graph = heap("module app\napp .x -> x:app.X")
    assert garbage(graph) is garbage(graph)
    with pytest.raises(ValueError, match="read-only"):
        garbage(graph)[0] = True


def test_a_storage_without_a_count_is_held_by_its_tensor_alone():
    graph = heap("""
        garbage tensor:torch.Tensor
        tensor <storage> -> storage:storage 1GiB
        tensor .self -> tensor""")
    assert garbage(graph).tolist() == [True, True]


def test_a_storage_that_no_object_shows_is_held_from_outside():
    graph = heap("garbage storage:storage 1GiB on cuda:0")
    assert held_from_outside(graph).tolist() == [True] and not garbage(graph).any()
