"""Four reports made by hand: what the renderers are tested with, realistic enough to look at."""

from __future__ import annotations

import dataclasses
import math
from enum import Enum
from typing import Any

from leakscope.model import (
    Confidence,
    CycleStep,
    Dismissed,
    Finding,
    Gap,
    Layer,
    Location,
    Path,
    Rate,
    Rule,
    Step,
    Verdict,
    VerdictClass,
)
from leakscope.report import GrowthRow, ProcessInfo, Report, Series, SessionInfo, SnapshotMark

MIB = 1 << 20
ENVIRONMENT = (("Python", "3.11.7 (CPython)"), ("Platform", "Linux 6.1, x86_64"), ("Processors", "8"), ("Memory", "32.0 GiB"),
               ("Allocator", "pymalloc, glibc 2.36"), ("Collector", "enabled, thresholds 700, 10, 10"),
               ("Options", "--every 5s --sites sampled"))


def python_leak() -> Report:
    """A server whose session store keeps every session: path, sites, 60 samples, 6 snapshots, two suspects."""
    times = [float(second) for second in range(60)]
    rss = [180 * MIB + (0 if t < 6 else (t - 6) * 3.4 * MIB) + 2 * MIB * math.sin(t / 3) for t in times]
    series = (
        Series("pss_bytes", "bytes", tuple((t, r - 6 * MIB) for t, r in zip(times, rss))),
        Series("rss_bytes", "bytes", tuple(zip(times, rss))),
        Series("malloc_used_bytes", "bytes", tuple((t, 60 * MIB + t * 0.2 * MIB) for t in times if not 21 < t < 33)),
        Series("py_blocks", "count", tuple((t, 410_000 + max(t - 6, 0) * 5_400) for t in times)),
        Series("threads", "count", tuple((t, 9.0 if t > 4 else 3.0) for t in times)),
        Series("fds", "count", tuple((t, 24.0 + (t % 7 > 4)) for t in times)),
    )
    marks = tuple(SnapshotMark(t, kind, count, pause) for t, kind, count, pause in (
        (3.0, "ladder", 391_201, 6.1), (12.0, "ladder", 431_877, 7.0), (24.0, "ladder", 498_002, 8.2),
        (36.0, "ladder", 561_340, 9.6), (48.0, "ladder", 626_118, 10.4), (59.0, "exit", 684_900, 11.2)))
    growth = (
        GrowthRow("type", "serve.Session", (12, 3_120, 7_204, 11_288, 15_371, 19_110),
                  tuple(count * 9_216 for count in (12, 3_120, 7_204, 11_288, 15_371, 19_110))),
        GrowthRow("type", "bytes", (20_114, 23_240, 27_311, 31_420, 35_502, 39_240),
                  (9 * MIB, 38 * MIB, 76 * MIB, 112 * MIB, 150 * MIB, 183 * MIB)),
        GrowthRow("type", "dict", (8_801, 12_011, 16_093, 20_150, 24_266, 28_001),
                  (2 * MIB, 3 * MIB, 4 * MIB, 5 * MIB, 6 * MIB, 7 * MIB)),
        GrowthRow("type", "functools._lru_list_elem", (64, 512, 1_408, 2_200, 2_610, 2_621), (4_096, 32_768, 90_112, 140_800,
                                                                                             167_040, 167_744)),
        GrowthRow("owner", "serve.SessionStore._by_id", (12, 3_120, 7_204, 11_288, 15_371, 19_110),
                  (MIB, 29 * MIB, 67 * MIB, 103 * MIB, 141 * MIB, 174 * MIB)),
        GrowthRow("owner", "serve._recent_errors", (0, 40, 88, 131, 180, 222), (0, 640_000, 1_408_000, 2_096_000, 2_880_000,
                                                                              3_552_000)),
        GrowthRow("owner", "geo.lookup", (64, 512, 1_408, 2_200, 2_610, 2_621), (4_096, 32_768, 90_112, 140_800, 167_040,
                                                                                167_744)),
    )
    return Report(
        tool_version="0.1.0",
        session=SessionInfo(
            "8f3a91c0d2b7", ("python", "serve.py", "--port", "8080", "--token", "***"), "2026-11-30T11:35:11Z", 59.8, 0, None,
            "nightly", (ProcessInfo(4242, 4240, "main", "3.11.7", "complete", 60, 6, "fork", 11.2, "native", "sampled"),
                        ProcessInfo(4250, 4242, "fork", "3.11.7", "died", 31, 2, "in-place", None, "python", "off")),
            ENVIRONMENT),
        verdict=Verdict(
            VerdictClass.PYTHON_LEAK, Confidence.HIGH,
            "serve.SessionStore._by_id (dict) grew by 19 098 entries, 173.0 MiB (94 % of the growth), 1.0 entries per request.",
            185 * MIB, Rate(3.4 * MIB, 3.3 * MIB, 3.5 * MIB), 0.6412, 8192 * MIB,
            (("G", "grew in every one of 5 intervals"), ("R", "the rate is above zero: 3.3 to 3.5 MiB/s"),
             ("S", "survived a settle of 10 s and a collection"), ("E", "survivors are spread over 5 of 5 epochs"),
             ("D", "91 % of the sessions are closed"), ("C", "cutting the edge frees 97 % of its share"))),
        layers=(Layer("total", 185 * MIB, "pss"), Layer("python", 174 * MIB), Layer("native", 12 * MIB),
                Layer("allocator-retained", -3 * MIB), Layer("mapped", 0), Layer("unexplained", 2 * MIB)),
        findings=(_session_store(), _recent_errors()),
        dismissed=(
            Dismissed("functools.lru_cache of geo.lookup", "bounded: maxsize 4096, 64 % filled", "geo.lookup", 163_648),
            Dismissed("sys.modules", "growth that ended 6.0 s after the start: importing", "sys.modules", 4 * MIB)),
        gaps=(Gap("growth of process 4250", "the process died before its third snapshot",
                  "leakscope run --every 2s -- python serve.py"),),
        notes=("Process 4250: the snapshot was taken in place because memory was short.",),
        series=series, snapshots=marks, growth=growth, graph_explains_ratio=0.91, samples_lost=0, agent_bytes=1_310_720,
        app_share_ratio=0.98, extra={"seed": 1})


