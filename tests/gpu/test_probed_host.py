"""GPUCoordinator on a host with NVIDIA devices, through the real bindings over the stub library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psutil
import pytest

from actorgrid.actors.gpu import inventory
from actorgrid.actors.gpu.messages import Inventory
from actorgrid.models import GPUDevice
from tests.gpu.rig import Rig


def rows(rig: Rig) -> list[GPUDevice]:
    return [GPUDevice.model_validate(row) for row in rig.ask(Inventory())]


def see_again(rig: Rig, condition: Callable[[], bool], what: str) -> None:
    rig.until(condition, what, timeout_s=60)


@pytest.fixture
def two_gpus(nvml: Any, make_rig: Callable[..., Rig]) -> Rig:
    nvml.add_gpu(0)
    nvml.add_gpu(1)
    return make_rig("auto", probe_interval_s=0.5).up()


def test_auto_takes_the_devices_the_library_lists(two_gpus: Rig) -> None:
    see_again(two_gpus, lambda: rows(two_gpus)[1].temperature_celsius == 41.0, "readings")
    first, second = rows(two_gpus)
    assert (first.model, first.source, first.pcie_bus_id) == ("NVIDIA H100 80GB HBM3", "probed", "00000000:1B:00.0")
    assert (second.utilization_percent, second.power_usage_watts) == (11.0, 100.5)
    assert two_gpus.coordinator.status()["notes"] == []
    two_gpus.submit("a", gpus=1, gpu_models=["H100"])
    two_gpus.wait_placed("a")


def test_a_lost_gpu_is_in_error_and_gets_nothing_new(nvml: Any, two_gpus: Rig) -> None:
    nvml.set(gpu0_lost=1)
    see_again(two_gpus, lambda: rows(two_gpus)[0].status == "error", "the error")
    assert rows(two_gpus)[1].status == "available"
    two_gpus.until(lambda: bool(two_gpus.coordinator._core.mirror.unhealthy), "the coordinator to know")
    two_gpus.submit("a", "b", gpus=1)
    two_gpus.until(lambda: len(two_gpus.allocations()) == 1, "one of them placed")
    two_gpus.settle()
    (held,) = two_gpus.allocations().values()
    assert held["gpu_indexes"] == [1]
    nvml.set(gpu0_lost=None)
    two_gpus.wait_placed("a", "b")


def test_what_runs_on_a_lost_gpu_stays_counted(nvml: Any, two_gpus: Rig) -> None:
    two_gpus.submit("half", gpus=0.5)
    two_gpus.wait_placed("half")
    nvml.set(gpu0_lost=1)
    two_gpus.until(lambda: bool(two_gpus.coordinator._core.mirror.unhealthy), "the coordinator to know", timeout_s=60)
    two_gpus.submit("other", gpus=0.5)
    two_gpus.wait_placed("other")
    assert two_gpus.job("other")["attempts"][0]["gpu_indexes"] == [1]
    two_gpus.end("half")
    two_gpus.submit("third", gpus=1)
    two_gpus.settle()
    assert two_gpus.state("third") == "queued"


def test_devices_whose_library_hangs_are_unknown_and_not_free(nvml: Any, make_rig: Callable[..., Rig]) -> None:
    nvml.add_gpu(0)
    rig = make_rig("nvidia", probe_interval_s=0.5, probe_timeout_s=1.5).up()
    rig.submit("a", gpus=0.5)
    rig.wait_placed("a")
    nvml.fault("nvmlDeviceGetUtilizationRates", "hang")
    see_again(rig, lambda: rows(rig)[0].model_dump()["health"] == "unknown", "the device to be unknown")
    assert any("did not answer" in note for note in rig.coordinator.status()["notes"])
    assert "nobody can say" in str(rows(rig)[0].unfit)
    rig.submit("b", gpus=0.5)
    rig.settle()
    assert rig.state("a") == "placed", "what runs there goes on"
    assert rig.state("b") == "queued"
    nvml.fault("nvmlDeviceGetUtilizationRates", None)
    see_again(rig, lambda: rows(rig)[0].utilization_percent == 10.0, "readings again")
    rig.wait_placed("b")


def test_a_driver_that_hangs_at_start_leaves_a_host_without_gpus_that_goes_on_asking(
    nvml: Any, make_rig: Callable[..., Rig]
) -> None:
    nvml.add_gpu(0)
    nvml.fault("nvmlInitWithFlags", "hang")
    rig = make_rig("nvidia", probe_timeout_s=1.0).up()
    assert rig.ask(Inventory()) == []
    rig.submit("cpu")
    rig.wait_placed("cpu")
    nvml.fault("nvmlInitWithFlags", None)
    see_again(rig, lambda: len(rows(rig)) == 1, "the device")
    rig.submit("gpu", gpus=1)
    rig.wait_placed("gpu")


def test_auto_simulates_where_only_a_broken_library_is_installed(
    nvml: Any, make_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inventory, "traces_of_nvidia", lambda: (True, "library"))
    nvml.fault("nvmlInitWithFlags", "abort")
    rig = make_rig("auto").up()
    assert {row.source for row in rows(rig)} == {"simulated"}
    assert any("simulated" in note for note in rig.coordinator.status()["notes"])
    assert rig.coordinator.status()["probe"]["vendors"]["nvidia"]["pid"] is None


@pytest.mark.parametrize(
    ("sign", "code", "sources"),
    [("device", 4, set()), ("library", 4, {"simulated"}), ("device", 9, {"simulated"}), ("device", 18, set())],
)
def test_auto_does_not_simulate_over_devices_that_only_keep_us_out(
    nvml: Any, make_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch, sign: str, code: int, sources: set[str]
) -> None:
    monkeypatch.setattr(inventory, "traces_of_nvidia", lambda: (True, sign))
    nvml.set(init=code)
    rig = make_rig("auto").up()
    assert {str(row.source) for row in rows(rig)} == sources
    assert any("NVML" in note for note in rig.coordinator.status()["notes"])


def test_a_probe_that_finds_nothing_is_not_kept(nvml: Any, make_rig: Callable[..., Rig]) -> None:
    rig = make_rig("auto").up()
    assert {row.source for row in rows(rig)} == {"simulated"}
    status = rig.coordinator.status()
    asked = status["probe"]["vendors"]["nvidia"]
    assert (asked["outcome"], asked["pid"]) == ("absent", None)


def test_stopping_the_coordinator_ends_its_probe(two_gpus: Rig) -> None:
    pid = two_gpus.coordinator.status()["probe"]["vendors"]["nvidia"]["pid"]
    assert psutil.pid_exists(pid)
    two_gpus.coordinator.stop("test")
    assert not psutil.pid_exists(pid)
