"""Threads, contexts, tasks, callbacks: what lives by itself."""
# ruff: noqa
# mypy: ignore-errors

import threading, contextvars, asyncio, atexit, signal, time, socket, gc, weakref, sys, concurrent.futures

var = contextvars.ContextVar("var", default=[0])
var2 = contextvars.ContextVar("var2")
var.set(["main"])
tl = threading.local()
tl.main = ["main value"]


class TL(threading.local):
    def __init__(self, x=1):
        self.x = [x]


tl2 = TL(3)
ready = threading.Barrier(4)
stop = threading.Event()


def deep(n, kept):
    local = [n, kept]
    if n:
        return deep(n - 1, local)
    ready.wait()
    stop.wait()


def worker(name):
    tl.mine = [name]
    tl2.y = {name: 1}
    var.set([name])
    var2.set({name})
    gen_ = (deep(2, [name]) for _ in [1])
    next(gen_)


threads = [threading.Thread(target=worker, args=("feed%d" % n,), name="feed-%d" % n, daemon=True) for n in range(3)]
for t in threads:
    t.start()
ready.wait()
time.sleep(0.05)
timer = threading.Timer(1000, print)
lock, rlock, sem, cond = threading.Lock(), threading.RLock(), threading.Semaphore(3), threading.Condition()
atexit.register(print, [1], key={2: 3})
atexit.register(deep, 1, kept=[1])


class H:
    def handle(self, *a):
        pass


h = H()
signal.signal(signal.SIGUSR1, h.handle)
atexit.register(h.handle)
loop = asyncio.new_event_loop()


async def pending(n):
    local = [n]
    await asyncio.sleep(1000)


async def done():
    return [1]


async def failing():
    raise ValueError("x")


async def locks():
    global al, aq
    al, aq = asyncio.Lock(), asyncio.Queue(5)
    await aq.put([1])


tasks = [loop.create_task(pending(n), name="reader-%d" % n) for n in range(3)]
dt = loop.create_task(done())
ft = loop.create_task(failing())
fut = loop.create_future()
fut.add_done_callback(print)
ff = loop.create_future()
ff.set_result([5])
loop.run_until_complete(locks())
loop.run_until_complete(asyncio.sleep(0.01))
a, b = socket.socketpair()
closed = socket.socket()
closed.close()
ctx = contextvars.copy_context()
ctx2 = contextvars.Context()
ctx2.run(var.set, [5])
for n in range(40):
    contextvars.ContextVar("v%d" % n).set([n])
token = var.set(["again"])
gc.callbacks.append(lambda phase, info: None)


class Cyc:
    pass


x = Cyc()
x.self = x
x.data = [1]
del x
ex = concurrent.futures.ThreadPoolExecutor(1)
fu = ex.submit(len, "abc")
fu.result()


def handling():
    try:
        raise KeyError([1])
    except KeyError:
        both()


handling()
stop.set()
import os

sys.stdout.flush()
os._exit(0)
