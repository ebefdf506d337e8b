"""Where the objects of a finding were made, from allocation samples or from traced sites.

A sample is one block that was caught at its allocation and still lives. It stands for `sample_weight` bytes of blocks like it
(bytes / probability of being sampled), so sums of weights are unbiased estimates of bytes, as in Go's heap profiles and
tcmalloc. Nobody samples every object: what has no sample is taken to come from where objects of its kind in its place come
from. Evidence is looked for in the order of `Origins._bases`, and a finding says on which of them its site rests.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from leakscope.heap import layout
from leakscope.heap.graph import Array, HeapGraph
from leakscope.model import Location
from leakscope.units import count_text

MOST_SITES = 5
FEW_SAMPLES = 3  # fewer say where something was made, not where most was; ours
RECORDED_SHARE = 0.5  # of the bytes a device's allocator has to have recorded, to say where all were made; ours
STORED_SHARE = 0.5  # of the bytes lie in storages: then a sample has to be of an object that shows one; ours
_LIBRARY_FILE = re.compile(r"^<|(?:^|/)(?:site-packages|dist-packages|python3\.\d+)/")
_LIBRARY_LABEL = re.compile(r"(?:site-packages|dist-packages|python3\.\d+)/(\S+?\.py)")
_IMPORTS = "<frozen importlib"
_STORAGE = layout.NODE_KINDS.index("storage")

Place = tuple[str, str, int]  # file, function, line


@dataclass(frozen=True)
class Origin:
    """Where objects were made: `places` by bytes, most first, and what the first of them rests on, in words."""

    places: tuple[Location, ...] = ()
    reasons: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()

    @property
    def first(self) -> Location | None:
        """The place that made most."""
        return self.places[0] if self.places else None


@dataclass(frozen=True, eq=False)
class Wanted:
    """Whose origin is asked for, in terms of one snapshot.

    `nodes`: what piles up and all that hangs below it; `entries`: what piles up; `owner`: its container, -1 for none.
    """

    nodes: Array
    entries: Array
    owner: int = -1


def library_files(graph: HeapGraph) -> frozenset[str]:
    """Return the source files of libraries, from site-packages or the standard library on, as sites name them.

    Where a file came from is said by the labels of the functions and code objects of the same snapshot.
    """
    return frozenset(found[1] for text in graph.strings if (found := _LIBRARY_LABEL.search(text)))


def is_library(file: str, libraries: frozenset[str] = frozenset()) -> bool:
    """True for a source file of the standard library, of an installed package, or of generated code."""
    return file in libraries or bool(_LIBRARY_FILE.search(file))


def is_library_label(text: str) -> bool:
    """True for the label of a function, a frame or a code object whose source is a library's: `f() at site-packages/x.py:3`."""
    return bool(_LIBRARY_LABEL.search(text))


def own_frame(frames: Sequence[Sequence[Any]], libraries: frozenset[str] = frozenset()) -> Place:
    """(file, function, line) of the innermost frame that is the program's own, else of the innermost."""
    own = next((frame for frame in frames if not is_library(str(frame[0]), libraries)), frames[0])
    return str(own[0]), str(own[2]), int(own[1])


