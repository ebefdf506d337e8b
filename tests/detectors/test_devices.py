"""Every class of device growth that follows from a term: growth, a neighbour's growth, growth that has ended, ups and downs.

All series and maps of blocks are simulated (tests/devices.py).
"""

from __future__ import annotations

import pytest

from leakscope.detectors import (
    _devices,
    communicators,
    cublas_workspaces,
    deferred_frees,
    device_fragmentation,
    device_held_by_c,
    device_unattributed,
    other_allocators,
)
from leakscope.model import Confidence, Dismissed, Finding
from tests.devices import MIB, block, noisy, plateau, ramp, segment, steps, watched

WORKSPACE = 32 * MIB


def findings(module, case):
    return [each for each in module.detect(case) if isinstance(each, Finding)]


def dismissed(module, case):
    return [each for each in module.detect(case) if isinstance(each, Dismissed)]


def workspaces(*counts):
    return [[segment(*[block(WORKSPACE, "workspace")] * count)] for count in counts]


def loose(*counts, frames=-1, size=25 * MIB):
    return [[segment(block(MIB), *[block(size, "unowned", frames)] * count)] for count in counts]


def groups(*counts):
    return {"snapshots": [[segment(block(MIB))]] * len(counts), "each": [{"process_groups": count} for count in counts]}


# detector, its term, and what else has to be there so that it blames that term
CLASSES = [
    (cublas_workspaces, "workspaces", {"snapshots": workspaces(1, 10, 20), "process": {"threads": 20}}),
    (device_held_by_c, "allocated_unowned", {"snapshots": loose(1, 10, 20)}),
    (deferred_frees, "pending", {}),
    (device_fragmentation, "inactive_split", {}),
    (communicators, "outside", groups(2, 4, 6)),
    (other_allocators, "outside", {"libraries": ["cupy"]}),
    (device_unattributed, "outside", {}),
]
EACH = pytest.mark.parametrize(("module", "term", "around"), CLASSES, ids=[each[0].RULE.name for each in CLASSES])


def course(module, mib):
    return steps(mib / 8, 11) if module is communicators else ramp(mib)


@EACH
def test_growth_that_goes_on_is_a_finding_on_its_device(module, term, around):
    (found,) = findings(module, watched(**{term: course(module, 1600)}, **around))
    assert found.rule is module.RULE and found.layer == "cuda:0" and found.pid == 7
    assert 0.5 * 1200 * MIB <= found.growth_bytes["cuda:0"] <= 1600 * MIB
    assert found.remedy and any("% of the growth of the term" in reason for reason in found.reasons)


@EACH
def test_growth_of_another_term_is_not_blamed_on_it(module, term, around):
    other = "releasable" if term != "releasable" else "outside"
    if module is not device_unattributed:
        assert findings(module, watched(**{other: ramp(1600), term: 300 * MIB}, **around)) == []


@EACH
def test_growth_that_has_ended_is_none(module, term, around):
    assert findings(module, watched(**{term: plateau(1600)}, **around)) == []


@EACH
def test_ups_and_downs_are_none(module, term, around):
    assert findings(module, watched(**{term: noisy(200)}, **around)) == []


@EACH
def test_a_term_that_was_not_measured_is_not_blamed(module, term, around):
    assert findings(module, watched(**{term: None}, **around)) == []


@EACH
def test_growth_over_noise_is_still_seen(module, term, around):
    def grows(t):
        return course(module, 2400)(t) + noisy(40, 0)(t)

    assert len(findings(module, watched(**{term: grows}, **around))) == 1


def test_a_process_without_a_device_has_no_such_finding():
    case = watched()
    vars(case)["devices"] = ()
    for module, _, _ in CLASSES:
        assert list(module.detect(case)) == []


# --- 8 -------------------------------------------------------------------------------------------------------------------


def test_workspaces_that_are_as_many_as_threads_and_streams_are_told_so():
    (found,) = findings(cublas_workspaces, watched(
        workspaces=ramp(1600), snapshots=workspaces(1, 10, 20), process={"threads": 20}))
    assert "1 -> 20 blocks without a tensor have exactly the size of a cuBLAS workspace, 32.0 MiB" in found.reasons
    assert any("a workspace for each pair" in reason for reason in found.reasons)
    assert found.confidence is Confidence.MEDIUM and "usually not a leak" in found.doubts[0] and found.object_count == 20


