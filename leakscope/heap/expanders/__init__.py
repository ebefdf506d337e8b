"""How the objects of a library hold others, one file a library, where the host can tell from the graph."""
