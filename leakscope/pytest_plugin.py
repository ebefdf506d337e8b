"""The pytest plug-in: fixture and marker `no_leak`. What is judged, and how, is in leakscope/no_leak.py.

    def test_handle(no_leak):
        no_leak(handle, request)

    @pytest.mark.no_leak(rounds=20)
    def test_handle_again():
        handle(request)

What pytest itself records while a test runs (log records, warnings) is dropped at the end of each window, as it is no leak of
the test; that of the warm-up stays to be seen. A session that uses neither form gets the marker's registration and nothing
else.
"""

from __future__ import annotations

import io
import logging
import re
import warnings
from collections.abc import Callable, Generator
from typing import Any

import pytest

MARKER = "no_leak(rounds=10): repeat the test's body in equal windows and fail if memory grows with every call (leakscope)"

# Where pytest holds the value of a fixture, whatever the way to it.
_FIXTURE = re.compile(r"\b_pytest\.\S*\.funcargs(?:\['(\w+)'\])?")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, for --strict-markers and `pytest --markers`."""
    config.addinivalue_line("markers", MARKER)


@pytest.fixture(name="no_leak")
def _no_leak() -> Callable[..., Any]:
    """Call `no_leak(fn, *args, rounds=10, **kwargs)`, or use `with no_leak(rounds=10) as rounds: for _ in rounds: ...`.

    The test fails if memory grows with every call.
    """
    from leakscope import no_leak as judging

    def no_leak(fn: Callable[..., Any] | None = None, /, *args: Any, rounds: int = judging.ROUNDS, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        judged = judging.Rounds(rounds, Recordings().forget)
        return judged if fn is None else judging.judge(judged, fn, args, kwargs)

    return no_leak


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Refuse the marker where it would do nothing: a test that passes must have been judged."""
    if item.get_closest_marker("no_leak") and not _can_repeat(item):
        pytest.fail(f"The marker no_leak cannot repeat {item.name}: only plain test functions and methods can be, no "
                    "unittest.TestCase, no coroutine, no doctest.\n  hint: no_leak(fn) inside the test", pytrace=False)


def _can_repeat(item: pytest.Item) -> bool:
    import inspect

    if type(item) is not pytest.Function:  # a TestCase's is a subclass, and runs by other ways
        return False
    return not inspect.iscoroutinefunction(item.obj) and not inspect.isasyncgenfunction(item.obj)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a marked test's body in windows; its fixtures are set up once, before the first."""
    __tracebackhide__ = True
    marker = pyfuncitem.get_closest_marker("no_leak")
    if marker is None:
        return None
    from leakscope import no_leak as judging

    unknown = [f"{name}=" for name in marker.kwargs if name != "rounds"] + [repr(value) for value in marker.args]
    if unknown:
        raise judging.CannotJudge(f"The marker no_leak does not know {', '.join(unknown)}.", "@pytest.mark.no_leak(rounds=10)")
    wanted = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in wanted}
    rounds = judging.Rounds(marker.kwargs.get("rounds", judging.ROUNDS), Recordings().forget)
    judging.judge(rounds, pyfuncitem.obj, kwargs=arguments)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Show growth as its text alone: the frames of the judge say nothing about the leak."""
    report = yield
    if call.excinfo is not None and type(call.excinfo.value).__module__ == "leakscope.no_leak":
        error: Any = call.excinfo.value
        hint = getattr(error, "hint", "")
        text = _FIXTURE.sub(lambda found: f"fixture '{found[1]}'" if found[1] else "a fixture of the test", str(error))
        report.longrepr = f"{text}\n  hint: {hint}" if hint else text
    return report


class Recordings:
    """What pytest records for its reports in lists that grow while a test runs: log records and warnings.

    `forget` drops what came since the first call of it, and leaves everything else alone. A recorder that pytest does not
    show is not touched.
    """

    def __init__(self) -> None:
        self._lengths: dict[int, int] | None = None
        self._recorders: list[list[Any]] = []
        self._streams: list[tuple[Any, int]] = []

    def forget(self) -> None:
        """Cut the recordings back to what they were at the first call."""
        if self._lengths is None:
            handlers = [each for each in logging.getLogger().handlers if type(each).__module__ == "_pytest.logging"]
            found = [getattr(each, "records", None) for each in handlers]
            # warnings.catch_warnings(record=True), as pytest uses it, sends each warning to the append of a list.
            found.append(getattr(getattr(warnings, "_showwarnmsg_impl", None), "__self__", None))
            self._recorders = [each for each in found if type(each) is list]
            self._lengths = {id(each): len(each) for each in self._recorders}
            streams = [getattr(each, "stream", None) for each in handlers]
            self._streams = [(each, each.tell()) for each in streams if isinstance(each, io.StringIO)]
        for each in self._recorders:
            del each[self._lengths[id(each)]:]
        for stream, position in self._streams:
            stream.seek(position)
            stream.truncate()
