"""Every oddity of drivers and bindings costs the number that it concerns, and no other (simulated drivers)."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from leakscope.commands import _nvml
from tests.commands.drivers import GIB, Card, Driver, error


def connected(monkeypatch: pytest.MonkeyPatch, driver: Driver) -> _nvml.Nvml:
    monkeypatch.setitem(sys.modules, "pynvml", driver.module)
    found = _nvml.connect()
    assert isinstance(found, _nvml.Nvml)
    return found


def only_device(monkeypatch: pytest.MonkeyPatch, driver: Driver) -> dict[str, Any]:
    row = connected(monkeypatch, driver).row()
    assert row is not None
    (device,) = row["devices"]
    return device  # type: ignore[no-any-return]


def test_a_row_says_what_is_used_and_by_whom(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = connected(monkeypatch, Driver([Card(processes={"Compute": [(70, 3 * GIB), (71, GIB)]})]))
    assert (nvml.driver, nvml.version) == ("580.159.03", "13.580.159.03")
    assert nvml.row() == {"devices": [{
        "index": 0, "uuid": "GPU-00000000-0000-0000-0000-000000000001", "bus_id": "00000000:65:00.0", "model": "NVIDIA H200",
        "total_bytes": 140 * GIB, "used_bytes": 10 * GIB, "system_bytes": GIB // 2,
        "processes": [[70, 3 * GIB], [71, GIB]]}]}


def test_bindings_that_answer_in_bytes_give_text(monkeypatch: pytest.MonkeyPatch) -> None:
    device = only_device(monkeypatch, Driver(in_bytes=True))
    assert (device["uuid"], device["model"]) == ("GPU-00000000-0000-0000-0000-000000000001", "NVIDIA H200")


@pytest.mark.parametrize("driver", [Driver(), Driver(is_used_with_own=False), Driver(has_second_memory=False)])
def test_used_is_what_is_not_free_whatever_the_driver_calls_used(monkeypatch: pytest.MonkeyPatch, driver: Driver) -> None:
    device = only_device(monkeypatch, driver)
    assert device["used_bytes"] == 10 * GIB
    assert ("system_bytes" in device) == driver.has_second_memory


def test_a_driver_without_the_second_form_of_memory_is_asked_for_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(has_second_memory=False)
    module = driver.module
    module.nvmlMemory_v2 = 2  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pynvml", module)
    nvml = _nvml.connect()
    assert isinstance(nvml, _nvml.Nvml)
    for _ in range(2):
        row = nvml.row()
        assert row is not None and row["devices"][0]["used_bytes"] == 10 * GIB


def test_memory_of_a_process_that_the_driver_does_not_tell_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert only_device(monkeypatch, Driver([Card(processes={"Compute": [(70, None)]})]))["processes"] == [[70, None]]


@pytest.mark.parametrize("driver", [Driver(forms=("_v2",)), Driver(wrong=("", "_v3"))], ids=["lacking", "filled wrongly"])
def test_the_newest_form_of_a_list_gives_way_to_an_older_one(monkeypatch: pytest.MonkeyPatch, driver: Driver) -> None:
    driver.cards = [Card(processes={"Compute": [(70, GIB)]})]
    assert only_device(monkeypatch, driver)["processes"] == [[70, GIB]]


def test_the_form_that_worked_is_asked_first_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver([Card(processes={"Compute": [(70, GIB)]})], wrong=("", "_v3"))
    nvml = connected(monkeypatch, driver)
    nvml.row()
    driver.wrong, driver.forms = (), ("_v2",)
    row = nvml.row()
    assert row is not None and row["devices"][0]["processes"] == [[70, GIB]]


def test_lists_that_a_driver_does_not_have_are_not_told_and_no_empty_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    assert only_device(monkeypatch, Driver(forms=()))["processes"] is None
    assert only_device(monkeypatch, Driver())["processes"] == []


def test_those_behind_an_mps_server_and_those_that_draw_are_listed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    lists: Any = {"Compute": [(9, GIB // 8), (12, 2 * GIB)], "MPSCompute": [(70, GIB)], "Graphics": [(12, None), (13, GIB)]}
    assert only_device(monkeypatch, Driver([Card(processes=lists)]))["processes"] == [
        [9, GIB // 8], [12, 2 * GIB], [13, GIB], [70, GIB]]


def test_one_list_that_is_refused_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    card = Card(processes={"Compute": [(70, GIB)], "Graphics": error("NoPermission")})
    assert only_device(monkeypatch, Driver([card]))["processes"] == [[70, GIB]]


def test_of_a_divided_device_the_parts_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [Card(uuid="MIG-1", total=20 * GIB, used=GIB, processes={"Compute": [(70, GIB // 2)]}),
             Card(uuid="MIG-2", total=20 * GIB, used=2 * GIB)]
    row = connected(monkeypatch, Driver([Card(parts=parts), Card(uuid="GPU-2")])).row()
    assert row is not None
    assert [(each["index"], each["uuid"], each.get("is_part"), each["used_bytes"]) for each in row["devices"]] == [
        (0, "MIG-1", True, GIB), (0, "MIG-2", True, 2 * GIB), (1, "GPU-2", None, 10 * GIB)]


@pytest.mark.parametrize(("mode", "is_shared"), [(0, None), (1, None), (2, True)])
def test_memory_that_is_a_numa_node_of_the_machine_is_marked(
        monkeypatch: pytest.MonkeyPatch, mode: int, is_shared: bool | None) -> None:
    module = Driver().module
    module.nvmlDeviceGetAddressingMode = lambda card: mode  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pynvml", module)
    nvml = _nvml.connect()
    assert isinstance(nvml, _nvml.Nvml)
    row = nvml.row()
    assert row is not None and row["devices"][0].get("is_shared") is is_shared


def test_a_device_that_falls_off_its_bus_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver([Card(uuid="GPU-1"), Card(uuid="GPU-2")])
    nvml = connected(monkeypatch, driver)
    driver.cards[0].is_lost = True
    row = nvml.row()
    assert row is not None and [each["uuid"] for each in row["devices"]] == ["GPU-2"]
    driver.cards[1].is_lost = True
    assert nvml.row() is None


def test_a_process_is_named_once_by_its_executable(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = connected(monkeypatch, Driver([Card(processes={"Compute": [(os.getpid(), GIB), (1 << 22, GIB)]})]))
    first, second = nvml.row(), nvml.row()
    assert first is not None and first["names"] == {str(os.getpid()): os.path.basename(os.path.realpath(sys.executable))}
    assert second is not None and "names" not in second


@pytest.mark.parametrize(("name", "reason"), [
    ("LibraryNotFound", "there is no NVIDIA driver library here (libnvidia-ml.so.1)"),
    ("DriverNotLoaded", "the NVIDIA driver is not loaded"),
    ("Unknown", "the NVIDIA driver answers 'Unknown'"),
])
def test_a_driver_that_is_not_there_is_a_reason(monkeypatch: pytest.MonkeyPatch, name: str, reason: str) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Driver(init_error=error(name)).module)
    assert _nvml.connect() == reason
    assert _nvml.command_for(reason) == "nvidia-smi"


def test_without_the_binding_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    reason = _nvml.connect()
    assert reason == "nvidia-ml-py is not installed where leakscope runs"
    assert _nvml.command_for(reason) == "pip install leakscope-forensics[gpu]"


def test_another_module_of_that_name_is_said_to_be_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", type(sys)("pynvml"))
    assert _nvml.connect() == "the module called pynvml here is not the one of nvidia-ml-py"


def test_a_module_that_warns_of_itself_says_nothing_on_the_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pynvml.py").write_text("import warnings\nwarnings.warn('deprecated', FutureWarning, stacklevel=2)\n"
                                        "def nvmlInit(): pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert isinstance(_nvml.connect(), _nvml.Nvml)
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    assert not caught


def test_the_driver_is_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver()
    connected(monkeypatch, driver).close()
    assert driver.calls == ["init", "shutdown"]
