"""The checks of gpu_checks.py that come after the most important ones, and what the others borrow; see gpu_check_bodies.py."""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpu_check_sums import MIB, pinned, slope_ends, status_bytes, workspace_quantum

from leakscope.commands import _nvml

PATIENCE_S = 30.0
SLEEP_CYCLES = 4_000_000_000  # about two seconds of an H200


def raw_memory() -> dict[str, Any]:
    """What both forms of the driver's memory say, as they are: whether "used" has the driver's own part in it."""
    import pynvml

    handle, found = pynvml.nvmlDeviceGetHandleByIndex(0), {}  # type: Any, dict[str, Any]
    for name, settings in (("first", {}), ("second", {"version": getattr(pynvml, "nvmlMemory_v2", 0)})):
        try:
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle, **settings)
            found[name] = {part: int(getattr(memory, part)) for part in ("total", "free", "used", "reserved")
                           if hasattr(memory, part)}
        except Exception as error:
            found[name] = repr(error)
    try:
        found["mig"] = list(pynvml.nvmlDeviceGetMigMode(handle))
    except Exception as error:
        found["mig"] = repr(error)
    return found


@contextmanager
def waiting(size: int) -> Iterator[None]:
    """A block of so many bytes that was freed while another stream still uses it."""
    import torch

    side = torch.cuda.Stream()
    given = torch.empty(size, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(SLEEP_CYCLES)
    given.record_stream(side)
    del given
    yield
    torch.cuda.synchronize()


def used_bytes(nvml: _nvml.Nvml) -> int:
    """Of the first device."""
    row = nvml.row()
    if row is None:
        raise SystemExit("NVML answers for no device.")
    return int(row["devices"][0]["used_bytes"])


def connected() -> _nvml.Nvml:
    """NVML, or the end."""
    found = _nvml.connect()
    if isinstance(found, str):
        raise SystemExit(f"NVML cannot be read: {found}.")
    return found


def of_session(out: Path) -> dict[str, Any]:
    """What `leakscope run` left in a folder: maps of blocks, rows of NVML, columns, the verdict and the owners."""
    session, found = out / "session", {}  # type: Path, dict[str, Any]
    maps = sorted(session.glob("*/snapshots/*/devices.json"))
    rows = session / "nvml.jsonl"
    found["maps"], found["nvml_rows"] = len(maps), len(rows.read_text().splitlines()) if rows.exists() else 0
    samples = [json.loads(line) for file in session.glob("*/timeline.jsonl") for line in file.read_text().splitlines()]
    found["columns"] = sorted({name for sample in samples for name in sample if name.startswith(("cuda", "pinned"))})
    for name in ("done.json", "process.json"):
        done = [json.loads(file.read_text()) for file in sorted(session.glob(f"**/{name}"))]
        found[name.partition(".")[0]] = [{key: each[key] for key in ("method", "walk", "pause_ns", "why_not_native", "notes")
                                          if key in each} for each in done]
    if (session / "session.json").exists():
        found["gpu"] = json.loads((session / "session.json").read_text()).get("gpu")
    if (out / "report.json").exists():
        report = json.loads((out / "report.json").read_text())
        found["verdict"] = str((report.get("verdict") or {}).get("class"))
        found["owners"] = ", ".join(str(each.get("owner")) for each in report.get("findings") or ())[:500]
    return found


def evidence(out: Path) -> dict[str, Any]:
    """The device's part of a session, for a fixture: rows of NVML, columns of the timeline, the last map of blocks."""
    session = out / "session"
    nvml, maps = session / "nvml.jsonl", sorted(session.glob("*/snapshots/*/devices.json"))
    samples = [json.loads(line) for file in session.glob("*/timeline.jsonl") for line in file.read_text().splitlines()]
    return {"recorded": True, "timeline": [{name: value for name, value in sample.items()
                                            if name in ("t_ns", "work_count") or name.startswith(("cuda", "pinned"))}
                                           for sample in samples],
            "nvml": [{**json.loads(line), "names": {}} for line in nvml.read_text().splitlines()] if nvml.exists() else [],
            "devices": json.loads(maps[-1].read_text()) if maps else None}


def context(told: Any, _variant: str) -> None:
    """Check 1: what a context costs, and whether mem_get_info makes one."""
    import torch

    nvml, ask = connected(), "import torch; print(torch.cuda.is_initialized()); torch.cuda.mem_get_info(); "
    before = used_bytes(nvml)
    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    after = used_bytes(nvml)
    told(context_mib=(after - before) / MIB, reserved_mib=torch.cuda.memory_reserved(0) / MIB)
    child = subprocess.Popen([sys.executable, "-c", ask + "print(torch.cuda.is_initialized(), flush=True); input()"],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin and child.stdout
    said = [child.stdout.readline().strip() for _ in range(2)]
    told(by_mem_get_info_mib=(used_bytes(nvml) - after) / MIB, initialized_before_and_after=said)
    child.communicate("\n", timeout=PATIENCE_S)
    told.end(None)


@contextmanager
def threads(count: int, work: Callable[[], None]) -> Iterator[None]:
    """Threads that have worked and stay until the end of the block."""
    ready, leave = threading.Barrier(count + 1, timeout=PATIENCE_S), threading.Event()

    def run() -> None:
        work()
        ready.wait()
        leave.wait()

    started = [threading.Thread(target=run) for _ in range(count)]
    for each in started:
        each.start()
    ready.wait()
    try:
        yield
    finally:
        leave.set()
        for each in started:
            each.join()


def workspaces(told: Any, _variant: str) -> None:
    """Check 6: a workspace for each pair of a thread (its handle) and a stream."""
    import torch

    quantum, counts, wrong = workspace_quantum(torch.cuda.get_device_capability(0)), {}, []  # type: int, dict[str, int], list[str]
    streams = [torch.cuda.Stream() for _ in range(4)]
    for thread_count, stream_count in ((1, 1), (1, 4), (8, 1), (8, 4)):
        def multiply() -> None:
            left = torch.randn(256, 256, device="cuda")
            for stream in streams[:stream_count]:  # noqa: B023
                with torch.cuda.stream(stream):
                    left @ left
            torch.cuda.synchronize()

        torch._C._cuda_clearCublasWorkspaces()
        with threads(thread_count, multiply):
            found = sum(block["size"] == quantum and block["state"] == "active_allocated"
                        for segment in torch.cuda.memory._snapshot()["segments"] for block in segment["blocks"])
        counts[f"{thread_count}x{stream_count}"] = found
        wrong += [f"{thread_count} threads x {stream_count} streams: {found}"] * (found != thread_count * stream_count)
        told(counts=counts, quantum=quantum)
    told.end(not wrong, "; ".join(wrong))


def pending(told: Any, _variant: str) -> None:
    """Check 11: frees that wait are active and not allocated; pinned memory is held in powers of two and is shared memory."""
    import torch

    size = 128 * MIB
    with waiting(size):
        stats = torch.cuda.memory_stats(0)
        waits = stats["active_bytes.all.current"] - stats["allocated_bytes.all.current"]
        told(pending_bytes=waits, expected=size)
    ask = getattr(torch.cuda, "host_memory_stats", dict)
    before = status_bytes(Path("/proc/self/status").read_text(), "RssShmem")
    kept = [torch.empty(each * MIB, dtype=torch.uint8, pin_memory=True) for each in (33, 65, 129)]
    held, used = pinned(ask())
    after = status_bytes(Path("/proc/self/status").read_text(), "RssShmem")
    told(pinned_held=held, pinned_used=used, asked=sum(each.numel() for each in kept), shmem_before=before, shmem_after=after)
    del kept
    told(held_after_free=pinned(ask())[0], used_after_free=pinned(ask())[1], host_keys=sorted(ask()))
    is_held = held is None or used is None or held >= used
    told.end(waits == size and is_held, "" if waits == size else f"{waits} bytes wait")


def convolutions(told: Any, _variant: str) -> None:
    """Check 10: which term 100 shapes of convolutions and of attention grow."""
    import torch

    torch.backends.cudnn.benchmark = True
    nvml = connected()
    layer = torch.nn.Conv2d(32, 32, 3, padding=1).cuda().half()
    for name, step in (("conv", lambda n: layer(torch.randn(1, 32, 32 + n, 48, device="cuda").half())),
                       ("attention", lambda n: torch.nn.functional.scaled_dot_product_attention(
                           *[torch.randn(1, 8, 32 + 8 * n, 64, device="cuda").half() for _ in range(3)]))):
        outside, reserved = [], []
        for number in range(100):
            with torch.no_grad():
                step(number)
            torch.cuda.synchronize()
            reserved.append(torch.cuda.memory_reserved(0))
            outside.append(used_bytes(nvml) - reserved[-1])
            if number % 10 == 9:
                told(**{f"{name}_outside_each_mib": slope_ends(outside) / MIB,
                        f"{name}_reserved_each_mib": slope_ends(reserved) / MIB,
                        f"{name}_last_third_outside_mib": (outside[-1] - outside[-len(outside) // 3]) / MIB})
    told.end(None)


KERNEL = """
import triton
import triton.language as tl

@triton.jit
def fill(out, LENGTH: tl.constexpr, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + places, places * LENGTH, mask=places < LENGTH)
"""


def kernels(told: Any, _variant: str) -> None:
    """Check 9: memory outside of the allocator for each constexpr length, and after the cache was emptied."""
    import torch

    if importlib.util.find_spec("triton") is None:
        told.end(None, "triton is not installed")
        return
    import triton

    file = told.work / "lengths_kernel.py"  # triton reads the source of a kernel
    file.write_text(KERNEL)
    spec = importlib.util.spec_from_file_location("lengths_kernel", file)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    os.environ.setdefault("TRITON_CACHE_DIR", str(told.work / "triton"))
    nvml, out, outside = connected(), torch.zeros(1 << 16, dtype=torch.int32, device="cuda"), []
    end_s = time.monotonic() + 75
    for number in range(200):
        module.fill[(64,)](out, LENGTH=1000 + number, BLOCK=1024)
        torch.cuda.synchronize()
        outside.append(used_bytes(nvml) - torch.cuda.memory_reserved(0))
        if number % 10 == 9 or time.monotonic() > end_s:
            told(kernels=number + 1, each_kib=slope_ends(outside) / 1024, triton=triton.__version__)
        if time.monotonic() > end_s:
            break
    caches = getattr(module.fill, "device_caches", None)
    told(cached={str(key): len(each[0]) for key, each in caches.items()} if caches else None)
    full = outside[-1]
    if caches is not None:
        caches.clear()
    gc.collect()
    torch.cuda.synchronize()
    told(given_back_mib=(full - used_bytes(nvml) + torch.cuda.memory_reserved(0)) / MIB)
    told.end(None)


def lengths(told: Any, _variant: str) -> None:
    """Check 13: FlashInfer's batch prefill over 100 lengths keeps its count of modules; memory outside is told."""
    import torch

    if importlib.util.find_spec("flashinfer") is None:
        told.end(None, "flashinfer is not installed")
        return
    import flashinfer

    nvml, outside, counts = connected(), [], []
    workspace = torch.empty(128 * MIB, dtype=torch.uint8, device="cuda")
    wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(workspace, "NHD")
    for number in range(100):
        length = 64 + 16 * number
        query, key, value = (torch.randn(length, 8, 128, device="cuda").half() for _ in range(3))
        ends = torch.tensor([0, length], dtype=torch.int32, device="cuda")
        wrapper.plan(ends, ends, 8, 8, 128, causal=True)
        wrapper.run(query, key, value)
        torch.cuda.synchronize()
        outside.append(used_bytes(nvml) - torch.cuda.memory_reserved(0))
        counts.append(cached_functions("flashinfer"))
        told(lengths=number + 1, cached_first=counts[0], cached_last=counts[-1], flashinfer=flashinfer.__version__,
             outside_each_mib=slope_ends(outside) / MIB)
    told.end(counts[-1] <= counts[min(4, len(counts) - 1)], "the caches grew with the lengths" * (counts[-1] > counts[4]))


def cached_functions(package: str) -> int:
    """Entries of all functools caches of a package."""
    import functools

    kind = functools._lru_cache_wrapper
    return sum(each.cache_info().currsize for each in gc.get_objects()
               if type(each) is kind and str(getattr(each, "__module__", "")).startswith(package))
