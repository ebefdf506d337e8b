"""What the native walk sees of numpy, mmap and torch, whose objects show the collector nothing: as much as the twin."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from leakscope.agent import format as layout
from leakscope.analyse.reachability import garbage, held_from_outside
from leakscope.heap.load import load
from tests.agent.probes import stage_probe
from tests.agent.staged import AGENT
from tests.agent.walking import Snapshot, needs

Edge = tuple[str, str, object]
ONLY_NATIVE = {("internal", "saved"), ("internal", "forward_base")}

PREAMBLE = """
import sys
_made = type(sys)("_leakscope_agent")
_made.__path__ = [sys.argv[1] + "/_leakscope_agent"]
sys.modules["_leakscope_agent"] = _made
del _made

def native(name):
    from _leakscope_agent import probe
    assert not probe.why_not(), probe.why_not()
    return probe.take(sys.argv[1] + "/" + name, 1, "manual", 5)

def twin(name):
    from _leakscope_agent import walk
    return walk.take(sys.argv[1] + "/" + name, 1, "manual", 5)
"""


def run(program: str, folder: Path) -> Callable[[str], Snapshot]:
    """Run a program that takes snapshots in the folder, and return what gives them by name."""
    agent = folder / "_leakscope_agent"
    shutil.copytree(AGENT, agent, ignore=shutil.ignore_patterns("__pycache__", "boot", "_probe", "*.so"))
    stage_probe(sys.executable, agent)
    path = folder / "program.py"
    path.write_text(PREAMBLE + program)
    command = [sys.executable, "-X", "faulthandler", str(path), str(folder)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr[-3000:] + result.stdout[-1000:]
    return lambda name: Snapshot(folder / name, result.stdout)


def held(snapshot: Snapshot, node: int) -> Counter[Edge]:
    """The named edges of a node: to an address, or to what a node without one is and has. Without what the twin may not ask."""
    found: Counter[Edge] = Counter()
    for kind, text, target in snapshot.edges(node):
        if (kind, text) in ONLY_NATIVE:
            continue
        address = int(snapshot.address[target])
        found[kind, text, address or described(snapshot, target)] += 1
    return found


def described(snapshot: Snapshot, node: int) -> tuple[str, str, int, int]:
    kind = layout.NODE_KINDS[snapshot.kind[node]]
    return kind, snapshot.type(node), int(snapshot.shallow_bytes[node]), int(snapshot.device[node])


def nodes_of(snapshot: Snapshot, *words: str) -> list[int]:
    """The nodes whose types contain one of the words."""
    types = [number for number, name in enumerate(snapshot.types) if any(word in name for word in words)]
    return np.flatnonzero(np.isin(snapshot.type_id, types)).tolist()


def differing(one: Snapshot, other: Snapshot, *words: str) -> list[str]:
    """What the native walk says otherwise of the nodes whose types contain one of the words."""
    rows = {int(one.address[node]): node for node in nodes_of(one, *words)}
    found = []
    looked = [node for node in nodes_of(other, *words) if other.address[node]]
    for node in looked:
        native = rows.get(int(other.address[node]))
        if native is None:
            found.append(f"{other.type(node)} is not there")
        elif held(one, native) != held(other, node) or one.shallow_bytes[native] != other.shallow_bytes[node]:
            found.append(f"{other.type(node)}: {held(one, native) - held(other, node)} more, "
                         f"{held(other, node) - held(one, native)} less; {one.shallow_bytes[native]} bytes")
    assert looked
    return found


def labelled(snapshot: Snapshot, labels: set[tuple[str, str]]) -> np.ndarray:
    """(E,) bool: the edges so called, by kind and text."""
    codes = [code for code in np.unique(snapshot.edge_label).tolist()
             if (layout.EDGE_KINDS[code >> layout.EDGE_KIND_SHIFT], snapshot.strings[code & layout.EDGE_VALUE_MASK]
                 if code >> layout.EDGE_KIND_SHIFT not in (layout.INDEX, layout.STACK) else "") in labels]
    return np.isin(snapshot.edge_label, codes)


def shown_to_twin(snapshot: Snapshot) -> np.ndarray:
    """(N,) bool: the objects, and what else they hold by edges that the twin has."""
    holder = np.repeat(np.arange(len(snapshot.address)), np.diff(snapshot.edge_start).astype(np.int64))
    is_both = ~labelled(snapshot, ONLY_NATIVE)
    seen, count = snapshot.address != 0, 0
    while seen.sum() != count:
        count = seen.sum()
        seen[snapshot.edge_target[is_both & seen[holder]]] = True
    return seen


def memories(snapshot: Snapshot, kind: str) -> Counter[tuple[str, str, int, int]]:
    wanted = (snapshot.kind == layout.NODE_KINDS.index(kind)) & shown_to_twin(snapshot)
    return Counter(described(snapshot, int(node)) for node in np.flatnonzero(wanted))


ARRAYS = '''
import mmap, numpy
class First: pass
class Array(numpy.ndarray):
    def __array_finalize__(self, other): called.append(1)
class Mapping(mmap.mmap): pass
called = []
def some(*shape):
    made = numpy.empty(shape, dtype=object)
    made.flat = [First() for _ in range(made.size)]
    return made
KEEP = {
    "square": numpy.array([[First(), None, 3.5], [1, First(), "x"]], dtype=object),
    "fortran": numpy.asfortranarray(some(3, 2)), "cube": some(2, 3, 4), "none": numpy.empty((0, 3), dtype=object),
    "point": numpy.array(First(), dtype=object), "nulls": numpy.empty((2, 2), dtype=object), "lists": some(2),
    "moved": some(2, 3, 4).transpose(2, 0, 1).copy(order="K"), "derived": numpy.arange(5).view(Array),
    "records": numpy.zeros(3, dtype=[("load", "f8"), ("lease", "O")]), "masked": numpy.ma.masked_array([1, 2], [0, 1]),
    "texts": numpy.array(["abc", "d"]), "times": numpy.array(["2020-01-01"], dtype="M8[D]"), "complex": numpy.zeros(7, complex),
    "wide": numpy.broadcast_to(numpy.zeros(1), (1000, 1000)), "bytes": numpy.frombuffer(b"abcdefgh", dtype=numpy.uint8),
    "raw": numpy.zeros(4, dtype="V3"), "big": numpy.zeros(100_000), "scalar": numpy.float64(3),
}
KEEP["lists"][0] = [KEEP["lists"], KEEP["big"][10:]]
KEEP["derived"].extra = First()
OPEN, CLOSED, DERIVED = mmap.mmap(-1, 1 << 20), mmap.mmap(-1, 4096), Mapping(-1, 8192)
CLOSED.close()
DERIVED.owner = First()
SEEN = numpy.frombuffer(OPEN, dtype=numpy.uint8)
called.clear()
native("native")
twin("twin")
assert called == []
'''


@pytest.fixture(scope="module")
def arrays(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Snapshot]:
    return run(ARRAYS, tmp_path_factory.mktemp("arrays"))


def test_arrays_and_mappings_hold_what_the_twin_says(arrays: Callable[[str], Snapshot]) -> None:
    native, twin = arrays("native"), arrays("twin")
    assert differing(native, twin, "ndarray", "Array", "mmap.mmap", "Mapping") == []
    assert memories(native, "mapping") == memories(twin, "mapping") == {
        ("mapping", "memory", 1 << 20, 0): 1, ("mapping", "memory", 8192, 0): 1}


def test_elements_are_numbered_in_c_order_whatever_the_strides(arrays: Callable[[str], Snapshot]) -> None:
    native = arrays("native")
    for name, count in (("fortran", 6), ("cube", 24), ("moved", 24), ("point", 1)):
        (array,) = native.follow(native.module(), "attribute KEEP", f"key '{name}'")
        texts = [text for kind, text, _target in native.edges(array) if kind == "index"]
        assert texts == [str(index) for index in range(count)]


TENSORS = '''
import sys, torch, warnings
warnings.simplefilter("ignore")
class Shown(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        called.append(function)
        return super().__torch_function__(function, types, args, kwargs)
class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(context, given):
        context.save_for_backward(given)
        context.extra = [1]
        return given * 2
    @staticmethod
    def backward(context, gradient):
        return gradient * 2
called = []
def leaf(*shape):
    return torch.ones(*shape, requires_grad=True)
def after_backward():
    weight = leaf(5)
    (weight * weight).sum().backward()
    return weight
WEIGHT, HOOKED, KEPT, BASE = leaf(5), leaf(5), leaf(5) * 3, leaf(4, 4)
HOOKED.register_hook(lambda gradient: None)
HOOKED.register_post_accumulate_grad_hook(lambda tensor: None)
KEPT.retain_grad()
KEPT.sum().backward()
MODEL = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
MODEL(torch.ones(6, 4)).pow(2).mean().backward()
STATE = {parameter: {"exp_avg": torch.zeros_like(parameter)} for parameter in MODEL.parameters()}  # as an optimizer keeps it
CHANGED = torch.zeros(4)
CHANGED[1:3] = WEIGHT[:2]
with torch.no_grad():
    UNTRACED = BASE[:2]
with torch.inference_mode():
    INFERRED = torch.ones(3)[1:]
KEEP = {
    "leaf": torch.zeros(10), "view": torch.zeros(100, 100)[3:], "detached": leaf(3, 3)[0].detach(), "data": WEIGHT.data,
    "parameter": torch.nn.Parameter(torch.ones(4)), "derived": torch.zeros(10).as_subclass(Shown),
    "meta": torch.zeros(10, device="meta"), "sparse": torch.eye(5).to_sparse(), "rows": torch.eye(5).to_sparse_csr(),
    "empty": torch.empty(0), "whole": torch.arange(7), "graphs": [((WEIGHT * i).relu() + 1).sum() for i in range(5)],
    "cat": torch.cat([WEIGHT * 2, WEIGHT, torch.zeros(5)]), "seen": after_backward(), "unseen": after_backward(),
    "own": Doubled.apply(WEIGHT), "chain": Doubled.apply(Doubled.apply(WEIGHT)).sum(), "loss": MODEL(torch.ones(6, 4)).mean(),
    "turned": (BASE * 1)[1:].t(), "parts": list((BASE * 2).unbind(0)), "row": BASE[0],
    "storage": torch.zeros(3).untyped_storage(), "array": torch.from_numpy(__import__("numpy").zeros(50)),
    "lazy": torch._lazy_clone(torch.ones(9)), "baseless": torch.zeros(64, 64).view(-1)[5:],
    "complex": torch.ones(3, dtype=torch.cfloat).conj(),
}
KEEP["seen gradient"] = KEEP["seen"].grad
called.clear()
'''
BOTH_TENSORS = TENSORS + '''
def count():
    import gc
    return sum(1 for thing in gc.get_objects() if type(thing) in (torch.Tensor, torch.nn.Parameter, torch.UntypedStorage))
before = count()
native("fresh")
assert count() == before
assert torch._C._is_cow_tensor(KEEP["lazy"])
twin("twin")
native("native")
assert called == [] and torch._C._is_cow_tensor(KEEP["lazy"])  # nobody made its copy
print([KEEP["whole"].data_ptr(), KEEP["baseless"].data_ptr() - 20, KEEP["storage"].data_ptr()], MODEL.training)
'''
NODES = ("Tensor", "Parameter", "Shown", "Backward", "AccumulateGrad", "CopySlices")


@pytest.fixture(scope="module")
def tensors(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Snapshot]:
    needs("torch")
    return run(BOTH_TENSORS, tmp_path_factory.mktemp("tensors"))


def test_tensors_and_their_graphs_hold_what_the_twin_says(tensors: Callable[[str], Snapshot]) -> None:
    native, twin = tensors("native"), tensors("twin")
    assert differing(native, twin, *NODES) == []
    assert memories(native, "storage") == memories(twin, "storage")
    assert native.done["notes"] == twin.done["notes"] == []


def test_each_storage_says_once_where_its_data_begin(tensors: Callable[[str], Snapshot]) -> None:
    native, twin = tensors("native"), tensors("twin")
    rows = []
    for snapshot in (native, twin):
        assert {layout.NODE_KINDS[kind] for kind in snapshot.kind[snapshot.storage_node].tolist()} == {"storage"}
        places = dict(zip(snapshot.storage_address.tolist(), snapshot.storage_node.tolist(), strict=True))
        assert len(places) == len(snapshot.storage_node) == len(snapshot.nodes("memory"))
        rows.append({place: int(snapshot.shallow_bytes[node]) for place, node in places.items()})
        asked = ast.literal_eval(snapshot.output.splitlines()[-1].rpartition(" ")[0])
        assert [rows[-1][place] for place in asked] == [7 * 8, 64 * 64 * 4, 3 * 4]
    assert rows[0].items() >= rows[1].items()  # natively those of what has no Python object, too


def test_what_no_python_object_stands_for_is_seen_without_making_one(tensors: Callable[[str], Snapshot]) -> None:
    """Before the twin has made Python objects for them: gradients nobody has looked at, and nodes of the graph."""
    fresh, twin = tensors("fresh"), tensors("twin")
    types = [name for name in fresh.types if any(word in name for word in NODES)]
    seen = shown_to_twin(fresh)
    assert {name: int(seen[fresh.nodes(name)].sum()) for name in types} == {name: len(twin.nodes(name)) for name in types}
    assert memories(fresh, "storage") == memories(twin, "storage")
    (gradient,) = fresh.follow(fresh.module(), "attribute KEEP", "key 'unseen'", "attribute grad")
    assert (fresh.address[gradient], fresh.type(gradient)) == (0, "torch.Tensor")
    (memory,) = fresh.follow([gradient], "storage")
    assert described(fresh, memory) == ("storage", "memory", 20, 0)
    nodes = fresh.follow(fresh.module(), "attribute KEEP", "key 'graphs'", "index 0", "attribute grad_fn")
    assert [(fresh.address[node], fresh.type(node)) for node in nodes] == [(0, "builtins.SumBackward0")]
    reached = set(nodes)
    while nodes:
        nodes = [node for node in fresh.follow(nodes, "internal next_functions") if node not in reached]
        reached.update(nodes)
    assert set(fresh.follow(reached, "attribute variable")) == set(fresh.follow(fresh.module(), "attribute WEIGHT"))


SAVED = """
import ctypes, torch, warnings
warnings.simplefilter("ignore")
class Packed: pass
class Held(torch.autograd.Function):
    @staticmethod
    def forward(context, one, other):
        context.save_for_backward(one, other)
        return one * other
    @staticmethod
    def backward(context, gradient):
        return gradient, gradient
