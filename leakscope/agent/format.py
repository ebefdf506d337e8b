"""The contract between the agent in the target and the host: files, columns, units, codes. Both sides read this file.

    <session>/
      session.json                    written by the host (see SESSION_FIELDS)
      nvml.jsonl                      written by the host: what the driver says of the devices, one row a line (see below)
      boot/                           the staged agent: sitecustomize.py, _leakscope_agent/, options.json
      <pid>/                          one folder a process; <pid>.2, <pid>.3 ... when a pid is used again (exec, reuse)
        process.json                  written once, when the agent comes up
        timeline.jsonl                one sample a line; a line without its newline is not complete and is ignored
        notes.jsonl                   {"t_ns", "note"}: what could not be done and why, one sentence each
        snapshots/0001/               columns as .npy (format 1.0, little-endian, one dimension), names.json, and
          done.json                   written last: without it the snapshot does not exist
          devices.json                only where a device is in use: what its allocator said just before the walk (see below)
          columns.pack                written by the host in place of the columns and names.json of a complete snapshot
        exit.json                     written at a normal exit of the interpreter: {"t_ns", "reason"}

Every `t_ns` is nanoseconds since `started_monotonic_ns` of session.json (CLOCK_MONOTONIC: one clock for all processes).
"""

FORMAT = 1

SESSION_FILE = "session.json"
NVML_FILE = "nvml.jsonl"
BOOT_FOLDER = "boot"
OPTIONS_FILE = "options.json"
PROCESS_FILE = "process.json"
TIMELINE_FILE = "timeline.jsonl"
NOTES_FILE = "notes.jsonl"
EXIT_FILE = "exit.json"
SNAPSHOT_FOLDER = "snapshots"
NAMES_FILE = "names.json"
DONE_FILE = "done.json"
NATIVE_FILE = "native.json"
DEVICES_FILE = "devices.json"
PACK_FILE = "columns.pack"
PACK_MAGIC = b"LSPACK1\n"

# session.json, written by the host and replaced atomically:
SESSION_FIELDS = (
    "format",  # FORMAT
    "tool_version",
    "id",  # 12 hex digits
    "pid",  # of the command that was started; null until then
    "command",  # list of str, values masked
    "started",  # ISO 8601 UTC
    "started_monotonic_ns",
    "state",  # running | complete | died
    "duration_s",  # null while running
    "exit_code",  # of the target; null while running or when killed
    "signal",  # number, null when not killed
    "label",  # --label, or ""
    "options",  # as given to the agent
    "host",  # {"platform", "cpu_count", "memory_bytes", "boot_id"}; the last says whether a pid can still be alive
    "gaps",  # list of {"claim", "missing", "command"}: what the host noticed, such as "no agent reported in"
    "gpu",  # {"driver", "nvml": version, or why there is none}, and "processes": {pid: {"nspid", "visible"}}; absent: no device
)

# nvml.jsonl: {"t_ns", "devices": [{"index", "uuid", "bus_id", "model", "is_part" (true: of a device divided by MIG),
#   "is_shared" (true: its memory is a NUMA node of the machine), "used_bytes" (all that is not free), "total_bytes",
#   "system_bytes" (the part of used_bytes that is the driver's own), "processes": [[pid, used_bytes or null], ...], or null:
#   not told}], "names": {pid: executable} of those seen for the first time}; absent is what the driver does not say. A pid is
#   as the driver numbers it

# boot/options.json, written by the host, read by the agent:
#   session (absolute path), started_monotonic_ns, every_s (null: the ladder chooses), warmup_s (null: chosen),
#   settle_s (null: no settle step), settle_collect (bool: collect garbage in it), duration_s (null: to the end; after it one
#   last snapshot of kind "exit" and no more recording, the target goes on), max_disk_bytes, max_memory_bytes, sites ("off" |
#   "tracemalloc" | "tracemalloc:FRAMES" | "sampled"), redact ("structure"), follow (bool), keep_snapshots (5),
#   native (bool: --native), gpu ("auto" | "off" | "state" | "trace" | "recorded:DIR"; absent: auto)

