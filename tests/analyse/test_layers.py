"""Where the growth went."""

from __future__ import annotations

from leakscope.analyse import layers
from leakscope.analyse.layers import Window
from leakscope.heap.devices import joined
from tests.detectors.cases import MIB, timeline
from tests.heaps import heap


def by_name(found):
    return {layer.name: layer.growth_bytes for layer in found}


def test_the_parts_and_the_unexplained_rest_add_up_to_the_total():
    samples = timeline(60, anon_bytes=lambda t: 90 * MIB + t * MIB, file_bytes=10 * MIB, shmem_bytes=0,
                       malloc_used_bytes=lambda t: 20 * MIB + t * MIB / 2, malloc_free_bytes=MIB)
    totals = [layers.HeapTotals(t, int(t * MIB / 4), int(t * MIB / 8), 0) for t in (10.0, 30.0, 50.0)]
    found = by_name(layers.account(samples, layers.private_memory(samples), totals, Window(0.0, 60.0)))
    assert found["total"] == sum(value for name, value in found.items() if name != "total")
    assert abs(found["python"] - 15 * MIB) < MIB / 100
    # malloc handed out half a MiB a second; an eighth of it is Python objects
    assert abs(found["native"] / found["total"] - 3 / 8) < 0.03


def test_what_was_not_measured_is_none_and_not_zero():
    found = by_name(layers.account([], [(0.0, 5.0), (10.0, 5.0)], [], Window(0.0, 10.0)))
    assert found == {"total": 0, "python": None, "native": None, "allocator-retained": None, "mapped": None, "unexplained": 0}


def test_the_judged_window_begins_when_the_imports_have_ended():
    samples = timeline(20, rss_bytes=1)
    for sample in samples:
        sample["modules"] = 50 if sample["t_ns"] < 6e9 else 400
    assert layers.judged_window(samples) == Window(6.0, 20.0)


def test_a_module_imported_near_the_end_does_not_eat_the_run():
    samples = timeline(20, rss_bytes=1)
    samples[-1]["modules"] = 900
    assert layers.judged_window(samples).start_s == 4.0


def test_growth_that_ended_shows_in_the_second_half_of_the_window():
    samples = timeline(40, anon_bytes=lambda t: min(t, 20) * MIB, shmem_bytes=0)
    trend = layers.memory_trend(layers.private_memory(samples), Window(0.0, 40.0))
    assert trend is not None
    assert trend.growth_bytes > 15 * MIB
    assert trend.tail_growth_bytes == 0
    assert not trend.tail_slope.is_positive


def test_large_objects_and_storages_count_as_what_malloc_handed_out():
    graph = heap("""
        module app
        app .big -> bytes 1MiB
        app .small -> bytes 100B
        app .tensor -> tensor:torch.Tensor 80B
        tensor <storage> -> storage 2MiB
    """)
    totals = layers.heap_totals(graph)
    assert totals.malloc_bytes == 3 * MIB
    assert totals.python_bytes > totals.malloc_bytes


def test_a_change_is_known_where_the_first_stretch_of_the_window_has_no_sample():
    assert layers.change([(0.0, 1.0), (3.0, 5.0), (9.0, 6.0)], Window(2.0, 10.0)) == 1.0
    assert layers.change([(0.0, 1.0), (9.0, 6.0)], Window(2.0, 10.0)) is None


def test_the_total_is_the_proportional_set_size_where_that_is_known():
    # half of the file's pages belong to another process; so do as many anonymous ones as at the start
    samples = timeline(60, anon_bytes=lambda t: 90 * MIB + t * MIB, file_bytes=lambda t: 10 * MIB + t * MIB, shmem_bytes=0,
                       pss_anon_bytes=lambda t: 80 * MIB + t * MIB, pss_file_bytes=lambda t: 5 * MIB + t * MIB / 2,
                       pss_shmem_bytes=0)
    found = layers.account(samples, layers.private_memory(samples), [], Window(0.0, 60.0))
    growth = by_name(found)
    assert (found[0].name, found[0].measure) == ("total", "pss")
    assert abs(growth["total"] / growth["mapped"] - 3) < 0.05
    assert layers.COPIED not in growth


def test_without_the_proportional_set_size_the_total_is_resident_memory():
    samples = timeline(60, anon_bytes=lambda t: 90 * MIB + t * MIB, file_bytes=10 * MIB, shmem_bytes=0)
    assert layers.account(samples, layers.private_memory(samples), [], Window(0.0, 60.0))[0].measure == "rss"


def test_pages_that_a_worker_copies_are_a_layer_of_their_own():
    samples = timeline(60, anon_bytes=100 * MIB, file_bytes=10 * MIB, shmem_bytes=0,
                       pss_anon_bytes=lambda t: 30 * MIB + min(t, 40) * MIB, pss_file_bytes=5 * MIB, pss_shmem_bytes=0)
    growth = by_name(layers.account(samples, layers.private_memory(samples), [], Window(0.0, 60.0)))
    assert growth[layers.COPIED] == growth["total"] > 30 * MIB
    assert growth["unexplained"] == 0


