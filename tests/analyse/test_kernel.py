"""The inner loops: chosen where they are built, safe on arrays that are no graph, clean under sanitizers."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
import sysconfig
import threading
from pathlib import Path

import numpy as np
import pytest

from leakscope.analyse import _graph_python, kernel
from tests.analyse.graphs import chain, rows

ROOT = Path(__file__).resolve().parents[2]


def test_without_the_built_module_the_python_twin_is_in_use(monkeypatch):
    monkeypatch.setitem(sys.modules, "leakscope.analyse._graph", None)
    monkeypatch.delattr("leakscope.analyse._graph", raising=False)
    try:
        assert importlib.reload(kernel).active is _graph_python
    finally:
        monkeypatch.undo()
        importlib.reload(kernel)


def test_both_kinds_of_inner_loops_answer_the_same_names(loops):
    assert all(callable(getattr(loops, name)) for name in ("reach", "components", "dominators", "retained", "expand"))


@pytest.mark.parametrize("wrong", range(5))
def test_arrays_of_another_length_are_refused_before_anything_is_written(loops, wrong):
    start, target = rows([[1], [0], []])
    short, node = np.zeros(2, dtype=np.uint32), np.zeros(1, dtype=np.uint32)
    calls = [
        lambda: loops.reach(start, target, node, None, short.view(np.uint8)[:2], np.zeros(1, dtype=np.uint8)),
        lambda: loops.reach(start, target, node, np.zeros(9, dtype=np.uint8), np.zeros(3, dtype=np.uint8),
                            np.zeros(1, dtype=np.uint8)),
        lambda: loops.components(start, target, None, short.view(np.int32)),
        lambda: loops.dominators(start, target, node, short.view(np.int32)),
        lambda: loops.expand(start, target, np.zeros(2, dtype=np.uint32), short, np.zeros(2, dtype=np.uint8),
                             np.zeros((3, 32), dtype=np.uint8), 0, node, np.zeros(2, dtype=np.int64), short.view(np.int32),
                             short.view(np.int32), short.view(np.int32)),
    ]
    with pytest.raises(ValueError, match="graph|length"):
        calls[wrong]()
    assert not short.any()


def test_a_frontier_that_nobody_has_claimed_claims_nothing(loops):
    start, target = rows([[1, 2], [0], [1]])
    root = np.full(3, -1, dtype=np.int32)
    loops.expand(start, target, np.zeros(3 + 1, dtype=np.uint32), np.zeros(1, dtype=np.uint32), np.zeros(1, dtype=np.uint8),
                 np.zeros((3, 32), dtype=np.uint8), 0, np.array([0], dtype=np.uint32), np.full(3, -1), root.copy(), root,
                 root.copy())
    assert root.tolist() == [-1, -1, -1]


def test_other_threads_run_while_the_c_loops_do():
    graph = pytest.importorskip("leakscope.analyse._graph")
    start, target = chain(300_000)
    component = np.empty(300_000, dtype=np.int32)
    ran, still_at_it = threading.Event(), []

    def work() -> None:
        for _ in range(500):
            graph.components(start, target, None, component)
            if ran.is_set():
                still_at_it.append(True)
                break

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # nobody is made to give way: this thread runs only where the other lets go by itself
    try:
        worker = threading.Thread(target=work)
        worker.start()
        ran.set()
        worker.join()
    finally:
        sys.setswitchinterval(interval)
    assert still_at_it


SANITIZED = """
import importlib.util, sys
import pytest
spec = importlib.util.spec_from_file_location("leakscope.analyse._graph", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
sys.modules["leakscope.analyse._graph"] = module
import leakscope.analyse
leakscope.analyse._graph = module
tests = ["reachability", "components", "dominators", "paths", "columns", "kernel"]
sys.exit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-k", "not python and not sanitizers and not reload and not twin",
                      *[f"tests/analyse/test_{name}.py" for name in tests]]))
"""


@pytest.mark.slow
def test_the_c_loops_are_clean_under_the_address_and_undefined_behaviour_sanitizers(tmp_path):
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("no gcc to build with -fsanitize=address,undefined")
    found = subprocess.run([compiler, "-print-file-name=libasan.so"], capture_output=True, text=True).stdout.strip()
    if not Path(found).is_absolute():
        pytest.skip("gcc has no libasan")
    library = tmp_path / f"_graph{sysconfig.get_config_var('EXT_SUFFIX')}"
    subprocess.run([compiler, "-shared", "-fPIC", "-g", "-O1", "-std=c11", "-Wall", "-Wextra", "-Werror",
                    "-fsanitize=address,undefined", "-fno-sanitize-recover=all", f"-I{sysconfig.get_paths()['include']}",
                    *map(str, sorted((ROOT / "leakscope/analyse").glob("*.c"))), "-o", str(library)], check=True, timeout=120)
    environment = {**os.environ, "LD_PRELOAD": found, "ASAN_OPTIONS": "detect_leaks=0", "PYTHONPATH": str(ROOT),
                   "PYTHONMALLOC": "malloc"}
    run = subprocess.run([sys.executable, "-c", SANITIZED, str(library)], cwd=ROOT, env=environment, capture_output=True,
                         text=True, timeout=170)
    assert run.returncode == 0 and " passed" in run.stdout, run.stdout[-3000:] + run.stderr[-3000:]
