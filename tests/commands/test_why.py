"""`leakscope why`: answers with holders, and says what there is where it has none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from leakscope import session as sessions
from leakscope.agent import walk
from leakscope.commands.why import command
from leakscope.errors import LeakScopeError, UsageError


class Marker:
    """What is looked for."""


KEEP = {"orders": [Marker()]}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A session of this very process with one snapshot."""
    session = sessions.create(tmp_path_factory.mktemp("why") / "session", ["python"], {})
    process = session.path / "4242"
    (process / "snapshots").mkdir(parents=True)
    walk.take(str(process / "snapshots" / "0001"), 1, "manual", 0)
    (process / "process.json").write_text(json.dumps({"format": 1, "pid": 4242, "role": "main"}))
    return session.path


def why(*words: object) -> Result:
    return CliRunner().invoke(command, [str(word) for word in words])


def test_the_holder_is_named(recorded: Path) -> None:
    entry, = json.loads(why(recorded, "--type", "test_why.Marker", "--json").stdout)
    assert entry["path_text"].endswith("KEEP['orders'][0]")
    assert entry["root_kind"] == "module"
    assert "KEEP['orders']" in why(recorded, "--type", "test_why.Marker").stdout


def test_an_object_is_found_by_its_address(recorded: Path) -> None:
    entry, = json.loads(why(recorded, "--address", hex(id(KEEP["orders"][0])), "--json").stdout)
    assert entry["type"].endswith("test_why.Marker")


@pytest.mark.parametrize("words", [(), ("--type", "Marker", "--address", "0x1")])
def test_it_needs_a_type_or_an_address(recorded: Path, words: tuple[str, ...]) -> None:
    assert isinstance(why(recorded, *words).exception, UsageError)


def test_a_type_that_is_not_there_brings_close_ones(recorded: Path) -> None:
    error = why(recorded, "--type", "tests.commands.test_why.Markr").exception
    assert isinstance(error, LeakScopeError)
    assert "test_why.Marker" in error.hint


@pytest.mark.parametrize("words", [("--pid", 1), ("--snapshot", 99)])
def test_a_snapshot_that_is_not_there_brings_those_that_are(recorded: Path, words: tuple[object, ...]) -> None:
    error = why(recorded, "--type", "Marker", *words).exception
    assert isinstance(error, LeakScopeError)
    assert error.hint == "there are: --pid 4242 --snapshot 1"
