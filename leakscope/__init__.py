"""LeakScope: memory-leak forensics for Python servers and jobs."""

__version__ = "0.1.0"
