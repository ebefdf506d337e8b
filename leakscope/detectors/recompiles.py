"""torch.compile compiles again and again: each new shape or code object leaves a graph, guards and kernels on the host.

Dynamo bounds this for each code object (8, then it falls back to eager), so growth that goes on comes from code objects or
modules that are made anew, or from limits that were raised.

**Found by** the counters of torch._dynamo (compiled graphs, recompiles) that go on rising in the second half of the run,
with which the memory of the process rises (Spearman at least 0.8). Compiling at the start is none.

**Remedy.** `dynamic=True` or `torch._dynamo.mark_dynamic`, few padded shapes, and compile once, outside of the request.
"""

from __future__ import annotations

from collections.abc import Iterator

from leakscope.analyse import cachekeys, layers, memory
from leakscope.analyse.trend import thinned, value_at
from leakscope.case import Case
from leakscope.detectors import _devices, _layers
from leakscope.model import Dismissed, Finding, Rule
from leakscope.units import bytes_text, count_text

RULE = Rule("LS423", "recompiles", "torch.compile keeps compiling")
REMEDY = ("Compile once, outside of the request; pass dynamic=True or mark the dimension with torch._dynamo.mark_dynamic, and "
          "pad shapes to few sizes. TORCH_LOGS=recompiles says which guard failed.")
LEAST_COMPILED = 8  # more in the judged part of the run than one code object may have; torch._dynamo.config.recompile_limit
LEAST_RANK = 0.8  # as of a cache (class 4)
RANK_POINTS = 40  # moments that are compared; ours


def detect(case: Case) -> Iterator[Finding | Dismissed]:
    """Yield at most one finding."""
    compiled = _devices.column(case, "compiled_graphs")
    more = layers.change(compiled, case.window)
    if more is None or more < LEAST_COMPILED or memory.going_on(compiled, case.window, more) is None:
        return
    points = case.window.inside(case.memory.points)
    growth = memory.sustained_points(case.memory.points, case.window, case.layer("total"), case.layer("total"))
    rank = cachekeys.spearman([(value_at(compiled, t_s), size) for t_s, size in thinned(points, RANK_POINTS)])
    if growth is None or rank is None or rank < LEAST_RANK:
        return
    again = layers.change(_devices.column(case, "recompiles"), case.window)
    reasons = [f"{count_text(int(more))} graphs were compiled in the judged part of the run, and it goes on",
               f"memory rises with them: rank correlation {rank:.2f}, {bytes_text(growth.bytes / more)} for each"]
    if again:
        reasons.append(f"{count_text(int(again))} of them because a guard failed")
    name = _code(case)
    doubts = () if name else ("which function is compiled again is not known: TORCH_LOGS=recompiles names it",)
    yield _layers.finding(case, RULE, growth, "python", name or "torch.compile", "compiled graph", reasons, doubts, REMEDY)


def _code(case: Case) -> str:
    """The owner of the cache entries of compiled code, if the snapshots show them piling up; "" else."""
    for pile in case.accumulations if case.can_compare else ():
        if pile.leaked_type.startswith("torch._dynamo") or "torch._inductor" in pile.leaked_type:
            path = case.path(pile.owner_node) if pile.owner_node >= 0 else None
            return path.owner if path else ""
    return ""
