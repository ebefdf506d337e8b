"""The bundled server under its bounded load: what `make demo` shows is true, and the mended twins are not accused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
DEMO = ROOT / "fixtures" / "demo"
CLAIMS = {"python-leak", "delayed-garbage", "native-leak", "gpu-leak", "fragmentation"}


def serve(out: Path, *options: str) -> dict[str, Any]:
    """Serve the load of `make demo` under `leakscope run` and return the report.json."""
    done = subprocess.run([sys.executable, DEMO / "load.py", "--",
                           sys.executable, "-m", "leakscope", "run", "-o", out, *options[1:], "--",
                           sys.executable, DEMO / "serve.py", "--leak", options[0], "--port", "{port}"],
                          cwd=ROOT, text=True, capture_output=True, stdin=subprocess.DEVNULL)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "served 2400 requests\n"
    return json.loads((out / "report.json").read_text())


@pytest.mark.slow
def test_the_cycle_of_the_client_library_is_named_with_its_allocation_function(tmp_path):
    report = serve(tmp_path / "out", "cycle", "--sites", "tracemalloc")
    assert report["verdict"]["class"] == "delayed-garbage", report["verdict"]["sentence"]
    first = report["findings"][0]
    steps = {(step["type"].rpartition(".")[2], step["edge"].lstrip(".")) for step in first["cycle"]}
    assert {("StreamParser", "response"), ("Response", "parser")} <= steps
    assert first["site"]["function"] == "decode_event"
    assert first["site"]["file"].endswith("streamsdk/parser.py")


@pytest.mark.slow
def test_the_tensor_cache_is_named(tmp_path):
    report = serve(tmp_path / "out", "cache")
    assert report["verdict"]["class"] == "python-leak", report["verdict"]["sentence"]
    assert "_tensor_cache" in report["findings"][0]["owner"]


@pytest.mark.slow
def test_the_mended_server_is_not_accused(tmp_path):
    report = serve(tmp_path / "out", "none")
    assert report["verdict"]["class"] not in CLAIMS, report["verdict"]["sentence"]
