"""Columns on disk: .npy files of format 1.0 (one dimension, little-endian), written without numpy."""

import os
import sys
from array import array

from .format import COLUMNS, STORAGE_COLUMNS

# The type code of `array` for each dtype of COLUMNS. array("L") is 8 bytes on Linux and 4 on Windows, so it is not
# used.
_DTYPES = {**COLUMNS, **STORAGE_COLUMNS}
_TYPECODES = {"<u8": "Q", "<u4": "I", "<u1": "B"}
_SIZES = {"<u8": 8, "<u4": 4, "<u1": 1}


def column(name, values=()):
    """Return an array with the values of the column `name`; raises OverflowError for a value that does not fit."""
    return array(_TYPECODES[_DTYPES[name]], values)


def write(folder, name, values):
    """Write `values` (an array of the right type) as `folder/name.npy`; raises OSError, ValueError for another type."""
    dtype = _DTYPES[name]
    if values.typecode != _TYPECODES[dtype] or values.itemsize != _SIZES[dtype]:
        raise ValueError("column %s is %s, not array(%r)" % (name, dtype, values.typecode))
    if sys.byteorder == "big":
        values = array(values.typecode, values)
        values.byteswap()
    with open(os.path.join(folder, name + ".npy"), "wb") as file:
        file.write(header(dtype, len(values)))
        values.tofile(file)


def header(dtype, length):
    """Return the bytes before the data: magic, version 1.0, a dictionary padded so that the data begin at 64 bytes."""
    text = "{'descr': '%s', 'fortran_order': False, 'shape': (%d,), }" % (dtype, length)
    text += " " * (-(10 + len(text) + 1) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode("latin1")
