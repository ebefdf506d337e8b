"""`leakscope report --memory-snapshot`: what one moment of a device's allocator says, alone and beside a session."""

from __future__ import annotations

import json
import pickle

import pytest
from click.testing import CliRunner

from fixtures.standin.allocator import MIB, Allocator, OutOfMemory
from leakscope import session as sessions
from leakscope.commands import _make_report, _snapshot_report
from leakscope.commands.report import command
from leakscope.errors import LeakScopeError, UsageError
from leakscope.heap import devices, memory_pickle
from leakscope.heap.graph import HeapGraph
from leakscope.model import Confidence, VerdictClass
from tests.heaps import heap

EMBED = [("/srv/shop/serve.py", 61, "embed")]
KEEP = [("/x/site-packages/torch/pad.py", 2, "pad"), ("/srv/shop/serve.py", 80, "keep")]


def ran_out(later=False):
    """Two segments whose halves are free: 30 MiB in pieces of 15, and a request for 25 that the device cannot give."""
    device = Allocator(capacity_bytes=50 * MIB, outside_bytes=5 * MIB, recording="trace")
    pairs = [(device.allocate(5 * MIB, frames=KEEP), device.allocate(15 * MIB, frames=EMBED)) for _ in range(2)]
    for _, buffer in pairs:
        device.free(buffer)
    with pytest.raises(OutOfMemory):
        device.allocate(25 * MIB, frames=EMBED)
    if later:
        device.allocate(1)
    return device


def saved(tmp_path, device):
    path = tmp_path / "oom.pickle"
    path.write_bytes(pickle.dumps(device.snapshot()))
    return path


def test_a_request_that_did_not_fit_into_the_pieces_is_fragmentation_at_medium(tmp_path):
    report = _snapshot_report.build(saved(tmp_path, ran_out()))
    assert (report.verdict.kind, report.verdict.confidence) == (VerdictClass.FRAGMENTATION, Confidence.MEDIUM)
    assert report.verdict.sentence == ("cuda:0 ran out of memory for a request of 25.0 MiB although 30.0 MiB were free in the "
                                       "allocator: the largest piece that may serve it has 15.0 MiB.")
    (finding,) = report.findings
    assert finding.rule.code == "LS413" and finding.confidence is Confidence.MEDIUM
    assert finding.growth_bytes == {} and finding.retained_bytes == {"cuda:0": 30 * MIB}


def test_a_map_of_a_later_moment_claims_nothing(tmp_path):
    report = _snapshot_report.build(saved(tmp_path, ran_out(later=True)))
    assert report.verdict.kind is VerdictClass.INSUFFICIENT_EVIDENCE and report.findings == ()
    assert any("later than the request" in note for note in report.notes)


def test_a_pickle_that_was_written_where_the_error_was_caught_still_tells(tmp_path):
    device = ran_out()
    device.free(next(iter(device._live)))  # a frame that ended gave its tensor back
    report = _snapshot_report.build(saved(tmp_path, device))
    assert report.verdict.kind is VerdictClass.FRAGMENTATION


def test_one_moment_is_no_growth(tmp_path):
    device = Allocator()
    device.allocate(30 * MIB)
    report = _snapshot_report.build(saved(tmp_path, device))
    assert (report.verdict.kind, report.verdict.confidence) == (VerdictClass.INSUFFICIENT_EVIDENCE, Confidence.LOW)
    assert "shows what is there, not what grows: cuda:0 holds 30.0 MiB, 30.0 MiB of it allocated in 1 blocks" in (
        report.verdict.sentence)
    assert {gap.claim for gap in report.gaps} == {"who owns the blocks", "what grows"}
    assert all(term.growth_bytes is None for term in (*report.devices[0].terms, *report.devices[0].wholes))


def test_an_allocator_that_holds_nothing(tmp_path):
    report = _snapshot_report.build(saved(tmp_path, Allocator()))
    assert "the allocator holds nothing" in report.verdict.sentence and report.devices == ()


def test_blocks_are_told_by_the_line_of_the_program_that_allocated_them(tmp_path):
    device = ran_out()
    (chapter,) = _snapshot_report.build(saved(tmp_path, device)).devices
    (kept,) = chapter.owners
    assert (kept.path, kept.retained_bytes, kept.count) == ("unknown owner, keep()", 10 * MIB, 2)
    assert (kept.site.function, kept.site.file, kept.site.line) == ("keep", "shop/serve.py", 80)
    assert _snapshot_report.NO_OWNERS in chapter.notes
    assert chapter.is_simulated and any("A request for 25.0 MiB ran out" in note for note in chapter.notes)
    assert [(pin.size_bytes, pin.keeps_bytes, pin.owner) for pin in chapter.fragmentation.pins] == [
        (5 * MIB, 15 * MIB, "an unknown owner")] * 2
    for segment in chapter.segments:
        assert [(part.state, part.size_bytes, part.is_pinning) for part in segment.parts] == [
            ("unowned", 5 * MIB, True), ("free", 15 * MIB, False)]


def test_workspaces_private_pools_and_missing_frames_are_told_apart(tmp_path):
    device = Allocator()
    device.workspace()
    device.allocate(30 * MIB, pool=device.new_pool())
    (chapter,) = _snapshot_report.build(saved(tmp_path, device)).devices
    assert [(owner.path, owner.site) for owner in chapter.owners] == [("cuBLAS workspaces", None), ("unknown owner", None)]
    assert [segment.pool for segment in chapter.segments] == ["", "1.0"] and chapter.fragmentation.pins == ()


