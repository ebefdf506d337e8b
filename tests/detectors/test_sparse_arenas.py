"""What pymalloc keeps: arenas pinned by survivors, or a high water."""

from __future__ import annotations

import numpy as np

from leakscope.analyse.pools import POOL_BITS
from leakscope.case import Case
from leakscope.detectors import sparse_arenas
from leakscope.model import Dismissed
from tests.detectors.cases import MIB, timeline
from tests.heaps import series


def case(used, held, step=1 << POOL_BITS):
    """Survivors `step` bytes apart, held by app.kept."""
    graphs = series("module app\napp .kept -> kept:list 4KiB\nkept [*] -> one:app.Survivor x{n} 64B", n=[100, 200, 300, 400])
    for graph in graphs:
        survivors = np.flatnonzero([graph.type_name(node) == "app.Survivor" for node in range(graph.node_count)])
        graph.address[survivors] = 0x7F0000000000 + step * np.arange(len(survivors), dtype=np.uint64)
    samples = timeline(31, anon_bytes=lambda t: 40 * MIB + held(t), rss_bytes=lambda t: 40 * MIB + held(t), file_bytes=0,
                       shmem_bytes=0, arena_bytes=held, arena_used_bytes=used, arena_pools=900, arena_sparse_pools=700,
                       malloc_used_bytes=10 * MIB, malloc_free_bytes=0)
    return Case(graphs, samples, {"python": "3.11.7"})


def rising(t):
    return 10 * MIB + t * MIB


def test_arenas_that_grow_and_stay_empty_name_what_pins_them():
    (finding,) = sparse_arenas.detect(case(lambda t: 8 * MIB, rising))
    assert finding.rule is sparse_arenas.RULE
    assert finding.owner == "pymalloc arenas pinned by app.kept"
    assert any("700 of 900 pools" in reason for reason in finding.reasons)
    assert any("app.Survivor (400 pools)" in reason for reason in finding.reasons)


def test_where_no_object_sits_alone_in_its_pool_nothing_is_named():
    (finding,) = sparse_arenas.detect(case(lambda t: 8 * MIB, rising, step=16))
    assert finding.owner == "pymalloc arenas"
    assert any("is not known" in doubt for doubt in finding.doubts)


def test_arenas_that_are_used_are_no_finding():
    assert list(sparse_arenas.detect(case(lambda t: 8 * MIB + t * MIB, rising))) == []


def test_arenas_left_by_one_burst_are_a_high_water():
    (dismissed,) = sparse_arenas.detect(case(lambda t: 8 * MIB, lambda t: 10 * MIB + 40 * MIB * (t > 8)))
    assert isinstance(dismissed, Dismissed)
    assert dismissed.why.startswith("allocator high water: 42.0 MiB")


def test_where_the_peaks_of_use_rise_as_much_it_is_a_high_water():
    (dismissed,) = sparse_arenas.detect(case(lambda t: 8 * MIB + (t * MIB if t % 3 == 0 else 0), rising))
    assert isinstance(dismissed, Dismissed)
    assert "the peak of use rose by" in dismissed.why


def test_without_the_counter_nothing_is_said():
    silent = case(lambda t: 8 * MIB, rising)
    silent.timeline = [{name: value for name, value in sample.items() if not name.startswith("arena")}
                       for sample in silent.timeline]
    assert list(sparse_arenas.detect(silent)) == []


def test_what_is_free_because_the_load_has_ended_is_no_growth_of_what_is_held():
    found = list(sparse_arenas.detect(case(lambda t: 40 * MIB - t * MIB, lambda t: 42 * MIB + t * MIB / 100)))
    assert not [each for each in found if not isinstance(each, Dismissed)]
