"""Memory pickles: those of every version are read, those of anybody else are refused before they do something."""

from __future__ import annotations

import builtins
import io
import os
import pickle
import pickletools
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.standin.allocator import MIB, Allocator, OutOfMemory
from fixtures.standin.allocator_forms import record
from leakscope.errors import LeakScopeError
from leakscope.heap import memory_pickle
from leakscope.heap.blocks import Blocks

STACK = [("/home/ada/shop/serve.py", 12, "embed"), ("/usr/lib/python3.11/threading.py", 5, "run"),
         ("/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", 7, "forward"),
         ("/build/Allocator.cpp", 0, "malloc")]


def program(version=(2, 13), recording="trace", **more):
    device = Allocator(torch=version, recording=recording, capacity_bytes=200 * MIB, outside_bytes=10 * MIB, **more)
    pool = device.new_pool()
    kept = [device.allocate(size, stream, pool if stream else None, STACK)
            for stream in (0, 1) for size in (100, 3 * MIB, 30 * MIB)]
    device.record_stream(kept[1], 9)
    for address in kept[:2]:
        device.free(address)
    return device


def saved(tmp_path, content, protocol=4):
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(content if isinstance(content, bytes) else pickle.dumps(content, protocol=protocol))
    return path


def refusal(tmp_path, content):
    with pytest.raises(LeakScopeError) as caught:
        memory_pickle.read(saved(tmp_path, content))
    assert caught.value.hint and caught.value.sentence.endswith(".") and "Traceback" not in caught.value.sentence
    return caught.value.sentence


@pytest.mark.parametrize("minor", range(15))
def test_a_pickle_of_every_version_shows_the_same_blocks_as_the_allocator_itself(tmp_path, minor):
    device = program((2, minor))
    found, truth = Blocks.of(memory_pickle.read(saved(tmp_path, device.snapshot()))), Blocks.of(record([device]))
    assert found.totals() == truth.totals()
    for column in ("address", "size_bytes", "requested_bytes", "state", "device", "stream", "pool"):
        assert getattr(found, column).tolist() == getattr(truth, column).tolist()
    assert found.pools == truth.pools and (found.site >= 0).tolist() == (truth.site >= 0).tolist()


@pytest.mark.parametrize("protocol", range(6))
def test_every_protocol_is_read(tmp_path, protocol):
    content = program().snapshot()
    assert memory_pickle.read(saved(tmp_path, content, protocol)) == memory_pickle.read(saved(tmp_path, content))


def test_frames_are_masked_and_shared_stacks_are_kept_once(tmp_path):
    found = memory_pickle.read(saved(tmp_path, program().snapshot()))
    assert found["frames"] == [[["shop/serve.py", 12, "embed"], ["python3.11/threading.py", 5, "run"],
                                ["site-packages/torch/nn/modules/module.py", 7, "forward"], ["<native>", 0, "malloc"]]]


def test_keys_of_versions_to_come_and_missing_ones_are_no_matter(tmp_path):
    segment = {"address": 4096, "blocks": [{"size": 512, "state": "active_allocated", "colour": [1]}], "shape": {"x": None}}
    found = memory_pickle.read(saved(tmp_path, {"segments": [segment, {}], "tomorrow": (1, [2.5])}))
    assert Blocks.of(found).totals().allocated == 512 and found["recording"] == "off"
    assert any("no allocation frames" in note for note in found["notes"])


def test_settings_that_are_known_are_kept_and_others_are_not(tmp_path):
    settings = {"expandable_segments": True, "PYTORCH_CUDA_ALLOC_CONF": "backend:native,secret:hunter2", "backend": "native"}
    found = memory_pickle.read(saved(tmp_path, {"segments": [], "allocator_settings": settings}))
    assert found["settings"] == {"expandable_segments": True, "backend": "native"}


def test_texts_that_a_program_attached_are_not_kept(tmp_path):
    content = program().snapshot() | {"external_annotations": [{"name": "hunter2", "stage": "START"}], "more": "hunter2"}
    content["device_traces"][0][0]["user_metadata"] = "hunter2"
    assert "hunter2" not in repr(memory_pickle.read(saved(tmp_path, content)))


