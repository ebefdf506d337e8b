"""The one answer: a claim only with evidence, the class from the layer that grew."""

from __future__ import annotations

import math

from leakscope import verdict
from leakscope.case import Case
from leakscope.model import VerdictClass
from tests.detectors.cases import MIB, case, detected, timeline

PILE = """
    module app
    app .cache -> cache:dict
    cache [*] -> order:shop.Order x{n} 16KiB
"""


def judged(examined: Case):
    findings, dismissed = detected(examined)
    return verdict.judge([verdict.Examined(examined, tuple(findings), tuple(dismissed))])


def test_a_pile_is_a_python_leak_and_the_sentence_names_its_owner():
    answer = judged(case(PILE, n=[100, 200, 300, 400, 500]))
    assert answer.kind is VerdictClass.PYTHON_LEAK
    assert answer.sentence.startswith("app.cache grew by 400 shop.Order")
    assert [bit for bit, _ in answer.evidence] == ["G", "R", "E", "C"]


def test_a_small_pile_is_listed_but_not_claimed():
    examined = case(PILE.replace("16KiB", "1KiB"), growth_bytes_s=0, n=[100, 200, 300, 400])
    assert detected(examined)[0]
    assert judged(examined).kind is VerdictClass.NO_LEAK


def test_flat_memory_is_no_leak_and_says_what_would_have_been_seen():
    answer = judged(Case([], timeline(60, rss_bytes=90 * MIB, anon_bytes=80 * MIB)))
    assert answer.kind is VerdictClass.NO_LEAK
    assert "would have been seen" in answer.sentence


def test_growth_that_stopped_is_warm_up():
    answer = judged(Case([], timeline(60, rss_bytes=lambda t: min(t, 20) * MIB, anon_bytes=lambda t: min(t, 20) * MIB)))
    assert answer.kind is VerdictClass.WARM_UP


def test_a_run_that_was_too_short_says_so():
    answer = judged(Case([], timeline(1, every_s=0.1, rss_bytes=MIB, anon_bytes=MIB)))
    assert answer.kind is VerdictClass.INSUFFICIENT_EVIDENCE


def test_growth_that_nobody_owns_is_not_called_a_leak():
    answer = judged(Case([], timeline(60, rss_bytes=lambda t: t * MIB, anon_bytes=lambda t: t * MIB)))
    assert answer.kind is VerdictClass.INSUFFICIENT_EVIDENCE


FADING = PILE.replace("16KiB", "64KiB")


def test_what_explains_most_of_the_growth_but_is_not_certain_is_named_with_its_doubt():
    answer = judged(case(FADING, growth_bytes_s=900_000, n=[100, 300, 420, 500]))
    assert answer.kind is VerdictClass.INSUFFICIENT_EVIDENCE
    assert "% of it, shop.Order in app.cache, is not certain: the growth slows down" in answer.sentence


def test_what_explains_little_of_the_growth_and_is_not_certain_is_not_named():
    answer = judged(case(FADING, growth_bytes_s=9_000_000, n=[100, 300, 420, 500]))
    assert answer.kind is VerdictClass.INSUFFICIENT_EVIDENCE
    assert answer.sentence.endswith("but no owner of most of it was found.")


def test_too_few_snapshots_that_can_be_compared_are_what_is_missing():
    graphs = case(PILE, n=[100, 200, 300]).graphs
    graphs[-1].info["kind"] = "exit"
    answer = judged(Case(graphs, timeline(30, anon_bytes=lambda t: 40 * MIB + max(0, t - 18) * MIB)))
    assert answer.sentence.endswith("but only 2 of 3 snapshots can be compared: the others saw its start or end.")


def native(used, free):
    return Case([], timeline(60, rss_bytes=lambda t: 50 * MIB + t * MIB, anon_bytes=lambda t: 40 * MIB + t * MIB,
                             malloc_used_bytes=used, malloc_free_bytes=free, file_bytes=10 * MIB, shmem_bytes=0))


def test_memory_that_malloc_handed_out_is_a_native_leak():
    answer = judged(native(lambda t: 10 * MIB + t * MIB, MIB))
    assert answer.kind is VerdictClass.NATIVE_LEAK


def test_memory_that_malloc_keeps_is_fragmentation():
    answer = judged(native(10 * MIB, lambda t: MIB + t * MIB))
    assert answer.kind is VerdictClass.FRAGMENTATION


def test_a_cache_that_fills_is_bounded_growth():
    answer = judged(case("""
        module geo
        geo .lookup -> lookup:functools._lru_cache_wrapper
        lookup <cache> -> entries:dict
        entries [*] -> point:geo.Point x{n} 16KiB
        lru lookup geo.lookup max 1000 size {n} hits 5 misses 5
    """, n=[250, 400, 550, 700]))
    assert answer.kind is VerdictClass.BOUNDED_GROWTH