# process.json:
#   format, pid, parent, role ("main" | "fork" | "spawn" | "exec"), python ("3.11.7"), implementation, platform, argv (masked),
#   started_ns (t_ns of the agent's start), start_ticks (kernel start time, tells exec from a pid used again), own_thread_names,
#   sites, walk ("python" | "native"), why_not_native (a sentence; absent when native), modules_count, work_sources (list of
#   str such as "leakscope.tick", "uvicorn requests": what work_count adds up; written again when it changes),
#   packages ({name: version} of what was loaded at the last snapshot; absent before the first)
# exit.json: t_ns, reason ("exit" | "duration" | "stopped")

# One sample of timeline.jsonl: t_ns, then what could be measured. A column that was not measured is absent, never 0.
SAMPLE_COLUMNS = (
    "t_ns",
    "rss_bytes", "pss_bytes", "uss_bytes", "anon_bytes", "file_bytes", "shmem_bytes", "swap_bytes",
    "pss_anon_bytes", "pss_file_bytes", "pss_shmem_bytes",  # the parts of pss_bytes
    "page_faults_minor", "page_faults_major",
    "cgroup_bytes", "cgroup_limit_bytes", "cgroup_inactive_file_bytes",
    "py_blocks",  # sys.getallocatedblocks()
    "malloc_used_bytes",  # mallinfo2: uordblks + hblkhd
    "malloc_free_bytes",  # mallinfo2: fordblks
    "malloc_mmapped_bytes",  # mallinfo2: hblkhd, already part of malloc_used_bytes
    "malloc_arena_bytes",  # mallinfo2: arena
    "malloc_arenas",  # glibc's arenas: the main one, and those of threads
    "arena_bytes", "arena_used_bytes",  # pymalloc's arenas: what they take, and what of it is blocks in use
    "arena_pools", "arena_sparse_pools",  # pools of them with any block in use; with less than a quarter of their bytes
    "children", "children_ended",  # direct child processes; those of them that have ended and were not waited for
    "shared_files", "shared_file_bytes",  # files in /dev/shm of this user since the process came up; if it uses any
    "gc_count0", "gc_count1", "gc_count2",
    "gc_collections", "gc_collections2",  # all generations; the oldest alone
    "gc_collected", "gc_uncollectable", "gc_pause_ns",  # totals so far; the pause is the agent's callback clock
    "threads", "fds", "tasks",
    "modules",  # len(sys.modules): says when importing has ended
    "cpu_ns",  # processor time of the process so far, without the agent's thread
    "work_count",  # units of work done so far (work_sources of process.json); absent where nothing counts
    "inflight_count",  # units under way, where whoever counts says so
    "load_batch", "load_tokens",  # of the largest tick(batch=, tokens=) since the row before; absent where there was none
    "tracemalloc_bytes", "tracemalloc_overhead_bytes",  # only while a window is open
    "jit_libraries",  # shared objects that were built while programs ran (torch, Triton, FlashInfer ...); beside torch only
    "compiled_graphs", "recompiles",  # torch._dynamo: graphs so far; compilations of a frame after its first
    # once the target has initialised a device, for each one in use; cudaN_ stands for xpuN_ and mpsN_, too (what torch.cuda's
    # memory_stats says; a key that this version of torch lacks is absent):
    #   cudaN_allocated_bytes, cudaN_reserved_bytes, cudaN_active_bytes, cudaN_inactive_split_bytes, cudaN_allocated_peak_bytes
    #   (never reset by us), cudaN_requested_bytes, cudaN_allocations, cudaN_segments (counts), cudaN_alloc_retries, cudaN_ooms,
    #   cudaN_private_pool_bytes (torch 2.13), cudaN_device_allocs, cudaN_device_frees (calls to the driver, torch 2.3),
    #   cudaN_allocated_total_bytes, cudaN_freed_total_bytes (all that was ever allocated and freed: they only grow)
    # pinned host memory (torch 2.7): held by torch's cache, of it in use; calls to the driver
    "pinned_held_bytes", "pinned_used_bytes", "pinned_allocs", "pinned_frees",
)

