"""Piles of objects whose memory lies on a device: their classes, and what each is not. Heaps of the DSL, simulated devices."""

from __future__ import annotations

import math
from typing import Any

import pytest

from leakscope import proof
from leakscope.case import Case
from leakscope.detectors import device_garbage, kept_autograd, kept_frames, kv_caches, piled_tensors, tensor_cache
from leakscope.heap.devices import joined
from leakscope.model import Confidence, Dismissed, Finding
from tests.detectors.cases import detected, timeline
from tests.heaps import series

MIB = 1 << 20
COUNTS = [100, 200, 300, 400]
DEVICE = """
    device cuda:0 1GiB
    segment cuda:0 1GiB
    blocks store frames embed@serve.py:12 < handle@serve.py:40
"""
TENSORS = """
    module serve
    serve .store -> owner:serve.Store
    owner ._by_id -> cache:dict
    cache [*] -> tensor:torch.Tensor x{n} 120B
    tensor <storage> -> store:storage x{n} 1MiB on cuda:0
"""


def case(text: str, allocated: Any = None, counts: list[int] | None = None, **columns: Any) -> Case:
    """A process whose host stands still and whose device has 1 MiB more for each entry, unless `allocated` says otherwise."""
    numbers = counts or COUNTS
    graphs = series(text, n=numbers)
    for graph in graphs:
        graph.info.update({"gc": {"enabled": True, "thresholds": [700, 10, 10]}, "t_ns": graph.info["t_ns"] + 5 * 10**9})
    length = 10.0 * (len(numbers) - 1) + 10
    course = allocated or (lambda t: (50 + 10 * t) * MIB)
    rows = timeline(length, rss_bytes=90 * MIB, anon_bytes=80 * MIB, cuda0_allocated_bytes=course, cuda0_active_bytes=course,
                    cuda0_reserved_bytes=lambda t: max(course(x / 2) for x in range(int(2 * t) + 1)) + 4 * MIB,
                    cuda0_inactive_split_bytes=MIB, **columns)
    return Case(graphs, rows)


def findings(module: Any, examined: Case) -> list[Finding]:
    return [proof.completed(examined, each) for each in module.detect(examined) if isinstance(each, Finding)]


# --- 1: containers -----------------------------------------------------------------------------------------------------


def test_tensors_that_pile_up_on_a_device_are_found_with_their_bytes_there():
    (found,) = findings(piled_tensors, case(TENSORS + DEVICE))
    assert found.rule.code == "LS401" and found.layer == "cuda:0" and found.owner == "serve.store._by_id"
    assert found.growth_bytes["cuda:0"] == pytest.approx(300 * MIB, rel=0.01) and found.growth_bytes["host"] < MIB
    assert found.retained_bytes["cuda:0"] == 400 * MIB and found.retained_bytes["host"] < MIB
    assert found.share_of_growth_ratio > 0.9 and found.confidence is Confidence.HIGH
    assert any("what is allocated on cuda:0 rises by" in text for _, text in found.evidence)


def test_the_allocators_frames_are_the_site():
    (found,) = findings(piled_tensors, case(TENSORS + DEVICE))
    assert (found.site.function, found.site.file, found.site.line) == ("embed", "serve.py", 12)
    assert any("exact" in reason for reason in found.reasons)


def test_no_rule_about_the_host_takes_a_pile_of_a_device():
    found, _ = detected(case(TENSORS + DEVICE))
    assert [each.rule.code for each in found if not each.rule.code.startswith("LS4")] == []


def test_the_same_tensors_on_the_host_are_what_they_always_were():
    graphs = series((TENSORS + "\n").replace("on cuda:0", ""), n=COUNTS)
    rows = timeline(31, rss_bytes=lambda t: (90 + 10 * t) * MIB, anon_bytes=lambda t: (80 + 10 * t) * MIB)
    found, _ = detected(Case(graphs, rows))
    assert [each.rule.code for each in found] == ["LS101"] and set(found[0].growth_bytes) == {"host"}


def test_a_pile_that_levels_off_is_dismissed():
    examined = case(TENSORS + DEVICE, lambda t: 300 * MIB * (1 - math.exp(-t / 4)), [100, 290, 299, 301])
    assert findings(piled_tensors, examined) == []
    assert any(isinstance(each, Dismissed) and "levels off" in each.why for each in piled_tensors.detect(examined))


