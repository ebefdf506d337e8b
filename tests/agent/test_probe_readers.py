"""The native readers, one program a topic: each gives the edges, names, sizes and lengths of the twin, or more names."""

from __future__ import annotations

import pytest

from tests.agent.test_walk import HOSTILE
from tests.agent.twins import VERSIONS, Twins, differences, taken

CONTAINERS = r'''
import array, io, struct
from collections import ChainMap, Counter, OrderedDict, UserDict, defaultdict, deque, namedtuple

class Plain:
    def __init__(self):
        self.one, self.two, self.three = [1], [2], [3]

KEEP = []
# Dicts: keys of one kind, of several, with holes, grown, emptied, of an instance whose attributes came in another order.
holes = {str(i): [i] for i in range(100)}
for i in range(50):
    del holes[str(i)]
numbered = {i: [i] for i in range(100)}
for i in range(0, 100, 3):
    del numbered[i]
emptied = {1: 2}
del emptied[1]
changed = {1: [1], "text": [2]}
del changed[1]
first, second = Plain(), Plain()
del second.one
second.one = [9]
other = Plain.__new__(Plain)
other.three, other.one = [3], [1]
for thing in (first, second, other):
    vars(thing)
class Let_go(Plain): pass
gone = Let_go()
KEEP += [{}, holes, numbered, emptied, changed, first, second, other, {"late": gone.__dict__}]
del gone
KEEP += [{1: [1], "b": [2], (1, 2): [3]}, {"same": KEEP, "again": KEEP}, dict.fromkeys("abc", [1])]
# Sets with places that were left, deques over many blocks, turned and bounded.
left = {(i,) for i in range(300)}
for i in range(200):
    left.discard((i,))
turned = deque(([i] for i in range(300)), maxlen=200)
turned.rotate(37)
short = deque([[1], [2]])
short.popleft()
KEEP += [set(), left, frozenset("abcdef"), turned, short, deque(), deque(maxlen=0), deque([[1]] * 64), deque([[1]] * 65)]
# Subclasses: contents, then attributes; the order of an OrderedDict; fields of named tuples.
def make(base, *arguments, slots=None):
    made = type("Sub_" + base.__name__, (base,), {} if slots is None else {"__slots__": slots})(*arguments)
    if slots is None:
        made.note = [3]
    else:
        for slot in slots:
            setattr(made, slot, [4])
    KEEP.append(made)
make(dict, {"a": [1]})
make(dict, {1: [2], "k": [4]})
make(list, [[1]])
make(list, [[1]], slots=("first", "_second"))
make(tuple, ([1], [2]))
make(set, {(1,)}, slots=("own",))
make(frozenset, {(1,)})
make(deque, [[1]], 5)
make(OrderedDict, {"a": [1], "b": [2]})
make(OrderedDict, {(1, 2): [3], 77777: [4]})
make(Counter, "hello")
make(str, "abc")
make(int, 2 ** 70)
make(int, 0)
make(bytes, b"abc")
Pair = namedtuple("Pair", "left right")
make(Pair, [1], [2])
moved = OrderedDict(((1, [1]), (2, [2]), ("x", [3])))
moved.move_to_end(1)
noted = OrderedDict(a=[1])
noted.attribute = [2]
KEEP += [moved, noted, OrderedDict(), Pair([1], [2]), defaultdict(list, a=[1]), Counter("hello"), ChainMap({"a": 1})]
KEEP.append(UserDict(a=[1]))
# What has a size of its own.
written = io.BytesIO()
written.write(b"x" * 1000)
appended, read_again, once = io.StringIO(), io.StringIO("x" * 1000), io.StringIO()
for text in ("x" * 1000, "\u20ac" * 1000):
    appended.write(text)
read_again.read(1)
once.write("x" * 1000)
accented = "\xe9\u20ac" * 3
accented.encode()
KEEP += [appended, read_again, once]
KEEP += [bytearray(100), array.array("i", range(50)), written, struct.Struct("iiq"), accented, "\xe9" * 5]
KEEP += [2 ** 100, 0, True, 1.5, 2j]
both()
'''

