"""When the objects of a pile were born: survivors per epoch of birth, and what is left of those that were there before.

A leak keeps what every epoch gave birth to; a cache that has filled, or a start-up, has its survivors at the front; work in
flight has none but the youngest. JFR's object ages and Plumbr's generation counts tell a leak by the same sign.

Three meters, the best one that there is:

- epochs of birth that the snapshot gives itself (column `birth`);
- the times of allocation samples of the pile that still live, which are exact and unbiased, but of a part only;
- identity: the same address with the same type in an earlier snapshot. An address may have been used again, so this counts
  too many survivors, never too few: it proves that objects have gone, and only suggests that they stayed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from leakscope.analyse.growth import Accumulation, Growth, below_classes, hash64
from leakscope.analyse.layers import time_without
from leakscope.analyse.trend import value_at
from leakscope.heap.graph import Array, HeapGraph

MOST_IDENTITIES = 1 << 20  # of one snapshot that are kept, 8 B each; ours
LEAST_SAMPLES = 24  # that date a pile: six for each of four epochs; ours
SAMPLES_AN_EPOCH = 12  # for more than four epochs: then chance leaves none with less than FLAT_SHARE; ours
LEAST_EPOCHS, MOST_EPOCHS = 4, 8  # knowledge page "verdicts and reports", section 2.1: flat across at least four
FLAT_SHARE = 0.1  # of the mean pace: an epoch with less has no survivors to speak of; MemLab's cut-off 0.1
EARLY_PART, EARLY_SHARE = 1 / 3, 0.8  # so much from the first third is front-loaded; ours
GONE_SHARE = 0.2  # less is left of what was there: work in flight; between MemLab's 0.1 and 0.5, ours
LEAST_WORK = 20  # units of work in a run, for epochs of equal work instead of equal time; ours
LEAST_DATED = 0.5  # of the objects have an epoch: then the column `birth` counts; ours
LEAST_THEN = 5  # entries that a snapshot has to have for it to say what is left of them; ours
MOST_CLASSES = 12  # of paths of one pile whose members are looked for in earlier snapshots; ours
_ADDRESS_BITS = 48

Clock = Callable[[float], float]  # seconds since the session started -> how far the program had come then


@dataclass(frozen=True, eq=False)
class Identities:
    """Addresses and types of a snapshot, one number each, ascending; of one in `one_in`, the same ones in every snapshot."""

    values: Array
    one_in: int


@dataclass(frozen=True)
class Cohorts:
    """Survivors of one pile by epoch of birth, oldest first; the first epoch is all that was before the first snapshot.

    `lengths`: of the epochs but the first, in units of the clock. `basis`: births, samples or identity; `dated_ratio`: the
    part of the objects that it dates (1.0 for estimates from samples); `samples` they rest on.
    `survival`: of what each compared snapshot but the last counted, the part that is still there; None: not known. At most:
    addresses are used again.
    """

    counts: tuple[int, ...]
    lengths: tuple[float, ...]
    basis: str
    dated_ratio: float
    samples: int
    survival: tuple[float | None, ...]

    @property
    def is_flat(self) -> bool:
        """True if each of four epochs or more has survivors, and none of the later ones far fewer than its length asks for."""
        recent = self.counts[1:]
        epochs = len(recent) + (self.counts[0] > 0)
        whole = sum(self.lengths)
        if epochs < LEAST_EPOCHS or not recent or whole <= 0 or self.has_gone:
            return False
        pace = sum(recent) / whole
        return pace > 0 and all(count >= FLAT_SHARE * pace * length for count, length in zip(recent, self.lengths))

    @property
    def early_ratio(self) -> float | None:
        """The part of the survivors since the first snapshot that the first third of that time brought; None if unknown."""
        recent, border = self.counts[1:], EARLY_PART * sum(self.lengths)
        if not sum(recent) or border <= 0:
            return None
        early, position = 0.0, 0.0
        for count, length in zip(recent, self.lengths):
            part = min(1.0, max(0.0, (border - position) / length)) if length > 0 else 0.0
            early, position = early + part * count, position + length
        return early / sum(recent)

    @property
    def pace_ratio(self) -> float | None:
        """Births of survivors in the last third over those in the first, in units of the clock; None for few epochs."""
        recent = self.counts[1:]
        third = len(recent) // 3
        if third < 2 or len(set(self.lengths)) != 1 or not sum(recent[:third]):
            return None
        return sum(recent[-third:]) / sum(recent[:third])

    @property
    def is_front_loaded(self) -> bool:
        """True if nearly all survivors are from the first third."""
        return (self.early_ratio or 0.0) >= EARLY_SHARE

    @property
    def has_gone(self) -> bool:
        """True if nearly nothing is left of what any earlier snapshot saw, even of the last one before the end."""
        known = [part for part in self.survival if part is not None]
        return len(known) >= 2 and max(known) < GONE_SHARE

    @property
    def is_backlog(self) -> bool:
        """True if the oldest go and the newest stay for a while: a queue that is emptied too slowly, or a limit by age."""
        known = [part for part in self.survival if part is not None]
        return len(known) >= 2 and min(known) < GONE_SHARE <= max(known)


def clock_of(work: Sequence[tuple[float, float]], pauses: Sequence[tuple[float, float]]) -> Clock:
    """Return how far a program had come at a time: the work it had done, where that was counted, else how long it had run.

    Args:
        work: (seconds, units of work done since the start) in time order; what is no work to speak of is not used.
        pauses: (start, end) in seconds of the times in which we let it stand still.
    """
    if len(work) >= 2 and work[-1][1] - work[0][1] >= LEAST_WORK:
        return lambda t_s: value_at(work, t_s)
    return lambda t_s: time_without(t_s, pauses)


def identities(graph: HeapGraph) -> Identities:
    """Return who is there in a snapshot."""
    one_in = 1
    while graph.node_count > one_in * MOST_IDENTITIES:
        one_in *= 2
    values = _values(graph, np.arange(graph.node_count))
    return Identities(np.sort(values[_chosen(values, one_in) & (graph.address > 0)]), one_in)


def _values(graph: HeapGraph, nodes: Array) -> Array:
    """(M,) u8: the address of each node, and 16 bits of its type above it."""
    keys = np.fromiter((hash64(name.full) >> _ADDRESS_BITS for name in graph.types), np.uint64, len(graph.types))
    types: Array = graph.type_id[nodes].astype(np.int64)
    values: Array = graph.address[nodes] ^ (keys[types] << np.uint64(_ADDRESS_BITS))
    return values


def _chosen(values: Array, one_in: int) -> Array:
    """(M,) bool: one of so many, by a mix of the number that has nothing to do with how allocators place things."""
    mixed = (values >> np.uint64(4)) * np.uint64(0x9E3779B97F4A7C15)
    chosen: Array = (mixed >> np.uint64(40)) % np.uint64(one_in) == 0
    return chosen


def cohorts(graph: HeapGraph, growth: Growth, pile: Accumulation, earlier: Sequence[Identities], times_s: Sequence[float],
            clock: Clock) -> Cohorts | None:
    """Return the epochs of birth of a pile of the last snapshot; None where nothing dates it.

    Args:
        earlier: who was there in each compared snapshot but the last.
        times_s: when the compared snapshots were taken.
        clock: how far the program had come at a time: its work, or the time in which it ran.
    """
    if pile.is_buffer or not pile.member_classes or len(times_s) < 2 or len(earlier) != len(times_s) - 1:
        return None
    survival, present = _identified(graph, growth, pile, earlier)
    found = _born(graph, growth, pile, survival) or _sampled(graph, growth, pile, times_s, clock, survival)
    if found is not None or present is None:
        return found
    # a member was born in the epoch after the last snapshot that did not have it
    is_there = np.vstack([*present, np.ones(present.shape[1], bool)])
    epoch = len(is_there) - np.logical_and.accumulate(is_there[::-1], axis=0).sum(axis=0)
    counts = np.bincount(epoch, minlength=len(is_there)) * (pile.counts[-1] / max(1, present.shape[1]))
    ticks = [clock(t_s) for t_s in times_s]
    lengths = tuple(later - sooner for sooner, later in zip(ticks, ticks[1:]))
    return Cohorts(tuple(round(count) for count in counts.tolist()), lengths, "identity", 1.0, 0, survival)


def newest(graph: HeapGraph, growth: Growth, pile: Accumulation, before: Identities) -> Array | None:
    """Return the entries of a pile that were not there `before`; None where that is not known or there are none."""
    if not pile.member_classes:
        return None
    main = max(pile.member_classes, key=lambda row: int(growth.count[-1, row]))
    nodes = growth.table.members(main).astype(np.int64)
    values = _values(graph, nodes)
    kept = _chosen(values, before.one_in)
    present = _present(values[kept], [before])
    if present is None:
        return None
    found: Array = nodes[kept][~present[0]]
    return found if len(found) else None


def _identified(graph: HeapGraph, growth: Growth, pile: Accumulation, earlier: Sequence[Identities],
                ) -> tuple[tuple[float | None, ...], Array | None]:
    """Return what is left of each earlier snapshot, and (K - 1, M) bool: which members were there in each.

    Entries may be made anew while what they stand for stays: a tuple under the same key, a count that rises. So the survivors
    are those of the class of paths at or below the entries that has most, among those that have one object for each entry.
    """
    table, best = growth.table, None
    survival: list[float | None] = [None] * len(earlier)
    most = max(growth.count[-1, list(pile.member_classes)].tolist())
    rows = np.flatnonzero(below_classes(table, list(pile.member_classes)) & (2 * growth.count[-1] >= most))
    for row in rows[np.argsort(-growth.subtree_bytes[-1, rows], kind="stable")][:MOST_CLASSES].tolist():
        nodes = table.members(row).astype(np.int64)
        nodes = nodes[graph.address[nodes] > 0]
        present = _present(_values(graph, nodes), earlier)
        if present is None:
            continue
        shares = [None if growth.count[number, row] < LEAST_THEN else
                  min(1.0, int(there.sum()) * len(nodes) / max(1, present.shape[1]) / int(growth.count[number, row]))
                  for number, there in enumerate(present)]
        survival = [new if old is None else old if new is None else max(old, new) for old, new in zip(survival, shares)]
        weight = sum(share or 0.0 for share in shares)
        if best is None or weight > best[0]:
            best = weight, present
    return tuple(survival), None if best is None else best[1]


def _present(values: Array, earlier: Sequence[Identities]) -> Array | None:
    """(K - 1, M) bool: which of the objects that all snapshots keep were there in each; None where none is kept."""
    values = values[_chosen(values, max(each.one_in for each in earlier))]
    if not len(values):
        return None
    found = np.zeros((len(earlier), len(values)), bool)
    for row, each in enumerate(earlier):
        if len(each.values):
            place = np.minimum(np.searchsorted(each.values, values), len(each.values) - 1)
            found[row] = each.values[place] == values
    return found


def _born(graph: HeapGraph, growth: Growth, pile: Accumulation, survival: tuple[float | None, ...]) -> Cohorts | None:
    """The epochs that the snapshot gives its objects."""
    births = graph.birth[growth.table.nodes_of(pile.member_classes)]
    dated = births[births > 0]
    if not len(dated) or len(dated) < LEAST_DATED * len(births):
        return None
    epochs = np.arange(1, int(graph.birth.max()) + 1)
    counts = np.bincount(dated, minlength=len(epochs) + 1)[1:]
    return Cohorts(tuple(counts.tolist()), (1.0,) * (len(epochs) - 1), "births", len(dated) / len(births), 0, survival)


def _sampled(graph: HeapGraph, growth: Growth, pile: Accumulation, times_s: Sequence[float], clock: Clock,
             survival: tuple[float | None, ...]) -> Cohorts | None:
    """Epochs of equal length from the first snapshot to the last, by the samples of the members and what hangs below them."""
    if not len(graph.sample_node):
        return None
    inside = np.zeros(graph.node_count + 1, bool)
    inside[growth.table.nodes_of(np.flatnonzero(below_classes(growth.table, list(pile.member_classes))).tolist())] = True
    rows = np.flatnonzero(inside[np.minimum(graph.sample_node, graph.node_count)])
    if len(rows) < LEAST_SAMPLES:
        return None
    epochs = min(MOST_EPOCHS, max(LEAST_EPOCHS, len(rows) // SAMPLES_AN_EPOCH))
    ticks = np.array([clock(float(t_ns) / 1e9) for t_ns in graph.sample_ns[rows].tolist()])
    first, last = clock(times_s[0]), clock(times_s[-1])
    if last <= first:
        return None
    length = (last - first) / epochs
    number = np.clip(np.floor((ticks - first) / length).astype(np.int64), -1, epochs - 1) + 1
    weights = np.bincount(number, weights=graph.sample_weight[rows].astype(np.float64), minlength=epochs + 1)
    counts = weights * (pile.counts[-1] / weights.sum())
    return Cohorts(tuple(round(count) for count in counts.tolist()), (length,) * epochs, "samples", 1.0, len(rows), survival)