def test_tensors_that_come_and_go_are_no_pile():
    examined = case(TENSORS + DEVICE, lambda t: (300 + 200 * math.sin(t)) * MIB, [300, 100, 400, 200])
    assert list(piled_tensors.detect(examined)) == []


def test_a_pile_on_a_device_that_did_not_grow_cannot_be_blamed():
    (found,) = findings(piled_tensors, case(TENSORS + DEVICE, lambda t: 500 * MIB))
    assert found.confidence is Confidence.LOW
    assert any("far less than" in doubt for doubt in found.doubts)


def test_a_pile_of_a_few_bytes_on_a_device_is_no_claim():
    text = TENSORS.replace("1MiB on", "2KiB on") + DEVICE
    found = findings(piled_tensors, case(text, lambda t: 50 * MIB + t * 20480))
    assert found and all(each.confidence is Confidence.LOW for each in found)


def test_what_was_not_measured_is_a_doubt():
    (found,) = findings(piled_tensors, case(TENSORS))
    assert any("not measured: the map of its blocks" in doubt for doubt in found.doubts)
    assert any("NVML" in doubt for doubt in found.doubts)


def test_the_host_part_and_the_device_part_of_a_pile_are_told_apart():
    text = TENSORS + "    tensor .meta -> serve.Meta x{n} 256KiB\n" + DEVICE
    (found,) = findings(piled_tensors, case(text))
    assert found.growth_bytes["cuda:0"] == pytest.approx(300 * MIB, rel=0.01)
    assert found.growth_bytes["host"] == pytest.approx(75 * MIB, rel=0.02)
    text = text.replace("256KiB", "4MiB")
    found, _ = detected(case(text))
    assert {each.layer for each in found if each.path} == {"python"}


def test_a_preallocated_pool_of_a_server_is_no_pile():
    text = """
        module engine
        engine .pool -> pool:list
        pool [*] -> layer:torch.Tensor x32 120B
        layer <storage> -> store:storage x32 16MiB on cuda:0
    """ + DEVICE + TENSORS.replace("store:storage", "more:storage") + "\n    segment cuda:0 1GiB\n    blocks more"
    (found,) = findings(piled_tensors, case(text))
    assert found.owner == "serve.store._by_id"


# --- 2: caches -----------------------------------------------------------------------------------------------------------

CACHE = """
    module app
    app .embed -> wrapper:functools._lru_cache_wrapper
    wrapper <cache> -> table:dict
    table [^tuple:2] -> key:tuple x{n}
    key [0] -> model:app.Model
    key [1] -> int x{n}
    model <__dict__> -> space:dict
    space ['_parameters'] -> dict
    space ['_modules'] -> dict
    table [tuple:2] -> tensor:torch.Tensor x{n}
    tensor <storage> -> store:storage x{n} 1MiB on cuda:0
    lru wrapper app.Model.embed max none size {n} hits 0 misses {n}
"""


def test_a_cache_of_a_method_that_keeps_tensors_says_that_it_keeps_self():
    (found,) = findings(tensor_cache, case(CACHE + DEVICE))
    assert found.rule.code == "LS402" and found.layer == "cuda:0"
    assert any("argument 1 of its keys is of type app.Model" in reason and "keeps self" in reason for reason in found.reasons)
    assert any("no bound" in reason for reason in found.reasons)
    assert "cached a method" in found.remedy or "cache a method" in found.remedy


def test_the_argument_that_varies_is_named_where_it_was_counted():
    examined = case(CACHE + DEVICE)
    keys = {"positions": [{"types": {"app.Model": 400}, "distinct": 1, "min": None, "max": None},
                          {"types": {"int": 400}, "distinct": 400, "min": 17, "max": 4096}], "samples": []}
    for graph in examined.graphs:
        graph.caches[0]["keys"] = keys
    (found,) = findings(tensor_cache, examined)
    assert "argument 2 varies: 400 different values of type int from 17 to 4096" in found.reasons


def test_a_cache_that_fills_towards_its_bound_is_dismissed():
    assert findings(tensor_cache, case(CACHE.replace("max none", "max 512") + DEVICE)) == []


# --- 9: autograd ---------------------------------------------------------------------------------------------------------

GRAPH = """
    module train
    train .losses -> losses:list
    losses [*] -> loss:torch.Tensor x{n} 120B
    loss <storage> -> own:storage x{n} 512B on cuda:0
    loss .grad_fn -> fn:MeanBackward0 x{n}
    fn <next_functions> -> mul:MulBackward0 x{n}
    mul ._saved_self -> saved:torch.Tensor x{n}
    saved <storage> -> store:storage x{n} 1MiB on cuda:0
"""