KNOWN = "Fixed in serve 2.6.1; this process has 2.5.0."


def with_known(report: Report) -> Report:
    """The same report, its first suspect known to the catalogue."""
    first = dataclasses.replace(report.findings[0], known=f"{KNOWN} Sessions stay. Upgrade.", preimage="known > serve-sessions",
                                similar="LS1s-5ZB6W3QXK2M4TNPA")
    return dataclasses.replace(report, findings=(first, *report.findings[1:]))


def _session_store() -> Finding:
    steps = (Step("module serve", "module", ".store", "no", ("a module lives for ever",)),
             Step("serve.SessionStore", "serve.SessionStore", "._by_id", "unknown"),
             Step("dict", "dict", "[str:36]", "unknown"),
             Step("serve.Session", "serve.Session", "", "yes", ("its socket is closed",)))
    return Finding(
        Rule("LS101", "unbounded-container", "A container only grows"), Confidence.HIGH, "python", "serve.SessionStore._by_id",
        Path(steps, "module", "serve.store._by_id[*]", "serve.SessionStore._by_id"), "serve.Session", 4242, 19_110, 318.3,
        {"host": 174 * MIB}, {"host": 173 * MIB}, 0.94, 168 * MIB, (),
        Location("SessionStore.open", "serve.py", 25, 0.88),
        (Location("SessionStore.open", "serve.py", 25, 0.88), Location("read_body", "serve.py", 61, 0.09),
         Location("loads", "site-packages/orjson/__init__.py", 14, 0.02)),
        ("logging.Handler.buffer",),
        ("its size rose in every interval: 12 -> 3 120 -> 7 204 -> 11 288 -> 15 371 -> 19 110",
         "1.0 entries are added for every request and none is removed", "91 % of the sessions it holds are closed"),
        ("no load was stopped before the last snapshot",),
        "Remove the session in SessionStore.close(), or bound the store with a time to live.", None, "LS1-7K2QX4MB5TZ3WNPA",
        (12, 3_120, 7_204, 11_288, 15_371, 19_110),
        evidence=(("G", "it grew in every interval (entries): 12 -> 3 120 -> 7 204 -> 11 288 -> 15 371 -> 19 110"),
                  ("E", "every epoch has survivors, oldest first: 3 120 | 4 084 | 4 080 | 4 083 | 3 743")),
        cohorts=(3_120, 4_084, 4_080, 4_083, 3_743), rate=Rate(3.2 * MIB, 3.1 * MIB, 3.3 * MIB),
        bytes_per_work=Rate(9_498.0), unit_bytes=9_498)


def _recent_errors() -> Finding:
    steps = (Step("module serve", "module", "._recent_errors", "no", ("a module lives for ever",)),
             Step("list", "list", "[*]", "unknown"), Step("TimeoutError", "TimeoutError", ".__traceback__", "unknown"),
             Step("frame of embed()", "frame", "local batch", "yes", ("the frame has returned",)),
             Step("list", "list", "", "yes"))
    return Finding(
        Rule("LS105", "stored-exception", "An exception keeps its frames"), Confidence.MEDIUM, "python", "serve._recent_errors",
        Path(steps, "module", "serve._recent_errors[*].__traceback__", "serve._recent_errors"), "TimeoutError", 4242, 222, 3.7,
        {"host": 3_552_000}, {"host": 3_552_000}, 0.02, 3_552_000, (), None, (), (),
        ("its size rose in every interval: 0 -> 40 -> 88 -> 131 -> 180 -> 222",), ("its share of the growth is small",),
        "Keep str(error) or error.with_traceback(None).", None, "LS1-3VJ6H2CY7RQ4DMLE", (0, 40, 88, 131, 180, 222))