def test_two_devices_have_two_chapters(tmp_path):
    content = Allocator(ordinal=0), Allocator(ordinal=1)
    for device in content:
        device.allocate(30 * MIB)
    path = tmp_path / "two.pickle"
    segments = [segment for device in content for segment in device.snapshot()["segments"]]
    path.write_bytes(pickle.dumps({"segments": segments}))
    assert [chapter.name for chapter in _snapshot_report.build(path).devices] == ["cuda:0", "cuda:1"]


# --- beside a session ---------------------------------------------------------------------------------------------------

SERVER = """
    module app
    app .tensors -> list:list
    list [*] -> tensor:torch.Tensor x3
    tensor <storage> -> store:storage x3 1MiB on cuda:0
    device cuda:0 8GiB
    segment cuda:0 64MiB
    blocks store
    block 2MiB
"""


@pytest.fixture
def session(tmp_path):
    found = sessions.create(tmp_path / "run" / "session", ["python", "serve.py"], {})
    found.write_info(state="complete", duration_s=1.5, exit_code=0)
    return found


def pickled(tmp_path, graph):
    path = tmp_path / "server.pickle"
    memory_pickle.write(graph.devices, path)
    return path


def test_beside_a_session_the_blocks_have_the_owners_of_its_last_snapshot(tmp_path, session, monkeypatch):
    graph = heap(SERVER)
    monkeypatch.setattr(_snapshot_report, "_last_graph", lambda _, record: devices.joined(graph, record))
    report = _snapshot_report.beside(_make_report.build(session), session, pickled(tmp_path, graph))
    (chapter,) = report.devices
    assert [(owner.path, owner.retained_bytes, owner.count) for owner in chapter.owners] == [
        ("app.tensors[*]", 3 * MIB, 3), ("unknown owner", 2 * MIB, 1)]
    assert any("Of 5.0 MiB that are allocated in server.pickle, 3.0 MiB lie at addresses of tensors" in note
               for note in report.notes)
    assert report.session.command == ("python", "serve.py")


def test_a_pickle_of_another_process_gets_no_owners(tmp_path, session, monkeypatch):
    path = pickled(tmp_path, heap(SERVER))
    other = heap(SERVER.replace("3 1MiB on", "3 1MiB data 0x99000000 on").split("device")[0])
    monkeypatch.setattr(_snapshot_report, "_last_graph", lambda _, record: devices.joined(other, record))
    report = _snapshot_report.beside(_make_report.build(session), session, path)
    assert [owner.path for owner in report.devices[0].owners] == ["unknown owner"]
    assert any("may be of another process" in note for note in report.notes)


def test_a_session_without_a_snapshot_has_no_owners_either(tmp_path, session):
    report = _snapshot_report.beside(_make_report.build(session), session, saved(tmp_path, ran_out()))
    assert report.verdict.kind is VerdictClass.FRAGMENTATION and report.devices[0].owners[0].path == "unknown owner, keep()"


def test_what_the_session_found_itself_is_not_found_again(tmp_path, session):
    path = saved(tmp_path, ran_out())
    once = _snapshot_report.beside(_make_report.build(session), session, path)
    assert len(once.findings) == 1 and len(_snapshot_report.beside(once, session, path).findings) == 1


# --- the command --------------------------------------------------------------------------------------------------------


def asked(*arguments):
    return CliRunner().invoke(command, list(map(str, arguments)), standalone_mode=False)


def test_the_report_of_a_pickle_lies_in_a_folder_of_its_own_in_every_format(tmp_path):
    result = asked("--memory-snapshot", saved(tmp_path, ran_out()))
    assert result.exception is None and "(fragmentation, medium confidence" in result.output
    place = tmp_path / "oom-report"
    assert {path.name for path in place.iterdir()} == {"report.html", "report.md", "report.json"}
    written = json.loads((place / "report.json").read_text())
    assert written["verdict"]["class"] == "fragmentation"
    assert "keep" in (place / "report.md").read_text() and "/srv" not in (place / "report.html").read_text()


def test_a_session_and_a_pickle_together(tmp_path, session):
    result = asked(session.path, "--memory-snapshot", saved(tmp_path, ran_out()), "--format", "json")
    assert result.exception is None
    assert json.loads((tmp_path / "run" / "report.json").read_text())["verdict"]["class"] == "fragmentation"


@pytest.mark.parametrize(("content", "words"), [
    (None, "There is no file"), (b"hello", "is no pickle"), (pickle.dumps([1]), "holds a list"),
    (pickle.dumps(print), "nothing of it was run"), (pickle.dumps({"segments": {}}), "no list of segments")])
def test_bad_input_is_a_sentence_and_a_hint(tmp_path, content, words):
    path = tmp_path / "bad.pickle"
    if content is not None:
        path.write_bytes(content)
    error = asked("--memory-snapshot", path).exception
    assert isinstance(error, LeakScopeError) and words in error.sentence and error.hint
    assert not (tmp_path / "bad-report").exists()


def test_neither_a_session_nor_a_pickle_is_nothing_to_report_on():
    error = asked().exception
    assert isinstance(error, UsageError) and "nothing to report on" in error.sentence


def test_a_file_where_the_folder_should_be(tmp_path):
    (tmp_path / "taken").write_text("x")
    error = asked("--memory-snapshot", saved(tmp_path, ran_out()), "-o", tmp_path / "taken").exception
    assert isinstance(error, UsageError) and "--memory-snapshot" in error.hint


def test_a_graph_of_nothing_is_read_like_any_other():
    assert HeapGraph.empty().node_count == 0 and HeapGraph.empty({"segments": []}).devices == {"segments": []}
