"""What the detectors of garbage share: one shape of unreachable cycle becomes one finding, on the host or on a device."""

from __future__ import annotations

from leakscope.analyse import naming, retention
from leakscope.analyse.components import Cycle
from leakscope.analyse.sites import Wanted
from leakscope.case import Case
from leakscope.heap import layout
from leakscope.heap.device_codes import device_code
from leakscope.heap.graph import HeapGraph
from leakscope.model import Confidence, CycleStep, Finding, Path, Rule, Step
from leakscope.units import bytes_text

MOST_SHAPES, MOST_TOLD = 20, 5  # shapes of cycles whose bytes are summed, and that are told; ours
_OBJECT = layout.NODE_KINDS.index("object")


def heaviest(case: Case, device: str) -> list[tuple[int, Cycle]]:
    """Return the cycles that keep most on a device, with what hangs on each there in bytes."""
    graph, inside, code = case.last, case.garbage, device_code(device)
    weights = []
    for cycle in case.garbage_cycles[:MOST_SHAPES]:
        below = retention.below(graph, cycle.nodes, inside)
        weights.append((int(graph.shallow_bytes[below[graph.device[below] == code]].sum()), cycle))
    return sorted(weights, key=lambda each: -each[0])[:MOST_TOLD]


def is_hidden(graph: HeapGraph, cycle: Cycle) -> bool:
    """True if the cycle goes through something that is no Python object, such as a node of torch's autograd graph."""
    return bool(((graph.address[cycle.nodes] == 0) & (graph.kind[cycle.nodes] == _OBJECT)).any())


def finding(case: Case, rule: Rule, cycle: Cycle, size: int, growth: int, why: str, remedy: str,
            device: str = "host") -> Finding:
    """Return the finding of a cycle that keeps `size` bytes on a device, `growth` more than at first."""
    graph, inside = case.last, case.garbage
    shown = naming.name_cycle(graph, cycle.edges)
    steps = _heaviest_last(case, cycle, shown)
    owner = " -> ".join(f"{step.type}{step.edge}" for step in steps)
    unreferenced = ("nothing outside the cycle refers to it",)
    path = Path(tuple(Step(step.type, step.type, step.edge, "yes", unreferenced) for step in steps), "garbage", owner, owner)
    share, counts = case.share_of_growth(device, growth), tuple(case.garbage_on(device))
    where, whole = ("", "the process") if device == "host" else (f" on {device}", f"what is used on {device}")
    reasons = [f"unreachable objects keep {' -> '.join(bytes_text(each) for each in counts)}{where}", why]
    if share is not None:
        reasons.append(f"it accounts for {share:.0%} of the growth of {whole}")
    origin = case.origins.of(Wanted(retention.below(graph, cycle.nodes, inside), cycle.nodes))
    first = graph.edge(cycle.edges[0]).source
    return Finding(
        rule, Confidence.HIGH if len(case.compared) >= 4 else Confidence.MEDIUM, "python" if device == "host" else device,
        owner, path, graph.type_name(first), pid=int(case.info.get("pid", 0)), object_count=cycle.count,
        retained_bytes={device: size}, growth_bytes={device: growth}, share_of_growth_ratio=share, frees_bytes=size,
        cycle=steps, site=origin.first, sites=origin.places, reasons=(*reasons, *origin.reasons), doubts=origin.doubts,
        remedy=remedy, counts=counts)


def _heaviest_last(case: Case, cycle: Cycle, steps: tuple[CycleStep, ...]) -> tuple[CycleStep, ...]:
    """The cycle from the object after the one that keeps most: it reads towards what costs the memory."""
    graph = case.last
    nodes = [graph.edge(number).source for number in cycle.edges]
    weights = {node: retention.own_bytes(graph, node, nodes) for node in nodes}
    heaviest = graph.types[graph.type_id[max(nodes, key=lambda node: weights[node])]].qualname
    place = next((number for number, step in enumerate(steps) if step.type == heaviest), len(steps) - 1)
    return steps[place + 1:] + steps[:place + 1]
