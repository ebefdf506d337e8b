"""A forked worker that touches what it inherited does not leak."""

from __future__ import annotations

from leakscope.case import Case
from leakscope.detectors import copied_pages
from leakscope.model import Dismissed
from tests.detectors.cases import MIB, detected, timeline


def worker(private, anon=100 * MIB):
    samples = timeline(40, anon_bytes=anon, rss_bytes=anon, file_bytes=9 * MIB, shmem_bytes=0, pss_anon_bytes=private,
                       pss_file_bytes=MIB, pss_shmem_bytes=0, uss_bytes=private, malloc_used_bytes=20 * MIB,
                       malloc_free_bytes=MIB,
                       py_blocks=100_000)
    return Case([], samples, {"pid": 8, "parent": 2, "role": "fork"})


def test_pages_that_become_the_workers_own_are_dismissed_with_their_size_and_what_can_follow():
    findings, dismissed = detected(worker(lambda t: 20 * MIB + 1.5 * t * MIB))
    (copied,) = [each for each in dismissed if "copy-on-write" in each.why]
    assert findings == []
    assert copied.growth_bytes == 60 * MIB and "process 8, a worker" in copied.what
    assert "resident memory did not grow by it" in copied.why and "20.0 MiB at most can follow" in copied.why


def test_a_worker_that_grows_by_itself_is_not_excused():
    def grows(t):
        return 100 * MIB + t * MIB

    assert list(copied_pages.detect(worker(lambda t: grows(t) - 50 * MIB, grows))) == []


def test_it_is_no_finding_in_any_case():
    assert all(isinstance(each, Dismissed) for each in copied_pages.detect(worker(lambda t: 20 * MIB + t * MIB)))