def test_what_pymalloc_keeps_is_told_apart_from_what_malloc_keeps():
    samples = timeline(60, anon_bytes=lambda t: 90 * MIB + 2 * t * MIB, file_bytes=0, shmem_bytes=0, malloc_used_bytes=20 * MIB,
                       malloc_free_bytes=lambda t: t * MIB / 2, arena_bytes=lambda t: 30 * MIB + 1.5 * t * MIB,
                       arena_used_bytes=lambda t: 20 * MIB + t * MIB / 2)
    totals = [layers.HeapTotals(t, int(10 * MIB + t * MIB / 2), 0, 0) for t in (10.0, 30.0, 50.0)]
    found = layers.account(samples, layers.private_memory(samples), totals, Window(0.0, 60.0))
    kept = next(layer for layer in found if layer.name == layers.KEPT)
    assert abs(kept.terms["pymalloc"] / kept.terms["malloc"] - 2) < 0.1
    assert kept.growth_bytes == sum(kept.terms.values())
    assert abs(by_name(found)["unexplained"]) < MIB


def test_blocks_of_pymalloc_that_no_object_accounts_for_are_native_memory():
    samples = timeline(60, anon_bytes=lambda t: 90 * MIB + t * MIB, file_bytes=0, shmem_bytes=0, malloc_used_bytes=20 * MIB,
                       arena_bytes=lambda t: 30 * MIB + t * MIB, arena_used_bytes=lambda t: 20 * MIB + t * MIB)
    flat = [layers.HeapTotals(t, 10 * MIB, 0, 0, int(20 * MIB + t * MIB)) for t in (10.0, 30.0, 50.0)]
    growing = [layers.HeapTotals(t, int(10 * MIB + 0.9 * t * MIB), 0, 0, int(20 * MIB + t * MIB)) for t in (10.0, 30.0, 50.0)]
    growths = [by_name(layers.account(samples, layers.private_memory(samples), totals, Window(0.0, 60.0)))
               for totals in (flat, growing)]
    assert growths[0]["native"] == growths[0]["total"]
    assert growths[1]["python"] == growths[1]["total"]


def test_the_corrected_timeline_keeps_what_others_have_of_the_memory():
    sample = {"t_ns": 0, "anon_bytes": 9, "pss_anon_bytes": 5}
    corrected = {**layers.with_shares(sample), "anon_bytes": 7}
    assert layers.shared_elsewhere([corrected], "anon") == layers.shared_elsewhere([sample], "anon") == [(0.0, 4.0)]


def test_shared_memory_counts_by_the_part_that_a_process_has_of_it():
    samples = timeline(60, anon_bytes=90 * MIB, file_bytes=0, shmem_bytes=lambda t: t * MIB, pss_anon_bytes=90 * MIB,
                       pss_file_bytes=0, pss_shmem_bytes=lambda t: t * MIB / 4)
    private = layers.private_memory(samples)
    assert private[-1][1] == 105 * MIB
    del samples[-1]["pss_shmem_bytes"]  # is read more seldom: then the rest is what it was
    assert layers.private_memory(samples)[-1][1] == 90 * MIB + 60 * MIB - 59.5 * MIB * 3 / 4
    growth = by_name(layers.account(samples, private, [], Window(0.0, 60.0)))
    assert abs(growth["mapped"] - growth["total"]) < MIB
    assert growth["mapped"] < 15 * MIB


def test_growth_that_slows_down_is_told_apart_as_it_was_between_the_snapshots():
    def used(t):
        return 20 * MIB + 40 * MIB * (1 - 0.9 ** t)

    samples = timeline(60, anon_bytes=lambda t: 90 * MIB + used(t), file_bytes=0, shmem_bytes=0, malloc_used_bytes=used)
    # three quarters of it are objects; the slope of them would say five times as much
    totals = [layers.HeapTotals(t, int(0.75 * used(t)), int(0.75 * used(t)), 0, None, int(used(t))) for t in (1.0, 5.0, 15.0)]
    growth = by_name(layers.account(samples, layers.private_memory(samples), totals, Window(10.0, 60.0)))
    assert abs(growth["python"] / growth["total"] - 0.75) < 0.02
    assert abs(growth["native"] / growth["total"] - 0.25) < 0.02


def test_a_burst_that_a_snapshot_happens_to_see_moves_nothing_between_the_layers():
    samples = timeline(60, anon_bytes=lambda t: 90 * MIB + t * MIB, file_bytes=0, shmem_bytes=0, malloc_used_bytes=20 * MIB,
                       malloc_free_bytes=lambda t: t * MIB)
    totals = [layers.HeapTotals(t, size * MIB, size * MIB, 0, None, 20 * MIB) for t, size in ((10.0, 18), (30.0, 6), (50.0, 5))]
    growth = by_name(layers.account(samples, layers.private_memory(samples), totals, Window(0.0, 60.0)))
    assert (growth["python"], growth["native"]) == (0, 0)
    assert growth[layers.KEPT] == growth["total"]


def test_host_memory_that_stands_in_for_a_device_is_the_hosts_and_that_of_a_device_is_not():
    text = """
        module app
        app .t -> t:torch.Tensor
        t <storage> -> store:storage 64MiB on cuda:0
        segment cuda:0 1GiB
        blocks store
    """
    real = heap(text)
    simulated = joined(heap(text.replace(" on cuda:0", "")), {**real.devices, "simulated": True})
    assert simulated.device.tolist() == real.device.tolist()
    assert layers.heap_totals(real).malloc_bytes < MIB < 64 * MIB <= layers.heap_totals(simulated).malloc_bytes
