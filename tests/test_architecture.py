"""The floors of the house (ARCHITECTURE, section 2), read from the imports. A broken rule says so in a sentence."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from leakscope import plugins
from leakscope.agent import format as session_format

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "leakscope"

# Which floor a part of leakscope lives on; imports go from a smaller number to a larger one.
FLOORS = {
    "cli": 1, "pytest_plugin": 1, "__main__": 1,
    "commands": 2, "no_leak": 2,
    "inject": 3, "detectors": 3, "render": 3,
    "case": 4, "report": 4, "baseline": 4, "verdict": 4, "proof": 4,
    "analyse": 5,
    "heap": 6, "session": 6,
    "model": 7, "plugins": 7, "units": 7,
    "errors": 8,
    "": 9,  # leakscope/__init__.py: the version
    "templates": 9,
}  # fmt: skip
WINGS = ("inject", "detectors", "render")
# Who may look at the island, and at what of it.
AGENT_READERS = {"inject": "agent", "pytest_plugin": "agent", "no_leak": "agent", "session": "agent.format",
                 "heap": "agent.format"}
# Who may name files of a session: heap.load and heap.columns read and pack a snapshot, inject stages the boot folder.
SESSION_FILE_NAMES = {name for name in vars(session_format) if name.endswith(("_FILE", "_FOLDER"))}
SESSION_FILE_TEXTS = {value for name in SESSION_FILE_NAMES if "." in (value := getattr(session_format, name))}
STAGING_NAMES = {"BOOT_FOLDER", "OPTIONS_FILE"}
FORBIDDEN_NAMES = re.compile(r"^(utils?|misc|common|helpers?|base|managers?)$")
SPEAKING = {"print", "click.echo", "click.secho", "sys.stdout", "sys.stderr", "sys.__stdout__", "sys.__stderr__"}
LAZY_ONLY = {"torch", "flashinfer", "pynvml"}
MOST_LINES = 500


@dataclass(frozen=True)
class Source:
    """One Python file of the package: its tree and its module path ("heap.load"; "" for leakscope/__init__.py)."""

    module: str
    tree: ast.Module
    is_package: bool = False

    @property
    def part(self) -> str:
        """The part of the house: "heap" for leakscope/heap/load.py."""
        return self.module.partition(".")[0]

    @property
    def file(self) -> str:
        path = "/".join(["leakscope", *filter(None, self.module.split("."))])
        return f"{path}/__init__.py" if self.is_package else f"{path}.py"


def read(path: Path) -> Source:
    parts = list(path.relative_to(PACKAGE).with_suffix("").parts)
    is_package = parts[-1] == "__init__"
    return Source(".".join(parts[: -1 if is_package else None]), ast.parse(path.read_text(), str(path)), is_package)


def planted(module: str, text: str) -> Source:
    """A source that does not exist, to see that a rule bites."""
    return Source(module, ast.parse(text))


@pytest.fixture(scope="module")
def house() -> list[Source]:
    return [read(path) for path in sorted(PACKAGE.rglob("*.py"))]


def imports(source: Source) -> Iterator[tuple[str, int]]:
    """Every module that a file names in an import, anywhere in it, absolute and with its line.

    `from leakscope import heap` gives leakscope.heap, and so does a string that is a module of ours as a whole, as the
    arguments of importlib and plugins.load are.
    """
    package = ["leakscope", *filter(None, source.module.split("."))]
    if not source.is_package:
        package.pop()
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*start, *filter(None, [node.module])])
            for alias in node.names:
                yield f"{module}.{alias.name}", node.lineno
        elif isinstance(node, ast.Constant) and re.fullmatch(r"leakscope(\.\w+)+", str(node.value)):
            yield node.value, node.lineno


def outside(node: ast.Import | ast.ImportFrom) -> list[str]:
    """The modules that one absolute import statement names, as they are written."""
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]


def ours(module: str) -> str | None:
    """What follows "leakscope." in a module of ours, cut to what exists as a file; None for the modules of others."""
    if module.partition(".")[0] != "leakscope":
        return None
    parts = module.split(".")[1:]
    while parts and not (PACKAGE.joinpath(*parts).is_dir() or PACKAGE.joinpath(*parts).with_suffix(".py").is_file()):
        if len(parts) == 1 and parts[0] in FLOORS:
            break
        parts.pop()
    return ".".join(parts)


def floor_offences(source: Source) -> Iterator[str]:
    if source.part == "agent":
        return
    for module, line in imports(source):
        target = ours(module)
        if target is None:
            continue
        part = target.partition(".")[0]
        where = f"{source.file}:{line} imports leakscope{'.' * bool(target)}{target}"
        if part == "agent":
            allowed = AGENT_READERS.get(source.part)
            if allowed is None or not f"{target}.".startswith(f"{allowed}."):
                yield f"{where}, but the agent is an island: {source.part} may look at {allowed or 'nothing'} of it."
        elif FLOORS[part] < FLOORS[source.part]:
            yield f"{where}, but that is up, from floor {FLOORS[source.part]} to floor {FLOORS[part]}."
        elif part != source.part and part in WINGS and source.part in WINGS:
            yield f"{where}, but {', '.join(WINGS)} are three wings that do not know each other."


def third_party_offences(source: Source) -> Iterator[str]:
    for module, line in imports(source):
        top = module.partition(".")[0]
        if top == "jinja2" and source.module != "render._templates":
            yield f"{source.file}:{line} imports jinja2, but only render/_templates.py knows Jinja2."
        if top in ("numpy", "scipy") and source.part not in ("heap", "analyse"):
            yield f"{source.file}:{line} imports {top}, but only heap, analyse and the tests compute on arrays."


def lazy_offences(source: Source) -> Iterator[str]:
    """Libraries of the target cost seconds and may not be there: only inside a function, if at all."""
    functions = [node for node in ast.walk(source.tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    inside_functions = {child for function in functions for child in ast.walk(function)}
    for node in ast.walk(source.tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)) and node not in inside_functions:
            for name in outside(node):
                if name.partition(".")[0] in LAZY_ONLY:
                    yield f"{source.file}:{node.lineno} imports {name} at module level: it may be absent."


def session_file_offences(source: Source) -> Iterator[str]:
    if source.part in ("agent", "session") or source.module in ("heap.load", "heap.columns"):
        return
    allowed = STAGING_NAMES if source.part == "inject" else set()
    for node in ast.walk(source.tree):
        names = [node.id] if isinstance(node, ast.Name) else [node.attr] if isinstance(node, ast.Attribute) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else []
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in SESSION_FILE_TEXTS:
            names.append(node.value)
        for name in names:
            if (name in SESSION_FILE_NAMES or name in SESSION_FILE_TEXTS) and name not in allowed:
                yield f"{source.file}:{node.lineno} names {name}: only session and agent touch its files."


def printing_offences(source: Source) -> Iterator[str]:
    if source.part in ("cli", "commands", "__main__"):
        return
    for node in ast.walk(source.tree):
        text = ast.unparse(node) if isinstance(node, (ast.Name, ast.Attribute)) else ""
        if text in SPEAKING:
            yield f"{source.file}:{node.lineno} uses {text}: only cli and commands speak to the person."


def island_offences(source: Source) -> Iterator[str]:
    """The agent sees the standard library and itself; the boot file sees the agent by its staged name."""
    if source.part != "agent":
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            if node.level > source.module.count(".") + source.is_package:
                yield f"{source.file}:{node.lineno} reaches out of the agent, which is copied alone into the target."
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for name in outside(node):
                top = name.partition(".")[0]
                staged = source.module.startswith("agent.boot") and top in ("_leakscope_agent", "sitecustomize")
                if top not in sys.stdlib_module_names and not staged:
                    yield f"{source.file}:{node.lineno} imports {name}, which targets may not have."


RULES = (floor_offences, third_party_offences, lazy_offences, session_file_offences, printing_offences, island_offences)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__.removesuffix("_offences"))
def test_the_house_keeps_its_rules(rule, house):
    offences = [sentence for source in house for sentence in rule(source)]
    assert not offences, "\n" + "\n".join(offences)


@pytest.mark.parametrize(("rule", "module", "text"), [
    (floor_offences, "heap.load", "from leakscope.detectors import lru_cache"),
    (floor_offences, "heap.load", "from leakscope import case"),
    (floor_offences, "heap.load", "from ..case import Case"),
    (floor_offences, "model", "if TYPE_CHECKING:\n    from leakscope.report import Report"),
    (floor_offences, "analyse.growth", "importlib.import_module('leakscope.commands')"),
    (floor_offences, "render.html", "from leakscope.detectors import cycles"),
    (floor_offences, "render.html", "from leakscope.agent.format import EDGE_KINDS"),
    (floor_offences, "session", "from leakscope.agent import walk"),
    (third_party_offences, "render.html", "import jinja2"),
    (third_party_offences, "detectors.lru_cache", "def detect(case):\n    import numpy as np"),
    (lazy_offences, "agent.devices", "import torch.cuda"),
    (lazy_offences, "agent.devices", "try:\n    from pynvml import nvmlInit\nexcept ImportError:\n    pass"),
    (session_file_offences, "commands.run", "from leakscope.session import TIMELINE_FILE"),
    (session_file_offences, "case", "path / 'timeline.jsonl'"),
    (session_file_offences, "inject.environment", "path / format.TIMELINE_FILE"),
    (printing_offences, "heap.load", "print('here')"),
    (printing_offences, "agent.walk", "sys.stderr.write('here')"),
    (island_offences, "agent.walk", "import numpy"),
    (island_offences, "agent.walk", "from ..errors import LeakScopeError"),
    (island_offences, "agent.walk", "from leakscope.agent import columns"),
])  # fmt: skip
def test_a_broken_rule_is_seen(rule, module, text):
    assert list(rule(planted(module, text)))


@pytest.mark.parametrize(("module", "text"), [
    ("commands.run", "from leakscope.detectors import lru_cache\nfrom leakscope import session, __version__"),
    ("heap.load", "from leakscope.agent.format import NAMES_FILE, edge_label\nfrom .graph import HeapGraph"),
    ("inject.environment", "from leakscope.agent import format\nformat.OPTIONS_FILE"),
    ("agent.expanders.torch", "from .. import format\nfrom ..walk import walk\nimport gc"),
    ("agent.devices", "def read():\n    torch = sys.modules.get('torch')"),
    ("agent.boot.sitecustomize", "import _leakscope_agent"),
])  # fmt: skip
def test_what_is_allowed_passes_every_rule(module, text):
    assert [sentence for rule in RULES for sentence in rule(planted(module, text))] == []


def test_every_part_of_the_package_has_a_floor(house):
    homeless = {source.part for source in house} - set(FLOORS) - {"agent"}
    assert not homeless, f"leakscope.{sorted(homeless)[0]} has no floor: give it one in ARCHITECTURE and in this test."


def test_the_agent_is_python_3_9():
    newer = []
    for path in sorted((PACKAGE / "agent").rglob("*.py")):
        try:
            ast.parse(path.read_text(), feature_version=(3, 9))
        except SyntaxError as error:
            newer.append(f"{path.relative_to(ROOT)}:{error.lineno}: {error.msg}")
    assert not newer, "\n" + "\n".join(newer)


def code_files() -> Iterator[Path]:
    for folder in ("leakscope", "tests", "fixtures", "benchmarks"):
        yield from (path for path in sorted((ROOT / folder).rglob("*")) if path.suffix in (".py", ".c", ".h"))


def test_every_module_has_a_name_that_says_something():
    vague = [str(path.relative_to(ROOT)) for path in code_files() if FORBIDDEN_NAMES.match(path.stem)]
    assert not vague, f"{', '.join(vague)}: name it after what it holds."


def test_no_file_is_longer_than_one_idea():
    long = {str(path.relative_to(ROOT)): lines for path in code_files()
            if (lines := path.read_text().count("\n")) > MOST_LINES}  # fmt: skip
    assert not long, f"{long}: one idea a file; {MOST_LINES} lines are a sign that there are several."


@pytest.mark.parametrize(("package", "names"), [
    ("leakscope.detectors", ("RULE", "detect")),
    ("leakscope.render", ("SUFFIX", "render")),
    ("leakscope.inject", ("usable", "bring_in")),
    ("leakscope.commands", ("command",)),
])  # fmt: skip
def test_every_plug_in_answers_its_names(package, names):
    for module in plugins.load(package, names).values():
        assert (module.__doc__ or "").strip(), f"{module.__name__} has no docstring, and the docstring is its manual."


def test_no_two_detectors_share_a_rule():
    found = plugins.load("leakscope.detectors", ("RULE",))
    for key in ("code", "name"):
        values = [getattr(module.RULE, key) for module in found.values()]
        assert len(values) == len(set(values)), f"a rule's {key} is used twice: {sorted(values)}"
