"""What a person sets for the allocators of devices, and which GPU software is loaded: known names, and no other text."""

import os
import sys

from . import classes
from .thread import read_small

# CUDAAllocatorConfig.h and AllocatorConfig.h of torch 2.1 to 2.14, and what its snapshots call them.
KNOWN = frozenset((
    "backend", "max_split_size", "max_split_size_mb", "max_non_split_rounding_mb", "garbage_collection_threshold",
    "roundup_power2_divisions", "roundup_bypass_threshold_mb", "expandable_segments", "large_segment_size",
    "large_segment_size_mb", "per_process_memory_fraction", "throw_on_cudamalloc_oom", "graph_capture_record_stream_reuse",
    "release_lock_on_cudamalloc", "release_lock_on_hipmalloc", "pinned_use_cuda_host_register", "pinned_use_hip_host_register",
    "pinned_num_register_threads", "pinned_use_background_threads", "pinned_reserve_segment_size_mb",
    "pinned_max_round_threshold_mb", "pinned_max_cached_size_mb", "pinned_max_cached_size"))
# The comment in torch says that the general name has priority; 2.10 to 2.14 read the one of the device first.
ENVIRONMENT = {"cuda": ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"),
               "rocm": ("PYTORCH_HIP_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")}
NO_CACHE = "PYTORCH_NO_CUDA_MEMORY_CACHING"
_OF_VALUES = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.:;>[]- ")
_LONGEST_VALUE = 60

# Files that are named so, or so and a number, and what a module is called that brings an allocator or kernels of its own.
LIBRARIES = ("libcudart", "libcuda", "libcublas", "libcublasLt", "libcudnn", "libcufft", "libcusparse", "libcusolver",
             "libnvrtc", "libnvJitLink", "libnccl", "librccl", "libnvshmem", "libnvinfer", "libonnxruntime", "libdali",
             "librmm", "libamdhip64", "libze_loader", "libtriton", "libucp", "libcufile")
MODULES = ("cupy", "rmm", "cudf", "numba.cuda", "pycuda", "jaxlib", "tensorflow", "tensorrt", "onnxruntime", "nvidia.dali",
           "torch_memory_saver", "vllm", "sglang", "flashinfer", "flash_attn", "triton", "deepspeed", "transformer_engine",
           "deep_gemm", "cutlass", "cudnn", "xformers", "bitsandbytes", "mooncake", "nixl", "lmcache")
# Where compilers put what they build while the program runs: torch, Triton, Inductor, FlashInfer, TVM.
_JIT_FOLDERS = (b"/torch_extensions/", b"/torchinductor_", b"/.triton/", b"/.cache/", b"/tmp/")
_NOT_JIT = (b"-packages/", b"/lib-dynload/", b"/_leakscope_agent/")  # installed before; ours
_MOST_MAPS_BYTES = 4 << 20
_MOST_SETTINGS = 64

# Bytes of the workspace that torch gives to cuBLAS for each thread and stream, by the major number of the capability
# (aten/src/ATen/cuda/CUDABlas.cpp): 32 MiB from Hopper on, else ":4096:2:16:8".
_WORKSPACE_BYTES, _WORKSPACE_BYTES_FROM_9 = 8_519_680, 33_554_432


def settings(provider, told):
    """Return the settings that are known to us: those that torch told, else those of the environment; and what the variables
    hold of them, under the names of the variables."""
    found = {}
    for name in ENVIRONMENT.get(provider, ()):
        parsed = _parsed(os.environ.get(name))
        if parsed is None:
            continue
        found[name] = ",".join("%s:%s" % pair for pair in parsed.items())
        for key, value in parsed.items():
            found.setdefault(key, _typed(value))
    if provider in ENVIRONMENT and os.environ.get(NO_CACHE, "0") not in ("", "0"):
        found[NO_CACHE] = True
    for key, value in list(dict.items(told))[:_MOST_SETTINGS] if type(told) is dict else ():
        if type(key) is str and key in KNOWN:
            shown = _shown(value)
            if shown is not None:
                found[key] = shown
    return found