def pack(tensor):
    called.append("pack")
    return Packed()
def unpack(packed):
    called.append("unpack")
called = []
def leak():
    leaf = torch.ones(64, requires_grad=True)
    leaf.tanh().square().sum().backward(create_graph=True)
    return id(leaf)
PLAIN = torch.ones(3)
print(leak())
native("early")  # there was no view yet that torch could have been asked about
WEIGHT = torch.ones(3, requires_grad=True)
FACTOR, PLACES, KERNEL = torch.ones(3) * 2, torch.tensor([2, 0]), torch.ones(1, 1, 2, requires_grad=True)
PRODUCT, CHOSEN, OWN = WEIGHT * FACTOR, WEIGHT[PLACES], Held.apply(WEIGHT, PLAIN)
GROWN = WEIGHT.exp()
FOLDED = torch.nn.functional.conv1d(WEIGHT.view(1, 1, 3), KERNEL)
FREED = WEIGHT * FACTOR
FREED.sum().backward()
with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
    HOOKED = WEIGHT * FACTOR
EMPTY = WEIGHT + FACTOR
RECURRENT = torch.nn.LSTM(4, 5)
RECURRENT(torch.ones(2, 4))[0].sum().backward(create_graph=True)
RESULT = RECURRENT(torch.ones(2, 4))
ATTENTION = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)(torch.ones(3, 1, 8)).sum()
NODE = PRODUCT.grad_fn
called.clear()
native("first")
assert called == []
def words(address, count=100):
    return list((ctypes.c_uint64 * count).from_address(address))