INSTANCES = r'''
import abc, dataclasses, enum, functools, os, re, time, types, weakref

KEEP = []
class Plain:
    def __init__(self, i):
        self.a, self._b, self.c = i, [i], str(i)
class Slots:
    __slots__ = ("x", "_y", "__weakref__")
class Sub(Slots):
    __slots__ = ("z",)
class Open(Slots):
    pass
class Many:
    def __init__(self, count):
        for i in range(count):
            setattr(self, "f%d" % i, [i])
KEEP += [Plain(i) for i in range(10)]
read, short, sub, half, wide = Plain(50), Plain(60), Sub(), Sub(), Open()
read.__dict__
read.extra = [1]
del short._b
sub.x = [1]
sub.z = sub.x
half.z = [2]
wide.x, wide._y, wide.free = [1], "t", [2]
KEEP += [read, short, sub, half, Sub(), wide, Many(20), Many(45), Many(0)]
class Borrowed:
    x = Slots.x  # of a class that it does not derive from
    __slots__ = ("real",)
borrowed = Borrowed()
borrowed.real = [1]
same = Plain(1)
same.a = same._b = same.c = [7]
self_held = Plain(2)
self_held.a, self_held._b = self_held, Plain
KEEP += [borrowed, same, self_held]

@dataclasses.dataclass
class Data:
    a: list
    b: int = 300000
    __slots__ = ("a", "__dict__")
    def __init__(self): self.a, self.b = [1], [2]
@dataclasses.dataclass(slots=True)
class Tight:
    a: list
    _b: object = None
class Color(enum.Enum):
    RED = [1]
class Number(enum.IntEnum):
    ONE = 1000
KEEP += [Data(), Tight([1], [2]), Color.RED, Number.ONE, types.SimpleNamespace(a=[1], b=[2])]

class Failed(ValueError):
    def __init__(self, value):
        super().__init__(value)
        self.value = value
def chain():
    try:
        try:
            raise Failed([1])
        except Failed as error:
            raise KeyError("b") from error
    except KeyError as error:
        KEEP.append(error)
        try:
            raise OSError(2, "no", "file")
        except OSError as inner:
            KEEP.append(inner)
chain()
KEEP += [StopIteration([5]), SystemExit([3]), UnicodeDecodeError("utf8", b"abc", 0, 1, "r"), ImportError("x", name="n")]

class Base(abc.ABC):
    @property
    def prop(self): "doc"; return 1
    def method(self): return __class__
    @classmethod
    def of_class(cls): pass
    @staticmethod
    def plain(): pass
    @functools.cached_property
    def once(self): return [1]
base = Base()
KEEP += [base.method, Base.of_class, Base.__dict__["prop"], Base.__dict__["plain"], base, super(Base, base)]
KEEP.append(functools.partial(print, [1], sep=[2]))
KEEP += [weakref.ref(read, lambda ref, note=[1]: None), weakref.proxy(base, lambda ref: None)]
KEEP.append(weakref.WeakValueDictionary(a=read))
KEEP += [types.MappingProxyType({"a": [1]}), slice([1], [2], None), {"a": [1]}.items(), list[int], int | str, object()]
KEEP += [iter([[1]]), iter({"a": 1}), zip([[1]], [[2]]), map(str, [[1]]), enumerate([[1]]), reversed([[1]])]
KEEP += [re.compile("a(b)"), re.match("a", "abc"), open("/dev/null"), open("/dev/null", "rb"), time.localtime(), os.stat("/")]
KEEP += [[].append, "a".join, Base.__init__]
both()
'''

CODE = r'''
import functools, types

def outer(a, b=[1], *, c=[2]) -> "int":
    "doc"
    x = [a]
    def inner(more: "list" = [3]):
        return x, a, b
    return inner
adder = outer(1)
outer.note = [1]
@functools.wraps(outer)
def wrapper(*args, **kwargs):
    return outer(*args, **kwargs)
empty = (lambda: cell)
def unset():
    def use(): return later
    return use
    later = 1
unset = unset()

@functools.lru_cache(maxsize=None)
def unbounded(x): return [x]
@functools.lru_cache(maxsize=3)
def bounded(x): return [x]
@functools.lru_cache
def pair(x, y=1): return [x]
class Plain:
    def __init__(self, x): self.x = x
    @functools.lru_cache(maxsize=8)
    def cached(self, x): return [x]
of_class = functools.lru_cache(maxsize=2)(Plain)
of_c = functools.lru_cache(maxsize=2)(len)
for x in range(6):
    unbounded(x), bounded(x), pair(x, y=[].__class__), of_class(x), Plain(1).cached(x), of_c((x,))
never = functools.lru_cache(maxsize=0)(len)
never("x")

class Meta(type):
    def __new__(meta, name, bases, space):
        made = super().__new__(meta, name, bases, space)
        made.registered = [name]
        return made
class WithMeta(metaclass=Meta):
    __slots__ = ("first", "_second")
class Below(WithMeta, Plain):
    """Doc."""
    attribute: int = 5000
module = types.ModuleType("made_up")
module.value = [1]
code = compile("def f(): return 'x', (1, 'y')", "<string>", "exec")
both()
'''

