"""Builtin containers, and objects of C types of the standard library."""
# ruff: noqa
# mypy: ignore-errors

import collections, array, io, re, struct, types, weakref, itertools, functools, decimal, datetime, fractions, queue, operator, string, copy, heapq, bisect, random, uuid, ipaddress, pathlib, xml.etree.ElementTree as ET, mmap, sqlite3


class K:
    pass


key = K()
D = {
    1: 2,
    "two": [3],
    (1, "x"): {},
    None: None,
    True: False,
    2.5: 1,
    b"b": b"c",
    frozenset((1,)): 3,
    int: str,
    len: print,
    key: key,
    "with space": 1,
    "a@b.c": [9],
    "12345678": 1,
    K: [K],
}
EMPTY = [{}, [], (), set(), frozenset(), collections.deque()]
DELETED = {n: str(n) for n in range(50)}
for n in range(40):
    del DELETED[n]
BIGD = {"k%d" % n: [n] for n in range(2000)}
S = {1, "a", (2,), frozenset((3,))}
SB = set(range(100))
FS = frozenset("abc")
L = [1, [2, [3, [4]]], None, True, ...]
L.append(L)
T = (1, (2, [3]), ())
DQ = collections.deque([1, [2], "3"], 10)
DQ2 = collections.deque(range(200))
DQ2.popleft()
OD = collections.OrderedDict(a=1, b=[2])
OD["c"] = OD
OD.move_to_end("a")
del OD["b"]
DD = collections.defaultdict(list)
DD["x"].append(1)
CN = collections.Counter("hello")
CM = collections.ChainMap({"a": 1}, D)
UD = collections.UserDict(a=1)
W = weakref.ref(key)
WC = weakref.ref(key, lambda r: None)
WP = weakref.proxy(key)
WS = weakref.WeakSet([key])
WK = weakref.WeakKeyDictionary({key: [1]})
WV = weakref.WeakValueDictionary({"a": key})
WF = weakref.finalize(key, print, [1])
A = array.array("d", [1.0, 2.0])
A.append(3)
AE = array.array("i")
B = io.BytesIO(b"hello")
B2 = io.BytesIO()
B2.write(b"x" * 100)
SIO = io.StringIO("text")
BR = io.BufferedReader(io.BytesIO(b"x"))
F = open("/dev/null")
FB = open("/dev/null", "rb")
FC = open("/dev/null")
FC.close()
R = re.compile("(a)(?P<n>b)")
M = R.match("ab")
ST = struct.Struct("<iid")
MV = memoryview(bytearray(10))
MV2 = MV[2:5]
IT = [
    iter([1, 2]),
    iter((1,)),
    iter({1: 2}),
    iter({1: 2}.items()),
    iter({1: 2}.values()),
    iter({3}),
    iter("abc"),
    iter(range(3)),
    iter(b"a"),
    reversed([1, [2]]),
    zip([1], [2]),
    map(len, ["a"]),
    filter(None, [1]),
    enumerate(["x"]),
    itertools.count(3),
    itertools.cycle([1]),
    itertools.repeat([1], 3),
    itertools.chain([1], [2]),
    itertools.islice([1, 2], 1),
    itertools.groupby([1]),
    itertools.tee([1])[0],
    itertools.product([1], [2]),
    itertools.permutations([1, 2]),
    itertools.combinations([1, 2], 2),
    itertools.accumulate([1]),
    itertools.starmap(pow, [(1, 2)]),
    itertools.zip_longest([1]),
    itertools.takewhile(bool, [1]),
    itertools.dropwhile(bool, [1]),
    itertools.compress([1], [1]),
    itertools.filterfalse(None, [1]),
    itertools.combinations_with_replacement([1, 2], 2),
]
next(IT[0])
next(IT[15])
VIEWS = [D.keys(), D.items(), BIGD.values()]
DEC = [decimal.Decimal("1.5"), decimal.Decimal("1" * 100), decimal.getcontext(), fractions.Fraction(1, 3)]
DT = [
    datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc),
    datetime.date(2020, 1, 1),
    datetime.timedelta(1),
    datetime.timezone(datetime.timedelta(hours=1), "name"),
]
Q = queue.Queue(10)
Q.put([1])
SQ = queue.SimpleQueue()
SQ.put([2])
LQ = queue.LifoQueue()
OP = [operator.itemgetter(1, "a"), operator.attrgetter("a.b"), operator.methodcaller("x", [1], k=2)]
E = ET.fromstring("<a x='1'>t<b/>u<c><d/></c></a>")
MM = mmap.mmap(-1, 4096)
CON = sqlite3.connect(":memory:")
MISC = [
    random.Random(1),
    uuid.UUID(int=5),
    ipaddress.ip_address("127.0.0.1"),
    pathlib.Path("/x/y"),
    string.Template("$a"),
    types.SimpleNamespace(x=[1]),
    property(len),
    staticmethod(len),
    classmethod(len),
    super(type, type),
    object(),
    NotImplemented,
    Exception("x", [1]),
]
both()
