"""Every test of a graph analysis runs on the inner loops in C and on their twin in Python."""

from __future__ import annotations

from types import ModuleType

import pytest

from leakscope.analyse import _graph_python, kernel

try:
    from leakscope.analyse import _graph
except ImportError:
    _graph = None


@pytest.fixture(params=["c", "python"])
def loops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The inner loops that are in use during the test."""
    if request.param == "c" and _graph is None:
        pytest.skip("leakscope.analyse._graph is not built: python setup.py build_ext --inplace")
    monkeypatch.setattr(kernel, "active", _graph if request.param == "c" else _graph_python)
    return kernel.active
