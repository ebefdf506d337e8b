"""Classes and their instances, in all the ways in which attributes can be kept."""
# ruff: noqa
# mypy: ignore-errors

import collections, dataclasses, enum, functools, types, typing, weakref


class Plain:
    kept = [1]

    def __init__(self, n):
        self.first = n
        self.second = [n]
        self.third = "t%d" % n


class Few(Plain):
    def __init__(self, n):
        self.first = n


class Late(Plain):
    def __init__(self, n):
        self.second = n
        self.other = {}
        self.first = ()


class Slots:
    __slots__ = ("left", "right", "__weakref__")


class More(Slots):
    __slots__ = ("middle", "__dict__")


class Number(int):
    pass


class Text(str):
    pass


class Items(list):
    pass


class Table(dict):
    pass


class Pair(tuple):
    pass


class Chars(bytes):
    pass


class Bag(set):
    pass


class Queue(collections.deque):
    pass


class Meta(type):
    def __call__(cls, *a):
        return super().__call__(*a)


class Made(metaclass=Meta):
    def __init__(self):
        self.inside = object()


Point = collections.namedtuple("Point", "x y")


class Named(typing.NamedTuple):
    a: int
    b: str = "b"


@dataclasses.dataclass
class Data:
    number: int
    items: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Frozen:
    number: int


class Colour(enum.Enum):
    RED = 1
    GREEN = "g"


class Flags(enum.Flag):
    A = 1
    B = 2


class Computed:
    @functools.cached_property
    def value(self):
        return [1, 2]

    @property
    def other(self):
        raise AssertionError("called")

    @classmethod
    def make(cls):
        return cls()

    @staticmethod
    def stat():
        pass

    def __getattr__(self, name):
        raise AssertionError(name)


class Sized:
    def __sizeof__(self):
        raise AssertionError("called")

    def __len__(self):
        raise AssertionError("called")

    def __eq__(self, other):
        raise AssertionError("called")

    def __hash__(self):
        return 7


class Deleted:
    def __init__(self):
        self.a = 1
        self.b = 2
        self.c = 3


class Many:
    pass


class Generic(typing.Generic[typing.TypeVar("T")]):
    def __init__(self):
        self.x = 1


s, m = Slots(), More()
s.left = [1]
m.middle = {}
m.right = s
m.free = "free"
c = Computed()
c.value
d = Deleted()
del d.b
d2 = Deleted()
d2.d = 4
many = Many()
for n in range(60):
    setattr(many, "attribute_%s" % chr(97 + n % 26) + "x" * (n // 26), n)
asked = Plain(1)
asked.__dict__
asked2 = Plain(2)
asked2.__dict__["extra"] = []
swapped = Plain(3)
swapped.__dict__ = {"own": 1, "dict": [2]}
odd = Plain(4)
odd.__dict__[5] = "int key"
odd.__dict__[("t",)] = 1
items, table, pair, chars, bag, queue = Items([1, 2]), Table(a=1), Pair((1, 2)), Chars(b"x"), Bag([1]), Queue([1], 5)
for thing in (items, table, pair, bag, queue):
    thing.extra = [7]
number, text = Number(5), Text("text")
number.more = []
text.more = ()
KEEP = [
    Plain(1),
    Plain(2),
    Few(3),
    Late(4),
    s,
    m,
    c,
    d,
    d2,
    many,
    asked,
    asked2,
    swapped,
    odd,
    items,
    table,
    pair,
    chars,
    bag,
    queue,
    number,
    text,
    Made(),
    Point(1, [2]),
    Named(1),
    Data(1, [2]),
    Frozen(2),
    Colour.RED,
    Flags.A | Flags.B,
    Sized(),
    Generic(),
    Generic[int],
    list[int],
    typing.Optional[int],
    types.SimpleNamespace(a=1, b=[2]),
    types.MappingProxyType({"a": 1}),
]
CYCLE = Plain(0)
CYCLE.second = CYCLE
CYCLE.third = [CYCLE, {"me": CYCLE}]
if "union" in dir(types) or hasattr(types, "UnionType"):
    UNION = int | str
BIG, NEG, ZERO, HUGE = 1 << 100, -5, 0, 10**400
TEXTS = [
    "",
    "a",
    "\xe9",
    "\u540d",
    "\U0001f600",
    "x" * 1000,
    b"",
    b"abc",
    bytearray(b"abc" * 50),
    1.5,
    1j,
    range(5),
    slice(1, [2], 3),
]
both()
