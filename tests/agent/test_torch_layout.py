"""How far a process is searched for tensors to learn from."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from leakscope.agent import torch_layout
from tests.agent.fake_torch import load


class Probe:
    """Finds no tensor, and notes how many objects it might have looked at."""

    def __init__(self) -> None:
        self.looks: list[int] = []

    def torch_samples(self, _most: int, most_looks: int) -> list[Any]:
        self.looks.append(most_looks)
        return []

    def torch_learn(self, _samples: list[Any]) -> str:
        return "there was no plain tensor to learn from"


def test_a_search_that_found_no_tensor_is_a_longer_one_the_next_time_and_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_layout, "_state", {"learned": False, "tries": 0, "failures": 0, "reason": ""})
    load(monkeypatch, "torch")
    load(monkeypatch, "torch._C", DisableTorchFunction=contextlib.nullcontext)
    probe = Probe()
    for _ in range(10):
        torch_layout.learn(probe)
    first = probe.looks[0]
    assert probe.looks == [first << min(turn, 4) if turn < 8 else first for turn in range(10)]