def delayed_garbage() -> Report:
    """A client SDK with the cycle StreamParser.response -> Response.parser while the collector is tuned away."""
    times = [0.25 * index for index in range(24)] + [6.0 + second for second in range(26)]
    counts = (40, 1_260, 2_480, 3_702, 4_921)
    garbage = tuple(count * 33_000 for count in counts)
    return Report(
        tool_version="0.1.0",
        session=SessionInfo("51c7e09ab344", ("python", "-m", "streaming.server"), "2026-11-30T12:02:40Z", 31.2, None, 9, "",
                            (ProcessInfo(977, None, "main", "3.12.1", "died", 50, 5, "in-place", 84.0, "python", "off"),),
                            ENVIRONMENT),
        verdict=Verdict(
            VerdictClass.DELAYED_GARBAGE, Confidence.MEDIUM,
            "4 921 unreachable cycles StreamParser.response -> Response.parser hold 154.9 MiB (88 % of the growth): the "
            "collector's threshold is 200 000 and generation 2 never ran.",
            176 * MIB, Rate(5.8 * MIB, 5.1 * MIB, 6.4 * MIB), 0.37, 8192 * MIB,
            (("G", "grew in every one of 4 intervals"), ("R", "the rate is above zero: 5.1 to 6.4 MiB/s"),
             ("D", "no root reaches 4 921 of 4 921 cycles"))),
        layers=(Layer("total", 176 * MIB, "uss"), Layer("python", 155 * MIB), Layer("native", 9 * MIB),
                Layer("allocator-retained", 4 * MIB), Layer("mapped", None), Layer("unexplained", 8 * MIB),
                Layer("cuda:0", 512 * MIB, None, {"outside": 0, "allocated_owned": 0, "allocated_unowned": 480 * MIB,
                                                  "pending": None, "inactive_split": 32 * MIB, "releasable": 0})),
        findings=(Finding(
            Rule("LS103", "cycle-garbage", "Unreachable cycles wait for the collector"), Confidence.MEDIUM, "python",
            "streaming.sdk.StreamParser", None, "streaming.sdk.StreamParser", 977, 4_921, 157.7,
            {"host": garbage[-1], "cuda:0": 0}, {"host": garbage[-1] - garbage[0]}, 0.88, garbage[-1],
            (CycleStep("StreamParser", ".response"), CycleStep("Response", ".parser")),
            Location("Client.stream", "streaming/sdk.py", 88, 0.97), (Location("Client.stream", "streaming/sdk.py", 88, 0.97),),
            (), ("no root reaches them, and every reference to them comes from the cycle itself",
                 "generation 2 was collected 0 times in 31.2 s; gc.get_threshold() is (200000, 50, 1000)"),
            ("a collection would free them: the growth ends when generation 2 runs",),
            "Make StreamParser.response a weakref.ref, or break the cycle in Response.close().", None, "LS1-Q5D7ZK2M4HXA6TBC",
            counts),),
        gaps=(Gap("allocation site of 3 % of the bytes", "tracemalloc was open for 5 s only",
                  "leakscope run --sites tracemalloc:5 -- python -m streaming.server"),),
        notes=("Killed by signal 9: the evidence ends with the last complete sample.",),
        series=(Series("uss_bytes", "bytes", tuple((t, 90 * MIB + 5.8 * MIB * t) for t in times if t < 12 or t > 20)),
                Series("malloc_used_bytes", "bytes", tuple((t, 40 * MIB + 4.9 * MIB * t) for t in times)),
                Series("gc_collections2", "count", tuple((t, 0.0) for t in times)),
                Series("cuda0_allocated_bytes", "bytes", tuple((t, 1024 * MIB + 16 * MIB * t) for t in times))),
        snapshots=tuple(SnapshotMark(t, "ladder", 210_000 + 90 * count, 84.0) for t, count in zip((2.0, 8.0, 15.0, 22.0, 30.0),
                                                                                               counts)),
        growth=(GrowthRow("type", "streaming.sdk.StreamParser", counts, garbage),
                GrowthRow("type", "streaming.sdk.Response", counts, tuple(count * 480 for count in counts))),
        graph_explains_ratio=0.88, samples_lost=2, agent_bytes=2_400_000, app_share_ratio=0.97)


