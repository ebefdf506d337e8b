"""Arenas of pymalloc, counted in C, and of glibc, told from the maps of the process."""

from __future__ import annotations

import platform
import sys
import threading
from pathlib import Path

import pytest

from leakscope.agent import allocators
from tests.agent.sampling import ONE, python, run  # noqa: F401  python is a fixture

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
MIB = 1 << 20

# 24 MiB of small objects, of which one in each pool stays; then all go.
BURST = """
why_not = _probe.arenas_start()
first = _probe.arenas_read()
burst = [bytes(31) for _ in range(400_000)]
full = _probe.arenas_read()
kept = burst[::256]
del burst
sparse = _probe.arenas_read()
del kept
empty = _probe.arenas_read()
"""


def test_arenas_are_counted_with_what_is_in_use_of_them(python: str) -> None:  # noqa: F811
    found = run(python, BURST + "say([why_not, first, full, sparse, empty])")
    why_not, first, full, sparse, empty = found
    assert why_not is None
    assert all(held % MIB == 0 and 0 < used <= held for held, used, _, _ in (first, full, sparse, empty))
    assert full[0] - first[0] > 20 * MIB and full[1] - first[1] > 20 * MIB
    assert full[3] < full[2] / 10
    # the survivors keep nearly all arenas, nearly empty
    assert sparse[0] > full[0] - 3 * MIB and sparse[1] - first[1] < 3 * MIB
    assert sparse[3] > 0.9 * (sparse[2] - first[2] - 64)
    assert empty[0] - first[0] < 3 * MIB


def test_the_interpreters_own_allocator_is_there_again_after_the_stop(python: str) -> None:  # noqa: F811
    assert run(python, BURST + "_probe.arenas_stop(); _probe.arenas_stop()\nmore = [bytes(31) for _ in range(100_000)]\n"
                               "say([_probe.arenas_read(), len(more)])") == [None, 100_000]


@ONE
def test_it_is_started_once_and_goes_on_beside_the_sampler_and_in_a_forked_child(python: str) -> None:  # noqa: F811
    held, child, again = run(python, BURST + """
_probe.sample_start(mean_bytes=65536.0)
import os
reader, writer = os.pipe()
if not os.fork():
    more = [bytes(31) for _ in range(200_000)]
    os.write(writer, repr((_probe.arenas_start(), _probe.arenas_read()[0])).encode())
    os._exit(0)
os.wait()
say([empty[0], os.read(reader, 99).decode(), _probe.arenas_start()])
""")
    why_not, held_there = child.strip("()").split(", ")
    assert why_not == "None" and int(held_there) - held > 8 * MIB and again is None


@ONE
@pytest.mark.parametrize(("allocator", "word"), [("malloc", "PYTHONMALLOC"), ("malloc_debug", "PYTHONMALLOC")])
def test_without_pymalloc_there_is_a_reason_and_no_number(python: str, allocator: str, word: str) -> None:  # noqa: F811
    why_not, found = run(python, "say([_probe.arenas_start(), _probe.arenas_read()])", PYTHONMALLOC=allocator)
    assert word in why_not and found is None


@ONE
def test_under_the_debug_hooks_arenas_are_counted_all_the_same(python: str) -> None:  # noqa: F811
    why_not, full, first = run(python, BURST + "say([why_not, full[0], first[0]])", PYTHONMALLOC="debug")
    assert why_not is None and full - first > 20 * MIB


@ONE
def test_where_another_tool_was_there_first_nothing_is_counted(python: str) -> None:  # noqa: F811
    why_not, found = run(python, "import tracemalloc\ntracemalloc.start()\nsay([_probe.arenas_start(), _probe.arenas_read()])")
    assert "Another tool" in why_not and found is None


@ONE
def test_threads_may_allocate_meanwhile(python: str) -> None:  # noqa: F811
    assert run(python, """
import threading
_probe.arenas_start()
done = []
def work():
    for _ in range(20):
        burst = [bytes(63) for _ in range(20_000)]
    done.append(1)
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads: thread.start()
while any(thread.is_alive() for thread in threads):
    held, used, pools, sparse = _probe.arenas_read()
    assert 0 < used <= held and sparse <= pools
for thread in threads: thread.join()
say(len(done))
""") == 4


def test_without_a_probe_there_are_no_columns_and_no_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "leakscope.agent.probe", None)
    notes: list[str] = []
    arenas, row = allocators.Arenas(notes.append), {}
    arenas.read(row)
    arenas.close()
    assert (row, notes) == ({}, [])


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc only")
def test_each_thread_that_allocates_has_an_arena_of_glibc_until_there_are_many() -> None:
    row: dict[str, int] = {}
    allocators.read_malloc_arenas(row)
    before = row["malloc_arenas"]
    has_allocated, release = threading.Barrier(4), threading.Event()

    def work() -> None:
        block = bytes(5000)
        has_allocated.wait()
        release.wait()
        del block

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        has_allocated.wait()
        allocators.read_malloc_arenas(row)
    finally:
        release.set()
        for thread in threads:
            thread.join()
    assert before >= 1 and row["malloc_arenas"] >= max(4, before)


def test_a_mapping_at_a_multiple_of_64_mib_is_no_heap_by_that_alone(tmp_path: Path) -> None:
    lines = (b"7f3a04000000-7f3a04121000 rw-p 00000000 00:00 0 \n"  # a heap can begin here
             b"7f3a08000000-7f3a10100000 rw-p 00000000 00:00 0 \n"  # and three, where those before the last are full
             b"7f3a14000000-7f3a14121000 ---p 00000000 00:00 0 \n"
             b"7f3a18000000-7f3a18121000 rw-p 00000000 08:01 77 /tmp/file\n"
             b"7f3a1c100000-7f3a1c121000 rw-p 00000000 00:00 0 \n")
    (tmp_path / "maps").write_bytes(lines * 900)
    found = set(allocators._aligned_starts(str(tmp_path / "maps")))
    assert found == {0x7F3A04000000, 0x7F3A08000000, 0x7F3A0C000000, 0x7F3A10000000}


def test_a_program_that_may_not_read_its_own_memory_any_more_has_no_count_and_no_failure(
        monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str, flags: int) -> int:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(allocators, "_aligned_starts", lambda: [1 << 26])
    monkeypatch.setattr(allocators.os, "open", refuse)
    row: dict[str, int] = {}
    allocators.read_malloc_arenas(row)
    assert row == {}
