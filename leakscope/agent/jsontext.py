"""JSON with the C scanner and encoder alone.

`import json` would load `re`, `enum` and `functools` before the target's first line: a program with a file of its own
by such a name would then get another module than without us.
"""

from _json import encode_basestring_ascii, make_encoder, make_scanner


class _Reading:
    """What the C scanner asks of a decoder."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float
    memo: "dict[str, str]" = {}


_scan = make_scanner(_Reading)  # type: ignore[arg-type]


def _refuse(value):
    raise TypeError(f"a {type(value).__name__} has no place in a session file")


def read(text):
    """Return the value that a JSON text stands for; raises StopIteration or ValueError when it is none."""
    return _scan(text.strip(), 0)[0]


def write(value):
    """Return a value of dicts, lists, strings, numbers, booleans and None as one line of ASCII; raises TypeError."""
    return "".join(make_encoder(None, _refuse, encode_basestring_ascii, None, ":", ",", False, False, True)(value, 0))
