"""What only the interpreter's memory says: the callbacks of atexit."""

from __future__ import annotations

import atexit
import gc
import sys

import pytest

from leakscope.agent.interpreter import atexit_callbacks

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/mem")


def known():
    return {id(thing): thing for thing in gc.get_objects()}


@pytest.fixture
def registered():
    callbacks = [lambda number=number: number for number in range(50)]
    for callback in callbacks:
        atexit.register(callback)
    yield callbacks
    for callback in callbacks:
        atexit.unregister(callback)


def test_every_registered_callback_is_found(registered):
    found = [function for function, _, _ in atexit_callbacks(atexit._ncallbacks(), known())]
    assert [function for function in found if function in registered] == registered


def test_empty_slots_and_callbacks_that_came_since_the_walk_began_are_passed_over(registered):
    before = known()
    atexit.unregister(registered[0])
    count = atexit._ncallbacks()
    late = [lambda number=number: number for number in range(5)]
    for callback in late:
        atexit.register(callback)
    try:
        found = [function for function, _, _ in atexit_callbacks(count, before)]
    finally:
        for callback in late:
            atexit.unregister(callback)
    assert [function for function in found if function in registered] == registered[1:]
    assert not [function for function in found if function in late]


def test_a_count_that_is_far_off_finds_nothing(registered):
    assert atexit_callbacks(atexit._ncallbacks() + 5000, known()) is None
    assert atexit_callbacks(0, known()) is None