def test_the_request_that_ran_out_is_found_with_its_frames(tmp_path):
    device = program()
    with pytest.raises(OutOfMemory):
        device.allocate(150 * MIB, stream=3, frames=[("serve.py", 40, "answer")])
    found = memory_pickle.read(saved(tmp_path, device.snapshot()))
    oom = found["oom"]
    assert (oom["device"], oom["requested_bytes"], oom["stream"], oom["is_last"]) == (0, 150 * MIB, 3, True)
    assert found["frames"][oom["frames"]] == [["serve.py", 40, "answer"]]
    address = max(device._live)  # 30 MiB
    device.free(address)
    after = memory_pickle.read(saved(tmp_path, device.snapshot()))
    assert (after["oom"]["is_last"], after["oom"]["freed_since_bytes"]) == (False, 30 * MIB)
    device.allocate(512)
    late = memory_pickle.read(saved(tmp_path, device.snapshot()))
    assert (late["oom"]["is_last"], late["oom"]["freed_since_bytes"]) == (False, None)
    assert all(any("later than the request" in note for note in each["notes"]) for each in (after, late))


def test_without_a_request_that_ran_out_there_is_none(tmp_path):
    assert memory_pickle.read(saved(tmp_path, program().snapshot()))["oom"] is None


def test_pinned_memory_of_2_14_is_told(tmp_path):
    rows = [{"address": 1, "size": 4096, "active": True}, {"address": 2, "size": 8192, "active": False}]
    notes = memory_pickle.read(saved(tmp_path, {"segments": [], "host_segments": rows}))["notes"]
    assert "Pinned host memory: 12,288 bytes in 2 segments, 4,096 of them in use." in notes


@pytest.mark.parametrize("recording", ["off", "state", "trace"])
def test_what_is_written_reads_the_same(tmp_path, recording):
    first = memory_pickle.read(saved(tmp_path, program(recording=recording).snapshot()))
    memory_pickle.write(first, tmp_path / "again.pickle")
    second = memory_pickle.read(tmp_path / "again.pickle")
    assert {name for name in first if first[name] != second[name]} <= {"recording"}  # the history is not written
    assert sorted(each.name for each in tmp_path.iterdir()) == ["again.pickle", "snapshot.pickle"]


def test_what_is_written_needs_no_class_and_has_what_the_viewer_reads(tmp_path):
    content = record([program((2, 1), "state")]) | {"oom": {"device": 0, "requested_bytes": 5}}
    memory_pickle.write(content, tmp_path / "a.pickle")
    text = (tmp_path / "a.pickle").read_bytes()
    assert not {code.name for code, _, _ in pickletools.genops(text)} & {"GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD"}
    content = pickle.loads(text)
    assert set(content) >= {"segments", "device_traces", "allocator_settings", "external_annotations"}
    assert content["device_traces"][0][0]["action"] == "oom"
    for segment in content["segments"]:
        assert isinstance(segment["segment_pool_id"], tuple)
        ends = [block["address"] + block["size"] for block in segment["blocks"]]
        assert [block["address"] for block in segment["blocks"]] == [segment["address"], *ends[:-1]]
        assert all(isinstance(block["frames"], list) for block in segment["blocks"])


def test_the_history_that_an_agent_recorded_is_written_for_the_viewer(tmp_path):
    events = [{"device": 0, "action": "alloc", "addr": 4096, "size": 512, "stream": 0, "time_us": 7, "frames": 0},
              {"device": 9, "action": "alloc"}, "odd"]
    content = {"segments": [{"device": 0}], "frames": [[["app.py", 3, "load"]]], "history": events,
               "oom": {"device": "cuda:0", "requested_bytes": 5, "free_bytes": 2}}
    memory_pickle.write(content, tmp_path / "a.pickle")
    first, last = pickle.loads((tmp_path / "a.pickle").read_bytes())["device_traces"][0]
    assert (first["addr"], first["frames"]) == (4096, [{"filename": "app.py", "line": 3, "name": "load"}])
    assert (last["action"], last["size"], last["device_free"]) == ("oom", 5, 2)


def test_fields_that_a_record_lacks_are_sums_of_its_blocks(tmp_path):
    blocks = [{"size": 512, "state": "active_allocated"}, {"size": 1024, "state": "active_pending_free"}, {"size": 4}]
    memory_pickle.write({"segments": [{"blocks": blocks}, {}]}, tmp_path / "a.pickle")
    first, empty = pickle.loads((tmp_path / "a.pickle").read_bytes())["segments"]
    assert (first["total_size"], first["allocated_size"], first["active_size"]) == (1540, 512, 1536)
    assert [block["address"] for block in first["blocks"]] == [0, 512, 1536] and empty["total_size"] == 0


