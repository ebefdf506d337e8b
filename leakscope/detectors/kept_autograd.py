"""Tensors are kept together with the autograd graph behind them: losses in a list, outputs in a record.

A loss is four bytes. Behind its `grad_fn` hang the nodes of the whole forward pass, and each node keeps the tensors that the
backward pass would need: all activations of one step, for as long as somebody keeps the loss.

**Found by** a growing pile of tensors that have a `grad_fn` and lie on a device. The nodes of the graph are counted, and what
hangs below them on the device. Where the walk cannot see what the graph has saved, blocks in which no tensor lies that grew
beside are added, and that is said.

**Remedy.** Keep the number (`loss.item()`, or `loss.detach()`); run without a graph where nobody calls `backward()`:
`torch.inference_mode()`.
"""

from __future__ import annotations

from collections.abc import Iterator

from leakscope.analyse import device_piles
from leakscope.case import Case
from leakscope.detectors import _device_piles
from leakscope.detectors._device_piles import Told
from leakscope.detectors._piles import Pile, graph_of
from leakscope.model import Dismissed, Finding, Rule
from leakscope.units import bytes_text, count_text

RULE = Rule("LS409", "kept-autograd", "Tensors are kept with the autograd graph behind them")
REMEDY = ("Keep loss.item() or loss.detach() in place of the tensor; where nobody calls backward(), compute under "
          "torch.inference_mode().")


def detect(case: Case) -> Iterator[Finding | Dismissed]:
    """Yield the piles of this shape."""
    yield from _device_piles.detect(case, device_piles.AUTOGRAD, RULE, _told)


def _told(case: Case, pile: Pile) -> Told:
    found = graph_of(case, pile)
    names = ", ".join(f"{name} x{count_text(count)}" for name, count in found.names)
    reasons = ["these tensors have a grad_fn: the graph of the computation that made them stays with them"]
    if found.node_count:
        reasons.append(f"{count_text(found.node_count)} nodes of it hang below them ({names}) and keep "
                       f"{bytes_text(found.saved_bytes)} on {pile.device}")
    return Told(REMEDY, tuple(reasons))
