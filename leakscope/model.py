"""The nouns of a report. Plain data: nothing here computes, reads or prints. Sizes in bytes, times in seconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class Confidence(Enum):
    """How sure a finding or verdict is."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class VerdictClass(Enum):
    """The nine classes of REPORT_JSON.md; the first five claim a leak."""

    PYTHON_LEAK = "python-leak"
    DELAYED_GARBAGE = "delayed-garbage"
    NATIVE_LEAK = "native-leak"
    GPU_LEAK = "gpu-leak"
    FRAGMENTATION = "fragmentation"
    BOUNDED_GROWTH = "bounded-growth"
    WARM_UP = "warm-up"
    NO_LEAK = "no-leak"
    INSUFFICIENT_EVIDENCE = "insufficient-evidence"

    @property
    def is_claim(self) -> bool:
        """True if this class says that there is a leak."""
        return self in (VerdictClass.PYTHON_LEAK, VerdictClass.DELAYED_GARBAGE, VerdictClass.NATIVE_LEAK,
                        VerdictClass.GPU_LEAK, VerdictClass.FRAGMENTATION)


EVIDENCE_BITS = {  # in the order in which they are shown
    "G": "grew in every interval",
    "R": "its rate is above zero, with its confidence interval",
    "S": "survives the settle step",
    "E": "survivors of every birth epoch",
    "D": "dead things pile up",
    "C": "cutting it frees most of it",
    "K": "a known leak",
    "A": "the program's own memory, not that of the observation",
}


DEVICE_TERMS = {  # the terms of a device's account (analyse/waterfall.py) and what they are parts of, in words
    "outside": "outside PyTorch's allocator",
    "allocated_owned": "tensors that Python holds",
    "workspaces": "workspaces of cuBLAS",
    "allocated_unowned": "allocated, without a Python owner",
    "pending": "freed, waits for a stream",
    "inactive_split": "free pieces of segments in use",
    "releasable": "free segments",
    "used": "used by this process",
    "reserved": "reserved by PyTorch",
    "active": "active",
    "allocated": "allocated",
}


@dataclass(frozen=True)
class Rule:
    """What a detector looks for: `code` such as LS101 (never re-used), `name` such as unbounded-container, one-line `title`."""

    code: str
    name: str
    title: str


@dataclass(frozen=True)
class Location:
    """A place in source code; `file` is relative to the project or to site-packages."""

    function: str
    file: str
    line: int
    share_ratio: float | None = None  # of the finding's bytes


@dataclass(frozen=True)
class Step:
    """One node of a path and the edge that leaves it (`edge` is "" for the last)."""

    name: str
    type: str
    edge: str
    status: str = "unknown"  # is this object one that should be gone? "no" (it lives for ever), "unknown", "yes"
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class Path:
    """Root first. `root_kind` is one of agent.format.ROOT_KINDS; `text` such as serve.store._by_id[*]."""

    steps: tuple[Step, ...]
    root_kind: str
    text: str
    owner: str  # module.attr, module.Class.attr or module.function.<locals>.var of the nearest named holder


@dataclass(frozen=True)
class CycleStep:
    """One object of a reference cycle and the edge to the next one."""

    type: str
    edge: str


@dataclass(frozen=True)
class Rate:
    """Growth in bytes a second with its 95 % interval; `low` and `high` are None where it cannot be given.

    Where a field is called per work, the numbers are bytes a unit of work (a request, a step) instead.
    """

    bytes_per_s: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Finding:
    """One suspected leak: evidence for (`reasons`) and against (`doubts`). Missing numbers are None, never 0."""

    rule: Rule
    confidence: Confidence
    layer: str  # python | native | allocator-retained | mapped | cuda:N
    owner: str
    path: Path | None
    leaked_type: str
    pid: int = 0
    object_count: int | None = None
    objects_per_s: float | None = None
    retained_bytes: dict[str, int] = field(default_factory=dict)  # by device: "host", "cuda:0"
    growth_bytes: dict[str, int] = field(default_factory=dict)
    share_of_growth_ratio: float | None = None
    frees_bytes: int | None = None
    cycle: tuple[CycleStep, ...] = ()
    site: Location | None = None
    sites: tuple[Location, ...] = ()
    also_held_by: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    remedy: str = ""
    known: str | None = None
    fingerprint: str = ""
    counts: tuple[int, ...] = ()  # objects in each snapshot, oldest first
    evidence: tuple[tuple[str, str], ...] = ()  # (bit of EVIDENCE_BITS that holds, what it says with its number)
    cohorts: tuple[int, ...] = ()  # survivors per birth epoch, oldest first; () where births are not known
    rate: Rate | None = None
    bytes_per_work: Rate | None = None
    leak_share_bytes: int | None = None  # of its growth: what others hold as well is shared between them
    unit_bytes: int | None = None  # marginal bytes of one entry more
    preimage: str = ""  # what the fingerprint is the hash of
    similar: str = ""  # hash of the types alone: the same bug after a rename


@dataclass(frozen=True)
class Dismissed:
    """Growth that was looked at and is no leak."""

    what: str
    why: str
    owner: str = ""
    growth_bytes: int | None = None
    device: str = ""  # "cuda:0" where it is memory of a device, which explains no growth of the host; "" on the host


@dataclass(frozen=True)
class Waste:
    """`count` containers that hold nothing, in objects of one package, and their bytes: no leak, but room to be smaller."""

    package: str
    what: str  # empty dict | empty list | empty set
    count: int
    size_bytes: int


@dataclass(frozen=True)
class CacheRow:
    """One cache of the process over the compared snapshots, oldest first; a number that was not seen is None.

    `varying` says which part of the key differs from entry to entry: "argument 3 (`seq_len`), integers 17 to 4096, looks like
    token counts"; "" where nothing is known of the keys. `varies_by` is "value", "identity" (a key that no later call can
    meet again) or "".
    """

    name: str  # flashinfer.jit.get_module() of a functools cache; the path of a table such as app.CACHE
    kind: str  # functools | table
    entries: tuple[int | None, ...]
    hits: tuple[int | None, ...] = ()
    misses: tuple[int | None, ...] = ()
    evictions: tuple[int | None, ...] = ()  # misses - entries; of functools caches alone
    bound: int | None = None  # maxsize
    varying: str = ""
    varies_by: str = ""
    retained_bytes: dict[str, int] = field(default_factory=dict)  # in the last snapshot, by device: "host", "cuda:0"
    library: str = ""  # flashinfer, triton, torch ...: whose cache it is; "" the program's own
    node: int = -1  # of the cache in the last snapshot; -1: not found


@dataclass(frozen=True)
class Gap:
    """A claim that cannot be made, what is missing for it, and the command that closes the gap."""

    claim: str
    missing: str
    command: str


@dataclass(frozen=True)
class Layer:
    """One part of the growth account; `terms` splits a device."""

    name: str  # total | python | native | allocator-retained | mapped | unexplained | cuda:N
    growth_bytes: int | None
    measure: str | None = None  # of total: pss | uss | rss
    terms: dict[str, int | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Verdict:
    """The one answer. `sentence` is whole and holds only names that a person can search for."""

    kind: VerdictClass
    confidence: Confidence
    sentence: str
    growth_bytes: int | None = None
    rate: Rate | None = None
    hours_until_oom: float | None = None
    memory_limit_bytes: int | None = None
    evidence: tuple[tuple[str, str], ...] = ()  # (bit such as "G", what it says with its number)
    bytes_per_work: Rate | None = None
    smallest_leak_bytes_per_s: float | None = None  # of "no-leak": slower growth would not have been seen
    smallest_leak_bytes_per_work: float | None = None
