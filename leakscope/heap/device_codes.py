"""The codes of the column `device` of a graph, and the names that torch gives the devices they stand for."""

from __future__ import annotations

XPU, MPS = 128, 192  # codes of graph.device: 0 host, 1 + N cuda:N, 128 + N xpu:N, 192 mps:0


def device_name(code: int) -> str:
    """`host`, `cuda:0`, `xpu:1`, `mps:0`: the device that a value of the column `device` stands for."""
    if code >= MPS:
        return f"mps:{code - MPS}"
    if code >= XPU:
        return f"xpu:{code - XPU}"
    return f"cuda:{code - 1}" if code else "host"


def device_code(name: str) -> int:
    """The code of a device by its name; ROCm devices are called cuda, too. 0 for the host and for what is not known."""
    kind, _, number = name.partition(":")
    if kind not in _FIRST or not (number or "0").isdecimal():
        return 0
    code = _FIRST[kind] + int(number or 0)
    return code if code <= _LAST[kind] else 0


_FIRST = {"cuda": 1, "xpu": XPU, "mps": MPS}
_LAST = {"cuda": XPU - 1, "xpu": MPS - 1, "mps": 255}
