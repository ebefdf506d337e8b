"""What the compiled part of the agent does in which interpreter: built, and tried there, one by one.

    python benchmarks/capabilities.py PYTHON ... [--out benchmarks/RESULTS.md]

The probes are built into a folder of their own: what `leakscope run` uses is left as it is.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from machine import put, table

from leakscope.errors import LeakScopeError
from leakscope.inject import _capabilities, _probes


def row(python: str, folder: Path) -> list[str]:
    """Build the probe for an interpreter where there can be one, and try everything there."""
    target = _probes.look_at(python)
    try:
        binary: Path | None = _probes.compile_for(target, folder / f"{target.soabi}.so")
        why_not = ""
    except LeakScopeError as error:
        binary, why_not = None, error.sentence.replace(f"'{python}'", "this")
    found = _capabilities.of(target, binary)
    why_not = why_not or found.why_not
    return [target.name, *(found.cells[name] for name in _capabilities.COLUMNS), why_not]


def main() -> None:
    """Try the interpreters and print the table, or put it into a file under its heading."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pythons", nargs="+", metavar="PYTHON")
    parser.add_argument("--out", type=Path, help="file to write the section into (others are kept)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="capabilities-") as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        _probes.compile_preloaded()
        rows = [row(python, Path(folder)) for python in args.pythons]
    text = table(["", *_capabilities.COLUMNS, "why not"], rows)
    print(text)
    if args.out:
        put(args.out, "What works where", text)


if __name__ == "__main__":
    main()
