"""One object for each kind of holder; its class bears the name under which the test knows how it is held."""
# ruff: noqa
# mypy: ignore-errors

import asyncio, atexit, collections, contextlib, contextvars, copyreg, ctypes, enum, functools, gc, io, itertools, logging
import operator, pickle, queue, signal, sys, threading, types, typing, warnings, weakref
import logging.handlers
from concurrent.futures import ThreadPoolExecutor

gc.disable()
stop = threading.Event()
level = contextvars.ContextVar("level")
tenant = contextvars.ContextVar("tenant")


class Held:
    pass


def new(name, base=Held, *arguments):
    """An instance of a class of its own."""
    return type(name, (base,), {"__module__": "__main__"})(*arguments)


def call(*arguments, note=None):
    """What is registered everywhere, by functools.partial."""


def noting(name):
    return functools.partial(call, note=new(name))


# --- functions and classes

class Store:
    def __init__(self, pages):
        self.pages = pages

    @functools.lru_cache(maxsize=None)
    def load(self, key):
        return key

    @functools.lru_cache(maxsize=8)
    def find(self, key):
        return key

    @functools.cached_property
    def table(self):
        return new("CachedProperty")

    quick = functools.partialmethod(call, new("PartialMethod"))
    body = property((lambda state: lambda self: state)(new("Property")))


Store(new("MethodCache")).load("a")
Store(new("BoundedMethodCache")).find("a")
STORE = Store(None)
STORE.table


@functools.singledispatch
def show(thing):
    pass


show.register(int, noting("SingleDispatch"))
METHODS = {"run": types.MethodType(call, new("MethodInDict"))}
ASK = [operator.methodcaller("add", new("MethodCaller"))]


class Meta(type):
    seen = new("MetaclassAttribute")


class Plugin(metaclass=Meta):
    registry = {}

    def __init_subclass__(cls):
        cls.registry[cls.__name__] = cls


def load_plugin():
    class Export(Plugin):
        writer = new("InSubclassRegistry")


load_plugin()


class Color(enum.Enum):
    RED = new("EnumMember")


def lost_module():
    space = {"__name__": "lost"}
    exec("def hook():\n    return table\n", space)
    space["table"] = new("LostModule")
    return space["hook"]


HOOK = lost_module()
MODULE = types.ModuleType("plugin_a")
MODULE.state = new("ModuleApart")


# --- generators and asyncio

def inner(page):
    yield page


def outer(pages):
    yield from inner(pages.pop())


STREAM = outer([new("YieldFrom")])
next(STREAM)
LINES = (line for line in ["a", new("GeneratorExpression")])
next(LINES)


async def events(buffer):
    yield buffer


async def consume(buffer):
    await asyncio.Event().wait()


async def relay(buffers):
    await consume(buffers.pop())


async def watch(buffers):
    async for event in waiting(buffers.pop()):
        pass


async def waiting(buffer):
    await asyncio.sleep(3600)
    yield buffer


async def serve(name):
    tenant.set(new(name))
    await asyncio.sleep(3600)


async def fail():
    response = new("TaskException")
    raise ValueError


class Session:
    def __init__(self, cart):
        self.cart = cart

    def expire(self):
        pass


async def start():
    loop = asyncio.get_running_loop()
    tasks = [relay([new("AwaitChain")]), watch([new("AsyncFor")]), serve("TaskContext")]
    tasks = [loop.create_task(task, name=name) for task, name in zip(tasks, ("relay", "watch", "serve"))]
    FUTURES.append(loop.create_future())
    FUTURES[0].add_done_callback(noting("FutureCallback"))
    FINISHED.append(loop.create_task(fail()))
    loop.call_later(3600, call, new("CallLater"))
    loop.call_later(3600, Session(new("CallLaterMethod")).expire)
    loop.add_signal_handler(signal.SIGUSR1, call, new("LoopSignal"))
    await asyncio.sleep(0.01)
    return tasks


FUTURES, FINISHED = [], []


# --- contexts, threads