def poked(address, value):
    kept = words(address, 1)[0]
    ctypes.c_uint64.from_address(address).value = value
    native("poked%d" % len(done))
    ctypes.c_uint64.from_address(address).value = kept
    done.append(address)
done = []
head = next(word for word in words(id(NODE), 8)[2:] if word > 1 << 20 and FACTOR._cdata in words(word))
place = head + words(head).index(FACTOR._cdata) * 8
hooks = place + 6 * 8 if words(head)[1] != head else place + 7 * 8
poked(place, 1 << 40)  # nothing is there
poked(place, torch._C._storage_id(FACTOR))  # something else is there
poked(hooks, 1 << 40)
poked(hooks, FACTOR._cdata)
poked(place - 8 * 8, FACTOR._cdata)  # only a word that looks so
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Snapshot]:
    needs("torch")
    return run(SAVED, tmp_path_factory.mktemp("saved"))


def saved_of(snapshot: Snapshot, name: str) -> list[tuple[str, str, int]]:
    """What the node of a variable has saved."""
    (node,) = snapshot.follow(snapshot.module(), f"attribute {name}", "attribute grad_fn")
    return [edge for edge in snapshot.edges(node) if edge[1] == "saved"]


@pytest.mark.parametrize(("name", "expected"), [
    ("PRODUCT", ["FACTOR"]),  # the leaf is saved for a factor that wants no gradient: it is not
    ("CHOSEN", ["PLACES"]),  # in a vector
    ("OWN", ["WEIGHT", "PLAIN"]),  # by a node written in Python
    ("FREED", []),
    ("EMPTY", []),
])
def test_nodes_hold_what_they_have_saved(name: str, expected: list[str], saved: Callable[[str], Snapshot]) -> None:
    snapshot = saved("first")
    wanted = [snapshot.follow(snapshot.module(), f"attribute {each}")[0] for each in expected]
    assert sorted(target for _kind, _text, target in saved_of(snapshot, name)) == sorted(wanted)


