"""Classes of device memory that are no leak, or that more than one series tells: dismissals, pools, rounding, pinned memory.

All series and maps of blocks are simulated (tests/devices.py).
"""

from __future__ import annotations

import pytest

from leakscope.analyse import staircase
from leakscope.analyse.device_use import DeviceUse, Other
from leakscope.analyse.kin import Relative
from leakscope.detectors import (
    allocator_churn,
    block_rounding,
    device_first_use,
    device_high_water,
    device_ipc,
    other_processes,
    pinned_cache,
    zombie_pools,
)
from leakscope.model import Confidence, Dismissed, Finding
from tests.detectors.test_devices import findings
from tests.devices import GIB, MIB, block, noisy, plateau, ramp, segment, steps, watched


def of(module, case):
    return list(module.detect(case))


# --- 7: zombie pools -----------------------------------------------------------------------------------------------------


def pools(*counts, live=0, size=200 * MIB):
    """Snapshots with so many empty private pools, and some in use."""
    return [[segment(block(MIB)), *[segment(block(size, "free"), pool=(0, 1 + row)) for row in range(count)],
             *[segment(block(size, "private-pool"), pool=(9, row)) for row in range(live)]] for count in counts]


def test_empty_pools_that_become_more_are_a_finding():
    (found,) = findings(zombie_pools, watched(releasable=ramp(1600), snapshots=pools(2, 5, 9, 9)))
    assert found.rule.code == "LS407" and found.object_count == 9
    assert found.reasons[:2] == ("5 private pools hold 1000.0 MiB and have not had one live block for long",
                                 "private pools without a live block, by snapshot: 2 -> 5 -> 9 -> 9")
    assert "pytorch#190348" in found.remedy and "empty_cache()" in found.remedy


def test_a_pool_in_use_is_none_and_a_live_graph_may_own_an_empty_one():
    assert of(zombie_pools, watched(releasable=ramp(1600), snapshots=pools(0, 0, 0, live=5))) == []
    owned = watched(releasable=ramp(1600), snapshots=pools(1, 2, 3, 3),
                    text="module app\napp .graphs -> list\n" + "app .more -> torch.cuda.graphs.CUDAGraph x3")
    assert of(zombie_pools, owned) == []


def test_with_live_graphs_only_what_is_more_than_they_are_counts():
    case = watched(releasable=ramp(1600), snapshots=pools(9, 9, 9, 9), text="module app\napp .g -> torch.cuda.graphs.CUDAGraph")
    (what,) = of(zombie_pools, case)
    assert isinstance(what, Dismissed) and what.why.startswith("it levels off: 8 private pools hold 1.6 GiB")


def test_empty_pools_that_stay_are_dismissed_and_small_ones_not_told():
    (what,) = of(zombie_pools, watched(releasable=900 * MIB, snapshots=pools(4, 4, 4)))
    assert isinstance(what, Dismissed) and "4 private pools" in what.why
    assert of(zombie_pools, watched(releasable=9 * MIB, snapshots=pools(4, 4, 4, size=2 * MIB))) == []


def test_two_snapshots_are_enough_where_segments_were_given_back_in_between():
    two = {"releasable": 900 * MIB, "snapshots": pools(4, 4)}
    assert of(zombie_pools, watched(**two)) == []
    assert len(of(zombie_pools, watched(columns={"device_frees": lambda t: t}, **two))) == 1


def test_empty_pools_beside_free_segments_that_go_up_and_down_are_no_claim():
    assert findings(zombie_pools, watched(releasable=noisy(300, 900), snapshots=pools(2, 5, 9, 9))) == []


# --- 14: high water ------------------------------------------------------------------------------------------------------


def test_a_high_water_is_dismissed_with_its_peak():
    columns = {"allocated_peak_bytes": lambda t: (2000 if t > 20 else 300) * MIB}
    (what,) = of(device_high_water, watched(releasable=plateau(1600), allocated_owned=300 * MIB, columns=columns))
    assert what.why.startswith("allocator high water: ") and what.growth_bytes > 300 * MIB
    assert "at the peak 2.0 GiB were allocated (22.0 s into the run), now 300.0 MiB are" in what.why


@pytest.mark.parametrize("releasable", [ramp(1600), noisy(200), 900 * MIB])
def test_free_segments_that_grow_on_or_did_not_grow_are_no_high_water(releasable):
    assert of(device_high_water, watched(releasable=releasable)) == []


