"""Blocks of an allocator joined to the storages of a heap."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakscope.analyse.ownership import KINDS, Ownership, join
from leakscope.heap.blocks import Blocks
from tests.heaps import heap

MIB = 1 << 20
SERVER = """
    module app
    app .tensors -> list:list
    list [*] -> tensor:torch.Tensor x3
    tensor <storage> -> store:storage x3 1MiB on cuda:0
    device cuda:0 8GiB
    segment cuda:0 64MiB
    blocks store
    block 8519680B
    block 2MiB
    block 1MiB pending
    segment cuda:0 4MiB pool 1
    block 3MiB
"""


def joined(text: str, **changes: object) -> Ownership:
    graph = heap(text)
    return join(graph, Blocks.of({**graph.devices, **changes}))


def test_every_allocated_byte_is_owned_or_a_workspace_or_has_no_owner():
    owned = joined(SERVER).of_device("cuda:0")
    assert owned.owned_bytes == 3 * MIB and (owned.workspace_bytes, owned.workspace_count) == (8_519_680, 1)
    assert owned.private_bytes == 3 * MIB and owned.unowned_bytes == 2 * MIB and owned.without_owner_bytes == 5 * MIB
    assert owned.allocated_bytes == 8 * MIB + 8_519_680


def test_a_block_knows_its_storage_and_a_free_or_pending_one_has_none():
    graph = heap(SERVER)
    found = join(graph, Blocks.of(graph.devices))
    assert [KINDS[row] for row in found.kind.tolist()] == [
        "owned", "owned", "owned", "workspace", "unowned", "pending", "free", "private-pool", "free"]
    assert found.owner[:3].tolist() == graph.storage_node.tolist() and set(found.owner[3:].tolist()) == {-1}


def test_a_workspace_is_what_the_device_says_and_nothing_else():
    devices = [{"name": "cuda:0", "ordinal": 0, "cublas_workspace_bytes": 2 * MIB}]
    owned = joined(SERVER, devices=devices).of_device("cuda:0")
    assert owned.workspace_bytes == 2 * MIB and owned.unowned_bytes == 8_519_680


def test_storages_within_one_block_of_a_sub_allocator_own_it_once():
    text = """
        module app
        app .pool -> a:torch.Tensor
        app .view -> b:torch.Tensor
        a <storage> -> storage 1MiB on cuda:0 data 0x7f0000000100
        b <storage> -> big:storage 2MiB on cuda:0 data 0x7f0000200000
        segment cuda:0 20MiB
        block 16MiB
    """
    graph = heap(text)
    found = join(graph, Blocks.of(graph.devices))
    assert found.of_device("cuda:0").owned_bytes == 16 * MIB
    assert graph.shallow_bytes[found.owner[0]] == 2 * MIB


def test_without_a_map_of_blocks_only_the_sums_are_known():
    stats = [{"name": "cuda:0", "ordinal": 0, "stats": {"allocated_bytes.all.current": 5 * MIB}}]
    found = joined(SERVER, segments=[], devices=stats, backend="cudaMallocAsync")
    owned = found.of_device("cuda:0")
    assert not found.is_by_block and owned.owned_bytes == 3 * MIB and owned.unowned_bytes == 2 * MIB
    assert owned.workspace_bytes is None and owned.private_bytes is None


def test_a_device_of_which_nobody_said_anything_is_not_zero():
    assert joined(SERVER, segments=[], devices=[{"name": "cuda:0", "ordinal": 0}]).of_device("cuda:0") is None


def test_a_walk_without_addresses_gives_sums_and_no_owners():
    graph = heap(SERVER)
    graph.storage_node, graph.storage_address = graph.storage_node[:0], graph.storage_address[:0]
    found = join(graph, Blocks.of(graph.devices))
    assert not found.is_by_block and set(found.owner.tolist()) == {-1}
    assert found.of_device("cuda:0").owned_bytes == 3 * MIB


@pytest.mark.parametrize("device", ["cuda:1", "xpu:0"])
def test_devices_are_told_apart(device):
    text = SERVER + f"""
        app .other -> o:torch.Tensor
        o <storage> -> far:storage 4MiB on {device}
        segment {device} 20MiB
        blocks far
    """
    graph = heap(text)
    said = {**graph.devices}
    if device == "xpu:0":
        said["segments"] = [each for each in said["segments"] if each["address"] >> 38 != 0x7F00_0000_0000 >> 38][-1:]
        said["devices"] = [{"name": "xpu:0", "ordinal": 0}]
        said["provider"] = "xpu"
    assert join(graph, Blocks.of(said)).of_device(device).owned_bytes == 4 * MIB


@given(st.lists(st.tuples(st.integers(1, 40), st.sampled_from(["active_allocated", "active_pending_free", "inactive"]),
                          st.booleans(), st.integers(0, 1)), max_size=30))
def test_the_parts_add_up_to_what_is_allocated_whatever_the_map(rows):
    graph = heap("module app\napp .t -> t:torch.Tensor\nt <storage> -> storage 1KiB on cuda:0")
    at, blocks, data = 1 << 40, [], []
    for pages, state, has_storage, offset in rows:
        blocks.append({"address": at, "size": 512 * pages, "requested_size": 512 * pages, "state": state, "frames": -1})
        data += [at + offset] * has_storage
        at += 512 * pages
    graph.storage_address = np.array(data, "u8")
    graph.storage_node = np.full(len(data), 2, "u4")
    said = {"devices": [{"name": "cuda:0", "ordinal": 0}],
            "segments": [{"device": 0, "address": 1 << 40, "total_size": at - (1 << 40) or 512, "blocks": blocks}]}
    made = Blocks.of(said)
    found = join(graph, made)
    allocated = made.totals(1).allocated
    owned = found.of_device("cuda:0")
    if found.is_by_block:
        assert owned.owned_bytes + owned.workspace_bytes + owned.without_owner_bytes == allocated == owned.allocated_bytes
    else:
        assert owned.owned_bytes + owned.without_owner_bytes == allocated
