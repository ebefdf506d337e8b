"""The chapter on a device as it comes out of a case: two simulated hours of a server, and a host without a device."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from leakscope.commands import _device_chapter
from leakscope.heap.device_codes import device_code
from leakscope.model import Location
from leakscope.render import html, json, markdown
from leakscope.report import DeviceChapter
from tests.detectors.cases import case as host_case
from tests.render import h200
from tests.render.h200 import EMBEDDING_BYTES, GIB, LAYER_BYTES, LAYERS

MIB = 1 << 20


@cache
def chapter() -> DeviceChapter:
    (found,) = _device_chapter.chapters(h200.case())
    return found


def test_a_process_without_a_device_has_no_chapter():
    assert _device_chapter.chapters(host_case("module app\napp .x -> list x{n}", n=[1, 2, 3])) == ()


def test_the_terms_add_up_to_what_is_used_and_so_does_their_growth():
    wholes = {term.name: term for term in chapter().wholes}
    used = wholes["used"]
    assert sum(term.growth_bytes for term in chapter().terms) == pytest.approx(used.growth_bytes, abs=len(chapter().terms))
    assert sum(term.start_bytes for term in chapter().terms) == pytest.approx(used.start_bytes, abs=len(chapter().terms))
    assert chapter().growth_bytes == used.growth_bytes


def test_the_owners_are_named_by_path_with_what_they_retain_how_they_grew_and_where_it_was_made():
    weights, cache_, tails = chapter().owners
    assert (weights.path, weights.retained_bytes, weights.growth_bytes, weights.count) == (
        "serve.model.layers[*].weight", LAYERS * LAYER_BYTES, 0, LAYERS)
    assert (cache_.path, cache_.retained_bytes, cache_.growth_bytes) == (
        "serve.client._tensor_cache[*]", 464 * EMBEDDING_BYTES, 420 * EMBEDDING_BYTES)
    assert (cache_.site.function, cache_.site.file, cache_.site.line) == ("EmbeddingClient.embed", "serve.py", 61)
    assert tails.path == "serve.batcher._tails[*]"


def test_what_the_owners_retain_is_what_the_join_calls_owned():
    case = h200.case()
    (device,) = case.devices
    (found,) = _device_chapter.chapters(case)
    owned = device.snapshots[-1].ownership.of_device("cuda:0").owned_bytes
    # the allocator's blocks are rounded up: the storages of tails are 1 MiB in blocks of a little more
    assert 0 <= owned - sum(owner.retained_bytes for owner in found.owners) < 8 * MIB
    assert device.code == device_code("cuda:0")


def test_each_segment_is_told_or_counted_and_its_parts_add_up_to_it():
    (device,) = h200.case().devices
    every = int((device.snapshots[-1].blocks.segments.device == device.code).sum())
    assert sum(row.count for row in chapter().segments) + chapter().segments_left_out == every
    assert all(sum(part.size_bytes for part in row.parts) == row.size_bytes for row in chapter().segments)
    weights = next(row for row in chapter().segments if row.size_bytes == LAYER_BYTES)
    assert weights.count == LAYERS and [part.owner for part in weights.parts] == [0]
    assert [row.size_bytes for row in chapter().segments if row.pool == "1.0"] == [192 * MIB, 96 * MIB, 48 * MIB]


def test_small_results_in_large_segments_are_told_as_what_pins_them():
    found = chapter().fragmentation
    pin = found.pins[0]
    assert (pin.owner, pin.owner_share_ratio) == ("serve.batcher._tails[*]", 1.0)
    assert (pin.segment_bytes, pin.keeps_bytes) == (144 * MIB, pin.segment_bytes - pin.size_bytes)
    assert pin.site == Location("Batcher.run", "serve.py", 88)
    assert found.largest_free_bytes == pin.keeps_bytes
    first = chapter().segments[0]
    assert [part.is_pinning for part in first.parts] == [True, False]


def test_the_lines_of_the_timeline_and_the_largest_free_block_at_the_snapshots():
    lines = {line.name: line for line in chapter().series}
    assert list(lines) == ["process_bytes", "reserved_bytes", "allocated_peak_bytes", "allocated_bytes", "used_bytes",
                           "largest_free_bytes"]
    assert [t_s for t_s, _ in lines["largest_free_bytes"].points] == [60.0 * minute for minute in h200.SNAPSHOTS]
    assert lines["largest_free_bytes"].is_sparse


def test_the_kernel_cache_is_told_with_the_argument_that_varies_and_one_that_stands_still_is_not():
    kernels = next(row for row in chapter().caches if row.name == "flashinfer.prefill.get_batch_prefill_module()")
    assert (kernels.entries, kernels.varies_by) == ((50, 120, 208, 313, 418), "value")
    assert kernels.varying == "argument 3 (`max_seq_len`), integers 17 to 4096, looks like token counts"
    still = replace(kernels, entries=(5, 5, 5, 5, 5), evictions=(0, 0, 0, 0, 0))
    assert _device_chapter._caches([still], h200.case().devices[0], h200.case().devices) == ()


def test_it_is_said_that_the_device_is_simulated_and_how_it_was_set():
    assert chapter().is_simulated and chapter().provider == "recorded" and chapter().total_bytes == 139 * GIB
    assert dict(chapter().settings)["Recording"] == "state"


def test_the_report_of_the_two_hours_blames_the_cache_and_says_simulated_on_every_face(tmp_path: Path):
    report = h200.report(tmp_path)
    assert report.verdict.kind.value == "gpu-leak" and report.findings[0].owner.endswith("_tensor_cache")
    assert all("imulated" in text for text in (html.text_of(report), markdown.text_of(report), json.text_of(report)))
