"""The agent's JSON is everybody's JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakscope.agent import jsontext

VALUES = st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
                      lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))


@given(VALUES)
def test_it_reads_and_writes_what_json_reads_and_writes(value: Any) -> None:
    assert json.loads(jsontext.write(value)) == value
    assert jsontext.read(json.dumps(value)) == value
    assert jsontext.write(value).isascii() and "\n" not in jsontext.write(value)


def test_an_object_of_the_target_is_refused() -> None:
    with pytest.raises(TypeError, match="a object has no place in a session file"):
        jsontext.write({"x": object()})
