"""What the pool costs as it grows, in calls made and not in seconds: the same on every machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from actorgrid.actors.gpu.clustering import GpuClusteringManager
from actorgrid.actors.gpu.device import Device
from actorgrid.actors.gpu.telemetry_history import GpuMetrics
from tests.alone import count_alone

SMALL, LARGE = 500, 5_000


def lines_run(action: Callable[[], Any]) -> int:
    """How many lines of ours *action* runs; finalizers and the like that happen to run meanwhile do not count."""
    count = 0

    def trace(frame: Any, event: str, _argument: Any) -> Any:
        nonlocal count
        if event == "call" and "/actors/gpu/" not in frame.f_code.co_filename:
            return None
        count += event == "line"
        return trace

    def traced() -> int:
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            action()
        finally:
            sys.settrace(before)
        return count

    return count_alone(traced)


def pool(count: int) -> GpuClusteringManager:
    manager = GpuClusteringManager()
    for number in range(count):
        manager.register_device(Device(f"g{number}", number, "nvidia", "A100", 40_960, "simulated"))
        metrics = GpuMetrics(f"g{number}", 1.0, number << 20, None, number % 100.0, 100.0, 40.0 + number % 30)
        manager.record_metrics(metrics)
    return manager


@pytest.fixture(scope="module")
def pools() -> tuple[GpuClusteringManager, GpuClusteringManager]:
    return pool(SMALL), pool(LARGE)


def test_registering_recording_and_removing_do_not_depend_on_the_size(
    pools: tuple[GpuClusteringManager, GpuClusteringManager],
) -> None:
    def life(manager: GpuClusteringManager) -> None:
        manager.register_device(Device("new", 99_999, "nvidia", "A100", 40_960, "simulated"))
        manager.record_metrics(GpuMetrics("new", 1.0))
        manager.remove_device("new")

    small, large = (lines_run(partial(life, manager)) for manager in pools)
    assert small == large


@pytest.mark.parametrize(
    "action",
    [
        lambda manager: manager.select_best_device(2**30),
        lambda manager: manager.get_aggregated_metrics(),
        lambda manager: manager.get_aggregated_metrics(at=1.0),
        lambda manager: manager.distribute_workload(range(100_000)),
        lambda manager: manager.distribute_workload(range(10_000), "capacity", max_items_per_device=30),
    ],
    ids=["select", "aggregate", "aggregate-at", "uniform", "capacity"],
)
def test_choosing_summing_and_splitting_are_one_pass(
    action: Callable[[GpuClusteringManager], Any], pools: tuple[GpuClusteringManager, GpuClusteringManager]
) -> None:
    small, large = (lines_run(partial(action, manager)) for manager in pools)
    assert large <= small * (LARGE / SMALL) * 1.3
