"""From columns and maps of blocks to the one answer: nothing of the device is given, all of it is simulated."""

from __future__ import annotations

import pytest

from leakscope import verdict
from leakscope.detectors import _devices
from leakscope.model import VerdictClass
from tests.detectors.cases import detected
from tests.devices import MIB, block, noisy, plateau, ramp, segment, steps, watched
from tests.heaps import series

HOST = {"rss_bytes": 900 * MIB, "anon_bytes": 800 * MIB}


def judged(process=None, **around):
    case = watched(is_joined=True, process={**HOST, **(process or {})}, **around)
    findings, dismissed = detected(case)
    findings = _devices.strongest(case, findings)
    return verdict.judge([verdict.Examined(case, tuple(findings), tuple(dismissed))]), findings, dismissed


def pieces(*counts):
    return [[segment(block(MIB), block(19 * MIB, "free"))] * count for count in counts]


def test_pieces_of_a_device_are_fragmentation():
    answer, findings, _ = judged(inactive_split=ramp(800), allocated_owned=300 * MIB, snapshots=pieces(10, 25, 40))
    assert answer.kind is VerdictClass.FRAGMENTATION and [each.rule.code for each in findings] == ["LS413"]
    assert "cuda:0" in answer.sentence


def test_a_high_water_of_a_device_is_no_claim():
    answer, findings, dismissed = judged(releasable=plateau(1600), allocated_owned=300 * MIB)
    assert findings == [] and not answer.kind.is_claim
    assert any(each.device == "cuda:0" and each.why.startswith("allocator high water") for each in dismissed)


def test_a_high_water_of_a_device_explains_no_growth_of_the_host():
    grows = {"rss_bytes": lambda t: (900 + 4 * t) * MIB, "anon_bytes": lambda t: (800 + 4 * t) * MIB}
    answer, _, _ = judged(releasable=plateau(1600), allocated_owned=300 * MIB, process=grows)
    assert answer.kind is not VerdictClass.BOUNDED_GROWTH


def test_growth_that_nobody_can_explain_is_listed_and_not_claimed():
    answer, findings, _ = judged(outside=ramp(900), allocated_owned=300 * MIB)
    assert [each.rule.code for each in findings] == ["LS400"] and not answer.kind.is_claim


def test_groups_that_are_made_again_and_again_are_a_leak_of_the_device():
    answer, findings, _ = judged(outside=steps(300, 12), allocated_owned=300 * MIB, snapshots=[[segment(block(300 * MIB))]] * 3,
                                 each=[{"process_groups": count} for count in (2, 5, 8)])
    assert [each.rule.code for each in findings] == ["LS418"] and answer.kind is VerdictClass.GPU_LEAK


@pytest.mark.parametrize("term", ["outside", "allocated_owned", "pending", "inactive_split", "releasable"])
def test_ups_and_downs_of_any_term_are_no_finding(term):
    answer, findings, _ = judged(**{"allocated_owned": 300 * MIB, term: noisy(30, 300)})
    assert findings == [] and not answer.kind.is_claim


def test_a_process_without_a_device_is_judged_as_before():
    case = watched(is_joined=True, process=HOST)
    case.timeline = [{name: value for name, value in row.items() if not name.startswith("cuda")} for row in case.timeline]
    assert case.devices == ()
    assert [each for each in detected(case)[0] if each.rule.code.startswith("LS4")] == []


BOUNDED = """
    module app
    app .cache -> cache:dict
    cache [*] -> tensor:torch.Tensor x{n} 120B
    bound cache 60 maxsize
    tensor <storage> -> store:storage x{n} 25MiB on cuda:0
    device cuda:0 6GiB
    segment cuda:0 2GiB
    blocks store
"""


def test_what_was_dismissed_is_not_called_unattributed():
    case = watched(is_joined=True, process=HOST, allocated_owned=ramp(1600), seconds=70)
    case.graphs = series(BOUNDED, every_s=20, n=[10, 25, 40, 55])
    (device,) = case.devices
    assert device.terms["allocated_owned"].growth is not None  # there is something to attribute
    findings, dismissed = detected(case)
    assert [each.why[:8] for each in dismissed if each.owner == "app.cache"] == ["bounded:"]
    assert [each.rule.code for each in findings if each.layer == "cuda:0"] == []
