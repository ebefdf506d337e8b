"""Pictures of holders and cycles by graphviz; where there is no graphviz program the caller shows text instead."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sysconfig
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import graphviz

from leakscope.model import Finding
from leakscope.render._templates import Markup
from leakscope.render._text import clip
from leakscope.render._trace import shown_steps, suspect_edges

PATIENCE_S = 10
_SVG = "{http://www.w3.org/2000/svg}"
# What may come out of graphviz into a report: shapes and words, no links, no images, no styles.
_KEPT = {"g": ("class", "transform"), "title": (), "path": ("d", "fill", "stroke", "stroke-dasharray"), "polyline": ("points",),
         "polygon": ("points", "fill", "stroke"), "ellipse": ("cx", "cy", "rx", "ry", "fill", "stroke"),
         "text": ("x", "y", "text-anchor", "font-size")}
_COLOURS = {"black": "currentColor", "transparent": "none", "white": "none"}


@functools.cache
def program() -> str | None:
    """Return the graphviz program: `dot` of the machine, else the one that PyPI's graphviz-pure brings, else None."""
    found = shutil.which("dot") or shutil.which("graphviz-pure")
    beside = Path(sysconfig.get_path("scripts")) / "graphviz-pure"  # not on PATH when the environment is not activated
    return found or (str(beside) if beside.exists() else None)


def picture(finding: Finding) -> Markup | None:
    """Return who holds what as inline SVG; None when there is nothing to draw or nothing to draw it with."""
    if not (finding.cycle or finding.path) or program() is None:
        return None
    graph, names = _graph(finding)
    try:
        done = subprocess.run([str(program()), "-Tsvg"], input=graph.source.encode("utf-8", "replace"), capture_output=True,
                              timeout=PATIENCE_S, check=True)
        return _inline(done.stdout, names, spoken=_spoken(finding))
    except (OSError, subprocess.SubprocessError, ElementTree.ParseError, ValueError):
        return None  # a picture is a comfort: the same path stands in the report as text


def _graph(finding: Finding) -> tuple[graphviz.Digraph, dict[str, str]]:
    """Return the drawing and what a reader is told of each of its nodes and edges."""
    graph = graphviz.Digraph(graph_attr={"rankdir": "LR", "bgcolor": "transparent", "pad": "0.1", "nodesep": "0.3",
                                         "ranksep": "0.35"},
                             node_attr={"shape": "box", "style": "rounded", "fontname": "Courier", "fontsize": "12",
                                        "margin": "0.16,0.09", "height": "0.4"},
                             edge_attr={"fontname": "Courier", "fontsize": "11", "arrowsize": "0.7"})
    names: dict[str, str] = {}
    last = _draw_path(graph, finding, names)
    _draw_cycle(graph, finding, names, last)
    for index, holder in enumerate(finding.also_held_by[:3] if last else ()):
        _node(graph, names, f"h{index}", holder, "other", f"{holder} holds it too")
        _edge(graph, names, f"h{index}", last, "", "other", f"{holder} holds it too")
    return graph, names


def _draw_path(graph: graphviz.Digraph, finding: Finding, names: dict[str, str]) -> str:
    """Draw the path and return the node of its last step, "" where there is none."""
    if finding.path is None:
        return ""
    suspects, before = suspect_edges(finding.path), None
    for index in shown_steps(finding.path, 3):
        if index is None:
            _node(graph, names, "more", "...", "other", "steps left out")
            _edge(graph, names, f"n{before}", "more", "", "", "steps left out")
            before = None
            continue
        step = finding.path.steps[index]
        _node(graph, names, f"n{index}", step.name, f"is-{step.status}", f"{step.name}: {step.status}")
        if before is not None:
            holder = finding.path.steps[before]
            _edge(graph, names, f"n{before}", f"n{index}", holder.edge, "suspect" if suspects[before] else "",
                  f"{holder.name} {holder.edge} holds {step.name}")
        elif index:
            _edge(graph, names, "more", f"n{index}", "", "", "steps left out")
        before = index
    return f"n{before}"


def _draw_cycle(graph: graphviz.Digraph, finding: Finding, names: dict[str, str], last: str) -> None:
    for index, step in enumerate(finding.cycle):
        following = (index + 1) % len(finding.cycle)
        _node(graph, names, f"c{index}", step.type, "in-cycle", f"{step.type}, part of the cycle")
        _edge(graph, names, f"c{index}", f"c{following}", step.edge, "suspect",
              f"{step.type}{step.edge} holds {finding.cycle[following].type}")
    if finding.cycle and last:
        _edge(graph, names, last, "c0", "", "other", "reaches the cycle")


def _node(graph: graphviz.Digraph, names: dict[str, str], key: str, label: str, kind: str, title: str) -> None:
    names[key] = title
    graph.node(key, graphviz.escape(clip(label, 48)), **{"class": kind})


def _edge(graph: graphviz.Digraph, names: dict[str, str], tail: str, head: str, label: str, kind: str, title: str) -> None:
    names[f"{tail}->{head}"] = title
    graph.edge(tail, head, graphviz.escape(f" {clip(label, 40)} ") if label else None, **{"class": kind})


def _spoken(finding: Finding) -> str:
    return f"Who holds {finding.leaked_type}" if finding.path else f"The reference cycle of {finding.leaked_type}"


def _inline(svg: bytes, names: dict[str, str], spoken: str) -> Markup:
    """Return graphviz's file as an element of HTML: only the kept shapes, colours of the page, titles for readers."""
    root = ElementTree.fromstring(svg)
    box = root.get("viewBox", "")
    width, height = (float(number) for number in box.split()[2:])
    body = Markup("").join(_element(child, names) for child in root)
    return Markup('<svg class="holders" viewBox="{}" width="{:.0f}" height="{:.0f}" role="img" aria-label="{}">{}'
                  '</svg>').format(box, width * 4 / 3, height * 4 / 3, spoken, body)


def _element(element: ElementTree.Element, names: dict[str, str]) -> Markup:
    tag = element.tag.removeprefix(_SVG) if isinstance(element.tag, str) else ""
    if tag not in _KEPT or tag == "title" and element.text not in names:
        return Markup("")
    attributes = Markup("").join(
        Markup(' {}="{}"').format(name, _COLOURS.get(element.attrib[name], element.attrib[name]))
        for name in _KEPT[tag] if name in element.attrib)
    text = names[element.text or ""] if tag == "title" else (element.text or "").strip() if tag == "text" else ""
    children = Markup("").join(_element(child, names) for child in element)
    return Markup("<{0}{1}>{2}{3}</{0}>").format(Markup(tag), attributes, text, children)
