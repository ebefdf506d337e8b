"""What the detectors of device memory share: a term of the waterfall that grows becomes one finding, one that has ended none.

A class belongs to one term of the account (knowledge page on device memory, 5.1 and 5.2); where that term did not grow, the
class cannot be blamed. Confidence is high where objects or blocks show the cause directly and the term fits, medium where
something else that was counted goes along with the term, low where there is nothing but the term.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from leakscope import plugins
from leakscope.analyse import layers, memory
from leakscope.analyse.devices import Device, Seen
from leakscope.analyse.layers import Points
from leakscope.analyse.trend import grew_in_every_interval, level
from leakscope.analyse.waterfall import TermGrowth
from leakscope.case import Case
from leakscope.detectors import _advice, _layers
from leakscope.detectors._advice import Surroundings
from leakscope.model import DEVICE_TERMS, Confidence, Dismissed, Finding, Location, Rule
from leakscope.units import bytes_text, seconds_text

FAMILY, UNATTRIBUTED = "LS4", "LS400"  # rules about devices, and the one of what no other explains
MOST_FINDINGS = 3  # of one device; knowledge page, 5.2
LEAST_SHARE = 0.5  # of a term: a class that explains less of it is not its cause; knowledge page, 5.2
LEAST_BYTES = 64 << 20  # knowledge page, 5.1
INTERVALS = 4  # into which the judged time of a series is cut: as many as of five snapshots; ours
PLATEAU = "it levels off"  # how the reason of a dismissal begins (verdict.py)
HIGH_WATER = "allocator high water"
OWNED, UNOWNED, OUTSIDE = ("allocated_owned",), ("allocated_unowned",), ("outside",)
TERMS_OF = {"LS401": OWNED, "LS402": OWNED, "LS403": OWNED, "LS404": OUTSIDE, "LS405": OWNED,
            "LS406": ("allocated_owned", "allocated_unowned", "releasable"), "LS407": ("releasable",), "LS408": ("workspaces",),
            "LS409": ("allocated_owned", "allocated_unowned"), "LS410": UNOWNED, "LS411": OWNED, "LS412": OWNED,
            "LS413": ("inactive_split",), "LS414": ("releasable",), "LS415": ("pending",),
            "LS416": ("allocated_owned", "allocated_unowned"), "LS417": OUTSIDE, "LS418": OUTSIDE, "LS419": OUTSIDE,
            "LS421": UNOWNED, "LS422": OWNED}
_GRAPHS = ("CUDAGraph", "_CUDAGraph", "MemPool", "_MemPool")  # torch.cuda: what a private pool of an allocator belongs to


@dataclass(frozen=True)
class Cause:
    """What a detector found out about one term of a device: `bytes` of its growth that this class explains.

    `is_direct`: objects or blocks show it. `correlates`: something else that was counted goes along with it.
    """

    term: str
    bytes: int
    owner: str
    type: str
    reasons: Sequence[str]
    doubts: Sequence[str] = ()
    is_direct: bool = False
    correlates: bool = False
    count: int | None = None
    sites: tuple[Location, ...] = ()


def grown(case: Case, term: str) -> Iterator[tuple[Device, TermGrowth]]:
    """Yield the devices whose term goes on growing, with that growth."""
    for device in case.devices:
        if (growth := device.terms[term].growth) is not None:
            yield device, growth


def ended(case: Case, term: str) -> Iterator[tuple[Device, int]]:
    """Yield the devices whose term grew and levelled off, with the bytes."""
    for device in case.devices:
        if device.terms[term].has_ended:
            yield device, device.terms[term].growth_bytes or 0


def finding(case: Case, device: Device, rule: Rule, cause: Cause, remedy: str) -> Finding:
    """Return the finding of a growing term; its last reasons are which part of it is explained, and which process it is."""
    term = device.terms[cause.term]
    explained = min(cause.bytes, term.growth.bytes) if term.growth else cause.bytes
    part = memory.ratio(explained, term.growth_bytes)
    whole = _whole(device, cause.term)
    share = None if whole is None else memory.ratio(explained, whole.bytes)
    of_term = () if part is None else (f"that is {part:.0%} of the growth of the term \"{DEVICE_TERMS[cause.term]}\", "
                                       f"{bytes_text(term.growth_bytes or 0, signed=True)} on {device.name}",)
    by_load = tuple(_by_load(case, device))
    doubts = (*by_load, *cause.doubts, *_flat(device, cause.term), *_not_measured(device, cause.term))
    confidence = Confidence.LOW if by_load else _confidence(device, cause, term.growth)
    slope, per_work = (term.growth.slope, term.growth.per_work) if term.growth else (None, None)
    return Finding(rule, confidence, device.name, cause.owner, None, cause.type,
                   pid=int(case.info.get("pid", 0)), object_count=cause.count, growth_bytes={device.name: explained},
                   share_of_growth_ratio=share, site=next(iter(cause.sites), None), sites=cause.sites,
                   rate=slope and slope.rate, bytes_per_work=per_work and per_work.rate,
                   evidence=tuple(_evidence(case, device, cause.term)),
                   reasons=(*cause.reasons, *of_term, *_layers.which_process(case)), doubts=doubts, remedy=remedy)


def _evidence(case: Case, device: Device, name: str) -> Iterator[tuple[str, str]]:
    """The bits of model.EVIDENCE_BITS that the course of a term shows: it grew in every interval, its rate is above zero."""
    term = device.terms[name]
    if term.growth is None:
        return
    window = device.window
    edges = [window.start_s + part * window.length_s / INTERVALS for part in range(INTERVALS + 1)]
    levels = [level(term.points, start, end) for start, end in zip(edges, edges[1:])]
    known = [value for value in levels if value is not None]
    if len(known) == INTERVALS and grew_in_every_interval(known):
        yield "G", f"it grew in every interval (bytes): {' -> '.join(map(bytes_text, known))}"
    slope, each = term.growth.slope, term.growth.per_work
    if slope.is_positive and slope.low is not None and slope.high is not None:
        text = f"it rises by {bytes_text(slope.value)} a second (95 %: {bytes_text(slope.low)} to {bytes_text(slope.high)})"
        yield "R", text if each is None or not each.is_positive else f"{text}, {bytes_text(each.value)} per {case.unit_of_work}"


def _confidence(device: Device, cause: Cause, growth: TermGrowth | None) -> Confidence:
    """By the rule at the top; one step lower where the whole was not seen exactly, or the growth may be chance."""
    steps = [Confidence.LOW, Confidence.MEDIUM, Confidence.HIGH]
    step = 2 if cause.is_direct else 1 if cause.correlates else 0
    is_vague = cause.term == "outside" and device.use_quality not in ("exact", "matched")
    may_be_chance = growth is None or not growth.is_steady
    if is_vague or may_be_chance and not cause.is_direct:  # what comes in steps is steady by their number, not by its slope
        step -= 1
    return Confidence.LOW if any(_flat(device, cause.term)) else steps[max(0, step)]


def _whole(device: Device, term: str) -> TermGrowth | None:
    """The growth of what a term is a part of: all that is used, also where it is known from the whole device only."""
    return device.wholes["used"].growth if term == "outside" else device.growth


def _flat(device: Device, term: str) -> Iterator[str]:
    """That the device as a whole did not grow with a term: then it took the place of something else."""
    if device.terms[term].growth is not None and _whole(device, term) is None:
        yield f"what is used of {device.name} did not grow as a whole in the judged part of the run"


def _by_load(case: Case, device: Device) -> Iterator[str]:
    """That a larger load explains the growth of the device."""
    if case.follows_load_on(device.name):
        yield (f"the load that the program tells explains the growth of {device.name}: nothing certain is left per "
               f"{case.unit_of_work} at equal batch and length")


def _not_measured(device: Device, term: str) -> Iterator[str]:
    """What nobody measured, and which may hold a better explanation."""
    missing = device.unmeasured
    if missing:
        yield f"not measured: {'; '.join(missing)}"
    if term == "outside" and device.use_quality == "approximate":
        yield "what this process uses of the device is only known from the use of the whole device"


def levelled(device: Device, term: str, what: str, why: str) -> Dismissed:
    """Return the dismissal of a term that has stopped growing, or that only stands high; `why` continues the sentence."""
    found = device.terms[term]
    since = _since(found.points)
    at = f", no more since {seconds_text(since)} into the run" if since is not None and found.has_ended else ""
    return Dismissed(f"{what} on {device.name}", f"{PLATEAU}: {why}{at}", "", max(0, found.growth_bytes or 0),
                     device.name)


def _since(points: Points) -> float | None:
    """When 90 % of the final level was first there."""
    if not points:
        return None
    low, last = min(value for _, value in points), points[-1][1]
    return next((t_s for t_s, value in points if value >= last - 0.1 * (last - low)), None)


# --- snapshots -----------------------------------------------------------------------------------------------------------


def seen(device: Device) -> list[Seen]:
    """The snapshots that have a map of the device's blocks, oldest first."""
    return [each for each in device.snapshots if each is not None and each.blocks.has_map]


