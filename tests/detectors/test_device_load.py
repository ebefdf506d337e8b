"""Growth on a device that a growing load explains is no leak; what each request leaves on top of it is (simulated series)."""

from __future__ import annotations

from typing import Any

import pytest

from leakscope.analyse import loadfit
from leakscope.case import Case
from leakscope.detectors import device_held_by_c, device_unattributed
from leakscope.model import Confidence, Dismissed, Finding, VerdictClass
from leakscope.verdict import Examined, judge
from tests.detectors.cases import timeline
from tests.devices import MIB, watched

SECONDS, EVERY_S = 300.0, 1.0


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer draws: what is asked of the bounds here needs no more."""
    monkeypatch.setattr(loadfit, "SAMPLES", 20)


def batch(t: float) -> int:
    """A load that grows over the whole run, and goes up and down on the way."""
    return 1 + int(t) // 30 + (int(t) * 7 % 5)


def tokens(t: float) -> int:
    return (256, 512, 1024, 2048)[int(t) * 5 % 4]


def served(left: float = 0, load: float = 1.0, tells: bool = True) -> Case:
    """A server whose activations follow the load; each of ten requests a second leaves so many bytes."""
    process: dict[str, Any] = {"work_count": lambda t: 10 * (t + 1), "anon_bytes": 500 * MIB}
    if tells:
        process |= {"load_batch": batch, "load_tokens": tokens}
    return watched(allocated_unowned=lambda t: 300 * MIB + load * batch(t) * tokens(t) / 2048 * 80 * MIB + left * 10 * t,
                   outside=500 * MIB, seconds=SECONDS, every_s=EVERY_S, process=process)


def told(case: Case) -> list[Finding | Dismissed]:
    return list(device_unattributed.detect(case))


def test_growth_with_the_load_is_dismissed_with_its_share() -> None:
    case = served()
    (only,) = told(case)
    assert isinstance(only, Dismissed) and only.device == "cuda:0"
    assert only.why.startswith("it follows the load: ") and "nothing certain is left per" in only.why
    verdict = judge([Examined(case, (), (only,))])
    assert verdict.kind is VerdictClass.NO_LEAK
    assert verdict.sentence.startswith("Memory on cuda:0 grew, and it follows the load")


def test_a_cause_that_was_found_beside_is_in_doubt() -> None:
    (held,) = device_held_by_c.detect(served())
    assert isinstance(held, Finding) and held.confidence is Confidence.LOW
    assert held.doubts[0].startswith("the load that the program tells explains the growth of cuda:0")


@pytest.mark.parametrize("case", [served(left=0.5 * MIB), served(tells=False)], ids=["left per request", "load not told"])
def test_otherwise_growth_is_not_explained_away(case: Case) -> None:
    (held,) = device_held_by_c.detect(case)
    assert isinstance(held, Finding) and not any("load" in doubt for doubt in held.doubts)
    assert not case.follows_load_on("cuda:0")
    assert judge([Examined(case, (held,), tuple(told(case)))]).kind is not VerdictClass.NO_LEAK


def test_a_device_that_does_not_grow_is_not_spoken_of() -> None:
    assert told(served(load=0.0)) == []


@pytest.mark.parametrize(("left", "kind"), [(0.0, VerdictClass.NO_LEAK), (200_000.0, VerdictClass.INSUFFICIENT_EVIDENCE)])
def test_memory_of_the_host_that_follows_the_load_is_no_leak(left: float, kind: VerdictClass) -> None:
    rows = timeline(SECONDS, EVERY_S, work_count=lambda t: 10 * (t + 1), load_batch=batch, load_tokens=tokens,
                    anon_bytes=lambda t: 300 * MIB + batch(t) * tokens(t) / 2048 * 20 * MIB + left * 10 * t)
    verdict = judge([Examined(Case([], rows, {"pid": 7}), (), ())])
    assert verdict.kind is kind
    assert ("explained by batch and length" in verdict.sentence) == (kind is VerdictClass.NO_LEAK)


def test_the_fit_of_a_case_is_made_once() -> None:
    case = served()
    assert case.load_fit("cuda:0") is case.load_fit("cuda:0")
    assert case.load_fit() is None or not case.load_fit().is_explained  # type: ignore[union-attr]
