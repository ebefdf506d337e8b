"""`no_leak`: the assertion that memory does not grow with every call. Works in pytest, unittest and scripts.

    from leakscope import no_leak

    no_leak(handle, request)                # calls handle(request) in equal windows
    with no_leak(rounds=20) as rounds:      # the same for a block
        for _ in rounds:
            handle(request)

After a warm-up of two windows come five equal windows of `rounds` calls. Both ends of a window are read after a full
collection, which also empties the interpreter's free lists. Memory *grows* if one of these rose in each of the five windows,
and again in each of five more, by at least so much a call in the middle one:

- blocks of the interpreter's allocator (sys.getallocatedblocks): one;
- bytes in use in the C library's malloc (mallinfo2, glibc 2.33 and later): 32, its smallest piece;
- objects of one type, among those that the collector tracks: one;
- unreachable objects, but only where the collector is off when the window ends: one.

Less than that is not seen: an append of None to a list (8 B a call), a leak in every tenth call. Memory that other threads take
meanwhile counts, as nobody can tell it from that of the calls. Growth over equal windows is how CPython's own `regrtest -R`
looks for leaked references.

`from leakscope import no_leak` gives this module, and calling the module is calling `no_leak` in it; a type checker wants
`from leakscope.no_leak import no_leak`.
"""

from __future__ import annotations

import gc
import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from statistics import median
from types import CoroutineType, ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, overload

from leakscope.errors import LeakScopeError
from leakscope.units import bytes_text, count_text

if TYPE_CHECKING:
    from leakscope.case import Case

ROUNDS = 10  # calls in a window
WARM_UP_WINDOWS = 2
WINDOWS = 5
SNAPSHOTS = 3
MOST_ROUNDS = 1_000_000
LEAST_MALLOC_BYTES = 32  # glibc's smallest chunk on 64 bits
LEAST_NAMED_BYTES = 16  # a call: what piles up less is not the growth that was measured; ours
MOST_TYPES, MOST_HOLDERS, MOST_CYCLES, MOST_LINE = 5, 4, 2, 200  # of a failure's text, which keeps to 25 lines

BLOCKS, MALLOC, GARBAGE = "blocks", "malloc", "garbage"


class MemoryGrows(AssertionError):
    """Memory grows with every call; the text says what grows, by how much a call, and who holds it."""


class CannotJudge(LeakScopeError):
    """The calls say nothing about growth: too few, or of a kind that is not run by calling it."""

    exit_code = 2


@overload
def no_leak(fn: None = None, /, *, rounds: int = ROUNDS) -> Rounds: ...
@overload
def no_leak(fn: Callable[..., Any], /, *args: Any, rounds: int = ROUNDS, **kwargs: Any) -> None: ...
def no_leak(fn: Callable[..., Any] | None = None, /, *args: Any, rounds: int = ROUNDS, **kwargs: Any) -> Rounds | None:
    """Call `fn(*args, **kwargs)` in equal windows of `rounds` calls; without `fn`, return the rounds for a `with` block.

    `fn` is called 7 times `rounds` where memory is flat, and up to 14 times `rounds` (at least 20 for the snapshots) else.

    Raises:
        MemoryGrows: memory grows with every call.
        CannotJudge: `rounds` is no whole number from 1 on, or `fn` gives a coroutine.
        Whatever `fn` raises, unchanged.
    """
    __tracebackhide__ = True
    if fn is None:
        return Rounds(rounds)
    judge(Rounds(rounds), fn, args, kwargs)
    return None


def judge(rounds: Rounds, fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None) -> None:
    """Call a function in `rounds`, and raise what they found."""
    __tracebackhide__ = True
    named = kwargs or {}
    with rounds:
        for _ in rounds:
            _refuse_coroutine(fn(*args, **named))


def _refuse_coroutine(result: Any) -> None:
    if type(result) is CoroutineType:
        result.close()
        raise CannotJudge("The call gives a coroutine, and calling it does not run it.",
                          "call a function that runs it: no_leak(lambda: asyncio.run(main()))")


@dataclass
class Series:
    """What each window added: numbers of one series of windows, oldest first."""

    measures: dict[str, list[int]] = field(default_factory=dict)  # BLOCKS, MALLOC, GARBAGE
    types: dict[str, list[int]] = field(default_factory=dict)  # tracked objects by type

    def growing(self, rounds: int) -> set[str]:
        """The measures and types that rose in each window, and by the least that counts in the middle one."""
        least = {MALLOC: LEAST_MALLOC_BYTES}
        numbers = {**self.measures, **{f"type {name}": steps for name, steps in self.types.items()}}
        return {name for name, steps in numbers.items()
                if min(steps) > 0 and median(steps) >= rounds * least.get(name, 1)}


