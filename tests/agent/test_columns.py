"""Columns on disk are what numpy reads, for every length that matters to the header."""

from __future__ import annotations

from array import array

import numpy as np
import pytest

from leakscope.agent import columns
from leakscope.agent import format as layout


@pytest.mark.parametrize("length", [0, 1, 9, 10, 99, 12345])
@pytest.mark.parametrize("name", ["address", "type_id", "kind", "edge_start"])
def test_numpy_reads_what_was_written(tmp_path, name, length):
    values = columns.column(name, (number % 251 for number in range(length)))
    columns.write(str(tmp_path), name, values)
    read = np.load(tmp_path / f"{name}.npy", allow_pickle=False)
    assert read.dtype == np.dtype(layout.COLUMNS[name])
    assert read.tolist() == list(values)


@pytest.mark.parametrize("length", [0, 1, 10**6, 10**12])
def test_the_data_begin_at_a_multiple_of_64_bytes(length):
    assert len(columns.header("<u8", length)) % 64 == 0


def test_a_mapped_column_is_the_same(tmp_path):
    columns.write(str(tmp_path), "address", columns.column("address", [1, 2**64 - 1]))
    assert np.load(tmp_path / "address.npy", mmap_mode="r").tolist() == [1, 2**64 - 1]


def test_an_array_of_another_type_is_refused(tmp_path):
    with pytest.raises(ValueError, match="column address is <u8"):
        columns.write(str(tmp_path), "address", array("I", [1]))
    assert list(tmp_path.iterdir()) == []


def test_a_number_that_does_not_fit_is_refused():
    with pytest.raises(OverflowError):
        columns.column("kind", [256])


def test_a_folder_that_is_not_there_is_an_os_error(tmp_path):
    with pytest.raises(OSError):
        columns.write(str(tmp_path / "gone"), "kind", columns.column("kind"))