def test_workspaces_without_such_a_number_are_only_a_term():
    (found,) = findings(cublas_workspaces, watched(
        workspaces=ramp(1600), snapshots=workspaces(1, 10, 20), process={"threads": 2}))
    assert found.confidence is Confidence.LOW


def test_workspaces_beside_more_blocks_of_others_are_not_the_cause():
    assert findings(cublas_workspaces, watched(workspaces=ramp(500), allocated_unowned=ramp(900))) == []


def test_workspaces_that_are_no_more_are_dismissed():
    (what,) = dismissed(cublas_workspaces, watched(workspaces=plateau(640), snapshots=workspaces(10, 20, 20)))
    assert what.why.startswith("it levels off: 20 blocks, one for each thread and stream")


def test_no_graph_means_that_workspaces_may_be_cleared_and_a_graph_that_they_may_not():
    around = {"workspaces": ramp(1600), "snapshots": workspaces(1, 10, 20)}
    (free,) = findings(cublas_workspaces, watched(**around))
    (bound,) = findings(cublas_workspaces, watched(text="module app\napp .graph -> torch.cuda.graphs.CUDAGraph", **around))
    assert "clearCublasWorkspaces" in free.remedy and "clearCublasWorkspaces" not in bound.remedy
    assert "clearCublasWorkspaces" not in findings(cublas_workspaces, watched(workspaces=ramp(1600)))[0].remedy


# --- 10 ------------------------------------------------------------------------------------------------------------------


def test_blocks_of_c_are_told_by_size():
    (found,) = findings(device_held_by_c, watched(allocated_unowned=ramp(600), snapshots=loose(1, 10, 20)))
    assert "by size: 19 more of 25.0 MiB" in found.reasons and found.object_count == 19
    assert found.confidence is Confidence.MEDIUM and "--gpu state" in found.remedy


def test_where_they_were_allocated_names_them():
    frames = [[["train.py", 12, "step"], ["train.py", 40, "main"]]]
    (found,) = findings(device_held_by_c, watched(allocated_unowned=ramp(600), snapshots=loose(1, 10, 20, frames=0),
                                                  frames=frames, about={"recording": "state"}))
    assert found.owner == "blocks that C++ code holds, allocated in step()" and found.confidence is Confidence.HIGH
    assert (found.site.function, found.site.file, found.site.line) == ("step", "train.py", 12)


def test_buckets_are_only_a_candidate_in_a_distributed_process():
    around = {"allocated_unowned": ramp(600), "snapshots": loose(1, 10, 20)}
    (alone,) = findings(device_held_by_c, watched(**around))
    (many,) = findings(device_held_by_c, watched(libraries=["libnccl.so.2"], **around))
    assert not any("buckets" in reason for reason in alone.reasons)
    assert any("buckets of DistributedDataParallel" in reason for reason in many.reasons)


def test_blocks_of_c_beside_larger_growth_of_tensors_are_not_the_cause():
    assert findings(device_held_by_c, watched(allocated_unowned=ramp(500), allocated_owned=ramp(900))) == []


# --- 13 ------------------------------------------------------------------------------------------------------------------


def pieces(*counts, expandable=False):
    """Segments of 20 MiB of which 1 MiB is in use, allocated in load()."""
    return [[segment(block(MIB, frames=0), block(19 * MIB, "free"), is_expandable=expandable)] * count for count in counts]


FRAMES = [[["train.py", 7, "load"]]]


def test_pieces_are_told_with_the_segments_and_the_place_that_pin_them():
    (found,) = findings(device_fragmentation, watched(inactive_split=ramp(600), snapshots=pieces(2, 15, 30), frames=FRAMES))
    assert "30 segments are partly free: 30.0 MiB in use keep 570.0 MiB; the largest free block has 19.0 MiB" in found.reasons
    assert found.confidence is Confidence.HIGH and found.site.function == "load"
    assert "expandable_segments:True" in found.remedy and found.doubts == (
        "who holds the blocks that pin the segments is not known",)