# --- what is refused ----------------------------------------------------------------------------------------------------


class Hostile:
    def __init__(self, function, *arguments):
        self.how = function, arguments

    def __reduce__(self):
        return self.how


@pytest.mark.parametrize("protocol", range(6))
def test_nothing_of_a_hostile_pickle_is_run(tmp_path, protocol):
    target = tmp_path / "planted"
    content = {"segments": [Hostile(os.mkdir, str(target))]}
    assert "asks for objects of classes" in refusal(tmp_path, pickle.dumps(content, protocol=protocol))
    assert not target.exists()


@pytest.mark.parametrize("text", [
    b"cos\nsystem\n(S'true'\ntR.", b"(S'true'\nios\nsystem\n.", b"\x80\x04\x82\x01.", b"Ppersistent\n.", b"\x80\x02]Q.",
    b"\x80\x04\x8c\x02os\x8c\x06system\x93.", b"\x80\x04}}b."])
def test_every_way_to_a_class_is_closed(tmp_path, text):
    assert "nothing of it was run" in refusal(tmp_path, text)


def test_no_opcode_of_the_table_can_reach_a_class():
    reachable = {pickletools.code2op[chr(code)].name for code, step in memory_pickle._PlainReader.dispatch.items()
                 if "refus" not in step.__name__}
    assert not reachable & {"GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "EXT1", "EXT2",
                            "EXT4", "PERSID", "BINPERSID", "NEXT_BUFFER", "BYTEARRAY8", "EMPTY_SET", "FROZENSET"}
    reader = memory_pickle._PlainReader(io.BytesIO())
    for look_up in (lambda: reader.find_class("os", "system"), lambda: reader.persistent_load(1)):
        with pytest.raises(memory_pickle._Refused):
            look_up()


def test_a_class_blocking_reader_does_not_change_the_standard_one(tmp_path):
    assert pickle.loads(pickle.dumps(builtins.len)) is len
    assert pickle._Unpickler(io.BytesIO(pickle.dumps(len))).load() is len


@pytest.mark.parametrize(("content", "words"), [
    (b"", "is empty"), (b"PK\x03\x04torch", "archive"), (b"hello", "is no pickle"), (b"\x00" * 50, "is no pickle"),
    (b'{"segments": []}', "is no pickle"), ([1, 2], "holds a list"), ({"a": 1}, "no list of segments"),
    ({"segments": 3}, "no list of segments"), ({"segments": [1]}, "no list of segments"), ({1 << 61: 2}, "keys are no texts"),
    (b"\x80\x04N.", "holds a NoneType"), ({"segments": {1, 2}}, "is no pickle"), (b"\x80\x09}.", "is no pickle")])
def test_what_is_no_memory_snapshot_is_said_in_a_sentence(tmp_path, content, words):
    assert words in refusal(tmp_path, content)


