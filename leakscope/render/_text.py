"""Words and numbers as all faces of a report write them."""

from __future__ import annotations

import dataclasses
import re
import unicodedata
from typing import Any, TypeVar

from leakscope.model import DEVICE_TERMS, Finding, Layer, Rate, Verdict, VerdictClass
from leakscope.units import bytes_text, count_text, seconds_text

NOT_MEASURED = "not measured"

# class -> (the word on top, its tone, what it means)
_VERDICTS = {
    VerdictClass.PYTHON_LEAK: ("Leak", "leak", "reachable Python objects pile up under an owner"),
    VerdictClass.DELAYED_GARBAGE: ("Delayed garbage", "leak", "unreachable cycles pile up before they are collected"),
    VerdictClass.NATIVE_LEAK: ("Native leak", "leak", "memory outside Python objects grows"),
    VerdictClass.GPU_LEAK: ("GPU leak", "leak", "device memory grows"),
    VerdictClass.FRAGMENTATION: ("Fragmentation", "leak", "an allocator keeps memory that is free; no object is retained"),
    VerdictClass.BOUNDED_GROWTH: ("Bounded growth", "ok", "a cache fills towards its bound"),
    VerdictClass.WARM_UP: ("Warm-up", "ok", "growth that has ended"),
    VerdictClass.NO_LEAK: ("No leak", "ok", "memory stayed flat"),
    VerdictClass.INSUFFICIENT_EVIDENCE: ("Not enough evidence", "neutral", "too little was measured to say"),
}

_LAYERS = {
    "total": "total",
    "python": "Python objects",
    "native": "native",
    "allocator-retained": "kept by the allocator",
    "mapped": "mapped memory",
    "copy-on-write": "copied after a fork",
    "unexplained": "unexplained",
}

_SERIES = {
    "rss_bytes": "RSS",
    "pss_bytes": "PSS",
    "uss_bytes": "USS",
    "anon_bytes": "Anonymous",
    "file_bytes": "File pages",
    "shmem_bytes": "Shared memory",
    "swap_bytes": "Swap",
    "cgroup_bytes": "Control group",
    "cgroup_limit_bytes": "Limit",
    "cgroup_inactive_file_bytes": "Inactive file",
    "py_blocks": "Python blocks",
    "malloc_used_bytes": "malloc in use",
    "malloc_free_bytes": "malloc free",
    "malloc_mmapped_bytes": "malloc mmapped",
    "malloc_arena_bytes": "malloc arenas",
    "fds": "File descriptors",
    "gc_uncollectable": "Uncollectable",
}

_DEVICE_SERIES = {"process_bytes": "in use", "used_bytes": "in use by all", "reserved_bytes": "reserved",
                  "allocated_bytes": "allocated", "allocated_peak_bytes": "peak", "largest_free_bytes": "largest free block"}
_DEVICE_COLUMN = re.compile(r"(cuda|xpu|mps)(\d+)_(\w+)")

_QUOTED = re.compile(r"([(\"'“]*)(.*?)([)\"'”.,;:!?]*)", re.DOTALL)
# What a person would search for: dotted names, names with an underscore or a call, attributes, Python files.
_NAME = re.compile(r"[A-Za-z_]\w*(\.[\w<>]+|\[[^\s\]]*\])+(\([^\s)]*\))?|\w*_\w*(\(\))?|[A-Za-z_][\w.]*\(\)"
                   r"|\.\w+|[\w./-]+\.py(:\d+)?")
_TICKED = re.compile(r"`([\w.\[\]]+)`")
_IN_NUMBER = re.compile(r"(?<=\d) (?=\d{3}\b|[KMGT]?i?B\b|%|(?:ms|s|min|h|d)\b)")

Record = TypeVar("Record")


def verdict_word(verdict: Verdict) -> str:
    """Return the one or two words on top of a report, such as `Leak`."""
    return _VERDICTS[verdict.kind][0]


def verdict_tone(verdict: Verdict) -> str:
    """Return leak, ok or neutral: what the colour says."""
    return _VERDICTS[verdict.kind][1]


def verdict_meaning(verdict: Verdict) -> str:
    """Return what the class of this verdict means, without a full stop."""
    return _VERDICTS[verdict.kind][2]


def layer_word(name: str) -> str:
    """Return the name of a layer, or of a term of a device, for a person; a device keeps its own."""
    return _LAYERS.get(name) or DEVICE_TERMS.get(name, name)


def series_word(name: str) -> str:
    """Return a short name of a timeline column, such as `RSS` or `cuda:0 allocated`."""
    if device := _DEVICE_COLUMN.fullmatch(name):
        kind, number, column = device.groups()
        return f"{kind}:{number} {_DEVICE_SERIES.get(column) or column.removesuffix('_bytes').replace('_', ' ')}"
    if name in _DEVICE_SERIES:
        return _DEVICE_SERIES[name].capitalize()
    return _SERIES.get(name) or name.removesuffix("_bytes").replace("_", " ").capitalize()


def device_of(column: str) -> str:
    """Return the device of a timeline column, such as `cuda0`; "" for a column of the host."""
    device = _DEVICE_COLUMN.fullmatch(column)
    return device[1] + device[2] if device else ""


def is_device(layer: str) -> bool:
    """Return whether a layer is a device, such as `cuda:0` or `mps:0`."""
    return ":" in layer


