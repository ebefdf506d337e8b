"""numpy: arrays are untracked and have no tp_traverse. Object arrays hold their elements, records their fields of objects,
views what they show.
"""

from .. import classes
from ..format import EDGE_KIND_SHIFT, INDEX, KEY, STORAGE
from ..instances import InstanceReader

LIBRARY = "numpy"
_INDEX = INDEX << EDGE_KIND_SHIFT
_KEY = KEY << EDGE_KIND_SHIFT
_STORAGE = STORAGE << EDGE_KIND_SHIFT


_NPY_OBJECT, _NPY_VOID = 17, 20


def _flat(values, depth):
    """Return the elements of `depth` levels of lists; an element that is a list itself stays whole."""
    if depth == 0:
        return [values]
    for _level in range(depth - 1):
        values = [value for part in values for value in part]
    return values


def reader(walk, cls):
    """An array: INDEX to the elements of an object array, KEY with the name of the field to objects in records, STORAGE to the
    base of a view; with the bytes it owns.
    """
    array = dict.get(classes.space_named("numpy"), "ndarray")
    if array is None or not any(base is array for base in classes.mro_of(cls)):
        return None
    base_of, dtype_of, bytes_of = (array.__dict__[name].__get__ for name in ("base", "dtype", "nbytes"))
    number_of, names_of, fields_of = (
        classes.space_named("numpy")["dtype"].__dict__[name].__get__ for name in ("num", "names", "fields"))
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
        elif number_of(dtype_of(thing)) == _NPY_VOID:
            records = ()
            for place, name in enumerate(names_of(dtype_of(thing)) or ()):
                if number_of(fields_of(dtype_of(thing))[name][0]) == _NPY_OBJECT:
                    records = records or _flat(array.tolist(thing), depth_of(thing))
                    targets += [record[place] for record in records]
                    labels += [_KEY | walk.names.key(name)] * len(records)
        return targets, labels

    def size(thing):
        return walk.basic_size(cls) + (bytes_of(thing) if base_of(thing) is None else 0)

    walk.sizes_of[id(cls)] = size
    return read
