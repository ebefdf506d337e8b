"""`leakscope explain` shows the manual of a rule under each of its names."""

from __future__ import annotations

from pathlib import Path

import pytest

from leakscope import baseline, plugins
from leakscope.cli import main
from leakscope.commands import explain

DETECTORS = plugins.load("leakscope.detectors", ("RULE", "detect"))


@pytest.mark.parametrize("file_name", DETECTORS)
def test_a_rule_is_found_by_code_name_and_file(capsys: pytest.CaptureFixture[str], file_name: str) -> None:
    module = DETECTORS[file_name]
    manuals = set()
    for name in (module.RULE.code, module.RULE.code.lower(), module.RULE.name, file_name):
        assert main(["explain", name]) == 0
        manuals.add(capsys.readouterr().out)
    (manual,) = manuals
    assert manual.startswith(f"{module.RULE.code} {module.RULE.name}: {module.RULE.title}\n")
    assert (module.__doc__ or "").strip().splitlines()[0] in manual


def test_without_a_rule_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == sorted(module.RULE.code for module in DETECTORS.values())


@pytest.mark.parametrize(("typed", "hint"), [("unbounded-contaner", "leakscope explain unbounded-container"),
                                             ("attrs-linecash", "leakscope explain attrs-linecache"),
                                             ("zzz", "leakscope explain")])
def test_an_unknown_rule_is_a_mistake_with_the_nearest_name(capsys: pytest.CaptureFixture[str], typed: str, hint: str) -> None:
    assert main(["explain", typed]) == 2
    assert capsys.readouterr().err == f"leakscope: There is no rule '{typed}'.\n  hint: {hint}\n"


def test_the_catalogue_of_known_leaks_is_listed_and_each_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "known"]) == 0
    listed, _, form = capsys.readouterr().out.partition("\n\n")
    names = [line.split()[0] for line in listed.splitlines()]
    assert "--known FILE.toml" in form
    assert names == [leak.id for leak in baseline.catalogue()]
    for leak in baseline.catalogue():
        assert main(["explain", leak.id]) == 0
        text = capsys.readouterr().out
        assert all(part in text for part in (leak.explanation, leak.fix, leak.reference, leak.checked, *leak.path))


def test_the_form_of_a_list_of_ones_own_is_accepted_as_it_is_shown(tmp_path: Path) -> None:
    shown = "\n".join(line for line in explain.OWN_LIST.splitlines() if line.startswith("    "))
    (tmp_path / "known.toml").write_text(shown.replace("LS1-...", "LS1-" + "A" * 16))
    (leak,) = baseline.own_list(tmp_path / "known.toml").leaks
    assert leak.reference == "SHOP-12"
    (tmp_path / "known.toml").write_text(shown.replace("# path", "path").replace("fingerprint", "# fingerprint"))
    assert baseline.own_list(tmp_path / "known.toml").leaks[0].path
