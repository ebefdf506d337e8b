"""What the detectors of caches share: caches over the snapshots, which of them no later call can use, what to do about them."""

from __future__ import annotations

from collections.abc import Iterator
from weakref import WeakKeyDictionary

from leakscope.analyse import cachekeys, device_piles
from leakscope.analyse.cachekeys import Correlation, History
from leakscope.analyse.devices import Device
from leakscope.baseline import is_in_range
from leakscope.case import Case
from leakscope.detectors import _devices
from leakscope.detectors._dismissals import PLATEAU_RATIO
from leakscope.detectors._piles import Pile
from leakscope.units import count_text

LEAST_ENTRIES = 16  # fewer more are no growth of a cache; ours
SLOPE, HIT_SHARE = 0.9, 0.01  # entries for each call, and answers: knowledge page "gpu", class 3
# (library, versions, cache, what is known): read from the names and the versions of process.json alone
KNOWN = (
    ("flashinfer", "<0.6.16", "_find_nearest_profile", "flashinfer before 0.6.16 keys this cache by functions that are made "
     "anew for each call (flashinfer#3378, #3687, #3750): upgrade to 0.6.16 or later."),
    ("flashinfer", "<0.6.3", "build_cudnn", "flashinfer before 0.6.3 keys graphs by tensors (flashinfer#2450, vllm#26142): "
     "upgrade."),
    ("flashinfer", ">=0.2.9,<0.6.11", "build_cudnn", "flashinfer keeps a cuDNN graph for each number of tokens, without a "
     "bound before 0.6.11 (flashinfer#2790): upgrade, or pad the number of tokens to few sizes."),
    ("flashinfer", ">=0.2.9", "_build_prefill_graph", "flashinfer builds a cuDNN graph for each pair of longest lengths: pad "
     "lengths to few sizes, or use another backend."),
    ("transformers", "", "compile_compatible_method_lru_cache", "transformers caches methods and so keeps every self "
     "(transformers#45412)."),
    ("triton", "<3.8", "", "Triton before 3.8 never unloads a compiled kernel (facebookexperimental/triton#1289)."),
)
_TITLES = {"flashinfer": "FlashInfer", "triton": "Triton", "torch": "PyTorch"}
GRAPHS = "Do not clear the cache while the process runs: captured CUDA graphs may still use what it holds."

_found: WeakKeyDictionary[Case, list[History]] = WeakKeyDictionary()
_tied: WeakKeyDictionary[Case, dict[str, tuple[History, Correlation]]] = WeakKeyDictionary()


def histories(case: Case) -> list[History]:
    """The caches and tables of a process that uses a device, those that grew most first; [] where growth cannot be told."""
    if case not in _found:
        _found[case] = cachekeys.histories(case) if case.devices and case.can_compare else []
    return _found[case]


def goes_on(case: Case, found: History) -> bool:
    """True if entries are still made at the end as at the start."""
    misses = found.misses
    ratio = case.steady(misses)
    return misses[-1] - misses[0] >= LEAST_ENTRIES and misses[-1] > misses[-2] and (ratio is None or ratio >= PLATEAU_RATIO)


def is_useless(case: Case, found: History) -> bool:
    """True for a cache without a bound that keeps nearly every call, answers none, and is keyed by identity."""
    last, first = found.last, next((each for each in found.seen if each is not None), found.last)
    if last.hits is None or last.misses is None or last.bound is not None or found.varying is None:
        return False
    calls = last.hits + last.misses - ((first.hits or 0) + (first.misses or 0) if found.seen[0] is not None else 0)
    is_kept = calls > 0 and found.growth >= SLOPE * calls
    return (found.varying.by == "identity" and is_kept and last.hits < HIT_SHARE * (last.hits + last.misses)
            and goes_on(case, found))


def claimed(case: Case) -> set[int]:
    """The nodes of caches that LS403 speaks of."""
    return {found.last.node for found in histories(case) if is_useless(case, found) and not on_device(case, found)}


def is_claimed(case: Case, pile: Pile) -> bool:
    """True for a pile in a cache that LS403 or LS404 speaks of: LS102 leaves it to them."""
    nodes = claimed(case)
    if nodes and device_piles.cache_node(case.last, case.tree(case.last), pile.accumulation) in nodes:
        return True
    return any(pile.path.owner == each.owner or pile.path.owner.startswith(f"{each.owner}.")
               for each in _devices.told(case, ("LS404",)))


def kept_bytes(case: Case, found: History) -> dict[str, int]:
    """What the entries that were added keep, by device: the part of the cache's bytes that they are."""
    row = cachekeys.kept_bytes(case, found.last)
    share = min(1.0, max(0, found.growth) / max(1, found.last.size))
    return {device: int(size * share) for device, size in row.items()}


def on_device(case: Case, found: History) -> bool:
    """True if most of what a cache keeps lies on a device."""
    kept = kept_bytes(case, found)
    return max(kept, key=lambda device: kept[device], default="host") != "host"


def by_shape(case: Case) -> dict[str, tuple[History, Correlation]]:
    """The caches whose values take memory of a device in step with a number of the key, by owner."""
    if case not in _tied:
        found = {}
        for each in histories(case):
            best = next((one for one in cachekeys.correlations(case, each.last) if one.device != "host"), None)
            path = case.path(each.last.node) if best is not None and each.last.node >= 0 else None
            if best is not None and path is not None and each.growth > 0:
                found[path.owner] = (each, best)
        _tied[case] = found
    return _tied[case]


def of_shape(case: Case, owner: str) -> tuple[History, Correlation] | None:
    """The one that an owner belongs to; None: it is no cache by shape."""
    return next((each for name, each in by_shape(case).items() if owner == name or owner.startswith(f"{name}.")), None)


def name_of(found: History) -> str:
    """`FlashInfer cache flashinfer.jit.get_module()`, `table app.CACHE`."""
    name = f"{found.last.name}()" if found.last.kind == "functools" else found.last.name
    kind = "cache" if found.last.kind == "functools" else "table"
    return f"{_TITLES.get(found.library, found.library)} {kind} {name}".strip()


def reasons(found: History) -> Iterator[str]:
    """How it grew and which argument varies."""
    sizes, misses = found.sizes, found.misses
    yield f"{name_of(found)} grew {count_text(sizes[0] or 0)} -> {count_text(sizes[-1] or 0)} entries"
    thrown = max(0, misses[-1] - (sizes[-1] or 0))
    if found.last.misses is not None and thrown:
        yield f"{count_text(thrown)} entries were thrown out again, and what they had loaded may stay"
    if found.varying is not None:
        yield _verb(found.varying.text)


def _verb(text: str) -> str:
    where, _, what = text.partition(", ")
    return f"{where} varies: {what}"


def advice(case: Case, device: Device | None, found: History, *sentences: str) -> str:
    """What to do, with what is known of the library's version, and never to clear what captured graphs may use."""
    packages = {name: str(version) for name, version in case.info.get("packages", {}).items()}
    known = [text for library, versions, name, text in KNOWN if found.library == library and name in found.last.name
             and library in packages and (not versions or is_in_range(packages[library], versions))]
    graphs = device is not None and _devices.has_graphs(case, device) is not False
    return " ".join([*known, *sentences, *([GRAPHS] if graphs else [])])
