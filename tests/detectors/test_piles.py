"""Piles of objects: each shape is found by its own detector, and what is bounded is not called a leak."""

from __future__ import annotations

from leakscope.case import Case
from leakscope.model import Confidence
from tests.detectors.cases import MIB, case, detected, timeline
from tests.heaps import series

CACHE = """
    module app
    app .cache -> cache:dict
    cache [*] -> order:shop.Order x{n} 4KiB
"""


def test_a_dict_that_grows_in_every_interval_is_found_with_its_owner():
    findings, dismissed = detected(case(CACHE, growth_bytes_s=45_000, n=[100, 200, 300, 400, 500]))
    assert [(each.rule.name, each.owner, each.leaked_type) for each in findings] == [
        ("unbounded-container", "app.cache", "shop.Order")]
    assert findings[0].counts == (100, 200, 300, 400, 500)
    assert findings[0].object_count == 500
    assert findings[0].confidence is Confidence.HIGH
    assert findings[0].frees_bytes >= 500 * 4096
    assert not dismissed


def test_a_dict_that_stays_as_it_is_is_not_reported():
    assert detected(case(CACHE, n=[500, 500, 500, 500])) == ([], [])


def test_a_dict_that_shrinks_once_is_not_reported():
    assert detected(case(CACHE, n=[100, 200, 150, 400]))[0] == []


def test_growth_that_levels_off_is_dismissed():
    findings, dismissed = detected(case(CACHE, n=[100, 400, 480, 495, 499]))
    assert findings == []
    assert "levels off" in dismissed[0].why


def test_two_snapshots_are_not_enough_where_the_process_does_not_grow():
    assert detected(case(CACHE, growth_bytes_s=0, n=[100, 900])) == ([], [])


def test_two_snapshots_are_enough_where_the_process_grew_steadily_to_its_end():
    examined = case(CACHE, growth_bytes_s=500_000, n=[100, 900])
    findings, _ = detected(examined)
    assert [(each.owner, each.confidence) for each in findings] == [("app.cache", Confidence.MEDIUM)]
    assert "only 2 snapshots" in findings[0].doubts


def test_a_snapshot_during_which_the_program_ended_does_not_count():
    examined = case(CACHE, n=[100, 200, 300, 400, 1])
    examined.graphs[-1].info["pause_ns"] = int(0.9e9)
    assert [each.owner for each in detected(examined)[0]] == ["app.cache"]


def test_the_owner_of_an_attribute_of_an_instance_is_its_class():
    findings, _ = detected(case("""
        module serve
        serve .router -> router:web.Router
        router .stores -> stores:dict
        stores ['main'] -> store:serve.SessionStore
        store <__dict__> -> names:dict
        names ._by_id -> by_id:dict
        by_id [*] -> session:serve.Session x{n} 4KiB
    """, n=[100, 200, 300, 400]))
    assert findings[0].owner == "serve.SessionStore._by_id"
    assert findings[0].path.text == "serve.router.stores['main']._by_id[*]"


def test_only_the_holder_that_gets_more_entries_is_blamed_not_what_the_entries_hold():
    findings, _ = detected(case("""
        module app
        app .log -> log:list
        log [*] -> entry:app.Entry x{n}
        entry .parts -> parts:list x{n}
        parts [*] -> str x{m} 1KiB
    """, n=[100, 200, 300, 400], m=[1000, 2000, 3000, 4000]))
    assert [each.owner for each in findings] == ["app.log"]


def test_lists_that_get_longer_in_a_dict_that_does_not_are_blamed_themselves():
    findings, _ = detected(case("""
        module app
        app .feeds -> feeds:dict
        feeds [*] -> feed:app.Feed x10
        feed .history -> history:list x10
        history [*] -> bytes x{m} 1KiB
    """, m=[1000, 2000, 3000, 4000]))
    assert [each.owner for each in findings] == ["app.Feed.history"]


def test_a_linked_list_is_one_pile():
    chain = "\n".join(f"n{k} .next -> n{k + 1}:app.Node 4KiB" for k in range(40))
    texts = {40: chain, 80: chain + "\n" + "\n".join(f"n{k} .next -> n{k + 1}:app.Node 4KiB" for k in range(40, 80)),
             120: chain + "\n" + "\n".join(f"n{k} .next -> n{k + 1}:app.Node 4KiB" for k in range(40, 120))}
    findings, _ = detected(case("module app\napp .head -> n0:app.Node\n{chain}", chain=[texts[n] for n in (40, 80, 120)]))
    assert [each.owner for each in findings] == ["app.head"]