def test_garbage_that_the_collector_never_frees_is_delayed_garbage():
    answer = judged(case("""
        garbage parser:sdk.StreamParser x{n} 16KiB
        parser .response -> response:sdk.Response x{n}
        response .parser -> parser
    """, gc={"enabled": False}, n=[100, 200, 300, 400]))
    assert answer.kind is VerdictClass.DELAYED_GARBAGE
    assert "StreamParser.response" in answer.sentence


WAITING = """
    garbage parser:sdk.StreamParser x{n} 64KiB
    parser .response -> response:sdk.Response x{n}
    response .parser -> parser
"""


def test_growth_that_is_garbage_which_waits_for_an_ordinary_collector_is_explained():
    answer = judged(case(WAITING, growth_bytes_s=640_000, n=[100, 200, 300, 400]))
    assert answer.kind is VerdictClass.BOUNDED_GROWTH
    assert "unreachable cycles (18.8 MiB), waiting garbage: 25" in answer.sentence


def test_a_little_garbage_that_waits_does_not_explain_growth_that_has_stopped():
    examined = case(WAITING, n=[10, 20, 30, 40])
    answer = judged(Case(examined.graphs, timeline(31, anon_bytes=lambda t: (40 + min(t, 9)) * MIB)))
    assert answer.kind is VerdictClass.WARM_UP


def test_garbage_for_which_no_collector_will_come_explains_nothing_where_it_came_and_went():
    answer = judged(case(WAITING, growth_bytes_s=640_000, gc={"enabled": False}, n=[100, 50, 300, 400]))
    assert answer.kind is VerdictClass.INSUFFICIENT_EVIDENCE


def test_the_time_until_the_limit_follows_the_rate():
    examined = case(PILE, growth_bytes_s=MIB, n=[100, 400, 700, 1000])
    limited = Case(examined.graphs, examined.timeline, memory_limit_bytes=3600 * MIB + 81 * MIB)
    answer = judged(limited)
    assert answer.hours_until_oom is not None
    assert abs(answer.hours_until_oom - 1.0) < 0.02


def test_what_our_own_walks_may_have_left_with_the_allocator_is_no_fragmentation():
    examined = native(10 * MIB, lambda t: MIB + t * MIB)
    walked = case("module app\napp .items -> items:list\nitems [*] -> int x400000", growth_bytes_s=0, n=[1, 1]).graphs
    for graph in walked:
        graph.info["pause_ns"] = int(1e9)
    assert judged(Case(walked, examined.timeline)).kind is not VerdictClass.FRAGMENTATION


def test_a_run_that_was_too_short_says_what_to_run():
    answer = judged(Case([], timeline(1, every_s=0.1, rss_bytes=MIB, anon_bytes=MIB)))
    assert "too short" in answer.sentence
    assert answer.sentence.endswith("let it work for 1 min 0 s or more: leakscope run -- COMMAND.")


def test_no_leak_has_its_power_a_second_and_per_unit_of_work():
    examined = Case([], timeline(60, rss_bytes=90 * MIB, anon_bytes=80 * MIB, work_count=lambda t: 10 * t),
                    {"work_sources": ["uvicorn requests"]})
    answer = judged(examined)
    assert answer.kind is VerdictClass.NO_LEAK
    assert answer.smallest_leak_bytes_per_s is not None
    assert answer.smallest_leak_bytes_per_work is not None
    assert abs(answer.smallest_leak_bytes_per_work - answer.smallest_leak_bytes_per_s / 10) < 1
    assert "per request" in answer.sentence


def test_without_work_no_leak_says_nothing_per_unit_of_it():
    answer = judged(Case([], timeline(60, rss_bytes=90 * MIB, anon_bytes=80 * MIB)))
    assert answer.smallest_leak_bytes_per_work is None


def test_one_step_that_is_kept_is_no_rate():
    answer = judged(Case([], timeline(60, anon_bytes=lambda t: (80 if t < 30 else 120) * MIB)))
    assert answer.kind is VerdictClass.WARM_UP
    assert answer.sentence == "Memory grew once, by 40.0 MiB at 29.5 s, and then stayed: a step that is kept, no rate."


