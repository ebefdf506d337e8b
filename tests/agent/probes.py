"""The probe of the working tree, built once for each interpreter: all tests, all workers and later sessions share the binary.

    folder = probe_for(python)              # holds _probe.cpython-311-x86_64-linux-gnu.so; skips where there can be none
    stage_probe(python, agent_folder)       # puts a copy beside the Python files of a staged agent

Under LEAKSCOPE_SANITIZED=1 every probe is built with the sanitizers; its interpreter needs `sanitizing()` in its environment.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from leakscope.errors import LeakScopeError
from leakscope.inject import _probes

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".pytest_cache" / "probes"
STRICT = ("-Werror",)
SANITIZED = "LEAKSCOPE_SANITIZED"
SANITIZERS = ("-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
_OLD_S = 24 * 3600


def probe_for(python: str, *flags: str) -> Path:
    """Return the folder with the probe of the working tree for an interpreter; skips the test where there can be none.

    Warnings are errors: what does not compile cleanly fails the test.

    Args:
        flags: more flags for the compiler, such as -fsanitize=address; every set of them is a build of its own.
    """
    return _built(python, SANITIZERS if os.environ.get(SANITIZED) and not flags else flags)


@functools.cache
def _built(python: str, flags: tuple[str, ...]) -> Path:
    target = _probes.look_at(python)
    refusal = target.refusal()
    if refusal:
        pytest.skip(refusal[0])
    try:
        _probes.compiler()
    except LeakScopeError as error:
        pytest.skip(error.sentence)
    key = hashlib.sha256("\0".join([_probes.digest(), python, *flags]).encode()).hexdigest()[:16]
    folder = CACHE / f"{target.soabi}-{key}"
    folder.mkdir(parents=True, exist_ok=True)
    binary = folder / _probes.file_name(target.soabi)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another worker may be building it
        if not binary.exists():
            _forget_old_ones(folder)
            try:
                _probes.compile_for(target, binary, (*STRICT, *flags))
            except LeakScopeError as error:
                log = binary.with_suffix(".log")
                pytest.fail(f"{error.sentence}\n{log.read_text()[-6000:] if log.exists() else error.hint}")
    return folder


def stage_probe(python: str, agent_folder: Path, *flags: str) -> Path:
    """Put the probe for an interpreter into a staged agent, as `leakscope run` does, and return it there."""
    (binary,) = probe_for(python, *flags).glob(_probes.file_name("*"))
    return Path(shutil.copy(binary, agent_folder))


def sanitizing(folder: Path | None = None) -> dict[str, str]:
    """Return what the environment of a process has to hold that loads a sanitized probe; reports go to files in `folder`,
    without one to stderr.

    Skips the test where the compiler has no sanitizers.
    """
    try:
        command = _probes.compiler()
    except LeakScopeError as error:
        pytest.skip(error.sentence)
    found = subprocess.run([*command, "-print-file-name=libasan.so"], capture_output=True, text=True).stdout.strip()
    if not Path(found).is_absolute():
        pytest.skip(f"{command[0]} has no libasan")
    reports = f"log_path={folder / 'sanitizer' if folder else 'stderr'}"
    return {"LD_PRELOAD": found, SANITIZED: "1", "ASAN_OPTIONS": f"detect_leaks=0:{reports}",
            "UBSAN_OPTIONS": "print_stacktrace=0"}  # what it says goes to stderr, one line


def reports_of_sanitizers(folder: Path) -> str:
    """Return what the sanitizers wrote; "" where they found nothing."""
    return "\n".join(path.read_text()[:4000] for path in folder.glob("sanitizer.*"))


def _forget_old_ones(kept: Path) -> None:
    """Remove the builds of sources that were changed since; a day, so that no session loses what it uses."""
    for folder in CACHE.iterdir():
        if folder != kept and folder.stat().st_mtime < time.time() - _OLD_S:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    print(*(f"{name}={value}" for name, value in sanitizing().items()))
