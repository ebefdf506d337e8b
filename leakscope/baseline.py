"""What is known of a finding: its fingerprint, and whether a catalogue or a team's own list has it already.

The catalogue of known leaks (`known_leaks.toml`) is data: LeakCanary's library leaks with versions. An entry matches only
where the path matches *and* the version of the package that the process had loaded. A match says so beside the finding; it
never hides one.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from leakscope.analyse.fingerprint import Fingerprint, accumulation, fingerprint, of_words, script_of, words
from leakscope.model import EVIDENCE_BITS, Finding

CATALOGUE_FILE = "known_leaks.toml"
_ANYTHING, _ANY_STEPS, _OR = "%", "...", "|"


@dataclass(frozen=True)
class KnownLeak:
    """One entry of the catalogue; what the fields mean is said at the top of known_leaks.toml."""

    id: str
    package: str
    versions: str
    path: tuple[str, ...]
    explanation: str
    fix: str
    reference: str
    checked: str
    root: str = ""
    type: str = ""

    @property
    def fixed_in(self) -> str:
        """The first version without the leak; "" where none is known."""
        return next((clause.version for clause in SpecifierSet(self.versions) if clause.operator == "<"), "")


@cache
def catalogue() -> tuple[KnownLeak, ...]:
    """Return the known leaks of libraries, by their id."""
    text = files("leakscope").joinpath(CATALOGUE_FILE).read_text("utf-8")
    return tuple(_entry(each) for each in tomllib.loads(text)["leak"])


def _entry(fields: dict[str, Any]) -> KnownLeak:
    return KnownLeak(**{**fields, "path": tuple(fields["path"])})


def known(findings: Iterable[Finding], packages: Mapping[str, str], script: str = "") -> list[Finding]:
    """Return the findings with their fingerprints, and `known` set where path and version match an entry of the catalogue.

    Args:
        packages: version by name, as process.json has it; "python" is the interpreter.
        script: what `__main__` is called (analyse/fingerprint.py, script_of).
    """
    return [_identified(finding, packages, script) for finding in findings]


def known_to(info: Mapping[str, Any], findings: Iterable[Finding]) -> list[Finding]:
    """The same for the findings in one process; `info` is its process.json."""
    packages = {**info.get("packages", {}), "python": str(info.get("python", ""))}
    return known(findings, packages, script_of(info.get("argv", ())))


def _identified(finding: Finding, packages: Mapping[str, str], script: str) -> Finding:
    leak = next((each for each in catalogue() if matches(each, finding, packages)), None)
    named = _fingerprint(finding, leak, script)
    told = replace(finding, fingerprint=named.text, similar=named.similar, preimage=named.preimage)
    if leak is None:
        return told
    order = list(EVIDENCE_BITS)
    evidence = sorted({*finding.evidence, ("K", f"known: {leak.id}")}, key=lambda bit: order.index(bit[0]))
    return replace(told, known=sentence(leak, packages[leak.package]), evidence=tuple(evidence))


def _fingerprint(finding: Finding, leak: KnownLeak | None, script: str) -> Fingerprint:
    """By the catalogue, the path, or else the function that allocates (LeakCanary and Sentry do it in this order)."""
    if leak is not None:
        return of_words("known", leak.id)
    if finding.path is not None and finding.path.steps:
        return fingerprint(finding.path, finding.cycle, script)
    return of_words(finding.rule.code, finding.layer, finding.owner, *(site.function for site in finding.sites[:1]))


def sentence(leak: KnownLeak, version: str) -> str:
    """Return what is known, for a report: `Fixed in aiohttp 3.10.11; this process has 3.10.10. aiohttp keeps …`."""
    name = {"python": "CPython"}.get(leak.package, leak.package)
    fixed = f"Fixed in {name} {leak.fixed_in}" if leak.fixed_in else f"Not fixed in any {name} that was looked at"
    return f"{fixed}; this process has {version}. {leak.explanation} {leak.fix} {leak.reference}"


# --- matching ----------------------------------------------------------------------------------------------------------------


def matches(leak: KnownLeak, finding: Finding, packages: Mapping[str, str]) -> bool:
    """True if the version of the package and the path of the finding are those of a known leak."""
    version = packages.get(leak.package)
    if version is None or not is_in_range(version, leak.versions) or finding.path is None:
        return False
    if leak.root and leak.root != finding.path.root_kind or leak.type and not _fits(leak.type, finding.leaked_type):
        return False
    if finding.cycle:
        turn = [f"{step.type}{step.edge}" for step in finding.cycle]
        return any(_fit(leak.path, [*turn[start:], *turn[:start]]) for start in range(len(turn)))
    names = words(finding.path)
    owner = accumulation(finding.path)
    return any(end > owner for start in range(len(names)) for end in _fit(leak.path, names, start))


def _fit(pattern: Sequence[str], names: Sequence[str], start: int = 0) -> list[int]:
    """Where a pattern that begins at `start` can end: positions after its last word; empty where it does not fit."""
    ends = {start}
    for wanted in pattern:
        if wanted == _ANY_STEPS:
            ends = {end for first in ends for end in range(first, len(names) + 1)}
        else:
            ends = {end + 1 for end in ends if end < len(names) and _fits(wanted, names[end])}
    return sorted(ends)


def _fits(wanted: str, name: str) -> bool:
    """True if one of the alternatives of a pattern's word is the name; `%` stands for anything."""
    return any(re.fullmatch(".*".join(map(re.escape, each.split(_ANYTHING))), name) for each in wanted.split(_OR))


# --- versions ----------------------------------------------------------------------------------------------------------------


def is_in_range(version: str, wanted: str) -> bool:
    """True if a version is in a range of PEP 440 such as `>=2.0,<2.6.1`; one that cannot be read is in no range."""
    try:
        return SpecifierSet(wanted).contains(Version(version.rstrip("+")), prereleases=True)  # CPython's own builds end in "+"
    except InvalidVersion:
        return False
