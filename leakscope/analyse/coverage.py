"""How much of the growth the account explains, and which layers grew: what a claim has to stand on.

A heap report that covers part of the growth says nothing of the rest (dotnet/diagnostics 603: a dump of 679 MB of a process of
15 GB), and a finding in a layer that did not grow is not the cause of the growth, whatever piled up there.
"""

from __future__ import annotations

from collections.abc import Sequence

from leakscope.model import Layer
from leakscope.units import bytes_text

LEAST_COVERED = 0.7  # below it no verdict is more than of medium confidence (knowledge page "verdicts and reports", section 5)
CLAIM_BYTES = 512 << 10  # what grew less than this in a run is listed, not claimed, and a layer did not grow; ours
LEAST_SUPPORT = 0.25  # of the bytes that a finding claims, its layers must have grown by; ours: windows and meters differ
# Objects own memory that Python does not count: buffers by malloc, mappings. So a pile of them may lie in any of these.
_LAYERS_OF = {"python": ("python", "native", "mapped"), "native": ("native",), "allocator-retained": ("allocator-retained",),
              "mapped": ("mapped",)}


def growth_of(layers: Sequence[Layer], name: str) -> int | None:
    """The growth of one layer in bytes; None if it was not measured."""
    return next((each.growth_bytes for each in layers if each.name == name), None)


def term_of(layers: Sequence[Layer], name: str, term: str) -> int | None:
    """The growth of one part of a layer in bytes; None if it was not measured."""
    return next((each.terms.get(term) for each in layers if each.name == name), None)


def coverage(layers: Sequence[Layer]) -> float | None:
    """Return which part of the growth of a process, 0 to 1, its layers explain (analyse/layers.py).

    None: it did not grow, or what is unexplained is not known.
    """
    total, rest = growth_of(layers, "total"), growth_of(layers, "unexplained")
    if not total or total < CLAIM_BYTES or rest is None:
        return None
    return round(min(1.0, max(0.0, 1 - abs(rest) / total)), 3)


def against(layers: Sequence[Layer], layer: str, growth_bytes: int) -> str:
    """Return why a finding of so many bytes in a layer cannot be claimed, as part of a sentence; "" where it can.

    It cannot where the layers in which such memory lies were measured, and grew by far less than the finding says.
    """
    names = _LAYERS_OF.get(layer, ())
    known = [growth for name in names if (growth := growth_of(layers, name)) is not None]
    if len(known) < len(names) or not names or growth_bytes <= 0:
        return ""
    grew = sum(max(0, growth) for growth in known)
    if grew >= LEAST_SUPPORT * growth_bytes:
        return ""
    words = "memory of objects" if layer == "python" else f"the layer '{layer}'"
    return f"{words} grew by {bytes_text(grew)} in the judged part of the run, far less than {bytes_text(growth_bytes)}"
