"""Growth that is spread over many paths: named by the container below which it spreads, and by nothing above it."""

from __future__ import annotations

from leakscope.analyse.branches import branches
from leakscope.case import Case
from leakscope.model import Confidence
from tests.detectors.cases import case, detected

LETTERS = "abcdefghijklmnop"


def spread(holder: str, edge: str, size: str = "{n}KiB") -> str:
    """Two levels of dicts by letter below `holder`, every leaf of which grows by little."""
    lines = [f"module app\napp .completer -> completer:app.Completer\ncompleter .{holder} -> {holder}:dict"]
    for first in LETTERS:
        lines.append(f"{holder} {edge.format(first)} -> {first}1:dict")
        lines += [f"{first}1 ['{second}'] -> {first}{second}:dict {size}" for second in LETTERS]
    return "\n".join(lines)


def found(examined: Case) -> list[str]:
    """The owners of what is spread; leaves are no buffers of their own here."""
    return [examined.path(pile.owner_node).owner for pile in branches(examined.last, examined.growth, [])]


def test_what_is_spread_over_the_paths_of_a_trie_belongs_to_its_root():
    examined = case(spread("trie", "['{}']"), n=[1, 3, 5, 7])
    assert found(examined) == ["app.completer.trie"]
    (finding,), _ = detected(examined)
    assert (finding.rule.code, finding.owner, finding.leaked_type) == ("LS101", "app.completer.trie", "dict")
    assert finding.confidence is Confidence.MEDIUM
    assert finding.frees_bytes is not None
    assert finding.frees_bytes > 7 * 256 << 10


def test_attributes_are_no_entries():
    assert found(case(spread("state", ".{}"), n=[1, 3, 5, 7])) == []


def test_a_branch_that_gives_something_back_is_none():
    assert found(case(spread("trie", "['{}']"), n=[1, 5, 3, 7])) == []


def test_less_than_can_be_claimed_is_not_looked_for():
    assert found(case(spread("trie", "['{}']", "{n}00B"), n=[1, 3, 5, 7])) == []


def test_a_branch_in_three_snapshots_is_believed_little():
    assert [each.confidence for each in detected(case(spread("trie", "['{}']"), n=[1, 4, 7]))[0]] == [Confidence.LOW]


def test_what_an_accumulation_explains_is_in_no_branch():
    shifts = "\n".join(f"jobs ['{name}'] -> {name}:dict\n{name} [*] -> app.Job x{{n}} 16KiB" for name in ("day", "eve", "dawn"))
    examined = case(f"module app\napp .jobs -> jobs:dict\n{shifts}", n=[100, 200, 300, 400])
    assert found(examined) == ["app.jobs"]
    assert branches(examined.last, examined.growth, examined.accumulations) == []


def test_a_tree_of_nodes_belongs_to_its_topmost_node_that_branches():
    examined = case("module app\napp .index -> index:app.Index\nindex .top -> top:app.Node\n"
                    "top .left -> left:app.Node {n}KiB\ntop .right -> right:app.Node {n}KiB", n=[100, 300, 500, 700])
    assert found(examined) == ["app.index.top"]
