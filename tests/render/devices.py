"""A report with a device, made by hand: an embedding server on an H200. SIMULATED: no GPU was there, the numbers are ours."""

from __future__ import annotations

import dataclasses
import random

from leakscope.model import CacheRow, Confidence, Finding, Layer, Location, Path, Rate, Rule, Step, Verdict, VerdictClass
from leakscope.report import (
    DeviceChapter,
    DeviceOwner,
    DeviceTerm,
    Fragmentation,
    PinningBlock,
    Report,
    SegmentPart,
    SegmentRow,
    Series,
    SnapshotMark,
)
from tests.render.reports import HOSTILE, MIB, no_leak, with_strings

GIB = 1024 * MIB
HOURS = 2 * 3600.0
SNAPSHOTS_S = (300.0, 1500.0, 3300.0, 5400.0, 7100.0)
TERMS = (("outside", 2.1, 3.9), ("allocated_owned", 61.2, 12.4), ("workspaces", 0.125, 0.0), ("allocated_unowned", 1.5, 0.25),
         ("pending", 0.0, 0.0), ("inactive_split", 0.6, 1.1), ("releasable", 4.0, -0.75))
SITE = Location("EmbeddingClient.embed", "serve.py", 61, 0.97)


def gpu_leak() -> Report:
    """Two hours of a server whose tensor cache grows; caches, fragmentation, a private pool."""
    times = [120.0 * index for index in range(61)]
    part = [t / HOURS for t in times]
    terms = tuple(DeviceTerm(name, int(start * GIB), int(grown * GIB), name in ("allocated_owned", "workspaces"))
                  for name, start, grown in TERMS)
    used = sum(term.growth_bytes or 0 for term in terms)
    wholes = (DeviceTerm("used", int(69.525 * GIB), used), DeviceTerm("reserved", int(67.425 * GIB), used - int(3.9 * GIB)),
              DeviceTerm("active", int(62.825 * GIB), int(12.65 * GIB)),
              DeviceTerm("allocated", int(62.825 * GIB), int(12.65 * GIB)))
    series = (
        Series("process_bytes", "bytes", tuple((t, (69.5 + 16.9 * p) * GIB) for t, p in zip(times, part))),
        Series("reserved_bytes", "bytes", tuple((t, (67.4 + int(13.0 * p)) * GIB) for t, p in zip(times, part))),
        Series("allocated_peak_bytes", "bytes", tuple((t, (64.0 + 12.65 * p) * GIB) for t, p in zip(times, part))),
        Series("allocated_bytes", "bytes", tuple((t, (62.8 + 12.65 * p) * GIB) for t, p in zip(times, part))),
        Series("largest_free_bytes", "bytes", tuple((t, (4.0 - t / 2400) * GIB) for t in SNAPSHOTS_S), True))
    chapter = DeviceChapter(
        "cuda:0", "NVIDIA H200", 150_754_820_096, "recorded", True, "exact", used, 0.985, terms, wholes, series, OWNERS, 3,
        CACHES, segments(14, 20), 187,
        Fragmentation(int(1.7 * GIB), int(4.95 * GIB), 720 * MIB,
                      (PinningBlock(2 * MIB, 512 * MIB, 446 * MIB, "serve.EmbeddingClient._tensor_cache[*]", SITE, 0.83),
                       PinningBlock(20 * MIB, 256 * MIB, 180 * MIB)), 9),
        (("Provider", "recorded, simulated"), ("PyTorch", "2.13.0"), ("Allocator", "native"), ("Recording", "state"),
         ("expandable_segments", "False"), ("max_split_size_mb", "512")),
        ("The peak of the allocator was never reset by LeakScope.",),
        "Peak memory follows batch size: 0.42 GiB a unit of batch (95 % interval: 0.38 GiB to 0.47 GiB); a batch of 176 would "
        "not fit.")
    path = Path((Step("module serve", "module", ".client", "no", ("a module lives for ever",)),
                 Step("serve.EmbeddingClient", "serve.EmbeddingClient", "._tensor_cache", "unknown"),
                 Step("dict", "dict", "[int]", "unknown"), Step("torch.Tensor", "torch.Tensor", "", "unknown")),
                "module", "serve.client._tensor_cache[*]", "serve.EmbeddingClient._tensor_cache")
    finding = Finding(
        Rule("LS401", "piled-tensors", "Tensors pile up under an owner"), Confidence.HIGH, "cuda:0",
        "serve.EmbeddingClient._tensor_cache", path, "torch.Tensor", 4242, 6_348, 0.88, {"host": 3_910_000, "cuda:0": 12 * GIB},
        {"cuda:0": int(11.98 * GIB)}, 0.71, 12 * GIB, (), SITE, (SITE,), (), ("its size rose in every interval",),
        ("no load was stopped before the last snapshot",), "Bound the cache, or keep the embeddings on the host.", None,
        "LS1-HANDMADEDEVICE42", (12, 1_600, 3_190, 4_770, 6_348),
        evidence=(("G", "it grew in every interval (entries): 12 -> 1 600 -> 3 190 -> 4 770 -> 6 348"),))
    return dataclasses.replace(
        no_leak(), findings=(finding,), devices=(chapter,), dismissed=(),
        session=dataclasses.replace(no_leak().session, duration_s=HOURS, command=("python", "serve.py")),
        verdict=Verdict(VerdictClass.GPU_LEAK, Confidence.HIGH,
                        "serve.EmbeddingClient._tensor_cache (dict) retains 12.0 GiB on cuda:0 and grew by 6 336 entries.",
                        used, Rate(2.4 * MIB, 2.3 * MIB, 2.5 * MIB), 7.4, None, (("G", "grew in every one of 4 intervals"),)),
        layers=(*no_leak().layers, Layer("cuda:0", used, None, {term.name: term.growth_bytes for term in terms})),
        series=(Series("pss_bytes", "bytes", tuple((t, 4 * GIB + t * 1000) for t in times)),
                *(dataclasses.replace(line, name=f"cuda0_{line.name}") for line in series[1:2])),
        snapshots=tuple(SnapshotMark(t, "ladder", 810_000, 9.1) for t in SNAPSHOTS_S))


