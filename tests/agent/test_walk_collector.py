"""The walk keeps the collector away, and what the target says to the collector meanwhile stays."""

from __future__ import annotations

import gc
import json

from leakscope.agent import walk
from tests.agent.alone import alone


def taken(folder, meanwhile):
    """Take a snapshot while `meanwhile` happens in the target."""
    def tracer(_objects):
        meanwhile()
        return (), [None]

    return walk.take(str(folder / "0001"), 1, "manual", 0, tracer=tracer)


@alone
def test_a_target_that_disables_the_collector_during_a_walk_has_it_disabled_afterwards(tmp_path):
    gc.enable()
    taken(tmp_path, gc.disable)
    assert not gc.isenabled()


@alone
def test_a_target_that_sets_thresholds_during_a_walk_keeps_them(tmp_path):
    taken(tmp_path, lambda: gc.set_threshold(50_000, 20, 30))
    assert gc.get_threshold()[:2] == (50_000, 20)


@alone
def test_thresholds_are_back_after_a_walk_and_the_snapshot_says_what_they_were(tmp_path):
    gc.set_threshold(611, 12, 13)
    before = gc.get_threshold()
    seen = []
    done = taken(tmp_path, lambda: seen.append(gc.get_threshold()[0]))
    assert seen == [0]
    assert gc.get_threshold() == before
    assert done["gc"]["thresholds"] == list(before)


@alone
def test_a_walk_leaves_no_garbage_of_its_own_where_the_collector_is_off(tmp_path):
    gc.collect()
    gc.disable()
    walk.take(str(tmp_path / "0001"), 1, "manual", 0)
    gc.collect()
    walk.take(str(tmp_path / "0002"), 2, "manual", 0)
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        ours = [type(thing).__name__ for thing in gc.garbage if type(thing).__module__.startswith("leakscope")]
        large = [len(thing) for thing in gc.garbage if type(thing) in (list, dict, set) and len(thing) > 100]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
    assert (ours, large) == ([], [])


class Frozen:
    def __init__(self):
        self.answer_of_frozen = [1]


@alone
def test_attributes_keep_their_names_where_the_heap_is_frozen(tmp_path):
    gc.collect()
    gc.freeze()
    try:
        fresh = Frozen()
        walk.take(str(tmp_path / "0001"), 1, "manual", 0)
    finally:
        gc.unfreeze()
    name = "_".join(("answer", "of", "frozen"))  # as one word here it would be known from this function
    assert name in json.loads((tmp_path / "0001" / "names.json").read_text())["strings"]
    assert name in vars(fresh)


@alone
def test_a_walk_that_is_told_to_end_leaves_nothing_and_puts_the_collector_back(tmp_path):
    keep = [[number] for number in range(60_000)]
    before = gc.get_threshold()

    def go_on(_objects_count):
        raise walk.GivenUp("enough.")

    try:
        walk.take(str(tmp_path / "0001"), 1, "manual", 0, go_on=go_on)
    except walk.GivenUp:
        pass
    else:
        raise AssertionError("it went on")
    assert gc.get_threshold() == before
    assert not (tmp_path / "0001").exists()
    assert len(keep) == 60_000


@alone
def test_nothing_is_left_out_by_the_address_of_an_object_that_has_died(tmp_path):
    # its address is used again, and whatever comes to lie there would be left out: once that was the frame of main()
    made = walk.Walk((), str(tmp_path))
    try:
        alive = {id(thing) for thing in made.own} | {id(made.own), id(made.tracked)}
        assert made.own_ids <= alive
    finally:
        made.clear()
