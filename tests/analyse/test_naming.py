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


def test_a_bound_method_names_its_function():
    path = only("""
        root signal handler:method SIGHUP handler
        handler <__func__> -> stop:function 'app.Server.stop()'
        handler <__self__> -> server:app.Server
        server .state -> marker:app.Marker
    """)
    assert path.text == "SIGHUP handler app.Server.stop().__self__.state"


def test_a_timer_names_its_thread_and_the_function_that_it_will_call():
    path = only("""
        module threading
        threading ._active -> active:dict
        active [*] -> timer:threading.Timer
        set timer kind thread 'timer'
        timer <__dict__> -> space:dict
        space .function -> remind:function 'app.remind()'
        space .args -> arguments:list
        arguments [*] -> marker:app.Marker
    """)
    assert path.text == "threading._active[str:8] timer(app.remind()).args[0]"


def test_a_wrapper_of_the_library_names_the_function_of_the_program_beside_it():
    path = only("""
        module app
        app .stack -> stack:list
        stack [*] -> wrapper:function 'contextlib.wrap.<locals>._exit_wrapper()'
        wrapper <__dict__> -> space:dict
        space .__wrapped__ -> close:function 'app.close()'
        wrapper <__closure__> -> cells:tuple
        cells {args} -> cell:cell
        cell {} -> arguments:tuple
        arguments [*] -> marker:app.Marker
    """)
    assert path.text == "app.stack[0](app.close()).<closure>.args[0]"


def test_a_function_that_wraps_its_namesake_is_named_once():
    path = only("""
        module app
        app .load -> load:function 'app.cached.<locals>.load()'
        load <__dict__> -> space:dict
        space .__wrapped__ -> inner:function 'app.load()'
        space .cache -> cache:dict
        cache [*] -> marker:app.Marker
    """)
    assert path.text == "app.load.cache[str:8]"


def test_what_the_key_of_a_cache_holds_is_owned_by_the_cache():
    path = only("""
        module app
        app .load -> load:functools._lru_cache_wrapper 'lru_cache of app.load()'
        load <cache> -> table:dict
        table [^'eu'] -> key:tuple
        key [*] -> store:app.Store
        store .pages -> marker:app.Marker
    """)
    assert (path.text, path.owner) == ("app.load.cache.keys()[*][0].pages", "app.load.cache")


def test_without_an_entry_the_owner_is_where_the_program_gave_the_last_key():
    path = only("""
        module app
        app .table -> table:dict
        table ['run'] -> worker:app.Worker
        worker .jobs -> marker:app.Marker
    """)
    assert (path.text, path.owner) == ("app.table['run'].jobs", "app.table")


def test_the_iterable_of_a_generator_expression_is_no_variable_of_the_program():
    path = only("""
        module app
        app .lines -> lines:generator 'generator <genexpr> at app.py:3' kind generator
        lines ~.0 -> rows:list_iterator
        rows <iterated> -> values:tuple
        values [*] -> marker:app.Marker
    """)
    assert path.owner.startswith("app.lines")


def test_a_cycle_through_a_closure_begins_with_the_function_and_not_with_its_cell():
    found = why("""
        garbage again:function 'app.start.<locals>.again()'
        again <__closure__> -> cells:tuple
        cells {again} -> cell:cell
        cell {} -> again
        cells {state} -> other:cell
        other {} -> marker:app.Marker
    """)
    assert [(step.type, step.edge) for step in found[0].cycle] == [
        ("function app.start.<locals>.again()", ".<closure>.again")]


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