class Origins:
    """Where objects of one snapshot were made.

    Args:
        graph: the snapshot; with samples, or with the sites of a trace, or without both.
        since_ns: when the first snapshot was taken that it is compared with.
        before: the live bytes of each place then: what grew since is the weakest evidence.
    """

    def __init__(self, graph: HeapGraph, since_ns: int, before: Counter[Place]) -> None:
        self.graph, self.since_ns, self.before = graph, since_ns, before
        self.node = np.minimum(graph.sample_node, graph.node_count)  # N: a block of no known object
        self.libraries = library_files(graph)

    def of(self, wanted: Wanted) -> Origin:
        """Return where the objects of a finding were made; empty where nothing is known."""
        recorded = self._recorded(wanted.nodes)
        if recorded.places:
            return recorded
        if not len(self.node):
            return self._traced(wanted.nodes)
        for samples, is_of_these, words in self._bases(wanted):
            rows = self._new(samples, is_of_these)
            sizes = np.bincount(self.graph.sample_site[rows], weights=self._weights(rows), minlength=len(self.graph.sites))
            if sizes[1:].any():
                return self._worded(sizes, len(rows), words, is_of_these)
        places = Counter({place: size for place, size in self.growth.items() if size > 0})
        if not places:
            return Origin()
        return Origin(_locations(places), (), ("its allocation site is a guess: none of these objects was sampled, and the "
                                               "live memory of the process grew most there",))

    def _recorded(self, nodes: Array) -> Origin:
        """The origin by the frames that a device's allocator recorded for each block: no estimate. Empty for other memory."""
        graph = self.graph
        if not len(graph.block_site):
            return Origin()
        weights = graph.shallow_bytes[nodes].astype(np.float64)
        sizes = np.bincount(graph.block_site[nodes], weights=weights, minlength=len(graph.sites))
        sizes[0] = 0
        places = _places(graph, self.libraries, sizes)
        if places.total() < RECORDED_SHARE * weights.sum():
            return Origin()
        found = _locations(places)
        share = sum(size for place, size in places.items() if place[:2] == (found[0].file, found[0].function)) / places.total()
        return Origin(found, (f"its allocation site is exact: the device's allocator recorded where each block was made, "
                              f"{share:.0%} of the bytes in {found[0].function}",))

    @cached_property
    def growth(self) -> Counter[Place]:
        """How many bytes more the sampled blocks of each place stand for than in the first snapshot."""
        grown = live_places(self.graph)
        grown.subtract(self.before)
        return grown

    def _bases(self, wanted: Wanted) -> Iterator[tuple[Array, bool, str]]:
        """(samples, whether they are of these objects, what they are of in words), the strongest evidence first."""
        graph, node = self.graph, self.node
        inside, is_type = np.zeros(graph.node_count + 1, bool), np.zeros(len(graph.types), bool)
        inside[wanted.nodes] = True
        mine = np.flatnonzero(inside[node])
        is_type[graph.type_id[wanted.entries]] = True
        sizes = graph.shallow_bytes[wanted.nodes].astype(np.float64)
        if sizes[graph.kind[wanted.nodes] == _STORAGE].sum() > STORED_SHARE * sizes.sum():
            showing = wanted.nodes[self._stored_bytes[wanted.nodes] > 0]
            is_type[graph.type_id[showing]] = True
            yield mine[self._stored_bytes[node[mine]] > 0], True, "of these objects"
        else:
            yield mine, True, "of these objects"
        known = np.flatnonzero(node < graph.node_count)
        yield known[is_type[graph.type_id[node[known]]]], False, "of other objects of the same type"
        yield mine, False, "of what these objects hold"
        yield np.flatnonzero(node == wanted.owner), False, "of the container, which was enlarged there"

    @cached_property
    def _stored_bytes(self) -> Array:
        """(N + 1,) float: the bytes of the storages that a tensor, an array or the like shows; no sample is of those."""
        graph = self.graph
        edges = np.flatnonzero(graph.edge_label >> layout.EDGE_KIND_SHIFT == layout.STORAGE)
        holders = np.searchsorted(graph.edge_start, edges.astype(np.uint64), side="right") - 1
        return np.bincount(holders, weights=graph.shallow_bytes[graph.edge_target[edges]].astype(np.float64),
                           minlength=graph.node_count + 1)

    def _new(self, samples: Array, is_of_these: bool) -> Array:
        """Those that were taken since the first snapshot; all, if they are of these objects and too few of them are new."""
        new = samples[self.graph.sample_ns[samples] >= self.since_ns]
        return new if not is_of_these or len(new) >= min(FEW_SAMPLES, len(samples)) else samples

    def _weights(self, samples: Array) -> Array:
        """(S,) float: the bytes that each sample stands for, with the storages that objects like its own show."""
        weight, size = self.graph.sample_weight[samples].astype(np.float64), self.graph.sample_bytes[samples].astype(np.float64)
        weights: Array = weight * (1.0 + self._stored_bytes[self.node[samples]] / np.maximum(size, 1.0))
        return weights

    def _worded(self, sizes: Array, count: int, words: str, is_of_these: bool) -> Origin:
        """The origin by bytes (rows of sites,) of `count` samples, with what it rests on."""
        places = _places(self.graph, self.libraries, sizes)
        found = _locations(places)
        shown = found[0]
        share = sum(size for place, size in places.items() if place[:2] == (shown.file, shown.function)) / places.total()
        called = self._called_there(sizes, shown)
        sentence = (f"estimated from {count_text(count)} sample{'s' * (count != 1)} {words}: {share:.0%} of the bytes were "
                    f"made in {shown.function}{f', by calling {called}' * bool(called)}")
        if not is_of_these:
            return Origin(found, (), (f"none of these objects was sampled; their allocation site is {sentence}",))
        few = (f"the allocation site rests on {count} sampled block{'s' * (count != 1)}",) if count < FEW_SAMPLES else ()
        return Origin(found, (f"its allocation site is {sentence}",), few)


    def _called_there(self, sizes: Array, shown: Location) -> str:
        """The library function that most of the bytes of a place were made in; empty where the place made them itself."""
        inner: Counter[str] = Counter()
        for row in np.flatnonzero(sizes).tolist():
            frames = (self.graph.sites[row] or {}).get("frames")
            if frames and own_frame(frames, self.libraries) == (shown.file, shown.function, shown.line):
                file, line, function = frames[0]
                inner[f"{function} ({file}:{line})" if is_library(str(file), self.libraries) else ""] += int(sizes[row])
        return inner.most_common(1)[0][0]

    def _traced(self, nodes: Array) -> Origin:
        """The origin by the site of each object, as tracemalloc gives it."""
        rows = self.graph.site_id[nodes]
        sizes = np.bincount(rows, weights=self.graph.shallow_bytes[nodes].astype(np.float64), minlength=len(self.graph.sites))
        return Origin(_locations(_places(self.graph, self.libraries, sizes)))


