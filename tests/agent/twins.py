"""The native walk and the walk in Python, of the same heap: what differs, in sentences.

    python -m tests.agent.twins 3.11 program.py     # a program that calls both(); prints what differs
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np

from leakscope.agent import format as layout
from tests.agent.probes import stage_probe
from tests.agent.staged import AGENT, interpreter
from tests.agent.walking import Snapshot
from tests.shared import once

VERSIONS = ("3.10", "3.11", "3.12", "3.13")
_MOST_SENTENCES = 40
_KEY_COLUMNS = ("address", "kind", "label", "shallow_bytes")
_FACTS = ("shallow_bytes", "length", "kind", "state", "device", "refcount")

# The two walks one after the other, by code of the agent: its frames and variables are in neither. Both have been there
# before, so nothing is imported or found out for the first time in between.
_BOTH = '''
import gc, os, shutil

def take(first, second, own=()):
    from . import probe, walk
    assert not probe.why_not(), probe.why_not()
    gc.collect()
    gc.disable()
    for _ in range(2):
        for folder, way in ((first, probe), (second, walk)):
            shutil.rmtree(folder, ignore_errors=True)
            way.take(folder, 1, "manual", 5, own)
    gc.enable()
'''

_PREAMBLE = """
import sys
_made = type(sys)("_leakscope_agent")
_made.__path__ = [sys.argv[1] + "/_leakscope_agent"]
sys.modules["_leakscope_agent"] = _made
del _made

def both(own=()):
    from _leakscope_agent import both
    both.take(sys.argv[2], sys.argv[3], own)
