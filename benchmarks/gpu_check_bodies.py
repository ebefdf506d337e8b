"""What each check of gpu_checks.py does, in a process of its own on a machine with a GPU.

    python benchmarks/gpu_check_bodies.py NAME RESULT.json [VARIANT]

A check tells its numbers as it gets them; so those before a crash or a timeout are kept. Fixtures go beside RESULT.json. What
needs a device has not been run on one yet: it is written after the knowledge page "gpu", sections 1, 6 and 8.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import pickle
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpu_check_more as more
from gpu_check_sums import MIB, PICKLE_BYTES, drift, explained, key_sets, masked, workspace_quantum, zombies

from leakscope.agent.devices import Devices
from leakscope.analyse import fragmentation
from leakscope.analyse.device_use import uses
from leakscope.commands import _nvml
from leakscope.heap.blocks import Blocks

GIB = 1 << 30
DRIFT_BYTES = 20 * MIB  # knowledge page, 8.2, check 2
CUDA = 1  # code of cuda:0 in Blocks.device


class Told:
    """What a check tells: numbers, then whether it passed."""

    def __init__(self, file: Path) -> None:
        self.file, self.work, self.numbers = file, file.parent, {}  # type: Path, Path, dict[str, Any]

    def __call__(self, **numbers: Any) -> None:
        """Tell some numbers."""
        self.numbers.update(numbers)
        self._write({"numbers": self.numbers})

    def end(self, passed: bool | None, why: str = "") -> None:
        """Tell how it ended; None: there is nothing to pass."""
        self._write({"numbers": self.numbers, "passed": passed, "why": why, "is_whole": True})

    def _write(self, content: dict[str, Any]) -> None:
        draft = self.file.with_suffix(".draft")
        draft.write_text(json.dumps(content))
        draft.replace(self.file)

    def fixture(self, name: str, content: Any) -> None:
        """Keep a JSON fixture."""
        (self.work / f"fixture-{name}.json").write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")

    def pickled(self, name: str, snapshot: dict[str, Any]) -> None:
        """Keep a snapshot as torch itself pickles it, without the machine's paths; tell its keys."""
        content = pickle.dumps(masked(snapshot), protocol=2)
        self(**{f"{name}_bytes": len(content)})
        if len(content) <= PICKLE_BYTES:
            (self.work / f"{name}.pickle").write_bytes(content)
        self.fixture(f"{name}-keys", key_sets(snapshot))


def out_of_memory() -> type[RuntimeError]:
    """The error that torch raises; before 2.5 it lies elsewhere."""
    import torch

    found: type[RuntimeError] = getattr(torch, "OutOfMemoryError", None) or torch.cuda.OutOfMemoryError
    return found


class Driver:
    """NVML as leakscope reads it. `used`: of the device; `own`: by this process, and how well that is known."""

    def __init__(self, devices: Devices | None = None) -> None:
        found = _nvml.connect()
        if isinstance(found, str):
            raise SystemExit(f"NVML cannot be read: {found}.")
        self.nvml, self._devices = found, devices
        self._infos: list[dict[str, Any]] = []

    def row(self) -> dict[str, Any]:
        """The row of now."""
        row = self.nvml.row()
        if row is None:
            raise SystemExit("NVML answers for no device.")
        return {"t_ns": time.monotonic_ns(), **row}

    def used(self) -> int:
        """Of the only device, or the first."""
        return int(self.row()["devices"][0]["used_bytes"])

    def own(self) -> tuple[int | None, str]:
        """Bytes of this process by the lists of the driver; how they were found."""
        devices = self._devices or Devices("auto", print)
        if not self._infos:
            taken = devices.take()
            self._infos = taken.said["devices"] if taken else []
        sample: dict[str, Any] = {"t_ns": time.monotonic_ns()}
        devices.read(sample)
        row = {**self.row(), "t_ns": sample["t_ns"]}  # at once, however slow this machine is
        found = uses([sample], [row], self._infos, os.getpid()).get("cuda:0")
        if found is None or not found.process:
            return None, found.how if found else "no columns"
        return int(found.process[0][1]), found.quality


def record(told: Told, devices: Devices) -> dict[str, Any]:
    """A devices.json as the agent writes it, read again."""
    taken = devices.take()
    if taken is None:
        raise SystemExit("The agent's collector saw no device.")
    devices.write(str(told.work), taken)
    found: dict[str, Any] = json.loads((told.work / "devices.json").read_text())
    return found