def live_places(graph: HeapGraph) -> Counter[Place]:
    """Return the bytes that the samples of each place stand for, without what an import made: that grows once."""
    sizes = np.bincount(graph.sample_site, weights=graph.sample_weight.astype(np.float64), minlength=len(graph.sites))
    for row in np.flatnonzero(sizes).tolist():
        if any(str(frame[0]).startswith(_IMPORTS) for frame in (graph.sites[row] or {}).get("frames", ())):
            sizes[row] = 0
    return _places(graph, library_files(graph), sizes)


def loose_places(graph: HeapGraph) -> Counter[Place]:
    """Return the same of the blocks that no object of the snapshot is or has: C code keeps them."""
    weights = np.where(graph.sample_node >= graph.node_count, graph.sample_weight, 0).astype(np.float64)
    return _places(graph, library_files(graph), np.bincount(graph.sample_site, weights=weights, minlength=len(graph.sites)))


def _places(graph: HeapGraph, libraries: frozenset[str], sizes: Array) -> Counter[Place]:
    """`sizes` (rows of sites,) summed by the program's own frame."""
    places: Counter[Place] = Counter()
    for row in np.flatnonzero(sizes).tolist():
        frames = (graph.sites[row] or {}).get("frames")
        if frames:
            places[own_frame(frames, libraries)] += int(sizes[row])
    return places


def _locations(places: Counter[Place]) -> tuple[Location, ...]:
    """The lines of the function that made most, then those of the next one, with their shares of all bytes."""
    whole = places.total() or 1
    functions: Counter[tuple[str, str]] = Counter()
    for (file, function, _), size in places.items():
        functions[file, function] += size
    ordered = sorted(places.items(), key=lambda item: (-functions[item[0][:2]], item[0][:2], -item[1], item[0]))
    return tuple(Location(function, file, line, round(size / whole, 4))
                 for (file, function, line), size in ordered[:MOST_SITES])