def test_segments_that_are_expandable_already_are_not_recommended():
    (found,) = findings(device_fragmentation, watched(inactive_split=ramp(600), snapshots=pieces(2, 15, 30, expandable=True)))
    assert "expandable" not in found.remedy
    (found,) = findings(device_fragmentation, watched(inactive_split=ramp(600), settings={"expandable_segments": True}))
    assert "expandable" not in found.remedy and found.confidence is Confidence.LOW


def test_who_pins_a_segment_is_named():
    case = watched(inactive_split=ramp(600), snapshots=pieces(2, 15, 30), text="module app\napp .cache -> cache:app.Cache")
    seen = case.devices[0].snapshots[-1]
    seen.ownership.owner[seen.blocks.is_used] = case.last.index_of[next(
        int(address) for node, address in enumerate(case.last.address) if case.last.type_name(node) == "app.Cache")]
    (found,) = findings(device_fragmentation, case)
    assert found.owner == "segments pinned by app.cache" and found.doubts == ()


def test_pieces_that_are_a_small_part_of_what_the_allocator_took_are_not_the_cause():
    assert findings(device_fragmentation, watched(inactive_split=ramp(300), allocated_owned=ramp(900))) == []


def out_of_memory(request, **around):
    oom = {"device": 0, "requested_bytes": int(request), "free_bytes": 0, "total_bytes": 6 << 30}
    return watched(snapshots=pieces(30, 30, 30), about={"oom": oom}, inactive_split=570 * MIB, **around)


def test_a_request_that_did_not_fit_though_enough_was_free_is_told_with_its_numbers():
    (found,) = findings(device_fragmentation, out_of_memory(100 * MIB))
    assert found.reasons[0] == ("the device ran out of memory for 100.0 MiB while 570.0 MiB were free: the largest piece that "
                                "may serve it has 19.0 MiB")
    assert found.confidence is Confidence.HIGH


def test_a_request_for_more_than_was_free_is_no_fragmentation():
    assert findings(device_fragmentation, out_of_memory(900 * MIB)) == []


def test_pieces_that_are_no_more_are_dismissed():
    (what,) = dismissed(device_fragmentation, watched(inactive_split=plateau(900)))
    assert what.why.startswith("it levels off")


# --- 15 ------------------------------------------------------------------------------------------------------------------


def waiting(*counts, frames=-1):
    return [[segment(block(MIB), *[block(10 * MIB, "pending", frames)] * count, stream=0x55)] for count in counts]


def test_waiting_blocks_are_told_by_stream_and_by_place():
    case = watched(pending=ramp(400), snapshots=waiting(1, 20, 40, frames=0), frames=[[["feed.py", 3, "copy"]]])
    (found,) = findings(deferred_frees, case)
    assert "in the last snapshot 40 blocks wait: 400.0 MiB of stream 0x55" in found.reasons
    assert found.confidence is Confidence.HIGH and found.site.function == "copy"
    assert "NCCL" not in found.remedy


def test_collectives_are_spoken_of_where_nccl_is_loaded():
    (found,) = findings(deferred_frees, watched(pending=ramp(400), libraries=["libnccl"]))
    assert "TORCH_NCCL_AVOID_RECORD_STREAMS" in found.remedy and found.confidence is Confidence.LOW


def test_a_level_of_waiting_blocks_is_dismissed_and_a_low_one_is_not_told():
    (what,) = dismissed(deferred_frees, watched(pending=100 * MIB))
    assert what.why.startswith("it levels off: always 100.0 MiB or more wait")
    assert dismissed(deferred_frees, watched(pending=30 * MIB)) == []


# --- 18, 19 --------------------------------------------------------------------------------------------------------------


def test_groups_and_steps_that_are_as_many_show_the_cause():
    case = watched(outside=steps(300, 12), **groups(2, 5, 8))
    (found,) = findings(communicators, case)
    assert found.reasons[0] == "process groups of torch.distributed: 2 -> 5 -> 8"
    assert found.confidence is Confidence.HIGH and "destroy_process_group" in found.remedy


