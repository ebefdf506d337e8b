"""A report is made to be attached to a public ticket: nothing that the program only holds may be in any file or line of ours.

The secrets reach the program on its command line, in its environment and on its standard input, so that none is a word of
its source. Each place has two: one that reads like a name, and one that reads like a token.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import subprocess
import sys
import textwrap
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leakscope.heap import columns, packing
from tests.commands.runs import ENVIRONMENT, LEAKSCOPE

PLACES = (
    "key", "value", "bytes", "list", "set", "local", "closure", "generator", "default", "docstring", "annotation", "url",
    "exception", "note", "cause", "unraisable", "file name", "folder", "thread", "task", "global", "class attribute", "slot",
    "logger", "log record", "context", "cache", "module path", "generated file", "generated code", "partial", "pattern",
    "leaked key", "leaked value", "thread local", "interned",
    "environment name", "environment value", "child argument", "child environment", "process title",
    "interpreter -X", "interpreter -W", "argument", "--long=", "--long", "-a", "-b attached", "-c=", "-- after", "address",
)  # fmt: skip

PROGRAM = '''
import asyncio, contextvars, functools, json, logging, os, re, subprocess, sys, tempfile, threading, time, warnings

SECRETS = json.load(sys.stdin)  # {place: [name-like, token-like]}
GLOBALS = []


class Ticket:
    """One visitor's ticket: what leaks."""

    def __init__(self, value):
        self.value = value
        self.page = bytearray(40_000)


class Desk:
    __slots__ = ("slot",)
    label = ""


class Store:
    def __init__(self):
        self.by_visitor = {}


store = Store()
kept = []
context = threading.local()


def of(place):
    return list(SECRETS[place])


def fails(note, text):
    try:
        try:
            raise KeyError(of("cause")[0])
        except KeyError as error:
            raise ValueError(text, note) from error
    except ValueError as error:
        if hasattr(error, "add_note"):
            error.add_note(note)
        return error


def closed_over(text):
    def inner():
        return text
    return inner


def produce(text):
    while True:
        yield text


@functools.lru_cache(maxsize=None)
def price(text):
    return [text]


class Raises:
    def __init__(self, text):
        self.text = text

    def __del__(self):
        raise RuntimeError(self.text)


def plant():
    for number in (0, 1):
        secret = {place: SECRETS[place][number] for place in SECRETS}
        kept.append({secret["key"]: 1, (secret["key"], 1): 2, secret["key"].encode(): 3, "nested": {secret["key"]: {}}})
        kept.append({"value": secret["value"], "deep": [{"more": (secret["value"],)}]})
        kept.append([secret["bytes"].encode(), bytearray(secret["bytes"].encode()), memoryview(secret["bytes"].encode())])
        kept.append([secret["list"]] * 3)
        kept.append([{secret["set"]}, frozenset([secret["set"]])])
        kept.append(closed_over(secret["closure"]))
        kept.append(produce(secret["generator"]))
        next(kept[-1])
        def documented(a=secret["default"], *, b=secret["default"]): return a
        documented.__doc__ = secret["docstring"]
        documented.__annotations__ = {"a": secret["annotation"]}
        kept.append(documented)
        kept.append(f"https://user:{secret['url']}@db.example/{secret['url']}?token={secret['url']}")
        kept.append(fails(secret["note"], secret["exception"]))
        sys.unraisablehook = kept.append
        Raises(secret["unraisable"])
        folder = tempfile.mkdtemp(prefix=re.sub("[^a-z]", "", secret["folder"]))
        kept.append(open(os.path.join(folder, re.sub("[^a-z]", "", secret["file name"])), "w"))
        threading.Thread(target=time.sleep, args=(60,), name=secret["thread"], daemon=True).start()
        GLOBALS.append(secret["global"])
        globals()["API_KEY%d" % number] = secret["global"]
        setattr(Desk, "label%d" % number, secret["class attribute"])
        Desk.table = {secret["class attribute"]: secret["class attribute"]}
        desk = Desk()
        desk.slot = secret["slot"]
        kept.append(desk)
        logger = logging.getLogger(secret["logger"])
        kept.append(logger.makeRecord(secret["logger"], 20, secret["log record"], 1, secret["log record"], ("a",), None))
        variable = contextvars.ContextVar("request", default=secret["context"])
        variable.set(secret["context"])
        kept.append(variable)
        price(secret["cache"])
        sys.path.append("/nowhere/" + secret["module path"])
        space = {}
        exec(compile("def made(): return [1]", f"<{secret['generated file']}>", "exec"), space)
        exec(compile("def made2(): return [1]", f"/srv/{secret['generated file']}", "exec"), space)
        kept.append(space)
        kept.append(eval(f"lambda: [{secret['generated code']!r}]"))
        kept.append(functools.partial(print, secret["partial"], end=secret["partial"]))
        kept.append(re.compile(re.escape(secret["pattern"])))
        context.request = {secret["thread local"]: secret["thread local"]}
        kept.append({sys.intern(secret["interned"]): 1})


