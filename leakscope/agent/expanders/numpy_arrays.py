"""numpy: arrays are untracked and have no tp_traverse. Object arrays hold their elements, views hold what they show."""

from .. import classes
from ..format import EDGE_KIND_SHIFT, INDEX, STORAGE
from ..instances import InstanceReader

LIBRARY = "numpy"
_INDEX = INDEX << EDGE_KIND_SHIFT
_STORAGE = STORAGE << EDGE_KIND_SHIFT


_NPY_OBJECT = 17


def _flat(values, depth):
    """Return the elements of `depth` levels of lists; an element that is a list itself stays whole."""
    if depth == 0:
        return [values]
    for _level in range(depth - 1):
        values = [value for part in values for value in part]
    return values


def reader(walk, cls):
    """An array: INDEX to the elements of an object array, STORAGE to the base of a view; with the bytes it owns."""
    array = dict.get(classes.space_named("numpy"), "ndarray")
    if array is None or not any(base is array for base in classes.mro_of(cls)):
        return None
    base_of, dtype_of, bytes_of = (array.__dict__[name].__get__ for name in ("base", "dtype", "nbytes"))
    number_of = classes.space_named("numpy")["dtype"].__dict__["num"].__get__
    depth_of = array.__dict__["ndim"].__get__
    plain = InstanceReader(walk, cls) if cls is not array else None

    def read(thing):
        targets, labels = plain(thing) if plain is not None else ((), ())
        targets, labels = list(targets), list(labels)
        base = base_of(thing)
        if base is not None:
            targets.append(base)
            labels.append(_STORAGE)
        elif number_of(dtype_of(thing)) == _NPY_OBJECT:
            elements = _flat(array.tolist(thing), depth_of(thing))
            targets += elements
            labels += range(_INDEX, _INDEX + len(elements))
        return targets, labels

    def size(thing):
        return walk.basic_size(cls) + (bytes_of(thing) if base_of(thing) is None else 0)

    walk.sizes_of[id(cls)] = size
    return read
