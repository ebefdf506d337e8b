"""One snapshot as arrays, and how it is read from a session."""
