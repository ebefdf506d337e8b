"""The stand-in for FlashInfer, and the embedding server that uses it on a simulated device, observed as a user would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.agent.walking import taken

ROOT = Path(__file__).resolve().parents[1]
STANDIN = ROOT / "fixtures" / "standin"
SERVER = STANDIN / "embedding_server.py"
TORCH_PYTHON = "LEAKSCOPE_TORCH_PYTHON"  # an interpreter that has torch, where this one has none
KEYS = f"""
import sys
sys.path.insert(0, {str(STANDIN)!r})
import flashinfer
""" + """
kept = []
class Tensor:
    pass
for version in ("0.2.9", "0.6.2", "0.6.14", "0.6.18"):
    flashinfer.use(version)
    for tokens in range(1, 41):
        flashinfer.gemm.build_cudnn_gemm_graph((tokens, 4096), (4096, 4096), "bf16")
        flashinfer.autotuner.AutoTuner.get().choose_one(128)
    if version == "0.6.2":
        for _ in range(40):
            flashinfer.gemm.mm_fp4((8, 8), (8, 8), Tensor())
    kept.append(flashinfer.gemm.build_cudnn_gemm_graph)
flashinfer.jit.get_batch_prefill_module("fa2", "a", "b", "c", "d", 128, 128, 0, False, False, False)
snapshot()
"""


def caches() -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for cache in taken("3.11", KEYS).names["caches"]:
        found.setdefault(cache["name"], []).append(cache)
    return found


def at(cache: dict[str, Any], *path: object) -> dict[str, Any]:
    return next(each for each in cache["keys"]["positions"] if each["at"] == list(path))


def test_the_stand_in_has_the_keys_of_the_versions():
    graphs = {(each["maxsize"], each["currsize"]): each for each in caches()["flashinfer.gemm.build_cudnn_gemm_graph"]}
    assert sorted(graphs, key=str) == [(1024, 40), (2048, 40), (None, 40), (None, 80)]
    assert at(graphs[None, 40], 0, 0)["distinct"] == 40 and at(graphs[None, 40], 0, 1)["distinct"] == 1
    assert at(graphs[None, 80], 3)["types"] == {"__main__.Tensor": 40} and at(graphs[None, 80], 3)["identity"] == 40


def test_the_autotuners_lambda_is_found_inside_its_configuration():
    (tuner,) = caches()["flashinfer.autotuner.AutoTuner._find_nearest_profile"]
    assert tuner["currsize"] == 121  # 40 for each version that makes a lambda for each call, and one
    spec = at(tuner, 1, ".dynamic_tensor_specs", 0, ".map_to_tuning_buckets")
    assert spec["types"] == {"lambda": 120, "function": 1} and spec["distinct"] == 121


def test_a_prefill_module_has_one_entry_whatever_the_lengths():
    (cache,) = caches()["flashinfer.jit.get_batch_prefill_module"]
    assert cache["currsize"] == 1 and len(cache["keys"]["positions"]) == 11


def observe(python: str, out: Path, *arguments: str) -> dict[str, Any]:
    device = out / "device"
    device.mkdir(parents=True)
    done = subprocess.run([sys.executable, "-m", "leakscope", "run", "-o", str(out / "report"),
                           "--gpu", f"recorded:{device}", "--",
                           python, str(SERVER), "--device", str(device), *arguments],
                          cwd=ROOT, text=True, capture_output=True, stdin=subprocess.DEVNULL)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "served 900 requests\n"
    return json.loads((out / "report" / "report.json").read_text())


def finding(report: dict[str, Any], code: str) -> dict[str, Any]:
    return next(each for each in report["findings"] if each["rule"] == code)


def python_with_torch() -> str:
    for python in (os.environ.get(TORCH_PYTHON, ""), sys.executable):
        if python and subprocess.run([python, "-c", "import importlib.util as u, sys; sys.exit(not u.find_spec('torch'))"],
                                     capture_output=True).returncode == 0:  # fmt: skip
            return python
    pytest.skip(f"no interpreter with torch: {TORCH_PYTHON} names one")


@pytest.mark.slow
def test_without_torch_the_cache_of_kernels_is_named_with_its_argument(tmp_path):
    report = observe(sys.executable, tmp_path)
    found = finding(report, "LS404")
    assert found["owner"] == "flashinfer.prefill.get_compiled_context"
    assert any("argument 3 (`max_seq_len`) varies" in reason and "token counts" in reason for reason in found["reasons"])
    assert any("outside PyTorch per entry" in reason for reason in found["reasons"])


@pytest.mark.slow
def test_with_torch_the_owner_of_the_tensors_is_named_as_well(tmp_path):
    report = observe(python_with_torch(), tmp_path)
    assert report["verdict"]["class"] == "gpu-leak" and finding(report, "LS404")["owner"].startswith("flashinfer.prefill.")
    assert finding(report, "LS401")["owner"].endswith("EmbeddingClient._tensor_cache")
    assert report["devices"][0]["is_simulated"]


@pytest.mark.slow
def test_the_mended_server_is_not_accused_of_its_device(tmp_path):
    report = observe(python_with_torch(), tmp_path, "--mended")
    assert report["verdict"]["class"] != "gpu-leak", report["verdict"]["sentence"]
    assert [each["owner"] for each in report["findings"] if each["rule"].startswith("LS4")] == []
