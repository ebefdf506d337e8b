"""A case: everything that a detector may look at in one process. Analyses are computed once, when somebody asks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from leakscope.analyse import cohorts as births
from leakscope.analyse import coverage, cuts, evidence, footprint, kin, native_sites, settle, work
from leakscope.analyse import growth as growing
from leakscope.analyse import layers as account
from leakscope.analyse import retention as keeping
from leakscope.analyse.branches import branches
from leakscope.analyse.components import Cycle, cycles
from leakscope.analyse.device_use import DeviceUse
from leakscope.analyse.devices import Device, devices_of
from leakscope.analyse.loadfit import LoadFit, load_fit
from leakscope.analyse.moved import moved
from leakscope.analyse.native_sites import NativeGrowth
from leakscope.analyse.paths import Tree
from leakscope.analyse.reachability import garbage, tracked_count
from leakscope.analyse.reading import Reading
from leakscope.analyse.sites import Origins, Place
from leakscope.analyse.trend import Slope, slowing_ratio, theil_sen
from leakscope.errors import SessionError
from leakscope.heap.blocks import Blocks
from leakscope.heap.graph import Array, HeapGraph
from leakscope.heap.load import Stored
from leakscope.model import Layer, Path

Sample = dict[str, Any]

LEAST_PILE_BYTES = 96 * 1024  # what piles up less than this over a run is not shown; ours
LEAST_SEEN_BYTES = 8 * 1024  # a pile of objects may keep more than Python can see of it: small ones are looked at; ours
STALL_PART, STALL_SHARE = 0.35, 0.08  # a steady growth has 0.35 of itself in that part of the run; ours
STEADY_SHARE = 0.15  # of the growth falls at least into each part of the run that is compared; ours
END_S = 0.25  # a snapshot that ended this close to the end of the run may show the program taking itself apart; ours
STALL_OBJECTS, STALL_BYTES = 4000, 4 << 20  # what is seen over the noise of requests under way; ours
ALL_IMPORTED = 0.99  # of the modules are there: imports are over; ours
IMPORTED_PART = 0.5  # of the time between two snapshots is after the last imports; ours
MOVED_SHARE = 0.5  # of what a buffer grew by that has no path of its own, the process has grown by; ours
SETTLED = "settle"  # kind of a snapshot that was taken after the load had paused
OUT_OF_MEMORY = "oom"  # of one that was taken when a device had no room left, in the middle of a unit of work
LEAST_SNAPSHOTS = 3  # two points make a line through anything


class _Damaged(Exception):
    """A snapshot that cannot be read."""

    def __init__(self, snapshot: HeapGraph | Stored, sentence: str) -> None:
        super().__init__(sentence)
        self.snapshot, self.sentence = snapshot, sentence


@dataclass(frozen=True, eq=False)
class _Read:
    """What is kept of some snapshots, and the last one with the tree of its best names."""

    snapshots: list[HeapGraph | Stored]
    readings: list[Reading]
    graph: HeapGraph | None
    tree: Tree | None

    @classmethod
    def of(cls, snapshots: list[HeapGraph | Stored]) -> _Read:
        """Read one after the other, so that two large graphs are never in memory together."""
        readings: list[Reading] = []
        graph, tree = None, None
        for number, snapshot in enumerate(snapshots, 1):
            graph = tree = None
            try:
                graph = snapshot.load()
            except SessionError as error:
                raise _Damaged(snapshot, error.sentence) from error
            tree = keeping.growth_tree(graph)
            readings.append(Reading.of(graph, tree, number == len(snapshots)))
        return cls(snapshots, readings, graph, tree)


@dataclass(eq=False)
class Case:
    """One process: `graphs` are its snapshots in time order, `timeline` its samples, `info` its process.json.

    `memory_limit_bytes` is the cgroup's or the machine's; None if not known. Snapshots on disk are read one after the other
    when the first question about objects is asked, and only the last one stays in memory.
    """

    graphs: Sequence[HeapGraph | Stored]
    timeline: Sequence[Sample]
    info: dict[str, Any] = field(default_factory=dict)
    memory_limit_bytes: int | None = None
    damage: list[str] = field(default_factory=list)  # of snapshots that were left out, in whole sentences
    family: Sequence[kin.Relative] = ()  # the other processes of the session
    use_quality: Mapping[str, str] = field(default_factory=dict)  # how well the use of each device is known
    device_uses: Mapping[str, DeviceUse] = field(default_factory=dict)  # what is used of each device, and by whom

    @cached_property
    def program_timeline(self) -> list[Sample]:
        """The timeline of the program alone: without the steps that our own walks left."""
        return footprint.without_own_steps(footprint.without_tracing(self.timeline), self._pauses)

    @cached_property
    def _pauses(self) -> list[account.Window]:
        return [account.Window(graph.t_s, graph.t_s + graph.info.get("pause_ns", 0) / 1e9) for graph in self.graphs
                if graph.info.get("method", "in-place") == "in-place" and graph.info.get("pause_ns")]

    @cached_property
    def memory(self) -> footprint.ProgramMemory:
        """Private memory of the program over time."""
        known = [(blocks, total.python_bytes - total.malloc_bytes) for graph, total in zip(self.compared, self._totals)
                 if (blocks := graph.info.get("sample", {}).get("py_blocks"))]
        return footprint.program_memory(self.program_timeline, self.disturbance_bytes, footprint.block_bytes(known))

    @property
    def disturbance_bytes(self) -> int:
        """What our own walks may have left with the allocators."""
        return footprint.WALK_BYTES * max((graph.node_count for graph in self.graphs), default=0) if self._pauses else 0

    @cached_property
    def _totals(self) -> list[account.HeapTotals]:
        return [reading.totals for reading in self.readings]

    # --- time --------------------------------------------------------------------------------------------------------

    @cached_property
    def window(self) -> account.Window:
        """The part of the run after start-up, up to the pause with which the load ended: nothing grows in there."""
        return account.judged_window(settle.up_to_the_end_of_load(self.timeline, [graph.info for graph in self.graphs]))

    @cached_property
    def clock(self) -> settle.LoadClock:
        """The clock that stands still in the pauses that were asked for."""
        return settle.LoadClock(settle.pauses(self.timeline, [graph.info for graph in self.graphs]))

    @cached_property
    def load(self) -> work.LoadShare | None:
        """What of the growth of memory the load explains; None where there is no load that came and went."""
        return work.explained_by_load(self.memory.points, self.timeline, self.window)

    @property
    def follows_load(self) -> bool:
        """True if the load explains most of the growth, and nothing certain is left at equal load."""
        return self.load is not None and self.load.is_explained

    def load_fit(self, device: str | None = None) -> LoadFit | None:
        """How peak memory follows the load that the program tells, of the host or a device; None where it tells none."""
        if device not in self._load_fits:
            on = self.device(device) if device else None
            self._load_fits[device] = (
                load_fit(self.timeline, self.window, None, self.memory_limit_bytes, self.memory.points) if on is None
                else load_fit(self.timeline, on.window, on.name, on.limit_bytes))
        return self._load_fits[device]

    @cached_property
    def _load_fits(self) -> dict[str | None, LoadFit | None]:
        return {}

    def follows_load_on(self, device: str) -> bool:
        """True if the load explains most of the growth of a device, and nothing certain is left per unit of work."""
        fit = self.load_fit(device)
        return fit is not None and fit.is_explained

    @cached_property
    def coverage_ratio(self) -> float | None:
        """The part of the growth that the layers explain; None where nothing grew."""
        return coverage.coverage(self.layers)

    @property
    def unit_of_work(self) -> str:
        """What a unit of work is called: request, step, ..."""
        return work.unit_of(self.info.get("work_sources") or ())

    def per_work(self, points: Sequence[tuple[float, float]]) -> Slope | None:
        """The slope of (seconds, number) points over the units of work; None where no work was counted."""
        found = work.rate_per_work(points, self.timeline, self.window)
        return found.slope if found else None

    @cached_property
    def trend(self) -> account.MemoryTrend | None:
        """How private memory moved in the window; its halves are those of the time of load, its rates those of all time."""
        found = account.memory_trend(self.clock.points(self.memory.points), self.clock.window(self.window))
        return found and found.slowed(self.clock.load_ratio(self.window), self.window)

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """Where the growth in the window went."""
        memory = self.memory
        host = account.account(self.program_timeline, memory.points, self._totals, self.window, not memory.is_estimated)
        return (*host, *(device.layer for device in self.devices))

    @cached_property
    def devices(self) -> tuple[Device, ...]:
        """The devices that the process uses (analyse/devices.py); empty on a host-only process."""
        seen = [None if reading.blocks is None else (graph.t_s, *reading.blocks)
                for graph, reading in zip(self.compared, self.readings)]
        return devices_of(self.timeline, self.window, seen, self.use_quality)

    def layer(self, name: str) -> int | None:
        """The growth of one layer in bytes; None if it was not measured."""
        return coverage.growth_of(self.layers, name)

    @cached_property
    def out_of_memory(self) -> list[Blocks]:
        """The blocks of all devices when one of them had no room left, in time order."""
        return [Blocks.of(said) for graph in self.graphs
                if graph.info.get("kind") == OUT_OF_MEMORY and (said := graph.devices)]

    # --- snapshots ---------------------------------------------------------------------------------------------------

    def _chosen(self) -> list[HeapGraph | Stored]:
        """The snapshots that can be compared: taken while the program ran, after its start-up if enough are left.

        In a settle snapshot the load rests: it says what stays, not what grows. At the exit no function runs any more and
        registries have been emptied, so that snapshot counts only where there is no pair of others; nor does one count during
        which the program came to its end, or that shows a unit of work half done, if enough others are left.
        """
        loaded = [graph for graph in self.graphs if graph.info.get("kind") != SETTLED]
        calm = [graph for graph in loaded if graph.info.get("kind") != OUT_OF_MEMORY]
        loaded = calm if len(calm) >= LEAST_SNAPSHOTS else loaded
        running = [graph for graph in loaded if graph.info.get("kind") != "exit"]
        if len(running) < 2:
            running = loaded
        end_s = self.timeline[-1]["t_ns"] / 1e9 if self.timeline else 0.0
        whole = [graph for graph in running if graph.t_s + graph.info.get("pause_ns", 0) / 1e9 < end_s - END_S]
        running = whole if len(whole) >= LEAST_SNAPSHOTS else running
        # one of each pause: nothing grows in it
        moments = {round(self.clock.at(graph.t_s), 3): graph for graph in reversed(running)}
        running = [*reversed(moments.values())] if len(moments) >= LEAST_SNAPSHOTS else running
        settled = [graph for graph in running if graph.t_s >= account.import_end_s(self.timeline)]
        is_enough = len(settled) >= LEAST_SNAPSHOTS or len(settled) == 2 and len(running) == LEAST_SNAPSHOTS and (
            self._two_are_enough(settled, account.private_memory(self.program_timeline)))
        return settled if is_enough else running

    @cached_property
    def _read(self) -> _Read:
        """Read the snapshots that can be compared; one that is damaged is left out, and said to be."""
        _ = self._rested  # before the others: two large graphs are never in memory together
        while True:
            try:
                return _Read.of(self._chosen())
            except _Damaged as damaged:
                self.damage.append(damaged.sentence)
                self.graphs = [graph for graph in self.graphs if graph is not damaged.snapshot]

    @cached_property
    def _rested(self) -> list[tuple[HeapGraph | Stored, growing.PathTable]]:
        """The snapshots that were taken after the load had paused, with their paths."""
        found = []
        for graph in self.graphs:
            if graph.info.get("kind") == SETTLED:
                try:
                    rested = graph.load()
                except SessionError as error:
                    self.damage.append(error.sentence)
                    continue
                found.append((graph, growing.path_table(rested, keeping.growth_tree(rested)).without_nodes()))
        return found

    @cached_property
    def settled(self) -> settle.Settled | None:
        """The pauses of the load that a snapshot shows; None if there was none."""
        return settle.settle_of([graph.info for graph in self._seen], self.timeline)

    @property
    def _seen(self) -> list[HeapGraph | Stored]:
        """The compared snapshots and those of pauses, in time order."""
        return sorted([*self.compared, *(graph for graph, _ in self._rested)], key=lambda graph: graph.t_s)

    def survives_pause(self, pile: growing.Accumulation) -> float | None:
        """The part of the growth of a pile that outlived the pauses of the load; None where none says so."""
        if self.settled is None or not self._rested and pile.is_buffer:
            return None
        known = dict(zip((graph.t_s for graph in self.compared), pile.counts))
        if self._rested:
            if not pile.member_classes:
                return None
            main = max(pile.member_classes, key=lambda row: int(self.growth.count[-1, row]))
            rested = growing.align([table for _, table in self._rested] + [self.growth.table]).count[:-1, main]
            known |= zip((graph.t_s for graph, _ in self._rested), rested.tolist())
        return settle.surviving_share([known[graph.t_s] for graph in self._seen], self.settled)

    @property
    def compared(self) -> list[HeapGraph | Stored]:
        """The snapshots that are compared, in time order."""
        return self._read.snapshots

    @property
    def readings(self) -> list[Reading]:
        """What is kept of each compared snapshot."""
        return self._read.readings

    @property
    def last(self) -> HeapGraph:
        """The newest snapshot that can be compared; raises IndexError if there is none."""
        if self._read.graph is None:
            raise IndexError("no snapshot can be compared")
        return self._read.graph

    @cached_property
    def can_compare(self) -> bool:
        """True if growth can be told: from three snapshots, or from two where the process grew steadily to the end."""
        if len(self.compared) != 2:
            return len(self.compared) >= LEAST_SNAPSHOTS
        meters = [self.memory.points, *(device.wholes["allocated"].points for device in self.devices)]
        return any(self._two_are_enough(self.compared, points) for points in meters)

    def _two_are_enough(self, pair: Sequence[HeapGraph | Stored], points: account.Points) -> bool:
        """True if the process grew steadily from the first of two snapshots to its end, for the most part after its imports.

        What the last imports brought is no growth: it is left out, and has to be over long before the second snapshot.
        """
        modules = account.column(self.timeline, "modules")
        imported_s = next((at_s for at_s, count in modules if count >= ALL_IMPORTED * modules[-1][1]), pair[0].t_s)
        since = account.Window(max(pair[0].t_s, imported_s), self.window.end_s)
        trend = account.memory_trend(points, self.window)
        is_rising = trend is not None and trend.goes_on and trend.tail_slope is not None and trend.tail_slope.is_positive
        if not is_rising or pair[1].t_s - since.start_s < IMPORTED_PART * (pair[1].t_s - pair[0].t_s):
            return False
        parts = footprint.growth_around(points, since.start_s, pair[1].t_s)
        if parts is not None and sum(parts) >= STALL_BYTES and min(parts) >= STEADY_SHARE * sum(parts):
            return True
        late = footprint.late_share(points, since, STALL_PART, self._pauses)
        return late is not None and late[0] >= STALL_BYTES and STEADY_SHARE <= late[1] <= 1 - STEADY_SHARE

    @property
    def times_s(self) -> list[float]:
        """When the compared snapshots were taken, in seconds since the session started."""
        return [graph.t_s for graph in self.compared]

    def tree(self, graph: HeapGraph) -> Tree:
        """The breadth-first tree of best names of the last snapshot."""
        if graph is not self.last or self._read.tree is None:
            raise ValueError("only the last snapshot keeps its tree")
        return self._read.tree

    @cached_property
    def growth(self) -> growing.Growth:
        """The path classes of the last snapshot over all compared ones."""
        return growing.align([reading.table for reading in self.readings])

    @cached_property
    def accumulations(self) -> list[growing.Accumulation]:
        """Where objects pile up, most bytes first; empty where growth cannot be told."""
        if not self.can_compare:
            return []
        found = growing.accumulations(self.last, self.growth, LEAST_SEEN_BYTES)
        known = {pile.owner_node for pile in found} | {pile.owner_class for pile in found}
        for node, counts in growing.same_containers([reading.containers for reading in self.readings]):
            if node in known or int(self.growth.table.class_of[node]) in known:
                continue
            held = keeping.entries(self.last, node)
            pile = growing.of_container(self.last, self.growth.table, node, counts, sum(self.retention.of(held).values()))
            if pile is not None and pile.growth_bytes >= LEAST_PILE_BYTES:
                found.append(pile)
        grown = self.trend.growth_bytes if self.trend else 0
        grown += sum(max(0, device.growth_bytes or 0) for device in self.devices)
        found += [pile for pile in moved(self.growth, [reading.large for reading in self.readings], found)
                  if grown >= MOVED_SHARE * pile.growth_bytes]
        found += branches(self.last, self.growth, found)
        return sorted(found, key=lambda pile: -pile.growth_bytes)

    @cached_property
    def retention(self) -> keeping.Retention:
        """Dominators and retained bytes of the last snapshot."""
        return keeping.Retention(self.last)

    def cohorts(self, pile: growing.Accumulation) -> births.Cohorts | None:
        """When what piles up was born, and what is left of what earlier snapshots saw; None where nothing says so."""
        return births.cohorts(self.last, self.growth, pile, [reading.identities for reading in self.readings[:-1]],
                               self.times_s, self._clock)

    @cached_property
    def _clock(self) -> births.Clock:
        return births.clock_of(account.column(self.timeline, "work_count"), self._pauses)

    def cut(self, pile: growing.Accumulation) -> cuts.Cut:
        """What is freed if the owner of a pile lets go of it, and who else holds it."""
        newest = births.newest(self.last, self.growth, pile, self.readings[-2].identities) if len(self.readings) > 1 else None
        return cuts.cut(self.last, self.tree(self.last), self.growth.table, pile, self.retention, newest)

    @property
    def garbage_bytes(self) -> list[int]:
        """What unreachable cycles keep of the host's memory in each compared snapshot."""
        return self.garbage_on("host")

    def garbage_on(self, device: str) -> list[int]:
        """What unreachable cycles keep on a device in each compared snapshot."""
        return [reading.garbage_bytes.get(device, 0) for reading in self.readings]

    @property
    def garbage(self) -> Array:
        """(N,) bool: what nothing outside holds in the last snapshot (analyse/reachability.py)."""
        return garbage(self.last)

    @property
    def garbage_count(self) -> int:
        """How many objects of the last snapshot that the collector tracks are garbage."""
        return tracked_count(self.last, self.garbage)

    @property
    def young_count(self) -> int:
        """How many tracked objects at most were made since the last full collection, by the counters of the last snapshot.

        Each generation counts the collections of the one below it, and the youngest what was allocated less what was freed
        (CPython gcmodule.c): what is garbage may be so young that no full collection has seen it yet.
        """
        counts, thresholds = self.collector.get("counts") or [], self.collector.get("thresholds") or []
        young, unit = 0, 1
        for count, threshold in zip(counts, thresholds):
            young, unit = young + count * unit, unit * max(1, threshold)
        return young

    @cached_property
    def garbage_cycles(self) -> list[Cycle]:
        """The unreachable cycles of the last snapshot, by shape, most members first."""
        return cycles(self.last, self.garbage)

    @cached_property
    def origins(self) -> Origins:
        """Where the objects of the last snapshot were made."""
        return Origins(self.last, int(self.compared[0].info.get("t_ns", 0)), self.readings[0].places)

    @cached_property
    def native_growth(self) -> list[NativeGrowth] | None:
        """The native functions that keep more than in the first compared snapshot; None where nothing was sampled."""
        found = [sites for each in self.compared if isinstance(each, Stored) and (sites := each.native_sites) is not None]
        return native_sites.grown(found[0], found[-1]) if len(found) > 1 else None

    @cached_property
    def loose_growth(self) -> Counter[Place]:
        """The bytes more, by place, that the sampled blocks of no known object stand for; only what grew."""
        grown = Counter(self.readings[-1].loose) if self.readings else Counter()
        grown.subtract(self.readings[0].loose if self.readings else Counter())
        return +grown

    @cached_property
    def type_growth(self) -> list[tuple[str, tuple[int, ...], tuple[int, ...]]]:
        """(type, objects in each compared snapshot, shallow bytes in each), by growth of bytes."""
        totals = [reading.types for reading in self.readings]
        names = set().union(*totals) if totals else set()
        rows = [(name, tuple(each.get(name, (0, 0))[0] for each in totals), tuple(each.get(name, (0, 0))[1] for each in totals))
                for name in names]
        return sorted(rows, key=lambda row: (row[2][0] - row[2][-1], row[0]))

    def path(self, node: int) -> Path | None:
        """The best-named path to a node of the last snapshot that owns others; None where no root reaches it."""
        return keeping.path(self.last, self.tree(self.last), node, is_owner=True)

    def steady(self, values: Sequence[int]) -> float | None:
        """How the growth of a number over the compared snapshots went on: 1 steady, near 0 a plateau; None unknown."""
        return slowing_ratio(list(zip(map(self.clock.at, self.times_s), map(float, values))))

    def device(self, name: str) -> Device | None:
        """The device of that name; None for the host, and where it was not seen."""
        return next((device for device in self.devices if device.name == name), None)

    def share_of_growth(self, on: str, growth_bytes: int) -> float | None:
        """The part of the growth between the snapshots, of the process or `on` a device, that so many bytes are; at most 1."""
        if (device := self.device(on)) is None:
            return evidence.share_of_growth(self.trend and self.trend.slope, self.times_s, growth_bytes)
        return evidence.share_of_growth(device.slope, self.times_s, growth_bytes)

    def has_stalled(self, node_growth: int, on: str = "host") -> bool:
        """True if what grew by so many objects between the snapshots grows no more: the last third of the run shows it.

        Many small objects show in the blocks of pymalloc, few large ones in what malloc has handed out, those `on` a device
        in what its allocator has.
        """
        if (device := self.device(on)) is not None:
            return device.wholes["allocated"].has_ended
        if self.trend and self.trend.goes_on:
            return False
        name = "py_blocks" if node_growth >= STALL_OBJECTS else "malloc_used_bytes"
        since = account.Window(self.compared[0].t_s, self.window.end_s)
        stops = [*self._pauses, *self.clock.rests]
        late = footprint.late_share(account.column(self.timeline, name), since, STALL_PART, stops)
        least = node_growth / 4 if name == "py_blocks" else STALL_BYTES
        return late is not None and late[0] >= least and late[1] < STALL_SHARE

    def per_second(self, values: Sequence[int]) -> Slope | None:
        """The slope of a number over the compared snapshots."""
        return theil_sen(list(zip(self.times_s, map(float, values))))

    # --- the collector -----------------------------------------------------------------------------------------------

    @property
    def collector(self) -> dict[str, Any]:
        """What the last snapshot says of the garbage collector (done.json, "gc")."""
        gc: dict[str, Any] = self.compared[-1].info.get("gc", {})
        return gc

    @property
    def full_collections(self) -> int | None:
        """How many collections of the oldest generation ran between the first and the last compared snapshot."""
        first, last = (graph.info.get("sample", {}).get("gc_collections2") for graph in (self.compared[0], self.compared[-1]))
        return None if first is None or last is None else int(last - first)