def snapshot() -> dict[str, Any]:
    """torch's own snapshot of all devices."""
    import torch

    found: dict[str, Any] = torch.cuda.memory._snapshot()
    return found


def environment(told: Told, _variant: str) -> None:
    """Check 0: what there is, and whether NVML sees this process."""
    import platform

    import torch

    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    devices = Devices("auto", print)
    driver, properties = Driver(devices), torch.cuda.get_device_properties(0)
    told(torch=torch.__version__, cuda=torch.version.cuda, python=platform.python_version(), kernel=platform.release(),
         driver=driver.nvml.driver, nvml=driver.nvml.version, backend=torch.cuda.get_allocator_backend(),
         model=properties.name, capability=list(torch.cuda.get_device_capability(0)), total_bytes=properties.total_memory,
         uuid=str(getattr(properties, "uuid", "absent")), count=torch.cuda.device_count())
    row = driver.row()
    listed = [pid for pid, _ in row["devices"][0]["processes"] or ()]
    own, how = driver.own()
    told(devices=row["devices"], names=row.get("names"), own_pid=os.getpid(), is_own_pid_listed=os.getpid() in listed,
         listed_count=len(listed), own_bytes=own, own_known=how, raw=more.raw_memory(), forms=driver.nvml._forms)
    said = record(told, devices)
    told.fixture("devices-json", said)
    told(info=said["devices"], notes=said["notes"], settings=said["settings"])
    told.end(bool(said["devices"]) and own is not None, "" if own is not None else f"use by this process is not known: {how}")


def identity(told: Told, variant: str) -> None:
    """Check 2: used = outside + reserved with the same outside over 50 states, and the block map adds up to the counters."""
    import torch

    devices, draw = Devices("auto", print), random.Random(7)
    torch.zeros(1, device="cuda")
    driver = Driver(devices)
    live: list[Any] = []
    outside, hows, wrong = [], set(), []
    for state in range(50):
        for _ in range(draw.randrange(1, 6)):
            live.append(torch.empty(int(512 * 2 ** draw.uniform(0, 19)), dtype=torch.uint8, device="cuda"))
        while live and draw.random() < 0.45:
            live.pop(draw.randrange(len(live)))
        if state % 10 == 9:
            torch.cuda.empty_cache()
        torch.cuda.synchronize()
        stats = torch.cuda.memory_stats(0)
        own, how = driver.own()
        hows.add(how)
        outside.append((driver.used() if own is None else own) - stats["reserved_bytes.all.current"])
        sums = Blocks.of(record(told, devices)).totals(CUDA)
        expected = {"reserved": "reserved_bytes", "allocated": "allocated_bytes"}
        if variant == "native":  # of expandable segments the counter leaves out what no whole page is free of
            expected["inactive_split"] = "inactive_split_bytes"
        for name, key in expected.items():
            found, counted = getattr(sums, name), stats[f"{key}.all.current"]
            wrong += [f"{state}: {name} is {found} in the map, {counted} by the counters"] * (found != counted)
        told(drift_mib=drift(outside) / MIB, outside_mib=outside[-1] / MIB, wrong=wrong[:20], known=sorted(hows),
             states=state + 1)
    is_expandable = any(each.get("is_expandable") for each in snapshot()["segments"])
    told(is_expandable=is_expandable)
    reasons = [f"outside drifted by {drift(outside) / MIB:.1f} MiB"] * (drift(outside) > DRIFT_BYTES) + wrong[:1]
    reasons += ["segments are not expandable"] * (variant == "expandable" and not is_expandable)
    told.end(not reasons, "; ".join(reasons))


