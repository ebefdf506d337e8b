"""What is known of a finding: its fingerprint, and whether a catalogue or a team's own list has it already.

The catalogue of known leaks (`known_leaks.toml`) is data: LeakCanary's library leaks with versions. An entry matches only
where the path matches *and* the version of the package that the process had loaded. A match says so beside the finding; it
never hides one.

A list of a team's own (`--known FILE`) has the same form. Its entries may name a fingerprint in place of a path, need no
package, and change neither fingerprints nor confidence: what somebody wrote down is no evidence.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path as FilePath
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from leakscope.analyse.fingerprint import Fingerprint, accumulation, fingerprint, of_words, script_of, words
from leakscope.errors import UsageError
from leakscope.heap import layout
from leakscope.model import EVIDENCE_BITS, Finding

CATALOGUE_FILE = "known_leaks.toml"
REPORTED = "as reported"  # how `checked` begins where the thread is all there is: no source was compared
_ANYTHING, _ANY_STEPS, _OR = "%", "...", "|"
_HOW_TO, _A_PATH = "leakscope explain known", 'path = ["module app.cache", "dict[*]"]'
_FINGERPRINT = re.compile(r"LS1-[A-Z2-7]{16}")
_NEEDED = ("id", "explanation", "reference")
_FIELDS = (*_NEEDED, "fingerprint", "path", "package", "versions", "root", "type", "fix", "checked")
_ENTRY = re.compile(r"^[ \t]*\[\[[ \t]*leak[ \t]*\]\]", re.MULTILINE)


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
    fingerprint: str = ""
    rule: str = ""

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
    return KnownLeak(**{**fields, "path": tuple(fields.get("path", ()))})


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
    if leak.fixed_in:
        fixed = f"Fixed in {name} {leak.fixed_in}"
    else:
        fixed = f"Reported for {name}" if leak.checked.startswith(REPORTED) else f"Not fixed in any {name} that was looked at"
    return f"{fixed}; this process has {version}. {leak.explanation} {leak.fix} {leak.reference}"


# --- a list of a team's own --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OwnList:
    """The known leaks that a team has written down; `name` is that of the file."""

    name: str = ""
    leaks: tuple[KnownLeak, ...] = ()


NO_LIST = OwnList()


def own_list(path: FilePath) -> OwnList:
    """Read a file of `[[leak]]` entries.

    Raises:
        UsageError: it cannot be read, or an entry says too little or what nobody understands; with the file and the line.
    """
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no UTF-8"
        raise UsageError(f"The list of known leaks '{path}' cannot be read: {why}.", _HOW_TO) from error
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        what, _, place = str(error).partition(" (at ")
        line = re.match(r"line (\d+)", place)
        number = int(line[1]) if line else text.count("\n") + 1
        raise UsageError(f"'{path}', line {number}, is no TOML: {what}.", _HOW_TO) from error
    for key, value in content.items():
        if key != "leak" or not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            raise UsageError(f"'{path}', line {_line(text, 0, key)}: '{key}' is no entry of a list of known leaks.",
                             "begin each entry with [[leak]]")
    seen: set[str] = set()
    leaks = []
    for number, fields in enumerate(content.get("leak", []), 1):
        if wrong := _wrong(fields, seen):
            key, what, hint = wrong
            raise UsageError(f"'{path}', line {_line(text, number, key)}: {what}.", hint or _HOW_TO)
        seen.add(fields["id"])
        leaks.append(_entry({"package": "", "versions": "", "path": (), "fix": "", "checked": "", **fields}))
    return OwnList(path.name, tuple(leaks))


def _wrong(fields: Mapping[str, Any], seen: set[str]) -> tuple[str, str, str] | None:
    """What is wrong with an entry: the key at fault, a sentence without its full stop, a hint; None if it is all right."""
    for key, value in fields.items():
        if key not in _FIELDS:
            close = difflib.get_close_matches(key, _FIELDS, 1)
            return key, f"an entry has no '{key}'", f"{close[0]} = ..." if close else ""
        if key == "path" and not (isinstance(value, list) and all(isinstance(each, str) for each in value)):
            return key, "'path' has to be a list of words", _A_PATH
        if key != "path" and not isinstance(value, str):
            return key, f"'{key}' has to be a text", f'{key} = "..."'
    for key in _NEEDED:
        if not fields.get(key):
            return key, f"the entry '{fields.get('id', '')}' has no {key}", f'{key} = "..."'
    if fields["id"] in seen:
        return "id", f"there are two entries called '{fields['id']}'", "give one of them another id"
    if bool(fields.get("fingerprint")) is bool(fields.get("path")):
        return "id", f"the entry '{fields['id']}' needs either a fingerprint or a path", 'fingerprint = "LS1-..." of a report'
    if fields.get("fingerprint") and not _FINGERPRINT.fullmatch(fields["fingerprint"]):
        return "fingerprint", f"'{fields['fingerprint']}' is no fingerprint", "copy the LS1-... of the finding from a report"
    if fields.get("path") and not any(re.sub(r"[%|.]", "", word) for word in fields["path"]):
        return "path", f"the path of '{fields['id']}' fits everything", _A_PATH
    if fields.get("root") and fields["root"] not in layout.ROOT_KINDS:
        return "root", f"there is no kind of root '{fields['root']}'", f"one of {', '.join(layout.ROOT_KINDS)}"
    return _wrong_versions(fields)


def _wrong_versions(fields: Mapping[str, Any]) -> tuple[str, str, str] | None:
    versions = fields.get("versions", "")
    if versions and not fields.get("package"):
        return "versions", f"'{fields['id']}' names versions of no package", 'package = "NAME", or leave versions out'
    try:
        SpecifierSet(versions)
    except InvalidSpecifier:
        return "versions", f"'{versions}' is no range of versions", 'versions = ">=2.0,<2.6.1"'
    return None


def _line(text: str, number: int, key: str) -> int:
    """The line of a key in an entry (the first is 1; 0 is the whole file), or else the one on which the entry begins."""
    starts = [0, *(match.start() for match in _ENTRY.finditer(text))]
    start = starts[min(number, len(starts) - 1)]
    end = starts[number + 1] if 0 < number < len(starts) - 1 else len(text)
    found = re.compile(rf"^[\s\[]*[\"']?{re.escape(key)}\b", re.MULTILINE).search(text, start, end)
    return text.count("\n", 0, found.end() if found else start) + 1


def known_to_team(team: OwnList, info: Mapping[str, Any], findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings with what the list of a team says of them before what the catalogue does.

    Args:
        info: process.json of the process they are in.
        findings: with their fingerprints.
    """
    packages = {**info.get("packages", {}), "python": str(info.get("python", ""))}
    script, told = script_of(info.get("argv", ())), []
    for finding in findings:
        leak = next((each for each in team.leaks if _is_of_team(each, finding, packages, script)), None)
        said = () if leak is None else (f"{team.name}, {leak.id}:", leak.explanation, leak.fix, leak.reference)
        text = " ".join(part for part in (*said, finding.known or "") if part)
        told.append(replace(finding, known=text or None))
    return told