# --- a snapshot -----------------------------------------------------------------------------------------------------
# N nodes, E edges (holder -> held, sorted by holder), R roots. An index of a node is its row; an address is id() in the
# target; the two are never mixed. Strings are rows of names.json["strings"]; row 0 is "" and means "none".
COLUMNS = {
    "address": "<u8",  # (N,) id() of the object; 0 for nodes that are no Python objects (storages, mappings)
    "type_id": "<u4",  # (N,) row of names.json["types"]
    "shallow_bytes": "<u8",  # (N,) without what it holds; a storage or an array that owns its data: with the data
    # (N,) without the references of the agent; 0xFFFFFFFF: immortal or not measured. The native walk adds to a tensor and to a
    # node of torch's graph the references from C++ that its count does not show, and gives those a count that are no objects.
    "refcount": "<u4",
    "length": "<u4",  # (N,) entries of a container (dict, list, tuple, set, frozenset, deque and their subclasses), else 0
    "kind": "<u1",  # (N,) NODE_KINDS
    "state": "<u1",  # (N,) STATES: what the object itself says of its life, where that can be read without running its code
    "device": "<u1",  # (N,) where shallow_bytes lie: 0 host, 1 + N cuda:N (ROCm, too), 128 + N xpu:N, 192 mps:0
    "birth": "<u4",  # (N,) epoch of birth, 0: unknown
    "site_id": "<u4",  # (N,) row of names.json["sites"], 0: unknown
    "label": "<u4",  # (N,) string: what a person calls this node ("module serve", "parse() at app.py:12"), 0: by its type
    "edge_start": "<u8",  # (N + 1,) the edges of node i are edge_start[i] .. edge_start[i + 1]
    "edge_target": "<u4",  # (E,)
    "edge_label": "<u4",  # (E,) EDGE kind in the upper 5 bits, value in the lower 27
    "root_node": "<u4",  # (R,)
    "root_kind": "<u1",  # (R,) ROOT_KINDS
    "root_label": "<u4",  # (R,) string: "thread 'feed-eu'", "atexit callback 3", ...
}

# Columns that a snapshot has only when the allocation sampler ran: blocks that it caught at their allocation and that live.
SAMPLED_COLUMNS = {
    "sample_node": "<u4",  # (S,) the object that the block is, or is the body of (a list's items); NO_NODE: none is known
    "sample_site": "<u4",  # (S,) row of names.json["sites"]
    "sample_bytes": "<u8",  # (S,) of the block itself
    "sample_weight": "<u8",  # (S,) bytes of all blocks that it stands for: bytes / probability of being sampled, unbiased
    "sample_ns": "<u8",  # (S,) t_ns of the allocation
}
NO_NODE = 0xFFFFFFFF

# Columns that a snapshot has only where the walk met storages of torch: where the data of each begin. A storage that says that
# it has none (FakeTensor, meta, wrappers of other tensors) is no node.
STORAGE_COLUMNS = {
    "storage_node": "<u4",  # (K,) the node of kind "storage"
    "storage_address": "<u8",  # (K,) in the address space of the process, of the host or of a device
}
FIRST_XPU, FIRST_MPS = 128, 192  # codes of the column `device`

NODE_KINDS = ("object", "storage", "mapping", "module", "type", "function", "code", "frame", "generator", "task", "thread",
              "weakref", "exception", "cache")
STATES = ("unknown", "live", "ended")  # ended: a finished task or future, a closed socket or file, an exhausted generator