def test_a_saved_tensor_that_is_no_object_leads_to_its_storage(saved: Callable[[str], Snapshot]) -> None:
    snapshot = saved("first")
    ((_kind, _text, result),) = saved_of(snapshot, "GROWN")  # its own result, without the graph
    assert (snapshot.address[result], snapshot.type(result)) == (0, "torch.Tensor")
    assert snapshot.follow([result], "storage") == snapshot.follow(snapshot.module(), "attribute GROWN", "storage")


def test_what_hooks_have_packed_is_held_and_no_hook_is_called(saved: Callable[[str], Snapshot]) -> None:
    snapshot = saved("first")
    types = Counter(snapshot.type(target) for _kind, _text, target in saved_of(snapshot, "HOOKED"))
    assert types == {"__main__.Packed": 1, "builtins.function": 1}
    (hook,) = (target for _kind, _text, target in saved_of(snapshot, "HOOKED") if snapshot.type(target) == "builtins.function")
    assert snapshot.follow(snapshot.module(), "attribute unpack") == [hook]


@pytest.mark.parametrize(("number", "count"), [(0, 0), (1, 0), (2, 0), (3, 0), (4, 1)])
def test_what_only_seems_to_be_saved_costs_an_edge(number: int, count: int, saved: Callable[[str], Snapshot]) -> None:
    assert len(saved_of(saved("first"), "PRODUCT")) == 1
    assert len(saved_of(saved(f"poked{number}"), "PRODUCT")) == count