def test_groups_that_become_no_more_are_not_the_cause():
    assert findings(communicators, watched(outside=steps(300, 12), **groups(8, 8, 8))) == []


def test_growth_without_steps_is_not_that_of_groups():
    assert findings(communicators, watched(outside=ramp(900), **groups(2, 3, 5))) == []


def test_other_allocators_are_named_and_none_is_blamed():
    (found,) = findings(other_allocators, watched(outside=ramp(900), libraries=["libnvinfer.so.10"], packages={"cupy": "13.0"}))
    assert "loaded libraries with allocators of their own: CuPy, TensorRT" in found.reasons
    assert found.confidence is Confidence.LOW and found.doubts[0].startswith("not attributable")
    assert "cupy.get_default_memory_pool()" in found.remedy


def test_without_such_a_library_the_growth_is_unattributed():
    case = watched(outside=ramp(900))
    assert findings(other_allocators, case) == []
    (found,) = findings(device_unattributed, case)
    assert found.reasons[0].startswith("unattributed: ") and "CUPTI" in found.remedy


def test_growth_that_groups_explain_is_not_that_of_other_allocators():
    case = watched(outside=steps(300, 12), libraries=["cupy"], **groups(2, 5, 8))
    assert findings(other_allocators, case) == [] and findings(device_unattributed, case) == []


# --- all -----------------------------------------------------------------------------------------------------------------


def test_use_that_is_only_known_from_the_whole_device_lowers_confidence():
    around = {"outside": steps(300, 12), **groups(2, 5, 8)}
    (exact,) = findings(communicators, watched(**around))
    (vague,) = findings(communicators, watched(quality="approximate", **around))
    assert (exact.confidence, vague.confidence) == (Confidence.HIGH, Confidence.MEDIUM)
    assert any("only known from the use of the whole device" in doubt for doubt in vague.doubts)


def test_a_term_that_takes_the_place_of_another_is_no_claim():
    (found,) = findings(deferred_frees, watched(pending=ramp(400), releasable=lambda t: (900 - 4 * t) * MIB,
                                                snapshots=waiting(1, 20, 40)))
    assert found.confidence is Confidence.LOW and any("did not grow as a whole" in doubt for doubt in found.doubts)


def test_what_was_not_measured_is_a_doubt():
    (found,) = findings(deferred_frees, watched(pending=ramp(400), outside=None))
    assert any("(NVML)" in doubt and "the map of its blocks" in doubt for doubt in found.doubts)


def test_three_findings_of_a_device_are_kept_those_that_explain_most_of_their_term():
    case = watched(pending=ramp(400), outside=ramp(900), allocated_unowned=ramp(500), workspaces=ramp(600),
                   snapshots=workspaces(1, 10, 20))
    found = [*findings(deferred_frees, case), *findings(device_unattributed, case), *findings(cublas_workspaces, case)]
    assert len(found) >= 4
    kept = _devices.strongest(case, found)
    assert len(kept) == 3 and kept == [each for each in found if each in kept]


@pytest.mark.parametrize("name", ["cuda:1", "xpu:0", "mps:0"])
def test_every_kind_of_device_has_its_own_columns_and_name(name):
    (found,) = findings(deferred_frees, watched(name=name, pending=ramp(400), about={"provider": name.partition(":")[0]}))
    assert found.layer == name and set(found.growth_bytes) == {name}
    (found,) = findings(device_fragmentation, watched(name=name, inactive_split=ramp(400),
                                                      about={"provider": name.partition(":")[0]}))
    assert ("expandable_segments:True" in found.remedy) == name.startswith("cuda")  # only CUDA's is known to take it


def test_an_allocator_without_a_map_of_its_blocks_is_told_how_to_get_one():
    (found,) = findings(device_unattributed, watched(allocated_owned=ramp(400), about={"backend": "cudaMallocAsync"}))
    assert found.remedy == ("cudaMallocAsync has no map of its blocks: run once with PYTORCH_CUDA_ALLOC_CONF=backend:native to "
                            "see them.")
