"""A host with devices of several vendors: each library for itself, whatever happens to another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from actorgrid.actors.gpu import inventory
from actorgrid.actors.gpu.messages import Inventory
from tests.gpu.drivers.stubs import NV_XID, StubDriver
from tests.gpu.rig import Rig

MakeRig = Callable[..., Rig]


def rows(rig: Rig) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = rig.ask(Inventory())
    return found


def wait(rig: Rig, condition: Callable[[], bool], what: str) -> None:
    rig.until(condition, what, timeout_s=90)


@pytest.fixture
def both(nvml: StubDriver, amd_smi: StubDriver, monkeypatch: pytest.MonkeyPatch) -> tuple[StubDriver, StubDriver]:
    monkeypatch.setattr(inventory, "traces_of_nvidia", lambda: (True, "device"))
    monkeypatch.setattr(inventory, "traces_of_amd", lambda: (True, "device"))
    monkeypatch.setattr(inventory, "traces_of_intel", lambda: (False, ""))
    nvml.add_machine(2)
    amd_smi.add_machine(2)
    return nvml, amd_smi


def test_all_devices_of_a_host_are_given_out(both: Any, make_rig: MakeRig) -> None:
    rig = make_rig("auto", probe_interval_s=0.5).up()
    wait(rig, lambda: len(rows(rig)) == 4, "both vendors' devices")
    assert [(row["index"], row["vendor"]) for row in rows(rig)] == [
        (0, "nvidia"),
        (1, "nvidia"),
        (2, "amd"),
        (3, "amd"),
    ]
    rig.submit("on-amd", gpus=1, gpu_models=["MI300X"])
    rig.wait_placed("on-amd")
    wait(rig, lambda: all(row["health"] == "ok" and row["power_usage_watts"] for row in rows(rig)), "readings of all")
    assert all(row["facts"]["driver_version"] and row["readings"]["clock_mhz"] for row in rows(rig))
    first, second, third, _ = rows(rig)
    assert first["links"] == {second["device_id"]: "NV18"}
    assert list(third["links"].values()) == ["XGMI"]


def test_one_broken_vendor_hides_no_other(both: tuple[StubDriver, StubDriver], make_rig: MakeRig) -> None:
    _, amd = both
    amd.set(init=34)  # the driver is not loaded
    rig = make_rig("auto", probe_interval_s=0.5).up()
    wait(rig, lambda: [row["vendor"] for row in rows(rig)] == ["nvidia", "nvidia"], "NVIDIA's devices")
    asked = rig.coordinator.status()["probe"]["vendors"]
    assert (asked["nvidia"]["outcome"], asked["amd"]["outcome"]) == ("ok", "no_driver")


def test_one_vendor_that_hangs_takes_no_other_with_it(both: tuple[StubDriver, StubDriver], make_rig: MakeRig) -> None:
    _, amd = both
    rig = make_rig("auto", probe_interval_s=0.5, probe_timeout_s=3.0).up()
    wait(rig, lambda: len(rows(rig)) == 4, "both vendors' devices")
    amd.fault("amdsmi_get_gpu_activity", "hang")
    wait(rig, lambda: [row["health"] for row in rows(rig)] == ["ok", "ok", "unknown", "unknown"], "AMD's to be unknown")
    rig.submit("a", "b", "c", gpus=1)
    rig.until(lambda: len(rig.allocations()) == 2, "two to be placed")
    rig.settle()
    assert {record["gpu_indexes"][0] for record in rig.allocations().values()} == {0, 1}
    amd.fault("amdsmi_get_gpu_activity", None)
    rig.until(lambda: len(rig.allocations()) == 3, "the third to be placed", timeout_s=90)


def test_eight_devices_that_vanish_at_once_are_lost_and_come_back(
    nvml: StubDriver, make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inventory, "LOOK_AGAIN_S", 1.0)
    nvml.add_machine(8)
    rig = make_rig("nvidia", probe_interval_s=0.5).up()
    wait(rig, lambda: {row["health"] for row in rows(rig)} == {"ok"}, "readings")
    nvml.set(count=0)
    wait(rig, lambda: {row["health"] for row in rows(rig)} == {"lost"}, "all to be lost")
    rig.submit("a", gpus=1)
    rig.settle()
    assert rig.state("a") == "queued"
    nvml.set(count=8)
    wait(rig, lambda: {row["health"] for row in rows(rig)} == {"ok"}, "all to be back")
    rig.wait_placed("a")
    assert [row["index"] for row in rows(rig)] == list(range(8)), "indexes are kept"


def test_an_xid_stops_new_work_on_its_device_before_the_next_sample(nvml: StubDriver, make_rig: MakeRig) -> None:
    nvml.add_machine(2)
    rig = make_rig("nvidia", probe_interval_s=3600.0).up()
    nvml.event(0, NV_XID, 95)
    wait(rig, lambda: [row["health"] for row in rows(rig)] == ["failed", "ok"], "the XID")
    assert "XID 95" in rows(rig)[0]["health_reason"]
    rig.submit("a", "b", gpus=1)
    rig.until(lambda: len(rig.allocations()) == 1, "one to be placed")
    rig.settle()
    assert [record["gpu_indexes"] for record in rig.allocations().values()] == [[1]]


def test_a_device_that_is_added_is_found_when_the_bus_changes(
    nvml: StubDriver, make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_the_bus = {"0000:1b:00.0"}
    monkeypatch.setattr(inventory, "bound_gpus", lambda: frozenset(on_the_bus))
    nvml.add_machine(1)
    rig = make_rig("nvidia", probe_interval_s=0.5).up()
    wait(rig, lambda: len(rows(rig)) == 1, "the first device")
    nvml.add_gpu(1)
    on_the_bus.add("0000:1c:00.0")
    wait(rig, lambda: len(rows(rig)) == 2, "the second")
    rig.submit("a", "b", gpus=1)
    rig.wait_placed("a", "b")
