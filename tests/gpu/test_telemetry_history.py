"""Samples of devices: what is refused, what is kept, and what they say together."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorgrid.actors.gpu.device import Device
from actorgrid.actors.gpu.readings import Readings
from actorgrid.actors.gpu.telemetry_history import GpuMetrics, TelemetryHistory, aggregate
from actorgrid.errors import BadRequest, UnknownNode

GIB = 2**30


def device(uuid: str = "g0", vendor: str = "nvidia", memory_mib: int = 40_960) -> Device:
    return Device(uuid, 0, vendor, "A100", memory_mib, "simulated")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("device_id", ""),
        ("device_id", 7),
        ("timestamp", float("nan")),
        ("timestamp", float("inf")),
        ("timestamp", None),
        ("memory_used_bytes", -1),
        ("memory_used_bytes", 1.5),
        ("memory_total_bytes", True),
        ("compute_utilization_percent", 100.1),
        ("compute_utilization_percent", -0.1),
        ("compute_utilization_percent", float("nan")),
        ("compute_utilization_percent", "50"),
        ("power_watts", -5.0),
        ("power_watts", float("inf")),
        ("temperature_celsius", 1000.0),
        ("temperature_celsius", float("nan")),
        ("clock_rate_mhz", -1),
    ],
)
def test_what_no_device_can_read_is_refused(field: str, value: Any) -> None:
    fields: dict[str, Any] = {"device_id": "g0", "timestamp": 1.0, field: value}
    with pytest.raises(BadRequest):
        GpuMetrics(**fields)


def test_more_memory_in_use_than_there_is_is_refused() -> None:
    with pytest.raises(BadRequest, match="more memory than it has"):
        GpuMetrics("g0", 1.0, memory_used_bytes=2, memory_total_bytes=1)


def test_a_sample_of_a_device_that_reads_nothing_is_a_sample() -> None:
    sample = GpuMetrics("g0", 1.0)
    assert sample.compute_utilization_percent is None and sample.memory_used_bytes is None


def test_a_probes_readings_become_a_sample_and_unknown_stays_unknown() -> None:
    read = Readings(memory_used_mib=50_000, utilization_percent=12.5, temperature_celsius=None, power_watts=80.0)
    sample = GpuMetrics.of(device(), read, 7.0)
    assert sample.memory_used_bytes == sample.memory_total_bytes == 40 * GIB  # never more than there is
    assert (sample.timestamp, sample.compute_utilization_percent, sample.power_watts) == (7.0, 12.5, 80.0)
    assert sample.temperature_celsius is None
    assert GpuMetrics.of(device(), Readings.none("no sensor"), 7.0).memory_used_bytes is None


def test_a_history_is_bounded_and_drops_the_oldest() -> None:
    history = TelemetryHistory(per_device=3)
    for second in range(10):
        history.record(GpuMetrics("g0", float(second)))
    assert [sample.timestamp for sample in history.samples("g0")] == [7.0, 8.0, 9.0]
    for wrong in (0, -1, 100_001):
        with pytest.raises(BadRequest):
            TelemetryHistory(per_device=wrong)


def test_time_does_not_go_backwards_and_a_refused_sample_leaves_no_trace() -> None:
    history = TelemetryHistory()
    history.record(GpuMetrics("g0", 5.0))
    history.record(GpuMetrics("g0", 5.0, power_watts=1.0))
    with pytest.raises(BadRequest, match="older than the last one"):
        history.record(GpuMetrics("g0", 4.999))
    assert len(history.samples("g0")) == 2
    history.record(GpuMetrics("g1", 1.0))  # each device has a time of its own


def test_a_device_that_never_sent_a_sample_has_none() -> None:
    history = TelemetryHistory()
    assert history.latest("g0") is None
    with pytest.raises(UnknownNode):
        history.samples("g0")
    history.record(GpuMetrics("g0", 5.0))
    history.forget("g0")
    history.forget("g0")
    assert history.latest("g0") is None


@given(st.lists(st.integers(0, 20), min_size=1, max_size=30), st.integers(-1, 21))
def test_the_last_sample_at_a_time_is_the_last_one_taken_until_then(times: list[int], at: int) -> None:
    history = TelemetryHistory()
    samples = [GpuMetrics("g0", float(time), power_watts=float(n)) for n, time in enumerate(sorted(times))]
    for sample in samples:
        history.record(sample)
    until_then = [sample for sample in samples if sample.timestamp <= at]
    assert history.latest("g0", float(at)) == (until_then[-1] if until_then else None)


def test_a_cluster_is_summed_up_over_the_devices_that_have_each_reading() -> None:
    busy = GpuMetrics("g0", 10.0, 10 * GIB, 40 * GIB, 90.0, 300.0, 70.0, 1400.0)
    blind = GpuMetrics("g1", 12.0, compute_utilization_percent=10.0)
    picture = aggregate([(device("g0"), busy), (device("g1", "apple", 96 * 1024), blind), (device("g2"), None)])
    assert picture == {
        "device_count": 3,
        "devices_by_vendor": {"apple": 1, "nvidia": 2},
        "devices_reporting": 2,
        "total_memory_bytes": (40 + 96 + 40) * GIB,
        "used_memory_bytes": 10 * GIB,
        "average_utilization_percent": 50.0,
        "average_temperature_celsius": 70.0,
        "max_temperature_celsius": 70.0,
        "total_power_watts": 300.0,
        "average_clock_rate_mhz": 1400.0,
        "unknown": {
            "memory_used_bytes": 2,
            "compute_utilization_percent": 1,
            "power_watts": 2,
            "temperature_celsius": 2,
            "clock_rate_mhz": 2,
        },
        "oldest_timestamp": 10.0,
        "newest_timestamp": 12.0,
    }


def test_nothing_known_is_not_zero() -> None:
    picture = aggregate([])
    assert picture["device_count"] == picture["total_memory_bytes"] == 0
    for name in ("used_memory_bytes", "average_utilization_percent", "max_temperature_celsius", "total_power_watts"):
        assert picture[name] is None


@given(st.lists(st.floats(0, 100), max_size=30), st.randoms(use_true_random=False))
def test_the_order_of_the_devices_does_not_matter(loads: list[float], dice: random.Random) -> None:
    pairs = [(device(f"g{n}"), GpuMetrics(f"g{n}", 1.0, power_watts=load)) for n, load in enumerate(loads)]
    shuffled = list(pairs)
    dice.shuffle(shuffled)
    assert aggregate(pairs) == aggregate(shuffled)
