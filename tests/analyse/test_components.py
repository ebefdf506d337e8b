"""Strongly connected components, and the cycles that are shown."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leakscope.analyse.components import components, cycles
from leakscope.analyse.reachability import garbage
from tests.analyse.graphs import chain, closure, rows, small
from tests.heaps import heap

pytestmark = pytest.mark.usefixtures("loops")
EACH = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)


def shown(graph, mask=None):
    """Each cycle as (components, [(type, edge text), ...])."""
    mask = garbage(graph) if mask is None else mask
    return [(cycle.count, [(graph.type_name(graph.edge(edge).source), graph.edge(edge).text) for edge in cycle.edges])
            for cycle in cycles(graph, mask)]


@EACH
@given(small(), st.sets(st.integers(0, 8)))
def test_nodes_share_a_component_if_and_only_if_they_reach_each_other_within_the_allowed_ones(held, left_out):
    allowed = np.array([node not in left_out for node in range(len(held))])
    inner = [[each for each in row if allowed[each]] if allowed[node] else [] for node, row in enumerate(held)]
    reach = [closure(inner, {node}) for node in range(len(held))]
    component = components(*rows(held), allowed)
    for one in range(len(held)):
        assert (component[one] >= 0) == allowed[one]
        for other in range(len(held)):
            if allowed[one] and allowed[other]:
                assert (component[one] == component[other]) == (other in reach[one] and one in reach[other])


@EACH
@given(small())
def test_edges_between_components_go_from_higher_numbers_to_lower(held):
    component = components(*rows(held))
    assert all(component[holder] >= component[node] for holder, row in enumerate(held) for node in row)


def test_a_ring_of_a_million_links_is_one_component():
    start, target = chain(1_000_000)
    start[-1] += 1
    assert not components(start, np.append(target, np.uint32(0))).any()


def test_the_cycle_of_parser_and_response_is_shown_by_its_attributes_and_not_by_dicts():
    graph = heap("""
        module app
        garbage parser:sdk.StreamParser x300
        parser .response -> response:sdk.Response x300
        response <__dict__> -> attributes:dict x300
        attributes ['parser'] -> parser
        response .parser -> parser
        parser <type> -> cls:type
        cls .last -> parser""")
    assert shown(graph)[0][1] == [("sdk.Response", "parser"), ("sdk.StreamParser", "response")]


def test_cycles_of_the_same_shape_are_one_with_their_number_and_all_their_members():
    graph = heap("""
        garbage a:app.A x40
        a .b -> b:app.B x40
        b .a -> a
        garbage c:app.C x3
        c .itself -> c""")
    (first, second) = cycles(graph, garbage(graph))
    assert (first.count, len(first.nodes), second.count, len(second.nodes)) == (40, 80, 3, 3)
    assert shown(graph) == [(40, [("app.A", "b"), ("app.B", "a")]), (3, [("app.C", "itself")])]


def test_components_that_differ_only_in_what_is_beside_the_shown_cycle_are_one():
    graph = heap("""
        garbage a:app.A x2
        a .b -> b:app.B x2
        b .a -> a
        garbage a2:app.A
        a2 .b -> b2:app.B
        b2 .a -> a2
        b2 .items -> items:list
        items [*] -> a2""")
    assert shown(graph) == [(3, [("app.A", "b"), ("app.B", "a")])]


def test_the_shortest_cycle_is_shown_and_the_way_back_over_a_class_is_not():
    graph = heap("""
        garbage a:app.A
        a .far -> far:app.Far
        far .farther -> farther:app.Farther
        farther .home -> a
        a <type> -> cls:type
        cls .registry -> a""")
    assert shown(graph) == [(1, [("app.A", "far"), ("app.Far", "farther"), ("app.Farther", "home")])]


def test_a_cycle_through_containers_alone_is_shown_as_it_is():
    graph = heap("garbage l:list\nl [*] -> d:dict\nd ['me'] -> l")
    assert shown(graph) == [(1, [("dict", "'me'"), ("list", "0")])]


def test_a_ring_too_long_to_be_shown_is_found_all_the_same():
    graph = heap("garbage ring:app.Link x40000")
    graph.edge_start = np.arange(40001, dtype="<u8")
    graph.edge_target = np.roll(np.arange(40000, dtype="<u4"), -1)
    graph.edge_label = np.zeros(40000, dtype="<u4")
    (cycle,) = cycles(graph, np.ones(40000, dtype=bool))
    assert (len(cycle.nodes), cycle.count, cycle.edges) == (40000, 1, ())


def test_a_tree_has_no_cycles():
    graph = heap("garbage a:app.A\na .b -> app.B x10")
    assert cycles(graph, garbage(graph)) == []


def test_only_cycles_inside_the_mask_are_found():
    graph = heap("""
        module app
        app .a -> a:app.A
        a .b -> b:app.B
        b .a -> a""")
    assert cycles(graph, garbage(graph)) == []
    assert shown(graph, np.ones(graph.node_count, bool)) == [(1, [("app.A", "b"), ("app.B", "a")])]
