"""Whole outputs compared with the files of fixtures/golden.

To renew them after a change that is meant: `LEAKSCOPE_UPDATE_GOLDEN=1 python -m pytest tests/render`, then read the diff.
"""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "fixtures" / "golden"


def assert_golden(name: str, text: str) -> None:
    """Compare `text` with the golden file `name`; with LEAKSCOPE_UPDATE_GOLDEN=1 write it there instead."""
    file = FOLDER / name
    if os.environ.get("LEAKSCOPE_UPDATE_GOLDEN") == "1":
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert file.exists(), f"{file} is missing; LEAKSCOPE_UPDATE_GOLDEN=1 makes it"
    assert text == file.read_text(encoding="utf-8"), f"{file.name} differs; if that is meant: LEAKSCOPE_UPDATE_GOLDEN=1"
