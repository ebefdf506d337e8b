"""What all faces of a report say of a device, in words."""

from __future__ import annotations

from leakscope.model import CacheRow, Location
from leakscope.render._device_charts import blamed_term, end_bytes
from leakscope.render._text import clip, growth_text, ratio_text, term_word
from leakscope.report import DeviceChapter, DeviceTerm, Fragmentation, PinningBlock
from leakscope.units import bytes_text, count_text

SIMULATED = "Simulated: these numbers come from a simulator, no GPU was there."
_CACHE_NAME = 40  # characters of a name in a line of a terminal
_QUALITY = {"exact": "as the driver says of this process",
            "matched": "as the driver says of the process whose use fits this one",
            "approximate": "by the use of the whole device, less that of other processes",
            "unknown": "what lies outside PyTorch's allocator was not measured"}


def name_text(chapter: DeviceChapter) -> str:
    """Return `cuda:0, NVIDIA H200, 139.8 GiB`."""
    parts = [chapter.name, chapter.model, bytes_text(chapter.total_bytes) if chapter.total_bytes is not None else ""]
    return ", ".join(part for part in parts if part)


def use_text(chapter: DeviceChapter) -> str:
    """Return how much of the device the process uses, and how well that is known; "" where neither is."""
    for name, words in (("used", "in use by this process"), ("reserved", "held by PyTorch's allocator")):
        whole = next((term for term in chapter.wholes if term.name == name), None)
        if whole is not None and (end := end_bytes(whole)) is not None:
            of_all = f" of {bytes_text(chapter.total_bytes)}" if chapter.total_bytes is not None else ""
            when = "" if whole.growth_bytes is None else " at the end"
            return f"{bytes_text(end)}{of_all} {words}{when} ({_QUALITY.get(chapter.use_quality, chapter.use_quality)})"
    return ""


def growth_sentence(chapter: DeviceChapter) -> str:
    """Return where the growth of a device lies, as one sentence; that it did not grow, or was not measured."""
    if chapter.growth_bytes is None:
        return f"How much the memory on {chapter.name} grew was not measured."
    if chapter.growth_bytes <= 0:
        return f"The memory of this process on {chapter.name} did not grow."
    blamed = next((term for term in chapter.terms if term.name == blamed_term(chapter)), None)
    of_term = f", {bytes_text(blamed.growth_bytes or 0)} of it {term_word(blamed.name)}" if blamed else ""
    return f"On {chapter.name} this process uses {bytes_text(chapter.growth_bytes)} more than at the start{of_term}."


def device_sentence(chapter: DeviceChapter) -> str:
    """Return the sentence of the first screen."""
    use = use_text(chapter)
    return " ".join(part for part in (growth_sentence(chapter), f"{use[:1].upper()}{use[1:]}." if use else "",
                                      SIMULATED if chapter.is_simulated else "") if part)


def fragmentation_sentence(found: Fragmentation) -> str:
    """Return what is free, in one sentence; "" where nothing is known."""
    if found.free_bytes == 0:
        return "Nothing of what the allocator holds is free."
    parts = []
    if found.free_bytes is not None:
        parts.append(f"{bytes_text(found.free_bytes)} of what the allocator holds is free")
    if found.inactive_split_bytes is not None:
        parts.append(f"{bytes_text(found.inactive_split_bytes)} lies in pieces of segments in use and cannot be given back")
    if found.largest_free_bytes is not None:
        parts.append(f"the largest free block has {bytes_text(found.largest_free_bytes)}")
    text = ", ".join(parts)
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def pin_sentence(pin: PinningBlock) -> str:
    """Return `2.0 MiB held by app.CACHE keeps 510.0 MiB of a segment of 512.0 MiB`."""
    is_part = pin.owner_share_ratio is not None and pin.owner_share_ratio < 0.995
    part = f", {ratio_text(pin.owner_share_ratio)} of it" if is_part else ""
    holder = f"{part} held by {pin.owner}{',' * bool(part)}" if pin.owner else " without a Python owner"
    made = f", made at {place_text(pin.site)}" if pin.site else ""
    return (f"{bytes_text(pin.size_bytes)}{holder} keeps {bytes_text(pin.keeps_bytes)} of a segment of "
            f"{bytes_text(pin.segment_bytes)}{made}")


def place_text(site: Location | None) -> str:
    """Return `embed (serve.py:61)`, "" for no place."""
    return f"{site.function} ({site.file}:{site.line})" if site else ""


def entries_text(row: CacheRow) -> str:
    """Return the entries of a cache in the first and the last snapshot that saw it: `12 -> 412`."""
    seen = [number for number in row.entries if number is not None]
    if not seen:
        return ""
    return count_text(seen[-1]) if len(seen) == 1 else f"{count_text(seen[0])} -> {count_text(seen[-1])}"


def last_of(numbers: tuple[int | None, ...]) -> int | None:
    """Return the last number that was seen."""
    return next((number for number in reversed(numbers) if number is not None), None)


def seen_entries(row: CacheRow) -> tuple[int, ...]:
    """Return the entries in the snapshots that saw the cache."""
    return tuple(number for number in row.entries if number is not None)


def grown_entries(row: CacheRow) -> int:
    """Return by how many entries a cache grew."""
    seen = seen_entries(row)
    return seen[-1] - seen[0] if seen else 0


def cache_sentence(row: CacheRow) -> str:
    """Return `flashinfer.jit.get_module() 12 -> 412 entries; argument 3 varies`."""
    bound = f", bound {count_text(row.bound)}" if row.bound is not None else ""
    varying = row.varying.partition(", looks like")[0]
    return f"{clip(row.name, _CACHE_NAME)} {entries_text(row)} entries{bound}{f'; {varying}' if varying else ''}"


def account_text(term: DeviceTerm) -> str:
    """Return `tensors that Python holds +1.2 GiB`."""
    return f"{term_word(term.name)} {growth_text(term.growth_bytes)}"