def term_word(name: str) -> str:
    """Return a term of a device's account for a person."""
    return DEVICE_TERMS.get(name) or name.replace("_", " ")


def number_text(count: int, noun: str) -> str:
    """Return `1 snapshot`, `6 snapshots`, `41 200 samples`."""
    return f"{count_text(count)} {noun}{'' if count == 1 else 's'}"


def growth_text(size_bytes: float | None) -> str:
    """Return `+1.9 GiB`, or that it was not measured."""
    return NOT_MEASURED if size_bytes is None else bytes_text(size_bytes, signed=True)


def ratio_text(ratio: float | None) -> str:
    """Return `83 %`, or that it was not measured."""
    if ratio is None:
        return NOT_MEASURED
    if -0.005 < ratio < 0.005:
        return "< 1 %" if ratio > 0 else "0 %"
    return f"{ratio * 100:.0f} %"


def rate_text(rate: Rate) -> str:
    """Return a rate in the unit of time that makes it readable: `+62.0 MiB/s (95 % interval: 58.1 MiB to 66.0 MiB)`."""
    largest = max(abs(number) for number in (rate.bytes_per_s, rate.low, rate.high) if number is not None)
    seconds, unit = next(((s, u) for s, u in ((1, "s"), (60, "min")) if largest * s >= 4 * 1024), (3600, "h"))
    text = f"{bytes_text(rate.bytes_per_s * seconds, signed=True)}/{unit}"
    if rate.low is None or rate.high is None:
        return text
    return f"{text} (95 % interval: {bytes_text(rate.low * seconds)} to {bytes_text(rate.high * seconds)})"


def clock_text(verdict: Verdict) -> str:
    """Return how long until memory is exhausted, "" where that cannot be said."""
    limit = "" if verdict.memory_limit_bytes is None else f" of {bytes_text(verdict.memory_limit_bytes)}"
    if verdict.hours_until_oom is None:
        return ""
    left_s = verdict.hours_until_oom * 3600  # known to 36 s
    return f"{seconds_text(left_s) if left_s >= 60 else 'less than a minute'} until the limit{limit}"


def frees_text(finding: Finding) -> str:
    """Return what is freed when the owner lets go, "" when that was not computed."""
    if finding.frees_bytes is None:
        return ""
    held = sum(finding.retained_bytes.values())
    whole = f" of the {bytes_text(held)} it retains" if held > finding.frees_bytes else ""
    return f"{bytes_text(finding.frees_bytes)}{whole}, if {finding.owner or 'the owner'} lets go"


def layer_share(layer: Layer, layers: tuple[Layer, ...]) -> float | None:
    """Return the layer's part of the total growth; None where either is unknown or nothing grew."""
    total = next((each.growth_bytes for each in layers if each.name == "total"), None)
    if not total or total < 0 or layer.growth_bytes is None:
        return None
    return layer.growth_bytes / total


def prose(text: str) -> list[tuple[bool, str]]:
    """Split a sentence into (is it a name of the program?, text) pieces; joined they give the sentence again."""
    pieces: list[tuple[bool, str]] = []
    for token in re.split(r"(\s+)", text):
        match = _QUOTED.fullmatch(token)
        assert match is not None  # the pattern matches every string
        before, middle, after = match.groups()
        if middle.count("(") > middle.count(")") and after.startswith(")"):  # "open()," is the name open() and a comma
            middle, after = middle + ")", after[1:]
        pieces += [(False, before), (bool(_NAME.fullmatch(middle)), middle), (False, after)]
    return [piece for piece in pieces if piece[1]]


def unticked(text: str) -> str:
    """Return the text without the backticks around names, such as `seq_len`: each face marks names in its own way."""
    return _TICKED.sub(r"\1", text)


def typeset(text: str) -> str:
    """Return the text with real arrows, and with no-break spaces inside a number and before its unit."""
    return _IN_NUMBER.sub("\u00a0", text.replace(" -> ", " \u2192 "))


def on_one_line(text: str) -> str:
    """Return the text with each stretch of white space as one space."""
    return " ".join(text.split())


def clip(text: str, length: int) -> str:
    """Return the text, its middle left out when it is longer than `length`."""
    if len(text) <= length:
        return text
    kept = max(length - 3, 2)
    return f"{text[:kept - kept // 2]}...{text[len(text) - kept // 2:]}"


def printable(text: str) -> str:
    """Return the text with control, bidirectional and surrogate characters spelled out: names come from the target."""
    if text.isprintable():
        return text
    return "".join(_spelled(character) for character in text)


def _spelled(character: str) -> str:
    if character in "\n\t" or unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Zl", "Zp"):
        return character
    return character.encode("unicode_escape").decode("ascii")


def cleaned(record: Record) -> Record:
    """Return a copy of a report (or a part of it) in which every string is printable."""
    return _cleaned(record)  # type: ignore[no-any-return]


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = (field.name for field in dataclasses.fields(value))
        return dataclasses.replace(value, **{name: _cleaned(getattr(value, name)) for name in fields})
    if isinstance(value, (tuple, list)):
        return type(value)(_cleaned(each) for each in value)
    if isinstance(value, dict):
        return {_cleaned(key): _cleaned(each) for key, each in value.items()}
    return value
