"""Which root a person would name first. Lower ranks are tried first when a path is chosen."""

from __future__ import annotations

# PerfView's idea of root priorities: what lives by design before what is only passing through.
# Contexts come before loops and tasks: each handle and task has a copy of the one that it was made in.
RANK = {"module": 0, "atexit": 1, "signal": 1, "interpreter": 2, "contextvar": 3, "event-loop": 4, "task": 5,
        "thread-local": 6, "frame": 7, "c-held": 8, "garbage": 9}
