"""Readings as OpenTelemetry's hw metrics: names, units and kinds, over the stub driver to a real receiver of OTLP."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from actorgrid.actors.gpu import hardware_metrics
from actorgrid.actors.gpu.device import Device
from actorgrid.actors.gpu.device_listing import DeviceNow
from actorgrid.actors.gpu.hardware_metrics import HardwareMetrics, Instrument, MetricPoint
from actorgrid.actors.gpu.metric_sender import MetricSample, MetricSender
from actorgrid.actors.gpu.readings import Readings
from actorgrid.supervisors import otlp_sender
from tests.gpu.rig import Rig
from tests.otlp_receiver import OtlpReceiver

DEVICE = Device("GPU-a", 3, "nvidia", "NVIDIA H100", 1024, "probed")
FACTS = {"serial": "s1", "driver_version": "570.1", "firmware": None, "parent": None}


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[OtlpReceiver]:
    monkeypatch.setattr(otlp_sender, "END_S", 60.0)
    monkeypatch.setattr(otlp_sender, "GATHER_S", 0.01)
    made = OtlpReceiver()
    yield made
    made.close()


def now(health: str = "ok", **readings: Any) -> DeviceNow:
    return DeviceNow(Readings(**readings), health=health, facts=FACTS)


def points(metrics: HardwareMetrics, *sample: tuple[Device, DeviceNow], at: float = 100.0) -> dict[str, MetricPoint]:
    found = metrics.points(sample, at)
    kinds = ("hw.state", "error.type", "hw.sensor_location")
    return {
        ":".join([one.name, *(str(one.attributes[key]) for key in kinds if key in one.attributes)]): one
        for one in found
    }


def test_names_units_and_kinds_are_those_of_the_conventions() -> None:
    read = now(
        memory_used_mib=256,
        utilization_percent=50.0,
        temperature_celsius=41.0,
        power_watts=300.0,
        energy_millijoules=2_000,
        ecc_corrected=7,
    )
    found = points(HardwareMetrics(), (DEVICE, read))
    said = {name: (one.unit, one.kind.value, one.value) for name, one in found.items()}
    assert said == {
        "hw.gpu.utilization": ("1", "gauge", 0.5),
        "hw.gpu.memory.limit": ("By", "updowncounter", 2**30),
        "hw.gpu.memory.usage": ("By", "updowncounter", 2**28),
        "hw.gpu.memory.utilization": ("1", "gauge", 0.25),
        "hw.power": ("W", "gauge", 300.0),
        "hw.energy": ("J", "counter", 2.0),
        "hw.temperature:gpu": ("Cel", "gauge", 41.0),
        "hw.errors:corrected": ("{error}", "counter", 7),
        "hw.status:ok": ("1", "updowncounter", 1),
        "hw.status:degraded": ("1", "updowncounter", 0),
        "hw.status:failed": ("1", "updowncounter", 0),
    }
    about = found["hw.gpu.utilization"].attributes
    assert about["hw.id"] == "GPU-a" and about["hw.vendor"] == "NVIDIA" and about["hw.serial_number"] == "s1"
    assert about["hw.gpu.task"] == "general" and "hw.firmware_version" not in about
    assert found["hw.power"].attributes == {"hw.id": "GPU-a", "hw.name": "GPU 3", "hw.type": "gpu"}


def test_what_is_not_read_makes_no_point_and_what_nobody_reads_none_at_all() -> None:
    found = points(HardwareMetrics(), (DEVICE, now("unknown")))
    assert set(found) == {"hw.gpu.memory.limit"}
    simulated = Device("GPU-sim", 0, "nvidia", "H100", 1024, "simulated")
    assert points(HardwareMetrics(), (simulated, now(power_watts=3.0))) == {}


def test_a_counter_counts_since_it_was_first_seen_or_began_anew() -> None:
    metrics = HardwareMetrics()

    def since(at: float, millijoules: int) -> float:
        return points(metrics, (DEVICE, now(energy_millijoules=millijoules)), at=at)["hw.energy"].since_s

    assert [since(1.0, 5), since(2.0, 9), since(3.0, 2), since(4.0, 3)] == [1.0, 1.0, 3.0, 3.0]
    assert points(metrics, at=5.0) == {} and since(6.0, 9) == 6.0, "of devices that are gone nothing is kept"


def test_points_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware_metrics, "POINTS_MAX", 10)
    many = [(Device(f"GPU-{number}", number, "amd", "x", 1, "probed"), now(power_watts=1.0)) for number in range(9)]
    assert len(HardwareMetrics().points(many, 1.0)) == 10


def test_a_sample_arrives_as_it_was_told(receiver: OtlpReceiver) -> None:
    sender = MetricSender(receiver.url, {"host.id": "h1"}, logging.getLogger("test"))
    about = {"hw.id": "GPU-a"}
    told = (
        MetricPoint("hw.power", "W", Instrument.GAUGE, 12.5, about),
        MetricPoint("hw.energy", "J", Instrument.COUNTER, 7.0, about, since_s=3.0),
        MetricPoint("hw.gpu.memory.usage", "By", Instrument.UP_DOWN, 5, about),
    )
    sender.put(MetricSample(10.0, told))
    (power,), (energy,) = receiver.wait_for_points("hw.power"), receiver.wait_for_points("hw.energy")
    (usage,) = receiver.wait_for_points("hw.gpu.memory.usage")
    sender.close()
    assert (power.unit, power.kind, power.value, power.at_ns) == ("W", "gauge", 12.5, 10 * 10**9)
    assert (energy.kind, energy.value, energy.since_ns) == ("counter", 7.0, 3 * 10**9)
    assert (usage.kind, usage.value, usage.attributes, usage.resource["host.id"]) == ("updowncounter", 5.0, about, "h1")
    assert (sender.sent_total, sender.dropped_total, sender.fault) == (1, 0, "")


def test_a_host_sends_what_its_devices_read(
    nvml: Any, make_rig: Callable[..., Rig], receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml.add_gpu(0)
    rig = make_rig("auto", probe_interval_s=0.5)
    rig.host.settings.monitoring.otlp_metrics_endpoint = receiver.url
    rig.host.settings.monitoring.otlp_metrics_interval_s = 1
    rig.up()
    rig.until(lambda: any(one.name == "hw.temperature" for one in receiver.points), "a sample", timeout_s=60)
    (first, *_) = receiver.wait_for_points("hw.temperature")
    assert (first.unit, first.value, first.resource["host.id"]) == ("Cel", 40.0, "host-a")
    rig.until(lambda: rig.coordinator.metrics()["gpu_metric_samples_sent_total"] >= 1, "its answer", timeout_s=60)


def test_a_collector_that_takes_nothing_is_told_of(
    nvml: Any, make_rig: Callable[..., Rig], receiver: OtlpReceiver
) -> None:
    refusing = OtlpReceiver(status=400)
    nvml.add_gpu(0)
    rig = make_rig("auto", probe_interval_s=0.5)
    rig.host.settings.monitoring.otlp_metrics_endpoint = refusing.url
    rig.up()
    rig.until(lambda: rig.coordinator.metrics()["gpu_metric_samples_dropped_total"] >= 1, "a sample", timeout_s=60)
    assert any("do not reach the collector" in note for note in rig.coordinator.status()["notes"])
    refusing.close()
