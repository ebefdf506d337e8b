"""Shared memory that grows, and pages that are nobody's."""

from __future__ import annotations

from leakscope.analyse import coverage
from leakscope.analyse.kin import Relative
from leakscope.case import Case
from leakscope.detectors import mapped_growth
from leakscope.model import Confidence, Dismissed
from tests.detectors.cases import MIB, timeline


def rising(t):
    return t * MIB


def found(info=None, family=(), **columns):
    columns = {"anon_bytes": 40 * MIB, "file_bytes": 10 * MIB, "shmem_bytes": 0, "rss_bytes": 50 * MIB, **columns}
    return list(mapped_growth.detect(Case([], timeline(40, **columns), info or {}, family=family)))


def test_shared_memory_that_is_mapped_and_grows_is_a_finding():
    (finding,) = found(shmem_bytes=rising, shared_files=lambda t: t, shared_file_bytes=rising)
    assert finding.owner == "shared memory"
    assert any("more files in /dev/shm" in reason for reason in finding.reasons)


def test_segments_that_were_closed_and_not_unlinked_are_a_finding_though_no_process_has_them():
    (finding,) = found(shared_files=lambda t: t, shared_file_bytes=rising)
    assert finding.owner == "shared memory that was closed and not unlinked"
    assert finding.share_of_growth_ratio is None and coverage.against((), finding.layer, 1) == ""
    assert finding.growth_bytes["host"] > 25 * MIB


def test_segments_that_another_process_of_the_session_maps_are_told_there():
    other = Relative({"pid": 3, "started_ns": 0}, timeline(40, shmem_bytes=rising))
    assert found(shared_files=lambda t: t, shared_file_bytes=rising, family=(other,)) == []
    (dismissed,) = found({"pid": 5, "started_ns": 9, "role": "fork"}, (other,), shmem_bytes=rising)
    assert isinstance(dismissed, Dismissed)
    assert "process 3" in dismissed.why


def test_shared_memory_that_stays_is_no_finding():
    assert found(shmem_bytes=30 * MIB, shared_files=3, shared_file_bytes=30 * MIB) == []
    assert found(shared_files=lambda t: 3 + (t > 9), shared_file_bytes=lambda t: 30 * MIB * (t > 9)) == []


def test_a_child_does_not_tell_of_the_folder_that_all_share():
    assert found({"role": "fork", "pid": 4}, shared_files=lambda t: t, shared_file_bytes=rising) == []


def test_pages_of_files_and_the_page_cache_are_dismissed_with_their_size():
    dismissed = found(file_bytes=lambda t: 10 * MIB + t * MIB, cgroup_inactive_file_bytes=lambda t: 2 * t * MIB)
    assert [each.what for each in dismissed] == ["pages of mapped files", "page cache of the control group"]
    assert all(isinstance(each, Dismissed) and each.growth_bytes > 25 * MIB for each in dismissed)


def test_files_in_shared_memory_that_nobody_here_was_seen_to_map_are_believed_little():
    (finding,) = found(shared_files=lambda t: t, shared_file_bytes=rising, shmem_bytes=0)
    assert finding.confidence is Confidence.LOW
    (seen,) = found(shared_files=lambda t: t, shared_file_bytes=rising, shmem_bytes=2 * MIB)
    assert seen.confidence is Confidence.MEDIUM


def test_pinned_memory_of_a_device_is_no_shared_memory_that_was_left_open():
    pinned = found(shmem_bytes=lambda t: 20 * MIB + t * 4 * MIB, pinned_held_bytes=lambda t: 10 * MIB + t * 4 * MIB)
    assert [each.why.partition(",")[0] for each in pinned] == ["it is pinned host memory for transfers to a device"]
    little = found(shmem_bytes=lambda t: 20 * MIB + t * 4 * MIB, pinned_held_bytes=10 * MIB)
    assert [each.rule.code for each in little] == ["LS303"]