def test_a_cache_with_a_maxsize_it_will_reach_is_dismissed():
    findings, dismissed = detected(case("""
        module geo
        geo .lookup -> lookup:functools._lru_cache_wrapper 'lru_cache of lookup()'
        lookup <cache> -> entries:dict
        entries [*] -> point:geo.Point x{n} 4KiB
        lru lookup geo.lookup max 1000 size {n} hits 5 misses 5
    """, n=[250, 400, 550, 700]))
    assert findings == []
    assert dismissed[0].why == "bounded: maxsize 1 000, 70% filled"


def test_a_cache_without_a_maxsize_is_found():
    findings, _ = detected(case("""
        module geo
        geo .lookup -> lookup:functools._lru_cache_wrapper 'lru_cache of lookup()'
        lookup <cache> -> entries:dict
        entries [*] -> point:geo.Point x{n} 4KiB
        lru lookup geo.lookup max none size {n} hits 0 misses 700
    """, n=[250, 400, 550, 700]))
    assert [(each.rule.name, each.owner) for each in findings] == [("unbounded-lru-cache", "geo.lookup.cache")]


def test_a_bound_that_would_hold_gigabytes_is_none():
    findings, _ = detected(case("""
        module db
        db .log -> log:collections.deque
        log [*] -> entry:dict x{n} 64KiB
        bound log 9000 maxlen
    """, growth_bytes_s=700_000, n=[100, 200, 300, 400]))
    assert [each.owner for each in findings] == ["db.log"]


def test_stored_exceptions_are_named_as_such():
    findings, _ = detected(case("""
        module app
        app .errors -> errors:list
        errors [*] -> error:ValueError x{n} kind exception
        error <__traceback__> -> traceback x{n} 4KiB
    """, n=[100, 200, 300, 400]))
    assert findings[0].rule.name == "stored-exceptions"


def test_finished_tasks_in_a_set_are_said_to_have_ended():
    findings, _ = detected(case("""
        module app
        app .running -> running:set
        running {*} -> task:_asyncio.Task x{n} 4KiB state ended
    """, n=[100, 200, 300, 400]))
    assert findings[0].rule.name == "piled-up-tasks"
    assert any("100% of them have ended" in reason for reason in findings[0].reasons)


def test_finalizers_are_a_registry():
    findings, _ = detected(case("""
        module weakref
        weakref .finalize -> finalize:type 'class weakref.finalize'
        finalize ._registry -> registry:dict
        registry [*] -> info:weakref.finalize._Info x{n} 4KiB
    """, n=[100, 200, 300, 400]))
    assert [(each.rule.name, each.owner) for each in findings] == [("growing-registry", "weakref.finalize._registry")]


def test_listeners_are_found_by_their_kind():
    findings, _ = detected(case("""
        module bus
        bus .signal -> signal:bus.Signal
        signal .receivers -> receivers:list
        receivers [*] -> method:method x{n} 4KiB
    """, n=[100, 200, 300, 400]))
    assert (findings[0].rule.name, findings[0].owner) == ("listeners-never-removed", "bus.signal.receivers")


def test_one_buffer_that_gets_larger_is_found():
    findings, _ = detected(case("""
        module app
        app .pages -> pages:bytearray {size}KiB
    """, size=[500, 1000, 1500, 2000]))
    assert [(each.rule.name, each.owner) for each in findings] == [("growing-buffer", "app.pages")]


def test_objects_that_only_c_code_holds_are_found():
    findings, _ = detected(case("""
        module app
        garbage tensor:torch.Tensor x{n} 4KiB refs+1
    """, n=[100, 200, 300, 400]))
    assert findings[0].rule.name == "held-by-native-code"
    assert findings[0].leaked_type == "torch.Tensor"


def test_a_pile_of_local_variables_of_a_running_function_is_named_by_it():
    findings, _ = detected(case("""
        root frame main thread 'MainThread'
        set main 'main() at app.py:9'
        main ~seen -> seen:dict
        seen [*] -> order:shop.Order x{n} 4KiB
    """, n=[100, 200, 300, 400]))
    assert findings[0].owner == "main.<locals>.seen"


