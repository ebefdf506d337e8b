"""The traps of knowledge/cpython-heap.md by number: which test keeps us out of each."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent

TRAPS = {
    "P1 our own list, dict or frame is a referrer": "agent/test_walk:the_agent_is_not_in_its_own_snapshot",
    "P2 running frames are no objects of the collector": "agent/test_kinds_of_holders:every_kind_of_holder_is_named",
    "P3 a frame in a traceback is no root": "agent/test_walk_holders:a_dead_frame_is_no_root",
    "P4 variables of suspended generators": "agent/test_walk_holders:a_suspended_generator_names_its_variables",
    "P5 untracked containers": "agent/test_walk:edges_explain_the_references_of_nearly_all_containers_and_functions",
    "P6 types without tp_traverse": "agent/test_walk_libraries:numpy_arrays_show_their_elements_and_are_charged_once",
    "P7 storages and graphs of tensors": "agent/test_walk_libraries:tensors_show_storage_gradient_graph_and_hooks",
    "P8 to touch __dict__ changes the heap": "agent/test_probe_readers:the_dict_of_no_instance_was_made",
    "P9 an instance and its dict are one": "detectors/test_garbage_cycles:an_instance_and_its_dict_are_one_step_of_a_cycle",
    "P10 getsizeof omits inline values": "agent/test_probe_twin:both_walks_give_the_same_graph",
    "P11 views share what they show": "agent/test_probe_libraries:arrays_and_mappings_hold_what_the_twin_says",
    "P12 measuring runs user code": "agent/test_walk:no_code_of_the_target_runs",
    "P13 __sizeof__ and __class__ may raise or lie": "agent/test_probe_readers:none_of_the_targets_code_runs",
    "P14 tracemalloc is blind to native memory": "analyse/test_layers:the_parts_and_the_unexplained_rest_add_up_to_the_total",
    "P15 3.11 gives instances no traceback": "agent/test_sites:instances_lists_and_dicts_have_the_function_that_made_them",
    "P16 what was allocated before the start has no site": "agent/test_sites:what_is_born_while_nobody_traces_has_no_site",
    "P17 one tracer for all": "agent/test_sites:a_target_that_traces_by_itself_is_never_stopped",
    "P18 the measurement costs memory": "analyse/test_footprint:the_tables_of_tracemalloc_are_not_the_programs",
    "P19 id() is used again": "detectors/test_piles:another_container_at_the_same_address_is_not_the_same",
    "P20 gc.freeze() hides objects": "agent/test_probe_walk:frozen_objects_are_seen",
    "P21 to collect erases the evidence": "agent/test_walk_holders:an_uncollected_cycle_explains_its_own_counts",
    "P22 collectors that come late":
        "detectors/test_garbage_cycles:what_is_older_than_the_last_full_collection_was_not_freed_by_it",
    "P23 immortal objects": "analyse/test_reachability:immortal_objects_are_held",
    "P24 references that nobody counts": "agent/test_walk:no_object_has_more_edges_than_references",
    "P25 caches without keys": "agent/test_walk_holders:limits_and_caches_are_listed",
    "P26 callbacks of weak references hold": "agent/test_walk_holders:the_chain_to_what_is_held_has_its_names",
    "P27 slots without names": "agent/test_walk:few_edges_are_without_a_name",
    "P28 threading.local": "agent/test_walk_holders:a_thread_local_holds_the_values_of_each_thread_once",
    "P29 contexts": "agent/test_probe_roots:values_of_a_context_and_of_a_thread_have_names",
    "P30 half-built objects": "agent/test_probe_readers:the_native_readers_agree_with_the_twin",
    "P31 retained bytes with cycles": "analyse/test_dominators:retained_is_what_is_lost_when_the_node_is_taken_out",
    "P32 nesting counts twice": "analyse/test_columns:a_linked_list_is_one_class_that_keeps_all_its_bytes",
    "P33 reachable is not retained": "analyse/test_dominators:the_cache_retains_its_orders_but_not_what_others_hold_too",
    "P34 the shortest path is not the cause":
        "analyse/test_paths:a_path_over_a_class_or_globals_is_taken_only_when_there_is_no_other",
    "P35 resident memory that grows is no leak": "test_verdict:memory_that_malloc_keeps_is_fragmentation",
    "P36 pools are no objects": "analyse/test_layers:what_pymalloc_keeps_is_told_apart_from_what_malloc_keeps",
    "P37 forked workers copy pages": "detectors/test_copied_pages:a_worker_that_grows_by_itself_is_not_excused",
    "P38 reserved is not allocated": "agent/test_devices:every_version_of_torch_gives_the_columns_that_it_can",
    "P39 devices are asked and not told": "agent/test_devices:nothing_is_asked_before_the_target_has_initialised_cuda",
    "P40 exceptions keep frames": "agent/test_probe_readers:what_a_chain_of_exceptions_holds_is_named",
    "P41 counts of types miss bytes": "test_no_leak:the_bytes_of_malloc_count_from_its_smallest_chunk",
    "P42 limits a site flake": "test_no_leak:growth_in_every_window_counts_even_if_one_is_short",
    "P43 others go on during a walk": "agent/test_probe_snapshot:a_child_sees_what_every_thread_holds_whatever_it_waits_in",
    "P44 one slot for profilers": "agent/test_start:a_program_sees_the_same_of_itself_with_and_without_the_agent",
}


@pytest.mark.parametrize("trap", TRAPS)
def test_a_trap_has_its_test(trap: str) -> None:
    file, _, name = TRAPS[trap].partition(":")
    assert re.search(rf"^\s*(async )?def test_{name}\(", (HERE / f"{file}.py").read_text(), re.MULTILINE), TRAPS[trap]


def test_every_trap_but_attaching_is_listed() -> None:
    """P45 is about code that is brought into a process that runs: there is no such way in yet."""
    assert [trap.split()[0] for trap in TRAPS] == [f"P{number}" for number in range(1, 45)]