"""


class Twins:
    """Two snapshots of one heap."""

    def __init__(self, folder: Path, output: str) -> None:
        self.native, self.twin = Snapshot(folder / "native", output), Snapshot(folder / "twin", output)
        self.output = output


def take(python: str, program: str, folder: Path, *flags: str) -> Twins:
    """Run `program`, which calls both(), with an interpreter; fails if the program fails."""
    agent = folder / "_leakscope_agent"
    shutil.copytree(AGENT, agent, ignore=shutil.ignore_patterns("__pycache__", "boot", "_probe", "*.so"), dirs_exist_ok=True)
    stage_probe(python, agent)
    (agent / "both.py").write_text(_BOTH)
    path = folder / "program.py"
    path.write_text(_PREAMBLE + program)
    command = [python, "-X", "faulthandler", *flags, str(path), *map(str, (folder, folder / "native", folder / "twin"))]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr[-3000:] + result.stdout[-1000:]
    return Twins(folder, result.stdout)


@functools.lru_cache(maxsize=2)  # few are kept, as in walking.py
def taken(version: str, program: str) -> Twins:
    """Both snapshots of a program on a version; taken once, shared by the tests of all workers that only read them."""
    python = interpreter(version)
    folder = once(f"twins {version} {program}", lambda made: (made / "output").write_text(take(python, program, made).output))
    return Twins(folder, (folder / "output").read_text())


class _Side:
    """One of the two, by what is the same on both sides: addresses, and for what has none kind and label."""

    def __init__(self, snapshot: Snapshot, name: str) -> None:
        self.snapshot, self.name = snapshot, name
        self.keys: list[object] = []
        for address, number, label, size in zip(*(snapshot.columns[each].tolist() for each in _KEY_COLUMNS), strict=True):
            kind = layout.NODE_KINDS[number]
            # A running frame may have a frame object on one side only: the twin makes it.
            is_nameless = address == 0 or kind == "frame"
            described = ("none", kind, snapshot.strings[label], 0 if kind == "frame" else size)
            self.keys.append(described if is_nameless else address)
        self.rows = {key: node for node, key in enumerate(self.keys)}
        texts = map(snapshot.edge_texts.__getitem__, snapshot.edge_label.tolist())
        self.held_by = [*zip(texts, map(self.keys.__getitem__, snapshot.edge_target.tolist()), strict=True)]
        self.starts: list[int] = snapshot.edge_start.tolist()
        types, strings = map(snapshot.types.__getitem__, snapshot.type_id.tolist()), snapshot.strings
        labels = map(strings.__getitem__, snapshot.label.tolist())
        self.facts = [*zip(types, labels, *(snapshot.columns[each].tolist() for each in _FACTS), strict=True)]

    @functools.cached_property
    def _edges_by_target(self) -> np.ndarray:
        return np.argsort(self.snapshot.edge_target, kind="stable")

    @functools.cached_property
    def _targets(self) -> np.ndarray:
        return self.snapshot.edge_target[self._edges_by_target]

    def holders(self, node: int) -> list[tuple[int, str]]:
        """(holder, text) of the edges to a node; few are asked for."""
        numbers = self._edges_by_target[slice(*np.searchsorted(self._targets, (node, node + 1)))]
        rows = np.searchsorted(self.snapshot.edge_start, numbers, side="right") - 1
        texts = (self.held_by[number][0] for number in numbers.tolist())
        return [(holder, f"{kind} {text}".strip()) for holder, (kind, text) in zip(rows.tolist(), texts, strict=True)]

    def edges(self, node: int) -> list[tuple[tuple[str, str], object]]:
        """((kind, text), key) of what a node holds."""
        return self.held_by[self.starts[node] : self.starts[node + 1]]

    def held(self, node: int) -> Counter[object]:
        return Counter(key for _words, key in self.edges(node))

    def labels(self, node: int) -> dict[object, list[str]]:
        found: dict[object, list[str]] = {}
        for (kind, text), key in self.edges(node):
            found.setdefault(key, []).append(f"{kind} {text}".strip())
        return {key: sorted(texts) for key, texts in found.items()}

    def text(self, key: object) -> str:
        """A node with its holders, for a person."""
        if key not in self.rows:
            return f"{key}"
        node = self.rows[key]
        return f"<{self.snapshot.type(node)} {self.snapshot.strings[self.snapshot.label[node]]} {self.way(node)}>"

    def way(self, node: int) -> str:
        """How a root leads to a node, shortened."""
        steps: list[str] = []
        seen = set()
        for _ in range(6):
            seen.add(node)
            holders = [holder for holder in self.holders(node) if holder[0] not in seen]
            if not holders:
                break
            node, step = holders[0]
            steps.append(f"{step} of {self.snapshot.type(node)}")
        return " < ".join(steps) or "held by nobody"


def differences(twins: Twins) -> str:
    """What differs between the two, one sentence a line; empty when they are the same graph.

    Allowed: names that only the native walk knows; objects that no common object holds; counts that the twin itself changes.
    """
    native, twin = _Side(twins.native, "native"), _Side(twins.twin, "twin")
    found = _nodes(native, twin)
    for key in twin.rows:
        if key in native.rows:
            found += _facts(native, twin, key)
            found += _edges(native, twin, key)
        if len(found) > _MOST_SENTENCES:
            break
    found += _roots(native, twin)
    return "".join(f"{sentence}\n" for sentence in found[:_MOST_SENTENCES])


def _nodes(native: _Side, twin: _Side) -> list[str]:
    found = []
    for here, there in ((native, twin), (twin, native)):
        for key, node in here.rows.items():
            if key not in there.rows and not _is_apart(here, node, there):
                found.append(f"only {here.name} has {here.text(key)}")
    return found


def _is_apart(here: _Side, node: int, there: _Side) -> bool:
    """True for what no common node holds: frozen by the interpreter, so the collector does not list it for the twin, or made
    by one walk for itself.
    """
    waiting, seen = [node], {node}
    while waiting:
        for holder, _text in here.holders(waiting.pop()):
            if here.keys[holder] in there.rows:
                return False
            if holder not in seen:
                seen.add(holder)
                waiting.append(holder)
    return True


# The twin cannot tell all of its own references to these.
_HELD_BY_THE_TWIN = ("builtins.str", "builtins.type", "builtins.builtin_function_or_method", "builtins.int")
# C types with a __sizeof__ that the probe does not repeat (_probe/sizes.c).
_FIXED_PART_ONLY = ("_ctypes.", "ctypes._endian.", "_pickle.", "builtins.StgDict", "decimal.Decimal", "itertools.")
_MANY, _FRAMES_OF_THE_TWIN = 500, 3


def _facts(native: _Side, twin: _Side, key: object) -> list[str]:
    one, other = native.rows[key], twin.rows[key]
    if native.facts[one] == twin.facts[other]:
        return []
    found = []
    if native.snapshot.type(one) != twin.snapshot.type(other):
        found.append(f"type: {native.snapshot.type(one)} natively, {twin.snapshot.type(other)} in the twin")
    if native.snapshot.strings[native.snapshot.label[one]] != twin.snapshot.strings[twin.snapshot.label[other]]:
        found.append(f"label: {native.snapshot.strings[native.snapshot.label[one]]!r} natively, of {twin.text(key)}")
    type_name = twin.snapshot.type(other)
    is_frame = layout.NODE_KINDS[twin.snapshot.kind[other]] == "frame"
    for name in _FACTS:
        if name == "refcount" and type_name in _HELD_BY_THE_TWIN or is_frame and name in ("shallow_bytes", "refcount"):
            continue
        values = int(native.snapshot.columns[name][one]), int(twin.snapshot.columns[name][other])
        if name == "refcount" and values[0] > _MANY and 0 < values[1] - values[0] <= _FRAMES_OF_THE_TWIN:
            continue  # the builtins, the empty tuple
        if name == "shallow_bytes" and type_name.startswith(_FIXED_PART_ONLY):
            continue
        if values[0] != values[1]:
            found.append(f"{name}: {values[0]} natively, {values[1]} in the twin, of {twin.text(key)}")
    return found


def _edges(native: _Side, twin: _Side, key: object) -> list[str]:
    one, other = native.rows[key], twin.rows[key]
    if native.edges(one) == twin.edges(other):
        return []
    here, there = native.held(one), twin.held(other)
    if here != there:
        more = [f"{native.text(k)} ({n} more, {native.labels(one)[k]})" for k, n in (here - there).items()]
        less = [f"{twin.text(k)} ({n} less, {twin.labels(other)[k]})" for k, n in (there - here).items()]
        if _is_space_natively(native, twin, one, other):
            return []
        return [f"edges of {twin.text(key)}: natively {', '.join((more + less)[:6])}"]
    names, expected = native.labels(one), twin.labels(other)
    found = []
    for target, texts in expected.items():
        # Of an object held twice by one attribute's value and by another, the twin finds the first name twice.
        wanted = Counter({text for text in texts if text.startswith("attribute ")})
        wanted += Counter(text for text in texts if text != "unknown" and not text.startswith("attribute "))
        missing = wanted - Counter(names[target])
        if missing:  # by value the twin may also find the one in __dict__ for that in a slot
            missing -= Counter(_names_in_space(native, one, target))
        if missing and not _is_taken_for_a_space(native, twin, key if texts != ["internal __dict__"] else target):
            found.append(f"names: {names[target]} natively, {texts} in the twin, from {twin.text(key)} to {twin.text(target)}")
    return found


def _names_in_space(native: _Side, node: int, target: object) -> list[str]:
    """How the __dict__ of a node calls a target."""
    spaces = [native.rows[key] for words, key in native.edges(node) if words == ("internal", "__dict__")]
    return [text for space in spaces for text in native.labels(space).get(target, [])]


def _is_taken_for_a_space(native: _Side, twin: _Side, key: object) -> bool:
    """True for a dict under an attribute that the twin has taken for the __dict__ of its holder."""
    if native.snapshot.type(native.rows[key]) != "builtins.dict":
        return False
    here = {text for _holder, text in native.holders(native.rows[key])}
    there = {text for _holder, text in twin.holders(twin.rows[key])}
    return "internal __dict__" in there and "internal __dict__" not in here


def _is_space_natively(native: _Side, twin: _Side, one: int, other: int) -> bool:
    """True for the dict of an instance that the twin could not tell from any other: it shows its keys as well."""
    of_twin = [key for (kind, _text), key in twin.edges(other) if kind != "key-object"]
    return (twin.snapshot.type(other) == "builtins.dict" and len(of_twin) == len(native.edges(one))
            and any(text == "internal __dict__" for _holder, text in native.holders(one))
            and all(kind == "attribute" for (kind, _text), _key in native.edges(one)))


# What the interpreter was given and shows to nobody (agent/roots.py, collect).
ROOTS_OF_THE_NATIVE = ("os.register_at_fork(", "sys.addaudithook()", "sys.monitoring.", "sys.settrace()", "sys.setprofile()")


def _roots(native: _Side, twin: _Side) -> list[str]:
    sides = []
    for side in (native, twin):
        snapshot = side.snapshot
        sides.append(Counter(
            (side.keys[node], layout.ROOT_KINDS[kind], snapshot.strings[label]) for node, kind, label in
            zip(snapshot.root_node.tolist(), snapshot.root_kind.tolist(), snapshot.root_label.tolist(), strict=True)))
    # The twin knows arguments of atexit callbacks only where the collector lists them.
    more = [root for root in sides[0] - sides[1] if (root[1] != "atexit" or root[0] in twin.rows) and
            not root[2].startswith(ROOTS_OF_THE_NATIVE)]
    return ([f"only native has the root {root[1:]} at {native.text(root[0])}" for root in more]
            + [f"only twin has the root {root[1:]} at {twin.text(root[0])}" for root in sides[1] - sides[0]])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="twins-") as made:
        print(differences(take(interpreter(sys.argv[1]), Path(sys.argv[2]).read_text(), Path(made))) or "no difference")