def test_what_came_in_the_start_up_and_stayed_is_told_too():
    (what,) = of(device_high_water, watched(releasable=lambda t: (1500 if t > 6 else 40) * MIB, allocated_owned=300 * MIB))
    assert what.growth_bytes == 1460 * MIB


def test_beside_tensors_that_grow_there_is_no_high_water():
    assert of(device_high_water, watched(releasable=plateau(1600), allocated_owned=ramp(900))) == []


# --- 16: rounding --------------------------------------------------------------------------------------------------------


GROWING = ramp(3000, 2000)


def rounded(part, grows=GROWING):
    """Of what is allocated, this part was not asked for."""
    return {"allocated_owned": grows, "columns": {"requested_bytes": lambda t: (1 - part) * grows(t)}}


def test_rounding_that_grows_with_the_tensors_is_told_with_the_worst_sizes():
    snapshots = [[segment(*[block(512, requested=8)] * 9, block(2 * MIB, requested=1.1 * MIB))]] * 3
    (found,) = findings(block_rounding, watched(snapshots=snapshots, **rounded(0.4)))
    assert "(40%)" in found.reasons[0] and "1 blocks of 2.0 MiB for 1.1 MiB" in found.reasons[1]
    assert found.growth_bytes["cuda:0"] < 1300 * MIB and found.confidence is Confidence.MEDIUM


def test_rounding_is_not_told_where_it_is_little():
    assert of(block_rounding, watched(**rounded(0.1))) == []
    assert of(block_rounding, watched(**rounded(0.4, ramp(100, 200)))) == []


@pytest.mark.parametrize("grows", [lambda t: 2000.0 * MIB, plateau(1000, 2000), noisy(100, 2000)])
def test_rounding_that_stays_is_dismissed(grows):
    (what,) = of(block_rounding, watched(**rounded(0.4, grows)))
    assert isinstance(what, Dismissed) and what.why.startswith("it levels off: of ")


def test_where_nobody_counted_what_was_asked_for_nothing_is_said():
    assert of(block_rounding, watched(allocated_owned=ramp(3000))) == []


# --- 17: first use -------------------------------------------------------------------------------------------------------


