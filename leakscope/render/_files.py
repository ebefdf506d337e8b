"""Writing a report: whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from leakscope.errors import LeakScopeError


def write_text(path: Path, text: str) -> None:
    """Write `path` as UTF-8 in one step: a reader sees the old file or the new one, never half of it.

    Raises:
        LeakScopeError: the place cannot be written; what was there before is still there.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(part, "xb") as stream:
                stream.write(text.encode("utf-8", "replace"))
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise LeakScopeError(f"The report {path} cannot be written: {error.strerror or error}.",
                             "leakscope report SESSION -o A_FOLDER_THAT_YOU_MAY_WRITE") from error
