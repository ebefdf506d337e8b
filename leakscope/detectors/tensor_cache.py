"""A `functools.cache` or `lru_cache` keeps tensors or modules on a device: they are its results, or part of its keys.

A cache holds its arguments as long as its results. On a method, `self` is the first of them, so every model that was ever
asked stays with all its parameters; a tensor among the arguments is compared by identity, so that no call finds the result of
another.

**Found by** a pile below a functools cache whose bytes lie mostly on a device. What stands first in its keys is said, and
which argument makes the keys differ where that was counted.

**Remedy.** Key by numbers and strings, give the cache a bound, and keep it on the instance instead of around the method.
"""

from __future__ import annotations

from collections.abc import Iterator

from leakscope.analyse import device_piles, evidence
from leakscope.case import Case
from leakscope.detectors import _caches, _device_piles
from leakscope.detectors._device_piles import Told
from leakscope.detectors._piles import Pile
from leakscope.model import Dismissed, Finding, Rule
from leakscope.units import count_text

RULE = Rule("LS402", "tensor-cache", "A functools cache keeps tensors or modules on a device")
REMEDY = "Give the cache a maxsize and key it by numbers and strings, never by tensors."
OF_METHOD = "Do not cache a method: keep the results in a dict of the instance, so that they die with it."


def detect(case: Case) -> Iterator[Finding | Dismissed]:
    """Yield the piles of this shape."""
    for found in _device_piles.detect(case, device_piles.CACHE, RULE, _told):
        if not isinstance(found, Finding) or _caches.of_shape(case, found.owner) is None:  # else: shape_workspaces.py
            yield found


def _told(case: Case, pile: Pile) -> Told:
    graph, tree = case.last, case.tree(case.last)
    node = device_piles.cache_node(graph, tree, pile.accumulation)
    counted = evidence.cache_of(graph, tree, pile.accumulation)
    reasons, remedy = [], [REMEDY]
    if counted is not None and counted.get("maxsize") is None:
        reasons.append(f"it has no bound: {count_text(counted.get('misses', 0))} calls were computed, "
                       f"{count_text(counted.get('hits', 0))} were answered from it")
    first = None if node is None else device_piles.first_argument(graph, node)
    if first is not None:
        many = f"{count_text(first.object_count)} different ones" if first.object_count > 1 else "one and the same"
        self_text = "a module with its parameters: the cache decorates a method and keeps self" if first.is_module else (
            "an object, which its keys keep alive")
        reasons.append(f"argument 1 of its keys is of type {first.type}, {many}: {self_text}")
        remedy = [OF_METHOD, REMEDY] if first.is_module else remedy
    if varying := device_piles.varying_argument(counted):
        reasons.append(varying)
    remedy.append(_device_piles.clearing(case, pile, "cache_clear() frees what it holds."))
    return Told(" ".join(remedy), tuple(reasons))