def test_a_pile_whose_objects_stop_growing_after_the_last_snapshot_is_dismissed():
    examined = case(CACHE, n=[1000, 3000, 5000, 7000])
    for sample in examined.timeline:
        grown_s = min(sample["t_ns"] / 1e9, 18)
        sample["py_blocks"] = 100_000 + int(300 * grown_s)
        sample["anon_bytes"] = 40_000_000 + int(1_000_000 * grown_s)
    findings, dismissed = detected(examined)
    assert findings == []
    assert "levels off" in dismissed[0].why


def test_entries_that_are_plain_tuples_are_named_by_the_class_that_their_bytes_hang_on():
    findings, _ = detected(case("""
        module app
        app .results -> results:dict
        results [*] -> entry:tuple x{n}
        entry [0] -> int x{n}
        entry [1] -> reader:app.Reader x{n} 16KiB
    """, growth_bytes_s=200_000, n=[100, 200, 300, 400]))
    assert findings[0].leaked_type == "app.Reader"


def test_a_pile_whose_path_changes_is_found_by_the_container_itself():
    examined = case("""
        module app
        app .{way} -> holder:app.Holder
        holder .{way} -> orders:dict
        orders [*] -> order:shop.Order x{n} 16KiB
    """, way=["one", "two", "three", "four"], n=[100, 200, 300, 400])
    findings, _ = detected(examined)
    assert [(each.owner, each.counts) for each in findings] == [("app.four.four", (100, 200, 300, 400))]


def test_another_container_at_the_same_address_is_not_the_same():
    examined = case("""
        module app
        app .{way} -> orders:{type}
        orders {*} -> order:shop.Order x{n} 16KiB
    """, way=["one", "two", "three", "four"], type=["dict", "list", "set", "tuple"], n=[100, 200, 300, 400])
    assert detected(examined)[0] == []


def test_a_holder_that_came_after_the_first_snapshot_is_found_but_not_its_attributes():
    later = """
        app .cache -> cache:app.Cache
        cache .entries -> entries:dict
        entries [*] -> order:shop.Order x{n} 64KiB
        order .body -> bytes x{n} 64KiB
    """
    findings, _ = detected(case("module app\n{rest}", rest=["", *(later.replace("{n}", str(n)) for n in (100, 200, 300))]))
    assert [each.owner for each in findings] == ["app.cache.entries"]


def test_tensors_saved_for_the_backward_pass_count_for_the_list_that_keeps_the_losses():
    findings, _ = detected(case("""
        module train
        train .losses -> losses:list
        losses [*] -> loss:torch.Tensor x{n} 80B
        loss <grad_fn> -> node:torch.MseLossBackward0 x{n} 80B
        garbage saved:torch.Tensor x{n} 256KiB refs+1
    """, growth_bytes_s=2_600_000, n=[100, 200, 300, 400]))
    assert [each.owner for each in findings] == ["train.losses"]
    assert sum(findings[0].growth_bytes.values()) > 300 * 256 * 1024


def test_tensors_that_only_native_code_holds_stay_so_where_nobody_keeps_a_graph():
    findings, _ = detected(case("""
        module app
        app .names -> names:list
        names [*] -> str x{n} 4KiB
        garbage saved:torch.Tensor x{n} 256KiB refs+1
    """, growth_bytes_s=2_600_000, n=[100, 200, 300, 400]))
    assert "held-by-native-code" in [each.rule.name for each in findings]


def test_a_cache_that_expires_by_age_is_not_claimed_from_a_few_snapshots():
    text = """
        module app
        app .replies -> replies:cachetools.TTLCache
        replies ._TTLCache__ttl -> float
        replies ._data -> data:dict
        data [*] -> reply:app.Reply x{n} 64KiB
    """
    few, _ = detected(case(text, growth_bytes_s=700_000, n=[100, 200, 300]))
    many, _ = detected(case(text, growth_bytes_s=700_000, n=[100, 200, 300, 400, 500, 600]))
    assert few[0].confidence is Confidence.LOW
    assert many[0].confidence is not Confidence.LOW
    assert "expire by their age" in " ".join(few[0].doubts)


