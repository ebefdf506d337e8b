"""The probe, the compiled part of the agent: where its binaries lie, and how one is built for another interpreter.

A binary fits one version of CPython to the last number, because it reads structures that may change with any of them, and one
kind of it, which the SOABI names (cpython-311-x86_64-linux-gnu: threading, debugging, machine). One may come with the package,
for the interpreter that leakscope was installed in; those of others are built on request by `leakscope doctor --build-probe`,
and kept in the user's cache under version, SOABI and a digest of the sources, so that a new version of leakscope never meets
a binary of an old one.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import leakscope
from leakscope.errors import LeakScopeError, UsageError

AGENT_FOLDER = Path(leakscope.__file__).parent / "agent"
SOURCES = AGENT_FOLDER / "_probe"
MODULE = "_probe"
FOLDER = "probes"  # in a staged agent; one folder a version
OLDEST = (3, 10)
# What is not copied when the agent is staged. The hook lies elsewhere; of the compiled parts only binaries go along: a
# folder `_probe` would pass for a package.
LEFT_BEHIND = ("__pycache__", "boot", "_probe", "*.so")
FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-unused-parameter")
# The preloaded object is no part of the extension: it is loaded before there is an interpreter.
_APART = "preload"
_PRELOADED = "libleakscope_native"
_COMPILERS = ("cc", "gcc", "clang")
_PATIENCE_S = 300

# Runs in any Python 3, isolated: what the build has to know of the interpreter.
_QUESTION = """
import json, sys, sysconfig
ask = sysconfig.get_config_var
print(json.dumps({
    "implementation": sys.implementation.name, "version": list(sys.version_info[:3]), "platform": sys.platform,
    "text": sys.version.split(" ", 1)[0],
    "soabi": ask("SOABI"), "suffix": ask("EXT_SUFFIX"), "include": sysconfig.get_paths()["include"],
    "free_threaded": bool(ask("Py_GIL_DISABLED")), "debug": hasattr(sys, "gettotalrefcount"),
    "bits": sys.maxsize.bit_length() + 1,
}))
"""


@dataclass(frozen=True)
class Interpreter:
    """What an interpreter says of itself, as far as a build needs it; `text` is its whole version, as "3.14.0rc2"."""

    python: str
    implementation: str
    version: tuple[int, ...]
    text: str
    platform: str
    soabi: str
    suffix: str
    include: Path
    free_threaded: bool
    debug: bool
    bits: int

    @property
    def name(self) -> str:
        """As a sentence names it: "CPython 3.11.7"."""
        name = {"cpython": "CPython", "pypy": "PyPy"}.get(self.implementation, self.implementation)
        return f"{name} {'.'.join(map(str, self.version))}"

    def refusal(self) -> tuple[str, str] | None:
        """Return why there can be no probe for it, with a hint, or None."""
        if self.implementation != "cpython":
            return f"The probe reads the memory of CPython, and '{self.python}' is {self.name}.", ""
        if self.platform != "linux":
            return f"The probe is built on Linux only, and '{self.python}' runs on {self.platform}.", ""
        if self.version[:2] < OLDEST:
            return f"The probe knows CPython {_dotted(OLDEST)} and later, and '{self.python}' is {self.name}.", ""
        if self.free_threaded:
            return f"The probe needs the interpreter's lock, and '{self.python}' is a free-threaded build.", ""
        if self.debug:
            return f"The probe knows release builds, and '{self.python}' is a debug build.", ""
        if self.bits != 64:
            return f"The probe knows 64-bit machines, and '{self.python}' is built for {self.bits} bits.", ""
        for header in ("Python.h", "internal/pycore_interp.h"):
            if not (self.include / header).is_file():
                return (f"The headers of {self.name} are not installed: there is no '{self.include / header}'.",
                        f"apt install python{_dotted(self.version[:2])}-dev, or what brings Python.h on your system")
        return None


def look_at(python: str) -> Interpreter:
    """Return what the interpreter `python` (a path or a name on PATH) says of itself.

    Raises:
        UsageError: it is not found, or is no Python 3.
    """
    path = shutil.which(python)
    if path is None:
        raise UsageError(f"There is no interpreter '{python}'.", "leakscope doctor --build-probe /path/to/python")
    try:
        done = subprocess.run([path, "-I", "-c", _QUESTION], capture_output=True, timeout=_PATIENCE_S, stdin=subprocess.DEVNULL)
        answer: dict[str, Any] = json.loads(done.stdout)
        return Interpreter(python=path, **{**answer, "version": tuple(answer["version"]), "include": Path(answer["include"]),
                                           "soabi": answer["soabi"] or "", "suffix": answer["suffix"] or ""})
    except (OSError, ValueError, TypeError, KeyError, subprocess.SubprocessError) as error:
        raise UsageError(f"'{python}' does not answer as a Python 3 interpreter does.", f"{path} --version") from error


def sources() -> list[Path]:
    """Return the C files of the extension."""
    return sorted(path for path in SOURCES.glob("*.c") if not path.name.startswith(_APART))


@functools.cache
def digest() -> str:
    """Return what tells these sources from those of another version."""
    seen = hashlib.sha256(" ".join(FLAGS).encode())
    for path in sorted(SOURCES.glob("*.[ch]")):
        seen.update(path.name.encode() + b"\0" + path.read_bytes())
    return seen.hexdigest()[:16]


def cache_folder() -> Path:
    """Return where the probes of this user are kept; it need not exist."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(given) if os.path.isabs(given) else Path("~/.cache").expanduser()) / "leakscope" / "probes"


