"""Which root a person would name first. Lower ranks are tried first when a path is chosen."""

from __future__ import annotations

# PerfView's idea of root priorities: what lives by design before what is only passing through.
RANK = {"module": 0, "atexit": 1, "signal": 1, "interpreter": 2, "event-loop": 3, "task": 4, "contextvar": 5,
        "thread-local": 6, "frame": 7, "c-held": 8, "garbage": 9}
