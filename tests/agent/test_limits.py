"""Control groups of both versions, resource limits, what is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from leakscope.agent import limits
from leakscope.agent.limits import ControlGroup, MemoryRoom


def files(root: Path, contents: dict[str, str]) -> None:
    for name, text in contents.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def group(root: Path, membership: str) -> ControlGroup:
    (root / "membership").write_text(membership)
    return ControlGroup(str(root / "mount"), str(root / "membership"))


def test_version_2_takes_the_tightest_limit_on_the_way_up(tmp_path: Path) -> None:
    files(tmp_path / "mount", {
        "app/memory.current": "900\n", "app/memory.max": "1000\n",
        "app/memory.stat": "anon 1\ninactive_file 200\nactive_file 3\n",
        "app/web/memory.current": "100\n", "app/web/memory.max": "max\n", "app/web/memory.stat": "inactive_file 5\n"})
    found = group(tmp_path, "0::/app/web\n")
    row: dict[str, int] = {}
    found.read(row)
    assert row == {"cgroup_bytes": 900, "cgroup_limit_bytes": 1000, "cgroup_inactive_file_bytes": 200}
    assert MemoryRoom(found).fullness() == (0.7, "limit of the control group")


def test_version_1_is_read_under_its_own_names(tmp_path: Path) -> None:
    files(tmp_path / "mount" / "memory" / "app", {
        "memory.usage_in_bytes": "500\n", "memory.limit_in_bytes": "2000\n",
        "memory.stat": "inactive_file 1\ntotal_inactive_file 100\n"})
    row: dict[str, int] = {}
    group(tmp_path, "12:cpu,cpuacct:/x\n4:memory:/app\n").read(row)
    assert row == {"cgroup_bytes": 500, "cgroup_limit_bytes": 2000, "cgroup_inactive_file_bytes": 100}


def test_no_limit_is_no_limit(tmp_path: Path) -> None:
    files(tmp_path / "mount" / "memory", {"memory.usage_in_bytes": "500\n", "memory.limit_in_bytes": "9223372036854771712\n"})
    found = group(tmp_path, "4:memory:/\n")
    row: dict[str, int] = {}
    found.read(row)
    assert found.limit_bytes is None and row == {"cgroup_bytes": 500}


def test_without_control_groups_nothing_is_said(tmp_path: Path) -> None:
    row: dict[str, int] = {}
    ControlGroup(str(tmp_path), str(tmp_path / "not there")).read(row)
    assert row == {}


def test_a_resource_limit_counts_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {"/proc/self/limits": b"Limit   Soft Limit   Hard Limit   Units\nMax data size   unlimited  unlimited  bytes\n"
                                  b"Max address space         1048576              unlimited            bytes\n",
             "/proc/self/status": b"Name:\tx\nVmSize:\t     768 kB\nVmData:\t 1 kB\n",
             "/proc/meminfo": b"MemTotal: 999999 kB\nMemAvailable:     99999 kB\n"}
    monkeypatch.setattr(limits, "_read", lambda path: texts.get(path, b""))
    room = MemoryRoom(ControlGroup(str(tmp_path), str(tmp_path / "not there")))
    assert room.left_bytes() == 256 * 1024
    assert room.fullness() == (0.75, "resource limit")
