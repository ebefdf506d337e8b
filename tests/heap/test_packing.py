"""Packed snapshots: the same graph from a small file, whole at every moment."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from leakscope.agent import format as layout
from leakscope.errors import SessionError
from leakscope.heap import columns, packing
from leakscope.heap.load import load
from tests.heap.test_load import SHOP, refusal, written
from tests.heaps import heap

DTYPES = columns.DTYPES


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    return written(heap(SHOP, t_s=4.0), tmp_path)


@pytest.fixture
def packed(snapshot: Path) -> Path:
    assert columns.pack(snapshot)
    return snapshot


def test_a_packed_snapshot_is_the_same_graph(packed):
    graph, found = heap(SHOP, t_s=4.0), load(packed)
    for name, dtype in DTYPES.items():
        assert getattr(found, name).tolist() == getattr(graph, name).tolist(), name
        assert getattr(found, name).dtype == np.dtype(dtype)
    for name in ("strings", "types", "sites", "bounds", "caches", "info"):
        assert getattr(found, name) == getattr(graph, name), name


def test_only_the_pack_and_what_says_that_it_is_complete_are_left(packed):
    assert sorted(path.name for path in packed.iterdir()) == [layout.PACK_FILE, layout.DONE_FILE]


def test_columns_that_a_walk_left_out_stay_left_out(snapshot):
    for name in columns.OPTIONAL + tuple(layout.SAMPLED_COLUMNS):
        (snapshot / f"{name}.npy").unlink()
    assert columns.pack(snapshot)
    found = load(snapshot)
    assert found.birth.tolist() == [0] * found.node_count and not len(found.sample_node)


def test_an_empty_heap_is_packed_too(tmp_path):
    assert columns.pack(written(heap(""), tmp_path)) and load(tmp_path).node_count == 0


@pytest.mark.parametrize("name", ["address", "edge_target", "edge_start", "shallow_bytes", "state"])
@settings(deadline=None, max_examples=30)
@given(data=st.data())
def test_every_column_comes_back_whatever_is_in_it(tmp_path_factory, name, data):
    column = data.draw(arrays(DTYPES[name], st.integers(0, 20)))
    path = tmp_path_factory.mktemp("pack") / "columns.pack"
    packing.write(path, {name: column}, {"strings": []})
    found, names = packing.read(path, DTYPES)
    assert found[name].tolist() == column.tolist() and names == {"strings": []}


def test_a_heap_in_the_order_of_its_discovery_takes_little_room(tmp_path):
    count = 10_000
    graph = heap(f"module app\napp .cache -> cache:dict\ncache [*] -> order:shop.Order x{count}\norder .parts -> dict x{count}")
    assert columns.pack(written(graph, tmp_path))
    assert (tmp_path / layout.PACK_FILE).stat().st_size < 4 * graph.node_count


@pytest.mark.parametrize("length", [0, 5, 16, 40, 400, -1])
def test_a_pack_that_is_cut_short_is_refused_in_one_sentence(packed, length):
    path = packed / layout.PACK_FILE
    path.write_bytes(path.read_bytes()[:length])
    assert "columns.pack is cut short or damaged" in refusal(packed)


def test_no_changed_byte_of_a_pack_goes_unseen_or_breaks_more_than_the_snapshot(packed):
    path = packed / layout.PACK_FILE
    content, whole = path.read_bytes(), load(packed)
    for place in range(0, len(content), 13):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0x15]) + content[place + 1:])
        try:
            found = load(packed)
        except SessionError as error:
            assert error.sentence.endswith(".")
        else:  # a constant in the header: nothing can tell it from another one that is allowed there
            assert found.node_count == whole.node_count


def test_a_pack_that_leaves_a_column_out_is_refused(packed):
    found, names = packing.read(packed / layout.PACK_FILE, DTYPES)
    del found["edge_label"]
    packing.write(packed / layout.PACK_FILE, found, names)
    assert "columns.pack has no column edge_label" in refusal(packed)


def test_a_damaged_snapshot_is_not_packed_but_kept_as_it_is(snapshot):
    (snapshot / "kind.npy").write_bytes(b"")
    before = sorted(path.name for path in snapshot.iterdir())
    assert not columns.pack(snapshot) and sorted(path.name for path in snapshot.iterdir()) == before


def test_a_kill_while_raw_files_are_removed_leaves_a_whole_snapshot_that_is_tidied_up_the_next_time(snapshot, tmp_path_factory):
    copy = tmp_path_factory.mktemp("copy") / "snapshot"
    shutil.copytree(snapshot, copy)
    columns.pack(snapshot)
    shutil.copy(snapshot / layout.PACK_FILE, copy)
    (copy / "address.npy").unlink()
    assert load(copy).node_count == heap(SHOP).node_count
    assert columns.pack(copy) and not list(copy.glob("*.npy"))


def test_a_reader_that_looks_while_it_is_packed_finds_it(snapshot, monkeypatch):
    def vanish(path: Path) -> dict[str, object]:
        monkeypatch.undo()
        columns.pack(snapshot)
        return columns.read_json(path)

    monkeypatch.setattr(columns, "read_json", vanish)
    assert len(columns.read(snapshot)[0]["address"]) == heap(SHOP).node_count


def test_a_snapshot_that_the_agent_lets_go_of_meanwhile_leaves_nothing_behind(snapshot, monkeypatch):
    write = packing.write

    def dropped(path: Path, *rest: object) -> None:
        write(path, *rest)
        for file in snapshot.iterdir():
            if file != path:
                file.unlink()

    monkeypatch.setattr(packing, "write", dropped)
    columns.pack(snapshot)
    assert not snapshot.exists()


def test_a_full_disk_leaves_the_raw_files(snapshot, monkeypatch):
    def full(path: Path, *rest: object) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(packing, "write", full)
    with pytest.raises(OSError, match="No space"):
        columns.pack(snapshot)
    assert load(snapshot).node_count and not list(snapshot.glob(".*"))


def test_the_header_can_be_read_by_hand(packed):
    content = (packed / layout.PACK_FILE).read_bytes()
    assert content.startswith(layout.PACK_MAGIC)
    header = json.loads(content[16:16 + int.from_bytes(content[8:16], "little")])
    assert header["columns"]["address"]["coding"] == "steps" and set(header["columns"]) == set(DTYPES)
