"""The script for a lent GPU: all of it that needs no GPU works, since it will be run once and in a hurry."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
MIB = 1 << 20


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return loaded(monkeypatch, "gpu_checks")


@pytest.fixture
def sums(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return loaded(monkeypatch, "gpu_check_sums")


def loaded(monkeypatch: pytest.MonkeyPatch, name: str) -> ModuleType:
    """A script of benchmarks/, which import each other by their plain names."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return __import__(name)


def a_check(checks: ModuleType, budget_s: int = 5) -> Any:
    return checks.Check(99, "stand-in", budget_s, "does it do what the test says")


def ran(checks: ModuleType, work: Path, code: str, timeout_s: float = 20) -> Any:
    """The result of a check whose process runs this code; `tell(...)` writes its file."""
    check = a_check(checks)
    head = f"import json\ndef tell(**said): open({str(work / (check.key + '.json'))!r}, 'w').write(json.dumps(said))\n"
    return checks.run(check, [sys.executable, "-c", head + code], work, timeout_s)[0]


# --- without a device -------------------------------------------------------------------------------------------------

def test_without_a_gpu_it_says_so_in_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\")\n")
    done = subprocess.run([sys.executable, str(BENCHMARKS / "gpu_checks.py"), "--out", str(tmp_path / "out")],
                          capture_output=True, text=True, env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 2 and done.stdout == "" and not (tmp_path / "out").exists()
    assert done.stderr == "No GPU can be used here (torch is not installed), so nothing was checked.\n"


@pytest.mark.parametrize(("lines", "reason"), [
    ("class backends:\n class cuda:\n  is_built = lambda: False", "torch is built without CUDA"),
    ("class backends:\n class cuda:\n  is_built = lambda: True\nclass cuda:\n is_available = lambda: False",
     "torch sees no CUDA device"),
    ("raise OSError('libcudart.so is damaged')", "OSError: libcudart.so is damaged"),
])
def test_why_there_is_no_gpu(
        checks: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str, reason: str) -> None:
    (tmp_path / "torch.py").write_text(lines)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert checks.why_no_gpu() == f"No GPU can be used here ({reason}), so nothing was checked."


def test_with_a_gpu_there_is_no_reason(checks: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("class backends:\n class cuda:\n  is_built = lambda: True\n"
                                       "class cuda:\n is_available = lambda: True")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert checks.why_no_gpu() is None


# --- the frame --------------------------------------------------------------------------------------------------------

def test_the_most_important_checks_come_first_and_fit_their_time(checks: ModuleType) -> None:
    numbers = [check.number for check in checks.CHECKS]
    assert list(dict.fromkeys(numbers))[:8] == [0, 2, 3, 4, 5, 7, 8, 12]
    assert set(numbers) >= set(range(14))
    first = [check for check in checks.CHECKS if check.number in (0, 2, 3, 4, 5, 7, 8, 12)]
    assert sum(check.budget_s for check in first) <= checks.SECONDS - checks.RESERVE_S
    assert len({check.key for check in checks.CHECKS}) == len(checks.CHECKS)


def test_every_check_has_its_function(checks: ModuleType) -> None:
    names = {node.name for file in ("gpu_check_bodies.py", "gpu_check_more.py")
             for node in ast.parse((BENCHMARKS / file).read_text()).body if isinstance(node, ast.FunctionDef)}
    assert {check.name for check in checks.CHECKS} <= names


def test_the_checks_can_be_imported_where_there_is_no_torch(monkeypatch: pytest.MonkeyPatch, checks: ModuleType) -> None:
    bodies = loaded(monkeypatch, "gpu_check_bodies")
    assert {check.name for check in checks.CHECKS} == set(bodies.BODIES)


def test_a_result_keeps_its_numbers(checks: ModuleType, tmp_path: Path) -> None:
    result = ran(checks, tmp_path, "tell(numbers={'mib': 3}, passed=True, why='', is_whole=True)")
    assert (result.passed, result.word, result.numbers) == (True, "pass", {"mib": 3})


@pytest.mark.parametrize(("code", "why"), [
    ("tell(numbers={'mib': 3}); raise SystemExit('NVML cannot be read')", "NVML cannot be read"),
    ("tell(numbers={'mib': 3}); 1 / 0", "ZeroDivisionError: division by zero"),
    ("tell(numbers={'mib': 3})", "it ended with 0"),
    ("import os, signal; tell(numbers={'mib': 3}); os.kill(os.getpid(), signal.SIGSEGV)", "it died by SIGSEGV"),
    ("tell(numbers={'mib': 3}, passed=False, why='too little', is_whole=True)", "too little"),
])
def test_a_check_that_fails_says_why_and_keeps_what_it_told(checks: ModuleType, tmp_path: Path, code: str, why: str) -> None:
    result = ran(checks, tmp_path, code)
    assert (result.passed, result.why, result.numbers) == (False, why, {"mib": 3})


def test_a_check_that_hangs_is_stopped_with_its_children(checks: ModuleType, tmp_path: Path) -> None:
    code = ("import subprocess, sys, time; child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
            "tell(numbers={'child': child.pid}); time.sleep(60)")
    result = ran(checks, tmp_path, code, timeout_s=1.5)
    assert (result.passed, result.why) == (False, "it was stopped after 2 s")
    stat, deadline = Path(f"/proc/{result.numbers['child']}/stat"), time.monotonic() + 10
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z":  # whoever adopted it may not have fetched it
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_time_is_given_by_budget_and_what_is_left(checks: ModuleType) -> None:
    check = a_check(checks, budget_s=40)
    assert checks.time_for(check, 500) == 60
    assert checks.time_for(check, 30) == 30 - checks.RESERVE_S
    assert checks.time_for(check, 15) is None


def test_a_variant_alone_gets_settings_of_the_allocator(checks: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync")
    plain, expandable = (checks.environment_of(check) for check in checks.CHECKS if check.number == 2)
    assert "PYTORCH_CUDA_ALLOC_CONF" not in plain
    assert expandable["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    assert plain["PYTHONPATH"].startswith(str(BENCHMARKS.parent))


def whole_run(checks: ModuleType, monkeypatch: pytest.MonkeyPatch, out: Path, *more: str) -> int:
    """The main function with three stand-ins for checks."""
    codes = {"good": "numbers={'mib': 1.5}, passed=True, why='', is_whole=True",
             "wrong": "numbers={}, passed=False, why='a | b', is_whole=True",
             "told": "numbers={'kib': 7, 'list': [1]}, passed=None, why='', is_whole=True"}
    named = [checks.Check(number, name, 10, name) for number, name in enumerate(codes)]

    def command_of(check: Any, work: Path) -> list[str]:
        code = (f"import json; open({str(work / check.key)!r} + '.json', 'w').write(json.dumps(dict({codes[check.name]})))\n"
                f"open({str(work / 'fixture-x.json')!r}, 'w').write('[1]'); print('hello')")
        return [sys.executable, "-c", code]

    monkeypatch.setattr(checks, "CHECKS", tuple(named))
    monkeypatch.setattr(checks, "command_of", command_of)
    monkeypatch.setattr(checks, "why_no_gpu", lambda **_given: None)
    return int(checks.main(["--out", str(out), *more]))


def test_a_run_leaves_results_a_table_a_log_and_the_fixtures(
        checks: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert whole_run(checks, monkeypatch, tmp_path / "out") == 1
    assert sorted(each.name for each in (tmp_path / "out").iterdir()) == [
        "fixtures.tar.gz", "log.txt", "results.json", "table.md"]
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [each["passed"] for each in results["results"]] == [True, False, None] and results["left_out"] == []
    with tarfile.open(tmp_path / "out" / "fixtures.tar.gz") as tar:
        assert tar.getnames() == ["fixture-x.json"]
    printed = capsys.readouterr().out
    assert "| 0-good | pass |" in printed and "| a / b |" in printed and "| 2-told | number |" in printed and "kib 7" in printed
    assert "--- 0-good\nhello" in (tmp_path / "out" / "log.txt").read_text()


def test_checks_for_which_no_time_is_left_are_skipped_and_named(
        checks: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert whole_run(checks, monkeypatch, tmp_path, "--seconds", "10") == 0
    results = json.loads((tmp_path / "results.json").read_text())["results"]
    assert {each["why"] for each in results} == {"no time was left"} and len(results) == 3


def test_some_checks_can_be_asked_for(checks: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert whole_run(checks, monkeypatch, tmp_path, "--only", "0", "2") == 0
    assert [check.number for check in checks.chosen([12, 0])] == [0]
    assert len(json.loads((tmp_path / "results.json").read_text())["results"]) == 2


# --- what is computed -------------------------------------------------------------------------------------------------

def segment(*blocks: tuple[int, int, str], pool: tuple[int, int] = (0, 0), **fields: Any) -> dict[str, Any]:
    return {"total_size": sum(size for _, size, _ in blocks), "segment_pool_id": pool, **fields,
            "active_size": sum(size for _, size, state in blocks if state != "inactive"),
            "blocks": [{"address": address, "size": size, "state": state} for address, size, state in blocks]}


def test_allocated_bytes_are_owned_workspaces_or_neither(sums: ModuleType) -> None:
    segments = [segment((100, 50, "active_allocated"), (150, 50, "inactive"), (200, 32, "active_allocated")),
                segment((1000, 64, "active_allocated"), (1064, 8, "active_pending_free"))]
    storages = [(110, 1), (120, 1), (160, 1), (1064, 1), (5, 1), (1000, 0)]
    assert sums.explained(segments, storages, 32) == {"owned": 50, "workspaces": 32, "unowned": 64, "allocated": 146}


def test_pools_in_which_nothing_lives_are_zombies(sums: ModuleType) -> None:
    segments = [segment((0, 10, "inactive"), pool=(1, 0)), segment((20, 10, "active_allocated"), pool=(2, 0)),
                segment((40, 10, "inactive")), segment((60, 5, "inactive"), pool=(2, 0))]
    assert sums.zombies(segments) == {"1.0": 10}


@pytest.mark.parametrize(("stats", "expected"), [
    ({"allocated_bytes.current": 64, "active_bytes.current": 40}, (64, 40)),  # torch 2.9 and later
    ({"allocated_bytes.current": 40, "reserved_bytes.current": 64}, (64, 40)),  # torch 2.7 and 2.8
    ({"allocated_bytes": {"current": 64}, "active_bytes": {"current": 40}}, (64, 40)),
    ({}, (None, None)),
])
def test_pinned_memory_has_one_meaning_under_both_sets_of_keys(sums: ModuleType, stats: Any, expected: Any) -> None:
    assert sums.pinned(stats) == expected


def test_a_fixture_does_not_say_where_files_lie_on_the_machine(sums: ModuleType) -> None:
    frames = [{"filename": "/opt/v/lib/python3.12/site-packages/torch/nn/a.py", "line": 3, "name": "f"},
              {"filename": "/usr/lib/python3.12/threading.py", "line": 1, "name": "g"},
              {"filename": "/home/somebody/app.py", "line": 1, "name": "h"}, {"filename": "??", "line": 0, "name": "c"}]
    snapshot = {"segments": [{"address": 7, "segment_pool_id": (0, 1), "frames": frames}]}
    (masked,) = sums.masked(snapshot)["segments"]
    assert [frame["filename"] for frame in masked["frames"]] == ["torch/nn/a.py", "python3.12/threading.py", "app.py", "??"]
    assert (masked["address"], masked["segment_pool_id"]) == (7, (0, 1))
    assert frames[2]["filename"] == "/home/somebody/app.py"


def test_keys_and_words_of_a_snapshot_are_listed(sums: ModuleType) -> None:
    found = sums.key_sets({"segments": [segment((0, 1, "inactive"), segment_type="small")], "device_traces": [
        [{"action": "alloc", "frames": [{"filename": "a"}]}], []], "allocator_settings": {"backend": "native"}})
    assert (found["states"], found["actions"], found["segment_types"]) == (["inactive"], ["alloc"], ["small"])
    assert (found["frame"], found["settings"]) == (["filename"], ["backend"])
    assert sums.key_sets({})["block"] == []


def test_the_largest_fixtures_are_left_out_where_they_do_not_fit(sums: ModuleType, tmp_path: Path) -> None:
    small, large = tmp_path / "small.json", tmp_path / "large.pickle"
    small.write_text("[]")
    large.write_bytes(bytes(range(256)) * 4000)
    assert sums.bundled([large, small], tmp_path / "all.tar.gz", most_bytes=1000) == ["large.pickle"]
    with tarfile.open(tmp_path / "all.tar.gz") as tar:
        assert tar.getnames() == ["small.json"]


def test_small_sums(sums: ModuleType) -> None:
    assert (sums.drift([3, 1, 2]), sums.drift([])) == (2, 0)
    assert (sums.slope_ends([1, 5, 9]), sums.slope_ends([1])) == (4, 0)
    assert sums.status_bytes("VmRSS:\t 8 kB\nRssShmem:\t 3 kB\n", "RssShmem") == 3072
    assert (sums.workspace_quantum([9, 0]), sums.workspace_quantum((8, 6))) == (32 * MIB, 8_519_680)


def test_what_a_session_left_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    more = loaded(monkeypatch, "gpu_check_more")
    snapshot = tmp_path / "session" / "7" / "snapshots" / "0001"
    snapshot.mkdir(parents=True)
    for file, content in ((snapshot / "devices.json", {"format": 1}), (snapshot / "done.json", {"method": "fork", "x": 1}),
                          (tmp_path / "session" / "session.json", {"gpu": {"driver": "580"}}),
                          (tmp_path / "report.json", {"verdict": {"class": "gpu-leak"}, "findings": [{"owner": "a.b"}]})):
        file.write_text(json.dumps(content))
    (tmp_path / "session" / "nvml.jsonl").write_text('{"t_ns": 1, "names": {"7": "python"}}\n')
    (tmp_path / "session" / "7" / "timeline.jsonl").write_text('{"t_ns": 1, "cuda0_reserved_bytes": 5, "rss_bytes": 6}\n')
    found = more.of_session(tmp_path)
    assert (found["maps"], found["nvml_rows"], found["verdict"], found["owners"]) == (1, 1, "gpu-leak", "a.b")
    assert (found["columns"], found["done"]) == (["cuda0_reserved_bytes"], [{"method": "fork"}])
    assert found["gpu"] == {"driver": "580"}
    assert more.evidence(tmp_path) == {"recorded": True, "timeline": [{"t_ns": 1, "cuda0_reserved_bytes": 5}],
                                       "nvml": [{"t_ns": 1, "names": {}}], "devices": {"format": 1}}
    assert more.of_session(tmp_path / "nothing")["maps"] == 0
