"""What of the growth is explained, and which findings it can carry."""

from __future__ import annotations

import pytest

from leakscope.analyse import coverage
from leakscope.model import Layer
from tests.detectors.cases import MIB


def account(**growth):
    return tuple(Layer(name.replace("_", "-"), size) for name, size in growth.items())


def test_coverage_is_what_is_not_unexplained():
    assert coverage.coverage(account(total=100 * MIB, python=60 * MIB, native=25 * MIB, unexplained=15 * MIB)) == 0.85


@pytest.mark.parametrize("layers", [(), account(total=None), account(total=1000, python=5, unexplained=0), account(total=-MIB),
                                    account(total=100 * MIB, python=60 * MIB)])
def test_of_what_did_not_grow_or_has_no_account_no_coverage_is_told(layers):
    assert coverage.coverage(layers) is None


def test_a_finding_in_a_layer_that_did_not_grow_cannot_be_claimed():
    layers = account(total=20 * MIB, python=19 * MIB, native=0, mapped=0)
    assert "'native'" in coverage.against(layers, "native", 10 * MIB)
    assert coverage.against(layers, "python", 18 * MIB) == ""


@pytest.mark.parametrize("where", ["native", "mapped", "python"])
def test_objects_may_own_memory_in_any_layer_of_the_host(where):
    layers = account(**{"total": 20 * MIB, "python": 0, "native": 0, "mapped": 0, where: 18 * MIB})
    assert coverage.against(layers, "python", 18 * MIB) == ""


@pytest.mark.parametrize(("layer", "layers"), [("native", account(total=MIB, native=None)), ("cuda:0", account(total=MIB)),
                                               ("python", account(total=MIB, python=0, native=None, mapped=0))])
def test_what_was_not_measured_speaks_against_nothing(layer, layers):
    assert coverage.against(layers, layer, 10 * MIB) == ""


def test_the_part_of_a_layer():
    layers = (Layer("allocator-retained", 3, None, {"malloc": 1, "pymalloc": 2}),)
    assert coverage.term_of(layers, "allocator-retained", "pymalloc") == 2
    assert coverage.term_of(layers, "allocator-retained", "other") is None