def test_losses_in_a_list_are_the_graph_behind_them():
    (found,) = findings(kept_autograd, case(GRAPH + DEVICE + "    blocks own"))
    assert found.rule.code == "LS409" and found.owner == "train.losses" and "detach()" in found.remedy
    assert any("800 nodes" in reason and "400.0 MiB on cuda:0" in reason for reason in found.reasons)
    assert found.growth_bytes["cuda:0"] == pytest.approx(300 * MIB, rel=0.01)


UNSEEN = GRAPH.partition("    mul ._saved")[0] + """
    device cuda:0 1GiB
    segment cuda:0 1GiB
    blocks own
"""


def with_unowned(text: str) -> Case:
    """The case, with 100 blocks of 1 MiB more in each snapshot in which no tensor lies."""
    examined = case(text)
    for number, graph in enumerate(examined.graphs):
        blocks = graph.devices["segments"][0]["blocks"]
        rest = blocks.pop()
        for each in range(100 * number):
            blocks.append({**rest, "address": rest["address"] + each * MIB, "size": MIB, "state": "active_allocated"})
        more = 100 * number * MIB
        blocks.append({**rest, "address": rest["address"] + more, "size": rest["size"] - more})
    examined.graphs = [joined(graph, graph.devices) for graph in examined.graphs]
    return examined


def test_what_the_graph_saved_and_nobody_saw_is_counted_and_doubted():
    (found,) = findings(kept_autograd, with_unowned(UNSEEN))
    assert found.growth_bytes["cuda:0"] > 200 * MIB and any("in which no tensor lies" in doubt for doubt in found.doubts)


def test_where_the_walk_saw_what_the_graph_saved_other_blocks_are_not_its():
    (found,) = findings(kept_autograd, with_unowned(GRAPH + DEVICE + "    blocks own"))
    assert found.growth_bytes["cuda:0"] < 310 * MIB and not any("in which no tensor" in doubt for doubt in found.doubts)


def test_tensors_without_a_graph_are_no_autograd():
    assert findings(kept_autograd, case(TENSORS + DEVICE)) == []


# --- 11: garbage ---------------------------------------------------------------------------------------------------------

CYCLES = """
    module app
    garbage node:app.Step x{n}
    node .next -> back:app.Output x{n}
    back .step -> node
    back .hidden -> tensor:torch.Tensor x{n}
    tensor <storage> -> store:storage x{n} 1MiB on cuda:0
"""


def test_cycles_that_wait_for_the_collector_hold_the_device():
    (found,) = findings(device_garbage, case(CYCLES + DEVICE))
    assert found.rule.code == "LS411" and found.layer == "cuda:0" and found.growth_bytes == {"cuda:0": 300 * MIB}
    assert found.cycle and any("counts objects, not bytes" in reason for reason in found.reasons)
    assert found.confidence is not Confidence.HIGH
    host, _ = detected(case(CYCLES + DEVICE))
    assert "LS201" not in {each.rule.code for each in host}


def test_cycles_that_are_a_small_part_of_the_growth_are_not_to_blame():
    assert findings(device_garbage, case(CYCLES.replace("1MiB on", "64KiB on") + DEVICE)) == []


def test_a_sawtooth_of_garbage_is_dismissed():
    examined = case(CYCLES + DEVICE, lambda t: (100 + 90 * math.sin(3 * t)) * MIB, [300, 100, 350, 120])
    (what,) = device_garbage.detect(examined)
    assert isinstance(what, Dismissed) and what.why.startswith("they come and go")


def test_garbage_without_device_memory_is_nothing_here():
    assert list(device_garbage.detect(case("module app\ngarbage a:app.A x{n} 1MiB\na .b -> b:app.B x{n}\nb .a -> a"))) == []


# --- 12: frames ----------------------------------------------------------------------------------------------------------

ERRORS = """
    module app
    app .failed -> failed:list
    failed [*] -> error:app.OutOfMemoryError x{n}
    error .__traceback__ -> tb:traceback x{n}
    tb <tb_frame> -> frame:frame x{n} 'run() at app.py:12'
    frame ~batch -> tensor:torch.Tensor x{n}
    tensor <storage> -> store:storage x{n} 1MiB on cuda:0
"""


def test_stored_exceptions_keep_the_tensors_of_their_frames():
    (found,) = findings(kept_frames, case(ERRORS + DEVICE))
    assert found.rule.code == "LS412" and found.owner == "app.failed" and "clear_frames" in found.remedy


