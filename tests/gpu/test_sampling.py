"""A host's own devices in the pool: with the real coordinator, and with readings that come and go."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from actorgrid.actors.gpu.device import Device, unhealthy_in
from actorgrid.actors.gpu.messages import Explain, Inventory
from actorgrid.actors.gpu.readings import Readings
from actorgrid.actors.gpu.sampling import HostSampling
from actorgrid.actors.ledger.commands import RegisterHost
from tests.gpu.rig import Rig, resources


def gpu(number: int, index: int | None = None) -> Device:
    return Device(f"gpu-{number}", number if index is None else index, "nvidia", "A100", 40_960, "probed")


def reads(temperature: float = 40.0, **more: float) -> Callable[[Device], Readings]:
    return lambda _device: Readings(0, more.get("busy", 0.0), temperature, 100.0)


@pytest.fixture
def sampling() -> HostSampling:
    return HostSampling("host-a", logging.getLogger("test"))


def test_devices_come_go_and_change_places_with_the_inventory(sampling: HostSampling) -> None:
    sampling.take([gpu(0), gpu(1)], reads(), {}, 1.0)
    sampling.take([gpu(0, index=1), gpu(1, index=0)], reads(), {}, 2.0)
    assert [(known.device_id, known.device.index) for known in sampling.manager.list_devices()] == [
        ("gpu-0", 1),
        ("gpu-1", 0),
    ]
    sampling.take([gpu(1, index=0)], reads(), {}, 3.0)
    assert [known.device_id for known in sampling.manager.list_devices()] == ["gpu-1"]
    assert sampling.score("gpu-0") is None and sampling.score("gpu-1") == 1.0


def test_a_hot_device_and_one_in_trouble_take_nothing_new_until_they_are_well(sampling: HostSampling) -> None:
    devices = [gpu(0), gpu(1), gpu(2)]
    sampling.take(devices, lambda device: Readings(0, 0.0, 93.0 if device.index == 1 else 40.0), {"gpu-2": "lost"}, 1.0)
    unfit = sampling.unhealthy()
    assert set(unfit) == {"gpu-1", "gpu-2"}
    assert "93 °C" in unfit["gpu-1"] and unfit["gpu-2"] == "lost"
    sampling.take(devices, reads(), {}, 2.0)
    assert sampling.unhealthy() == {}


def test_a_clock_that_is_set_back_stands_still(sampling: HostSampling) -> None:
    for at in (100.0, 50.0, 120.0):
        sampling.take([gpu(0)], reads(), {}, at)
    times = [sample.timestamp for sample in sampling.manager.history.samples("gpu-0")]
    assert times == [100.0, 100.0, 120.0]


def test_readings_that_cannot_be_are_told_and_count_as_unknown(
    sampling: HostSampling, caplog: pytest.LogCaptureFixture
) -> None:
    sampling.take([gpu(0)], reads(busy=4_294_967_295.0), {}, 1.0)
    known = sampling.manager.device("gpu-0")
    assert known.score.unknown == ("memory", "utilization", "temperature")
    assert "compute_utilization_percent cannot be" in caplog.text


def test_figures_leave_out_what_no_device_reads(sampling: HostSampling) -> None:
    sampling.take([gpu(0)], lambda _: Readings(1024, None, 40.0, None), {}, 1.0)
    assert sampling.figures() == {
        "gpus_memory_used_bytes": 2.0**30,
        "gpus_temperature_max_celsius": 40.0,
        "gpus_unavailable": 0.0,
    }


def test_the_agent_samples_its_devices_and_says_their_scores(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig("simulated:2xH100-80GB", probe_interval_s=0.5).up()
    rig.submit("half", gpus=0.5)
    rig.wait_placed("half")

    def scores() -> list[float]:
        return sorted(row["score"] or 0.0 for row in rig.ask(Inventory()))

    rig.until(lambda: scores()[0] < scores()[1] == 1.0, "a sample of the half busy device")
    assert scores()[0] == 0.5  # half of its memory and half of its compute
    assert rig.coordinator.metrics()["gpus_utilization_percent"] == 25.0


def test_the_agent_places_nothing_new_on_a_hot_device(
    make_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actorgrid.actors.gpu.host_registration.TELL_AGAIN_S", 0.2)
    rig = make_rig("simulated:2xH100-80GB", probe_interval_s=0.5).up()
    hot = True

    def readings(device: Device, _milli: int, _mib: int) -> Readings:
        return Readings(0, 0.0, 95.0 if hot and device.index == 0 else 40.0)

    monkeypatch.setattr(rig.coordinator._registration.inventory, "readings", readings)
    rig.until(lambda: bool(rig.coordinator._core.mirror.unhealthy), "the heat to be seen")
    rig.submit("a", "b", gpus=1.0)
    rig.until(lambda: "placed" in {rig.state("a"), rig.state("b")}, "one to be placed")
    rig.settle()
    assert {rig.state("a"), rig.state("b")} == {"placed", "queued"}
    assert [record["gpu_indexes"] for record in rig.allocations().values()] == [[1]]
    # Whoever leads, and so places work here as well, reads it in the ledger.
    rig.until(lambda: bool(unhealthy_in(rig.coordinator._ledger.hosts["host-a"])), "the ledger to know")
    assert "95 °C" in next(iter(unhealthy_in(rig.coordinator._ledger.hosts["host-a"]).values()))
    hot = False
    rig.wait_placed("a", "b")
    rig.until(
        lambda: not unhealthy_in(rig.coordinator._ledger.hosts["host-a"]), "the ledger to know that it cooled down"
    )


def test_nothing_new_goes_to_a_device_that_another_host_says_is_unfit(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig("none").up()
    other = {
        **rig.coordinator._ledger.hosts["host-a"],
        "host_id": "host-b",
        "devices": [
            {"uuid": "GPU-b0", "index": 0, "memory_mib": 80_000, "model": "H100", "unfit": "fell off the bus"},
            {"uuid": "GPU-b1", "index": 1, "memory_mib": 80_000, "model": "H100"},
        ],
    }
    rig.propose(RegisterHost(host=other))
    rig.submit("a", "b", gpus=1.0)
    rig.until(lambda: "placed" in {rig.state("a"), rig.state("b")}, "one to be placed")
    rig.settle()
    assert [record["gpu_indexes"] for record in rig.allocations().values()] == [[1]]
    waits = "a" if rig.state("a") == "queued" else "b"
    explained = rig.ask(Explain(resources(1.0), waits))
    assert explained["unfit"] == [{"host": "host-b", "gpu": 0, "why": "fell off the bus"}]
    assert {row["index"]: row["unfit"] for row in rig.ask(Inventory())} == {0: "fell off the bus", 1: None}
    devices = [{key: value for key, value in device.items() if key != "unfit"} for device in other["devices"]]
    rig.propose(RegisterHost(host={**other, "devices": devices}))
    rig.wait_placed("a", "b")


def test_the_policy_for_scores_goes_by_what_the_agent_samples(
    make_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig("simulated:3xH100-80GB", probe_interval_s=0.5)
    rig.host.settings.scheduling.policy = "device_score"
    rig.up()
    temperature = {0: 88.0, 1: 80.0, 2: 40.0}

    def readings(device: Device, _milli: int, _mib: int) -> Readings:
        return Readings(0, 0.0, temperature[device.index])

    monkeypatch.setattr(rig.coordinator._registration.inventory, "readings", readings)
    rig.until(lambda: rig.coordinator._core.mirror.scores.get(("host-a", 0)) == 740, "a sample of the warm device")
    rig.coordinator._core.mirror.rebuild()  # a new engine knows the scores as well
    for name, index in (("first", 2), ("second", 1), ("third", 0)):
        rig.submit(name, gpus=1.0)
        rig.wait_placed(name)
        assert rig.job(name)["attempts"][-1]["gpu_indexes"] == [index]
