"""Native growth is named by whoever keeps it, as far as something sampled it."""

import dataclasses

import pytest

from leakscope.case import Case
from leakscope.detectors import native_growth
from leakscope.heap.load import Stored
from tests.detectors.cases import MIB, timeline
from tests.heaps import series

STEADY = timeline(31, rss_bytes=lambda t: 50 * MIB + MIB * t, anon_bytes=lambda t: 40 * MIB + MIB * t,
                  malloc_used_bytes=lambda t: 20 * MIB + MIB * t, py_blocks=100_000)
HEAP = "module app\napp .cache -> cache:dict\nsamples - {n} 1MiB keep@app.py:7 < main@app.py:9 at 12\n"


def found(case):
    return [each for each in native_growth.detect(case) if each.rule is native_growth.RULE]


@dataclasses.dataclass(frozen=True)
class Recorded(Stored):
    """A snapshot of the heap DSL with what the preloaded sampler found."""

    graph: object = None
    native: object = None

    def load(self):
        return self.graph

    @property
    def native_sites(self):
        return self.native


def recorded(*sites):
    graphs = series("module app\napp .cache -> cache:dict x{n}", n=[1, 1, 1, 1])
    return Case([Recorded(None, graph.info, graph, found) for graph, found in zip(graphs, sites, strict=True)], STEADY)


def keeping(count):
    return [{"native": [["libc.so.6", "__strdup", 16], ["libffi.so.8", "", 7]], "python": [["app.py", 13, "clean"]],
             "bytes": count * MIB, "count": count}]


def test_blocks_of_no_object_name_the_function_that_made_them():
    (finding,) = found(Case(series(HEAP, n=[1, 10, 20, 30]), STEADY))
    assert finding.owner == "native memory allocated by keep()"
    assert (finding.site.function, finding.site.line) == ("keep", 7)
    assert any("--native" in doubt for doubt in finding.doubts)


def test_blocks_of_no_object_that_do_not_grow_name_nobody():
    (finding,) = found(Case(series(HEAP, n=[30, 30, 30, 30]), STEADY))
    assert finding.owner == "native memory (malloc)" and finding.site is None


def test_sampled_native_allocations_name_function_library_and_caller():
    (finding,) = found(recorded(keeping(1), keeping(10), keeping(20), keeping(30)))
    assert finding.owner == "strdup (libc.so.6), called by clean()"
    assert finding.object_count == 29 and finding.site.line == 13 and finding.doubts == ()


def test_sampled_native_allocations_that_explain_little_name_nobody():
    (finding,) = found(recorded(*[keeping(1)] * 4))
    assert finding.owner == "native memory (malloc)"
    assert finding.doubts == ("the sampled native allocations show no function that keeps so much",)


@pytest.mark.parametrize("used", [lambda t: 60 * MIB, lambda t: min(20 + t, 30) * MIB])
def test_native_memory_that_stays_is_not_reported(used):
    samples = timeline(31, rss_bytes=80 * MIB, anon_bytes=70 * MIB, malloc_used_bytes=used, py_blocks=100_000)
    assert found(Case(series(HEAP, n=[1, 10, 20, 30]), samples)) == []


def leaking_blocks(arena_used):
    """Blocks of pymalloc become more, and the objects of the snapshots do not."""
    graphs = series("module app\napp .cache -> cache:dict x{n}", n=[1, 1, 1, 1])
    for graph in graphs:
        graph.info["sample"] = {"arena_used_bytes": int(arena_used(graph.t_s))}
    samples = timeline(31, rss_bytes=90 * MIB, anon_bytes=lambda t: 40 * MIB + MIB * t, malloc_used_bytes=20 * MIB,
                       arena_bytes=lambda t: 20 * MIB + MIB * t, arena_used_bytes=arena_used, py_blocks=100_000)
    return Case(graphs, samples)


def test_small_blocks_that_belong_to_no_object_are_native_growth_too():
    (finding,) = found(leaking_blocks(lambda t: 18 * MIB + MIB * t))
    assert "Python's own allocator has" in finding.reasons[0]


def test_small_blocks_that_stay_are_none():
    assert found(leaking_blocks(lambda t: 18 * MIB)) == []