def test_many_steps_are_growth():
    answer = judged(Case([], timeline(60, anon_bytes=lambda t: (80 + 10 * (t // 10)) * MIB)))
    assert answer.kind is VerdictClass.INSUFFICIENT_EVIDENCE


def waves(rest_mib_s):
    """Two minutes under a load in waves that ends on a high one, and memory that grows beside it."""
    def load(t):
        return 60 if t % 24 >= 12 else 10

    return Case([], timeline(119, anon_bytes=lambda t: (80 + load(t) + rest_mib_s * t) * MIB, inflight_count=load))


def test_memory_that_follows_the_load_is_no_leak_and_says_so():
    answer = judged(waves(0.0))
    assert answer.kind is VerdictClass.NO_LEAK
    assert answer.sentence.startswith("Memory follows the load: 100% of its growth is explained by inflight_count")


def test_growth_beside_the_load_is_not_explained_by_it():
    assert not judged(waves(0.5)).sentence.startswith("Memory follows the load")


def test_the_hours_until_the_limit_are_told_only_where_the_rate_excludes_zero():
    examined = case(PILE, growth_bytes_s=MIB, n=[100, 400, 700, 1000])
    noisy = [{**row, "anon_bytes": row["anon_bytes"] + int((64 << 20) * math.sin(row["t_ns"] / 4e9))}
             for row in examined.timeline]
    answer = judged(Case(examined.graphs, noisy, memory_limit_bytes=3600 * MIB))
    assert answer.rate is not None
    assert answer.rate.low is not None
    assert answer.rate.low <= 0
    assert answer.hours_until_oom is None


def test_work_in_flight_is_bounded_growth():
    answer = judged(case("""
        module app
        app .running -> running:dict
        running [*] -> request:app.Request x{n} 16KiB addr {at}
    """, n=[100, 200, 300, 400], at=["0x100000", "0x200000", "0x300000", "0x400000"]))
    assert answer.kind is VerdictClass.BOUNDED_GROWTH
    assert "in flight" in answer.sentence


# --- devices -------------------------------------------------------------------------------------------------------------

FLAT = {"rss_bytes": 90 * MIB, "anon_bytes": 80 * MIB}


def on_device(allocated, used=None, quality="exact"):
    """A process whose host is flat; `allocated`, and `used` beside it, in bytes over the seconds."""
    columns = {"cuda0_allocated_bytes": allocated, "cuda0_active_bytes": allocated, "cuda0_inactive_split_bytes": 0,
               "cuda0_reserved_bytes": allocated}
    if used is not None:
        columns["cuda0_process_bytes"] = used
    return Case([], timeline(60, **FLAT, **columns), use_quality={"cuda:0": quality})


def test_a_device_that_grows_beside_a_flat_host_is_not_called_no_leak():
    answer = judged(on_device(lambda t: (100 + 10 * t) * MIB))
    assert answer.kind is VerdictClass.INSUFFICIENT_EVIDENCE and "cuda:0 still grows" in answer.sentence
    assert "not measured" in answer.sentence and "NVML" in answer.sentence
    assert answer.growth_bytes > 300 * MIB and answer.rate.bytes_per_s > 9 * MIB


def test_a_flat_device_is_no_leak_and_says_what_would_have_been_seen_there():
    answer = judged(on_device(100 * MIB, 500 * MIB))
    assert answer.kind is VerdictClass.NO_LEAK and "a second on cuda:0" in answer.sentence
    assert "not measured" in judged(on_device(100 * MIB)).sentence


def test_a_device_of_which_nothing_was_measured_is_not_cleared():
    answer = judged(Case([], timeline(60, **FLAT, cuda0_ooms=0)))
    assert "of cuda:0 nothing is known" in answer.sentence


def test_a_device_that_stopped_growing_was_warming_up():
    answer = judged(on_device(lambda t: 900 * MIB * (1 - math.exp(-t / 9))))
    assert answer.kind is VerdictClass.WARM_UP and "Memory on cuda:0 grew by" in answer.sentence


TENSORS = """
    module serve
    serve .cache -> cache:dict
    cache [*] -> tensor:torch.Tensor x{n} 120B
    tensor <storage> -> store:storage x{n} 1MiB on cuda:0
    device cuda:0 1GiB
    segment cuda:0 1GiB
    blocks store
"""


def of_tensors(allocated, **numbers):
    examined = case(TENSORS, growth_bytes_s=0, n=[100, 200, 300, 400, 500], **numbers)
    columns = {f"cuda0_{name}_bytes": int(allocated) if isinstance(allocated, int) else allocated
               for name in ("allocated", "active", "reserved")}
    return Case(examined.graphs, timeline(41, **FLAT, cuda0_inactive_split_bytes=0, **columns))


def test_tensors_that_pile_up_are_a_leak_of_the_device_with_its_growth_and_its_limit():
    answer = judged(of_tensors(lambda t: (100 + 10 * t) * MIB))
    assert answer.kind is VerdictClass.GPU_LEAK and answer.sentence.startswith("serve.cache grew by 400 torch.Tensor")
    assert answer.memory_limit_bytes == 1024 * MIB and 0 < answer.hours_until_oom < 0.1
    assert answer.growth_bytes > 200 * MIB and "Unattributed" not in answer.sentence


def test_what_half_of_the_growth_lacks_is_called_unattributed():
    answer = judged(of_tensors(lambda t: (100 + 40 * t) * MIB))
    assert answer.kind is VerdictClass.GPU_LEAK and "Unattributed" in answer.sentence


def test_a_leak_of_the_host_stays_one_where_a_device_is_flat():
    examined = case(PILE, n=[100, 200, 300, 400, 500])
    rows = [{**row, "cuda0_allocated_bytes": MIB, "cuda0_reserved_bytes": MIB} for row in examined.timeline]
    assert judged(Case(examined.graphs, rows)).kind is VerdictClass.PYTHON_LEAK
