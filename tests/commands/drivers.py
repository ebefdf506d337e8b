"""A stand-in for nvidia-ml-py and the driver behind it, with the oddities of real ones (simulated: no driver was asked)."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

GIB = 1 << 30
_FORMS = ("", "_v2", "_v3")


class NVMLError(Exception):
    """The binding's error; its subclasses say which."""


def error(name: str) -> type[NVMLError]:
    return type(f"NVMLError_{name}", (NVMLError,), {"__str__": lambda self: name})


@dataclass
class Card:
    """One device, or a part of one (MIG). `processes`: list -> [(pid, bytes or None)], or the error it answers with."""

    uuid: str = "GPU-00000000-0000-0000-0000-000000000001"
    used: int = 10 * GIB
    total: int = 140 * GIB
    reserved: int = GIB // 2
    bus_id: str = "00000000:65:00.0"
    processes: dict[str, list[tuple[int, int | None]] | type[NVMLError]] = field(default_factory=dict)
    parts: list[Card] = field(default_factory=list)
    is_lost: bool = False


@dataclass
class Driver:
    """What `pynvml` is to be in a test. `forms`: of the process lists that this driver has; `wrong`: those it fills wrongly."""

    cards: list[Card] = field(default_factory=lambda: [Card()])
    forms: tuple[str, ...] = _FORMS
    wrong: tuple[str, ...] = ()
    has_second_memory: bool = True
    is_used_with_own: bool = True  # whether "used" of the second form has the driver's own part in it
    in_bytes: bool = False  # as old bindings answer
    init_error: type[NVMLError] | None = None
    calls: list[str] = field(default_factory=list)

    @property
    def module(self) -> ModuleType:
        module = ModuleType("pynvml")
        named: dict[str, Any] = {
            "nvmlInit": self._init, "nvmlShutdown": lambda: self.calls.append("shutdown"),
            "nvmlSystemGetDriverVersion": lambda: self._text("580.159.03"),
            "nvmlSystemGetNVMLVersion": lambda: self._text("13.580.159.03"),
            "nvmlDeviceGetCount": lambda: len(self.cards), "nvmlDeviceGetHandleByIndex": self._handle,
            "nvmlDeviceGetUUID": lambda card: self._text(card.uuid),
            "nvmlDeviceGetName": lambda card: self._text("NVIDIA H200"),
            "nvmlDeviceGetPciInfo": lambda card: SimpleNamespace(busId=self._text(card.bus_id)),
            "nvmlDeviceGetMigMode": self._mig, "nvmlDeviceGetMaxMigDeviceCount": lambda card: 7,
            "nvmlDeviceGetMigDeviceHandleByIndex": self._part, "nvmlDeviceGetMemoryInfo": self._memory,
            **({"nvmlMemory_v2": 2} if self.has_second_memory else {}),
        }
        for kind in ("Compute", "Graphics", "MPSCompute"):
            for form in _FORMS:
                named[f"nvmlDeviceGet{kind}RunningProcesses{form}"] = self._lister(kind, form)
        vars(module).update(named)
        return module

    def _text(self, text: str) -> str | bytes:
        return text.encode() if self.in_bytes else text

    def _init(self) -> None:
        self.calls.append("init")
        if self.init_error:
            raise self.init_error

    def _handle(self, index: int) -> Card:
        if self.cards[index].is_lost:
            raise error("GpuIsLost")
        return self.cards[index]

    def _mig(self, card: Card) -> list[int]:
        if not card.parts:
            raise error("NotSupported")
        return [1, 1]

    def _part(self, card: Card, number: int) -> Card:
        if number >= len(card.parts):
            raise error("NotFound")
        return card.parts[number]

    def _memory(self, card: Card, version: int | None = None) -> SimpleNamespace:
        if card.is_lost:
            raise error("GpuIsLost")
        if version is None:
            return SimpleNamespace(total=card.total, free=card.total - card.used, used=card.used)
        if not self.has_second_memory:
            raise TypeError("unexpected keyword argument 'version'")
        used = card.used if self.is_used_with_own else card.used - card.reserved
        return SimpleNamespace(total=card.total, free=card.total - card.used, used=used, reserved=card.reserved)

    def _lister(self, kind: str, form: str) -> Any:
        def listed(card: Card) -> list[SimpleNamespace]:
            if form not in self.forms:
                raise error("FunctionNotFound")
            found = card.processes.get(kind, [])
            if isinstance(found, type):
                raise found
            if form in self.wrong and found:
                return [SimpleNamespace(pid=3_000_000_000, usedGpuMemory=7)]
            return [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in found]
        return listed