def cached(name: str) -> Path:
    """Return where a binary of these sources is kept; it need not exist."""
    return cache_folder() / f"{name}-{digest()}.so"


def place(target: Interpreter) -> Path:
    """Return where the probe for an interpreter is kept; it need not exist."""
    return cached(f"{target.text}-{target.soabi}")


def keep(target: Interpreter, binary: Path) -> None:
    """Write down beside a cached probe for which interpreter it was built, for `known`."""
    binary.with_suffix(".json").write_text(json.dumps({"python": target.python}) + "\n")


def known() -> list[str]:
    """Return the interpreters for which probes of these sources were built on request and that are still there."""
    found = []
    for path in sorted(cache_folder().glob(f"*-{digest()}.json")):
        try:
            python = json.loads(path.read_text())["python"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if isinstance(python, str) and os.path.exists(python):
            found.append(python)
    return found


def file_name(soabi: str) -> str:
    """Return what the binary is called beside the Python files of the agent: interpreters of this SOABI import it."""
    return f"{MODULE}.{soabi}.so"


def staged_at(version: str, soabi: str) -> str:
    """Return where the probe for one version lies in a staged agent, as agent/probe.py knows it."""
    return f"{FOLDER}/{version}/{file_name(soabi)}"


def built() -> dict[str, Path]:
    """Return the probes of these sources that there are, by the name that each has in a staged agent.

    That of the package lies beside the Python files. What lies in the cache is loaded into programs of this user, so it has to
    be this user's own.
    """
    found = {path.name: path for path in AGENT_FOLDER.glob(file_name("*"))}
    tail = f"-{digest()}.so"
    for path in sorted(cache_folder().glob(f"*-*{tail}")):
        version, _, soabi = path.name.removesuffix(tail).partition("-")
        if path.stat().st_uid == os.geteuid():
            found[staged_at(version, soabi)] = path
    return found


def put(agent: Path, binaries: Mapping[str, Path] | None = None) -> None:
    """Copy probes (None: all that there are) into a staged agent. Raises OSError."""
    for name, binary in (built() if binaries is None else binaries).items():
        (agent / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(binary, agent / name)


def preloaded() -> Path | None:
    """Return the sampler of native memory that comes with the package or is in the cache; None: there is none."""
    for path in (SOURCES / f"{_PRELOADED}.so", cached(_PRELOADED)):
        if path.is_file() and (path.parent == SOURCES or path.stat().st_uid == os.geteuid()):
            return path
    return None


def compiler() -> list[str]:
    """Return the command of the C compiler: $CC, else the first of cc, gcc, clang.

    Raises:
        LeakScopeError: there is none.
    """
    given = shlex.split(os.environ.get("CC", ""))
    for command in [given] if given else [[name] for name in _COMPILERS]:
        if shutil.which(command[0]):
            return command
    sentence = (f"There is no C compiler '{given[0]}', which CC names." if given
                else f"There is no C compiler: none of {', '.join(_COMPILERS)} is on PATH.")
    raise LeakScopeError(sentence, "apt install gcc, or CC=/path/to/compiler leakscope doctor --build-probe PYTHON")


def compile_for(target: Interpreter, binary: Path, flags: Sequence[str] = ()) -> Path:
    """Compile the probe for an interpreter into the file `binary`, whole or not at all, and return it.

    Raises:
        LeakScopeError: the interpreter has no probe, there is no compiler, it fails, or `binary` cannot be written.
    """
    refusal = target.refusal()
    if refusal:
        raise LeakScopeError(*refusal)
    words = [f"-I{SOURCES}", f"-I{target.include}", f"-I{target.include / 'internal'}", *flags, *map(str, sources())]
    return _compile(words, binary, f"the probe for {target.name}")


def compile_preloaded(binary: Path | None = None, flags: Sequence[str] = ()) -> Path:
    """Compile the sampler of native memory into `binary` (None: into the cache), as `compile_for` does the probe."""
    apart = map(str, sorted(SOURCES.glob(f"{_APART}*.c")))
    return _compile([*flags, *apart], binary or cached(_PRELOADED), "the sampler of native memory")


def _compile(inputs: list[str], binary: Path, what: str) -> Path:
    command = compiler()
    try:
        binary.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=binary.parent, prefix=".building-") as folder:
            made = Path(folder, binary.name)
            words = [*command, "-shared", *FLAGS, *inputs, "-lm", "-ldl", "-pthread", "-o", str(made)]
            done = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=_PATIENCE_S,
                                  stdin=subprocess.DEVNULL)
            if done.returncode:
                raise _failure(what, binary.with_suffix(".log"), words, done)
            made.replace(binary)
    except OSError as error:
        raise LeakScopeError(f"The probe cannot be written to '{binary.parent}': {error.strerror}.",
                             "XDG_CACHE_HOME=DIR leakscope doctor --build-probe PYTHON, with a DIR that you may write to, also "
                             "for leakscope run") from error
    except subprocess.TimeoutExpired as error:
        raise LeakScopeError(f"'{command[0]}' did not end within {_PATIENCE_S} s.", f"{command[0]} --version") from error
    return binary


def _failure(what: str, log: Path, words: list[str], done: subprocess.CompletedProcess[str]) -> LeakScopeError:
    """Return the error of a build that failed; what the compiler said is written to `log`."""
    log.write_text(f"{shlex.join(words)}\n{done.stdout}{done.stderr}")
    return LeakScopeError(f"'{words[0]}' did not compile {what} (exit code {done.returncode}); "
                          f"what it said is in '{log}'.", f"less {log}")


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