def forms(told: Told, _variant: str) -> None:
    """Check 3: the keys of this torch, and real snapshots in each state as fixtures."""
    import torch

    kept = [torch.empty(size, device="cuda") for size in (100, 300_000, 5_000_000)]
    memory = torch.cuda.memory
    told.fixture("stats-keys", sorted(torch.cuda.memory_stats(0)))
    host = getattr(torch.cuda, "host_memory_stats", None)
    torch.empty(3 * MIB, dtype=torch.uint8, pin_memory=True)
    told.fixture("host-stats", host() if host else {})
    told.pickled("frames-off", snapshot())
    memory._record_memory_history(enabled="state", context="state", stacks="python")
    kept.append(torch.empty(7 * MIB, dtype=torch.uint8, device="cuda"))
    with_frames = snapshot()
    told.pickled("frames-state", with_frames)
    memory._record_memory_history(enabled=None)
    memory._record_memory_history(enabled="all", max_entries=2000, stacks="python")
    for _ in range(50):
        torch.empty(2 * MIB, dtype=torch.uint8, device="cuda")
    told.pickled("frames-all", snapshot())
    memory._record_memory_history(enabled=None)
    if hasattr(torch.cuda, "MemPool"):
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            kept.append(torch.empty(4 * MIB, dtype=torch.uint8, device="cuda"))
        told.pickled("private-pool", snapshot())
    with more.waiting(16 * MIB):
        told.pickled("pending-free", snapshot())
    torch.cuda.synchronize()
    observed = _oom(told, 2 * GIB, GIB)
    states = set(json.loads((told.work / "fixture-pending-free-keys.json").read_text())["states"])
    recorded = sum(bool(block.get("frames")) for segment in with_frames["segments"] for block in segment["blocks"])
    told(blocks_with_frames=recorded)
    reasons = ["no block has frames"] * (not recorded)
    reasons += ["no block was pending"] * (not states & {"active_pending_free", "active_awaiting_free"})
    reasons += ["the observer was not called"] * (not observed)
    told.end(not reasons, "; ".join(reasons))


def _oom(told: Told, request: int, limit: int) -> list[int]:
    """Run out of memory with a snapshot by an observer, as leakscope takes one; return what the observer was given."""
    import torch

    given: list[int] = []

    def observe(*numbers: int) -> None:
        if not given:
            given.extend(numbers)
            told.pickled("out-of-memory", snapshot())

    torch._C._cuda_attach_out_of_memory_observer(observe)
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved(0) + limit) / total)
    message = ""
    try:
        torch.empty(request, dtype=torch.uint8, device="cuda")
    except out_of_memory() as error:
        message = str(error)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    told(observer_given=given, oom_text=message, requested=request, limit=limit)
    return given if message else []


def joined(told: Told, _variant: str) -> None:
    """Check 4: by the addresses of storages, at least 99 % of what is allocated has an owner or is a workspace."""
    import torch

    draw, kept = random.Random(5), []  # type: random.Random, list[Any]
    for number in range(5000):
        if kept and number % 5 == 0:
            kept.append(kept[draw.randrange(len(kept))][1:])  # a view
        else:
            kept.append(torch.empty(draw.randrange(2, 60_000), device="cuda"))
    left, right = (torch.randn(512, 512, device="cuda") for _ in range(2))
    kept.append(left @ right)
    torch.cuda.synchronize()
    began_s = time.perf_counter()
    tensors = [each for each in gc.get_objects() if issubclass(type(each), torch.Tensor) and each.is_cuda and each.numel()]
    # without a wrapper of the storage, which would stay (knowledge page, finding 5); of what is empty the address is 0
    places = {torch._C._storage_id(each): (each.data_ptr() - each.storage_offset() * each.element_size(), 1)
              for each in tensors}
    scan_s = time.perf_counter() - began_s
    quantum = workspace_quantum(torch.cuda.get_device_capability(0))
    sums = explained(snapshot()["segments"], places.values(), quantum)
    counted = torch.cuda.memory_stats(0)["allocated_bytes.all.current"]
    part = (sums["owned"] + sums["workspaces"]) / counted
    told(**sums, counted=counted, explained_ratio=part, tensors=len(tensors), storages=len(places), scan_s=scan_s)
    told.end(part >= 0.99 and sums["allocated"] == counted, "" if part >= 0.99 else "too little is explained")


def _look(pipe: int) -> None:
    """In the forked child: read what a walk reads of tensors, by C functions alone; never returns."""
    import torch

    gc.disable()
    try:
        seen, sizes = gc.get_objects(), 0
        count = 0
        with torch._C.DisableTorchFunctionSubclass():
            for each in seen:
                if issubclass(type(each), torch.Tensor):
                    count += 1
                    sizes += torch.Tensor.numel(each) * torch.Tensor.element_size(each)
                    torch._C._storage_id(each)
                    torch.Tensor.data_ptr(each)
        os.write(pipe, json.dumps([count, sizes, torch.cuda.is_initialized()]).encode())
        os._exit(0)
    except BaseException as error:
        os.write(pipe, repr(error).encode()[:500])
        os._exit(9)


