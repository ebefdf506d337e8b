"""What caches and tables are keyed by: the same from both walks, and no value of it but small integers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.agent.twins import VERSIONS, Twins, taken

PROGRAM = (Path(__file__).parent / "programs" / "caches.py").read_text()


@pytest.fixture(scope="module", params=VERSIONS)
def twins(request: pytest.FixtureRequest) -> Twins:
    return taken(request.param, PROGRAM)


def keys_of(twins: Twins, name: str) -> dict[str, Any]:
    (cache,) = [each for each in twins.native.names["caches"] if each["name"] == f"__main__.{name}"]
    return cache


def position(keys: dict[str, Any], *at: object) -> dict[str, Any]:
    return next(each for each in keys["positions"] if each["at"] == list(at))


def by_address(rows: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    return {row["address"]: row for row in rows}


def test_both_walks_tell_the_same_keys(twins: Twins) -> None:
    caches = by_address(twins.native.names["caches"])
    for address, expected in by_address(twins.twin.names["caches"]).items():
        assert caches[address] == expected
    native, twin = by_address(twins.native.names["tables"]), by_address(twins.twin.names["tables"])
    assert len(native) > 4 and native == twin


def test_the_argument_that_varies_is_told_from_those_that_do_not(twins: Twins) -> None:
    cache = keys_of(twins, "module_of")
    assert cache["arguments"] == ["dtype", "head_dim", "seq_len", "causal"] and cache["keys"]["looked"] == 40
    assert [position(cache["keys"], place)["distinct"] for place in (0, 1, 2)] == [1, 1, 40]
    assert position(cache["keys"], "causal=")["types"] == {"bool": 40}
    varying = position(cache["keys"], 2)
    assert (varying["min"], varying["max"], varying["shown"]) == (17, 3917, 40)


def test_a_single_argument_is_its_own_key_and_large_or_negative_numbers_are_not_shown(twins: Twins) -> None:
    keys = keys_of(twins, "single")["keys"]
    assert position(keys, 0)["types"] == {"int": 45, "str": 5} and position(keys, 0)["distinct"] == 50
    assert (position(keys, 0)["shown"], position(keys, 0)["max"]) == (41, (1 << 20) - 1)


def test_a_cache_with_a_limit_is_read_through_its_links(twins: Twins) -> None:
    keys = keys_of(twins, "bounded")["keys"]
    assert keys["looked"] == 16 and position(keys, 0, 0)["distinct"] == 16 and position(keys, 0, 1)["distinct"] == 1
    assert position(keys, 1)["types"] == {"__main__.Color": 16} and position(keys, 1)["distinct"] == 1
    known = set(twins.native.columns["address"].tolist())
    assert len(keys["samples"]) == 16 and all(address in known for _numbers, address in keys["samples"])


def test_types_of_a_typed_cache_are_no_arguments(twins: Twins) -> None:
    keys = keys_of(twins, "typed")["keys"]
    assert [each["at"] for each in keys["positions"]] == [[0], ["two="]]


def test_a_function_made_anew_inside_a_dataclass_is_what_varies(twins: Twins) -> None:
    keys = keys_of(twins, "tuned")["keys"]
    assert position(keys, 0, ".name")["distinct"] == 1
    varying = position(keys, 0, ".bucket")
    assert varying["types"] == {"lambda": 40} and varying["distinct"] == varying["identity"] == 40
    assert not any(".cost" in each["at"] for each in keys["positions"])  # compare=False
    assert position(keys, 1, 0, 0)["distinct"] == 40 and position(keys, 1, 1, 1)["distinct"] == 1


def test_what_compares_by_identity_is_told_from_what_compares_by_code_of_its_own(twins: Twins) -> None:
    told = position(keys_of(twins, "of_objects")["keys"], 0)
    assert (told["identity"], told["opaque"]) == (40, 40)


def test_no_value_of_a_key_leaves_the_process(twins: Twins) -> None:
    for folder in (twins.native, twins.twin):
        assert "hunter2" not in str(folder.names) and "SECRET" not in str(folder.names)


def test_tables_keyed_by_numbers_and_tuples_are_listed_and_short_or_named_ones_are_not(twins: Twins) -> None:
    sizes = [table["size"] for table in twins.native.names["tables"]]
    assert sizes.count(30) >= 1 and sizes.count(20) >= 1 and sizes.count(12) >= 1
    assert 1 not in sizes
    by_length = next(each for each in twins.native.names["tables"] if each["size"] == 30 and len(each["keys"]["samples"]) == 30)
    assert position(by_length["keys"])["distinct"] == 30
    pure = next(each for each in twins.native.names["tables"] if each["size"] == 12 and "dtype=" in str(each))
    assert [each["at"] for each in pure["keys"]["positions"]] == [[0], [1], ["dtype="]]
    of_shape = next(each for each in twins.native.names["tables"] if each["size"] == 20 and "frozenset" in str(each))
    told = [position(of_shape["keys"], *at)["distinct"] for at in ((0, 0), (0, 1), (1,), (2,), (3,), (4,))]
    assert told == [20, 1, 20, 20, 1, 20]


def test_keywords_without_a_name_are_one_position_that_counts_each_key_once(twins: Twins) -> None:
    told = position(keys_of(twins, "of_words")["keys"], "?=")  # counted five times a key, the walk had no end
    assert told["distinct"] == 40 and told["types"] == {"int": 40}


def test_only_the_first_parts_of_a_key_of_keys_are_looked_at(twins: Twins) -> None:
    (deep,) = [each for each in twins.native.names["tables"] if each["size"] == 14]
    assert position(deep["keys"], 0)["distinct"] == 1 and deep["keys"]["looked"] == 14  # they differ behind the 420th
