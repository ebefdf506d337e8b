"""Reading a snapshot folder, whole and damaged."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from leakscope.agent import format as layout
from leakscope.errors import SessionError
from leakscope.heap.columns import DTYPES
from leakscope.heap.graph import HeapGraph
from leakscope.heap.load import OPTIONAL, load
from tests.heaps import heap

SHOP = """
    module app
    app .cache -> cache:dict birth 3 site make@app.py:7
    cache [*] -> order:shop.Order x3 1KiB state ended
    order [3] -> list x3
    root frame main thread 'MainThread'
    main ~order -> order
    main $12 -> cache
    main <storage> -> store:storage 1MiB on cuda:0 data 0x7f0000000000
    bound cache 4096 maxsize
    lru cache app.cache max 4096 size 3 hits 1 misses 3
    samples order 3 512KiB make@app.py:7 at 2.5
    samples - 1 1MiB load@app.py:1 < main@app.py:9 bytes 4096 at 1
"""


def written(graph: HeapGraph, folder: Path) -> Path:
    """A snapshot folder as the agent writes it."""
    for name, dtype in DTYPES.items():
        np.save(folder / f"{name}.npy", getattr(graph, name).astype(dtype))
    names = {"strings": graph.strings, "types": [list(each) for each in graph.types], "sites": graph.sites,
             "bounds": graph.bounds, "caches": graph.caches}
    (folder / layout.NAMES_FILE).write_text(json.dumps(names))
    (folder / layout.DONE_FILE).write_text(json.dumps(graph.info))
    if graph.devices is not None:
        (folder / layout.DEVICES_FILE).write_text(json.dumps(graph.devices))
    return folder


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    return written(heap(SHOP, t_s=4.0), tmp_path)


def change(path: Path, **values: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def refusal(folder: Path) -> str:
    with pytest.raises(SessionError) as caught:
        load(folder)
    assert caught.value.hint and caught.value.sentence.endswith(".") and "\n" not in caught.value.sentence
    return caught.value.sentence


def test_a_snapshot_is_read_back_as_it_was_written(snapshot):
    graph, found = heap(SHOP, t_s=4.0), load(snapshot)
    for name, dtype in (layout.COLUMNS | layout.SAMPLED_COLUMNS).items():
        assert getattr(found, name).tolist() == getattr(graph, name).tolist(), name
        assert getattr(found, name).dtype == np.dtype(dtype)
    for name in ("strings", "types", "sites", "bounds", "caches", "info"):
        assert getattr(found, name) == getattr(graph, name), name
    assert found.t_s == 4.0 and found.edge(1).text == "str:8"


def test_columns_that_a_walk_may_leave_out_are_zeros(snapshot):
    for name in OPTIONAL:
        (snapshot / f"{name}.npy").unlink()
    found = load(snapshot)
    assert all(getattr(found, name).tolist() == [0] * found.node_count for name in OPTIONAL)


def test_a_snapshot_of_a_walk_without_samples_has_none(snapshot):
    for name in layout.SAMPLED_COLUMNS:
        (snapshot / f"{name}.npy").unlink()
    assert len(load(snapshot).sample_node) == 0


def test_samples_of_another_heap_are_refused(snapshot):
    np.save(snapshot / "sample_node.npy", np.array([0, 1, 2, 99], "<u4"))
    assert "sample_node.npy holds 99 where only" in refusal(snapshot)
    np.save(snapshot / "sample_node.npy", np.array([0], "<u4"))
    assert "sample_site.npy has 4 rows where sample_node.npy asks for 1" in refusal(snapshot)


def test_an_empty_heap_is_a_heap(tmp_path):
    assert load(written(heap(""), tmp_path)).node_count == 0


def test_names_of_a_walk_without_sites_and_bounds_are_enough(snapshot):
    names = json.loads((snapshot / layout.NAMES_FILE).read_text())
    for name in ("sites", "bounds", "caches"):
        del names[name]
    (snapshot / layout.NAMES_FILE).write_text(json.dumps(names))
    for name in ("site_id", *layout.SAMPLED_COLUMNS):
        (snapshot / f"{name}.npy").unlink()
    assert load(snapshot).sites == [None]


def test_a_snapshot_without_done_json_is_not_complete(snapshot):
    (snapshot / layout.DONE_FILE).unlink()
    assert "is not complete" in refusal(snapshot)


def test_a_later_format_is_refused_with_the_way_to_read_it(snapshot):
    change(snapshot / layout.DONE_FILE, format=2)
    with pytest.raises(SessionError, match=r"format 2; this version reads format 1") as caught:
        load(snapshot)
    assert "pip install --upgrade" in caught.value.hint


@pytest.mark.parametrize("name", [name for name in layout.COLUMNS if name not in OPTIONAL])
def test_a_missing_column_is_named(snapshot, name):
    (snapshot / f"{name}.npy").unlink()
    assert f"{name}.npy is missing" in refusal(snapshot)


@pytest.mark.parametrize("name", layout.COLUMNS)
@pytest.mark.parametrize("kept", [0, 5, 100, -1])
def test_a_column_that_is_cut_short_at_any_place_is_named(snapshot, name, kept):
    path = snapshot / f"{name}.npy"
    path.write_bytes(path.read_bytes()[:kept])
    assert f"{name}.npy is cut short" in refusal(snapshot)


@pytest.mark.parametrize("name", layout.COLUMNS)
def test_a_column_of_another_type_or_shape_is_named(snapshot, name):
    column = np.load(snapshot / f"{name}.npy")
    for wrong in (column.astype("<i8"), column.reshape(1, -1), column.astype(column.dtype.newbyteorder(">")).astype(">f4")):
        np.save(snapshot / f"{name}.npy", wrong)
        assert f"{name}.npy holds" in refusal(snapshot)


@pytest.mark.parametrize("name", layout.COLUMNS)
def test_a_column_with_a_row_too_many_is_refused(snapshot, name):
    column = np.load(snapshot / f"{name}.npy")
    np.save(snapshot / f"{name}.npy", np.append(column, column[-1:]))
    assert "rows" in refusal(snapshot)


def test_columns_that_agree_but_not_with_done_json_are_refused(snapshot):
    change(snapshot / layout.DONE_FILE, edge_count=1)
    assert "done.json says 1" in refusal(snapshot)


@pytest.mark.parametrize("name", [
    "edge_target", "root_node", "type_id", "label", "site_id", "kind", "state", "root_kind", "root_label"])
def test_an_index_that_points_nowhere_is_named_with_its_value(snapshot, name):
    column = np.load(snapshot / f"{name}.npy")
    column[-1] = 200
    np.save(snapshot / f"{name}.npy", column)
    assert f"{name}.npy holds 200" in refusal(snapshot)


@pytest.mark.parametrize("kind, value", [(31, 0), (layout.ATTRIBUTE, 5000)])
def test_an_edge_label_that_means_nothing_is_refused(snapshot, kind, value):
    column = np.load(snapshot / "edge_label.npy")
    column[0] = layout.edge_label(kind, value)
    np.save(snapshot / "edge_label.npy", column)
    assert "edge_label.npy holds" in refusal(snapshot)


@pytest.mark.parametrize("place, value", [(0, 1), (-1, 3), (2, 9999)])
def test_rows_of_edges_that_do_not_rise_to_the_last_edge_are_refused(snapshot, place, value):
    column = np.load(snapshot / "edge_start.npy")
    column[place] = value
    np.save(snapshot / "edge_start.npy", column)
    assert "edge_start.npy does not rise" in refusal(snapshot)


@pytest.mark.parametrize("text", ["", "{", "[]", "\udcff"])
def test_names_that_cannot_be_read_are_named(snapshot, text):
    (snapshot / layout.NAMES_FILE).write_bytes(text.encode("utf-8", "surrogateescape"))
    assert layout.NAMES_FILE in refusal(snapshot)


@pytest.mark.parametrize("values", [{"strings": None}, {"types": {}}, {"types": [["shop", 3, ""]] * 9}, {"sites": 1},
                                    {"bounds": [[1]]}, {"bounds": [["x", "y", "z"]]}, {"strings": [1] * 99}])
def test_tables_of_names_in_another_shape_are_refused(snapshot, values):
    change(snapshot / layout.NAMES_FILE, **values)
    assert layout.NAMES_FILE in refusal(snapshot)


def test_a_pickle_in_the_place_of_a_column_is_not_run(snapshot):
    np.save(snapshot / "kind.npy", np.array([print], dtype=object), allow_pickle=True)
    assert "kind.npy" in refusal(snapshot)
