"""LeakScope: memory-leak forensics for Python servers and jobs."""

import sys as _sys

__version__ = "0.1.0"


def tick(count: int = 1, batch: int | None = None, tokens: int | None = None) -> None:
    """Say that the program has done `count` units of work (requests, steps, rows), so that growth is told per unit.

    `batch` and `tokens` say how large the unit was: how many sequences together, and how long the longest of them. With them
    memory that follows the load is told from memory that each unit leaves behind, and the report says which batch would no
    longer fit. Next to free, from any thread. Without `leakscope run` around the program it does nothing; it never raises.
    """
    agent = _sys.modules.get("_leakscope_agent")
    if agent is not None:
        agent.tick(count, batch, tokens)


def settle(seconds: float = 30.0, collect: bool = False) -> None:
    """Wait `seconds` in this thread, then take a snapshot of what is left now that the load is over.

    Call it where nothing is under way. `collect=True` collects garbage first, in this thread. Without `leakscope run` around
    the program it does nothing and does not wait; it never raises, except what a signal handler of the program raises.
    """
    agent = _sys.modules.get("_leakscope_agent")
    if agent is not None:
        agent.settle(seconds, collect)
