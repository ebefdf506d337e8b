"""The best-named path to every node."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leakscope.agent import format as layout
from leakscope.analyse import _graph_python, kernel
from leakscope.analyse.paths import best_tree, path_to
from leakscope.analyse.retention import root_ranks
from leakscope.heap.graph import HeapGraph
from leakscope.heap.roots import RANK
from tests.heaps import heap

pytestmark = pytest.mark.usefixtures("loops")
EACH = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)


def ranks(graph: HeapGraph) -> np.ndarray:
    return np.array([RANK[layout.ROOT_KINDS[kind]] for kind in graph.root_kind])


def path_of(graph: HeapGraph, type_name: str, **options) -> str:
    """The path to the one node of a type, such as `module app .cache ['x']`; the kind of the root comes first."""
    (node,) = [node for node in range(graph.node_count) if graph.type_name(node) == type_name]
    tree = best_tree(graph, options.pop("ranks", ranks(graph)), **options)
    edges = path_to(tree, node)
    assert len(edges) == tree.depth[node]
    assert (graph.edge(edges[0]).source if edges else node) == tree.start[node]
    start = int(tree.start[node])
    names = [f"{layout.ROOT_KINDS[tree.kind[node]]}:{graph.node_name(start)}", *(graph.edge(edge).text for edge in edges)]
    return " ".join(names)


def test_a_module_is_named_before_the_frame_that_passes_through():
    graph = heap("""
        root frame main thread 'MainThread'
        main ~order -> order:shop.Order
        module app
        app .cache -> cache:dict
        cache ['last'] -> order""")
    assert path_of(graph, "shop.Order") == "module:module app cache 'last'"


def test_the_caller_decides_which_modules_come_first():
    graph = heap("""
        module aiolib
        aiolib .x -> x:app.X
        module app
        app .far -> far:app.Far
        far .x -> x""")
    assert path_of(graph, "app.X", ranks=np.array([0, 0])) == "module:module aiolib x"
    assert path_of(graph, "app.X", ranks=np.array([1, 0])) == "module:module app far x"


def test_among_paths_of_one_root_the_shortest_is_taken():
    graph = heap("module app\napp .a -> a:app.A\na .x -> x:app.X\napp .z -> x")
    assert path_of(graph, "app.X") == "module:module app z"


@pytest.mark.parametrize("better, worse", [
    (".name", "['a']"), ("['z']", "[0]"), ("[2]", "~a"), ("~z", "<slot>"), (".a", ".b"), ("[2]", "[10]"), ("['a']", "['b']"),
])
@pytest.mark.parametrize("first", [True, False])
def test_of_two_edges_of_one_level_the_better_named_wins_whatever_the_order(better, worse, first):
    one, two = (better, worse) if first else (worse, better)
    graph = heap(f"module app\napp .one -> one:app.One\napp .two -> two:app.Two\none {one} -> x:app.X\ntwo {two} -> x")
    assert path_of(graph, "app.X").endswith(better.strip(".[]~"))


def test_a_path_over_a_class_or_globals_is_taken_only_when_there_is_no_other():
    text = """
        module app
        app .f -> f:function
        f <__globals__> -> scope:dict
        scope ['cache'] -> x:app.X
        app .one -> one:app.One
        one <type> -> cls:type
        cls .registry -> x
        """
    assert path_of(heap(text), "app.X") == "module:module app one  registry"
    longer = text + """
        root frame main thread 'MainThread'
        main ~a -> a:app.A
        a .b -> b:app.B
        b .x -> x"""
    assert path_of(heap(longer), "app.X") == "frame:frame a b x"


def test_every_root_is_a_path_of_its_own():
    graph = heap("module app\nmodule lib\napp .lib -> lib\nroot task worker:_asyncio.Task 'worker'\napp .task -> worker")
    tree = best_tree(graph, ranks(graph))
    assert tree.root.tolist() == [0, 1, 2] and tree.depth.tolist() == [0, 0, 0]


def test_a_root_that_is_not_claimed_first_is_named_by_who_holds_it():
    text = "module app\napp .tasks -> tasks:set\nroot task worker:_asyncio.Task 'worker'\n"
    assert path_of(heap(text), "_asyncio.Task", claimed_first=np.array([True, False])) == "task:Task"
    held = heap(text + "tasks [*] -> worker")
    assert path_of(held, "_asyncio.Task", claimed_first=np.array([True, False])) == "module:module app tasks "
    assert path_of(held, "_asyncio.Task") == "task:Task"


def test_of_late_roots_that_hold_each_other_the_outermost_is_the_root():
    graph = heap("""
        root task inner:_asyncio.Task 'inner'
        inner .x -> app.X
        root task outer:_asyncio.Task 'outer'
        set inner 'inner'
        set outer 'outer'
        outer .awaits -> inner""")
    assert path_of(graph, "app.X", claimed_first=np.array([False, False])) == "task:outer awaits x"


def test_a_node_with_several_roots_has_the_one_of_the_best_rank():
    graph = heap("root frame x:app.X thread 'MainThread'\nroot atexit x atexit callback 1")
    assert best_tree(graph, ranks(graph)).root.tolist() == [1]


def test_what_only_c_code_holds_begins_at_the_outermost_object_with_a_surplus():
    graph = heap("""
        module app
        garbage inner:app.Inner refs+1
        inner .x -> app.X
        garbage outer:app.Outer refs+1
        outer .inner -> inner""")
    assert path_of(graph, "app.X") == "c-held:Outer inner x"


def test_garbage_begins_at_an_instance_that_no_other_garbage_holds():
    graph = heap("""
        garbage attributes:dict
        attributes ['peer'] -> peer:app.Peer
        peer <__dict__> -> attributes
        peer .body -> bytes""")
    assert path_of(graph, "bytes") == "garbage:Peer body"


def test_every_node_has_a_path_and_an_empty_heap_has_none():
    assert best_tree(heap(""), np.array([], dtype=int)).root.tolist() == []
    graph = heap("garbage a:app.A x3\na .b -> b:app.B x3\nb .a -> a\nmodule app\ngarbage c:app.C refs+1")
    assert (best_tree(graph, ranks(graph)).depth >= 0).all()


def test_a_list_of_a_hundred_thousand_links_has_paths_to_its_end():
    length = 100_000
    graph = heap("module app\napp .head -> node:app.Node")
    columns = {name: np.zeros(length, dtype=dtype) for name, dtype in layout.COLUMNS.items()}
    columns |= {"edge_start": np.append(np.arange(length), length - 1).astype("<u8"),
                "edge_target": np.arange(1, length, dtype="<u4"),
                "edge_label": np.full(length - 1, layout.edge_label(layout.UNKNOWN), dtype="<u4"),
                "root_node": graph.root_node, "root_kind": graph.root_kind, "root_label": graph.root_label}
    long = HeapGraph(**columns, strings=graph.strings, types=graph.types)
    tree = best_tree(long, np.array([0]))
    assert tree.depth[-1] == length - 1 and len(path_to(tree, length - 1)) == length - 1


def shuffled(graph: HeapGraph, seed: int) -> tuple[HeapGraph, np.ndarray]:
    """The same heap with its nodes in another order, and where each node went."""
    place = np.random.default_rng(seed).permutation(graph.node_count)
    back = np.argsort(place)
    degree = np.diff(graph.edge_start.astype(np.int64))
    edges = np.concatenate([np.arange(graph.edge_start[node], graph.edge_start[node + 1]) for node in back]).astype(int)
    columns = {name: getattr(graph, name) for name in layout.COLUMNS}
    for name in layout.COLUMNS:
        if not name.startswith(("edge", "root")):
            columns[name] = columns[name][back]
    columns["edge_start"] = np.cumsum([0, *degree[back]]).astype("<u8")
    columns["edge_target"] = place[graph.edge_target[edges]].astype("<u4")
    columns["edge_label"] = graph.edge_label[edges]
    columns["root_node"] = place[graph.root_node].astype("<u4")
    return HeapGraph(**columns, strings=graph.strings, types=graph.types), place


def test_paths_do_not_depend_on_the_order_of_nodes_in_the_snapshot():
    graph = heap("""
        module app
        module lib
        app .a -> a:app.A
        app .b -> b:app.B
        lib .c -> c:app.C
        a .x -> x:app.X
        b .x -> x
        a .y -> y:app.Y
        b ['y'] -> y
        x .z -> z:app.Z
        c .z -> z
        garbage p:app.P
        p .q -> q:app.Q
        q .p -> p""")
    before = best_tree(graph, ranks(graph))
    for seed in range(8):
        other, place = shuffled(graph, seed)
        after = best_tree(other, ranks(other))
        for node in range(graph.node_count):
            assert [graph.edge(edge)[2:] for edge in path_to(before, node)] == (
                [other.edge(edge)[2:] for edge in path_to(after, int(place[node]))])


@EACH
@given(st.data())
def test_paths_lead_from_their_root_to_the_node_and_both_inner_loops_agree(data):
    count = data.draw(st.integers(1, 8))
    edges = data.draw(st.lists(st.tuples(
        st.integers(0, count - 1), st.sampled_from([".a", ".b", "['k']", "[1]", "~v", "<__globals__>", "<type>", "[*]", "<?>"]),
        st.integers(0, count - 1)), max_size=16))
    roots = data.draw(st.lists(st.tuples(st.sampled_from(["module", "task", "frame"]), st.integers(0, count - 1)), max_size=3))
    surplus = data.draw(st.sets(st.integers(0, count - 1)))
    lines = [f"garbage n{node}:app.N{node} refs+{node in surplus:d}" for node in range(count)]
    lines += [f"n{source} {edge} -> n{target}" for source, edge, target in edges]
    lines += [f"root {kind} n{node} root{number}" for number, (kind, node) in enumerate(roots)]
    graph = heap("\n".join(lines))
    tree = best_tree(graph, ranks(graph))
    for node in range(count):
        path = [graph.edge(edge) for edge in path_to(tree, node)]
        assert [edge.target for edge in path] == ([edge.source for edge in path] + [node])[1:]
        assert len(path) == tree.depth[node]
        if tree.root[node] >= 0:
            assert graph.root_node[tree.root[node]] == tree.start[node]
    loops, kernel.active = kernel.active, _graph_python
    try:
        twin = best_tree(graph, ranks(graph))
    finally:
        kernel.active = loops
    for name in ("parent_edge", "parent", "root", "depth", "start", "kind"):
        assert getattr(tree, name).tolist() == getattr(twin, name).tolist()


def test_a_call_of_a_library_that_is_under_way_names_nothing_that_the_program_has():
    graph = heap("""
        root frame concat thread 'MainThread'
        set concat 'concat() at site-packages/pandas/concat.py:229'
        concat ~arrays -> array:app.Array
        root frame main thread 'MainThread'
        set main 'main() at shop.py:7'
        main ~plant -> plant:app.Plant
        plant .table -> table:app.Table
        table .values -> array""")
    assert path_of(graph, "app.Array", ranks=root_ranks(graph)).endswith("plant table values")


def test_who_started_a_worker_is_a_better_name_than_the_book_of_running_threads():
    graph = heap("""
        module threading
        threading ._active -> active:dict
        active [*] -> thread:threading.Thread
        thread ._args -> queue:app.Queue
        module concurrent.futures.thread
        concurrent.futures.thread ._threads_queues -> queue
        root frame main thread 'MainThread'
        set main 'main() at shop.py:7'
        main ~scanner -> scanner:app.Scanner
        scanner .todo -> queue""")
    assert path_of(graph, "app.Queue", ranks=root_ranks(graph)).endswith("scanner todo")
    assert path_of(graph, "threading.Thread", ranks=root_ranks(graph)).startswith("module:module threading")
