"""The processes of a session beside each other."""

from __future__ import annotations

from leakscope.analyse import kin
from leakscope.analyse.kin import Relative
from leakscope.analyse.layers import Window
from tests.detectors.cases import MIB, timeline

WINDOW = Window(5.0, 40.0)


def test_children_that_become_more_to_the_end_are_a_pile():
    found = kin.piled_children(timeline(40, children=lambda t: t, children_ended=lambda t: t - 2), WINDOW)
    assert found is not None
    assert (found.is_ended, found.is_steady, found.in_all, found.ended) == (True, True, 40, 38)
    assert 25 < found.more < 36


def test_children_that_live_are_a_pile_of_another_kind():
    found = kin.piled_children(timeline(40, children=lambda t: t, children_ended=0), WINDOW)
    assert found is not None
    assert not found.is_ended


def test_a_pool_that_was_filled_once_is_no_pile():
    assert kin.piled_children(timeline(40, children=lambda t: min(2 * t, 30), children_ended=0), WINDOW) is None
    assert kin.piled_children(timeline(40, children=16, children_ended=0), WINDOW) is None


def test_few_children_and_unknown_ones_are_no_pile():
    assert kin.piled_children(timeline(40, children=lambda t: t / 10, children_ended=0), WINDOW) is None
    assert kin.piled_children(timeline(40, rss_bytes=5), WINDOW) is None


def test_growth_of_the_tree_counts_those_that_came_and_lets_go_of_those_that_went():
    parent = Relative({"pid": 1}, timeline(40, pss_bytes=lambda t: 100 * MIB + t * MIB))
    came = [dict(sample, t_ns=sample["t_ns"] + int(20e9)) for sample in timeline(20, pss_bytes=30 * MIB)]
    went = timeline(20, pss_bytes=50 * MIB)
    total = kin.total_growth([parent, Relative({"pid": 2, "parent": 1}, came), Relative({"pid": 3}, went)], WINDOW)
    assert total is not None
    assert abs(total / MIB - (31 + 30)) < 3
    assert kin.total_growth([Relative({"pid": 1})], WINDOW) is None


def test_who_belongs_to_whom_and_who_lives():
    family = [Relative({"pid": 2, "parent": 1}, timeline(40, uss_bytes=3)),
              Relative({"pid": 3, "parent": 2}, timeline(10, anon_bytes=4))]
    assert [each.pid for each in kin.children_of(1, family)] == [2]
    assert [each.pid for each in kin.alive_at(family, 40.0)] == [2]
    assert [kin.own_bytes(each.timeline) for each in family] == [3, 4]


def test_pages_that_were_shared_and_are_not_any_more_were_copied():
    samples = timeline(40, anon_bytes=100 * MIB, pss_anon_bytes=lambda t: 30 * MIB + t * MIB)
    assert kin.copied_pages(samples) == (40 * MIB, 30 * MIB)


def test_a_process_that_grows_by_itself_copies_nothing():
    def grows(t):
        return 100 * MIB + t * MIB

    copied = kin.copied_pages(timeline(40, anon_bytes=grows, pss_anon_bytes=grows))
    assert copied is not None
    assert copied.bytes == 0
    assert kin.copied_pages(timeline(40, anon_bytes=5)) is None
