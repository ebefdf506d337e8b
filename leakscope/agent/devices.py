"""Device counters of the target's torch, read only where the target itself has brought them up.

Nothing here imports, initialises or allocates: no CUDA context comes into being because of us (`mem_get_info` would
make one), and NVML is read only when the target has loaded and initialised `pynvml` itself.
"""

import os

from . import classes

# column -> (statistic, pool, part) of torch.cuda.memory_stats, by its flat key "statistic.pool.part" or as nested
# dicts.
_COLUMNS = (
    ("allocated_bytes", ("allocated_bytes", "all", "current")),
    ("reserved_bytes", ("reserved_bytes", "all", "current")),
    ("active_bytes", ("active_bytes", "all", "current")),
    ("inactive_split_bytes", ("inactive_split_bytes", "all", "current")),
    ("allocated_peak_bytes", ("allocated_bytes", "all", "peak")),
    ("alloc_retries", ("num_alloc_retries",)),
    ("ooms", ("num_ooms",)),
)


def read(row):
    """Add the columns `cudaN_*` of every device the target uses."""
    cuda = classes.space_named("torch.cuda")
    if cuda.get("_initialized") is not True or not cuda["is_initialized"]():
        return
    for ordinal in range(cuda["device_count"]()):
        statistics = cuda["memory_stats"](ordinal)
        if not statistics:
            continue
        for column, key in _COLUMNS:
            value = _statistic(statistics, key)
            if value is not None:
                row[f"cuda{ordinal}_{column}"] = value
        _read_nvml(row, ordinal)


def _statistic(statistics, key):
    """Return one number by either spelling of its key, or None."""
    value = statistics.get(".".join(key))
    if value is None:
        value = statistics
        for part in key:
            value = value.get(part) if isinstance(value, dict) else None
    return value if isinstance(value, int) else None


def _read_nvml(row, ordinal):
    nvml = classes.space_named("pynvml")
    index = _physical_index(ordinal)
    if not nvml or index is None:
        return
    try:
        handle = nvml["nvmlDeviceGetHandleByIndex"](index)
        row[f"cuda{ordinal}_used_bytes"] = int(nvml["nvmlDeviceGetMemoryInfo"](handle).used)
        for process in nvml["nvmlDeviceGetComputeRunningProcesses"](handle):
            # In a container NVML names processes by the host's numbers, so ours may be missing; then nothing is said.
            if process.pid == os.getpid() and process.usedGpuMemory is not None:
                row[f"cuda{ordinal}_process_bytes"] = int(process.usedGpuMemory)
    except Exception:  # not initialised by the target, or refused by the driver: not measured
        pass


def _physical_index(ordinal):
    """Return NVML's index of a CUDA device, or None when CUDA_VISIBLE_DEVICES names it otherwise than by number."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return ordinal
    names = [name.strip() for name in visible.split(",")]
    return int(names[ordinal]) if ordinal < len(names) and names[ordinal].isdigit() else None