def no_leak() -> Report:
    """The mended twin: flat, with what was dismissed."""
    times = [float(second) for second in range(45)]
    return Report(
        tool_version="0.1.0",
        session=SessionInfo("0b1d52ee7f90", ("python", "serve_ok.py"), "2026-11-30T11:50:02Z", 45.3, 0, None, "",
                            (ProcessInfo(512, 511, "main", "3.13.0", "complete", 45, 5, "fork", 3.4, "native", "sampled"),),
                            ENVIRONMENT),
        verdict=Verdict(VerdictClass.NO_LEAK, Confidence.HIGH,
                        "No leak: memory was flat for 38.0 s; a leak of 21.4 KiB/s or more would have been seen.",
                        int(0.4 * MIB), Rate(120.0, -9_000.0, 9_240.0), None, None,
                        (("R", "the interval of the rate holds zero: -8.8 to 9.0 KiB/s"),)),
        layers=(Layer("total", int(0.4 * MIB), "pss"), Layer("python", 102_400), Layer("native", 204_800),
                Layer("allocator-retained", 0), Layer("mapped", 0), Layer("unexplained", 112_230)),
        findings=(),
        dismissed=(Dismissed("functools.lru_cache of geo.lookup", "bounded: maxsize 256, full", "geo.lookup", 16_000),),
        series=(Series("pss_bytes", "bytes", tuple((t, 171 * MIB + 0.2 * MIB * math.sin(t)) for t in times)),
                Series("py_blocks", "count", tuple((t, 402_000 + 40 * math.cos(t)) for t in times))),
        snapshots=tuple(SnapshotMark(t, "ladder", 390_000, 3.4) for t in (7.0, 15.0, 24.0, 34.0, 44.0)),
        growth=(), graph_explains_ratio=0.96, samples_lost=0, agent_bytes=900_000, app_share_ratio=0.71)


def insufficient_evidence() -> Report:
    """A five-second script seen once: almost everything is a gap."""
    return Report(
        tool_version="0.1.0",
        session=SessionInfo("c4f0a1127d3e", ("python", "-I", "job.py"), "2026-11-30T13:10:00Z", 4.1, 1, None, "",
                            (ProcessInfo(88, None, "main", "3.9.18", "complete", 3, 1, "none", None, "none", "off"),)),
        verdict=Verdict(VerdictClass.INSUFFICIENT_EVIDENCE, Confidence.LOW,
                        "The run ended after 4.1 s with 1 snapshot; growth needs at least 3 snapshots after the warm-up."),
        layers=(Layer("total", None, None),),
        findings=(),
        gaps=(Gap("whether memory grows", "1 snapshot was taken, 3 are needed", "leakscope run --every 1s -- python job.py"),
              Gap("what native code keeps", "mallinfo2 is not in this C library", "leakscope doctor"),
              Gap("allocation site", "sampling was off", "leakscope run --sites sampled -- python job.py")),
        notes=("No agent reported in from process 88: python -I ignores PYTHONPATH.",))


ALL = {"python-leak": python_leak, "delayed-garbage": delayed_garbage, "no-leak": no_leak,
       "insufficient-evidence": insufficient_evidence}

HOSTILE = "</script><script>alert(1)</script><!--\"'&|`*_[x](javascript:y) \x1b[31m\x00\u202e\ud800\n# @all"


def hostile(text: str = HOSTILE) -> Report:
    """The first two reports in one, every string of them replaced by `text`: names come from programs, not from us."""
    both = dataclasses.replace(python_leak(), findings=(*python_leak().findings, *delayed_garbage().findings))
    changed = with_strings(both, text)
    assert isinstance(changed, Report)
    return changed


def large() -> Report:
    """A report in which every list is far longer than a person reads, with long names."""
    report = python_leak()
    name = "package.module.Class.attribute" * 20
    rows = tuple(GrowthRow(by, f"{name}{index}", tuple(range(20)), tuple(range(20))) for by in ("type", "owner")
                 for index in range(2_000))
    points = tuple((index / 10, float(index % 1_000)) for index in range(100_000))
    return dataclasses.replace(
        report, findings=report.findings * 200, growth=rows, notes=(name,) * 2_000, gaps=report.gaps * 2_000,
        dismissed=(Dismissed(name, name, name, 1),) * 2_000, snapshots=report.snapshots * 4,
        series=tuple(dataclasses.replace(line, points=points) for line in report.series),
        session=dataclasses.replace(report.session, processes=report.session.processes * 500, command=("python", name * 50)))


def with_strings(value: Any, text: str) -> Any:
    """A record in which every string is `text`."""
    if isinstance(value, str):
        return text
    if isinstance(value, Enum):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return dataclasses.replace(value, **{name: with_strings(each, text) for name, each in fields.items()})
    if isinstance(value, tuple):
        return tuple(with_strings(each, text) for each in value)
    if isinstance(value, dict):
        return {f"{text}{index}": with_strings(each, text) for index, each in enumerate(value.values())}
    return value
