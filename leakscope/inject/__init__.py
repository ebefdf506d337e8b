"""Ways into a process: each module says usable() -> reason or None, and brings the agent in."""
