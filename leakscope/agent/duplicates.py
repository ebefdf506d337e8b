"""Texts that are in memory more than once; the same in _probe/duplicates.c. Which nodes are equal is written, nothing else."""

LEAST_LENGTH, MOST_LENGTH = 32, 1 << 20  # letters or bytes: of shorter ones there are too many, and each costs little
MOST_READ_BYTES, MOST_ROWS = 2 << 20, 1 << 18  # of text that one walk looks at: 3 ms in C; written


def groups(objects):
    """Return lists of rows of `objects`: exact str or bytes with the same content, in order of their first."""
    texts, bodies = {}, {}  # apart: where warnings are errors, no str may be compared with bytes
    again, read_bytes = {}, 0
    for row, thing in enumerate(objects):
        cls = type(thing)  # asked by identity: a metaclass of the program may hash and compare as it likes
        known = texts if cls is str else bodies if cls is bytes else None
        if known is None or not LEAST_LENGTH <= len(thing) <= MOST_LENGTH or read_bytes >= MOST_READ_BYTES:
            continue
        read_bytes += len(thing) * (1 if cls is bytes or thing.isascii() else _width(thing))
        before = known.setdefault(thing, row)
        if before != row:
            again.setdefault(before, [before]).append(row)
    found, written = [], 0
    for before in sorted(again):
        if written >= MOST_ROWS:
            break
        found.append(again[before])
        written += len(again[before])
    return found


def _width(text):
    """Return how many bytes each letter of a str takes."""
    largest = ord(max(text))
    return 1 if largest < 1 << 8 else 2 if largest < 1 << 16 else 4
