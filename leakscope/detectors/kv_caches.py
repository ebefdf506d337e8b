"""Key and value caches of a language model are kept after the request that they were made for.

They grow with every token of every request. `DynamicCache` of transformers is part of the output of `generate`, so whoever
stores the output stores the cache of the whole dialogue, a hundred times the text.

**Found by** a growing pile on a device of objects of a known type of key and value cache (transformers' cache_utils, names
with KVCache and the like), or of tensors below such objects. A pool that a server takes at its start and that stays as it is
(vLLM, SGLang) does not grow and is no finding.

**Remedy.** Drop the output, or `past_key_values`, when the request has ended; `use_cache=False` where nothing is continued; a
`StaticCache` that is used again.
"""

from __future__ import annotations

from collections.abc import Iterator

from leakscope.analyse import device_piles
from leakscope.case import Case
from leakscope.detectors import _device_piles
from leakscope.detectors._device_piles import Told
from leakscope.detectors._piles import Pile
from leakscope.model import Dismissed, Finding, Rule

RULE = Rule("LS422", "kept-kv-caches", "Key and value caches outlive their requests on a device")
REMEDY = ("Let go of the output (past_key_values) when its request has ended, pass use_cache=False where nothing is continued, "
          "or use one StaticCache again and again.")


def detect(case: Case) -> Iterator[Finding | Dismissed]:
    """Yield the piles of this shape."""
    yield from _device_piles.detect(case, device_piles.KV_CACHE, RULE, _told)


def _told(case: Case, pile: Pile) -> Told:
    name = device_piles.kv_type(case.last, case.tree(case.last), pile.accumulation)
    return Told(REMEDY, (f"they are, or belong to, objects of type {name}: keys and values of a language model",))
