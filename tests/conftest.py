"""What every test shares: slow tests run last, so that a mistake shows within seconds; signals are as on a terminal."""

from __future__ import annotations

import signal

import pytest


def pytest_configure() -> None:
    """Undo what a shell does to a job in the background: it ignores Ctrl-C, and so would every program of the tests."""
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, usual)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("slow") is not None)
