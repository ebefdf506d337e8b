"""How the objects of a library hold others where the collector cannot see. One file a library; it is asked only if the
target has imported the library, and never imports it. A module here answers `LIBRARY` (its name in sys.modules) and
`reader(walk, cls)`: a reader of instances of `cls` as in readers.py, or None if the class is none of its own.
"""

import sys

from . import mappings, numpy_arrays, torch_tensors

_ALL = (numpy_arrays, torch_tensors, mappings)


def loaded(walk):
    """Return the `reader` functions of the libraries that the target has imported."""
    return [module.reader for module in _ALL if module.LIBRARY in sys.modules]
