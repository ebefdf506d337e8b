"""Runs small programs with the agent staged as `leakscope run` stages it, and without, on every Python that is installed."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import leakscope

AGENT = Path(leakscope.__file__).parent / "agent"
VERSIONS = ("3.9", "3.10", "3.11", "3.12", "3.13")

# What a walk leaves behind, without walking: these tests are about when snapshots are taken, not about what is in them.
STAND_IN = '''
import os
from . import jsontext

class GivenUp(Exception):
    pass

def own_idents(own):
    return ()

def take(folder, index, kind, t_ns, own=(), sample=None, tracer=None, notes=(), go_on=None, more=None):
    path = folder
    os.mkdir(path)
    done = {"index": index, "kind": kind, "t_ns": t_ns, "sample": sample, "pause_ns": 1000, "own": len(own), **(more or {})}
    if tracer is not None:
        import gc
        objects = gc.get_objects()
        ids, sites = tracer(objects)
        done["sites"], done["line_growth"] = sites, tracer.line_growth
    for name, text in (("address.npy", "x" * 100_000), ("done.json", jsontext.write(done))):
        handle = os.open(os.path.join(path, name), os.O_WRONLY | os.O_CREAT)
        os.write(handle, text.encode())
        os.close(handle)
    return done
'''


@functools.cache
def _found(version: str) -> str | None:
    if version == ".".join(map(str, sys.version_info[:2])):
        return sys.executable
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for path in (*sorted(root.glob(f"{version}.*/bin/python")), shutil.which(f"python{version}")):
        if path and subprocess.run([path, "-c", ""], capture_output=True).returncode == 0:
            return str(path)
    return None


def interpreter(version: str) -> str:
    """Return the path of CPython `version` ("oldest" and "newest": of those that are installed), or skip the test."""
    if version in ("oldest", "newest"):
        installed = [each for each in VERSIONS if _found(each)]
        version = installed[0 if version == "oldest" else -1] if installed else version
    path = _found(version)
    if path is None:
        pytest.skip(f"CPython {version} is not installed here")
    return path


@dataclass
class Process:
    """What the agent left of one process."""

    path: Path

    def json(self, name: str) -> dict[str, Any]:
        result: dict[str, Any] = json.loads((self.path / name).read_text())
        return result

    @property
    def role(self) -> str:
        return str(self.json("process.json")["role"])

    @property
    def pid(self) -> int:
        return int(self.json("process.json")["pid"])

    @property
    def rows(self) -> list[dict[str, Any]]:
        text = (self.path / "timeline.jsonl").read_text() if (self.path / "timeline.jsonl").exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    @property
    def notes(self) -> list[str]:
        path = self.path / "notes.jsonl"
        return [json.loads(line)["note"] for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def has_exit(self) -> bool:
        return (self.path / "exit.json").exists()

    @property
    def snapshots(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_text()) for path in sorted(self.path.glob("snapshots/*/done.json"))]


class Stage:
    """A session folder with the agent in its boot folder.

    Args:
        folder: an empty folder for it.
        options: instead of the usual ones.
        walk: whether the real walk is staged, else the stand-in.
    """

    def __init__(self, folder: Path, options: dict[str, Any] | None = None, walk: bool = False) -> None:
        self.session = folder / "session"
        self.work = folder / "work"
        self.boot = self.session / "boot"
        self.work.mkdir(parents=True)
        left_out = shutil.ignore_patterns("__pycache__", "boot", "_probe", "*.so")
        shutil.copytree(AGENT, self.boot / "_leakscope_agent", ignore=left_out)
        shutil.copyfile(AGENT / "boot" / "sitecustomize.py", self.boot / "sitecustomize.py")
        if not walk:
            (self.boot / "_leakscope_agent" / "walk.py").write_text(STAND_IN)
        usual = {"session": str(self.session), "started_monotonic_ns": time.monotonic_ns(), "follow": True,
                 "keep_snapshots": 5, "sites": "off"}
        (self.boot / "options.json").write_text(json.dumps({**usual, **(options or {})}))

    def environment(self, **variables: str) -> dict[str, str]:
        """Return the environment of the target: PATH and HOME, `variables`, the boot folder in front."""
        given = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **variables}
        before = given.get("PYTHONPATH")
        return {**given, "PYTHONPATH": f"{self.boot}{os.pathsep}{before}" if before else str(self.boot)}

    def write(self, name: str, text: str) -> Path:
        """Put a file in the working folder of the target."""
        path = self.work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def run(self, *command: str, observed: bool = True, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, with the agent or without."""
        environment = self.environment(**variables)
        if not observed:
            environment.pop("PYTHONPATH")
            environment.update(variables)
        return subprocess.run(command, cwd=self.work, env=environment, capture_output=True, text=True, timeout=120)

    def start(self, *command: str, **variables: str) -> subprocess.Popen[str]:
        """Start a command with the agent."""
        return subprocess.Popen(command, cwd=self.work, env=self.environment(**variables), text=True,
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    @property
    def processes(self) -> list[Process]:
        """Every process that wrote its process.json, in the order in which they came up."""
        found = [Process(path.parent) for path in self.session.glob("*/process.json")]
        return sorted(found, key=lambda process: process.json("process.json")["started_ns"])


def until(condition: Callable[[], object], seconds: float = 120.0) -> Any:
    """Return the first true value of `condition`; fails after a deadline."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"it did not come true within {seconds} s")


@pytest.fixture(params=VERSIONS)
def python(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each supported interpreter that is installed."""
    yield interpreter(request.param)


# For laws in which the interpreters between have no say.
OLDEST_AND_NEWEST = pytest.mark.parametrize("python", ("oldest", "newest"), indirect=True)
