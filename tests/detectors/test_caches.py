"""Caches of kernels, graphs and workspaces: which argument varies, and what grows with them. All series are simulated."""

from __future__ import annotations

from typing import Any

import pytest

from leakscope.analyse import cachekeys
from leakscope.case import Case
from leakscope.detectors import captured_graphs, identity_cache, lru_cache, recompiles, shape_cache
from leakscope.model import Confidence, Finding
from tests.detectors.cases import detected, timeline
from tests.detectors.test_device_piles import DEVICE
from tests.devices import MIB
from tests.heaps import series

COUNTS = [100, 200, 300, 400, 500]
CACHE = """
    module flashinfer.jit
    flashinfer.jit .get_module -> wrapper:functools._lru_cache_wrapper
    wrapper <cache> -> cache:dict
    cache [*] -> entry:flashinfer.jit.Module x{n} 2KiB
    lru wrapper flashinfer.jit.get_module max none size {n} hits {hits} misses {n}
"""


def position(at: list[Any], distinct: int, kind: str = "int", **more: Any) -> dict[str, Any]:
    row = {"at": at, "types": {kind: 400}, "distinct": distinct, "min": None, "max": None, "shown": 0}
    return {**row, "identity": 0, "opaque": 0, **more}


LENGTHS = [position([0], 1, "str"), position([1], 1, min=128, max=128, shown=400),
           position([2], 400, min=17, max=4096, shown=400)]
IDENTITY = [position([0], 1, "str"), position([1], 400, "lambda", identity=400)]


def case(positions: Any, counts: list[int] | None = None, outside: Any = 20.0, text: str = CACHE, hits: int = 0,
         arguments: Any = ("dtype", "head_dim", "seq_len"), host: float = 0.2, **columns: Any) -> Case:
    """A process with a device whose memory outside of the allocator grows by `outside` MiB a second, or as it says."""
    numbers = counts or COUNTS
    graphs = series(text, n=numbers, hits=[hits] * len(numbers))
    for graph in graphs:
        graph.info.update({"gc": {"enabled": True, "thresholds": [700, 10, 10]}, "t_ns": graph.info["t_ns"] + 5 * 10**9})
        for cache in graph.caches:
            cache.update(arguments=list(arguments), keys={"looked": 400, "positions": positions, "samples": []})
    course = outside if callable(outside) else lambda t: outside * t
    length = 10.0 * (len(numbers) - 1) + 10
    rows = timeline(length, rss_bytes=lambda t: (90 + host * t) * MIB, anon_bytes=lambda t: (80 + host * t) * MIB,
                    cuda0_allocated_bytes=64 * MIB, cuda0_active_bytes=64 * MIB, cuda0_reserved_bytes=80 * MIB,
                    cuda0_inactive_split_bytes=MIB, cuda0_process_bytes=lambda t: (500 + course(t)) * MIB, **columns)
    return Case(graphs, rows, {"packages": {"flashinfer": "0.6.14"}})


def findings(module: Any, examined: Case) -> list[Finding]:
    return [each for each in module.detect(examined) if isinstance(each, Finding)]


# --- the rows of the report --------------------------------------------------------------------------------------------


def test_a_row_says_how_a_cache_grew_and_which_argument_varies():
    (row,) = cachekeys.rows(case(LENGTHS, hits=7))
    assert (row.name, row.kind, row.library) == ("flashinfer.jit.get_module()", "functools", "flashinfer")
    assert row.entries == row.misses == tuple(COUNTS) and row.hits == (7,) * 5 and row.evictions == (0,) * 5
    assert row.varying == "argument 3 (`seq_len`), integers 17 to 4096, looks like token counts"
    assert row.varies_by == "value" and row.retained_bytes["host"] > 400 * 2048


def test_the_deepest_part_that_varies_is_named():
    keys = [position([0], 400, "tuple"), position([0, 0], 400, min=1, max=512, shown=400), position([0, 1], 1)]
    (row,) = cachekeys.rows(case(keys, arguments=("shape",)))
    assert row.varying == "item 1 of argument 1 (`shape`), integers 1 to 512, looks like sizes"
    (row,) = cachekeys.rows(case([position(["causal="], 2, "bool"), position(["n="], 400, "str")]))
    assert row.varying == "argument `n`, 400 different values of type str"


def test_what_only_its_own_code_compares_varies_by_elimination():
    keys = [position([0], 1, "str"), position([1], 1, "app.Key", opaque=400)]
    (row,) = cachekeys.rows(case(keys))
    assert row.varying.startswith("argument 2 (`head_dim`), objects of type app.Key") and row.varies_by == "value"


