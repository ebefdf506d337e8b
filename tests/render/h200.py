"""Two hours of an embedding server on one H200, SIMULATED: no GPU was there, and no such server ran.

The allocator's books, its block map and the frames of its blocks are those of fixtures/standin/allocator.py; the objects are
the heap DSL's, their storages lie at the addresses that the simulated allocator gave out. From there on everything is the
real pipeline: case, detectors, verdict, report.

What happens: weights of 60 GiB; every minute four embeddings of 24 MiB that a cache of the program keeps; a kernel cache with
the shape of FlashInfer's, keyed by the longest sequence, whose modules the driver keeps outside of the allocator; a captured
graph with a pool of its own; each quarter of an hour a request on a stream of its own that leaves a small result in its large
segment.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np

from fixtures.standin.allocator import MIB, Allocator
from fixtures.standin.allocator_forms import record
from leakscope import baseline, verdict
from leakscope import session as sessions
from leakscope.agent.devices import _COLUMNS
from leakscope.agent.format import FORMAT
from leakscope.case import Case
from leakscope.commands import _make_report
from leakscope.heap.devices import joined
from leakscope.heap.graph import HeapGraph
from leakscope.report import Report
from tests.heaps import heap

GIB = 1 << 30
MINUTES, SNAPSHOTS = 120, (10, 30, 55, 85, 115)
LAYERS, LAYER_BYTES = 48, 1280 * MIB
EACH_MINUTE, EMBEDDING_BYTES = 4, 24 * MIB
MODULE_BYTES = 9 * MIB  # that a compiled kernel takes outside of the allocator; made up
LOAD, EMBED, BATCH = ("serve.py", 12, "load"), ("serve.py", 61, "EmbeddingClient.embed"), ("serve.py", 88, "Batcher.run")
TEXT = """
    module serve
    serve .model -> model:serve.Model
    model .layers -> layers:list
    layers [*] -> layer:serve.Layer x{layers}
    layer .weight -> weight:torch.nn.Parameter x{layers}
    weight <storage> -> bytes:storage x{layers} 1280MiB on cuda:0 data 0x1000
    serve .client -> client:serve.EmbeddingClient
    client ._tensor_cache -> cache:dict
    cache [*] -> embedding:torch.Tensor x{embeddings}
    embedding <storage> -> kept:storage x{embeddings} 24MiB on cuda:0 data 0x2000
    serve .batcher -> batcher:serve.Batcher
    batcher ._tails -> tails:list
    tails [*] -> tail:torch.Tensor x{tails}
    tail <storage> -> rest:storage x{tails} 1MiB on cuda:0 data 0x3000
    module flashinfer.prefill
    flashinfer.prefill .get_batch_prefill_module -> kernels:functools._lru_cache_wrapper
    kernels {{*}} -> kernel:flashinfer.jit.JitSpec x{kernels} 2KiB
    lru kernels flashinfer.prefill.get_batch_prefill_module max none size {kernels} hits {hits} misses {kernels}
"""


class Server:
    """The simulated program: what it holds, by address."""

    def __init__(self) -> None:
        self.device = Allocator(capacity_bytes=139 * GIB, recording="state", outside_bytes=620 * MIB)
        self.weights = [self.device.allocate(LAYER_BYTES, frames=[LOAD]) for _ in range(LAYERS)]
        self.embeddings: list[int] = []
        self.tails: list[int] = []
        self.kernels = 12
        for thread in range(3):
            self.device.workspace(thread)
        pool = self.device.new_pool()
        for size in (192, 96, 48):
            self.device.allocate(size * MIB, pool=pool)
        for size in (700, 300):
            self.device.free(self.device.allocate(size * MIB))

    def work(self, minute: int) -> None:
        """One minute of requests."""
        self.embeddings += [self.device.allocate(EMBEDDING_BYTES, frames=[EMBED]) for _ in range(EACH_MINUTE)]
        self.kernels += 3 + minute % 2
        self.device.outside_bytes += (3 + minute % 2) * MODULE_BYTES
        if minute % 15 == 0:
            self.device.free(self.device.allocate((96 + 16 * (minute % 4)) * MIB, stream=1 + minute // 15, frames=[BATCH]))
            self.tails.append(self.device.allocate(1100 * 1024, stream=1 + minute // 15, frames=[BATCH]))

    def row(self, minute: int) -> dict[str, int]:
        """A sample."""
        stats = self.device.stats()
        counted = {f"cuda0_{name}": stats[key] for name, *keys in _COLUMNS for key in map(".".join, keys) if key in stats}
        return {"t_ns": minute * 60 * 10**9, "modules": 900, "rss_bytes": 4 * GIB + self.kernels * 40_000,
                "anon_bytes": 3 * GIB + self.kernels * 40_000, "cuda0_used_bytes": self._used + 600 * MIB,
                "cuda0_process_bytes": self._used, **counted}

    @property
    def _used(self) -> int:
        return self.device.outside_bytes + self.device.current("reserved_bytes")

    def graph(self, minute: int, index: int) -> HeapGraph:
        """A snapshot: the objects with the addresses of their memory, and what the allocator says at that moment."""
        graph = heap(TEXT, t_s=60.0 * minute, info={"index": index, "pause_ns": 9_000_000}, layers=LAYERS,
                     embeddings=len(self.embeddings), tails=len(self.tails), kernels=self.kernels, hits=90 * minute)
        graph.caches[0] |= {"arguments": ["q_dtype", "kv_dtype", "max_seq_len"], "keys": keys(self.kernels)}
        graph.storage_address = np.array([*self.weights, *self.embeddings, *self.tails], np.uint64)
        said = record([self.device])
        said["devices"][0]["model"] = "NVIDIA H200 (simulated)"
        said["libraries"] = ["libcudnn", "libnccl"]
        return joined(graph, said)


def keys(count: int) -> dict[str, object]:
    """What the agent says of the keys of the kernel cache: two settings, and a length that is new in each entry."""
    row = {"opaque": 0, "identity": 0, "shown": 0, "min": None, "max": None}
    return {"looked": count, "samples": [], "positions": [
        {**row, "at": [0], "types": {"str": count}, "distinct": 1}, {**row, "at": [1], "types": {"str": count}, "distinct": 1},
        {**row, "at": [2], "types": {"int": count}, "distinct": count, "shown": count, "min": 17, "max": 4096}]}


@cache
def case() -> Case:
    """The two hours as a case."""
    server, rows, graphs = Server(), [], []
    for minute in range(MINUTES + 1):
        server.work(minute)
        rows.append(server.row(minute))
        if minute in SNAPSHOTS:
            graphs.append(server.graph(minute, len(graphs) + 1))
    return Case(graphs, rows, {"pid": 4242, "role": "main", "packages": {"torch": "2.13.0", "flashinfer-python": "0.6.10"}},
                use_quality={"cuda:0": "exact"})


def report(folder: Path) -> Report:
    """The report of the two hours; `folder` takes the session around them."""
    session = sessions.create(folder / "session", ["python", "serve.py"], {})
    (session.path / "4242").mkdir()
    (session.path / "4242" / "process.json").write_text(json.dumps(
        {"format": FORMAT, "pid": 4242, "parent": 1, "role": "main", "python": "3.11.7", "started_ns": 0, "walk": "native"}))
    session.write_info(state="complete", duration_s=MINUTES * 60.0, exit_code=0, id="h200-simulated",
                       started="2026-11-30T11:00:00Z", host={"platform": "simulated", "cpu_count": 16})
    examined = case()
    return _make_report._report(session, session.processes(),
                                [verdict.Examined(examined, *_make_report._detected(examined, baseline.NO_LIST))], ())
