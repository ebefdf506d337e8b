"""What a report says that it cannot say of a device."""

from __future__ import annotations

import pytest

from leakscope.analyse import device_piles
from leakscope.case import Case
from leakscope.commands import _device_gaps
from leakscope.detectors import piled_tensors
from tests.detectors.test_device_piles import DEVICE, TENSORS, case


def claims(examined: Case, **gpu: object) -> dict[str, str]:
    found = [each for each in piled_tensors.detect(examined) if hasattr(each, "layer")]
    return {gap.claim: f"{gap.missing} | {gap.command}" for gap in _device_gaps.gaps(examined, found, gpu)}


def test_a_device_without_nvml_has_a_gap_with_its_reason():
    found = claims(case(TENSORS + DEVICE), driver=None, nvml="nvidia-ml-py is not installed.")
    assert "not installed |" in found["memory on cuda:0 outside torch's allocator"]
    found = claims(case(TENSORS + DEVICE), driver="580.1", nvml="13.615")
    assert "says nothing of cuda:0" in found["memory on cuda:0 outside torch's allocator"]


def test_a_device_whose_use_is_well_known_has_none():
    examined = case(TENSORS + DEVICE)
    assert claims(Case(examined.graphs, examined.timeline, use_quality={"cuda:0": "exact"})) == {}


def test_a_use_that_is_only_known_from_the_whole_device_is_said():
    examined = case(TENSORS + DEVICE)
    found = claims(Case(examined.graphs, examined.timeline, use_quality={"cuda:0": "approximate"}))
    assert any("PID namespace" in text for text in found.values())


def test_an_allocator_that_records_nothing_is_asked_to():
    text = TENSORS + DEVICE.replace(" frames embed@serve.py:12 < handle@serve.py:40", "")
    assert "--gpu state" in claims(case(text))["where the memory on cuda:0 was allocated"]
    assert not any("was allocated" in claim for claim in claims(case(TENSORS + DEVICE)))


@pytest.mark.parametrize(("backend", "word"), [("cudaMallocAsync", "backend:native"), ("pluggable", "native allocator")])
def test_a_backend_without_a_map_is_named(backend, word):
    text = TENSORS + f"\n    device cuda:0 1GiB {backend}\n"
    found = claims(case(text))["who owns the blocks on cuda:0"]
    assert backend in found and word in found


def test_a_host_has_no_gaps_of_devices():
    examined = case(TENSORS.replace("on cuda:0", ""))
    rows = [{key: value for key, value in row.items() if not key.startswith("cuda")} for row in examined.timeline]
    assert claims(Case(examined.graphs, rows)) == {} and _device_gaps.damaged(examined) == [] and device_piles.HOST == "host"