def last_seen(device: Device) -> Seen | None:
    """The last of them."""
    return next(iter(reversed(seen(device))), None)


def places(frames: Sequence[tuple[str, int, str]], share: float | None = None) -> tuple[Location, ...]:
    """The allocation frames of a block, innermost first, as places."""
    return tuple(Location(function, file, line, share) for file, line, function in frames)


def surroundings(case: Case, device: Device) -> Surroundings:
    """What a remedy depends on."""
    packages = {name: str(version) for name, version in case.info.get("packages", {}).items()}
    about, last = device.about, last_seen(device)
    settings = dict(about.get("settings") or {})
    if last is not None and bool(last.blocks.segments.is_expandable.any()):
        settings["expandable_segments"] = True
    versions = {**packages, **({"torch": str(about["torch"])} if about.get("torch") else {})}
    loaded = frozenset([*packages, *map(str, about.get("libraries") or ())])
    return Surroundings(str(about.get("provider", "")), str(about.get("backend", "")), versions,
                        str(about.get("recording", "off")), settings, loaded, has_graphs(case, device))


def has_graphs(case: Case, device: Device) -> bool | None:
    """Whether CUDA graphs are captured, or blocks lie in private pools; None where no snapshot shows it."""
    last = last_seen(device)
    if last is None or not case.compared:
        return None
    blocks = last.blocks
    return graph_count(case) > 0 or bool((blocks.is_used & (blocks.pool > 0)).any())