ASYNC = r'''
import asyncio

async def work(x):
    await asyncio.sleep(1000)
class Own(asyncio.Future):
    pass
async def main():
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work([1]))
    task.set_name("worker")
    futures = [loop.create_future() for _ in range(4)]
    futures[0].add_done_callback(print)
    futures[0].add_done_callback(repr)
    futures[1].set_result([7])
    futures[2].set_exception(ValueError([8]))
    own = Own()
    own.note = [9]
    queue = asyncio.Queue()
    waiting = asyncio.ensure_future(queue.get())
    waiting.set_name("reader")
    await asyncio.sleep(0)
    both()
    futures[2].exception()
    futures[0].remove_done_callback(print)
    futures[0].remove_done_callback(repr)
    for one in (task, waiting):
        one.cancel()
asyncio.run(main())
'''

HALF_BUILT = r'''
import _asyncio, array, functools, io, itertools, random, socket, threading, types, weakref
import xml.etree.ElementTree as trees
from collections import Counter, OrderedDict, defaultdict, deque

KEEP = []
for cls in (dict, list, tuple, set, frozenset, deque, OrderedDict, defaultdict, Counter, io.TextIOWrapper, io.BufferedReader,
            io.BufferedRandom, io.BufferedRWPair, io.BytesIO, io.StringIO, io.FileIO, _asyncio.Future, property, classmethod,
            staticmethod, super, Exception, OSError, SyntaxError, UnicodeError, StopIteration, types.SimpleNamespace,
            types.ModuleType, trees.Element, trees.XMLParser, trees.TreeBuilder, threading.Thread, threading.local,
            socket.socket, random.Random, str, int, object):
    KEEP.append(cls.__new__(cls))  # nothing has filled it

class Meta(type):
    def mro(cls):
        if cls.__dict__.get("now"):
            both()  # a class without an MRO, in a tuple with empty places
        return type.mro(cls)
def fill():
    yield [1]
    class Half(metaclass=Meta):
        now = True
    yield Half
KEEP.append(tuple(fill()))
'''

TOPICS = {"half built": HALF_BUILT, "containers": CONTAINERS, "instances": INSTANCES, "code": CODE, "async": ASYNC}


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def held(twins: Twins, *steps: str) -> list[int]:
    return twins.native.follow(twins.native.module(), *steps)


@pytest.mark.parametrize("topic", TOPICS)
def test_the_native_readers_agree_with_the_twin(version, topic):
    found = differences(taken(version, TOPICS[topic])).splitlines()
    # What ctypes keeps with its types is not counted natively, nor are the types of the agent itself.
    assert [sentence for sentence in found if "StgDict" not in sentence and "<_ctypes." not in sentence] == []


def test_none_of_the_targets_code_runs(version):
    """The program ends with an error if any of its methods was called."""
    taken(version, HOSTILE.replace("done = snapshot()", "both()"))


def test_attributes_that_no_code_mentions_have_names(version):
    """Inline from 3.11 on, where the twin knows only words of the program; in a dict those of an instance with too many."""
    snapshot = taken(version, INSTANCES).native
    many = snapshot.nodes("__main__.Many")
    counts = [len(snapshot.follow(many, f"attribute {name}")) for name in ("f0", "f19", "f20", "f44")]
    assert counts == [2, 2, 1, 1]


def test_a_slot_that_was_never_set_is_no_edge(version):
    twins = taken(version, INSTANCES)
    names = sorted(sorted(text for kind, text, _ in twins.native.edges(node) if kind == "attribute")
                   for node in twins.native.nodes("__main__.Sub"))
    assert names == [[], ["x", "z"], ["z"]]


def test_the_dict_of_no_instance_was_made(version):
    """Attributes that lie inline stay there: from 3.11 on no Plain has a __dict__ but the one whose program asked for it."""
    twins = taken(version, INSTANCES)
    made = [node for node in twins.native.nodes("__main__.Plain")
            if any(text == "__dict__" for _kind, text, _ in twins.native.edges(node))]
    assert len(made) == len(twins.native.nodes("__main__.Plain")) if version == "3.10" else len(made) <= 1


def test_what_a_chain_of_exceptions_holds_is_named(version):
    twins = taken(version, INSTANCES)
    (error,) = twins.native.nodes("builtins.KeyError")
    assert twins.native.follow([error], "internal __cause__") == twins.native.nodes("__main__.Failed")
    assert twins.native.follow([error], "internal __traceback__", "attribute tb_frame")


def test_closures_caches_and_tasks_lead_to_what_they_hold(version):
    twins = taken(version, CODE)
    assert held(twins, "attribute adder", "internal __closure__", "cell x", "contents", "index 0")
    assert len(held(twins, "attribute bounded", "internal cache[*]")) == 3
    assert len(held(twins, "attribute unbounded", "internal cache", "key int")) == 6
    futures = taken(version, ASYNC).native
    assert len(futures.follow(futures.nodes("_asyncio.Task"), "internal _coro")) == 3
    assert futures.follow(futures.nodes("_asyncio.Future"), "internal _result", "index 0")
