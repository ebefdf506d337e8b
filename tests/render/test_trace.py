"""Which edges of a path are suspect."""

from __future__ import annotations

import dataclasses

from leakscope.model import Path, Step
from leakscope.render._trace import shown_steps, suspect_edges, trace_lines
from tests.render.reports import python_leak


def path(*statuses: str) -> Path:
    last = len(statuses) - 1
    steps = tuple(Step(f"s{index}", "T", f".e{index}" if index < last else "", status)
                  for index, status in enumerate(statuses))
    return Path(steps, "module", "text", "owner")


def test_edges_between_the_last_that_lives_and_the_first_that_should_be_gone_are_suspect():
    assert suspect_edges(path("no", "no", "unknown", "yes", "yes")) == (False, True, True, False, False)


def test_without_an_end_every_edge_after_the_last_living_object_is_suspect():
    assert suspect_edges(path("no", "unknown", "unknown")) == (True, True, False)


def test_with_nothing_known_every_edge_is_suspect():
    assert suspect_edges(path("unknown", "unknown", "unknown")) == (True, True, False)


def test_a_living_object_behind_one_that_should_be_gone_changes_nothing():
    assert suspect_edges(path("no", "yes", "no", "yes")) == (True, False, False, False)


def test_a_long_path_is_shown_at_its_two_ends():
    assert shown_steps(path(*["unknown"] * 12)) == [0, 1, 2, 3, None, 8, 9, 10, 11]
    finding = dataclasses.replace(python_leak().findings[0], path=path(*["unknown"] * 12))
    assert "|           ... 4 steps more" in trace_lines(finding)


def test_a_line_never_grows_wider_than_asked():
    finding = dataclasses.replace(python_leak().findings[0], path=Path((Step("n" * 300, "T", "e" * 300),), "module", "", ""))
    assert all(len(line) <= 100 for line in trace_lines(finding))