def test_a_staircase_that_ends_is_first_use():
    def stairs(t):
        return (450 + 40 * min(8, t // 4)) * MIB

    (what,) = of(device_first_use, watched(outside=stairs))
    assert "was 450.0 MiB when it was first seen and rose to 770.0 MiB in 8 steps" in what.why
    assert what.why.startswith("it levels off")


@pytest.mark.parametrize("outside", [ramp(900), noisy(20), 500 * MIB, None])
def test_what_grows_on_or_did_not_grow_is_no_first_use(outside):
    assert of(device_first_use, watched(outside=outside)) == []


def test_steps_are_rises_that_stay():
    found = staircase.steps([(0, 0), (1, 100), (2, 0), (3, 60), (4, 120), (5, 120), (6, 240), (7, 240)], 100)
    assert [(step.t_s, step.rise) for step in found] == [(4, 120), (6, 120)]
    assert staircase.steps([], 1) == [] and staircase.steps([(0, 5), (1, 3)], 1) == []
    assert staircase.steps([(t, 30 * t) for t in range(20)], 20) == []


# --- 20: pinned memory ---------------------------------------------------------------------------------------------------


def pinned(held, used=lambda t: 400 * MIB, torch="2.13.0", **process):
    return watched(process={"pinned_held_bytes": held, "pinned_used_bytes": used, **process}, packages={"torch": torch},
                   snapshots=[[segment(block(MIB))]] * 3)


def test_pinned_memory_that_is_held_and_not_used_and_grows_is_a_finding():
    (found,) = findings(pinned_cache, pinned(ramp(3000), pinned_allocs=lambda t: 2 * t, shmem_bytes=ramp(3000)))
    assert found.layer == "pinned" and 2000 * MIB < found.growth_bytes["host"] < 3000 * MIB
    assert any("of pinned host memory are held and 400.0 MiB are in use" in reason for reason in found.reasons)
    assert any("times new memory was pinned" in reason for reason in found.reasons)
    assert any("shared part" in reason for reason in found.reasons)


@pytest.mark.parametrize(("torch", "said"), [("2.11.0", "upgrade"), ("2.12.0", "empty_host_cache"), ("2.13.0", "pinned_max")])
def test_the_remedy_is_that_of_the_version(torch, said):
    (found,) = findings(pinned_cache, pinned(ramp(3000), torch=torch))
    assert said in found.remedy


@pytest.mark.parametrize("held", [plateau(3000), noisy(200, 2000), lambda t: 2.0 * GIB])
def test_pinned_memory_that_stays_is_dismissed(held):
    (what,) = of(pinned_cache, pinned(held))
    assert isinstance(what, Dismissed) and what.why.startswith("allocator high water")


def test_pinned_memory_in_use_or_little_of_it_or_none_is_not_told():
    assert of(pinned_cache, pinned(ramp(3000), ramp(2900))) == []
    assert of(pinned_cache, pinned(ramp(600))) == []
    assert of(pinned_cache, watched()) == []


# --- 21: memory that other processes have open ---------------------------------------------------------------------------

SENT = "module app\napp .sent -> torch.multiprocessing.reductions.SharedCache"


LEAKING = ramp(900)


def sent(grows=LEAKING, text=SENT, files=lambda t: 5 + t // 10, family=True):
    case = watched(allocated_unowned=grows, snapshots=[[segment(block(MIB))]] * 3, text=text, process={"shared_files": files})
    receiver = Relative({"pid": 8, "role": "spawn", "parent": 7}, [{"t_ns": 0, "cuda0_allocated_bytes": 5}])
    case.family = [receiver] if family else []
    return case


def test_sent_tensors_are_told_with_their_receivers():
    (found,) = findings(device_ipc, sent())
    assert found.confidence is Confidence.MEDIUM and "ipc_collect()" in found.remedy
    assert any("process 8 of this session" in reason for reason in found.reasons)


def test_nothing_was_sent_where_no_table_or_no_receiver_says_so():
    assert findings(device_ipc, sent(text="module app")) == []
    assert findings(device_ipc, sent(files=lambda t: 5, family=False)) == []


@pytest.mark.parametrize("grows", [plateau(900), noisy(200)])
def test_sent_tensors_that_become_no_more_are_none(grows):
    assert findings(device_ipc, sent(grows)) == []


# --- 26, 27: churn, others -----------------------------------------------------------------------------------------------


def test_churn_is_dismissed_with_its_rates():
    case = watched(columns={"device_allocs": lambda t: 20 * t, "device_frees": lambda t: 19 * t,
                            "alloc_retries": lambda t: t // 50})
    (what,) = of(allocator_churn, case)
    assert "20.0 segments a second are taken from the driver and 19.0 given back" in what.why and "empty_cache()" in what.why
    assert "allocations failed" in what.why


@pytest.mark.parametrize("columns", [{}, {"device_allocs": lambda t: t}, {"device_allocs": lambda t: 900},
                                     {"device_allocs": lambda t: 900 * min(1.0, t / 10)}])
def test_few_calls_of_the_driver_are_no_churn(columns):
    assert of(allocator_churn, watched(columns=columns)) == []


def shared(others, **terms):
    own = terms.get("allocated_owned", lambda t: 300 * MIB)
    return watched(columns={"used_bytes": lambda t: others(t) + own(t)}, allocated_owned=own,
                   quality=terms.get("quality", "exact"))


def test_another_process_that_fills_the_device_is_dismissed_with_its_number():
    case = shared(ramp(9000))
    assert of(other_processes, case)[0].why.endswith("this process has 0 B")
    listed = (Other(99, "python3.11", MIB, 9 * GIB), Other(98, None, None, None), Other(97, "Xorg", MIB, MIB))
    case.device_uses = {"cuda:0": DeviceUse("cuda:0", "exact", "by its pid", other_processes=listed)}
    (what,) = of(other_processes, case)
    assert what.why.startswith("another process: ") and what.why.endswith(
        "this process has 0 B; of them process 99 (python3.11) +9.0 GiB, process 98")


@pytest.mark.parametrize("others", [plateau(900), noisy(200), lambda t: 5.0 * GIB])
def test_another_process_that_does_not_grow_is_not_told(others):
    assert of(other_processes, shared(others)) == []


def test_where_the_own_use_is_a_guess_others_are_not_told():
    assert of(other_processes, shared(ramp(9000), quality="approximate")) == []
    assert of(other_processes, watched()) == []


def test_no_dismissal_is_a_finding():
    assert not any(isinstance(each, Finding) for each in of(device_first_use, watched(outside=steps(100, 10))))