OWNERS = (
    DeviceOwner("serve.model.encoder.layers[*].weight", int(60.8 * GIB), 0, 842,
                Location("load", "site-packages/safetensors/torch.py", 41)),
    DeviceOwner("serve.client._tensor_cache[*]", 12 * GIB, int(11.98 * GIB), 6_348, SITE),
    DeviceOwner("serve.client._batches[*].hidden", 410 * MIB, 160 * MIB, 12, None),
    DeviceOwner("flashinfer.workspace._BUFFERS[*]", 384 * MIB, 0, 3,
                Location("allocate", "site-packages/flashinfer/workspace.py", 88)),
    DeviceOwner("local variables of serve.pump()", 96 * MIB, -32 * MIB, 4, None),
    DeviceOwner("torch._dynamo.reset_code_state", 64 * MIB, None, 2, None))
CACHES = (
    CacheRow("flashinfer.prefill.get_batch_prefill_module()", "functools", (12, 110, 212, 310, 412),
             (90, 400, 800, 1_200, 1_600), (12, 110, 212, 310, 412), (0, 0, 0, 0, 0), None,
             "argument 3 (`max_seq_len`), integers 17 to 4096, looks like token counts", "value",
             {"host": 18 * MIB}, "flashinfer"),
    CacheRow("serve.client._tensor_cache", "table", (12, 1_600, 3_190, 4_770, 6_348), varying="integers 0 to 9007",
             varies_by="value", retained_bytes={"host": 3 * MIB, "cuda:0": 12 * GIB}),
    CacheRow("transformers.tokenization.lookup()", "functools", (256, 256, 256, 256, 256),
             (None, 9_000, 21_000, 33_000, 52_000), (256, 900, 1_700, 2_500, 3_400),
             (0, 644, 1_444, 2_244, 3_144), 256, "", "", {"host": 90_000}, "transformers"),
    CacheRow("torch._inductor.codecache.lookup()", "functools", (3, 40, 77, 120, 160), (0, 0, 0, 0, 0), (3, 40, 77, 120, 160),
             (0, 0, 0, 0, 0), None, "argument 2, functions", "identity", {"host": 3_000_000}, "torch"))


def hostile_devices() -> Report:
    """The same, every string of it hostile."""
    changed = with_strings(gpu_leak(), HOSTILE)
    assert isinstance(changed, Report)
    return changed


def segments(count: int, parts: int, seed: int = 7) -> tuple[SegmentRow, ...]:
    """Segments of several sizes, streams and pools, with holes."""
    draw = random.Random(seed)
    rows = []
    for number in range(count):
        whole = draw.choice((2, 20, 64, 256, 512)) * MIB
        rows.append(segment(whole, draw.randint(1, parts), draw, stream=(0, 0, 0, 94_421_337_600)[number % 4],
                            pool="0.1" if number % 9 == 4 else ""))
    return tuple(sorted(rows, key=lambda row: -row.free_bytes))


def segment(whole: int, count: int, draw: random.Random, stream: int = 0, pool: str = "") -> SegmentRow:
    """One segment of that many parts."""
    cuts = sorted(draw.randrange(512, whole, 512) for _ in range(count - 1))
    sizes = [end - start for start, end in zip([0, *cuts], [*cuts, whole]) if end > start]
    found = []
    states = ("private-pool", "free") if pool else (
        "owned", "owned", "owned", "free", "free", "unowned", "workspace", "pending")
    for size in sizes:
        state = draw.choice(states)
        found.append(SegmentPart(state, size, draw.choice((0, 1, 1, 2, 3, 5)) if state == "owned" else None))
    has_free = any(part.state == "free" for part in found)
    used = sum(part.size_bytes for part in found if part.state != "free")
    return SegmentRow(whole, stream, pool, False, tuple(
        dataclasses.replace(part, is_pinning=has_free and used < whole / 3 and part.state != "free") for part in found))