def test_a_session_without_statistics_of_keys_has_rows_without_them():
    (row,) = cachekeys.rows(case([]))
    assert row.varying == "" and row.entries == tuple(COUNTS)


# --- 4: kernels by shape ---------------------------------------------------------------------------------------------------


def test_a_cache_of_kernels_for_each_length_is_named_with_its_argument_and_its_price():
    (found,) = findings(shape_cache, case(LENGTHS))
    assert found.rule.code == "LS404" and found.layer == "cuda:0" and found.owner == "flashinfer.jit.get_module"
    assert found.reasons[:3] == ("FlashInfer cache flashinfer.jit.get_module() grew 100 -> 500 entries",
                                 "argument 3 (`seq_len`) varies: integers 17 to 4096, looks like token counts",
                                 "2.0 MiB outside PyTorch per entry")
    assert found.growth_bytes["cuda:0"] > 500 * MIB


def test_growth_of_the_cache_alone_is_no_claim_about_the_device():
    assert findings(shape_cache, case(LENGTHS, outside=0.0)) == []


def test_growth_outside_without_a_cache_that_grows_is_not_blamed_on_one():
    assert findings(shape_cache, case(LENGTHS, counts=[400] * 5)) == []
    assert findings(shape_cache, case(IDENTITY)) == []


def test_a_cache_that_has_levelled_off_is_not_blamed():
    assert findings(shape_cache, case(LENGTHS, counts=[100, 390, 399, 400, 400])) == []


def test_noise_outside_does_not_go_along_with_a_cache():
    assert findings(shape_cache, case(LENGTHS, outside=lambda t: 150 + 140 * ((t * 7) % 13 - 6) / 6)) == []


def test_with_few_snapshots_it_is_less_certain():
    (found,) = findings(shape_cache, case(LENGTHS, counts=[100, 200, 300]))
    assert found.confidence is not Confidence.HIGH and "only 3 snapshots" in found.doubts


# --- 3: identity -----------------------------------------------------------------------------------------------------------


def test_a_cache_keyed_by_a_new_lambda_for_each_call_is_found_once():
    examined = case(IDENTITY, outside=0.0, arguments=("self", "config"))
    (found,) = findings(identity_cache, examined)
    assert found.rule.code == "LS403" and found.layer == "python" and found.confidence is Confidence.HIGH
    assert "argument 2 (`config`) varies: a new lambda in each of 400 entries, compared by identity" in found.reasons
    assert findings(lru_cache, examined) == []


@pytest.mark.parametrize("change", [{"hits": 50}, {"counts": [500] * 5}, {"counts": [100, 490, 499, 500, 500]}])
def test_a_cache_that_answers_or_does_not_grow_is_none(change):
    assert findings(identity_cache, case(IDENTITY, outside=0.0, **change)) == []


def test_a_remedy_knows_the_version():
    text = CACHE.replace("get_module", "_find_nearest_profile")
    (found,) = findings(identity_cache, case(IDENTITY, text=text))
    assert "0.6.16" in found.remedy
    assert "cache_clear" not in found.remedy


def test_without_a_device_the_host_rule_has_it():
    examined = case(IDENTITY, outside=0.0)
    host = Case(examined.graphs, [{name: value for name, value in row.items() if not name.startswith("cuda")}
                                  for row in examined.timeline], examined.info)
    found, _ = detected(host)
    assert [each.rule.code for each in found] == ["LS102"]


# --- 5: workspaces ---------------------------------------------------------------------------------------------------------

WORKSPACES = "    module serve\n    serve .buffers -> cache:dict len {n}\n" + "".join(
    f"    cache [*] -> tensor{row}:torch.Tensor 120B\n    tensor{row} <storage> -> store{row}:storage {row + 1}MiB on cuda:0\n"
    for row in range(12)) + """
    cache [*] -> rest:torch.Tensor x{n} 120B
    rest <storage> -> store:storage x{n} 1MiB on cuda:0
"""