def test_tensors_in_the_frame_of_one_kept_error_are_found_there():
    text = """
        module app
        app .last_error -> error:app.OutOfMemoryError
        error .__traceback__ -> tb:traceback
        tb <tb_frame> -> frame:frame 'run() at app.py:12'
        frame ~batches -> batches:list
        batches [*] -> tensor:torch.Tensor x{n}
        tensor <storage> -> store:storage x{n} 1MiB on cuda:0
    """
    (found,) = findings(kept_frames, case(text + DEVICE))
    assert any("the tensors hang on" in reason and "~batches" in reason.replace(".batches", "~batches")
               for reason in found.reasons)


def test_finished_tasks_keep_their_results():
    text = """
        module app
        app .tasks -> tasks:list
        tasks [*] -> task:_asyncio.Task x{n} state ended
        task <result> -> tensor:torch.Tensor x{n}
        tensor <storage> -> store:storage x{n} 1MiB on cuda:0
    """
    (found,) = findings(kept_frames, case(text + DEVICE))
    assert "D" in dict(found.evidence)


def test_a_list_in_a_running_function_is_a_container():
    text = """
        root frame main thread 'MainThread'
        main ~results -> results:list
        results [*] -> tensor:torch.Tensor x{n}
        tensor <storage> -> store:storage x{n} 1MiB on cuda:0
    """
    assert findings(kept_frames, case(text + DEVICE)) == []
    assert len(findings(piled_tensors, case(text + DEVICE))) == 1


# --- 22: key and value caches ----------------------------------------------------------------------------------------------

KV = """
    module chat
    chat .sessions -> sessions:dict
    sessions [*] -> output:transformers.generation.utils.GenerateDecoderOnlyOutput x{n}
    output .past_key_values -> kv:transformers.cache_utils.DynamicCache x{n}
    kv .layers -> layers:list x{n}
    layers [0] -> layer:transformers.cache_utils.DynamicLayer x{n}
    layer .keys -> tensor:torch.Tensor x{n}
    tensor <storage> -> store:storage x{n} 1MiB on cuda:0
"""


def test_outputs_that_keep_their_key_and_value_caches_are_named():
    (found,) = findings(kv_caches, case(KV + DEVICE))
    assert found.rule.code == "LS422" and found.owner == "chat.sessions"
    assert any("transformers.cache_utils.DynamicCache" in reason for reason in found.reasons)
    assert "use_cache=False" in found.remedy


def test_a_cache_that_is_no_key_and_value_cache_is_a_container():
    assert findings(kv_caches, case(TENSORS.replace("serve.Store", "serve.ImageCache") + DEVICE)) == []


@pytest.mark.parametrize("module", [piled_tensors, tensor_cache, kept_autograd, kept_frames, kv_caches, device_garbage])
def test_a_process_without_a_device_is_no_business_of_theirs(module):
    text = TENSORS.replace("on cuda:0", "")
    assert list(module.detect(Case(series(text, n=COUNTS), timeline(31, rss_bytes=lambda t: (90 + 10 * t) * MIB)))) == []


# --- all of them: what has ended, and what comes and goes ---------------------------------------------------------------

CLASSES = [(piled_tensors, TENSORS + DEVICE), (tensor_cache, CACHE + DEVICE),
           (kept_autograd, GRAPH + DEVICE + "    blocks own"), (device_garbage, CYCLES + DEVICE),
           (kept_frames, ERRORS + DEVICE), (kv_caches, KV + DEVICE)]


@pytest.mark.parametrize(("module", "text"), CLASSES, ids=lambda each: getattr(each, "__name__", "").rpartition(".")[2])
def test_each_class_is_claimed_while_it_grows_and_not_once_it_has_levelled_off(module, text):
    assert len(findings(module, case(text))) == 1
    ended = case(text, lambda t: 300 * MIB * (1 - math.exp(-t / 4)), [100, 290, 299, 301])
    assert not any(each.confidence is not Confidence.LOW for each in findings(module, ended))


@pytest.mark.parametrize(("module", "text"), CLASSES, ids=lambda each: getattr(each, "__name__", "").rpartition(".")[2])
def test_no_class_is_claimed_where_its_objects_come_and_go(module, text):
    noisy = case(text, lambda t: (300 + 200 * math.sin(t)) * MIB, [300, 100, 400, 200])
    assert not any(each.confidence is not Confidence.LOW for each in findings(module, noisy))
