"""Numbers as people read them. Everything inside LeakScope is in bytes, nanoseconds and seconds; these are the borders."""

from __future__ import annotations

import re

_SUFFIXES = ("B", "KiB", "MiB", "GiB", "TiB")
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\s*", re.IGNORECASE)
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|)\s*", re.IGNORECASE)
_SECONDS = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def bytes_text(count: float, signed: bool = False) -> str:
    """Return a size such as `46.3 KiB`; with `signed` a plus sign before what grew."""
    size, step = abs(float(count)), 0
    while size >= 1023.95 and step < len(_SUFFIXES) - 1:
        size, step = size / 1024, step + 1
    sign = "-" if count < 0 else "+" if signed and count > 0 else ""
    return f"{sign}{size:.0f} B" if step == 0 else f"{sign}{size:.1f} {_SUFFIXES[step]}"


def count_text(count: float) -> str:
    """Return a count with thin groups: `41 200`."""
    return f"{count:,.0f}".replace(",", " ")


def seconds_text(seconds: float) -> str:
    """Return a duration such as `4.2 s`, `3 min 10 s`, `3 h 10 min` or `2 d 4 h`."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds >= 1 or seconds == 0 else f"{seconds * 1000:.1f} ms"
    for size, name, part_size, part_name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= size:
            whole = int(seconds // size)
            return f"{whole} {name} {int(seconds % size // part_size)} {part_name}"
    raise AssertionError(seconds)


def parse_size(text: str) -> int:
    """Return the bytes in `200M`, `1.5 GiB`, `64kB` or `123`; raises ValueError."""
    match = _SIZE.fullmatch(text)
    if not match:
        raise ValueError(f"{text!r} is not a size such as 500M or 2GiB")
    return int(float(match[1]) * 1024 ** " kmgt".index(match[2].lower() or " "))


def parse_duration(text: str) -> float:
    """Return the seconds in `250ms`, `10s`, `5m`, `2h`, `1d` or `3`; raises ValueError."""
    match = _DURATION.fullmatch(text)
    if not match:
        raise ValueError(f"{text!r} is not a duration such as 30s, 5m or 2h")
    return float(match[1]) * _SECONDS[match[2].lower()]
