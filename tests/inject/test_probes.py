"""A probe is built for an interpreter that can have one, whole or not at all; everything else is one sentence and a hint."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import pytest

from leakscope.errors import LeakScopeError, UsageError
from leakscope.inject import _probes
from tests.agent.probes import probe_for
from tests.agent.staged import python

__all__ = ["python"]


@pytest.fixture(scope="module")
def here() -> _probes.Interpreter:
    return _probes.look_at(sys.executable)


def test_an_interpreter_says_what_it_is(here: _probes.Interpreter) -> None:
    assert (here.version, here.name) == (sys.version_info[:3], f"CPython {sys.version.split()[0]}")
    assert _probes.file_name(here.soabi).endswith(here.suffix)


@pytest.mark.parametrize(("changes", "sentence"), [
    ({"implementation": "pypy"}, "The probe reads the memory of CPython, and '/py' is PyPy 3.12.1."),
    ({"platform": "win32"}, "The probe is built on Linux only, and '/py' runs on win32."),
    ({"version": (3, 9, 18)}, "The probe knows CPython 3.10 and later, and '/py' is CPython 3.9.18."),
    ({"free_threaded": True}, "The probe needs the interpreter's lock, and '/py' is a free-threaded build."),
    ({"debug": True}, "The probe knows release builds, and '/py' is a debug build."),
    ({"bits": 32}, "The probe knows 64-bit machines, and '/py' is built for 32 bits."),
    ({"include": Path("/none")}, "The headers of CPython 3.12.1 are not installed: there is no '/none/Python.h'."),
])
def test_an_interpreter_that_can_have_none_is_refused_in_a_sentence(
        here: _probes.Interpreter, tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    other = dataclasses.replace(here, python="/py", **{"version": (3, 12, 1), **changes})
    with pytest.raises(LeakScopeError) as refused:
        _probes.compile_for(other, tmp_path / "probe.so")
    assert refused.value.sentence == sentence
    assert list(tmp_path.iterdir()) == []


def test_headers_without_the_internal_ones_are_not_enough(here: _probes.Interpreter, tmp_path: Path) -> None:
    (tmp_path / "Python.h").write_text("")
    refusal = dataclasses.replace(here, include=tmp_path).refusal()
    assert refusal is not None and "internal/pycore_interp.h" in refusal[0]


@pytest.mark.parametrize(("python", "sentence"), [
    ("no-such-python", "There is no interpreter 'no-such-python'."),
    ("/bin/true", "'/bin/true' does not answer as a Python 3 interpreter does."),
])
def test_what_is_no_interpreter_is_a_mistake(python: str, sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        _probes.look_at(python)
    assert refused.value.sentence == sentence


@pytest.mark.parametrize(("variables", "sentence"), [
    ({"PATH": "", "CC": ""}, "There is no C compiler: none of cc, gcc, clang is on PATH."),
    ({"CC": "no-such-cc -m64"}, "There is no C compiler 'no-such-cc', which CC names."),
])
def test_without_a_compiler_the_sentence_says_what_was_looked_for(
        monkeypatch: pytest.MonkeyPatch, here: _probes.Interpreter, tmp_path: Path, variables: dict[str, str],
        sentence: str) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(LeakScopeError) as refused:
        _probes.compile_for(here, tmp_path / "probe.so")
    assert refused.value.sentence == sentence


def test_what_a_failing_compiler_said_lies_in_the_file_that_is_named(
        monkeypatch: pytest.MonkeyPatch, here: _probes.Interpreter, tmp_path: Path) -> None:
    failing = tmp_path / "failing-cc"
    failing.write_text("#!/bin/sh\necho 'probe.h:1: no such thing' >&2\nexit 7\n")
    failing.chmod(0o755)
    monkeypatch.setenv("CC", str(failing))
    with pytest.raises(LeakScopeError) as refused:
        _probes.compile_for(here, tmp_path / "cache" / "probe.so")
    log = tmp_path / "cache" / "probe.log"
    assert refused.value.sentence == (f"'{failing}' did not compile the probe for {here.name} (exit code 7); what it said is "
                                      f"in '{log}'.")
    assert "probe.h:1: no such thing" in log.read_text()
    assert list(log.parent.iterdir()) == [log]


def test_a_cache_that_cannot_be_written_is_named(here: _probes.Interpreter, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LeakScopeError, match="The probe cannot be written to '.*/file/probes': .*directory"):
        _probes.compile_for(here, tmp_path / "file" / "probes" / "probe.so")


def test_the_sources_compile_without_a_warning(python: str) -> None:
    assert list(probe_for(python).glob("_probe.*.so"))


def test_another_source_is_another_file_in_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = _probes.cached("3.11.7-cpython-311-anything")
    for path in (*_probes.sources(), *_probes.SOURCES.glob("*.h")):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "probe.h").write_text("/* changed */")
    monkeypatch.setattr(_probes, "SOURCES", tmp_path)
    _probes.digest.cache_clear()
    try:
        assert _probes.cached("3.11.7-cpython-311-anything") != before
    finally:
        monkeypatch.undo()
        _probes.digest.cache_clear()
