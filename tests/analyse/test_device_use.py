"""Whose memory NVML's numbers are: five ways to tell, from the own pid down to the device as a whole (simulated drivers)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakscope.analyse.device_use import Other, merged, of_process, uses

MIB, GIB = 1 << 20, 1 << 30
OWN, OUTSIDE = 42, 2 * GIB  # the pid, and what the process uses beside its allocator
RISING = [number * 200 * MIB for number in range(1, 21)]
H200 = {"index": 0, "uuid": "GPU-8b5c2f1e-0000-1111-2222-333344445555", "bus_id": "00000000:65:00.0", "total_bytes": 140 * GIB}
INFO = {"name": "cuda:0", "uuid": "8b5c2f1e-0000-1111-2222-333344445555"}


def samples(reserved: list[int], ordinal: int = 0) -> list[dict[str, Any]]:
    return [{"t_ns": second * 10**9, f"cuda{ordinal}_reserved_bytes": held} for second, held in enumerate(reserved)]


def rows(*lists: list[list[int | None]] | None, used: list[int] | None = None, **about: Any) -> list[dict[str, Any]]:
    """A row a second, a little after the sample; each list is the processes of one row."""
    sizes = used or [GIB + sum(size or 0 for _, size in each or []) for each in lists]
    return [{"t_ns": second * 10**9 + 10**8, "devices": [{**H200, "used_bytes": sizes[second], "processes": each, **about}]}
            for second, each in enumerate(lists)]


def own(pid: int = OWN, outside: int = OUTSIDE) -> list[list[list[int | None]]]:
    return [[[pid, held + outside]] for held in RISING]


def quality(seen: list[dict[str, Any]], reserved: list[int] = RISING, **given_: Any) -> str:
    return merged(samples(reserved), seen, [INFO], OWN, **given_)[1]["cuda:0"]


def test_the_own_pid_is_exact_and_its_numbers_become_columns() -> None:
    seen = rows(*[[*each, [7, 5 * GIB]] for each in own()])
    timeline, how_good = merged(samples(RISING), seen, [INFO], OWN)
    assert how_good == {"cuda:0": "exact"}
    assert [row["cuda0_process_bytes"] - row["cuda0_reserved_bytes"] for row in timeline] == [OUTSIDE] * 20
    assert timeline[0]["cuda0_used_bytes"] == seen[0]["devices"][0]["used_bytes"]


def test_the_number_outside_the_container_is_exact_too() -> None:
    seen = rows(*[[*each, [7, 50 * GIB]] for each in own(pid=40_000)])
    assert quality(seen, nspid=(40_000,)) == "exact"
    assert quality(seen, nspid=(9,)) == "matched"  # without it only the value says so


def test_the_only_process_on_the_device_is_the_one_that_holds_memory_there() -> None:
    found = uses(samples(RISING), rows(*own(pid=40_000)), [INFO], OWN)["cuda:0"]
    assert (found.quality, found.how) == ("exact", "it is the only process on the device")
    assert found.process[-1][1] == RISING[-1] + OUTSIDE


def test_the_only_process_is_another_if_it_uses_less_than_the_own_allocator_holds() -> None:
    found = uses(samples(RISING), rows(*[[[9, 100 * MIB]] for _ in RISING], used=[held + 3 * GIB for held in RISING]),
                 [INFO], OWN)["cuda:0"]
    assert found.quality == "approximate"
    assert found.process[-1][1] == RISING[-1] + 3 * GIB - 100 * MIB


def test_a_pid_that_is_another_process_in_the_drivers_numbering_is_not_taken() -> None:
    assert quality(rows(*[[[OWN, 10 * MIB], *each] for each in own(pid=40_000)])) == "matched"


def test_among_several_the_one_that_moves_with_the_allocator_is_matched() -> None:
    seen = rows(*[[[9, 60 * GIB], *each, [11, 500 * MIB]] for each in own(pid=40_000)])
    found = uses(samples(RISING), seen, [INFO], OWN)["cuda:0"]
    assert found.quality == "matched"
    assert found.process[-1][1] == RISING[-1] + OUTSIDE
    assert found.others[-1][1] == 60 * GIB + 500 * MIB + GIB


def test_a_match_survives_growth_outside_the_allocator_and_spikes() -> None:
    lists = [[[9, 60 * GIB], [40_000, held + GIB + 10 * MIB * second + 400 * MIB * (second == 7)]]
             for second, held in enumerate(RISING)]
    assert quality(rows(*lists)) == "matched"


def test_two_processes_that_move_alike_are_not_told_apart() -> None:
    lists = [[[40_000, held + OUTSIDE], [41_000, held + OUTSIDE + MIB]] for held in RISING]
    assert quality(rows(*lists)) == "approximate"


def test_an_allocator_that_stands_still_matches_nobody() -> None:
    still = [5 * GIB] * 20
    assert quality(rows(*[[[9, 60 * GIB], [40_000, 7 * GIB]] for _ in still]), still) == "approximate"


@pytest.mark.parametrize("listed", [None, [], [[OWN, None]], [[9, None], [10, None]]])
def test_without_numbers_by_process_the_device_stands_for_it(listed: Any) -> None:
    seen = rows(*[listed for _ in RISING], used=[held + 3 * GIB for held in RISING], system_bytes=GIB // 2)
    found = uses(samples(RISING), seen, [INFO], OWN)["cuda:0"]
    assert found.quality == "approximate" and not found.others
    assert found.process[0][1] == RISING[0] + 3 * GIB - GIB // 2


def test_a_device_that_is_used_for_less_than_the_process_holds_is_the_wrong_one() -> None:
    found = uses(samples([5 * GIB] * 20), rows(*[[] for _ in RISING], used=[GIB] * 20), [INFO], OWN)["cuda:0"]
    assert (found.quality, found.process) == ("unknown", []) and found.used


def test_a_device_on_which_the_process_holds_nothing_is_not_its_own_because_another_is_alone_there() -> None:
    timeline, how_good = merged(samples([0] * 20), rows(*[[[9, 5 * GIB]] for _ in RISING]), [INFO], OWN)
    assert how_good == {"cuda:0": "unknown"}
    assert "cuda0_process_bytes" not in timeline[0] and timeline[0]["cuda0_used_bytes"] == 6 * GIB


def test_on_a_device_whose_memory_the_machine_uses_too_nothing_is_exact() -> None:
    found = uses(samples(RISING), rows(*own(), is_shared=True), [INFO], OWN)["cuda:0"]
    assert (found.quality, found.how) == ("approximate", "by its pid, on a device whose memory the machine uses, too")
    assert found.process[0][1] == RISING[0] + OUTSIDE


def test_what_others_use_is_told_by_process_the_largest_growth_first() -> None:
    seen = rows(*[[*each, [7, 5 * GIB], [8, GIB + second * 100 * MIB]] for second, each in enumerate(own())])
    seen[0]["names"] = {"8": "python3.12", str(OWN): "python3.11"}
    found = uses(samples(RISING), seen, [INFO], OWN)["cuda:0"]
    assert found.other_processes == (Other(8, "python3.12", GIB, GIB + 1900 * MIB), Other(7, None, 5 * GIB, 5 * GIB))
    assert found.others[-1][1] - found.others[0][1] == 1900 * MIB


def test_numbers_go_to_the_nearest_sample_and_nothing_is_interpolated() -> None:
    timeline = [{"t_ns": tenth * 10**8, "cuda0_reserved_bytes": GIB} for tenth in range(30)]
    together, _ = merged(timeline, rows(*own()[:2]), [INFO], OWN)
    assert [number for number, row in enumerate(together) if "cuda0_used_bytes" in row] == [1, 11]
    assert "cuda0_used_bytes" not in timeline[1]


def test_rows_far_from_any_sample_are_left_out() -> None:
    late = [{**row, "t_ns": row["t_ns"] + 60 * 10**9} for row in rows(*own())]
    assert merged(samples(RISING), late, [INFO], OWN) == (samples(RISING), {"cuda:0": "unknown"})


def test_samples_that_lack_the_allocators_columns_get_none() -> None:
    timeline = sorted(samples(RISING) + [{"t_ns": 10**8 + second * 10**9} for second in range(20)], key=lambda row: row["t_ns"])
    together, _ = merged(timeline, rows(*own()), [INFO], OWN)
    assert all("cuda0_reserved_bytes" in row for row in together if "cuda0_used_bytes" in row)


def test_without_rows_all_is_unknown_and_the_timeline_as_it_was() -> None:
    timeline = samples(RISING)
    assert merged(timeline, [], [INFO], OWN) == (timeline, {"cuda:0": "unknown"})
    assert merged([{"t_ns": 1, "rss_bytes": 5}], rows(*own()), [], OWN) == ([{"t_ns": 1, "rss_bytes": 5}], {})


# --- which device -----------------------------------------------------------------------------------------------------

CARDS = [{"index": number, "uuid": f"GPU-0000000{number}-aaaa", "bus_id": f"00000000:{number}5:00.0", "total_bytes": 80 * GIB,
          "used_bytes": (number + 1) * GIB, "processes": [[OWN, (number + 1) * GIB]]} for number in range(4)]


def place(info: dict[str, Any], cards: list[dict[str, Any]] = CARDS, ordinal: int = 0,
          visible: str | None = None) -> int | None:
    seen = [{"t_ns": 10**9, "devices": cards}]
    found = uses([{"t_ns": 10**9, f"cuda{ordinal}_reserved_bytes": MIB}], seen, [{"name": f"cuda:{ordinal}", **info}], OWN,
                 visible=visible)
    return found[f"cuda:{ordinal}"].index


@pytest.mark.parametrize(("info", "index"), [
    ({"uuid": "00000002-aaaa"}, 2), ({"uuid": "GPU-00000003-AAAA"}, 3), ({"bus_id": "0000:15:00.0"}, 1),
    ({"bus_id": "00000000:25:00"}, 2), ({"uuid": "GPU-99999999-aaaa"}, None), ({"bus_id": "0000:ff:00.0"}, None), ({}, 0),
    ({"bus_id": "no address", "uuid": 5}, 0),
])
def test_a_device_is_found_by_its_uuid_or_its_address(info: dict[str, Any], index: int | None) -> None:
    assert place(info) == index


@pytest.mark.parametrize(("visible", "ordinal", "index"), [
    ("2,1", 0, 2), ("2,1", 1, 1), ("2,1", 2, None), ("GPU-00000003", 0, 3), ("GPU-0000000", 0, None), ("7", 0, None),
    (None, 3, 3), (" 1 , 0", 0, 1), ("-1", 0, None),
])
def test_without_them_by_what_the_process_may_see(visible: str | None, ordinal: int, index: int | None) -> None:
    assert place({}, ordinal=ordinal, visible=visible) == index


def test_a_number_alone_says_nothing_where_the_devices_differ() -> None:
    mixed = [CARDS[0], {**CARDS[1], "total_bytes": 24 * GIB}]
    assert place({}, mixed, ordinal=1) is None
    assert place({"uuid": "00000001-aaaa"}, mixed, ordinal=1) == 1
    assert place({"total_bytes": 24 * GIB}, CARDS, ordinal=1) is None


def test_the_only_device_is_the_one_whatever_it_is_called() -> None:
    assert place({"uuid": "another-spelling"}, CARDS[:1]) == 0


def test_parts_of_a_device_are_told_apart_by_their_uuid() -> None:
    parts = [{**CARDS[0], "uuid": f"MIG-1111111{number}", "is_part": True} for number in range(2)]
    seen = [{"t_ns": 10**9, "devices": [{**parts[0]}, {**parts[1], "used_bytes": 3 * GIB}]}]
    found = uses([{"t_ns": 10**9, "cuda0_reserved_bytes": MIB}], seen, [{"name": "cuda:0", "uuid": "11111111"}], OWN)
    assert found["cuda:0"].used == [(1.0, 3.0 * GIB)]
    assert place({}, parts) is None
    assert place({}, parts, visible="MIG-11111111") == 0


def test_a_device_that_vanishes_keeps_what_was_read() -> None:
    seen = rows(*own())
    for row in seen[10:]:
        row["devices"] = []
    timeline, how_good = merged(samples(RISING), seen, [INFO], OWN)
    assert how_good == {"cuda:0": "exact"} and sum("cuda0_used_bytes" in row for row in timeline) == 10


def test_what_the_session_says_of_a_process() -> None:
    gpu = {"driver": "1", "processes": {"42": {"nspid": [7, 8], "visible": "1"}}}
    assert of_process(gpu, 42) == ((7, 8), "1")
    assert of_process(gpu, 43) == of_process(None, 42) == ((), None)


# --- laws -------------------------------------------------------------------------------------------------------------

SIZES = st.integers(0, 80 * GIB)
LISTS = st.one_of(st.none(), st.lists(st.tuples(st.integers(1, 50), st.one_of(st.none(), SIZES)), max_size=4))


@given(st.lists(st.tuples(SIZES, SIZES, LISTS), min_size=1, max_size=12))
def test_whatever_is_listed_columns_are_only_added_and_nothing_is_below_zero(moments: list[Any]) -> None:
    timeline = samples([held for held, _, _ in moments])
    lists = [listed and [list(each) for each in listed] for _, _, listed in moments]
    seen = rows(*lists, used=[used for _, used, _ in moments])
    together, how_good = merged(timeline, seen, [INFO], OWN)
    assert [{name: row[name] for name in before} for before, row in zip(timeline, together)] == timeline
    assert all(value >= 0 for row in together for value in row.values())
    has_process = any("cuda0_process_bytes" in row for row in together)
    assert has_process == (how_good["cuda:0"] != "unknown")


@given(st.lists(SIZES, min_size=2, max_size=12), st.lists(st.integers(0, 4 * GIB), min_size=12, max_size=12))
def test_an_exact_process_and_the_others_make_up_the_device(held: list[int], others: list[int]) -> None:
    lists = [[[OWN, size + OUTSIDE], [7, other]] for size, other in zip(held, others)]
    found = uses(samples(held), rows(*lists, system_bytes=GIB // 4), [INFO], OWN)["cuda:0"]
    assert found.quality == "exact"
    assert all(used == mine + theirs + GIB // 4
               for (_, used), (_, mine), (_, theirs) in zip(found.used, found.process, found.others))
