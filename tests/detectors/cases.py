"""Cases for the tests of detectors: snapshots from the heap DSL, and a timeline that goes with them."""

from __future__ import annotations

from typing import Any

from leakscope import plugins
from leakscope.case import Case
from leakscope.model import Dismissed, Finding
from tests.heaps import series

MIB = 1 << 20


def timeline(seconds: float, every_s: float = 0.5, **columns: Any) -> list[dict[str, Any]]:
    """Return samples; a column is a number, or a function of the seconds since the start."""
    rows = []
    for step in range(int(seconds / every_s) + 1):
        t = step * every_s
        values = {name: value(t) if callable(value) else value for name, value in columns.items()}
        rows.append({"t_ns": int(t * 1e9), "modules": 300, **{name: int(value) for name, value in values.items()}})
    return rows


def case(text: str, growth_bytes_s: float = 200_000.0, gc: dict[str, Any] | None = None, **numbers: list[Any]) -> Case:
    """Return a case whose snapshots are 10 s apart and whose memory grows at a steady pace."""
    graphs = series(text, **numbers)
    for graph in graphs:
        graph.info["gc"] = {"enabled": True, "thresholds": [700, 10, 10], **(gc or {})}
    length = 10.0 * (len(graphs) - 1) + 1
    samples = timeline(length, rss_bytes=lambda t: 50 * MIB + growth_bytes_s * t,
                       anon_bytes=lambda t: 40 * MIB + growth_bytes_s * t)
    return Case(graphs, samples)


def detected(examined: Case) -> tuple[list[Finding], list[Dismissed]]:
    """Run every detector."""
    found = [each for detector in plugins.load("leakscope.detectors", ("RULE", "detect")).values()
             for each in detector.detect(examined)]
    return ([each for each in found if isinstance(each, Finding)], [each for each in found if isinstance(each, Dismissed)])
