"""One name for one leak: `LS1-` and 16 letters, the same in every run, on every machine and every Python.

The idea is LeakCanary's signature (a hash of the suspect part of the reference path) with the grouping rules of Sentry: what
varies from run to run is masked, and the version of the algorithm is in the name, so that no upgrade groups anew. LS1 never
changes its meaning; another algorithm gets another name.

A path becomes *words*, one a step: the type or the name of what holds, and the edge that leaves it, such as
`serve.SessionStore._by_id` or `dict[*]`. No line numbers, no addresses, no values. What is hashed are the words of the
*suspect part*: from the last thing that lives for ever (a module, a class, a function) to the type of what piles up. The shape
hash `LS1s-` keeps only types and kinds of edges: it finds the same bug after a rename.
"""

from __future__ import annotations

import re
import sys
from base64 import b32encode
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import PurePath
from typing import NamedTuple

from leakscope.model import CycleStep, Path

_HASH_BYTES = 10  # 80 bits, 16 letters
_LONGEST_LINK = 8  # steps from one node of a chain to the next; ours
# What varies between runs of the same program. Six digits are a time, an account, a pid; shorter ones tell siblings apart.
_VOLATILE = re.compile(
    r"0x[0-9a-fA-F]+|[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
    r"|(?<![0-9A-Za-z])(?=[a-fA-F]*\d)[0-9a-fA-F]{8,}(?![0-9A-Za-z])|\d{6,}|(?<=\bThread-)\d+(?: \(\w*\))?|(?<=\bTask-)\d+"
    r"|/(?:tmp|proc)/[^\s'\"]*")
_NUMBER = re.compile(r"\d+")
_PLACE = re.compile(r" at \S+:\d+$")
_MAIN = re.compile(r"\b__(?:mp_)?main__(?=\.|$)")
_ENTRIES = ("[*]", ".cache key")  # the second: a functools.lru_cache with a limit
# Code that is under way: named by the function alone, because Pythons before 3.11 do not know the class around it.
_RUNNING = {"frame": "frame", "coroutine": "coroutine", "generator": "generator", "async_generator": "async generator"}
_FRAME_OF_GENERATOR = re.compile(r"\.(?:gi|cr|ag)_frame$")  # up to 3.10 a step of its own
_NAMED = re.compile(r"^(?:module|class|lru_cache of) ")
_EDGE_NAMES = re.compile(r"\.<closure>\.\w+|\['[^']*'\]|(?<!\))\.[\w<>?]+(?:\(\))?")


@dataclass(frozen=True)
class Fingerprint:
    """`text` such as LS1-K5Q…, `similar` the shape hash LS1s-…, `preimage` the words that `text` is the hash of."""

    text: str
    similar: str
    preimage: str


def fingerprint(path: Path, cycle: Sequence[CycleStep] = (), script: str = "") -> Fingerprint:
    """Return the fingerprint of what piles up at the end of a path, or of a reference cycle.

    Args:
        path: root first; of a cycle only `cycle` counts.
        cycle: its objects in order, beginning with any of them.
        script: what `__main__` is called (script_of).
    """
    if cycle:
        named = [(_running_name(step.type), step.edge) for step in cycle]
        return _of(_least_turn([masked(name + edge) for name, edge in named]), _least_turn([_shape(*each) for each in named]))
    known, part = _known(path, script), suspect_part(path)
    *holders, leaf = known[part.start:part.stop]
    names = [each.word for each in holders] + [masked(leaf.type if holders else leaf.holder)]
    return _of(_folded(names), _folded([_shape(each.type, each.edge) for each in holders] + [_shape(leaf.type, "")]))


def of_words(*parts: str) -> Fingerprint:
    """Return the fingerprint of something without a path: a native function, a device, an entry of the catalogue."""
    return _of([masked(part) for part in parts], [masked(part) for part in parts])


def _of(parts: Sequence[str], shape: Sequence[str]) -> Fingerprint:
    return Fingerprint(f"LS1-{_hashed(parts)}", f"LS1s-{_hashed(shape)}", " > ".join(parts))


def _hashed(parts: Sequence[str]) -> str:
    digest = sha256("\x1f".join(["LS1", *parts]).encode("utf-8", "replace")).digest()
    return b32encode(digest[:_HASH_BYTES]).decode()


# --- the words of a path -----------------------------------------------------------------------------------------------------


class _Known(NamedTuple):
    """One step, normalised: what it is called, its type, the edge that leaves it."""

    holder: str
    type: str
    edge: str
    lives_for_ever: bool
    is_of_program: bool  # an instance of a class of the program or a library
    is_running: bool
    is_over: bool

    @property
    def word(self) -> str:
        """The holder with its edge."""
        return masked(self.holder + self.edge)


def words(path: Path, script: str = "") -> list[str]:
    """Return one word a step, root first: the whole path, normalised. `known_leaks.toml` has its patterns in these words."""
    return [each.word for each in _known(path, script)]


