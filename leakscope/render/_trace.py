"""The retention path as lines: which edges are suspect, and how to draw it in plain text."""

from __future__ import annotations

from leakscope.model import Finding, Path
from leakscope.render._text import on_one_line

_SHOWN_AT_THE_ENDS = 4


def suspect_edges(path: Path) -> tuple[bool, ...]:
    """Return for each step whether the edge that leaves it may be the fault.

    It is when it lies between the last object that lives for ever and the first that should be gone
    (LeakCanary's rule); with neither known, every edge is suspect.
    """
    statuses = [step.status for step in path.steps]
    first_ended = statuses.index("yes") if "yes" in statuses else len(statuses)
    alive = [index for index in range(first_ended) if statuses[index] == "no"]
    start = alive[-1] if alive else 0
    return tuple(start <= index < first_ended and bool(step.edge) for index, step in enumerate(path.steps))


def shown_steps(path: Path, ends: int = _SHOWN_AT_THE_ENDS) -> list[int | None]:
    """Return the indexes of the steps to show; None stands for those left out in the middle of a long path."""
    count = len(path.steps)
    if count <= 2 * ends + 1:
        return list(range(count))
    return [*range(ends), None, *range(count - ends, count)]


def trace_lines(finding: Finding, width: int = 100) -> list[str]:
    """Return the path, root first, in ASCII; the suspect edges are underlined with ~~~."""
    lines = _path_lines(finding.path) if finding.path else []
    return [line[:width] for line in lines + _cycle_lines(finding)]


def _path_lines(path: Path) -> list[str]:
    lines: list[str] = []
    suspects = suspect_edges(path)
    for index in shown_steps(path):
        if index is None:
            lines.append(f"|           ... {len(path.steps) - 2 * _SHOWN_AT_THE_ENDS} steps more")
            continue
        step = path.steps[index]
        mark = "`-" if index == len(path.steps) - 1 else "|-"
        start, edge = f"{mark} {step.status.upper():<8}{on_one_line(step.name)}", on_one_line(step.edge)
        reasons = f"   ({on_one_line('; '.join(step.reasons))})" if step.reasons else ""
        lines.append(f"{start} {edge}".rstrip() + reasons)
        if suspects[index]:
            lines.append("|".ljust(len(start) + 1) + "~" * len(edge))
    return lines


def _cycle_lines(finding: Finding) -> list[str]:
    """Return the reference cycle, each object with the edge to the next, the last pointing back."""
    lines = []
    for index, step in enumerate(finding.cycle):
        last = index == len(finding.cycle) - 1
        target = f"back to {finding.cycle[0].type}" if last else finding.cycle[index + 1].type
        lines.append(on_one_line(f"{'`-' if last else '|-'} {step.type} {step.edge} -> {target}"))
    return lines


def path_text(finding: Finding) -> str:
    """Return the path or the cycle on one line, "" where there is neither."""
    if finding.cycle:
        ring = " -> ".join(f"{step.type}{step.edge}" for step in finding.cycle)
        return f"{ring} -> {finding.cycle[0].type}"
    if finding.path is None:
        return ""
    return " -> ".join(f"{step.name} {step.edge}".strip() for step in finding.path.steps)
