"""The catalogue of known leaks: what an entry has to say, and that it matches only the path and the versions it is about."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from leakscope import baseline
from leakscope.baseline import KnownLeak, catalogue, is_in_range, known, known_to, known_to_team, matches, own_list
from leakscope.errors import UsageError
from leakscope.heap import layout
from leakscope.model import Confidence, CycleStep, Finding, Location, Path, Rule, Step

RULE = Rule("LS101", "unbounded-container", "A container grows without bound")
ANY = pytest.mark.parametrize("leak", catalogue(), ids=lambda leak: leak.id)


def step(word: str) -> Step:
    """The step of a path that is said with this word."""
    holder, edge = re.fullmatch(r"(.*?)((?:\.\w+|\[\*\]|\.keys\(\)\[\*\])?)", word).groups()
    kind = {"module": "module", "class": "type", "lru_cache": "functools._lru_cache_wrapper"}.get(holder.split()[0], holder)
    return Step(holder, kind, edge, "no" if kind in ("module", "type") else "unknown")


def finding(*words: str, root_kind: str = "module", leaked_type: str = "int", **more: object) -> Finding:
    """A finding whose path is said with these words."""
    leaf = words[-1] if words[-1].endswith("]") else None
    steps = (*map(step, words[:-1]), step(leaf) if leaf else Step(words[-1], words[-1], ""))
    return Finding(RULE, Confidence.HIGH, "python", "owner", Path(steps, root_kind, "", "owner"), leaked_type, **more)


def example(leak: KnownLeak) -> Finding:
    """What an entry is about: its pattern with names in place of what stands for anything."""
    def plain(text: str, anything: str) -> str:
        return text.split("|")[0].replace("%", anything)

    if not leak.path:
        return Finding(Rule(leak.rule, "", ""), Confidence.LOW, "cuda:0", "owner", None, "block")
    words = [plain(word, "[*]" if word.count(".") < 2 and word[0].islower() and " " not in word else "any")
             for word in leak.path if word != "..."]
    words = words if words[0].startswith(("module", "class")) or leak.root else ["module app.thing", *words]
    last = words[-1] if words[-1].endswith("[*]") else words[-1] + "[*]"
    return finding(*words[:-1], last, "app.Entry", root_kind=leak.root or "module",
                   leaked_type=plain(leak.type, "Any") or "int")


def version_of(leak: KnownLeak) -> str:
    """A version that has the leak: the one at a closed bound, or just below an open one."""
    bounds = dict(re.findall(r"(>=|<=|<)([^,]+)", leak.versions))
    return bounds.get(">=") or bounds.get("<=") or ("0.0.1" if "<" in bounds else "3.12.1")


@ANY
def test_an_entry_says_what_it_is_what_to_do_and_where_it_was_discussed(leak):
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", leak.id)
    assert re.fullmatch(r"[a-z][a-z0-9_]*", leak.package)
    assert leak.explanation.endswith(".") and leak.fix.endswith(".") and leak.checked
    assert re.match(r"https://github\.com/[\w.-]+/[\w.-]+/(issues|pull|security)/", leak.reference)
    assert leak.root in ("", *layout.ROOT_KINDS)
    assert re.fullmatch(r"(?:(?:>=|<=|==|!=|>|<)[\w.]+(?:,(?!$)|$))*", leak.versions)


@ANY
def test_an_entry_names_what_it_matches_and_not_only_containers(leak):
    is_named = any(len(re.sub(r"[%|.\s]", "", word)) > 12 for word in (*leak.path, leak.type))
    assert is_named or re.fullmatch(r"LS4\d\d", leak.rule)


@ANY
def test_an_entry_matches_its_own_path_in_its_versions_alone(leak):
    assert matches(leak, example(leak), {leak.package: version_of(leak)})
    assert not matches(leak, example(leak), {})
    assert not matches(leak, finding("module app.cache", "dict[*]", "app.Entry"), {leak.package: version_of(leak)})
    if leak.fixed_in:
        assert not matches(leak, example(leak), {leak.package: leak.fixed_in})


def test_no_two_entries_have_one_id_and_there_are_twenty():
    assert len({leak.id for leak in catalogue()}) == len(catalogue()) >= 20


@ANY
def test_no_other_entry_takes_what_one_is_about(leak):
    packages = {each.package: version_of(each) for each in catalogue() if each.package != leak.package}
    others = [each.id for each in catalogue() if each is not leak and matches(each, example(leak), packages)]
    assert others in ([], ["adaptix-linecache"], ["attrs-linecache"])  # both write into the same cache


@pytest.mark.parametrize("leak", [leak for leak in catalogue() if leak.rule], ids=lambda leak: leak.id)
def test_memory_without_objects_is_known_by_its_rule_and_its_package(leak):
    about = replace(example(leak), rule=Rule(leak.rule, "", ""))
    (told,) = known([about], {leak.package: version_of(leak)})
    assert told.known.startswith("Reported for torch; this process has ") and told.preimage == f"known > {leak.id}"
    neighbour = replace(about, rule=Rule("LS419", "other-allocators", ""))
    assert known([neighbour], {leak.package: version_of(leak)})[0].known is None
    assert not matches(leak, finding("module app.cache", "dict[*]", "app.Entry"), {leak.package: version_of(leak)})


LEAK = KnownLeak("shop-orders", "shop", ">=2.0,<2.6.1", ("shop.Store._orders", "dict%"), "Orders stay.", "Upgrade.",
                 "https://github.com/shop/shop/issues/1", "by hand")
ORDERS = finding("module app.store", "shop.Store._orders", "dict[*]", "shop.Order")


@pytest.fixture
def one_entry(monkeypatch):
    monkeypatch.setattr(baseline, "catalogue", lambda: (LEAK,))


def test_a_known_leak_says_which_version_is_loaded_and_which_is_mended(one_entry):
    (told,) = known([ORDERS], {"shop": "2.5.0"})
    assert told.known == ("Fixed in shop 2.6.1; this process has 2.5.0. Orders stay. Upgrade. "
                          "https://github.com/shop/shop/issues/1")
    assert dict(told.evidence)["K"] == "known: shop-orders"
    assert replace(told, known=None, evidence=(), fingerprint="", preimage="", similar="") == ORDERS


def test_a_known_leak_has_the_name_of_its_entry_in_every_program(one_entry):
    other = finding("module other.place", "shop.Store._orders", "dict[*]", "other.Order")
    first, second = known([ORDERS, other], {"shop": "2.5.0"})
    assert first.fingerprint == second.fingerprint and first.preimage == "known > shop-orders"


@pytest.mark.parametrize("packages", [{}, {"shop": "2.6.1"}, {"shop": "1.9"}, {"shop": "unknown"}])
def test_without_the_version_nothing_is_known(one_entry, packages):
    (told,) = known([ORDERS], packages)
    assert told.known is None and told.evidence == () and told.fingerprint.startswith("LS1-")


def test_a_pattern_has_to_reach_what_piles_up(one_entry):
    deeper = finding("module app.store", "shop.Store._orders", "dict[*]", "shop.Order.lines", "list[*]", "shop.Line")
    assert not matches(LEAK, deeper, {"shop": "2.5.0"})
    assert matches(replace(LEAK, path=(*LEAK.path, "...")), deeper, {"shop": "2.5.0"})


def test_alternatives_steps_that_do_not_matter_and_kinds_of_roots():
    wanted = replace(LEAK, path=("shop.Cart._orders|shop.Store._orders", "...", "shop.Order%"), root="c-held")
    held = finding("shop.Store._orders", "dict[*]", "shop.Order", root_kind="c-held")
    assert matches(wanted, held, {"shop": "2.5.0"}) and not matches(wanted, ORDERS, {"shop": "2.5.0"})
    assert not matches(replace(wanted, type="shop.%"), held, {"shop": "2.5.0"})


def test_a_cycle_matches_wherever_it_begins():
    cycle = tuple(CycleStep(*each) for each in (("Order", ".store"), ("Store", "._orders[*]")))
    looped = replace(ORDERS, cycle=cycle)
    assert matches(replace(LEAK, path=("Store._orders[*]", "Order.store")), looped, {"shop": "2.5.0"})
    assert not matches(replace(LEAK, path=("Store._orders[*]", "Cart.store")), looped, {"shop": "2.5.0"})


def test_the_facts_of_a_process_name_its_script_its_packages_and_its_python():
    info = {"argv": ["python", "serve.py"], "python": "3.9.2", "packages": {"shop": "2.5.0"}}
    (told,) = known_to(info, [finding("module __main__.cache", "dict[*]", "__main__.Entry")])
    assert told.preimage == "module serve.cache > dict[*] > serve.Entry"
    (told,) = known_to(info, [finding("module threading._shutdown_locks", "set[*]", "_thread.lock")])
    assert told.known is not None and "Fixed in CPython 3.9.6; this process has 3.9.2." in told.known


def test_native_memory_is_named_by_who_allocates_it_without_lines():
    first = Finding(RULE, Confidence.LOW, "native", "libpq.so: PQexec", None, "malloc block",
                    sites=(Location("query", "a.py", 3), Location("other", "a.py", 9)))
    moved = replace(first, sites=(Location("query", "b.py", 33),))
    assert known([first], {})[0].fingerprint == known([moved], {})[0].fingerprint
    assert known([first], {})[0].fingerprint != known([replace(first, owner="libpq.so: PQprepare")], {})[0].fingerprint


OWN = """\
# what we know
[[leak]]
id = "orders-until-restart"
path = ["shop.Store._orders", "dict%"]
explanation = "Orders stay until the nightly restart."
reference = "SHOP-12"