def forked(told: Told, _variant: str) -> None:
    """Check 5: children read tensors beside events, streams, pinned memory and a graph; the parent goes on for 200 steps."""
    import torch

    weights = torch.eye(512, device="cuda")
    events = [torch.cuda.Event(enable_timing=True) for _ in range(50)]
    streams = [torch.cuda.Stream() for _ in range(4)]
    pinned = [torch.ones(1 << 18).pin_memory() for _ in range(8)]
    graph, still = torch.cuda.CUDAGraph(), torch.ones(512, 512, device="cuda")
    still @ weights  # handles are made outside of a capture
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        after = still @ weights
    kept, answers, pauses, total = [], [], [], 0.0
    for step in range(200):
        with torch.cuda.stream(streams[step % 4]):
            kept.append(pinned[step % 8].to("cuda", non_blocking=True) * step)
        events[step % 50].record()
        graph.replay()
        total += float(after.sum())
        if step % 25 == 24:
            read, write = os.pipe()
            began_s = time.perf_counter()
            child = os.fork()
            if child == 0:
                _look(write)
            pauses.append(time.perf_counter() - began_s)
            os.close(write)
            said = b"".join(iter(lambda: os.read(read, 4096), b""))  # noqa: B023
            os.close(read)
            answers.append((os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said.decode()))
            told(children=answers, pause_ms=max(pauses) * 1000, steps=step + 1)
    torch.cuda.synchronize()
    is_right = total == 200.0 * 512 * 512 and all(float(each[0]) == step for step, each in enumerate(kept))
    reasons = ["a child failed"] * any(code for code, _ in answers) + ["the parent's numbers are wrong"] * (not is_right)
    told.end(not reasons, "; ".join(reasons))


def fragmented(told: Told, _variant: str) -> None:
    """Check 7: a request that is smaller than what is free in all, and larger than the largest piece that may serve it."""
    import torch

    total = torch.cuda.get_device_properties(0).total_memory
    whole = torch.empty(1536 * MIB, dtype=torch.uint8, device="cuda")
    del whole
    pieces = [torch.empty(20 * MIB, dtype=torch.uint8, device="cuda") for _ in range(70)]
    del pieces[::2]
    request = 300 * MIB
    devices = Devices("auto", print)
    fit = fragmentation.fit(Blocks.of(record(told, devices)), CUDA, request)
    told(request_mib=request / MIB, fit={name: value for name, value in fit._asdict().items()}, fits=fit.fits,
         is_fragmented=fit.is_fragmented)
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved(0) + 64 * MIB) / total)
    given: list[int] = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *numbers: given.extend(numbers))
    message = ""
    try:
        torch.empty(request, dtype=torch.uint8, device="cuda")
    except out_of_memory() as error:
        message = str(error)
    told(observer_given=given[:4], oom_text=message, kept=len(pieces), ooms=torch.cuda.memory_stats(0)["num_ooms"])
    told.pickled("fragmented", snapshot())
    reasons = ["it did not run out of memory"] * (not message)
    reasons += ["the rule does not call it fragmented"] * (not fit.is_fragmented)
    told.end(not reasons, "; ".join(reasons))