EDGE_KIND_SHIFT = 27
EDGE_VALUE_MASK = (1 << EDGE_KIND_SHIFT) - 1
# code -> (name, what the value is)
EDGE_KINDS = (
    "unknown",  # no value; the edge is known to exist, its name is not
    "attribute",  # string: .name  (instance attribute, slot, class attribute, module global)
    "key",  # string: [text]  value of a mapping under that key; text is 'orders' or a masked str:17, int, tuple:2
    "index",  # integer: [3]
    "key-object",  # string as of "key": the key object itself
    "element",  # no value: member of a set, item of an unordered or opaque container
    "local",  # string: local variable of a frame, generator or coroutine
    "cell",  # string: closure variable, function -> cell
    "contents",  # no value: cell -> what it contains
    "type",  # no value: instance -> its type
    "internal",  # string: a slot that C code calls so, such as __globals__, __dict__, __self__, tb_next, callback, cache
    "stack",  # integer: slot of the evaluation stack
    "storage",  # no value: a tensor or array -> the memory it shows
)
UNKNOWN, ATTRIBUTE, KEY, INDEX, KEY_OBJECT, ELEMENT, LOCAL, CELL, CONTENTS, TYPE, INTERNAL, STACK, STORAGE = range(13)

# Kinds that the agent writes come first; the host adds the last two.
ROOT_KINDS = ("module", "frame", "thread-local", "task", "event-loop", "contextvar", "atexit", "signal", "interpreter",
              "c-held", "garbage")

IMMORTAL = 0xFFFFFFFF

# Edges to None, True, False, Ellipsis and NotImplemented are not written.

# names.json of a snapshot:
#   strings  list of str, row 0 ""
#   types    list of [module, qualname, flags]; flags: letters "h" heap type, "g" tracked by the collector, "d" has a __dict__
#   sites    list of {"frames": [[file, line, function], ...] innermost first, "bytes", "count"}; row 0 is null.
#            Sampled: bytes and count are unbiased estimates of what is alive (sums of sample_weight, of weight / bytes)
#   bounds   list of [address, limit, what]: declared limits, such as [.., 4096, "maxsize"] of an lru_cache or deque maxlen
#   caches   list of {"address", "name", "maxsize" (null: none), "currsize", "hits", "misses", "arguments": names of the
#            arguments of the function, "keys"} of functools caches. "keys" is {"looked": how many of the newest were looked at,
#            "positions": [{"at": path in the key: an argument's or item's number, "name=" of a keyword, ".name" of a field
#            ([]: the key itself), "types": {type: count}, "distinct" values, "min" and "max" of the "shown" ints, "identity":
#            how many are compared by identity, "opaque": how many by code that was not asked}], "samples": [[[int or null for
#            each position], address of the value], ...]}. Ints are shown where 0 <= v < 2^20: lengths and shapes
#   tables   list of {"address", "size", "keys"} of the longest dicts of 8 entries or more whose newest key is an int or a tuple
#   duplicates   list of [row, row, ...]: exact str, or bytes, of 32 to 2**20 letters that have the same content, a list each;
#            of the first 2 MiB of such texts that the walk came to; absent in older sessions
#   line_growth  list of [file, line, function, bytes, count]: lines that hold over 10 KB more than at the last snapshot
#            of the same tracemalloc window, largest first; empty when nothing was traced
#
# done.json of a snapshot:
#   format, index, t_ns, kind ("ladder" | "manual" | "limit" | "settle" | "oom" | "exit"), method ("in-place" | "fork"),
#   walk ("python" | "native"), pause_ns (how long the target stood still), node_count, edge_count, root_count, agent_bytes,
#   excluded_count, sample (a timeline row of that moment), gc {"enabled", "thresholds", "counts", "freeze_count",
#   "uncollectable_count"}, notes (list of sentences); of kind "settle": settle {"quiet_s": how long the program had nothing to
#   do before, 0 if it was busy; "collected": whether garbage was collected then}; the native walk adds walk_ns (until all was
#   written) and, when forked, dirtied_bytes (Private_Dirty of the child at its end)
#
# columns.pack of a snapshot (heap/packing.py), which the host makes of the raw files when it has time. A reader prefers it:
#   PACK_MAGIC, u8 length of the header, the header (JSON), then the blocks (zlib streams) in the order the header names them.
#   Header: {"columns": {name: {"dtype", "rows", "coding", "bytes"}}, "names": [[length]]}. A column is coded, its rows are
#   taken apart byte by byte, and "bytes" has an entry for each byte of a row, lowest first: a number if it is that for all
#   rows, else [length of its block]. The last block is names.json. Codings, modulo 2^bits of the row:
#   "plain"   the rows themselves
#   "steps"   zigzag(row - row before): addresses, edge_start, sample_ns
#   "behind"  (1 + the largest row before, 0 at first) - row: edge targets, 0 where the next node is seen for the first time
#
# devices.json of a snapshot (devices.py, device_map.py), replaced atomically; of the moment just before the walk. At most
# 200,000 blocks and 64 MiB; what was cut is said in its notes:
#   {"format": 1, "provider": "cuda" | "rocm" | "xpu" | "mps" | "generic" | "recorded", "simulated": bool, "torch": its version,
#    "backend": "native" | "cudaMallocAsync" | ..., "recording": "off" | "state" | "trace" (by us) | "program" (by the program),
#    "settings": {known settings of the allocator, and of the variables that hold them}, "devices": [{"name": "cuda:0",
#    "ordinal", "uuid", "bus_id", "model", "total_bytes", "capability": [9, 0], "cublas_workspace_bytes": of one, "stats": {flat
#    keys of torch: int}}], "host_stats": {flat keys: int}, "segments": [torch's segments by its own keys: device, address,
#    total_size, allocated_size, active_size, requested_size, stream, segment_type, segment_pool_id, is_expandable, blocks:
#    [{address, size, requested_size, state, frames: row of "frames" or -1}]], those with the most bytes first, "frames":
#    [[[file (masked), line, function], ...] innermost first], "libraries": [names of GPU libraries that are loaded],
#    "history": only with --gpu trace, the last 20,000 of each device: [{"device": ordinal, "action": alloc | free_requested |
#    free_completed | segment_alloc | ..., "addr", "size", "stream", "time_us", "device_free", "frames": row}], oldest first,
#    "process_groups": of torch.distributed, or null, "oom": of a snapshot of kind "oom" {"device", "requested_bytes",
#    "free_bytes", "total_bytes"}, else null, "notes": [sentences]}; all but format, provider, devices may be missing
#
# native.json of a snapshot, only with --native: {"mean_bytes", "sites": [{"native": [[module, symbol or "", offset in the
#   module], ...] innermost first, "python": [[file, line, function], ...] innermost first, "bytes", "count"}]}: unbiased
#   estimates of what malloc, calloc, realloc, memalign and mmap gave and nobody has freed