def workspaces(slope: int) -> Case:
    graphs = series(WORKSPACES + DEVICE, n=COUNTS)
    for graph in graphs:
        graph.info.update({"gc": {"enabled": True, "thresholds": [700, 10, 10]}, "t_ns": graph.info["t_ns"] + 5 * 10**9})
        nodes = [node for node in range(graph.node_count) if graph.type_name(node) == "torch.Tensor"][:12]
        (table,) = [node for node in range(graph.node_count) if graph.type_name(node) == "dict"]
        rows = [[[100 + slope * row], int(graph.address[node])] for row, node in enumerate(nodes)]
        keys = {"looked": 400, "positions": [position([], 400, min=100, max=4096, shown=400)], "samples": rows}
        graph.tables = [{"address": int(graph.address[table]), "size": int(graph.length[table]), "keys": keys}]
    def course(t: float) -> float:
        return (150 + 10 * t) * MIB
    rows = timeline(50, rss_bytes=90 * MIB, anon_bytes=80 * MIB, cuda0_allocated_bytes=course, cuda0_active_bytes=course,
                    cuda0_reserved_bytes=lambda t: course(t) + 4 * MIB, cuda0_inactive_split_bytes=MIB)
    return Case(graphs, rows)


def test_buffers_whose_bytes_follow_the_key_are_a_workspace_per_shape_and_nothing_else():
    found, _ = detected(workspaces(slope=64))
    assert [each.rule.code for each in found] == ["LS405"]
    assert any("r = 1.00 over 12 values" in reason for reason in found[0].reasons)


def test_tensors_under_numbers_that_say_nothing_of_their_size_stay_what_they_are():
    found, _ = detected(workspaces(slope=0))
    assert [each.rule.code for each in found] == ["LS401"]


# --- 6: graphs -------------------------------------------------------------------------------------------------------------

GRAPHS = """
    module app
    app .graphs -> graphs:list
    graphs [*] -> torch.cuda.graphs.CUDAGraph x{n}
    app .pool -> pool:list
    pool [*] -> tensor:torch.Tensor
    tensor <storage> -> store:storage 1MiB on cuda:0
""" + DEVICE


def graphs_case(counts: list[int], pools: Any) -> Case:
    found = series(GRAPHS, n=counts)
    for graph in found:
        graph.info["t_ns"] += 5 * 10**9
    def course(t: float) -> float:
        return 200 * MIB + pools(t) * MIB
    return Case(found, timeline(50, rss_bytes=90 * MIB, anon_bytes=80 * MIB, cuda0_allocated_bytes=course,
                                cuda0_active_bytes=course, cuda0_reserved_bytes=lambda t: course(t) + 4 * MIB,
                                cuda0_inactive_split_bytes=MIB, cuda0_private_pool_bytes=lambda t: pools(t) * MIB))


def test_private_pools_that_grow_with_captured_graphs_are_found():
    (found,) = findings(captured_graphs, graphs_case([4, 8, 12, 16, 20], lambda t: 20 * t))
    assert found.rule.code == "LS406" and found.object_count == 20
    assert "captured CUDA graphs, by snapshot: 4 -> 8 -> 12 -> 16 -> 20" in found.reasons and "Do not clear" in found.remedy


@pytest.mark.parametrize(("counts", "pools"), [
    ([8] * 5, lambda t: 20 * t), ([4, 8, 12, 16, 20], lambda t: 0), ([4, 18, 20, 20, 20], lambda t: 400 * min(1, t / 15)),
    ([4, 8, 6, 9, 7], lambda t: 200 + 100 * ((t * 7) % 5 - 2))])
def test_graphs_that_stay_and_pools_that_do_are_none(counts, pools):
    assert findings(captured_graphs, graphs_case(counts, pools)) == []


# --- 23: recompiles --------------------------------------------------------------------------------------------------------


def compiled(graphs: Any, memory: Any) -> Case:
    rows = timeline(100, rss_bytes=lambda t: (90 + memory(t)) * MIB, anon_bytes=lambda t: (80 + memory(t)) * MIB,
                    compiled_graphs=graphs, recompiles=lambda t: graphs(t) * 0.75)
    return Case([], rows)


def test_compilations_that_go_on_with_the_memory_are_found():
    (found,) = findings(recompiles, compiled(lambda t: 2 + t, lambda t: 1.5 * t))
    assert found.rule.code == "LS423" and found.layer == "python"
    assert "a guard failed" in str(found.reasons) and "TORCH_LOGS" in found.remedy


@pytest.mark.parametrize(("graphs", "memory"), [
    (lambda t: 2 + t, lambda t: 0), (lambda t: 40, lambda t: 1.5 * t), (lambda t: min(40, 4 * t), lambda t: 1.5 * t),
    (lambda t: 2 + t, lambda t: 40 + 30 * ((t * 7) % 5 - 2))])
def test_compiling_at_the_start_or_without_growth_is_none(graphs, memory):
    assert findings(recompiles, compiled(graphs, memory)) == []
