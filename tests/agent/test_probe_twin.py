"""The native walk gives the graph that the walk in Python gives, on every version that has a probe."""

from __future__ import annotations

import pytest

from tests.agent.twins import VERSIONS, differences, taken

PLAIN = '''
class Plain:
    def __init__(self):
        self.first, self.second = [1, "two", 3.0], {"key": (4, b"5")}

KEEP = {"orders": [Plain() for _ in range(20)], 7: None, (1, 2): "text"}
both()
'''


@pytest.mark.parametrize("version", VERSIONS)
def test_plain_objects(version: str) -> None:
    assert differences(taken(version, PLAIN)) == ""