class Rounds:
    """The rounds of one judgement: iterate over it once, inside `with`; the verdict comes at the end of the block.

    `forget` is called at the end of each window, before memory is read: it drops what somebody else recorded meanwhile.
    """

    def __init__(self, rounds: int = ROUNDS, forget: Callable[[], None] | None = None) -> None:
        if type(rounds) is not int or not 1 <= rounds <= MOST_ROUNDS:
            raise CannotJudge(f"rounds={rounds!r} is not a number of calls.", f"rounds={ROUNDS}: a whole number from 1 on")
        self.rounds = rounds
        self._forget = forget
        self._calls = 0
        self._is_judged = False
        self._text = ""
        # One cell for each number, made before the first window: what is read must take no memory itself.
        self._start, self._end = array("q", [0, 0]), array("q", [0, 0])
        self._garbage = array("q", [0])

    def __enter__(self) -> Rounds:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        __tracebackhide__ = True
        if kind is not None:
            return
        if not self._is_judged:
            raise CannotJudge(f"The block ended after {self._calls} calls, before its rounds were over.",
                              "with no_leak() as rounds: / for _ in rounds: ..., without `break`")
        if self._text:
            raise MemoryGrows(self._text)

    def __iter__(self) -> Iterator[int]:
        if self._calls:
            raise CannotJudge("These rounds were begun before.", "make new ones for each loop: no_leak()")
        yield from self._call(WARM_UP_WINDOWS * self.rounds)
        first = Series()
        yield from self._windows(first)
        growing = first.growing(self.rounds)
        if growing:  # once more: something that fills slowly, or comes once in a while, stops or differs
            second = Series()
            yield from self._windows(second)
            growing &= second.growing(self.rounds)
            if growing:
                yield from self._explain(growing, second)
        self._is_judged = True

    def _call(self, count: int) -> Iterator[int]:
        for number in range(count):
            self._calls += 1
            yield number

    def _windows(self, series: Series) -> Iterator[int]:
        read = _malloc_reader()
        names = [BLOCKS, GARBAGE] + [MALLOC] * (read is not None)
        series.measures = {name: [] for name in names}
        counts = []
        self._collect()
        counts.append(_tracked_types())
        for _ in range(WINDOWS):
            self._collect()
            self._read(self._start, read)
            yield from self._call(self.rounds)
            is_off = not gc.isenabled() or gc.get_threshold()[0] == 0
            self._collect()
            self._read(self._end, read)
            # Only from here on may our own notes take memory: the next window starts after them.
            series.measures[BLOCKS].append(self._end[0] - self._start[0])
            series.measures[GARBAGE].append(self._garbage[0] if is_off else 0)
            if read is not None:
                series.measures[MALLOC].append(self._end[1] - self._start[1])
            counts.append(_tracked_types())
        series.types = {name: [after.get(name, 0) - before.get(name, 0) for before, after in zip(counts, counts[1:])]
                        for name in counts[-1]}

    def _collect(self) -> None:
        if self._forget is not None:
            self._forget()
        self._garbage[0] = gc.collect()

    @staticmethod
    def _read(cells: array[int], read: Callable[[], dict[str, int]] | None) -> None:
        cells[0] = sys.getallocatedblocks()
        if read is not None:
            cells[1] = read()["malloc_used_bytes"]

    def _explain(self, growing: set[str], series: Series) -> Iterator[int]:
        """Take snapshots over some more calls, and write down who holds what grows."""
        lines = _measured(growing, series, self.rounds)
        try:
            # Garbage is there only as long as nobody collects it.
            yield from self._look(lines, is_garbage=GARBAGE in growing)
        except (LeakScopeError, OSError, MemoryError) as error:  # ours alone: an error of a call is not raised in here
            lines.append(f"the holder could not be looked for: {error}")
        self._text = "\n".join(line if len(line) <= MOST_LINE else line[:MOST_LINE - 3] + "..." for line in lines)

    def _look(self, lines: list[str], is_garbage: bool) -> Iterator[int]:
        from pathlib import Path
        from tempfile import TemporaryDirectory

        from leakscope.agent import walk
        from leakscope.case import Case
        from leakscope.heap.load import load

        calls = max(self.rounds, ROUNDS)
        with TemporaryDirectory(prefix="leakscope-") as folder:
            folders = [Path(folder, str(number)) for number in range(SNAPSHOTS)]
            for number, each in enumerate(folders):
                if number:
                    yield from self._call(calls)
                if self._forget is not None:
                    self._forget()
                if not is_garbage:
                    gc.collect()
                walk.take(str(each), number, "ladder", number * 10**9)
            case = Case([load(each) for each in folders], [])
        lines += _types(case, calls)
        holders = _holders(case, calls)
        cycles = _cycles(case, calls) if is_garbage else []
        lines += [*holders, *cycles]
        if not holders and not cycles:
            lines.append("no owner found: no Python object holds more after each call; native code, or an extension, keeps it")


