"""Small files of the kernel are read without a trace in the allocator of the target."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from leakscope.agent import thread

MMAP_THRESHOLD = 128 << 10  # glibc's at the start; to free a larger block raises it for the whole program (mallopt(3))


def test_no_buffer_is_large_enough_to_become_a_mapping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, asked, read = tmp_path / "file", [], os.read
    path.write_bytes(b"x" * 300_000)
    monkeypatch.setattr(os, "read", lambda handle, size: (asked.append(size), read(handle, size))[1])
    assert len(thread.read_small(path, 1 << 20)) == 300_000
    assert len(thread.read_small(path, 1000)) == 1000
    assert max(asked) < MMAP_THRESHOLD
