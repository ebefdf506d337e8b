"""Who uses a device: what NVML says of it, put beside what the process itself says of its allocator.

NVML names processes as the machine's first PID namespace does, so that in a container the own pid may be missing from its
lists (NVIDIA/nvidia-docker#1483); which of the listed processes is the observed one is then found by what it uses. In this
order: the own pid; its numbers in the namespaces around it; the only process on the device; the one whose use is never below
what the own allocator holds and moves with it; at last the device as a whole, less what certainly is another's. How good that
is, is a word: "exact" for the first three, "matched", "approximate", "unknown".
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from leakscope.analyse.layers import Points

Sample = dict[str, Any]

EXACT, MATCHED, APPROXIMATE, UNKNOWN = "exact", "matched", "approximate", "unknown"

NEAR_S = 1.0  # a row of NVML belongs to a sample this near: both are taken about once a second
SKEW_BYTES = 40 << 20  # two meters read one after the other differ by up to 20 MiB and one segment of 20 MiB (cosmos-rl#388)
FITS_SHARE = 0.9  # of the moments at which a process has to use what the allocator holds: memory moves between two meters; ours
LEAST_MOVE_BYTES = 64 << 20  # what an allocator holds has to move by this much, to be recognised by it; the least growth judged
MOST_SPREAD = 0.25  # of that move: how far use and allocator may drift apart; a process that stands still has 1; ours
CLEARLY = 2.0  # times as much drift the next best has to have; ours
SAME_SIZE = 0.1  # two devices whose memory differs by less are of one kind: CUDA takes some for itself; ours


class Other(NamedTuple):
    """Another process on a device: its executable, and what it used when first and last seen, in bytes; None: not told."""

    pid: int
    name: str | None
    first_bytes: int | None
    last_bytes: int | None


@dataclass(frozen=True)
class DeviceUse:
    """What is used of one device, (seconds, bytes) each, at the moments of samples of the process.

    `used`: of the whole device; `process`: by the observed process, as well known as `quality` says, for the reason `how`;
    `others`: by all others, the driver's own part left out, empty where that cannot be told apart; `index`: NVML's number.
    """

    name: str
    quality: str
    how: str
    index: int | None = None
    used: Points = field(default_factory=list)
    process: Points = field(default_factory=list)
    others: Points = field(default_factory=list)
    other_processes: tuple[Other, ...] = ()


class _Moment(NamedTuple):
    """A sample of the process and the row of NVML nearest to it. `reserved`: what the allocator holds, None: not measured."""

    t_ns: int
    reserved: int | None
    device: Mapping[str, Any]

    @property
    def used(self) -> dict[int, int | None]:
        """What each listed process uses."""
        return {pid: size for pid, size in self.device.get("processes") or ()}


class _Whose(NamedTuple):
    quality: str
    how: str
    pid: int | None


def merged(timeline: Sequence[Sample], rows: Sequence[Sample], infos: Sequence[Mapping[str, Any]], pid: int,
           nspid: Sequence[int] = (), visible: str | None = None) -> tuple[list[Sample], dict[str, str]]:
    """Return the timeline with the columns cudaN_used_bytes and cudaN_process_bytes, and how good they are by device name.

    Args:
        timeline: samples of one process, oldest first.
        rows: `Session.device_use()`, oldest first.
        infos: "devices" of the last devices.json; empty where there is none.
        pid: of the process, as it sees itself.
        nspid: its numbers in the namespaces around it.
        visible: CUDA_VISIBLE_DEVICES of the process, where known.

    A sample gets the numbers of the row nearest to it in time, if it is the nearest to that row, too: nothing is interpolated.
    """
    found = uses(timeline, rows, infos, pid, nspid, visible)
    return with_columns(timeline, found.values()), {name: use.quality for name, use in found.items()}


def with_columns(timeline: Sequence[Sample], found: Iterable[DeviceUse]) -> list[Sample]:
    """Return the timeline with the columns of what was found; the samples given are left as they are."""
    added: dict[float, Sample] = {}
    for use in found:
        prefix = use.name.replace(":", "")
        for column, points in ((f"{prefix}_used_bytes", use.used), (f"{prefix}_process_bytes", use.process)):
            for t_s, value in points:
                added.setdefault(t_s, {})[column] = int(value)
    return [{**sample, **added[t_s]} if (t_s := sample["t_ns"] / 1e9) in added else sample for sample in timeline]


def uses(timeline: Sequence[Sample], rows: Sequence[Sample], infos: Sequence[Mapping[str, Any]], pid: int,
         nspid: Sequence[int] = (), visible: str | None = None) -> dict[str, DeviceUse]:
    """Return what is used of each CUDA device of the process, by its name; arguments as those of `merged`."""
    names = sorted(_names(timeline, infos), key=lambda name: int(name[5:]))
    series = _series(rows)
    executables = {int(number): str(name) for row in rows for number, name in (row.get("names") or {}).items()}
    found = {}
    for name in names:
        info: Mapping[str, Any] = next((each for each in infos if each.get("name") == name), {})
        place = _place(int(name[5:]), info, series, visible)
        if place is None:
            found[name] = DeviceUse(name, UNKNOWN, "NVML says nothing of this device" if series else "NVML was not read")
        else:
            found[name] = _use(name, _moments(timeline, name, series[place]), [pid, *nspid], executables)
    return found


def of_process(gpu: Mapping[str, Any] | None, pid: int) -> tuple[tuple[int, ...], str | None]:
    """Return the `nspid` and `visible` of a process from the "gpu" of session.json, for `merged` and `uses`."""
    about = ((gpu or {}).get("processes") or {}).get(str(pid)) or {}
    visible = about.get("visible")
    return tuple(about.get("nspid") or ()), visible if isinstance(visible, str) else None


# --- which device -----------------------------------------------------------------------------------------------------

_Place = tuple[int, str]
_Series = dict[_Place, list[tuple[int, Mapping[str, Any]]]]


def _names(timeline: Sequence[Sample], infos: Sequence[Mapping[str, Any]]) -> set[str]:
    columns = {column for sample in timeline for column in sample if column.startswith("cuda")}
    named = {f"cuda:{match[1]}" for column in columns if (match := re.match(r"cuda(\d+)_", column))}
    return named | {name for each in infos if re.fullmatch(r"cuda:\d+", name := str(each.get("name")))}


def _series(rows: Sequence[Sample]) -> _Series:
    """The rows of each device that NVML knows, by its number and uuid: the parts of one device share the number."""
    found: _Series = {}
    for row in rows:
        for device in row["devices"]:
            if isinstance(device, dict) and isinstance(device.get("used_bytes"), int):
                place = (int(device.get("index", 0)), _plain(device.get("uuid")))
                found.setdefault(place, []).append((row["t_ns"], device))
    return found


def _place(ordinal: int, info: Mapping[str, Any], series: _Series, visible: str | None) -> _Place | None:
    """Which of NVML's devices is the CUDA device of this ordinal: by its uuid, its address on the bus, or where it stands.

    CUDA numbers devices the fastest first, NVML by their address on the bus: a number alone says which only among equals.
    """
    first = {place: seen[0][1] for place, seen in series.items()}
    uuid, bus = _plain(info.get("uuid")), _address(info.get("bus_id"))
    by_uuid = [place for place in first if uuid and place[1] == uuid]
    by_bus = [place for place, device in first.items() if bus and _address(device.get("bus_id")) == bus]
    for found in (by_uuid, by_bus):
        if len(found) == 1:
            return found[0]
    if len(first) == 1 and ordinal == 0:
        return next(iter(first))
    if uuid and any(place[1] for place in first) or bus and any(device.get("bus_id") for device in first.values()):
        return None  # it is named, and it is none of these
    words = [word.strip() for word in visible.split(",")] if visible else None
    if words is not None and ordinal >= len(words):
        return None
    word = words[ordinal] if words is not None else str(ordinal)
    if not word.isdigit():
        by_word = [place for place in first if _plain(word) and place[1].startswith(_plain(word))]
        return by_word[0] if len(by_word) == 1 else None
    whole = [place for place, device in first.items() if place[0] == int(word) and not device.get("is_part")]
    return whole[0] if len(whole) == 1 and _are_equal(first.values(), info) else None


def _are_equal(devices: Iterable[Mapping[str, Any]], info: Mapping[str, Any]) -> bool:
    sizes = [size for each in (*devices, info) if isinstance(size := each.get("total_bytes"), int)]
    return not sizes or max(sizes) - min(sizes) <= SAME_SIZE * max(sizes)


def _plain(uuid: object) -> str:
    """A uuid as NVML, CUDA and people write it, without what differs: GPU-8B5C... is 8b5c..."""
    text = uuid.decode("ascii", "replace") if isinstance(uuid, bytes) else uuid if isinstance(uuid, str) else ""
    return re.sub(r"^((gpu|mig)-)+|-", "", text.lower())


def _address(bus_id: object) -> tuple[int, ...] | None:
    """(domain, bus, device) of 00000000:65:00.0 or 0000:65:00; None for what is none."""
    parts = re.split(r"[:.]", bus_id) if isinstance(bus_id, str) else []
    try:
        numbers = [int(part, 16) for part in parts]
    except ValueError:
        return None
    return tuple(numbers[:3]) if len(numbers) in (3, 4) else None


# --- which process ----------------------------------------------------------------------------------------------------


def _moments(timeline: Sequence[Sample], name: str, seen: Sequence[tuple[int, Mapping[str, Any]]]) -> list[_Moment]:
    """The pairs of a sample and a row of NVML that are the nearest to each other."""
    column = f"{name.replace(':', '')}_reserved_bytes"
    samples = [sample for sample in timeline if sample.get(column) is not None] or list(timeline)
    if not samples or not seen:
        return []
    mine, theirs = [int(sample["t_ns"]) for sample in samples], [t_ns for t_ns, _ in seen]
    found = []
    for row, t_ns in enumerate(theirs):
        near = _nearest(mine, t_ns)
        if abs(mine[near] - t_ns) <= NEAR_S * 1e9 and _nearest(theirs, mine[near]) == row:
            found.append(_Moment(mine[near], samples[near].get(column), seen[row][1]))
    return found


def _nearest(times: Sequence[int], t_ns: int) -> int:
    after = bisect_left(times, t_ns)
    if after == 0 or after == len(times):
        return min(after, len(times) - 1)
    return after if times[after] - t_ns < t_ns - times[after - 1] else after - 1


def _use(name: str, moments: Sequence[_Moment], own: Sequence[int], executables: Mapping[int, str]) -> DeviceUse:
    if not moments:
        return DeviceUse(name, UNKNOWN, "NVML was not read while the process was sampled")
    whose = _whose(moments, own)
    used = [(each.t_ns / 1e9, float(each.device["used_bytes"])) for each in moments]
    process, others = [], []
    alien = {pid for pid in _listed(moments) if pid != whose.pid and (whose.pid is not None or not _fits(_of(moments, pid)))}
    for each, (t_s, all_bytes) in zip(moments, used):
        own_bytes = None if whose.quality == UNKNOWN else _own_bytes(each, whose, alien)
        if own_bytes is not None:
            process.append((t_s, float(own_bytes)))
            others.append((t_s, max(0.0, all_bytes - each.device.get("system_bytes", 0) - own_bytes)))
    if whose.quality == APPROXIMATE:
        others = []
        if not _fits([(each.reserved, int(value)) for each, (_, value) in zip(moments, process)]):
            process, whose = [], _Whose(UNKNOWN, "less is used of the device than the process itself holds of one", None)
    if moments[0].device.get("is_shared") and whose.quality in (EXACT, MATCHED):
        whose = whose._replace(quality=APPROXIMATE, how=f"{whose.how}, on a device whose memory the machine uses, too")
    index = moments[0].device.get("index")
    return DeviceUse(name, whose.quality, whose.how, index, used, process, others, _others(moments, alien, executables))


def _whose(moments: Sequence[_Moment], own: Sequence[int]) -> _Whose:
    """Which of the listed processes is the observed one; see the top of the module."""
    for number, pid in enumerate(own):
        if _fits(_of(moments, pid)):
            return _Whose(EXACT, "by its pid" if number == 0 else "by its pid outside its container", pid)
    if all(each.reserved == 0 for each in moments):
        return _Whose(UNKNOWN, "the process holds nothing on the device", None)
    holding = [each for each in moments if each.reserved != 0]
    listed = _listed(holding)
    lasting = [pid for pid in listed if len(_of(holding, pid)) >= FITS_SHARE * len(holding) and _fits(_of(holding, pid))]
    if len(listed) == 1 and lasting:
        return _Whose(EXACT, "it is the only process on the device", lasting[0])
    drifts = sorted((drift, pid) for pid in lasting if (drift := _drift(_of(moments, pid))) is not None)
    if drifts and drifts[0][0] <= MOST_SPREAD and (len(drifts) == 1 or drifts[1][0] >= CLEARLY * max(drifts[0][0], 0.05)):
        return _Whose(MATCHED, "by what it uses, which moves with what its allocator holds", drifts[0][1])
    return _Whose(APPROXIMATE, "NVML does not say which process it is, so that the whole device stands for it", None)


def _listed(moments: Iterable[_Moment]) -> set[int]:
    return {pid for each in moments for pid in each.used}


def _of(moments: Iterable[_Moment], pid: int) -> list[tuple[int | None, int]]:
    """(what the allocator holds, what this process uses) where both are told of."""
    return [(each.reserved, size) for each in moments if (size := each.used.get(pid)) is not None]


def _fits(pairs: Sequence[tuple[int | None, int]]) -> bool:
    """True if a process may be the one whose allocator holds that much: it uses as much at nearly all moments."""
    return bool(pairs) and sum(size + SKEW_BYTES >= (held or 0) for held, size in pairs) >= FITS_SHARE * len(pairs)


def _drift(pairs: Sequence[tuple[int | None, int]]) -> float | None:
    """How far use and allocator drift apart, in parts of the way the allocator moved; None where it did not move."""
    known = [(held, size) for held, size in pairs if held is not None]
    moved = max((held for held, _ in known), default=0) - min((held for held, _ in known), default=0)
    if moved < LEAST_MOVE_BYTES:
        return None
    apart = sorted(size - held for held, size in known)
    tenth = len(apart) // 10
    return (apart[len(apart) - 1 - tenth] - apart[tenth]) / moved


def _own_bytes(moment: _Moment, whose: _Whose, alien: set[int]) -> int | None:
    """What the process uses: as listed, or the device less the driver's own part and what is certainly another's."""
    if whose.pid is not None:
        return moment.used.get(whose.pid)
    theirs = sum(size or 0 for pid, size in moment.used.items() if pid in alien)
    return max(0, int(moment.device["used_bytes"]) - int(moment.device.get("system_bytes", 0)) - theirs)


def _others(moments: Sequence[_Moment], pids: set[int], executables: Mapping[int, str]) -> tuple[Other, ...]:
    """The other processes, the one that grew most first."""
    found = []
    for pid in pids:
        sizes = [each.used[pid] for each in moments if pid in each.used]
        found.append(Other(pid, executables.get(pid), sizes[0], sizes[-1]))
    return tuple(sorted(found, key=lambda each: ((each.first_bytes or 0) - (each.last_bytes or 0), each.pid)))