def child(secret):
    code = "import sys, time; kept = sys.argv[1:]; sys.stdin.read()"
    arguments = [secret, f"-p{secret}", f"--key={secret}", "--key", secret]
    environment = dict(os.environ, CHILD=SECRETS["child environment"][0], TOKEN=SECRETS["child environment"][1])
    return subprocess.Popen([sys.executable, "-c", code, *arguments], stdin=subprocess.PIPE, env=environment)


def titled(title):
    return subprocess.Popen([f"server: {title}", "-I", "-c", "import sys; sys.stdin.read()"], executable=sys.executable,
                            stdin=subprocess.PIPE)


async def serve(local):
    token, tries = local
    tasks = [asyncio.create_task(asyncio.sleep(60), name=name) for name in SECRETS["task"]]
    kept.append(asyncio.get_running_loop().call_later(60, print, token))
    for number in range(800):
        page = f"{SECRETS['leaked key'][number % 2]}{number}"
        store.by_visitor[page] = Ticket(f"{SECRETS['leaked value'][number % 2]}{number}")
        await asyncio.sleep(0.01)
    for task in tasks:
        task.cancel()


if __name__ == "__main__":
    plant()
    children = [child(SECRETS["child argument"][0]), child(SECRETS["child argument"][1]), titled(SECRETS["process title"][0])]
    asyncio.run(serve(SECRETS["local"]))
    for each in children:
        each.communicate()
