"""A large object that is made anew, larger each time, belongs together over snapshots that found it at different paths."""

from __future__ import annotations

from leakscope.model import Confidence
from tests.detectors.cases import case, detected
from tests.heaps import series

TABLE = """
    module app
    app .plant -> plant:app.Plant
    plant .weights -> weights:bytearray 900MiB
"""
AT_REST = TABLE + "plant .table -> table:bytearray {n}MiB"
IN_A_CALL = TABLE + "root frame call:frame concat()\ncall ~result -> table:bytearray {n}MiB"


def found(sizes, growth_bytes_s=500_000, last=IN_A_CALL):
    """The findings of a table of so many MiB, which the last snapshot found in a call."""
    examined = case(AT_REST, growth_bytes_s=growth_bytes_s, n=sizes)
    graph, = series(last, n=sizes[-1:])
    graph.info |= examined.graphs[-1].info
    examined.graphs[-1] = graph
    return [each for each in detected(examined)[0] if each.rule.code == "LS107"]


def test_a_buffer_that_a_call_holds_in_the_last_snapshot_is_the_one_that_grew_before():
    finding, = found([1, 5, 9, 13])
    assert finding.growth_bytes == {"host": 12 << 20}
    assert finding.confidence is Confidence.MEDIUM
    assert any("other paths" in doubt for doubt in finding.doubts)


def test_a_buffer_with_one_path_is_no_moved_one():
    finding, = found([1, 5, 9, 13], last=AT_REST)
    assert not any("other paths" in doubt for doubt in finding.doubts)


def test_large_objects_of_changing_size_are_none():
    assert found([9, 1, 5, 13]) == []


def test_three_snapshots_are_believed_little():
    finding, = found([1, 7, 13])
    assert finding.confidence is Confidence.LOW


def test_what_the_process_did_not_grow_by_is_none():
    assert found([1, 5, 9, 13], growth_bytes_s=0) == []