def while_importing(until_s):
    examined = case(CACHE, growth_bytes_s=1_000_000, n=[100, 900])
    rows = [{**row, "modules": 200 if row["t_ns"] < until_s * 1e9 else 300} for row in examined.timeline]
    return Case(examined.graphs, rows)


def test_of_two_snapshots_the_first_may_come_before_the_last_imports_if_these_are_over_soon():
    assert [each.owner for each in detected(while_importing(2.0))[0]] == ["app.cache"]


def test_two_snapshots_with_imports_up_to_the_second_say_nothing_of_growth():
    assert detected(while_importing(8.0))[0] == []


def test_two_snapshots_are_not_enough_where_memory_stays_at_the_end():
    examined = case(CACHE, n=[100, 900])
    rows = [{**row, "anon_bytes": min(row["t_ns"] / 1e9, 5.0) * 8e6} for row in examined.timeline]
    assert detected(Case(examined.graphs, rows))[0] == []


def test_of_three_snapshots_one_before_the_last_imports_is_left_out_where_two_are_enough():
    examined = case(CACHE, growth_bytes_s=500_000, n=[1, 1, 900])
    rows = [{**row, "modules": 200 if row["t_ns"] < 9e9 else 300} for row in examined.timeline]
    assert [each.counts for each in detected(Case(examined.graphs, rows))[0]] == [(1, 900)]


def test_a_callback_in_a_tuple_stands_for_the_object_behind_it():
    findings, _ = detected(case("""
        module app
        app .exits -> exits:collections.deque
        exits [*] -> entry:tuple x{n}
        entry [3] -> wrapper:function x{n}
        wrapper <__closure__> -> cells:tuple x{n}
        cells [0] -> cell:cell x{n}
        cell {} -> call:method x{n}
        call <__self__> -> link:app.Connection x{n} 4KiB
    """, n=[100, 200, 300, 400]))
    assert [each.leaked_type for each in findings] == ["app.Connection"]


def test_a_function_that_is_the_entry_itself_is_what_piles_up():
    findings, _ = detected(case("""
        module app
        app .hooks -> hooks:list
        hooks [*] -> hook:function x{n}
        hook <__closure__> -> cells:tuple x{n}
        cells [0] -> cell:cell x{n}
        cell {} -> link:app.Connection x{n} 4KiB
    """, n=[100, 200, 300, 400]))
    assert [each.leaked_type for each in findings] == ["function"]


def test_plumbing_of_the_standard_library_stands_for_the_task_behind_it():
    findings, _ = detected(case("""
        module app
        app .keys -> keys:dict
        keys [*] -> key:selectors.SelectorKey x{n} len 4
        key .data -> handle:asyncio.events.Handle x{n}
        handle <_callback> -> task:_asyncio.Task x{n}
        task .coro -> bytes x{n} 4KiB
    """, n=[100, 200, 300, 400]))
    assert [each.leaked_type for each in findings] == ["_asyncio.Task"]


def _beside_native_growth(text, flags="gd"):
    """16 MiB of native memory grow beside a pile; `flags` of its types, "h" is a class that Python code made."""
    graphs = series(text, n=[100, 200, 300, 400, 500])
    for graph in graphs:
        graph.info["gc"] = {"enabled": True, "thresholds": [700, 10, 10]}
        graph.types[:] = [name._replace(flags=flags) for name in graph.types]
    return Case(graphs, timeline(41, rss_bytes=lambda t: 50 * MIB + 0.4 * MIB * t,
                                 anon_bytes=lambda t: 40 * MIB + 0.4 * MIB * t,
                                 malloc_used_bytes=lambda t: 20 * MIB + 0.4 * MIB * t))


def _blamed(examined):
    return [each.growth_bytes["host"] > 10 * MIB for each in detected(examined)[0] if each.owner == "app.cache"]


def test_native_growth_beside_objects_of_an_extension_is_theirs():
    pages = "module app\napp .cache -> c:list\nc [*] -> p:parser.Page x{n} 1KiB"
    assert _blamed(_beside_native_growth(pages)) == [True]
    assert _blamed(_beside_native_growth(pages, "hgd")) == [False]


def test_objects_whose_native_memory_is_in_the_graph_hide_none():
    tensors = "module app\napp .cache -> c:list\nc [*] -> t:torch.Tensor x{n} 1KiB\nt <storage> -> storage x{n} 100B"
    assert _blamed(_beside_native_growth(tensors)) == [False]
