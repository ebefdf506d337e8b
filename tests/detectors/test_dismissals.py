"""What is no leak: each reason with one case for it and one against."""

from __future__ import annotations

from leakscope.case import Case
from leakscope.model import Confidence
from tests.detectors.cases import MIB, case, detected, timeline
from tests.heaps import heap

MOVING = """
    module app
    app .running -> running:dict
    running [*] -> request:app.Request x{n} 4KiB addr {at}
"""
STORE = """
    module app
    app .store -> store:dict
    store [*] -> order:shop.Order x{n} 4KiB
"""
DEQUE = """
    module db
    db .log -> log:collections.deque
    log [*] -> entry:dict x{n} {unit}KiB
    bound log {bound} maxlen
"""


def owners(found):
    return [each.owner for each in found]


def test_work_in_flight_has_only_its_youngest():
    findings, dismissed = detected(case(MOVING, n=[100, 200, 300, 400], at=["0x100000", "0x200000", "0x300000", "0x400000"]))
    assert findings == []
    assert dismissed[0].why.startswith("in flight: of the 300 that were there at 20.0 s, 0% are left")


def test_a_queue_that_is_emptied_too_slowly_is_a_finding_with_that_doubt():
    examined = case(MOVING, n=[100, 200, 300, 400], at=["0x100000", "0x100640", "0x100c80", "0x1012c0"])
    findings, _ = detected(examined)
    assert owners(findings) == ["app.running"]
    assert any("emptied too slowly" in doubt for doubt in findings[0].doubts)


def test_a_bound_that_is_far_away_is_dismissed_and_listed_all_the_same():
    findings, dismissed = detected(case(DEQUE, n=[100, 200, 300, 400], unit=[20] * 4, bound=[9000] * 4))
    assert owners(dismissed) == owners(findings) == ["db.log"]
    assert findings[0].confidence is Confidence.LOW
    assert findings[0].doubts[0] == "it may be bounded: maxlen 9 000, 4% filled"


def test_a_bound_that_is_near_is_dismissed_alone():
    findings, dismissed = detected(case(DEQUE, n=[100, 200, 300, 400], unit=[20] * 4, bound=[1000] * 4))
    assert (findings, owners(dismissed)) == ([], ["db.log"])


def with_pause(left):
    examined = case(STORE, growth_bytes_s=45_000, n=[100, 200, 300, 400, 500])
    settle = {"index": 6, "kind": "settle", "settle": {"quiet_s": 10.0, "collected": False}}
    rows = [*examined.timeline, *({**examined.timeline[-1], "t_ns": int(t * 1e9)} for t in range(42, 60))]
    return Case([*examined.graphs, heap(STORE, t_s=55.0, info=settle, n=left)], rows)


def test_what_is_gone_when_the_load_pauses_was_in_flight():
    findings, dismissed = detected(with_pause(100))
    assert findings == []
    assert dismissed[0].why == "in flight: 0% of its growth was left when the load had paused for 10.0 s"


def test_what_outlives_a_pause_of_the_load_says_so():
    findings, _ = detected(with_pause(500))
    assert findings[0].confidence is Confidence.HIGH
    assert dict(findings[0].evidence)["S"].startswith("100% of its growth outlived a pause of the load")
    assert not any("settle" in doubt for doubt in findings[0].doubts)


def test_what_is_half_gone_after_a_pause_is_believed_little():
    findings, _ = detected(with_pause(220))
    assert findings[0].confidence is Confidence.LOW


def test_the_peak_of_a_start_is_dismissed_with_what_was_given_back():
    _, dismissed = detected(Case([], timeline(60, anon_bytes=lambda t: (200 if 5 < t < 9 else 80) * MIB)))
    assert [each.what for each in dismissed] == ["start-up peak"]
    assert "120.0 MiB were given back" in dismissed[0].why


def test_a_peak_near_the_end_is_none_of_the_start():
    assert detected(Case([], timeline(60, anon_bytes=lambda t: (200 if 50 < t < 54 else 80) * MIB)))[1] == []


def test_garbage_that_waits_is_dismissed_with_its_size_and_when_the_collector_comes():
    _, dismissed = detected(case("""
        garbage parser:sdk.StreamParser x{n} 16KiB
        parser .response -> response:sdk.Response x{n}
        response .parser -> parser
    """, gc={"counts": [300, 4, 8]}, n=[100, 200, 300, 400]))
    assert dismissed[0].why.startswith("waiting garbage: 6.3 MiB, for which the collector has not come yet, but will: after 3")


LIMITED = """
    module app
    app .store -> store:app.Store
    store .items -> items:collections.OrderedDict
    items [*] -> session:app.Session x{n} 16KiB
    bound store {bound} limit
"""


def test_a_limit_that_the_entries_come_near_is_their_bound():
    findings, dismissed = detected(case(LIMITED, n=[100, 200, 300, 340], bound=[350] * 4))
    assert (findings, dismissed[0].why) == ([], "bounded: limit 350, 97% filled")


def test_a_limit_that_may_be_of_anything_is_none_while_the_entries_are_far_from_it():
    assert owners(detected(case(LIMITED, n=[100, 200, 300, 400], bound=[9000] * 4))[0]) == ["app.store.items"]


CACHE = """
    module geo
    geo .lookup -> lookup:functools._lru_cache_wrapper 'lru_cache of lookup()'
    lookup <cache> -> entries:dict
    entries [*] -> point:geo.Point x{n} 4KiB
    lru lookup geo.lookup max none size {n} hits {hits} misses 90
{samples}
"""


def cached(births, hits=9):
    lines = "\n".join(f"    samples point {count} 64KiB make@geo.py:7 at {second}" for second, count in births)
    return detected(case(CACHE, growth_bytes_s=45_000, n=[100, 200, 300, 400], samples=["", "", "", lines],
                         hits=[hits] * 4))


def test_a_cache_without_a_limit_that_fills_ever_slower_is_believed_little():
    (finding,), _ = cached([(1 + 2 * step, 20 - step) for step in range(15)])
    assert finding.confidence is Confidence.LOW


def test_a_cache_without_a_limit_that_goes_on_filling_is_a_leak():
    (finding,), _ = cached([(1 + 2 * step, 12) for step in range(15)])
    assert finding.confidence is Confidence.HIGH


def test_a_cache_that_answers_and_fills_ever_slower_levels_off():
    findings, dismissed = cached([(1 + 2 * step, 20 - step) for step in range(15)], hits=400)
    assert findings == []
    assert dismissed[0].why.endswith("400 questions were answered from it, 90 were not")


def asked(hits: list[int], misses: list[int]) -> Confidence:
    """How sure a cache is blamed that has counted so at the snapshots, and goes on filling."""
    text = CACHE.replace("misses 90", "misses {misses}").replace("{samples}", "")
    (finding,), _ = detected(case(text, growth_bytes_s=45_000, n=[100, 200, 300, 400], hits=hits, misses=misses))
    return finding.confidence


def test_a_cache_that_misses_ever_more_seldom_is_believed_little() -> None:
    assert asked([10, 60, 260, 660], [100, 200, 300, 400]) is Confidence.LOW


def test_a_cache_that_misses_as_often_as_ever_is_blamed_though_it_answers_too() -> None:
    assert asked([100, 200, 300, 400], [100, 200, 300, 400]) is not Confidence.LOW
    assert asked([10, 160, 170, 300], [100, 200, 300, 400]) is not Confidence.LOW