def token():
    level.set(new("Token"))
    return level.set(None)


TOKEN = contextvars.Context().run(token)
DEFAULT = contextvars.ContextVar("DEFAULT", default=new("ContextDefault"))


def use(batch, done):
    pass


def work(ready):
    level.set(new("ThreadContext"))
    try:
        raise KeyError(new("HandledException"))
    except KeyError:
        ready.set()
        use(new("FrameStack"), stop.wait())


def begin(thread, name):
    thread.name, thread.daemon = name, True
    thread.start()


ready = threading.Event()
begin(threading.Thread(target=work, args=(ready,)), "worker-a")
ready.wait()
begin(threading.Timer(3600, call, [new("TimerArgument")]), "timer-a")
POOL = ThreadPoolExecutor(1)
POOL.submit(stop.wait)
POOL.submit(call, new("ExecutorQueue"))
JOBS = queue.SimpleQueue()
JOBS.put([new("SimpleQueue")])


# --- exceptions

class Config:
    def __init__(self, tree):
        self.tree = tree


def chained():
    try:
        raise ValueError(new("Cause"))
    except ValueError as error:
        raise KeyError from error


for act in (chained, lambda: Config(new("AttributeErrorObject")).missing):
    try:
        act()
    except (KeyError, AttributeError) as error:
        FINISHED.append(error.with_traceback(None))
sys.last_value = ValueError(new("LastValue"))


# --- what the interpreter and the standard library keep

atexit.register(Session(new("AtExitMethod")).expire)
signal.signal(signal.SIGHUP, Session(new("SignalMethod")).expire)
gc.callbacks.append(noting("CollectorCallback"))
__import__("codecs").register_error("logged", noting("CodecErrors"))
copyreg.pickle(Session, noting("CopyReg"))
STACK = contextlib.ExitStack()
STACK.callback(call, new("ExitStack"))
TARGET = Held()
weakref.finalize(TARGET, call, new("Finalize"))
STYLES = weakref.WeakKeyDictionary()
STYLES.update((lambda widget: [(widget, widget)])(new("WeakKey")))
log = logging.getLogger("shop")
log.propagate = False
log.addHandler(logging.handlers.MemoryHandler(100))
log.warning("order %s", new("LogArgument"))
typing.Literal[new("TypingCache")]
sys.meta_path.append(new("MetaPath"))
type(sys.meta_path[-1]).find_spec = lambda *arguments: None


# --- iterators and containers in C, buffers

MAPPED = map(call, [new("Map")])
VALUES = {"a": new("DictValues")}.values()
PROXY = types.MappingProxyType({"a": new("MappingProxy")})
FACTORY = collections.defaultdict(noting("DefaultFactory"))
HITS = collections.Counter([new("CounterKey")])
VIEW = memoryview(new("MemoryView", bytearray, b"x" * 99))[9:]
CALLBACK = ctypes.CFUNCTYPE(None)(noting("CtypesCallback"))
PICKLER = pickle.Pickler(io.BytesIO())


class Pickled(Held):
    def __reduce__(self):
        return str, ()


PICKLER.dump(new("PicklerMemo", Pickled))


# --- cycles that wait for the collector

def attempt(form):
    try:
        raise ValueError
    except ValueError as error:
        kept = error


class Node:
    def __init__(self, payload):
        self.me, self.payload = self, payload


NODES = weakref.WeakValueDictionary()


def litter():
    attempt(new("FrameCycle"))
    type("Row", (), {"schema": new("ClassCycle")})
    NODES["a"] = Node(new("WeakValueCycle"))


def collected(phase, info):
    """Make garbage when the collector, which both() calls first, is done; in a thread, for its frames lead to no others."""
    if phase == "stop":
        gc.callbacks.remove(collected)
        thread = threading.Thread(target=litter)
        thread.start()
        thread.join()


gc.callbacks.append(collected)


async def main():
    tasks = await start()
    both()
    stop.set()
    for task in tasks:
        task.cancel()


asyncio.run(main())
gc.callbacks.pop()
