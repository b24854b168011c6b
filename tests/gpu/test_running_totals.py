"""What all devices read together, kept as samples come: the same as reading all of them anew."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from actorgrid.actors.gpu.clustering import GpuClusteringManager
from actorgrid.actors.gpu.device import Device
from actorgrid.actors.gpu.running_totals import ExactSum
from actorgrid.actors.gpu.telemetry_history import GpuMetrics, aggregate

maybe = st.none
readings = st.fixed_dictionaries(
    {
        "memory_used_bytes": maybe() | st.integers(0, 40 << 30),
        "memory_total_bytes": maybe() | st.just(40 << 30),
        "compute_utilization_percent": maybe() | st.integers(0, 100) | st.floats(0, 100),
        "power_watts": maybe() | st.floats(0, 1e6),
        "temperature_celsius": maybe() | st.floats(-100, 300) | st.sampled_from([40.0, 41.0]),
        "clock_rate_mhz": maybe() | st.floats(0, 1e6, allow_subnormal=True),
    }
)
steps = st.lists(
    st.tuples(st.sampled_from(["enter", "leave", "record", "problem"]), st.integers(0, 4), st.floats(0, 10), readings),
    max_size=60,
)


@given(steps)
def test_it_is_what_reading_all_of_them_gives(what_happens: list[tuple[str, int, float, dict[str, Any]]]) -> None:
    manager, now = GpuClusteringManager(), 0.0
    for what, number, later_s, values in what_happens:
        id, now = f"g{number}", now + later_s
        if what == "enter" and id not in manager:
            vendor = ("nvidia", "amd")[number % 2]
            manager.register_device(Device(id, number, vendor, "X", 1024 * number, "simulated"))
        elif id in manager and what == "leave":
            manager.remove_device(id)
        elif id in manager and what == "record":
            manager.record_metrics(GpuMetrics(id, now, **values))
        elif id in manager and what == "problem":
            manager.set_problem(id, "" if manager.device(id).problem else "lost")
        anew = aggregate((known.device, known.metrics) for known in manager.list_devices())
        anew["devices_unavailable"] = sum(not known.available for known in manager.list_devices())
        assert manager.get_aggregated_metrics() == anew


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e300, max_value=1e300), max_size=30))
def test_a_sum_is_rounded_once_and_empty_again_when_all_are_gone(values: list[float]) -> None:
    total = ExactSum()
    for value in values:
        total.add(value)
    assert total.total() == (math.fsum(values) if values else None)
    for value in values:
        total.add(value, -1)
    assert (total.total(), total.count) == (None, 0)
    total.add(1.5)
    assert total.mean() == 1.5
