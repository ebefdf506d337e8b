"""The bits of evidence and what they make of a finding."""

from __future__ import annotations

import math
from dataclasses import replace

from leakscope import proof
from leakscope.case import Case
from leakscope.model import Confidence
from tests.detectors.cases import case, detected

STORE = """
    module app
    app .store -> store:dict
    store [*] -> order:shop.Order x{n} 4KiB
"""
FIVE = [100, 200, 300, 400, 500]


def found(examined):
    findings, _ = detected(examined)
    return proof.completed(examined, findings[0])


def bits(finding):
    return "".join(bit for bit, _ in finding.evidence)


def test_growth_without_a_pause_a_rate_and_survivors_of_every_epoch_is_high():
    finding = found(case(STORE, growth_bytes_s=45_000, n=FIVE))
    assert (bits(finding), finding.confidence) == ("GREC", Confidence.HIGH)


def test_without_a_rate_that_excludes_zero_it_is_medium():
    examined = case(STORE, growth_bytes_s=45_000, n=FIVE)
    noisy = [{**row, "anon_bytes": row["anon_bytes"] + int((20 << 20) * math.sin(row["t_ns"] / 2e9))}
             for row in examined.timeline]
    finding = found(Case(examined.graphs, noisy))
    assert "R" not in bits(finding)
    assert finding.confidence is Confidence.MEDIUM


def test_without_survivors_of_four_epochs_it_is_medium():
    finding = found(case(STORE, growth_bytes_s=45_000, n=[100, 200, 300]))
    assert "E" not in bits(finding)
    assert finding.confidence is Confidence.MEDIUM


def test_growth_that_the_layers_do_not_explain_caps_it():
    examined = case(STORE, growth_bytes_s=45_000, n=FIVE)
    finding = found(examined)
    capped = proof.completed(with_coverage(examined, 0.5), replace(finding, evidence=finding.evidence))
    assert capped.confidence is Confidence.MEDIUM
    assert capped.doubts[-1] == "the layers explain only 50% of the growth of the process"


def with_coverage(examined, ratio):
    examined.__dict__["coverage_ratio"] = ratio
    return examined


def test_garbage_that_no_full_collection_has_seen_caps_it():
    examined = case(STORE + "\n    garbage node:app.Node x{n} 8KiB\n    node .self -> node", growth_bytes_s=200_000, n=FIVE)
    for graph in examined.graphs:
        graph.info["sample"] = {"gc_collections2": 3}
    finding = found(examined)
    assert finding.confidence is not Confidence.HIGH
    assert any(doubt.startswith("no full collection ran") for doubt in finding.doubts)


def test_a_full_collection_in_between_lifts_that_cap():
    examined = case(STORE + "\n    garbage node:app.Node x{n} 8KiB\n    node .self -> node", growth_bytes_s=200_000, n=FIVE)
    for number, graph in enumerate(examined.graphs):
        graph.info["sample"] = {"gc_collections2": number}
    assert not any(doubt.startswith("no full collection ran") for doubt in found(examined).doubts)


def test_gaps_in_the_samples_cap_it():
    examined = case(STORE, growth_bytes_s=45_000, n=FIVE)
    rows = [row for row in examined.timeline if not 15e9 < row["t_ns"] < 35e9]
    finding = found(Case(examined.graphs, rows))
    assert finding.confidence is Confidence.MEDIUM
    assert any(doubt.startswith("samples are missing") for doubt in finding.doubts)


def test_a_known_leak_has_its_bit():
    examined = case(STORE, growth_bytes_s=45_000, n=FIVE)
    finding = proof.completed(examined, replace(found(examined), known="aiohttp 3.8: keeps responses"))
    assert dict(finding.evidence)["K"] == "a known leak: aiohttp 3.8: keeps responses"


def test_our_own_memory_is_no_growth_of_the_program():
    examined = case(STORE, growth_bytes_s=45_000, n=FIVE)
    for graph in examined.graphs:
        graph.info["agent_bytes"] = 1 << 20
    assert "A" in bits(found(examined))
    for number, graph in enumerate(examined.graphs):
        graph.info["agent_bytes"] = number << 20
    assert "A" not in bits(found(case_again(examined)))


def case_again(examined):
    return Case(examined.graphs, examined.timeline)


def test_the_pace_is_told_a_unit_of_work_where_work_was_counted():
    examined = case(STORE, growth_bytes_s=45_000, n=FIVE)
    rows = [{**row, "work_count": int(row["t_ns"] / 1e9 * 5)} for row in examined.timeline]
    finding = found(Case(examined.graphs, rows))
    assert finding.unit_bytes == 4096
    assert round(finding.rate.bytes_per_s) == 40_960
    assert round(finding.bytes_per_work.bytes_per_s, -1) == 8190


def test_a_known_leak_whose_pace_fades_is_believed_all_the_same():
    examined = case(STORE, growth_bytes_s=45_000, n=[100, 300, 480, 600, 680])
    finding = found(examined)
    assert finding.confidence is Confidence.LOW
    assert proof.completed(examined, replace(finding, known="warnings: a registry")).confidence is Confidence.MEDIUM
