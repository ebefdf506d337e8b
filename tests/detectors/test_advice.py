"""Remedies for devices: every "never" of the knowledge page is a test over all surroundings."""

from __future__ import annotations

import itertools

import pytest

from leakscope.detectors import _advice
from leakscope.detectors._advice import Surroundings, advice, remedy

TOPICS = sorted({row.topic for row in _advice.TABLE})
EVERYWHERE = [
    Surroundings(provider, backend, {"torch": torch}, "off", settings, frozenset(loaded), graphs)
    for provider, backend, torch, settings, loaded, graphs in itertools.product(
        ("cuda", "rocm"), ("native", "cudaMallocAsync"), ("", "2.0.1", "2.11.0", "2.13.0+cu130"),
        ({"max_split_size": 128 << 20}, {"expandable_segments": True}), ((), ("torch_memory_saver",), ("vllm", "cupy")),
        (None, False, True))
]


def said(around):
    return remedy(around, *TOPICS)


@pytest.fixture(scope="module")
def sayings():
    return [(around, said(around)) for around in EVERYWHERE]


def test_nothing_is_cleared_where_graphs_may_be_captured(sayings):
    for around, text in sayings:
        if around.has_graphs is not False:
            for word in ("cache() gives", "cache() at", "clearCublasWorkspaces", "empty_host_cache"):
                assert word not in text


def test_where_no_graph_is_captured_clearing_is_said():
    text = said(Surroundings(versions={"torch": "2.13.0"}, has_graphs=False))
    assert all(word in text for word in ("empty_cache() gives", "clearCublasWorkspaces", "empty_host_cache"))


def test_expandable_segments_are_not_recommended_where_they_are_on_or_cannot_be(sayings):
    for around, text in sayings:
        fits = (not around.settings.get("expandable_segments") and around.provider == "cuda" and around.backend == "native"
                and around.versions["torch"] not in ("", "2.0.1") and not around.loaded & {"torch_memory_saver", "vllm"})
        assert ("expandable_segments:True" in text) == fits


@pytest.mark.parametrize("value", [True, "True", "true", 1])
def test_a_setting_is_on_however_it_is_written(value):
    around = Surroundings(versions={"torch": "2.13.0"}, settings={"expandable_segments": value})
    assert "expandable" not in remedy(around, "fragmentation")


@pytest.mark.parametrize("value", [False, "False", None, -1, 0, (1 << 63) - 1])
def test_a_setting_at_its_neutral_value_is_off(value):
    text = remedy(Surroundings(versions={"torch": "2.13.0"}, settings={"max_split_size": value}), "fragmentation")
    assert "max_split_size_mb" in text


def test_a_setting_for_each_size_is_on_where_one_of_them_is():
    neutral = Surroundings(settings={"roundup_power2_divisions": {"256": 0, "512": 0}})
    assert "roundup" not in remedy(neutral, "rounding")
    for value in ({"256": 0, "512": 4}, "[256:1;>:4]", 4):
        around = Surroundings(settings={"roundup_power2_divisions": value})
        assert "Take roundup_power2_divisions out" in remedy(around, "rounding")


@pytest.mark.parametrize("library", ["torch_memory_saver", "vllm", "cumem_allocator", "torch_memory_saver.abi3"])
def test_pools_with_pages_of_their_own_exclude_expandable_segments(library):
    assert "expandable" not in remedy(Surroundings(versions={"torch": "2.13.0"}, loaded=frozenset({library})), "fragmentation")


def test_an_interface_is_named_only_to_a_torch_that_has_it(sayings):
    for around, text in sayings:
        minor = int((around.versions["torch"] or "0.0").split(".")[1])
        assert minor >= 12 or "empty_host_cache" not in text
        assert minor >= 13 or "pinned_max" not in text
        assert minor >= 5 or "MemPool takes" not in text


def test_a_bound_that_is_set_is_not_recommended_again():
    assert "pinned_max_cached_size_mb" not in remedy(
        Surroundings(versions={"torch": "2.13.0"}, settings={"pinned_max_cached_size_mb": 64}), "pinned")


def test_recording_is_asked_for_step_by_step():
    assert "--gpu state" in remedy(Surroundings(versions={"torch": "2.13.0"}), "evidence")
    assert "--gpu trace" in remedy(Surroundings(versions={"torch": "2.13.0"}, recording="state"), "evidence")
    assert remedy(Surroundings(versions={"torch": "2.13.0"}, recording="trace"), "evidence") == ""
    assert "backend:native" in remedy(Surroundings(versions={"torch": "2.13.0"}, backend="cudaMallocAsync"), "evidence")


def test_only_libraries_that_are_loaded_are_spoken_of():
    assert "CuPy" not in remedy(Surroundings(), "outside")
    assert "CuPy" in remedy(Surroundings(loaded=frozenset({"cupy"})), "outside")
    assert "RECORD_STREAMS" in remedy(Surroundings(loaded=frozenset({"libnccl.so.2"})), "deferred")


def test_every_topic_but_that_of_evidence_has_something_to_say_where_clearing_is_possible():
    for topic in TOPICS:
        assert advice(topic, Surroundings(versions={"torch": "2.13.0"}, has_graphs=False)), topic


def test_an_unknown_topic_is_refused():
    with pytest.raises(KeyError):
        remedy(Surroundings(), "weather")