def graph_count(case: Case) -> int:
    """How many graphs and pools of torch.cuda the last snapshot shows as objects."""
    return sum(counts[-1] for name, counts, _ in case.type_growth
               if name.startswith("torch.") and name.rpartition(".")[2] in _GRAPHS)


def remedy(case: Case, device: Device, *topics: str) -> str:
    """What to do on these topics of the table (_advice.py) in this process."""
    return _advice.remedy(surroundings(case, device), *topics)


def clause(case: Case, device: Device, topic: str) -> str:
    """The first of it, as the end of the reason of a dismissal."""
    return _advice.clause(surroundings(case, device), topic)


# --- the other classes ---------------------------------------------------------------------------------------------------


_told: WeakKeyDictionary[Case, dict[str, list[Finding | Dismissed]]] = WeakKeyDictionary()


def told(case: Case, codes: Collection[str]) -> list[Finding]:
    """The findings of other detectors of devices, by the codes of their rules."""
    return [each for _, each in _all_told(case, codes) if isinstance(each, Finding)]


def _all_told(case: Case, codes: Collection[str]) -> list[tuple[str, Finding | Dismissed]]:
    """What detectors of devices say, each with the code of its rule; each detector is asked once a case."""
    known = _told.setdefault(case, {})
    detectors = plugins.load("leakscope.detectors", ("RULE", "detect")).values() if case.devices else ()
    for detector in detectors:
        code = detector.RULE.code
        if code in codes and code not in known:
            known[code] = []  # one that asks back while it is asked gets no answer, instead of asking for ever
            known[code] = list(detector.detect(case))
    return [(code, each) for code in codes for each in known.get(code, ())]


def explained_bytes(findings: Iterable[Finding], device: Device, term: str) -> int:
    """How much of the growth of a term they explain; two that explain the same do not count twice beyond the whole."""
    whole = device.terms[term].growth_bytes or 0
    parts = sum(each.growth_bytes.get(device.name, 0) for each in findings if term in TERMS_OF.get(each.rule.code, ()))
    return min(max(0, whole), parts)


def dismissed_bytes(case: Case, device: Device, term: str) -> int:
    """How much of the growth of a term was looked at and is no leak: a cache that fills towards its bound, work in flight."""
    codes = [code for code, terms in TERMS_OF.items() if term in terms]
    return sum(each.growth_bytes or 0 for _, each in _all_told(case, codes)
               if isinstance(each, Dismissed) and each.device in ("", device.name))


def strongest(case: Case, findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings without those of a device that come after its first three: causes first, by share of term."""
    dropped = set()
    for device in case.devices:
        mine = [number for number, each in enumerate(findings)
                if each.layer == device.name and each.rule.code.startswith(FAMILY)]
        mine.sort(key=lambda number: (findings[number].rule.code == UNATTRIBUTED, -_share(findings[number], device)))
        dropped.update(mine[MOST_FINDINGS:])
    return [each for number, each in enumerate(findings) if number not in dropped]


def _share(found: Finding, device: Device) -> float:
    whole = sum(device.terms[term].growth_bytes or 0 for term in TERMS_OF.get(found.rule.code, ()))
    return memory.ratio(found.growth_bytes.get(device.name, 0), whole) or 0.0


# --- series --------------------------------------------------------------------------------------------------------------


def change(points: Points, device: Device) -> float | None:
    """The change of a series in the judged part of the run of a device; None where it was not measured."""
    return layers.change(points, device.window)


def sustained(points: Points, device: Device) -> int | None:
    """The growth of a series that is no term, if it is large enough and goes on; None else."""
    grown = change(points, device)
    if grown is None or grown < LEAST_BYTES or memory.going_on(points, device.window, grown) is None:
        return None
    return int(grown)


def column(case: Case, name: str) -> Points:
    """The points of a column of the process."""
    return layers.column(case.timeline, name)


def flushed(device: Device, since_s: float) -> bool:
    """True if segments were given back to the driver after that moment."""
    late = [value for t_s, value in device.points("device_frees") if t_s >= since_s]
    return len(late) > 1 and late[-1] > late[0]