# --- a pause of the load ----------------------------------------------------------------------------------------------
QUIET_CPU = 0.03  # of one core: a server that waits takes less, with its timers; ours
BLINK_NS = 10_000_000  # a timer that fires is no load: a scrape of metrics takes this long; ours
QUIET_BLOCKS, QUIET_BLOCKS_PER_S = 200, 20  # more than so many new blocks are work that goes on; ours


def is_quiet(start, before, row):
    """Return whether the program had nothing to do up to the sample `row`, since the sample `before`, while a pause that began
    at the sample `start` lasts: hardly any processor time, no work done, nothing new under way, nothing new that stays."""
    elapsed_ns = row["t_ns"] - start["t_ns"]
    if row["cpu_ns"] - before["cpu_ns"] > max(QUIET_CPU * (row["t_ns"] - before["t_ns"]), BLINK_NS):
        return False
    if row["cpu_ns"] - start["cpu_ns"] > QUIET_CPU * elapsed_ns + BLINK_NS:
        return False
    for name in ("work_count", "inflight_count"):
        known = {sample[name] for sample in (start, before, row) if sample.get(name) is not None}  # not in every sample
        if len(known) > 1:
            return False
    return row.get("py_blocks", 0) - start.get("py_blocks", 0) <= QUIET_BLOCKS + QUIET_BLOCKS_PER_S * elapsed_ns / 1e9


def edge_label(kind, value=0):
    """Return the code of an edge: `kind` is one of EDGE_KINDS by position, `value` a string row or an integer, clipped."""
    return kind << EDGE_KIND_SHIFT | min(value, EDGE_VALUE_MASK)