def graphs(told: Told, _variant: str) -> None:
    """Check 8: 20 graphs of as many shapes, each with a pool of its own; then a capture that fails."""
    import torch

    devices = Devices("auto", print)
    kept, reserved, used = [], [], []
    weights = torch.randn(1024, 1024, device="cuda")
    weights @ weights
    torch.cuda.synchronize()
    driver = Driver(devices)
    for number in range(20):
        given = torch.randn(64 * (number + 1), 1024, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = torch.relu(given @ weights) @ weights
        kept.append((graph, given, out))
        torch.cuda.synchronize()
        row: dict[str, Any] = {}
        devices.read(row)
        own, how = driver.own()
        reserved.append(sum(each["total_size"] for each in snapshot()["segments"] if tuple(each["segment_pool_id"]) != (0, 0)))
        used.append((driver.used() if own is None else own) - row["cuda0_reserved_bytes"])
        told(graphs=number + 1, private_mib=reserved[-1] / MIB, counted_mib=(row.get("cuda0_private_pool_bytes") or 0) / MIB,
             outside_mib=[size / MIB for size in used], known=how)
    pools = len({tuple(each["segment_pool_id"]) for each in snapshot()["segments"]})
    told(pools=pools, outside_each_mib=(used[-1] - used[0]) / 19 / MIB)
    told.pickled("graphs", snapshot())
    before, failed = set(zombies(snapshot()["segments"])), ""
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            torch.randn(2048, 2048, device="cuda").sum().item()  # waiting is not allowed in a capture
    except Exception as error:
        failed = type(error).__name__
    gc.collect()
    left = {name: size for name, size in zombies(snapshot()["segments"]).items() if name not in before}
    told(failed_capture=failed, zombie_pools=left)
    told.pickled("failed-capture", snapshot())
    told.end(reserved[-1] > reserved[0] and bool(failed), "" if failed else "the capture did not fail")


def overhead(told: Told, _variant: str) -> None:
    """Check 12: what the agent's questions cost with 10,000 blocks, and recording over 1000 allocations."""
    import torch

    kept = [torch.empty(2000, device="cuda") for _ in range(10_000)]
    torch.cuda.synchronize()
    devices = Devices("auto", print)

    def median_ms(ask: Callable[[], Any], count: int) -> float:
        times = []
        for _ in range(count):
            began_ns = time.perf_counter_ns()
            ask()
            times.append(time.perf_counter_ns() - began_ns)
        return statistics.median(times) / 1e6

    def allocate() -> None:
        for _ in range(1000):
            torch.empty(1000, device="cuda")

    devices.read({})
    told(stats_ms=median_ms(lambda: torch.cuda.memory_stats(0), 200), row_ms=median_ms(lambda: devices.read({}), 200),
         map_ms=median_ms(devices.take, 20), snapshot_ms=median_ms(snapshot, 5), nvml_ms=median_ms(Driver(devices).row, 50),
         blocks=len(kept))
    plain_ms = median_ms(allocate, 20)
    told(plain_ms=plain_ms)
    for name, settings in (("state", {"enabled": "state", "context": "state", "stacks": "python"}),
                           ("trace", {"enabled": "all", "max_entries": 50_000, "stacks": "python"})):
        torch.cuda.memory._record_memory_history(**settings)
        slower = median_ms(allocate, 20) / plain_ms - 1
        told(**{f"{name}_percent": 100 * slower, f"{name}_map_ms": median_ms(devices.take, 5)})
        torch.cuda.memory._record_memory_history(enabled=None)
    cost = told.numbers["row_ms"]
    told.end(cost <= 2.0, "" if cost <= 2.0 else f"a row costs {cost:.2f} ms")


LEAKING = """
import time, torch
class Service:
    def __init__(self):
        self.answers = {}
    def serve(self, number):
        self.answers[number] = torch.zeros(1 << 20, device="cuda")
service = Service()
for number in range(600):
    service.serve(number)
    time.sleep(0.05)
"""


def whole(told: Told, _variant: str) -> None:
    """Check 14: `leakscope run` on a program that keeps tensors on the device."""
    program, out = told.work / "leaking.py", told.work / "leakscope-report"
    program.write_text(LEAKING)
    if importlib.util.find_spec("graphviz") is None:  # pictures, which this check does not look at
        (told.work / "graphviz.py").write_text("class Digraph: pass\n")
    path = os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(told.work)])
    command = [sys.executable, "-m", "leakscope", "run", "-o", str(out), "--every", "6s", "--quiet", "--format", "json", "--",
               sys.executable, str(program)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})
    told(code=done.returncode, said=done.stderr[-1500:])
    told(**more.of_session(out))
    told.fixture("whole", more.evidence(out))
    numbers = told.numbers
    reasons = ["the exit code is not 0"] * (done.returncode != 0) + ["no map of blocks"] * (not numbers.get("maps"))
    reasons += ["NVML was not read"] * (not numbers.get("nvml_rows")) + ["no report"] * ("verdict" not in numbers)
    reasons += ["the owner is not named"] * ("answers" not in numbers.get("owners", ""))
    told.end(not reasons, "; ".join(reasons))


BODIES: dict[str, Callable[[Told, str], None]] = {each.__name__: each for each in (
    environment, identity, forms, joined, forked, fragmented, graphs, overhead, whole,
    more.workspaces, more.context, more.pending, more.convolutions, more.kernels, more.lengths)}


def main() -> None:
    """Run one check."""
    name, file, variant = sys.argv[1:]
    BODIES[name](Told(Path(file)), variant)


if __name__ == "__main__":
    main()
