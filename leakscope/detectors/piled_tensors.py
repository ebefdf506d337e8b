"""A container of Python keeps tensors on a device, and only grows: embeddings for each request, batches, hidden states.

The objects are small, so the memory of the host hardly shows it; what they hold lies on the device and is full at once.

**Found by** a pile, as in unbounded-container, whose bytes lie mostly on a device: what hangs below a path grew in the
snapshots, and what is allocated on the device grew as well. Each storage counts once, with the device that it is on, and is
joined to the block of the allocator that it lies in.

**Remedy.** Bound the container, remove the entry when its subject ends, or keep a copy on the host
(`tensor.detach().cpu()`), an identifier, or a weak reference.
"""

from __future__ import annotations

from collections.abc import Iterator

from leakscope.analyse import device_piles
from leakscope.case import Case
from leakscope.detectors import _caches, _device_piles
from leakscope.detectors._device_piles import Told
from leakscope.detectors._piles import Pile
from leakscope.model import Dismissed, Finding, Rule

RULE = Rule("LS401", "piled-tensors", "A container keeps tensors on a device and only grows")
REMEDY = ("Bound it (an LRU, a deque with maxlen), or remove each entry when what it is for has ended; what has to stay may "
          "stay on the host: tensor.detach().cpu().")


def detect(case: Case) -> Iterator[Finding | Dismissed]:
    """Yield the piles of this shape."""
    for found in _device_piles.detect(case, device_piles.TENSORS, RULE, _told):
        if not isinstance(found, Finding) or _caches.of_shape(case, found.owner) is None:  # else: shape_workspaces.py
            yield found


def _told(case: Case, pile: Pile) -> Told:
    return Told(REMEDY)
