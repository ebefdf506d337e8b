"""Unreachable cycles: a leak where the collector cannot help, none where it only has not come yet."""

from __future__ import annotations

from leakscope.baseline import known
from tests.detectors.cases import case, detected

CYCLES = """
    module app
    garbage parser:sdk.StreamParser x{n} 4KiB
    parser .response -> response:sdk.Response x{n}
    response .parser -> parser
"""


def test_cycles_with_the_collector_off_are_found_with_their_attributes():
    findings, _ = detected(case(CYCLES, gc={"enabled": False}, n=[100, 200, 300, 400]))
    assert [each.rule.name for each in findings] == ["garbage-cycles"]
    assert [(step.type, step.edge) for step in findings[0].cycle] == [("Response", ".parser"), ("StreamParser", ".response")]
    assert findings[0].object_count == 400


def test_cycles_that_wait_for_an_ordinary_collector_are_dismissed():
    findings, dismissed = detected(case(CYCLES, n=[100, 200, 300, 400]))
    assert findings == []
    assert dismissed[0].what == "unreachable cycles"


AUTOGRAD = """
    module app
    garbage tensor:torch.Tensor x{n} 4KiB
    tensor .grad_fn -> node:torch.AccumulateGrad x{n}
    node .variable -> tensor
"""


def test_a_cycle_through_what_is_no_python_object_is_found_though_the_collector_is_on():
    examined = case(AUTOGRAD, n=[100, 200, 300, 400])
    for graph in examined.graphs:
        row = next(row for row, name in enumerate(graph.types) if name.qualname == "AccumulateGrad")
        graph.address[graph.type_id == row] = 0
    (finding,), _ = detected(examined)
    assert "never frees" in finding.reasons[1] and "autograd.grad" in finding.remedy


def test_the_same_cycle_of_python_objects_waits_for_the_collector():
    assert detected(case(AUTOGRAD, n=[100, 200, 300, 400]))[0] == []


def test_a_sawtooth_of_garbage_is_dismissed_even_with_rare_collections():
    assert detected(case(CYCLES, gc={"thresholds": [50_000, 100, 100]}, n=[100, 400, 50, 400]))[0] == []


def collected(counts: list[int]) -> list[str]:
    """What is found of 400 cycles (800 tracked objects) where a full collection came between the snapshots."""
    examined = case(CYCLES, gc={"thresholds": [700, 10, 10], "counts": counts}, n=[100, 200, 300, 400])
    for number, graph in enumerate(examined.graphs):
        graph.info["sample"] = {"gc_collections2": 5 + number // 2}
    return [each.reasons[1] for each in detected(examined)[0]]


def test_what_is_older_than_the_last_full_collection_was_not_freed_by_it():
    assert collected([90, 0, 0]) == ["1 full collections did not free it: the collector cannot see an edge, or it is frozen"]


def test_what_may_be_younger_than_the_last_full_collection_only_waits_for_the_next_one():
    assert collected([101, 1, 0]) == []
    assert collected([0, 0, 1]) == []


def frozen(counts: list[int]) -> list[str]:
    """What is found of 400 cycles (800 tracked objects) where so many objects were frozen at the snapshots."""
    examined = case(CYCLES, gc={"thresholds": [700, 10, 10], "counts": [90, 9, 0]}, n=[100, 200, 300, 400])
    for graph, count in zip(examined.graphs, counts):
        graph.info["gc"] = graph.info["gc"] | {"freeze_count": count}
    return [each.reasons[1] for each in detected(examined)[0]]


def test_what_is_frozen_again_and_again_is_not_freed():
    (why,) = frozen([9_000, 9_200, 9_400, 9_600])
    assert why.startswith("gc.freeze() is called again and again: 600 more objects")


def test_a_heap_that_is_frozen_once_hides_no_garbage():
    assert frozen([0, 9_600, 9_600, 9_600]) == []
    assert frozen([9_000, 9_001, 9_002, 9_003]) == []


def test_an_instance_and_its_dict_are_one_step_of_a_cycle():
    findings, _ = detected(case("""
        garbage parser:sdk.StreamParser x{n} 4KiB
        parser <__dict__> -> names:dict x{n}
        names .response -> response:sdk.Response x{n}
        response .parser -> parser
    """, gc={"enabled": False}, n=[100, 200, 300, 400]))
    assert {(step.type, step.edge) for step in findings[0].cycle} == {("Response", ".parser"), ("StreamParser", ".response")}


def test_a_cycle_is_read_towards_the_object_that_keeps_most():
    findings, _ = detected(case(CYCLES + """
        response .chunks -> chunks:list x{n}
        chunks [*] -> bytes x{n} 64KiB
    """, gc={"enabled": False}, n=[100, 200, 300, 400]))
    assert [(step.type, step.edge) for step in findings[0].cycle] == [("StreamParser", ".response"), ("Response", ".parser")]
    other, _ = detected(case(CYCLES, gc={"enabled": False}, n=[100, 200, 300, 400]))
    assert [step.type for step in other[0].cycle] == ["Response", "StreamParser"]
    assert known(other, {})[0].fingerprint == known(findings, {})[0].fingerprint


def with_collections(collections: list[int], counts: list[int]) -> list[str]:
    """What is found of 400 cycles (800 tracked objects) with the collector off, where the program itself collected so often."""
    examined = case(CYCLES, gc={"enabled": False, "thresholds": [700, 10, 10], "counts": counts}, n=[100, 200, 300, 400])
    for graph, count in zip(examined.graphs, collections):
        graph.info["sample"] = {"gc_collections2": count}
    return [each.rule.name for each in detected(examined)[0]]


def test_snapshots_that_fall_later_and_later_between_two_collections_of_the_program_see_no_leak():
    assert with_collections([1, 4, 7, 9], [900, 0, 0]) == []


def test_what_outlives_the_collections_of_the_program_or_was_never_collected_is_one():
    assert with_collections([1, 4, 7, 9], [300, 0, 0]) == ["garbage-cycles"]
    assert with_collections([1, 1, 1, 1], [900, 0, 0]) == ["garbage-cycles"]
    assert with_collections([1, 4, 4, 4], [900, 0, 0]) == ["garbage-cycles"]
