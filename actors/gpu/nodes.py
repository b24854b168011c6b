"""The ledger's hosts as the engine's nodes, and what usually comes to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import cast

from actorgrid.actors.ledger.record_types import NO_HOST, AllocationRecord, HostRecord
from actorgrid.demand import Demand
from actorgrid.hotpath import Placement, PlacementEngine, TypicalTask

from .feasibility import accepted_models, model_name

_NO_MODEL = "no device"
_NO_MEMORY_LIMIT = 2**40


def add_nodes(
    engine: PlacementEngine,
    hosts: Mapping[str, HostRecord],
    allocations: Iterable[AllocationRecord],
    eligible: Callable[[HostRecord], bool],
) -> bool:
    """Add a node for each host, draining unless *eligible*; ``True`` when some have indexes without a device.

    Indexes go as far as someone still holds one, so that what is held can be adopted.
    """
    gaps = False
    held: dict[str, int] = {}
    for record in allocations:
        held[record["host"]] = max(held.get(record["host"], -1), *record["gpu_indexes"], -1)
    for id, host in hosts.items():
        by_index = {device["index"]: device for device in host["devices"]}
        last = max([*by_index, held.get(id, -1)])
        numa = [by_index[index].get("numa_node") if index in by_index else None for index in range(last + 1)]
        gaps = gaps or last + 1 > len(by_index)
        engine.add_node(
            id,
            cpu_milli=host["cpu_milli"],
            memory_mib=host["memory_mib"],
            devices=[
                (model_name(by_index[index]), by_index[index]["memory_mib"])
                if index in by_index
                else (_NO_MODEL, _NO_MEMORY_LIMIT)
                for index in range(last + 1)
            ],
            numa=None if None in numa else cast("tuple[int, ...]", tuple(numa)),
            rack=host.get("rack"),
        )
        engine.drain(id, not eligible(host))
    return gaps


def adopt(engine: PlacementEngine, id: str, shares: Sequence[tuple[str, tuple[int, ...]]], demand: Demand) -> Placement:
    """Hold *shares* as they would be had *demand* been placed there. Raises AdoptRefused, UnknownNode."""
    return engine.adopt(
        id,
        shares,
        cpu_milli=demand.cpu_milli,
        memory_mib=demand.memory_mib,
        gpu_milli=demand.gpu_milli,
        gpu_memory_mib=demand.gpu_memory_mib,
    )


def given_out(allocations: Iterable[AllocationRecord]) -> dict[tuple[str, int], tuple[int, int, list[str]]]:
    """Per (host, device index): thousandths and MiB given out, and to whom."""
    used: dict[tuple[str, int], tuple[int, int, list[str]]] = {}
    for record in allocations:
        owner = record["owner"]
        for index in record["gpu_indexes"]:
            milli, memory, owners = used.get((record["host"], index), (0, 0, []))
            whose = owner.get("job_id") or owner.get("lease_id", "")
            owners = owners if whose in owners else [*owners, whose]
            used[record["host"], index] = (milli + record["gpu_milli"], memory + record["gpu_memory_mib"], owners)
    return used


def score_devices(
    engine: PlacementEngine, hosts: Mapping[str, HostRecord], scores: Mapping[tuple[str, int], int]
) -> None:
    """Tell the engine how well devices do, of those that are there."""
    for (id, index), score in scores.items():
        if any(device["index"] == index for device in hosts.get(id, NO_HOST).get("devices", ())):
            engine.set_device_score(id, index, score)


def fence(engine: PlacementEngine, hosts: Mapping[str, HostRecord], sick: Mapping[str, str]) -> list[int | str]:
    """Hold what is free of devices that are *sick*, by UUID, or gone; gives what it is held under."""
    fences = []
    for view in engine.nodes():
        devices = {device["index"]: device["uuid"] for device in hosts[view.name]["devices"]}
        for index, gpu in enumerate(view.gpus):
            if gpu.milli_free and (index not in devices or devices[index] in sick):
                held = engine.reserve(view.name, gpu_indexes=(index,), gpu_milli=gpu.milli_free)
                if held is not None:
                    fences.append(held.id)
    return fences


def typical_tasks(mix: Mapping[Demand, float], hosts: Iterable[HostRecord]) -> list[TypicalTask]:
    """What usually comes, in the engine's words; for a model that is not here nothing need be kept."""
    hosts = list(hosts)
    tasks = []
    for demand, part in mix.items():
        models = accepted_models(demand.gpu_models, hosts)
        if models or not demand.gpu_models:
            tasks.append(TypicalTask(demand.cpu_milli, demand.gpu_count, demand.gpu_milli, part, models))
    return tasks