[[leak]]
id = "lines"
fingerprint = "{fingerprint}"
package = "shop"
versions = "<3"
explanation = "Lines are few."
fix = "None is planned."
reference = "SHOP-13"
"""
LINES = finding("module app.store", "shop.Line._all", "list[*]", "shop.Line")


def team_of(tmp_path, text):
    path = tmp_path / "known.toml"
    path.write_text(text)
    return own_list(path)


def test_a_team_knows_leaks_by_their_path_and_by_their_fingerprint(tmp_path):
    findings = known([ORDERS, LINES, finding("module app.other", "dict[*]", "app.Other")], {})
    team = team_of(tmp_path, OWN.format(fingerprint=findings[1].fingerprint))
    told = known_to_team(team, {"packages": {"shop": "2.5.0"}}, findings)
    assert [each.known for each in told] == [
        "known.toml, orders-until-restart: Orders stay until the nightly restart. SHOP-12",
        "known.toml, lines: Lines are few. None is planned. SHOP-13", None]
    assert [replace(each, known=None) for each in told] == findings  # neither fingerprint nor evidence nor confidence changes


def test_the_path_of_a_team_calls_the_script_as_the_report_does(tmp_path):
    info = {"argv": ["python", "serve.py"], "packages": {}}
    (found,) = known_to(info, [finding("module __main__.cache", "dict[*]", "__main__.Entry")])
    path = ", ".join(f'"{word}"' for word in found.preimage.split(" > "))
    entry = f'[[leak]]\nid = "a"\npath = [{path}]\nexplanation = "It stays."\nreference = "A-1"\n'
    (told,) = known_to_team(team_of(tmp_path, entry), info, [found])
    assert told.known == "known.toml, a: It stays. A-1"


def test_what_a_team_knows_of_other_versions_is_not_known(tmp_path):
    findings = known([LINES], {})
    team = team_of(tmp_path, OWN.format(fingerprint=findings[0].fingerprint))
    for packages in ({}, {"shop": "3.0"}):
        assert known_to_team(team, {"packages": packages}, findings) == findings


def test_what_a_team_knows_comes_before_what_the_catalogue_says(tmp_path, one_entry):
    findings = known([ORDERS], {"shop": "2.5.0"})
    (told,) = known_to_team(team_of(tmp_path, OWN.format(fingerprint="LS1-" + "A" * 16)), {}, findings)
    assert told.known == f"known.toml, orders-until-restart: Orders stay until the nightly restart. SHOP-12 {findings[0].known}"


@pytest.mark.parametrize("before, after, line, said, hint", [
    ("[[leak]]", "[[leaks]]", 2, "'leaks' is no entry", "[[leak]]"),
    ('id = "orders', 'id = orders', 3, "is no TOML", "explain known"),
    ('"SHOP-13"\n', '"SHOP-13', 15, "is no TOML", "explain known"),
    ('explanation = "Lines', 'explanaton = "Lines', 13, "no 'explanaton'", "explanation = ..."),
    ('reference = "SHOP-13"\n', "", 8, "'lines' has no reference", 'reference = "..."'),
    ('id = "lines"\n', "", 8, "the entry '' has no id", 'id = "..."'),
    ('id = "lines"', 'id = "orders-until-restart"', 9, "two entries", "another id"),
    ('path = ["shop.Store._orders", "dict%"]', 'path = "shop.Store"', 4, "list of words", "path = ["),
    ('path = ["shop.Store._orders", "dict%"]', 'path = ["...", "%"]', 4, "fits everything", "path = ["),
    ('path = ["shop.Store._orders", "dict%"]\n', "", 3, "either a fingerprint or a path", "LS1-"),
    ('fix = "None', 'path = ["dict[*]"]\nfix = "None', 9, "either a fingerprint or a path", "LS1-"),
    ("{fingerprint}", "LS1s-ABC", 10, "'LS1s-ABC' is no fingerprint", "report"),
    ('versions = "<3"', "versions = 3", 12, "'versions' has to be a text", 'versions = "..."'),
    ('versions = "<3"', 'versions = "below 3"', 12, "'below 3' is no range", ">=2.0"),
    ('package = "shop"\n', "", 11, "names versions of no package", "package ="),
    ('package = "shop"', 'package = "shop"\nroot = "heap"', 12, "no kind of root 'heap'", "c-held"),
])
def test_a_list_that_nobody_understands_is_refused_with_its_line(tmp_path, before, after, line, said, hint):
    assert before in OWN
    text = OWN.replace(before, after, 1)
    with pytest.raises(UsageError) as refused:
        team_of(tmp_path, text.replace("{fingerprint}", "LS1-" + "A" * 16))
    assert re.search(rf"known\.toml', line {line}\b", refused.value.sentence) and said in refused.value.sentence
    assert hint in refused.value.hint


@pytest.mark.parametrize("make, said", [(lambda path: None, "No such file"), (lambda path: path.mkdir(), "Is a directory"),
                                        (lambda path: path.write_bytes(b"\xff"), "no UTF-8")])
def test_a_list_that_cannot_be_read_says_why(tmp_path, make, said):
    make(tmp_path / "own.toml")
    with pytest.raises(UsageError, match=f"own.toml' cannot be read: .*{said}"):
        own_list(tmp_path / "own.toml")


def test_an_empty_list_knows_nothing(tmp_path):
    assert team_of(tmp_path, "").leaks == ()


@pytest.mark.parametrize("version, wanted, is_inside", [
    ("2.5.0", ">=2.0,<2.6.1", True), ("2.6.1", ">=2.0,<2.6.1", False), ("2.6.1rc1", ">=2.0,<2.6.1", False),
    ("2.0", ">=2.0.0", True), ("2.10", "<2.9", False), ("0.49b2", ">=0.37b0,<0.50b0", True), ("0.50b0", "<0.50b0", False),
    ("2.6.0+cu121", "<2.6.1", True), ("2.6.1.post1", ">2.6.1", False), ("1.0.dev3", "<1.0a1", True), ("3.1", "!=3.1", False),
    ("3.1", "==3.1.0", True), ("v2.0", "<=2.0", True), ("git", "", False), ("1", "", True)])
def test_versions_are_compared_as_packages_do(version, wanted, is_inside):
    assert is_in_range(version, wanted) is is_inside
