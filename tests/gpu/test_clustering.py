"""Many unlike GPUs as one pool: who is there, whom to choose, how to split work."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actorgrid.actors.gpu.clustering import GpuClusteringManager
from actorgrid.actors.gpu.device import Device
from actorgrid.actors.gpu.device_score import HeatLimits
from actorgrid.actors.gpu.telemetry_history import GpuMetrics
from actorgrid.actors.gpu.vendors.simulated import simulated_devices, vendor_of_model
from actorgrid.errors import BadRequest, DuplicateNode, RequestTooLarge, UnknownNode
from actorgrid.hotpath import PlacementEngine

GIB = 2**30
KINDS = (("nvidia", "H100"), ("amd", "MI300X"), ("intel", "Max1550"), ("apple", "M3Ultra"), ("qualcomm", "CloudAI100"))


def gpu(number: int, vendor: str = "nvidia", model: str = "A100", memory_gib: int = 40) -> Device:
    return Device(f"gpu-{number}", number, vendor, model, memory_gib * 1024, "simulated")


def sample(
    number: int, at: float = 1.0, used_gib: int | None = 0, busy: float | None = 0.0, heat: float | None = 40.0
) -> GpuMetrics:
    used = None if used_gib is None else used_gib * GIB
    return GpuMetrics(f"gpu-{number}", at, used, 40 * GIB, busy, 100.0, heat, 1400.0)


def pool(count: int = 3, **options: Any) -> GpuClusteringManager:
    manager = GpuClusteringManager(**options)
    for number in range(count):
        manager.register_device(gpu(number), "host-a")
        manager.record_metrics(sample(number))
    return manager


def engine(gpus: int = 3, memory_gib: int = 40) -> PlacementEngine:
    made = PlacementEngine("best_fit")
    made.add_node(
        "host-a",
        cpu_milli=64_000,
        memory_mib=1 << 20,
        gpu_count=gpus,
        gpu_model="A100",
        gpu_memory_mib=memory_gib * 1024,
    )
    return made


def chosen(manager: GpuClusteringManager, *arguments: Any, **more: Any) -> str | None:
    best = manager.select_best_device(*arguments, **more)
    return None if best is None else best.device_id


# -- who is there


def test_devices_of_every_vendor_stand_in_one_pool() -> None:
    manager = GpuClusteringManager()
    for number, (vendor, model) in enumerate(KINDS):
        manager.register_device(gpu(number, vendor, model))
    listed = manager.list_devices()
    assert [known.device.vendor for known in listed] == [vendor for vendor, _ in KINDS]
    assert len(manager) == 5 and "gpu-3" in manager and "gpu-9" not in manager
    assert all(known.metrics is None and known.available for known in listed)


@pytest.mark.parametrize(("vendor", "model"), KINDS)
def test_each_vendor_can_be_simulated(vendor: str, model: str) -> None:
    devices = simulated_devices(f"simulated:2x{model}-64GB", "host-a")
    assert {device.vendor for device in devices} == {vendor} == {vendor_of_model(model)}
    manager = GpuClusteringManager()
    for device in devices:
        manager.register_device(device, "host-a")
    assert manager.get_aggregated_metrics()["devices_by_vendor"] == {vendor: 2}


@pytest.mark.parametrize(
    "device",
    [
        Device("", 0, "nvidia", "A100", 1, "simulated"),
        Device("g", 0, "nvidea", "A100", 1, "simulated"),
        Device("g", -1, "nvidia", "A100", 1, "simulated"),
        Device("g", 0, "nvidia", "A100", -1, "simulated"),
    ],
)
def test_a_device_that_cannot_be_is_refused(device: Device) -> None:
    manager = GpuClusteringManager()
    with pytest.raises(BadRequest):
        manager.register_device(device)
    assert len(manager) == 0


def test_a_device_and_a_place_are_registered_once() -> None:
    manager = pool(1)
    for again in (gpu(0), Device("other", 0, "nvidia", "A100", 1, "simulated")):
        with pytest.raises(DuplicateNode, match="gpu-0"):
            manager.register_device(again, "host-a")
    manager.register_device(Device("other", 0, "nvidia", "A100", 1, "simulated"), "host-b")


def test_a_removed_device_is_gone_with_its_history_and_may_come_back() -> None:
    manager = pool(2)
    manager.remove_device("gpu-0")
    assert [known.device_id for known in manager.list_devices()] == ["gpu-1"]
    for call in (
        lambda: manager.remove_device("gpu-0"),
        lambda: manager.device("gpu-0"),
        lambda: manager.record_metrics(sample(0)),
        lambda: manager.set_problem("gpu-0", "lost"),
    ):
        with pytest.raises(UnknownNode, match="gpu-0"):
            call()
    manager.register_device(gpu(0), "host-a")
    assert manager.device("gpu-0").metrics is None
    manager.record_metrics(sample(0, at=0.5))  # its clock starts anew


# -- how they are


def test_a_sample_out_of_order_changes_nothing() -> None:
    manager = pool(1)
    manager.record_metrics(sample(0, at=5.0, busy=10.0))
    before = manager.device("gpu-0")
    with pytest.raises(BadRequest):
        manager.record_metrics(sample(0, at=4.0, busy=90.0))
    assert manager.device("gpu-0") == before


def test_the_cluster_is_told_as_it_is_and_as_it_was() -> None:
    manager = pool(2)
    manager.record_metrics(sample(0, at=10.0, used_gib=20, busy=100.0))
    manager.record_metrics(sample(1, at=12.0, used_gib=10, busy=50.0))
    now, then = manager.get_aggregated_metrics(), manager.get_aggregated_metrics(at=11.0)
    assert (now["device_count"], now["total_memory_bytes"], now["used_memory_bytes"]) == (2, 80 * GIB, 30 * GIB)
    assert (now["average_utilization_percent"], then["average_utilization_percent"]) == (75.0, 50.0)
    assert (then["oldest_timestamp"], then["newest_timestamp"]) == (1.0, 10.0)
    manager.set_problem("gpu-1", "fell off the bus")
    assert manager.get_aggregated_metrics()["devices_unavailable"] == 1


def test_the_history_of_a_device_is_bounded() -> None:
    manager = pool(1, history_per_device=4)
    for second in range(2, 20):
        manager.record_metrics(sample(0, at=float(second)))
    assert [kept.timestamp for kept in manager.history.samples("gpu-0")] == [16.0, 17.0, 18.0, 19.0]


# -- whom to choose


def test_the_freest_and_idlest_device_is_chosen() -> None:
    manager = pool(3)
    manager.record_metrics(sample(0, used_gib=30))
    manager.record_metrics(sample(1, used_gib=5, busy=10.0))
    manager.record_metrics(sample(2, used_gib=5, busy=60.0))
    assert chosen(manager) == "gpu-1"


def test_of_equals_the_first_registered_is_chosen() -> None:
    assert chosen(pool(5)) == "gpu-0"


def test_nobody_is_chosen_where_nobody_is() -> None:
    assert chosen(GpuClusteringManager()) is None


def test_a_warm_device_is_passed_by_for_a_cool_one_and_a_hot_one_for_any() -> None:
    manager = pool(2)
    manager.record_metrics(sample(0, heat=80.0))
    assert chosen(manager) == "gpu-1"
    manager.record_metrics(sample(0, heat=95.0))
    manager.record_metrics(sample(1, used_gib=40, busy=100.0))
    assert chosen(manager) == "gpu-1"
    manager.record_metrics(sample(1, heat=95.0))
    assert chosen(manager) is None
    assert chosen(pool(1, heat_limits=HeatLimits(20.0, 30.0))) is None


def test_a_device_out_of_service_is_not_chosen_until_it_is_back() -> None:
    manager = pool(1)
    manager.set_problem("gpu-0", "needs a reset")
    manager.record_metrics(sample(0))
    assert chosen(manager) is None and manager.device("gpu-0").problem == "needs a reset"
    manager.set_problem("gpu-0", "")
    assert chosen(manager) == "gpu-0"


def test_memory_asked_for_must_be_free() -> None:
    manager = pool(2)
    manager.record_metrics(sample(0, used_gib=30))
    manager.record_metrics(sample(1, used_gib=20, busy=100.0))
    assert chosen(manager, 10 * GIB) == "gpu-0"
    assert chosen(manager, 10 * GIB + 1) == "gpu-1"
    assert chosen(manager, min_memory_bytes=20 * GIB + 1) is None


def test_memory_nobody_can_vouch_for_is_not_promised() -> None:
    manager = pool(2)
    manager.record_metrics(sample(0, used_gib=None))
    manager.record_metrics(sample(1, used_gib=39, busy=100.0))
    assert chosen(manager) == "gpu-0"  # the middle is better than nearly full
    assert chosen(manager, GIB) == "gpu-1"
    manager.engine = engine()
    assert chosen(manager, GIB) == "gpu-0"  # the engine's books vouch for it


def test_only_models_asked_for_are_chosen() -> None:
    manager = GpuClusteringManager()
    for number, (vendor, model) in enumerate(KINDS):
        manager.register_device(gpu(number, vendor, model))
    assert chosen(manager, gpu_models=["mi300x"]) == "gpu-1"
    assert chosen(manager, gpu_models=["V100", "m3ultra"]) == "gpu-3"
    assert chosen(manager, gpu_models=["V100"]) is None


@pytest.mark.parametrize(
    "arguments",
    [
        {"min_memory_bytes": -1},
        {"min_memory_bytes": 1.5},
        {"min_memory_bytes": float("nan")},
        {"min_memory_bytes": True},
        {"gpu_milli": 0},
        {"gpu_milli": 1001},
        {"gpu_milli": "all"},
    ],
)
def test_a_request_that_cannot_be_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match=next(iter(arguments))):
        pool().select_best_device(**arguments)


def test_what_the_engine_gave_out_is_not_recommended() -> None:
    manager = pool(3)
    manager.engine = engine()
    held = manager.engine.place(gpu_count=1)
    assert held is not None and held.shares == (("host-a", (0,)),)
    assert chosen(manager) == "gpu-1"
    manager.engine.place(gpu_count=1, gpu_milli=400, gpu_memory_mib=30 * 1024, within=(("host-a", (1,)),))
    assert chosen(manager) == "gpu-2"
    assert chosen(manager, 10 * GIB, gpu_milli=600) == "gpu-1"
    assert chosen(manager, 10 * GIB + 1, gpu_milli=600) == "gpu-2"
    manager.engine.drain("host-a")
    assert chosen(manager, gpu_milli=1) is None
    manager.engine.drain("host-a", False)
    manager.engine.release(held.id)
    assert chosen(manager) == "gpu-0"


def test_a_device_the_engine_does_not_know_is_not_recommended() -> None:
    manager = pool(3)
    manager.engine = engine(gpus=2)
    manager.record_metrics(sample(0, busy=100.0))
    manager.record_metrics(sample(1, busy=100.0))
    assert chosen(manager) == "gpu-0"
    manager.engine = PlacementEngine("best_fit")
    assert chosen(manager) is None


@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 1000), st.integers(0, 40))
def test_what_is_recommended_can_always_be_placed_and_nothing_better_can(seed: int, milli: int, gib: int) -> None:
    dice = random.Random(seed)
    manager = pool(6, engine=engine(6))
    books = manager.engine
    assert books is not None
    for number in range(6):
        manager.record_metrics(
            sample(
                number, 2.0, dice.choice([None, 0, 10, 40]), dice.uniform(0, 100), dice.choice([None, 40.0, 80.0, 91.0])
            )
        )
        books.place(
            gpu_count=1,
            gpu_milli=dice.randint(1, 1000),
            gpu_memory_mib=dice.randint(0, 40) * 1024,
            within=(("host-a", (number,)),),
        )

    def places(number: int) -> bool:
        within = (("host-a", (number,)),)
        return bool(books.explain(gpu_count=1, gpu_milli=milli, gpu_memory_mib=gib * 1024, within=within)["fits"])

    best = manager.select_best_device(gib * GIB, gpu_milli=milli)
    could = [
        known
        for known in manager.list_devices()
        if known.available
        and places(known.device.index)
        and (known.memory_free_bytes is None or known.memory_free_bytes >= gib * GIB)
    ]
    if best is None:
        assert not could
    else:
        assert best in could
        assert best.score.total == max(known.score.total for known in could)


@given(st.integers(0, 2**32))
def test_the_same_samples_in_any_order_of_arrival_give_the_same_choice(seed: int) -> None:
    dice = random.Random(seed)
    samples = [sample(n, 2.0, dice.randint(0, 40), dice.uniform(0, 100), dice.uniform(30, 100)) for n in range(8)]
    choices = set()
    for _ in range(3):
        manager = pool(8)
        dice.shuffle(samples)
        for one in samples:
            manager.record_metrics(one)
        choices.add(chosen(manager))
    assert len(choices) == 1


# -- how to split work


def test_work_is_split_evenly_in_runs_of_neighbours() -> None:
    assert pool(3).distribute_workload(list(range(7))) == {"gpu-0": [0, 1, 2], "gpu-1": [3, 4], "gpu-2": [5, 6]}


def test_work_is_split_by_capacity_among_those_named() -> None:
    split = pool(3).distribute_workload(
        ["a", "b", "c", "d", "e", "f"], "capacity", capacities={"gpu-0": 1.0, "gpu-2": 2.0}
    )
    assert split == {"gpu-0": ["a", "b"], "gpu-2": ["c", "d", "e", "f"]}


def test_without_capacities_the_scores_are_the_weights() -> None:
    manager = pool(2)
    manager.record_metrics(sample(1, used_gib=40, busy=50.0))  # 0.2 against 1
    split = manager.distribute_workload(range(60), "capacity")
    assert {device: len(tasks) for device, tasks in split.items()} == {"gpu-0": 50, "gpu-1": 10}


def test_a_device_that_is_hot_or_out_of_service_takes_no_part() -> None:
    manager = pool(3)
    manager.record_metrics(sample(0, heat=99.0))
    manager.set_problem("gpu-1", "lost")
    for strategy in ("uniform", "capacity"):
        assert manager.distribute_workload([1, 2], strategy) == {"gpu-2": [1, 2]}
    capacities = {"gpu-0": 5.0, "gpu-2": 1.0}
    assert manager.distribute_workload([1, 2], "capacity", capacities=capacities) == {"gpu-2": [1, 2]}


def test_limits_hold_for_all_or_by_device_and_the_rest_goes_on() -> None:
    manager = pool(3)
    capacities = {"gpu-0": 8.0, "gpu-1": 1.0, "gpu-2": 1.0}
    split = manager.distribute_workload(range(10), "capacity", capacities=capacities, max_items_per_device=4)
    assert Counter({device: len(tasks) for device, tasks in split.items()}) == {"gpu-0": 4, "gpu-1": 3, "gpu-2": 3}
    split = manager.distribute_workload(range(10), max_items_per_device={"gpu-1": 1})
    assert {device: len(tasks) for device, tasks in split.items()} == {"gpu-0": 5, "gpu-1": 1, "gpu-2": 4}
    with pytest.raises(RequestTooLarge, match="room for 9 on 3 devices"):
        manager.distribute_workload(range(10), max_items_per_device=3)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"strategy": "random"}, BadRequest),
        ({"strategy": "uniform", "capacities": {"gpu-0": 1.0}}, BadRequest),
        ({"strategy": "capacity", "capacities": {"gpu-0": -1.0}}, BadRequest),
        ({"strategy": "capacity", "capacities": {"gpu-0": float("nan")}}, BadRequest),
        ({"strategy": "capacity", "capacities": {"gpu-7": 1.0}}, UnknownNode),
        ({"max_items_per_device": {"gpu-7": 1}}, UnknownNode),
        ({"max_items_per_device": -1}, BadRequest),
        ({"max_items_per_device": 1.5}, BadRequest),
        ({"strategy": "capacity", "capacities": {}}, RequestTooLarge),
    ],
)
def test_a_split_that_cannot_be_is_refused(arguments: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        pool().distribute_workload([1, 2, 3], **arguments)


def test_no_tasks_are_nobodys() -> None:
    assert pool(2).distribute_workload([]) == {"gpu-0": [], "gpu-1": []}
    assert GpuClusteringManager().distribute_workload([]) == {}
    with pytest.raises(RequestTooLarge, match="0 devices"):
        GpuClusteringManager().distribute_workload([1])
