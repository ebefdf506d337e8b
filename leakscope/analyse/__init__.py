"""Pure algorithms on arrays of nodes and edges."""
