"""What every test shares: slow tests run last, so that a mistake shows within seconds; signals are as on a terminal."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile

import pytest

from tests import shared


def pytest_configure(config: pytest.Config) -> None:
    """Undo what a shell does to a job in the background: it ignores Ctrl-C, and so would every program of the tests."""
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, usual)
    if not hasattr(config, "workerinput"):  # workers have the folder of whoever started them
        os.environ[shared.VARIABLE] = tempfile.mkdtemp(prefix="leakscope-tests-")


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ[shared.VARIABLE], ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("slow") is not None)
