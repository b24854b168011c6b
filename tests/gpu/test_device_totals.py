"""What the devices of hosts read together: the same as of all devices at once, told seldom, believed with care."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorgrid.actors.gpu.clustering import GpuClusteringManager
from actorgrid.actors.gpu.device_totals import (
    TELL_AGAIN_S,
    DeviceTotals,
    is_worth_telling,
    read_totals,
    tell_every_s,
    together,
    totals_of,
)
from actorgrid.actors.gpu.telemetry_history import GpuMetrics
from actorgrid.actors.gpu.vendors.simulated import simulated_devices

DEVICES = simulated_devices("simulated:8xH100-80GB", "a")


def reading(number: int, **values: Any) -> GpuMetrics:
    return GpuMetrics(DEVICES[number].uuid, 1.0, **values)


def totals(*numbers: int, at: float = 10.0, samples: dict[int, GpuMetrics] | None = None) -> DeviceTotals:
    manager = GpuClusteringManager()
    for number in numbers:
        manager.register_device(DEVICES[number], "a")
        if samples and number in samples:
            manager.record_metrics(samples[number])
    return totals_of(manager.get_aggregated_metrics(), at)


maybe = st.none() | st.integers(0, 100)


@given(st.lists(st.tuples(st.integers(0, 2), maybe, maybe, maybe, st.booleans()), min_size=8, max_size=8))
def test_several_hosts_together_are_as_all_their_devices_at_once(
    rows: list[tuple[int, int | None, int | None, int | None, bool]],
) -> None:
    samples = {
        number: reading(
            number,
            compute_utilization_percent=use,
            power_watts=watts,
            temperature_celsius=celsius,
            memory_used_bytes=None if use is None else use << 20,
        )
        for number, (_, use, watts, celsius, sampled) in enumerate(rows)
        if sampled
    }
    hosts = [[number for number, row in enumerate(rows) if row[0] == host] for host in range(3)]
    whole = totals(*range(8), samples=samples)
    apart = together(totals(*numbers, samples=samples) for numbers in hosts if numbers)
    for name in ("utilization_percent", "watts"):
        assert math.isclose(apart.pop(name), whole.pop(name), abs_tol=1e-6)  # type: ignore[misc]
    assert apart == whole


def test_what_nobody_tells_is_unknown_and_not_zero() -> None:
    found = totals(0, 1, samples={0: reading(0, power_watts=300.0)})
    assert (found["devices"], found["watts_known"], found["watts"]) == (2, 1, 300.0)
    assert (found["utilization_known"], found["memory_known"], found["hottest_celsius"]) == (0, 0, None)
    assert together([])["devices"] == 0


def test_it_is_told_when_it_moved_and_otherwise_once_a_minute() -> None:
    told = totals(0, samples={0: reading(0, power_watts=300.0)})
    assert is_worth_telling(None, told, 1)
    same = {**told, "at": told["at"] + 6}
    assert not is_worth_telling(told, same, 1)  # type: ignore[arg-type]
    assert is_worth_telling(told, {**same, "watts": 330.0}, 1)  # type: ignore[typeddict-item, arg-type]
    assert not is_worth_telling(told, {**same, "watts": 310.0}, 1)  # type: ignore[typeddict-item, arg-type]
    assert is_worth_telling(told, {**same, "unavailable": 1}, 1)  # type: ignore[typeddict-item, arg-type]
    assert not is_worth_telling(told, {**same, "watts": 330.0, "at": told["at"] + 1}, 1)  # type: ignore[typeddict-item, arg-type]
    assert is_worth_telling(told, {**same, "at": told["at"] + TELL_AGAIN_S}, 1)  # type: ignore[typeddict-item, arg-type]
    assert is_worth_telling(told, {**same, "at": told["at"] - 1}, 1)  # type: ignore[typeddict-item, arg-type]


def test_all_hosts_together_tell_a_bounded_number_of_times_a_second() -> None:
    assert 10_000 / tell_every_s(10_000) <= 20
    assert 3 / tell_every_s(3) <= 1


def test_what_was_told_is_read_as_it_was() -> None:
    told = totals(0, 1, samples={0: reading(0, power_watts=300.0, temperature_celsius=40.0)})
    assert read_totals(dict(told)) == told


@pytest.mark.parametrize(
    "change",
    [
        {"devices": -1},
        {"devices": 10**9},
        {"devices": True},
        {"devices": "1"},
        {"unavailable": 3},
        {"watts": float("nan")},
        {"watts": float("inf")},
        {"watts": -1.0},
        {"watts": None},
        {"utilization_percent": 500.0},
        {"memory_bytes": -1},
        {"memory_used_bytes": 1 << 70},
        {"memory_bytes": 1.5},
        {"hottest_celsius": 1e9},
        {"hottest_celsius": "hot"},
        {"at": -1},
    ],
)
def test_what_no_host_can_have_is_not_believed(change: dict[str, Any]) -> None:
    told = totals(0, 1, samples={0: reading(0, power_watts=300.0)})
    assert read_totals({**told, **change}) is None


@pytest.mark.parametrize("value", [None, 1, "x", [], {}, {"devices": 1}])
def test_what_is_no_record_is_not_believed(value: Any) -> None:
    assert read_totals(value) is None
