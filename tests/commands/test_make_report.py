"""What a report says beside its verdict."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from leakscope import baseline
from leakscope import session as sessions
from leakscope.agent.format import FORMAT
from leakscope.commands import _make_report
from tests.detectors.cases import case

WHY_NOT = ("Process 7: There is no probe for this interpreter. So the heap was walked in Python, which takes longer; "
           "leakscope doctor --build-probe PYTHON builds a probe where there can be one.")


@pytest.mark.parametrize(("info", "notes"), [
    ({"walk": "native"}, ()),
    ({"walk": "python", "why_not_native": "There is no probe for this interpreter."}, (WHY_NOT,)),
])
def test_a_report_says_why_the_heap_was_walked_in_python(tmp_path: Path, info: dict[str, Any], notes: tuple[str, ...]) -> None:
    session = sessions.create(tmp_path / "session", ["python", "x.py"], {})
    (session.path / "7").mkdir()
    (session.path / "7" / "process.json").write_text(json.dumps(
        {"format": FORMAT, "pid": 7, "parent": 1, "role": "main", "python": "3.11.7", "started_ns": 0, **info}))
    rows = [{"t_ns": second * 10**9, "rss_bytes": 9_000_000} for second in range(2)]
    (session.path / "7" / "timeline.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    session.write_info(state="complete", duration_s=1.5, exit_code=0)
    assert tuple(note for note in _make_report.build(session).notes if "walk" in note) == notes


def test_what_a_team_knows_of_the_first_report_is_known_in_the_next_and_judged_as_before(tmp_path: Path) -> None:
    pile = """
        module app
        app .cache -> cache:dict
        cache [*] -> order:shop.Order x{n} 4KiB
    """
    ((first,), _) = _make_report._detected(case(pile, growth_bytes_s=45_000, n=[100, 200, 300, 400, 500]), baseline.NO_LIST)
    (tmp_path / "known.toml").write_text(f'''
        [[leak]]
        id = "orders"
        fingerprint = "{first.fingerprint}"
        explanation = "Orders stay."
        reference = "SHOP-12"
    ''')
    team = baseline.own_list(tmp_path / "known.toml")
    ((told,), _) = _make_report._detected(case(pile, growth_bytes_s=45_000, n=[100, 200, 300, 400, 500]), team)
    assert told == replace(first, known="known.toml, orders: Orders stay. SHOP-12")
