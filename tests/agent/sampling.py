"""Programs with the probe whose allocations are sampled, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.agent.probes import ROOT, probe_for
from tests.agent.staged import interpreter
from tests.agent.twins import VERSIONS

# Every program has the probe, a table of the live samples by the function that made them, and says what it found as JSON.
PREAMBLE = '''
import json, sys
sys.path.insert(0, sys.argv[1])
import _probe

def function_of(frames):
    names = [name.rpartition(".")[2] for _file, _line, name in frames]
    return next(name for name in names if not name.endswith("comp>"))  # up to 3.11 each has a frame of its own

def estimates():
    found = {}  # {function: [bytes, blocks]} of what lives
    for _address, size, weight, _t_ns, frames in _probe.sample_live():
        entry = found.setdefault(function_of(frames), [0, 0])
        entry[0] += weight
        entry[1] += weight / size
    return found

def made_by(function):
    return [row for row in _probe.sample_live() if function_of(row[4]) == function]

def say(value):
    print(json.dumps(value))
'''


def run(python: str, program: str, *arguments: str, **variables: str) -> Any:
    """Run a program in an interpreter and return what it said."""
    folder = probe_for(python)
    ran = subprocess.run([python, "-c", PREAMBLE + program, str(folder), *arguments], capture_output=True, text=True,
                         timeout=120, env={**os.environ, "PYTHONPATH": str(ROOT), **variables})
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stderr[-3000:]
    return json.loads(ran.stdout)


@pytest.fixture(params=VERSIONS)
def python(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each interpreter that is installed and may have a probe."""
    yield interpreter(request.param)


# For what does not depend on the version.
ONE = pytest.mark.parametrize("python", ("3.11",), indirect=True)
