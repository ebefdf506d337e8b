"""torch: tensors show neither their storage, nor their base, gradient and autograd graph, to the collector."""

LIBRARY = "torch"


def reader(walk, cls):
    """Not yet."""
    return None
