"""The frames of a sampled allocation: whose they are, what is shown of them, and that nothing is kept alive."""

from __future__ import annotations

from tests.agent.sampling import python, run  # noqa: F401

CODE = '''
import gc, weakref
weak = []
def make(number):
    space = {}
    exec(compile("def order_%d():\\n\\n    return bytes(600)" % number, "shop_%d.py" % number, "exec"), space)
    weak.append(weakref.ref(space["order_%d" % number]))
    weak.append(weakref.ref(space["order_%d" % number].__code__))
    return space["order_%d" % number]()
def depth(count):
    return bytes(700) if count == 0 else depth(count - 1)
def counted(count):
    for number in range(count):
        yield bytes(800)
async def awaited():
    return [bytes(900) for _ in range(2)]
assert _probe.sample_start(mean_bytes=1, seed=5, here="/nowhere/") is None
kept = [make(number) for number in range(300)]
gc.collect()
names = sorted(row[4][0] for row in _probe.sample_live() if row[1] == 633)
wanted = sorted(["shop_%d.py" % number, 3, "order_%d" % number] for number in range(300))
deep = depth(200)
(deep_frames,) = [row[4] for row in _probe.sample_live() if row[1] == 733]
yielded = list(counted(2))
yielded_frames = [row[4] for row in _probe.sample_live() if row[1] == 833][0]
try:
    awaited().send(None)
except StopIteration as ended:
    made = ended.value
awaited_names = {frame[2].rpartition(".")[2] for row in _probe.sample_live() if row[1] == 933 for frame in row[4][:2]}
say([[list(name) for name in names] == wanted, sum(each() is not None for each in weak), len(deep_frames),
     {frame[2] for frame in deep_frames} == {"depth"}, [frame[2] for frame in yielded_frames], sorted(awaited_names)])
'''


def test_frames_are_told_apart_when_code_dies_and_nothing_of_it_is_kept(python: str) -> None:  # noqa: F811
    are_right, alive, depth, is_deep, yielded, awaited = run(python, CODE)
    assert are_right and alive == 0
    assert depth == 64 and is_deep
    assert yielded == ["counted", "<module>"]
    assert "awaited" in awaited


SHOWN = '''
import os, types
from leakscope.agent.names import Names
from leakscope.agent.sites import own_folder, shown_path
files = ["/home/anna/venv/lib/python3.11/site-packages/aiohttp/web.py", os.path.join(os.getcwd(), "shop", "serve.py"),
         os.path.join(os.path.dirname(os.__file__), "json", "decoder.py"), "<frozen importlib._bootstrap>", "x.py",
         "/home/anna/shop/serve.py", "/serve.py", "<template of anna>", "/srv/key=abc.py", "/srv/abc", os.getcwd() + "/abc.txt",
         "<string>", "<stdin>", "", "/opt/python3.8/lib/thing.py", "/opt/python3.x/lib/thing.py", "/a/123456/b.py",
         "/a/caf\\u00e9.py", "C:\\\\python3.9\\\\a.py", "site-packages/a/b.py", "/a/dist-packages/b.py",
         "/a/site-packages/dist-packages/b.py", "rel/a/b.py", "/a/b.py\\0c.py", "<x"]
functions = ["handler", "Shop.take.<locals>.<lambda>", "na me", "caf\\u00e9", "Shop.geheim-7", "a1234567", "", "a..b", "x" * 61,
             ".".join(["part"] * 60), "\\u0141\\u00f3d\\u017a.\\U00020000x", "tel 030", "?"]
def made(file, function, size):
    code = compile("def f(): return bytes(%d)" % size, "x", "exec").co_consts[0]
    words = {"co_filename": file, "co_name": function}
    if sys.version_info >= (3, 11):
        words["co_qualname"] = function
    return types.FunctionType(code.replace(**words), {"bytes": bytes})()
assert _probe.sample_start(mean_bytes=1, here=os.path.join(os.getcwd(), ""), own=own_folder(),
                           library=os.path.join(os.path.dirname(os.__file__), "")) is None
wanted, kept = {}, []
names = Names()
for number, (file, function) in enumerate([(file, "f") for file in files] + [("x.py", function) for function in functions]):
    kept.append(made(file, function, 5000 + number))
    wanted[kept[-1].__sizeof__()] = [shown_path(file), names.strings[names.dotted(function)]]
own = made(own_folder() + "walk.py", "take", 9000)
found = {row[1]: [row[4][0][0], row[4][0][2]] for row in _probe.sample_live()}
say([[wanted[size], found.get(size)] for size in wanted if found.get(size) != wanted[size]] + [9033 in found])
'''


def test_what_is_shown_of_code_is_what_the_agent_would_show_and_its_own_is_left_out(python: str) -> None:  # noqa: F811
    assert run(python, SHOWN) == [False]
