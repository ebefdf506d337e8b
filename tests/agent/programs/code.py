"""Functions, closures, generators, coroutines, caches, tracebacks, modules."""
# ruff: noqa
# mypy: ignore-errors

import functools, contextlib, types, sys, abc, typing, logging


def plain(a, b=[1], *c, d={"k": 2}, **e) -> list:
    "doc"
    x: int = 5
    return lambda: (a, b)


def outer(first, second):
    third = [first]

    def inner(arg=second):
        nonlocal third
        return third, first

    class Local:
        def method(self):
            return third

    return inner, Local, lambda: second


inner, Local, lam = outer([1], {2: 3})


def gen(n):
    kept = [n]
    while True:
        got = yield kept
        kept.append(got)


g = gen(1)
next(g)
g2 = gen(2)
g3 = gen(3)
next(g3)
g3.close()


def delegating():
    box = {}
    yield from gen(box)


dg = delegating()
next(dg)


async def coro(x):
    y = [x]
    await other(y)


class Aw:
    def __await__(self):
        yield [1]


async def other(z):
    await Aw()


co = coro(1)
co.send(None)
co2 = coro(2)


async def agen(q):
    w = {q: 1}
    yield w


ag = agen(3)
step = ag.__anext__()
try:
    step.send(None)
except StopIteration:
    pass
ag2 = agen(4)
GE = (x + y for x in [1, 2] for y in [3])
next(GE)


@functools.lru_cache(maxsize=None)
def cached(n):
    return [n]


@functools.lru_cache(maxsize=3)
def bounded(n, k=1):
    return [n]


@functools.lru_cache
def default(n):
    return n


for n in range(5):
    cached(n)
    bounded(n)
    bounded(n, k=2)
    default(n)


class C:
    @functools.lru_cache(maxsize=5)
    def meth(self, x):
        return x

    @functools.singledispatchmethod
    def sd(self, x):
        return x

    @contextlib.contextmanager
    def cm(self):
        yield [1]

    __slots__ = ()

    def bound(self):
        pass


c = C()
c.meth(1)
BM = c.bound
BB = [].append
BD = {}.get
CM = C.meth
WR = object().__str__
MW = "x".join
P = functools.partial(plain, [1], d=2)
PM = functools.partialmethod(plain, 1)
sd = functools.singledispatch(plain)


@sd.register(int)
def _(a):
    return a


cmx = c.cm()
cmx.__enter__()
ES = contextlib.ExitStack()
ES.callback(print, [1])


def fails(deep):
    local = ["kept by traceback", deep]
    if deep:
        fails(deep - 1)
    raise ValueError("no", local)


try:
    fails(3)
except ValueError as e:
    ERR = e
try:
    try:
        fails(0)
    except ValueError as e:
        raise KeyError("other") from e
except KeyError as e:
    ERR2 = e
plain.attribute = [1]
plain.__kwdefaults__


def annotated(a: "int", b: typing.List[int] = None) -> "x":
    pass


annotated.__annotations__


class Abs(abc.ABC):
    @abc.abstractmethod
    def x(self): ...


class Con(Abs):
    def x(self): ...


con = Con()
isinstance(con, Abs)


class Desc:
    def __set_name__(self, o, n):
        self.n = n

    def __get__(self, o, t=None):
        raise AssertionError("called") if o is not None else AssertionError

    def __set__(self, o, v):
        pass


class HasDesc:
    d = Desc()

    def __init__(self):
        self.real = 1


hd = HasDesc()
code = compile("a = 1\ndef f(): return 'const', ('t', 2)", "made", "exec")
space = {}
exec(code, space)
mod = types.ModuleType("made_module", "doc")
mod.value = [1]
sys.modules["made_module"] = mod
loose = types.ModuleType("loose")
loose.x = 1
log = logging.getLogger("orders")
log.addHandler(logging.NullHandler())
log.info("x")
gl = types.GenericAlias(list, (int,))
frame = sys._getframe()
del frame
both()
