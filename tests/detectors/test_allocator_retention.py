"""What malloc keeps: it grows, or it is a high water."""

from __future__ import annotations

import numpy as np
import pytest

from leakscope.case import Case
from leakscope.detectors import allocator_retention
from leakscope.detectors.allocator_retention import FOR_ARENAS, FOR_HOLES
from leakscope.model import Confidence, Dismissed
from tests.detectors.cases import MIB, timeline
from tests.heaps import series


def found(info=None, **columns):
    columns = {"malloc_used_bytes": 20 * MIB, "malloc_mmapped_bytes": 0, "py_blocks": 100_000, **columns}
    free = columns["malloc_free_bytes"]
    held = {"malloc_arena_bytes": lambda t: 20 * MIB + free(t), "anon_bytes": lambda t: 40 * MIB + free(t), "file_bytes": 0,
            "rss_bytes": lambda t: 40 * MIB + free(t), "shmem_bytes": 0}
    return list(allocator_retention.detect(Case([], timeline(40, **{**held, **columns}), info or {})))


def rising(t):
    return t * MIB


def test_free_memory_that_grows_is_a_finding_and_many_arenas_name_the_setting():
    (finding,) = found(malloc_free_bytes=rising, malloc_arenas=lambda t: 1 + t / 4, threads=lambda t: 2 + t / 4)
    assert finding.rule is allocator_retention.RULE and finding.confidence is Confidence.MEDIUM
    assert finding.remedy == FOR_ARENAS
    assert any("malloc has 11 arenas" in reason and "more threads" in reason for reason in finding.reasons)
    assert finding.growth_bytes["host"] > 20 * MIB


@pytest.mark.parametrize("arenas", [{"malloc_arenas": 1}, {}])
def test_with_one_arena_the_setting_for_arenas_is_not_named(arenas):
    (finding,) = found(malloc_free_bytes=rising, **arenas)
    assert finding.remedy == FOR_HOLES
    assert not any("arenas," in reason for reason in finding.reasons)


def test_memory_that_was_freed_once_and_is_kept_is_a_high_water():
    (dismissed,) = found(malloc_free_bytes=lambda t: 60 * MIB * (t > 12))
    assert isinstance(dismissed, Dismissed)
    assert dismissed.why.startswith("allocator high water: 60.0 MiB") and "no more since 12.5 s" in dismissed.why
    assert dismissed.growth_bytes == 60 * MIB  # in the judged part: what was there before it is none of its growth
    (earlier,) = found(malloc_free_bytes=lambda t: 60 * MIB * (t > 3))
    assert "60.0 MiB" in earlier.why and earlier.growth_bytes == 0


def test_where_the_peaks_of_use_rise_as_much_it_is_a_high_water():
    # every burst is larger than the last: all that is kept was in use at once
    (dismissed,) = found(malloc_free_bytes=lambda t: 20 * MIB + t * MIB - 20 * MIB * (t % 5 == 0),
                         malloc_used_bytes=lambda t: 20 * MIB + (t * MIB if t % 5 == 0 else 0),
                         malloc_arena_bytes=lambda t: 40 * MIB + t * MIB, anon_bytes=lambda t: 60 * MIB + t * MIB)
    assert isinstance(dismissed, Dismissed)
    assert "the peak of use rose by" in dismissed.why


def test_little_free_memory_is_not_worth_a_word():
    assert found(malloc_free_bytes=lambda t: 5 * MIB * (t > 12)) == []


def test_the_finding_names_the_process_where_it_is_a_child():
    (finding,) = found({"pid": 7, "parent": 3, "role": "fork"}, malloc_free_bytes=rising)
    assert finding.pid == 7 and finding.reasons[-1] == "it is process 7, forked by process 3"


def heaps_with(owner):
    """One object at the top of each of ten heaps, held by `owner`; or nothing above what pymalloc serves."""
    size = "600B" if owner else "60B"
    graphs = series(f"module app\napp .jobs -> jobs:dict 4KiB\njobs [*] -> one:bytes x{{n}} {size}", n=[10] * 4)
    for graph in graphs:
        results = np.flatnonzero([graph.type_name(node) == "bytes" for node in range(graph.node_count)])
        graph.address[results] = 0x7F0000000000 + (np.arange(len(results), dtype=np.uint64) << np.uint64(26))
    def held(t):
        return 40 * MIB + t * MIB

    return Case(graphs, timeline(31, malloc_free_bytes=rising, malloc_used_bytes=20 * MIB, malloc_mmapped_bytes=0,
                                 malloc_arenas=11, malloc_arena_bytes=held, anon_bytes=held, rss_bytes=held))


def test_what_sits_at_the_top_of_the_heaps_is_named():
    (finding,) = allocator_retention.detect(heaps_with("app.jobs"))
    assert any("in 100% of 10 heaps of threads" in reason and "held by app.jobs" in reason for reason in finding.reasons)
    assert not any("not known" in doubt for doubt in finding.doubts)


def test_where_no_object_sits_there_that_is_said():
    (finding,) = allocator_retention.detect(heaps_with(None))
    assert any("not known" in doubt for doubt in finding.doubts)
