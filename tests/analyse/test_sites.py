"""Where leaked objects were made, told from few samples."""

from __future__ import annotations

import numpy as np

from leakscope.agent import format as layout
from leakscope.analyse.sites import Origin, Origins, Wanted, is_library, library_files, live_places, own_frame
from leakscope.heap.graph import Array, HeapGraph
from tests.heaps import address_of, heap

SHOP = """
    module app
    app .orders -> orders:dict
    orders [*] -> order:shop.Order x300 1KiB
    order .__dict__ -> parts:dict x300 200B
    app .other -> other:list
    other [*] -> spare:shop.Order x20 1KiB
"""


def nodes(graph: HeapGraph, *handles: str) -> Array:
    """The nodes of some handles, and every storage (it has no address) if that is among them."""
    wanted = {address_of(handle, number) for handle in handles for number in range(300)}
    stored = graph.kind == layout.NODE_KINDS.index("storage") if "storage" in handles else False
    return np.flatnonzero(np.isin(graph.address, list(wanted)) | stored)


def origin(samples: str, first: str = "", text: str = SHOP, since_s: float = 5.0) -> Origin:
    """The origin of the orders with their parts, that pile up in `orders`."""
    graph = heap(text + samples, t_s=20.0)
    wanted = Wanted(nodes(graph, "order", "parts", "storage"), nodes(graph, "order"),
                    int(nodes(graph, "orders")[0]))
    return Origins(graph, int(since_s * 1e9), live_places(heap(text + first))).of(wanted)


def shown(found: Origin) -> list[tuple[str, int]]:
    return [(place.function, place.line) for place in found.places]


def test_the_function_that_made_most_bytes_comes_first_with_its_share():
    found = origin("""
        samples order 6 512KiB make@app.py:7 at 12
        samples parts 2 512KiB fill@app.py:9 at 13
    """)
    assert shown(found) == [("make", 7), ("fill", 9)]
    assert [place.share_ratio for place in found.places] == [0.75, 0.25]
    assert found.reasons == ("its allocation site is estimated from 8 samples of these objects: 75% of the bytes were made in "
                             "make",)
    assert not found.doubts


def test_bytes_are_weights_and_not_numbers_of_samples():
    found = origin("""
        samples order 5 1KiB make@app.py:7 at 12
        samples parts 1 1MiB fill@app.py:9 at 13
    """)
    assert shown(found)[0] == ("fill", 9)


def test_the_lines_of_one_function_count_together_and_its_largest_line_is_shown():
    found = origin("""
        samples order 2 2MiB make@app.py:7 at 12
        samples order 2 1MiB make@app.py:8 at 12
        samples parts 5 1MiB fill@app.py:9 at 13
    """)
    assert shown(found)[:2] == [("make", 7), ("make", 8)]


def test_the_innermost_frame_of_the_program_is_shown_and_the_library_below_it_is_named():
    found = origin("samples order 4 512KiB loads@python3.11/json/__init__.py:346 < parse@app.py:21 < main@app.py:50 at 12")
    assert shown(found) == [("parse", 21)]
    assert found.reasons[0].endswith("100% of the bytes were made in parse, by calling loads (python3.11/json/__init__.py:346)")


def test_where_the_program_has_no_frame_the_innermost_one_is_shown():
    found = origin("samples order 4 512KiB run@site-packages/flow/engine.py:3 < loop@python3.11/asyncio/base_events.py:7 at 12")
    assert shown(found) == [("run", 3)]


def test_what_was_made_before_the_first_snapshot_does_not_count_beside_what_came_later():
    found = origin("""
        samples order 9 1MiB preload@app.py:3 at 1
        samples order 4 512KiB make@app.py:7 at 12
    """)
    assert shown(found) == [("make", 7)]


def test_old_samples_count_where_there_are_hardly_new_ones():
    found = origin("""
        samples order 9 1MiB preload@app.py:3 at 1
        samples order 1 512KiB make@app.py:7 at 12
    """)
    assert shown(found) == [("preload", 3), ("make", 7)]


def test_two_samples_are_too_few_to_be_sure():
    found = origin("samples order 2 512KiB make@app.py:7 at 12")
    assert found.doubts == ("the allocation site rests on 2 sampled blocks",)


def test_what_was_made_elsewhere_before_the_first_snapshot_is_no_evidence():
    preload = "30 512KiB preload@app.py:3 at 1"
    assert origin(f"samples spare {preload}", first=f"samples - {preload}") == Origin()


def test_samples_of_the_same_type_elsewhere_stand_in_with_a_doubt():
    found = origin("""
        samples spare 3 512KiB make@app.py:7 at 12
        samples - 50 512KiB noise@app.py:99 at 12
    """)
    assert shown(found) == [("make", 7)] and not found.reasons
    assert found.doubts[0].startswith("none of these objects was sampled; their allocation site is estimated from 3 samples of "
                                      "other objects of the same type")