def _known(path: Path, script: str = "") -> list[_Known]:
    """The steps of a path, a generator and its frame as one."""
    found: list[_Known] = []
    for number, step in enumerate(path.steps):
        if number and _FRAME_OF_GENERATOR.search(path.steps[number - 1].edge):  # up to 3.10: the frame is the generator
            found[-1] = found[-1]._replace(edge=step.edge)
            continue
        type_name = "class" if step.name.startswith("class ") else _main(step.type, script)
        found.append(_Known(_main(_holder(path, number), script), type_name, step.edge,
                            step.type == "function" or step.status == "no" and step.type not in _RUNNING,
                            _is_of_program(step.type), step.type in _RUNNING, step.status == "yes"))
    return found


def accumulation(path: Path) -> int:
    """Return which of the words is the container whose entries pile up: the last with entries, else the last of all."""
    known = _known(path)
    return max((number for number, each in enumerate(known) if each.edge.endswith(_ENTRIES)), default=len(known) - 1)


def suspect_part(path: Path) -> range:
    """Return which words count: from the last thing that lives for ever to what should be gone, else to what piles up.

    Where it goes through code that is under way (a variable of a function, of a suspended coroutine), or begins at a root of
    the runtime (a callback of the event loop, an object that C code holds), they begin with the last instance of a class of
    the program or a library behind that, else with the code: by whose variable and from which root an object is found may
    differ from run to run.
    """
    known = _known(path)
    before = range(accumulation(path) + 1)
    start = max((number for number in before if known[number].lives_for_ever or known[number].is_running), default=-1)
    if start < 0 or known[start].is_running:
        start = max((number for number in before if number > start and known[number].is_of_program), default=max(start, 0))
    over = [number for number in range(start + 1, len(known)) if known[number].is_over]
    return range(start, next(iter(over), max(len(known) - 1, start)) + 1)


def _holder(path: Path, number: int) -> str:
    """What one step is called: code and modules by their name, a root by its own, everything else by its type."""
    step = path.steps[number]
    name = _PLACE.sub("", step.name)
    if step.type in _RUNNING:
        return _running_name(name if name.startswith(_RUNNING[step.type]) else f"{_RUNNING[step.type]} {name}")
    if step.type == "module":
        return f"module {name.removeprefix('module ')}"
    if _NAMED.match(name):
        return name.removesuffix("()")
    if step.type == "function":
        return f"function {name.removesuffix('()')}"
    if number == 0 and path.root_kind not in ("c-held", "garbage") and name != step.type.rpartition(".")[2]:
        return _NUMBER.sub("*", masked(name)).removesuffix("()")
    return step.type


def _running_name(name: str) -> str:
    """`frame run` of `frame Runtime.run()`; other names stay."""
    for word in _RUNNING.values():
        if name.startswith(f"{word} "):
            return f"{word} {name.rpartition(' ')[2].removesuffix('()').rpartition('.')[2]}"
    return name


def _main(name: str, script: str) -> str:
    return _MAIN.sub(script, name) if script else name


def masked(text: str) -> str:
    """Return a name with `*` for what varies from run to run: addresses, UUIDs, long numbers, numbers of threads and tasks."""
    return _VOLATILE.sub("*", text)


def _is_of_program(type_name: str) -> bool:
    """True for a class that is neither built in nor of the standard library."""
    top = type_name.partition(".")[0]
    return "." in type_name and (top not in sys.stdlib_module_names or top == "__main__")


# --- shapes, turns, scripts --------------------------------------------------------------------------------------------------


def _shape(type_name: str, edge: str) -> str:
    """A step by its type without module, and the kinds of its edges."""
    return masked(type_name.rpartition(".")[2]) + _EDGE_NAMES.sub(lambda match: "[]" if match[0][0] == "[" else ".", edge)


def _folded(parts: Sequence[str]) -> list[str]:
    """A chain (each node holds the next, each error the one before) is told once, however long it has become."""
    folded: list[str] = []
    for part in parts:
        folded.append(part)
        for size in range(1, min(_LONGEST_LINK, len(folded) // 2) + 1):
            if folded[-size:] == folded[-2 * size:-size]:
                del folded[-size:]
                break
    return folded


def _least_turn(parts: Sequence[str]) -> list[str]:
    """A cycle has no beginning: of all the places to begin, take the one that sorts first."""
    return min([*parts[number:], *parts[:number]] for number in range(len(parts)))


def script_of(argv: Sequence[str]) -> str:
    """Return what `__main__` is called in a command with masked values: `serve` of `python serve.py`; "" where it is not known.

    So a leak has the same name whether its module is started or imported.
    """
    rest = iter(argv[1:])
    for word in rest:
        if word == "-m":
            return next(rest, "").partition("***")[0]
        if word[:2] == "-m" and word[2:3].isidentifier():
            return word[2:].partition("***")[0]
        if word in ("-c", "-") or word.startswith("-c"):
            return ""
        if word in ("-W", "-X"):
            next(rest, "")
        elif word[:1] != "-":
            return "" if "***" in word else PurePath(word).stem
    return ""
