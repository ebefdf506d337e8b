"""One cause, one finding; two causes, two."""

from __future__ import annotations

from leakscope.analyse.grouping import grouped
from leakscope.model import Confidence, Finding, Path, Rule

RULE = Rule("LS101", "unbounded-container", "A container that only grows")


def finding(text, owner, leaked_type="dict", pid=1):
    return Finding(RULE, Confidence.HIGH, "python", owner, Path((), "module", text, owner), leaked_type, pid, 10,
                   growth_bytes={"host": 1 << 20})


def test_what_grows_below_the_entries_of_a_finding_is_told_with_it():
    first, below = finding("app.jobs[*]", "app.jobs", "app.Job"), finding("app.jobs[*].log[*]", "app.Job.log", "str")
    found = grouped([first, below])
    assert [each.owner for each in found] == ["app.jobs"]
    assert "with it grow 10 str in app.jobs[*].log[*]" in found[0].reasons[-1]


def test_values_and_keys_of_one_container_are_one_finding():
    assert len(grouped([finding("app.jobs[*]", "app.jobs"), finding("app.jobs.keys()[*]", "app.jobs", "str")])) == 1


def test_two_containers_of_one_module_are_two_findings():
    assert len(grouped([finding("app.jobs[*]", "app.jobs"), finding("app.jobs_done[*]", "app.jobs_done")])) == 2


def test_the_same_owner_in_two_processes_is_two_findings():
    assert len(grouped([finding("app.jobs[*]", "app.jobs"), finding("app.jobs[*]", "app.jobs", pid=2)])) == 2


def test_a_finding_without_a_path_explains_none():
    native = Finding(RULE, Confidence.HIGH, "native", "native memory (malloc)", None, "malloc block", 1)
    assert len(grouped([native, finding("app.jobs[*]", "app.jobs")])) == 2