def _is_of_team(leak: KnownLeak, finding: Finding, packages: Mapping[str, str], script: str) -> bool:
    if leak.path:
        return matches(leak, finding, packages, script)
    return leak.fingerprint == finding.fingerprint and _has_version(leak, packages)


# --- matching ----------------------------------------------------------------------------------------------------------------


def matches(leak: KnownLeak, finding: Finding, packages: Mapping[str, str], script: str = "") -> bool:
    """True if the version of the package and the path of the finding are those of a known leak; its rule, if it names one.

    Memory without objects has no path: there the rule, which names what the package does, has to be enough.
    """
    if not _has_version(leak, packages) or leak.rule not in ("", finding.rule.code):
        return False
    if finding.path is None or not leak.path:
        return bool(leak.rule) and not leak.path
    if leak.root and leak.root != finding.path.root_kind or leak.type and not _fits(leak.type, finding.leaked_type):
        return False
    if finding.cycle:
        turn = [f"{step.type}{step.edge}" for step in finding.cycle]
        return any(_fit(leak.path, [*turn[start:], *turn[:start]]) for start in range(len(turn)))
    names = words(finding.path, script)
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


def _has_version(leak: KnownLeak, packages: Mapping[str, str]) -> bool:
    """True if the process had loaded the package in one of the versions; an entry without a package is about every process."""
    return not leak.package or leak.package in packages and is_in_range(packages[leak.package], leak.versions)


def is_in_range(version: str, wanted: str) -> bool:
    """True if a version is in a range of PEP 440 such as `>=2.0,<2.6.1`; one that cannot be read is in no range."""
    try:
        return SpecifierSet(wanted).contains(Version(version.rstrip("+")), prereleases=True)  # CPython's own builds end in "+"
    except InvalidVersion:
        return False
