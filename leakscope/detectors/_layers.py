"""What the detectors of memory without objects share: sustained growth of one layer becomes one finding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from leakscope.analyse import memory
from leakscope.analyse.memory import Sustained
from leakscope.case import Case
from leakscope.model import Confidence, Finding, Rule


def finding(case: Case, rule: Rule, growth: Sustained, layer: str, owner: str, leaked_type: str, reasons: Sequence[str],
            doubts: Sequence[str], remedy: str, **more: Any) -> Finding:
    """Return the finding of a growing layer; its share of the growth of the process is the last reason."""
    share = memory.ratio(growth.bytes, case.layer("total"))
    of_process = () if share is None else (f"it accounts for {share:.0%} of the growth of the process",)
    return Finding(rule, Confidence.MEDIUM if growth.is_steady else Confidence.LOW, layer, owner, None, leaked_type,
                   pid=int(case.info.get("pid", 0)), growth_bytes={"host": growth.bytes}, share_of_growth_ratio=share,
                   reasons=(*reasons, *of_process), doubts=tuple(doubts), remedy=remedy, **more)