def test_no_tensor_and_no_node_has_more_holders_than_references(saved: Callable[[str], Snapshot]) -> None:
    """Also where C++ holds it more than once: so a wrong edge would show."""
    snapshot = saved("first")
    holders = np.bincount(snapshot.edge_target, minlength=len(snapshot.address))
    nodes = [node for node in nodes_of(snapshot, "torch.Tensor", "Parameter", "Backward", "AccumulateGrad")
             if snapshot.type(node).startswith(("torch.Tensor", "torch.nn.parameter.Parameter", "builtins.", "torch.autograd"))]
    too_many = [snapshot.type(node) for node in nodes if holders[node] > snapshot.refcount[node]]
    exact = [node for node in nodes if holders[node] == snapshot.refcount[node]]
    assert too_many == []
    assert len(exact) > 0.9 * len(nodes) > 50


@pytest.mark.parametrize("name", ("early", "first"))
def test_a_graph_that_holds_its_own_leaf_is_found_to_be_garbage(name: str, saved: Callable[[str], Snapshot]) -> None:
    """backward(create_graph=True): the leaf holds its gradient, that its graph, and that the leaf again."""
    snapshot = saved(name)
    graph = load(snapshot.folder)
    (leaf,) = np.flatnonzero(graph.address == int(snapshot.output))
    is_garbage = garbage(graph)
    (gradient,) = snapshot.follow([int(leaf)], "attribute grad")
    (square,) = snapshot.nodes("builtins.PowBackward0")[:1]
    assert is_garbage[[leaf, gradient, square, *snapshot.follow([gradient], "attribute grad_fn")]].all()
    assert not held_from_outside(graph)[reached(snapshot, [int(leaf)])].any()


def test_a_graph_that_somebody_can_still_use_is_no_garbage(saved: Callable[[str], Snapshot]) -> None:
    snapshot = saved("first")
    is_garbage = garbage(load(snapshot.folder))
    for name in ("WEIGHT", "PRODUCT", "OWN", "HOOKED", "RESULT", "ATTENTION"):
        nodes = reached(snapshot, snapshot.follow(snapshot.module(), f"attribute {name}"))
        assert nodes and not is_garbage[nodes].any()


def reached(snapshot: Snapshot, waiting: list[int]) -> list[int]:
    """Nodes, and what they reach through the graph."""
    found = set(waiting)
    while waiting:
        waiting = [target for node in waiting for _kind, text, target in snapshot.edges(node) if target not in found
                   and text in ("grad_fn", "next_functions", "saved", "variable", "grad", "_base", "forward_base")]
        found.update(waiting)
    return sorted(found)