def test_the_function_that_enlarges_the_container_is_better_than_what_grew_anywhere():
    found = origin("samples orders 1 512KiB put@app.py:30 at 12\n samples - 50 512KiB noise@app.py:99 at 12")
    assert shown(found) == [("put", 30)] and "of the container" in found.doubts[0]


def test_the_last_resort_is_what_grew_most_since_the_first_snapshot():
    found = origin("samples - 9 1MiB load@app.py:1 at 1\n samples - 4 512KiB make@app.py:7 at 12",
                   first="samples - 9 1MiB load@app.py:1 at 1")
    assert shown(found) == [("make", 7)] and "a guess" in found.doubts[0]


def test_what_an_import_made_is_not_counted_as_growth():
    graph = heap("samples - 9 1MiB <module>@ssl.py:100 < exec_module@importlib:7 < serve@app.py:1 at 12\n"
                 "samples - 1 1KiB serve@app.py:9 at 12")
    assert graph.sites[1] is not None
    graph.sites[1]["frames"][1][0] = "<frozen importlib._bootstrap>"
    assert live_places(graph) == {("app.py", "serve", 9): 1024}


def test_nothing_is_said_where_nothing_grew_and_nothing_was_sampled():
    assert origin("samples - 4 512KiB load@app.py:1 at 1", first="samples - 4 512KiB load@app.py:1 at 1") == Origin()
    assert origin("") == Origin()


STORED = """
    module app
    app .frames -> orders:dict
    orders [*] -> order:numpy.ndarray x300 112B
    order <storage> -> storage x300 1MiB
    orders [^str:9] -> parts:str x300 80B
"""


def test_what_lies_in_storages_is_made_where_the_arrays_that_show_them_are():
    found = origin("""
        samples order 1 512KiB decode@app.py:7 bytes 112 at 12
        samples parts 20 512KiB name@app.py:9 bytes 80 at 12
    """, text=STORED)
    assert shown(found) == [("decode", 7)] and found.doubts == ("the allocation site rests on 1 sampled block",)


def test_other_things_in_the_container_are_weak_evidence_for_storages():
    found = origin("samples parts 20 512KiB name@app.py:9 bytes 80 at 12", text=STORED)
    assert shown(found) == [("name", 9)] and "of what these objects hold" in found.doubts[0]


def test_traced_objects_need_no_samples():
    graph = heap("""
        module app
        app .orders -> orders:dict
        orders [*] -> order:shop.Order x30 1KiB site make@app.py:7
        orders [^str:9] -> key:str x30 100B site name@app.py:9
    """)
    found = Origins(graph, 0, live_places(graph)).of(Wanted(nodes(graph, "order", "key"), nodes(graph, "order")))
    assert shown(found) == [("make", 7), ("name", 9)] and not found.doubts


def test_frames_of_libraries_are_told_by_where_their_files_are():
    graph = heap("module app\napp .parse -> parse:function 'parse() at app.py:3'\n"
                 "app .loads -> loads:function 'loads() at python3.11/json/__init__.py:299'\n"
                 "app .get -> get:function 'get() at site-packages/requests/api.py:62'")
    libraries = library_files(graph)
    for file in ("json/__init__.py", "requests/api.py", "python3.11/json/decoder.py", "site-packages/flask/app.py", "<string>",
                 "<generated>", "/usr/lib/python3/dist-packages/yaml/__init__.py"):
        assert is_library(file, libraries), file
    for file in ("app.py", "json/other.py", "shop/orders.py", "src/python/app.py"):
        assert not is_library(file, libraries), file
    assert own_frame([["json/__init__.py", 299, "loads"], ["app.py", 3, "parse"]], libraries) == ("app.py", "parse", 3)
    assert own_frame([["<string>", 1, "<module>"]]) == ("<string>", "<module>", 1)


# --- blocks of a device ------------------------------------------------------------------------------------------------

TENSORS = """
    module app
    app .orders -> orders:dict
    orders [*] -> order:torch.Tensor x8 120B
    order <storage> -> store:storage x8 1MiB on cuda:0
    segment cuda:0 64MiB
"""


def test_what_the_allocator_of_a_device_recorded_is_exact_and_needs_no_samples():
    found = origin("blocks store frames empty@site-packages/torch/x.py:9 < embed@serve.py:12", text=TENSORS)
    assert shown(found)[0][0] == "embed" and any("exact" in reason for reason in found.reasons)


def test_frames_of_a_part_of_the_blocks_do_not_speak_for_the_rest():
    text = TENSORS + """
        orders ['more'] -> large:torch.Tensor
        large <storage> -> rest:storage 32MiB on cuda:0
        blocks store frames embed@serve.py:12
        blocks rest
    """
    assert origin("", text=text).places == ()