'''


def name_like(place: str) -> str:
    """Fourteen letters that read like a word of a program."""
    return "".join(chr(97 + byte % 26) for byte in hashlib.sha256(place.encode()).digest()[:14])


def token_like(place: str) -> str:
    """A token with signs that JSON, HTML and addresses write in another way."""
    return "sK-" + base64.b64encode(hashlib.sha512(place.encode()).digest()[:15]).decode() + "/<&\"+"


SECRETS = {place: [name_like(place), token_like(place)] for place in PLACES}


def disguises(secret: str) -> Iterator[bytes]:
    """The secret and its beginning, as they are and in the encodings in which a file may hold them."""
    for text in (secret, secret[:10], secret[4:14]):
        plain = text.encode()
        yield from (plain, plain.hex().encode(), plain.hex().upper().encode(), text.encode("utf-16-le"),
                    text.encode("utf-32-le"), plain[::-1])
        yield "".join(f"%{byte:02x}" for byte in plain).encode()
        yield "".join(f"%{byte:02X}" for byte in plain).encode()
        yield urllib.parse.quote(text, safe="").encode()
        for shift in range(3):  # the three ways in which base64 cuts a text that stands inside another one
            core = base64.b64encode(b"\0" * shift + plain)[4 if shift else 0 : -4]
            yield from (core, core.replace(b"+", b"-").replace(b"/", b"_"))


NEEDLES = {needle: place for place, pair in SECRETS.items() for secret in pair for needle in disguises(secret)}
BEGINNINGS = {int.from_bytes(needle[:8], "little") for needle in NEEDLES}
MAY_BEGIN = np.zeros(1 << 16, bool)
MAY_BEGIN[[beginning & 0xFFFF for beginning in BEGINNINGS]] = True


def betrayed(data: bytes) -> set[str]:
    """The places whose secrets are in the data."""
    found = set()  # thousands of needles in tens of megabytes: compared eight bytes at a time, then those that begin so
    for shift in range(min(8, len(data))):
        words = np.frombuffer(data, "<u8", (len(data) - shift) // 8, shift)
        found |= BEGINNINGS.intersection(words[MAY_BEGIN[words & 0xFFFF]].tolist())
    begun = {beginning.to_bytes(8, "little") for beginning in found}
    return {place for needle, place in NEEDLES.items() if needle[:8] in begun and needle in data}


def content(file: Path) -> bytes:
    """What is in a file, and in what it packs: names and columns as the walk wrote them."""
    data = [file.read_bytes()]
    if file.suffix == ".pack":
        found, names = columns.read(file.parent)
        data += [json.dumps(names).encode(), json.dumps(names, ensure_ascii=False).encode()]
        data += [np.ascontiguousarray(column).tobytes() for column in found.values()]
    return b"\0\0\0\0\0\0\0\0".join(data)


def leakscope(folder: Path, *arguments: str, **more: Any) -> str:
    """Run leakscope to its end and return what it said on both streams."""
    done = subprocess.run([*LEAKSCOPE, *arguments], cwd=folder, text=True, capture_output=True, timeout=150, **more)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def observe(folder: Path, sites: str) -> str:
    """Run the program with its secrets into `folder`/out, look at it with every command, and return what leakscope said."""
    (folder / "serve.py").write_text(PROGRAM)
    values = SECRETS["environment value"]
    environment = {**ENVIRONMENT, "CANARY": values[1], SECRETS["environment name"][0]: values[0]}
    of = {place: pair[sites != "sampled"] for place, pair in SECRETS.items()}
    command = [sys.executable, "-X", of["interpreter -X"], f"-Wignore:{of['interpreter -W']}", "-W",
               f"ignore:{of['interpreter -W']}", "serve.py", of["argument"], f"--token={of['--long=']}", "--key",
               of["--long"], "-a", of["-a"], f"-p{of['-b attached']}", f"-c={of['-c=']}",
               f"https://me:{of['address']}@db.example/?key={of['address']}", "--", of["-- after"]]
    said = [leakscope(folder, "run", "-o", "out", "--sites", sites, "--format", "html,md,json", "--", *command,
                      input=json.dumps(SECRETS), env=environment)]
    said.append(leakscope(folder, "report", "out", "-o", "again"))
    for options in (["--type", "Ticket"], ["--type", "Ticket", "--json"], ["--type", "ValueError", "--json"],
                    ["--type", "Thread", "--json"], ["--type", "dict", "--json"]):
        said.append(leakscope(folder, "why", "out", *options))
    return "\n".join(said)


@pytest.mark.slow
@pytest.mark.parametrize("sites", ["sampled", "tracemalloc:5"])
def test_no_secret_is_in_any_file_of_a_run_nor_in_what_leakscope_says(tmp_path: Path, sites: str) -> None:
    said = observe(tmp_path, sites)
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    if sites == "sampled":  # traced, the program may be too slow to show its leak
        assert "store.by_visitor" in report["findings"][0]["owner"]
    assert "by_visitor" in said
    assert len(report["session"]["processes"]) == 3
    files = [file for part in ("out", "again") for file in sorted((tmp_path / part).rglob("*")) if file.is_file()]
    assert {".html", ".md", ".json", ".jsonl", ".pack"} <= {file.suffix for file in files}
    found = {str(file.relative_to(tmp_path)): places for file in files if (places := betrayed(content(file)))}
    assert not found
    assert not betrayed(said.encode())


@pytest.mark.parametrize("place", PLACES[:3])
def test_a_secret_is_found_however_it_is_written(place: str) -> None:
    secret = SECRETS[place][0]
    column = io.BytesIO()
    np.save(column, np.array([secret]))
    for data in (f"{{'a': '{secret}'}}".encode(), base64.b64encode(f"key={secret}&x".encode()), secret.encode().hex().encode(),
                 secret.encode("utf-16"), column.getvalue(), urllib.parse.quote(f"/{secret}").encode(),
                 json.dumps(secret[:10] + "...").encode()):
        assert betrayed(data) == {place}, textwrap.shorten(repr(data), 100)


@pytest.mark.parametrize("place", ["strings", *columns.DTYPES])
def test_a_secret_is_found_in_a_packed_snapshot(tmp_path: Path, place: str) -> None:
    secret = SECRETS["key"][0] + "  "  # sixteen bytes: whole rows of every column
    found = {name: np.arange(40, dtype=dtype) for name, dtype in columns.DTYPES.items()}
    if place != "strings":
        found[place] = np.concatenate([found[place], np.frombuffer(secret.encode(), found[place].dtype), found[place]])
    packing.write(tmp_path / "columns.pack", found, {"strings": ["", secret if place == "strings" else "orders"]})
    assert not betrayed((tmp_path / "columns.pack").read_bytes())
    assert betrayed(content(tmp_path / "columns.pack")) == {"key"}
