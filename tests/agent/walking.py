"""Runs a program that takes a snapshot of itself with the real walk, and follows named edges in what it wrote."""

from __future__ import annotations

import functools
import importlib.util
import json
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leakscope.agent import format as layout
from tests.agent.probes import stage_probe
from tests.agent.staged import AGENT, VERSIONS, interpreter
from tests.shared import once

# The agent's own way in would start its thread and its ladder; here only the walk is wanted.
PREAMBLE = """
import sys
_made = type(sys)("_leakscope_agent")
_made.__path__ = [sys.argv[1] + "/_leakscope_agent"]
sys.modules["_leakscope_agent"] = _made
del _made

def snapshot(**more):
    from _leakscope_agent import probe, walk
    way = walk if probe.why_not() else probe  # it is staged where the native walk is wanted
    return way.take(sys.argv[2], 1, "manual", 5, **more)
"""


# The dict of an instance or module, and up to 3.10 the frame of a generator, is no step of its own.
PASSED = ("__dict__", "gi_frame", "cr_frame")


@dataclass
class Snapshot:
    """A snapshot as the files say it, without the host's code."""

    folder: Path
    output: str

    def __post_init__(self) -> None:
        self.columns = {name: np.load(self.folder / f"{name}.npy") for name in (*layout.COLUMNS, *layout.STORAGE_COLUMNS)
                        if name in layout.COLUMNS or (self.folder / f"{name}.npy").exists()}
        self.names = json.loads((self.folder / "names.json").read_text())
        self.done = json.loads((self.folder / "done.json").read_text())
        self.strings: list[str] = self.names["strings"]
        self.types = [".".join(filter(None, row[:2])) for row in self.names["types"]]

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["columns"][name]
        except KeyError:
            raise AttributeError(name) from None

    def type(self, node: int) -> str:
        return self.types[self.type_id[node]]

    def nodes(self, type_name: str) -> list[int]:
        """Nodes of a type given as module.qualname."""
        return np.flatnonzero(np.isin(self.type_id, [i for i, t in enumerate(self.types) if t == type_name])).tolist()

    def node(self, type_name: str) -> int:
        """The only node of a type."""
        (node,) = self.nodes(type_name)
        return node

    def edges(self, node: int) -> list[tuple[str, str, int]]:
        """(kind, text, target) of what a node holds."""
        start, end = int(self.edge_start[node]), int(self.edge_start[node + 1])
        codes, targets = self.edge_label[start:end].tolist(), self.edge_target[start:end].tolist()
        return [(*self.edge_texts[code], target) for code, target in zip(codes, targets, strict=True)]

    @functools.cached_property
    def edge_texts(self) -> dict[int, tuple[str, str]]:
        """(kind, text) by code of a label."""
        found = {}
        for code in np.unique(self.edge_label).tolist():
            kind, value = code >> layout.EDGE_KIND_SHIFT, code & layout.EDGE_VALUE_MASK
            is_number = kind in (layout.INDEX, layout.STACK)
            found[code] = layout.EDGE_KINDS[kind], str(value) if is_number else self.strings[value]
        return found

    def holders(self, node: int) -> list[tuple[int, str, str]]:
        """(holder, kind, text) of the edges to a node."""
        numbers = np.flatnonzero(self.edge_target == node)
        sources = np.searchsorted(self.edge_start, numbers, side="right") - 1
        found = []
        for source, number in zip(sources.tolist(), numbers.tolist(), strict=True):
            kind, text, _target = self.edges(source)[number - int(self.edge_start[source])]
            found.append((source, kind, text))
        return found

    def roots(self, kind: str, label: str) -> list[int]:
        """Nodes of the roots of a kind and label."""
        return [int(node) for node, k, text in zip(self.root_node, self.root_kind, self.root_label, strict=True)
                if layout.ROOT_KINDS[k] == kind and self.strings[text] == label]

    def follow(self, starts: Iterable[int], *steps: str) -> list[int]:
        """The nodes that the steps lead to: `kind text` or `kind` each; PASSED edges are passed through."""
        here = list(starts)
        for step in steps:
            kind, _, text = step.partition(" ")
            spaces = [t for node in here for k, x, t in self.edges(node) if k == "internal" and x in PASSED]
            edges = [edge for node in here + spaces for edge in self.edges(node)]
            here = sorted({t for k, x, t in edges if k == kind and (not text or x == text)})
        return here

    def module(self, name: str = "__main__") -> list[int]:
        return self.roots("module", f"module {name}")


class Native(str):
    """A version of CPython on which the native walk is wanted. What else is asked of it, it answers as the version."""


# Every law of the walk holds for both.
WAYS = (*VERSIONS, *(pytest.param(Native(version), id=f"{version}-native") for version in VERSIONS[1:]))


def take(python: str, program: str, folder: Path, *flags: str, is_native: bool = False) -> Snapshot:
    """Run `program` (it calls snapshot()) with an interpreter; fails if the program fails."""
    left_out = shutil.ignore_patterns("__pycache__", "boot", "_probe", "*.so")
    shutil.copytree(AGENT, folder / "_leakscope_agent", ignore=left_out, dirs_exist_ok=True)
    if is_native:
        stage_probe(python, folder / "_leakscope_agent")
    path = folder / "program.py"
    path.write_text(PREAMBLE + program)
    result = subprocess.run([python, "-X", "faulthandler", *flags, str(path), str(folder), str(folder / "out")],
                            capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr[-3000:] + result.stdout[-1000:]
    return Snapshot(folder / "out", result.stdout)


def take_on(version: str, program: str, folder: Path) -> Snapshot:
    """The snapshot of a program on a version, by the native walk where `version` is Native."""
    return take(interpreter(version), program, folder, is_native=isinstance(version, Native))


def taken(version: str, program: str) -> Snapshot:
    """The same, taken once, shared by the tests of all workers that only read it."""
    return _taken(str(version), program, isinstance(version, Native))


# Few are kept: tests that walk their own process walk whatever it holds.
@functools.lru_cache(maxsize=4)
def _taken(version: str, program: str, is_native: bool) -> Snapshot:
    return Snapshot(*_written(version, program, is_native))


def _written(version: str, program: str, is_native: bool) -> tuple[Path, str]:
    way = Native(version) if is_native else version

    def make(folder: Path) -> None:
        (folder / "output").write_text(take_on(way, program, folder).output)

    interpreter(version)  # skips where there is none
    folder = once(f"walk {version} {is_native} {program}", make)
    return folder / "out", (folder / "output").read_text()


def needs(library: str) -> None:
    """Skip the test where the programs have no such library. It is not imported here: see above."""
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed here")