@cache  # making one leaves cycles of classes behind
def _malloc_reader() -> Callable[[], dict[str, int]] | None:
    from leakscope.agent import native

    reader: Callable[[], dict[str, int]] | None = native.allocator_reader()
    return reader


def _tracked_types() -> dict[str, int]:
    """Count the objects that the collector tracks by the name of their type: a name keeps no type alive."""
    from leakscope.agent import classes

    counts: dict[type, int] = {}
    for cls in map(type, gc.get_objects()):
        counts[cls] = counts.get(cls, 0) + 1
    named: dict[str, int] = {}
    for cls, count in counts.items():
        name = _full(*classes.names_of(cls))
        named[name] = named.get(name, 0) + count
    return named


def _full(module: str, qualname: str) -> str:
    return qualname if module == "builtins" else f"{module}.{qualname}"


# --- the text of a failure -----------------------------------------------------------------------------------------------


def _measured(growing: set[str], series: Series, rounds: int) -> list[str]:
    """What grew, in the windows of the repetition."""
    lines = [f"memory grows with every call: in each of {WINDOWS} windows of {count_text(rounds)} calls, twice, "
             f"after {count_text(WARM_UP_WINDOWS * rounds)} calls to warm up"]
    for name, what, text in ((BLOCKS, "blocks of the interpreter", count_text), (MALLOC, "in malloc", bytes_text),
                             (GARBAGE, "unreachable objects, and the collector is off", count_text)):
        if name in growing:
            steps = series.measures[name]
            each = _number(median(steps) / rounds) if text is count_text else bytes_text(median(steps) / rounds)
            lines.append(f"  +{each} {what} per call (windows: {', '.join('+' + text(step) for step in steps)})")
    types = sorted(name.removeprefix("type ") for name in growing if name.startswith("type "))
    if types and not growing & {BLOCKS, MALLOC, GARBAGE}:
        lines += [f"  +{_number(median(series.types[name]) / rounds)} {name} per call" for name in types[:MOST_TYPES]]
    return lines


def _number(count: float) -> str:
    return f"{count:.1f}".removesuffix(".0")


def _per_call(counts: Sequence[int], calls: int) -> float | None:
    """By how much a number rose a call in the last interval; None unless it rose by half of one or more in each."""
    steps = [after - before for before, after in zip(counts, counts[1:])]
    return steps[-1] / calls if min(steps) >= calls / 2 else None


def _types(case: Case, calls: int) -> list[str]:
    """The objects that there are more of after every call, of all types."""
    rows = [(each, name) for name, counts, _ in case.type_growth if (each := _per_call(counts, calls))]
    if not rows:
        return []
    return ["  objects per call: " + ", ".join(f"+{_number(each)} {name}" for each, name in rows[:MOST_TYPES])]


def _holders(case: Case, calls: int) -> list[str]:
    """Who holds what piles up, most bytes first: `+1 shop.Order per call in shop.CACHE`."""
    from leakscope.analyse import evidence, growth

    lines: dict[str, list[str]] = {}
    least = LEAST_NAMED_BYTES * calls * (SNAPSHOTS - 1)
    for pile in growth.accumulations(case.last, case.growth, least):
        path = evidence.pile_path(case.last, case.tree(case.last), pile)
        each = _per_call(pile.counts, calls)
        if path is None or path.root_kind == "garbage" or each is None or path.owner in lines:
            continue
        size = bytes_text((pile.sizes_bytes[-1] - pile.sizes_bytes[-2]) / calls)
        grows = f"a {pile.leaked_type} that gets larger, {size} per call" if pile.is_buffer else (
            f"+{_number(each)} {pile.leaked_type} per call, {size}")
        lines[path.owner] = [f"held by {path.owner}: {grows}", f"    {path.text}"]
    return [line for pair in list(lines.values())[:MOST_HOLDERS] for line in pair]


def _cycles(case: Case, calls: int) -> list[str]:
    """The unreachable cycles that came with the calls, by what they consist of."""
    from leakscope.analyse import naming

    lines = []
    for cycle in [each for each in case.garbage_cycles if len(each.nodes) >= calls][:MOST_CYCLES]:
        steps = naming.name_cycle(case.last, cycle.edges)
        chain = " -> ".join(f"{step.type}{step.edge}" for step in steps) or case.last.type_name(int(cycle.nodes[0]))
        lines.append(f"unreachable cycle, {count_text(cycle.count)} of them wait to be collected: {chain}")
    return lines


class _CallableModule(ModuleType):
    """`from leakscope import no_leak` gives the module, as it does for every module of a package; this one can be called."""

    def __call__(self, *args: Any, **kwargs: Any) -> Rounds | None:
        __tracebackhide__ = True
        result: Rounds | None = no_leak(*args, **kwargs)
        return result


sys.modules[__name__].__class__ = _CallableModule
