"""One cause, one finding; two causes, two."""

from __future__ import annotations

from leakscope.analyse.grouping import grouped, joined
from leakscope.model import Confidence, Finding, Path, Rule, Step

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


def of_symbol(symbol, growth=100, leaked_type="app.Tick", attribute=".windows"):
    steps = (Step("module app", "module", ".board"), Step("Board", "app.Board", attribute),
             Step("dict", "builtins.dict", f"['{symbol}']"), Step("deque", "collections.deque", "[*]"),
             Step("Tick", leaked_type, ""))
    owner = f"app.board{attribute}['{symbol}']"
    return Finding(RULE, Confidence.MEDIUM, "python", owner, Path(steps, "module", f"{owner}[*]", owner), leaked_type, 1, 10,
                   growth_bytes={"host": growth}, share_of_growth_ratio=0.06, counts=(1, 5, 10))


def test_many_entries_of_one_collection_that_grow_alike_are_one_finding_of_their_sum():
    (found,) = joined([of_symbol(name, growth) for name, growth in zip("ABCDE", (100, 300, 200, 100, 100))])
    assert (found.owner, found.path.text) == ("app.board.windows", "app.board.windows[*][*]")
    assert (found.growth_bytes, found.object_count, found.counts) == ({"host": 800}, 50, (5, 25, 50))
    assert round(found.share_of_growth_ratio, 3) == 0.3
    assert found.reasons[0] == "5 of its entries grow alike, together by 800 B; the largest:"


def test_a_few_entries_of_one_collection_keep_the_names_of_their_keys():
    assert [each.owner[-5:] for each in joined([of_symbol(name) for name in "ABC"])] == ["['A']", "['B']", "['C']"]


def test_entries_of_different_collections_or_types_are_not_put_together():
    others = [of_symbol("A"), of_symbol("B"), of_symbol("C", leaked_type="app.Order"), of_symbol("D", attribute=".orders")]
    assert joined(others) == others
