"""From edges to words: paths, owners, cycles."""

from __future__ import annotations

import numpy as np

from leakscope.analyse.holders import holders, of_type
from tests.heaps import heap


def why(text, name="app.Marker"):
    graph = heap(text)
    return holders(graph, of_type(graph, name))


def only(text):
    found = why(text)
    assert len(found) == 1
    return found[0].path


def test_entries_of_one_list_are_one_holder():
    found = why("""
        module app
        app .recent -> recent:list
        recent [*] -> marker:app.Marker x5
    """)
    assert [(each.count, each.path.text, each.path.owner) for each in found] == [(5, "app.recent[0]", "app.recent")]


def test_two_holders_are_two_entries():
    assert len(why("""
        module app
        app .left -> app.Marker
        app .right -> app.Marker
    """)) == 2


def test_the_owner_is_the_collection_and_not_the_object_that_leads_on():
    path = only("""
        module app
        app .signal -> signal:app.Signal
        signal .receivers -> receivers:list
        receivers [*] -> method:method
        method <__self__> -> cart:app.Cart
        cart .totals -> marker:app.Marker
    """)
    assert (path.text, path.owner) == ("app.signal.receivers[0].__self__.totals", "app.signal.receivers")


def test_a_frame_that_is_over_is_no_owner():
    path = only("""
        module app
        app .errors -> errors:list
        errors [*] -> error:ValueError kind exception
        error <__traceback__> -> traceback:traceback
        traceback <tb_frame> -> frame:frame 'parse() at app.py:5'
        frame ~cursor -> marker:app.Marker
    """)
    assert path.text == "app.errors[0].__traceback__.tb_frame parse().cursor"
    assert path.owner == "app.errors"


def test_a_running_function_is_named_with_its_thread_and_variable():
    path = only("""
        root frame drain thread 'feed-eu'
        set drain 'drain() at feed.py:9'
        drain ~batch -> marker:app.Marker
    """)
    assert (path.text, path.owner, path.root_kind) == ("thread 'feed-eu' drain().batch", "drain.<locals>.batch", "frame")


def test_a_closure_is_named_by_its_function_and_variable():
    path = only("""
        module app
        app .render -> render:function 'app.render()'
        render <__closure__> -> cells:tuple
        cells {registry} -> cell:cell
        cell {} -> table:dict
        table [*] -> marker:app.Marker
    """)
    assert path.text == "app.render.<closure>.registry[str:8]"
    assert path.owner == "app.render.<closure>.registry"


def test_an_instance_of_the_standard_library_is_named_by_who_uses_it():
    path = only("""
        module app
        app .loop -> loop:app.Loop
        loop .inbox -> inbox:queue.Queue
        inbox .queue -> items:collections.deque
        items [*] -> marker:app.Marker
    """)
    assert path.owner == "app.loop.inbox.queue"


def test_a_registered_callback_names_the_function_that_it_will_call():
    path = only("""
        root atexit call atexit callback
        set call kind object
        call <func> -> flush:function 'flush()'
        call <keywords> -> words:dict
        words ['journal'] -> marker:app.Marker
    """.replace("root atexit call atexit callback", "root atexit call:functools.partial atexit callback"))
    assert path.text == "atexit callback flush().keywords['journal']"


def test_a_cycle_is_read_without_the_dicts_between():
    found = why("""
        garbage marker:app.Marker
        marker <__dict__> -> names:dict
        names .codec -> codec:app.Codec
        codec .owner -> marker
    """)
    assert {(step.type, step.edge) for step in found[0].cycle} == {("Marker", ".codec"), ("Codec", ".owner")}
    assert found[0].path.root_kind == "garbage"


def test_what_only_c_code_holds_says_so():
    found = why("garbage marker:app.Marker refs+1")
    assert found[0].path.root_kind == "c-held"


def test_no_object_of_the_type_is_no_holder():
    graph = heap("module app")
    assert holders(graph, np.array([], dtype=np.int64)) == []
