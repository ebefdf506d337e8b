"""The machine that a table was made on, in one paragraph; and tables in Markdown."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path

_VERSIONS = """
import importlib.metadata as m, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = m.version(name)
    except m.PackageNotFoundError:
        pass
print(json.dumps([sys.version.split()[0], found]))
"""


def description() -> str:
    """Processor, cores, memory, kernel, C library and the load of this machine."""
    model = next((line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
                 platform.processor() or platform.machine())
    memory = next((int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), 0)
    pages = next(iter(_lines("/sys/kernel/mm/transparent_hugepage/enabled")), "unknown")
    library = " ".join(platform.libc_ver()).strip()
    return (f"{model}, {os.cpu_count()} cores, {memory / 2**20:.0f} GiB of memory, Linux {platform.release()}, {library}, "
            f"transparent huge pages: {pages.partition('[')[2].partition(']')[0] or pages}; load at the start "
            f"{os.getloadavg()[0]:.1f}")


def versions(python: str, names: Sequence[str]) -> dict[str, str]:
    """Versions of packages that an interpreter has, its own under "python"; what is absent is left out."""
    done = subprocess.run([python, "-c", _VERSIONS, *names], check=True, capture_output=True, text=True)
    own, found = json.loads(done.stdout)
    return {"python": own, **found}


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in lines)


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def put(file: Path, heading: str, text: str) -> None:
    """Replace the section under a heading of a Markdown file, or add it; the other sections stay."""
    sections = file.read_text().split("\n## ") if file.exists() else ["# Results\n"]
    kept = [each for each in sections if each.partition("\n")[0] != heading]
    file.write_text("\n## ".join([*(each.rstrip("\n") + "\n" for each in kept), f"{heading}\n\n{text}\n"]))
