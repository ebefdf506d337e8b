"""A case as a whole: which snapshots are compared, and by which clock growth is judged."""

from __future__ import annotations

from typing import Any

from leakscope.case import Case
from tests.detectors.cases import detected
from tests.heaps import heap

STORE = """
    module app
    app .store -> store:dict
    store [*] -> order:shop.Order x{n} 4KiB
"""
SECOND = 1_000_000_000


def bursts(left: tuple[int, int, int, int, int, int]) -> Case:
    """Two bursts of ten seconds in a minute, each followed by a pause with a settle snapshot; `left` orders at 3 s, 9 s, in
    the first pause (twice), at 35 s, and in the last pause. A tenth of a second is a row."""
    rows = []
    cpu_ns = 0
    for tenth in range(600):
        t_s = tenth / 10
        is_busy = t_s < 10 or 30 <= t_s < 40
        cpu_ns += 80_000_000 if is_busy else 100_000
        before, after = (0, left[2]) if t_s < 20 else (left[2], left[5])
        part = min(1.0, (t_s if t_s < 20 else max(0.0, t_s - 30)) / 10)
        orders = before + (after - before) * part
        rows.append({"t_ns": tenth * SECOND // 10, "cpu_ns": cpu_ns, "anon_bytes": int((20 << 20) + 4096 * orders),
                     "malloc_used_bytes": int((5 << 20) + 4096 * orders), "modules": 100, "py_blocks": 5000 + int(orders)})
    settle = {"kind": "settle", "settle": {"quiet_s": 8.0, "collected": False}}
    times = (3.0, 9.0, 15.0, 18.5, 35.0, 48.5)
    infos: tuple[dict[str, Any], ...] = ({}, {}, {}, settle, {}, settle)
    graphs = [heap(STORE, t_s=t_s, info={"index": index, **info}, n=count)
              for index, (t_s, info, count) in enumerate(zip(times, infos, left), 1)]
    return Case(graphs, rows)


def test_a_pause_between_two_bursts_does_not_make_a_leak_level_off() -> None:
    case = bursts((600, 1800, 2000, 2000, 3000, 4000))
    assert [graph.t_s for graph in case.compared] == [3.0, 9.0, 15.0, 35.0]
    steady = case.steady([600, 1800, 2000, 3000])
    assert steady is not None and steady > 0.8
    assert case.trend is not None and case.trend.goes_on and case.trend.slope is not None and case.trend.slope.is_positive
    findings, _ = detected(case)
    assert [finding.owner for finding in findings] == ["app.store"]
    assert "S" in dict(findings[0].evidence)


def test_growth_that_ends_with_the_first_burst_is_still_one_that_levels_off() -> None:
    case = bursts((600, 1800, 2000, 2000, 2000, 2000))
    assert case.trend is not None and not case.trend.goes_on
    assert detected(case)[0] == []


def test_the_judged_window_ends_with_the_load_and_not_with_the_first_pause() -> None:
    window = bursts((600, 1800, 2000, 2000, 3000, 4000)).window
    assert window.start_s < 20 and 39 < window.end_s < 41


def test_the_moment_without_memory_is_looked_at_but_not_compared_where_others_can_be() -> None:
    said = {"format": 1, "devices": [], "segments": [], "oom": {"device": "cuda:0", "requested_bytes": 4096}}
    graphs = [heap(STORE, t_s=t_s, info={"index": index, "kind": kind}, n=100 * index)
              for index, (t_s, kind) in enumerate(((3.0, "ladder"), (9.0, "ladder"), (12.0, "oom"), (20.0, "ladder")), 1)]
    graphs[2].devices = said
    rows = [{"t_ns": number * SECOND, "anon_bytes": 20 << 20, "modules": 100} for number in range(30)]
    case = Case(graphs, rows)
    assert [graph.t_s for graph in case.compared] == [3.0, 9.0, 20.0]
    assert [blocks.info["oom"]["requested_bytes"] for blocks in case.out_of_memory] == [4096]
    few = Case(graphs[1:], rows)
    assert [graph.t_s for graph in few.compared] == [9.0, 12.0, 20.0]
