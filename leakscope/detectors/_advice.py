"""What to do about growth on a device: a table of sentences, each with what has to hold for it to be said.

The rules are those of the knowledge page on device memory: what a captured graph may replay is never cleared, a setting is not
recommended where it is on, where a loaded library does not work with it or where the backend does not know it, and an
interface is named only to a torch that has it. What is not known counts as the worse case: without a snapshot nobody knows
that no graph was captured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from leakscope.baseline import is_in_range

_OFF = (None, False, "", "0", "-1", "False", "false", 0, 0.0, -1)
UNLIMITED = 1 << 43  # bytes or MiB; an allocator has the largest number there is for "no limit", no device has so much; ours
CUDA_LIKE = ("cuda", "recorded")  # providers whose allocator takes every setting of CUDA's; ROCm and XPU take some
SPLIT = ("max_split_size_mb", "max_split_size")  # as the environment and as a snapshot of the allocator call it
KEPT = ("pinned_max_cached_size_mb", "pinned_max_cached_size")
CONF = "PYTORCH_CUDA_ALLOC_CONF"
# Pools that map their own pages; they do not work with expandable segments (torch_memory_saver's README, vllm#40812).
OWN_PAGES = ("torch_memory_saver", "vllm", "cumem")


@dataclass(frozen=True)
class Surroundings:
    """What a remedy depends on. `versions`: of the loaded packages by name; `loaded`: their names, and those of GPU libraries.

    `has_graphs`: whether CUDA graphs are captured; None where nobody looked. `settings`: those of the allocator by their name.
    """

    provider: str = "cuda"
    backend: str = "native"
    versions: Mapping[str, str] = field(default_factory=dict)
    recording: str = "off"
    settings: Mapping[str, Any] = field(default_factory=dict)
    loaded: frozenset[str] = frozenset()
    has_graphs: bool | None = None

    def is_on(self, *names: str) -> bool:
        """True if one of these settings is set to something else than its neutral value."""
        return any(_is_on(self.settings.get(name)) for name in names)

    def has(self, *names: str) -> bool:
        """True if a package or library of one of these names is loaded; `libnccl` is that of `libnccl.so.2` as well."""
        return any(name == each or each.startswith((f"{name}.", f"{name}-", f"{name}_allocator", f"lib{name}"))
                   for name in names for each in self.loaded)


def _is_on(value: Any) -> bool:
    """True for a value that is not neutral; of a setting for each size (a dict) one is enough."""
    if isinstance(value, Mapping):
        return any(map(_is_on, value.values()))
    return value not in _OFF and not (isinstance(value, int) and value >= UNLIMITED)


@dataclass(frozen=True)
class Advice:
    """One sentence on a topic. Empty conditions hold anywhere.

    versions: range of `package` (PEP 440). off: none of these settings is on. on: one of them is. loaded, absent: one or none
    of these packages and libraries is there. clears: it frees what a captured graph may still use.
    """

    topic: str
    text: str
    versions: str = ""
    package: str = "torch"
    providers: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    recording: tuple[str, ...] = ()
    off: tuple[str, ...] = ()
    on: tuple[str, ...] = ()
    loaded: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    clears: bool = False

    def holds(self, around: Surroundings) -> bool:
        """True if this may be said there."""
        if self.clears and around.has_graphs is not False:
            return False
        if self.versions and not is_in_range(around.versions.get(self.package, ""), self.versions):
            return False
        if self.on and not around.is_on(*self.on) or self.off and around.is_on(*self.off):
            return False
        if self.loaded and not around.has(*self.loaded) or self.absent and around.has(*self.absent):
            return False
        asked = ((self.providers, around.provider), (self.backends, around.backend), (self.recording, around.recording))
        return all(not wanted or value in wanted for wanted, value in asked)


def advice(topic: str, around: Surroundings) -> tuple[str, ...]:
    """Return the sentences on a topic that hold, in the order of the table; raises KeyError for an unknown topic."""
    rows = [row for row in TABLE if row.topic == topic]
    if not rows:
        raise KeyError(topic)
    return tuple(row.text for row in rows if row.holds(around))


def clause(around: Surroundings, topic: str) -> str:
    """Return the first sentence that holds on a topic, to follow a semicolon; "" where none does."""
    first = next(iter(advice(topic, around)), "").rstrip(".")
    return f"; {first[:1].lower()}{first[1:]}" if first else ""


def remedy(around: Surroundings, *topics: str) -> str:
    """Return what to do on some topics, one sentence after the other."""
    return " ".join(sentence for topic in topics for sentence in advice(topic, around))


TABLE = (
    # more evidence
    Advice("evidence", "leakscope run --gpu state -- COMMAND records which Python line allocated each live block.",
           versions=">=2.1", backends=("native",), recording=("off",)),
    Advice("evidence", "leakscope run --gpu trace -- COMMAND also records what was freed, and when.",
           versions=">=2.1", backends=("native",), recording=("state",)),
    Advice("evidence", f"cudaMallocAsync has no map of its blocks: run once with {CONF}=backend:native to see them.",
           backends=("cudaMallocAsync",)),
    # 7 zombie private pools
    Advice("zombie-pool", "A capture that fails leaves its pool behind before the change of pytorch#190348: use a torch that "
           "has it.", providers=CUDA_LIKE),
    Advice("zombie-pool", "Drop every reference to the graph or torch.cuda.MemPool that the pool was made for."),
    Advice("zombie-pool", "Then torch.cuda.empty_cache() gives its segments back.", clears=True),
    # 8 cuBLAS workspaces
    Advice("cublas", "There is one workspace for each pair of thread and stream: use few long-lived threads and streams that "
           "are used again."),
    Advice("cublas", "CUBLAS_WORKSPACE_CONFIG=:SIZE_KIB:COUNT makes each of them smaller."),
    Advice("cublas", "A torch later than 2.14.1 keeps none unless TORCH_CUBLAS_WORKSPACE_CACHE asks for it.",
           versions="<=2.14.1"),
    Advice("cublas", "At a quiet moment torch._C._cuda_clearCublasWorkspaces() frees them.", clears=True),
    # 10 blocks that C++ holds
    Advice("c-held", "Ask the library that allocates them: C++ code holds them, and no Python reference that could be let go."),
    Advice("c-held", "DistributedDataParallel keeps gradients in buckets: gradient_as_bucket_view=True makes both one.",
           loaded=("libnccl", "nccl")),
    # 13 fragmentation
    Advice("fragmentation", f"Set expandable_segments:True in {CONF}: free neighbours merge, and segments grow in place.",
           versions=">=2.1", providers=CUDA_LIKE, backends=("native",), off=("expandable_segments",), absent=OWN_PAGES),
    Advice("fragmentation", "Round shapes up to few sizes (buckets, padding), so that free blocks fit again."),
    Advice("fragmentation", "Allocate what lives long first, before buffers that come and go."),
    Advice("fragmentation", f"max_split_size_mb in {CONF} keeps large blocks whole.", providers=CUDA_LIKE, backends=("native",),
           off=(*SPLIT, "expandable_segments")),
    Advice("streams", "Use few streams, again and again."),
    # 14 high water
    Advice("high-water", "Where other processes need the room, torch.cuda.empty_cache() at a quiet moment gives it back.",
           backends=("native",), clears=True),
    Advice("high-water", "Bound the batch or the length if the peak sets the size of the machine."),
    Advice("high-water", "A torch.cuda.MemPool takes rare spikes apart from the rest.", versions=">=2.5", providers=CUDA_LIKE,
           backends=("native",)),
    # 15 deferred frees
    Advice("deferred", "Tensor.record_stream() delays each free until the other stream has passed it: let the consuming stream "
           "wait (wait_stream) and keep the tensor until then."),
    Advice("deferred", "TORCH_NCCL_AVOID_RECORD_STREAMS=1 does that for collective operations.", loaded=("libnccl", "nccl")),
    Advice("deferred", "Let the CPU wait for the streams now and then (an event of each batch), so that frees are not put off "
           "without end."),
    # 16 rounding
    Advice("rounding", f"Take roundup_power2_divisions out of {CONF}.", on=("roundup_power2_divisions",)),
    Advice("rounding", "Pack small tensors into one and slice it: a block is at least 512 bytes."),
    # 17 context and modules that are loaded at first use
    Advice("first-use", "Run each shape once before the service takes requests, and it comes before them."),
    # 18 communicators
    Advice("nccl", "Call torch.distributed.destroy_process_group(group) for groups that are done with, or make each once "
           "and use it again."),
    Advice("nccl", "NCCL_BUFFSIZE makes the buffers of each communicator smaller."),
    # 19 other allocators
    Advice("outside", "CuPy keeps a pool of its own: cupy.get_default_memory_pool().total_bytes() says how large it is.",
           loaded=("cupy",)),
    Advice("outside", "RMM keeps pools of its own: ask its statistics.", loaded=("rmm", "librmm")),
    Advice("outside", "ONNX Runtime keeps an arena of its own: gpu_mem_limit bounds it.", loaded=("onnxruntime",)),
    Advice("outside", "TensorRT allocates for each engine and execution context: make each once.",
           loaded=("tensorrt", "libnvinfer")),
    Advice("outside", "DALI keeps pools of its own, and buffers for each prefetched batch.", loaded=("nvidia.dali", "libdali")),
    Advice("outside", "torch_memory_saver maps pages of its own, which no counter of the allocator has.",
           loaded=("torch_memory_saver",)),
    Advice("outside", "Triton before 3.8 never unloads a compiled kernel.", versions="<3.8", package="triton"),
    Advice("outside", "No library can be told apart from outside: ask the statistics of each one's own pool, or trace "
           "cudaMalloc and loaded modules (CUPTI, Nsight Systems) for the process."),
    # 20 pinned host memory
    Advice("pinned", "Pin less at a time: a smaller prefetch_factor and fewer batches in flight."),
    Advice("pinned", "torch.accelerator.empty_host_cache() gives the free part back at a quiet moment.", versions=">=2.12",
           clears=True),
    Advice("pinned", f"pinned_max_round_threshold_mb in {CONF} ends rounding up to powers of two for large blocks.",
           versions=">=2.13", off=("pinned_max_round_threshold_mb",)),
    Advice("pinned", f"pinned_max_cached_size_mb in {CONF} bounds what is kept.", versions=">=2.13",
           off=KEPT),
    Advice("pinned", "A torch of 2.12 can give it back on request, one of 2.13 can bound it: upgrade.", versions="<2.12"),
    # 21 tensors that other processes have open
    Advice("ipc", "Let go of received tensors in the consumer before the producer goes on, or send a copy on the CPU."),
    Advice("ipc", "torch.cuda.ipc_collect() in the producer frees what every consumer has let go of.", providers=CUDA_LIKE),
    # 26 churn
    Advice("churn", "Stop calling torch.cuda.empty_cache() for every request or step: each segment is asked from the driver "
           "again."),
    Advice("retries", "Allocations that fail make the allocator give everything back and try again: leave it more room."),
)