def test_a_file_that_is_cut_anywhere_is_refused(tmp_path):
    whole = pickle.dumps(program().snapshot())
    for size in range(1, len(whole), max(1, len(whole) // 50)):
        refusal(tmp_path, whole[:size])


def test_a_missing_file_and_a_folder(tmp_path):
    with pytest.raises(LeakScopeError, match="There is no file"):
        memory_pickle.read(tmp_path / "none.pickle")
    with pytest.raises(LeakScopeError, match="cannot be read"):
        memory_pickle.read(tmp_path)


@settings(deadline=None, max_examples=60)
@given(st.binary(max_size=60))
def test_any_bytes_are_a_snapshot_or_a_sentence(tmp_path_factory, text):
    path = tmp_path_factory.getbasetemp() / "any.pickle"
    path.write_bytes(b"\x80\x04" + text)
    try:
        memory_pickle.read(path)
    except LeakScopeError as error:
        assert error.sentence


# --- what would fill the memory -----------------------------------------------------------------------------------------


def test_an_index_that_a_reader_in_c_would_set_memory_aside_for_costs_nothing(tmp_path):
    text = b"\x80\x04}r" + struct.pack("<I", (1 << 32) - 1) + b"."
    assert "no list of segments" in refusal(tmp_path, text)


@pytest.mark.parametrize("text", [b"\x80\x04\x8d" + struct.pack("<Q", 1 << 60), b"\x80\x04\x95" + struct.pack("<Q", 1 << 60),
                                  b"\x80\x04\x96" + struct.pack("<Q", 1 << 60), b"\x80\x04\x8b" + struct.pack("<i", 1 << 30)])
def test_lengths_that_the_file_does_not_have(tmp_path, text):
    refusal(tmp_path, text)


def test_many_objects_in_few_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(memory_pickle, "MOST_OBJECTS", 1000)
    assert "makes more than" in refusal(tmp_path, b"\x80\x04(" + b"]" * 1001 + b"l.")


def test_many_names_for_objects(tmp_path, monkeypatch):
    monkeypatch.setattr(memory_pickle, "MOST_OBJECTS", 1000)
    assert "makes more than" in refusal(tmp_path, b"\x80\x04N" + b"\x94" * 70_000 + b".")


def test_lists_in_lists_without_end(tmp_path):
    assert "deep" in refusal(tmp_path, b"\x80\x04" + b"(" * 100_000)
    deep = b"\x80\x04]" + b"]" * 50_000 + b"a" * 50_000 + b"."
    assert "holds a list" in refusal(tmp_path, deep)


def test_a_segment_that_is_there_a_million_times(tmp_path, monkeypatch):
    monkeypatch.setattr(memory_pickle, "MOST_BLOCKS", 1000)
    segment = {"blocks": [{"size": 512}] * 100}
    assert "more than 1,000 blocks" in refusal(tmp_path, {"segments": [segment] * 50})


def test_a_list_that_holds_itself_is_read_as_far_as_a_snapshot_goes(tmp_path):
    blocks: list[object] = []
    blocks.append(blocks)
    found = memory_pickle.read(saved(tmp_path, {"segments": [{"blocks": blocks, "frames": blocks}], "device_traces": blocks}))
    assert found["segments"][0]["blocks"] == []


def test_stacks_are_cut_and_left_out_where_there_are_too_many(tmp_path, monkeypatch):
    monkeypatch.setattr(memory_pickle, "MOST_FRAMES", 200)
    frames = [[{"filename": f"{row}.py", "line": row, "name": "f" * 999}] * 150 for row in range(5)]
    found = memory_pickle.read(saved(tmp_path, {"segments": [{"blocks": [{"size": 1, "frames": each} for each in frames]}]}))
    assert [len(stack) for stack in found["frames"]] == [128, 128] and len(found["frames"][0][0][2]) == 200
    assert any("3 blocks were left out" in note for note in found["notes"])


def test_odd_values_count_as_not_there(tmp_path):
    block = {"size": -1, "address": 1 << 70, "requested_size": "9", "state": 3, "frames": "x"}
    segment = {"address": None, "device": True, "stream": 1.5, "segment_pool_id": "no", "blocks": [block, None, 3]}
    oom = {"action": "oom", "size": "x", "time_us": None, "frames": [{"filename": 3, "line": "a", "name": "\x1b[31m"}]}
    found = memory_pickle.read(saved(tmp_path, {"segments": [segment], "device_traces": [[oom], 7], "allocator_settings": 5}))
    assert Blocks.of(found).totals().reserved == 0
    assert found["oom"]["requested_bytes"] == 0 and found["frames"] == [[["<native>", 0, "?[31m"]]]


@pytest.mark.parametrize("content", [
    {"device_traces": 5}, {"device_traces": {"a": 1}}, {"device_traces": [[{"action": "oom"}]] * 500}, {"host_segments": 3},
    {"allocator_settings": {"backend": "x" * 100_000}}, {"external_annotations": None}, {"segments": [{"blocks": {"a": 1}}]}])
def test_parts_of_another_shape_and_more_than_there_can_be_are_left_out(tmp_path, content):
    found = memory_pickle.read(saved(tmp_path, {"segments": []} | content))
    assert len(repr(found)) < 2000
    assert Blocks.of(found).totals().reserved == 0


def test_a_device_that_no_machine_has_takes_no_memory(tmp_path):
    found = memory_pickle.read(saved(tmp_path, {"segments": [{"device": 1 << 50, "blocks": []}]}))
    memory_pickle.write({"segments": [{"device": 1 << 50}]}, tmp_path / "a.pickle")
    assert found["devices"] == [{"name": "cuda:0", "ordinal": 0}] and (tmp_path / "a.pickle").stat().st_size < 1000