def _shown(value):
    """The value of a setting if it is a number or a short word, or a dict of such; else None."""
    if type(value) in (bool, int, float):
        return value
    if type(value) is str:
        return value if _is_short(value) else None
    if type(value) is dict:
        pairs = [(str(key), _shown(item)) for key, item in list(dict.items(value))[:_MOST_SETTINGS] if type(key) in (int, str)]
        return {key: item for key, item in pairs if _is_short(key) and type(item) in (bool, int, float)}
    return None


def _is_short(text):
    return len(text) <= _LONGEST_VALUE and _OF_VALUES.issuperset(text)


def _parsed(text):
    """{key: value} of "key:value,key:[value,value]" for the known keys; None where the variable is not set."""
    if text is None:
        return None
    found, depth, parts = {}, 0, [""]
    for letter in text[:4096]:
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += ";" if letter == "," else letter
    for part in parts:
        key, _, value = part.partition(":")
        if key.strip() in KNOWN and _is_short(value.strip()):
            found[key.strip()] = value.strip()
    return found


def _typed(value):
    if value in ("True", "False"):
        return value == "True"
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value


def workspace_bytes(capability):
    """Return the size of one workspace of cuBLAS on a device of that capability ([major, minor]); None: not known."""
    text = os.environ.get("CUBLAS_WORKSPACE_CONFIG")
    if text is not None:  # ":KiB:count", several times
        numbers = text.lstrip(":").split(":")
        if len(numbers) % 2 == 0 and all(number.isdecimal() and len(number) < 10 for number in numbers):
            return sum(int(size) * int(count) for size, count in zip(numbers[::2], numbers[1::2])) << 10
    if not capability:
        return None
    return _WORKSPACE_BYTES_FROM_9 if capability[0] >= 9 else _WORKSPACE_BYTES


def libraries():
    """Return the names of the GPU libraries and of the modules with allocators or kernels of their own that are loaded."""
    found = {name for name in MODULES if name in sys.modules and classes.space_named(name)}
    try:
        files = {path.rpartition(b"/")[2] for path in _mapped_files()}
    except OSError:  # no /proc
        files = ()
    stems = {file.partition(b".so")[0].decode("ascii", "replace") for file in files}
    found.update(name for name in LIBRARIES if any(stem == name or stem.startswith(name + "-") for stem in stems))
    return sorted(found)


def _mapped_files():
    """Yield the paths of shared objects in the address space."""
    for line in read_small("/proc/self/maps", _MOST_MAPS_BYTES).splitlines():
        path = line[line.find(b"/"):] if b"/" in line else b""
        if b".so" in path:
            yield path


def read_jit_libraries(row):
    """Add `jit_libraries`: shared objects that were built while programs ran, each counted once; only beside torch."""
    if not classes.space_named("torch"):
        return
    row["jit_libraries"] = len({path for path in _mapped_files()
                                if any(folder in path for folder in _JIT_FOLDERS)
                                and not any(folder in path for folder in _NOT_JIT)})


def read_compiled(row):
    """Add `compiled_graphs` and `recompiles`, from the dicts in which torch._dynamo counts. They are read as dicts."""
    counters = classes.space_named("torch._dynamo.utils").get("counters")
    if counters is None or not _is_dict(counters):
        return
    graphs = _number(dict.get(counters, "stats"), "unique_graphs")
    if graphs is not None:
        row["compiled_graphs"] = graphs
    # How often each frame was compiled (convert_frame.py): once is no recompile.
    compiled = classes.space_named("torch._dynamo.convert_frame").get("FRAME_COMPILE_COUNTER")
    if compiled is not None and _is_dict(compiled):
        row["recompiles"] = sum(count - 1 for count in list(dict.values(compiled)) if type(count) is int and count > 1)


def _is_dict(thing):
    return any(base is dict for base in classes.mro_of(type(thing)))


def _number(counter, name):
    value = dict.get(counter, name) if counter is not None and _is_dict(counter) else None
    return value if type(value) is int else None


def process_groups():
    """Return how many groups torch.distributed has, None where it is not loaded."""
    groups = classes.space_named("torch.distributed.distributed_c10d").get("_pg_map")
    return dict.__len__(groups) if type(groups) is dict else None
