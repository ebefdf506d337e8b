"""When what piles up was born: every epoch's survivors for a leak, only the youngest for work in flight."""

from __future__ import annotations

import pytest

from leakscope.analyse import cohorts
from tests.detectors.cases import case

STORE = """
    module app
    app .store -> store:dict
    store [*] -> order:shop.Order x{n} 4KiB
"""
MOVING = """
    module app
    app .store -> store:dict
    store [*] -> order:shop.Order x{n} 4KiB addr {at}
"""


def born(text, **numbers):
    examined = case(text, **numbers)
    return examined.cohorts(examined.accumulations[0])


def test_what_stays_has_survivors_of_every_epoch():
    found = born(STORE, n=[100, 200, 300, 400])
    assert (found.counts, found.basis) == ((100, 100, 100, 100), "identity")
    assert found.survival == (1.0, 1.0, 1.0)
    assert found.is_flat
    assert not found.is_front_loaded
    assert not found.has_gone


def test_what_is_always_new_has_gone():
    found = born(MOVING, n=[100, 200, 300, 400], at=["0x100000", "0x200000", "0x300000", "0x400000"])
    assert found.counts == (0, 0, 0, 400)
    assert found.survival == (0.0, 0.0, 0.0)
    assert found.has_gone
    assert not found.is_flat


def test_a_queue_whose_oldest_go_and_whose_newest_stay_is_a_backlog():
    # 16 bytes apart: what begins 50 objects later has lost the 50 oldest
    found = born(MOVING, n=[100, 200, 300, 400], at=["0x100000", "0x100640", "0x100c80", "0x1012c0"])
    assert found.is_backlog
    assert not found.has_gone


def test_three_epochs_are_not_enough_to_call_them_flat():
    assert not born(STORE, n=[100, 200, 300]).is_flat


def test_what_was_filled_at_the_start_is_front_loaded():
    found = born(STORE, n=[100, 900, 920, 930, 940])
    assert found.is_front_loaded
    assert not found.is_flat


def test_a_tuple_that_is_made_anew_under_a_key_that_stays_is_not_in_flight():
    found = born("""
        module app
        app .visits -> visits:dict
        visits [^str:8] -> name:str x{n} 64B
        visits [*] -> visit:tuple x{n} 4KiB addr {at}
    """, n=[100, 200, 300, 400], at=["0x100000", "0x200000", "0x300000", "0x400000"])
    assert found.survival == (1.0, 1.0, 1.0)
    assert found.is_flat


SAMPLED = STORE + "\n    samples order {k} 64KiB make@app.py:7 at {s}"


def sampled(seconds, k=8):
    lines = "\n".join(f"    samples order {k} 64KiB make@app.py:7 at {second}" for second in seconds)
    examined = case(STORE + "{samples}", n=[100, 200, 300, 400], samples=["", "", "", lines])
    return examined.cohorts(examined.accumulations[0])


def test_samples_that_live_date_a_pile():
    found = sampled([2, 8, 14, 20, 26])
    assert (found.basis, found.samples) == ("samples", 40)
    assert found.is_flat
    assert sum(found.counts) == pytest.approx(400, abs=3)


def test_samples_of_the_first_third_alone_are_front_loaded():
    found = sampled([1, 3, 5, 7, 9])
    assert found.is_front_loaded
    assert not found.is_flat


def test_a_few_samples_date_nothing():
    assert sampled([2, 26], k=2).basis == "identity"


def test_births_that_the_snapshot_knows_come_first_and_undated_objects_are_counted():
    found = born(STORE.replace("4KiB", "4KiB birth {b}"), n=[100, 200, 300, 400], b=[1, 1, 1, 1])
    assert (found.basis, found.dated_ratio, found.counts) == ("births", 1.0, (400,))


def test_a_buffer_has_no_births():
    examined = case("module app\napp .text -> text:bytearray {size}B", size=[1 << 20, 2 << 20, 3 << 20, 4 << 20])
    assert examined.cohorts(examined.accumulations[0]) is None


def test_the_clock_is_the_work_that_was_done_where_it_was_counted():
    clock = cohorts.clock_of([(0.0, 0.0), (10.0, 10.0), (20.0, 110.0)], [])
    assert [clock(0), clock(10), clock(15), clock(30)] == [0, 10, 60, 110]


def test_the_clock_stands_still_while_the_program_does():
    clock = cohorts.clock_of([], [(2.0, 4.0)])
    assert [clock(1), clock(3), clock(5)] == [1, 2, 3]


def test_of_a_large_heap_the_same_objects_are_kept_in_every_snapshot(monkeypatch):
    monkeypatch.setattr(cohorts, "MOST_IDENTITIES", 256)
    found = born(STORE, n=[400, 800, 1200, 1600])
    assert found.is_flat
    assert sum(found.counts) == pytest.approx(1600, abs=4)
