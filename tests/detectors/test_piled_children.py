"""Children that pile up, and pools that are filled once."""

from __future__ import annotations

from leakscope.analyse.kin import Relative
from leakscope.case import Case
from leakscope.detectors import piled_children
from leakscope.detectors.piled_children import TO_END, TO_WAIT
from tests.detectors.cases import MIB, timeline


def found(family=(), **columns):
    columns = {"anon_bytes": 40 * MIB, "rss_bytes": 50 * MIB, "file_bytes": 0, "shmem_bytes": 0, **columns}
    return list(piled_children.detect(Case([], timeline(40, **columns), {"pid": 1}, family=family)))


def born(pid, at_s):
    rows = timeline(40 - at_s, uss_bytes=9 * MIB, anon_bytes=9 * MIB)
    rows = [dict(sample, t_ns=sample["t_ns"] + int(at_s * 1e9)) for sample in rows]
    return Relative({"pid": pid, "parent": 1, "started_ns": int(at_s * 1e9)}, rows)


def test_children_that_ended_and_were_not_waited_for_are_a_finding_without_bytes():
    (finding,) = found(children=lambda t: t, children_ended=lambda t: t)
    assert finding.owner == "child processes of process 1" and finding.remedy == TO_WAIT
    assert finding.growth_bytes == {"host": 0} and finding.share_of_growth_ratio is None
    assert any("nobody has waited" in reason for reason in finding.reasons)


def test_children_that_live_count_with_their_memory():
    (finding,) = found([born(10 + at, float(at)) for at in range(2, 38, 2)], children=lambda t: t / 2, children_ended=0)
    assert finding.remedy == TO_END
    assert finding.growth_bytes["host"] > 100 * MIB and finding.share_of_growth_ratio > 0.9


def test_children_of_which_nothing_is_known_are_said_to_be_so():
    (finding,) = found(children=lambda t: t, children_ended=0)
    assert any("not known" in doubt for doubt in finding.doubts)


def test_a_pool_is_no_pile():
    assert found(children=lambda t: min(t * 4, 16), children_ended=0) == []
