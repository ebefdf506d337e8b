"""The native walk gives the graph that the walk in Python gives, on every version that has a probe."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.agent.staged import interpreter
from tests.agent.twins import VERSIONS, differences, take, taken

PROGRAMS = Path(__file__).with_name("programs")


def program(name: str) -> str:
    return (PROGRAMS / f"{name}.py").read_text()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ("classes", "containers", "code", "roots"))
def test_both_walks_give_the_same_graph(name: str, version: str) -> None:
    assert differences(taken(version, program(name))) == ""


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=1, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 1 << 30))
def test_both_walks_give_the_same_graph_of_heaps_at_random(
        tmp_path_factory: pytest.TempPathFactory, version: str, seed: int) -> None:
    twins = take(interpreter(version), f"SEED = {seed}\n{program('fuzz')}", tmp_path_factory.mktemp("heap"))
    assert differences(twins) == ""
