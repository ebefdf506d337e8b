"""What a snapshot says of devices: read, damaged, joined with the storages of the walk."""

from __future__ import annotations

import json

import numpy as np
import pytest

from leakscope.agent import format as layout
from leakscope.heap import columns, devices
from leakscope.heap.blocks import Blocks
from leakscope.heap.device_codes import device_code, device_name
from leakscope.heap.load import Stored, load
from tests.heap.test_load import written
from tests.heaps import heap

MODEL = """
    module app
    app .weights -> weight:torch.Tensor x4
    weight <storage> -> store:storage x4 1MiB on {device}
    device cuda:0 8GiB
    segment cuda:0 20MiB
    block 2MiB
    blocks store frames init@model.py:7 < main@app.py:3
"""


@pytest.mark.parametrize("name", ["host", "cuda:0", "cuda:7", "xpu:0", "xpu:3", "mps:0"])
def test_a_device_has_one_code(name):
    assert device_name(device_code(name)) == name


def test_what_is_no_known_device_is_the_host():
    assert [device_code(name) for name in ("meta", "cuda:x", "tpu:0", "")] == [0, 0, 0, 0]


def test_a_snapshot_without_devices_has_none_and_no_reason(tmp_path):
    stored = Stored(written(heap("module app"), tmp_path), {})
    assert stored.devices is None and stored.why_no_devices == "" and stored.load().devices is None


@pytest.mark.parametrize("text", ['{"format": 1, "segm', "[]", '{"format": 99}', '{"format": 1, "segments": 7}', "\x00"])
def test_damaged_devices_are_none_with_a_sentence_and_the_heap_stays(tmp_path, text):
    stored = Stored(written(heap(MODEL, device="cuda:0"), tmp_path), {})
    (tmp_path / layout.DEVICES_FILE).write_text(text)
    assert stored.devices is None and stored.why_no_devices.endswith(".")
    assert stored.load().node_count == 9 and stored.load().devices is None


def test_tensors_get_the_frames_that_the_allocator_recorded(tmp_path):
    graph = load(written(heap(MODEL, device="cuda:0"), tmp_path))
    rows = graph.block_site[graph.storage_node]
    assert {graph.sites[row]["frames"][0][2] for row in rows.tolist()} == {"init"}
    assert np.count_nonzero(graph.block_site) == 4


def test_storages_of_a_simulated_device_count_as_on_it_and_others_stay_where_they_are():
    graph = heap(MODEL, device="host")
    assert not graph.device.any()
    said = {**graph.devices, "simulated": True}
    assert set(devices.joined(graph, said).device[graph.storage_node].tolist()) == {1}
    assert not devices.joined(graph, {**said, "segments": []}).device.any()


def test_a_storage_within_a_block_is_found_and_one_behind_it_is_not():
    blocks = Blocks.of({"segments": [{"device": 0, "address": 4096, "blocks": [
        {"size": 512, "state": "active_allocated"}, {"size": 512, "state": "inactive"},
        {"size": 512, "state": "active_pending_free"}]}]})
    assert blocks.holding(np.array([4095, 4096, 4600, 4608, 5120, 5632], "u8")).tolist() == [-1, 0, 0, 1, 2, -1]
    assert blocks.is_used.tolist() == [True, False, True]


def test_segments_of_xpu_are_on_xpu():
    said = {"provider": "xpu", "segments": [{"device": 1, "address": 64, "blocks": [{"size": 8, "state": "active_allocated"}]}]}
    assert Blocks.of(said).device.tolist() == [129]


@pytest.mark.parametrize("segment", [7, {}, {"blocks": [3, {"size": "x"}, {"size": 5, "address": "y"}]}, {"blocks": None}])
def test_what_cannot_be_read_of_a_segment_is_left_out(segment):
    addresses = np.array([0, 1, 4, 64, 4096, 1 << 40], "u8")
    assert (Blocks.of({"segments": [segment]}).holding(addresses) == -1).all()


def test_the_addresses_of_storages_are_packed_with_the_rest(tmp_path):
    folder = written(heap(MODEL, device="cuda:0"), tmp_path)
    before = load(folder).storage_address.tolist()
    assert columns.pack(folder) and not (folder / "storage_address.npy").exists()
    assert load(folder).storage_address.tolist() == before and len(before) == 4


def test_an_old_pack_without_addresses_is_read(tmp_path):
    folder = written(heap("module app"), tmp_path)
    for name in columns.STORAGE_COLUMNS:
        (folder / f"{name}.npy").unlink()
    assert columns.pack(folder) and len(load(folder).storage_node) == 0


def test_frames_that_cannot_be_read_give_no_site(tmp_path):
    graph = heap(MODEL, device="cuda:0")
    said = json.loads(json.dumps(graph.devices))
    assert not devices.joined(graph, {**said, "frames": [7]}).block_site.any() or (
        devices.joined(graph, {**said, "frames": [7]}).sites[-1] is None)


@pytest.mark.parametrize("name", ["cuda:127", "cuda:999", "xpu:64", "mps:64"])
def test_a_device_that_no_code_is_left_for_is_not_taken_for_another(name):
    assert device_code(name) == 0


BROKEN = [None, True, -1, 1 << 63, 1 << 70, 1e300, float("inf"), float("nan"), "x", [], [[]], {}, {"a": 1}]


def said_of_devices():
    block = {"address": 4096, "size": 1 << 20, "requested_size": 1000, "state": "active_allocated", "frames": 0}
    return {"format": 1, "provider": "cuda", "simulated": True, "devices": [{"name": "cuda:0", "ordinal": 0}],
            "settings": {"backend": "native"}, "libraries": ["libnccl"], "frames": [[["a.py", 3, "f"]]],
            "segments": [{"device": 0, "address": 4096, "total_size": 1 << 20, "stream": 0, "segment_pool_id": [0, 0],
                          "blocks": [block]}]}


def places(value, at=()):
    yield at
    if isinstance(value, (dict, list)):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*at, key))


@pytest.mark.parametrize("at", [at for at in places(said_of_devices()) if at], ids=str)
def test_whatever_stands_in_a_field_it_stops_no_report(tmp_path, at):
    graph = heap("module app\napp .x -> t:torch.Tensor x2\nt <storage> -> m:storage x2 1MiB data 4096")
    for value in BROKEN:
        said = said_of_devices()
        inner = said
        for key in at[:-1]:
            inner = inner[key]
        inner[at[-1]] = value
        (tmp_path / layout.DEVICES_FILE).write_text(json.dumps(said))
        stored = Stored(tmp_path, {})
        assert stored.devices is not None or stored.why_no_devices
        if stored.devices is not None:
            devices.joined(graph, stored.devices)
            Blocks.of(stored.devices)
