"""Which resource is short for what waits."""

from __future__ import annotations

from typing import Any

import pytest

from actorgrid.actors.cluster.explain.binding import ResourceUse, binding, resource_use


def asks(gpus: int = 0, gpu_milli: int = 1000, cpu: int = 0, memory: int = 0, gpu_memory: int = 0) -> dict[str, Any]:
    return {
        "gpu_count": gpus,
        "gpu_milli": gpu_milli,
        "gpu_memory_mib": gpu_memory,
        "cpu_milli": cpu,
        "memory_mib": memory,
    }


HOST = {"host_id": "a", "cpu_milli": 2000, "memory_mib": 4096, "devices": [{"memory_mib": 1000}] * 8}
TILE = asks(1, 250, 125)


def held(cpu: int, gpus: tuple[int, ...] = (), milli: int = 0, host: str = "a") -> dict[str, Any]:
    return {
        "host": host,
        "gpu_indexes": list(gpus),
        "gpu_milli": milli,
        "gpu_memory_mib": 0,
        "cpu_milli": cpu,
        "memory_mib": 0,
    }


def test_cpus_that_are_given_out_bind_while_gpus_are_empty() -> None:
    room = resource_use([HOST], [held(125, (number % 4,), 250) for number in range(16)] + [held(999, host="b")])
    found = binding(room, [TILE] * 39)
    assert found is not None and (found.resource, found.waiting) == ("cpu_milli", 39)
    assert found.text == "CPU: 2 of 2 CPUs given out, 39 jobs wait for it"
    assert found.idle_gpus == "4 of 8 GPUs free meanwhile"


@pytest.mark.parametrize(
    ("used", "asked", "resource"),
    [
        ({"gpu_milli": 7900}, asks(1, 250, 125), "gpu_milli"),
        ({"memory_mib": 4000}, asks(memory=128), "memory_mib"),
        ({"gpu_memory_mib": 7999}, asks(1, 250, 125, gpu_memory=10), "gpu_memory_mib"),
        ({"gpu_milli": 8000, "cpu_milli": 1999}, asks(1, 1000, 1000), "gpu_milli"),
    ],
)
def test_the_resource_of_which_the_smallest_part_is_there_binds(
    used: dict[str, int], asked: dict[str, Any], resource: str
) -> None:
    found = binding(ResourceUse(resource_use([HOST], []).capacity, used), [asked])
    assert found is not None and found.resource == resource
    assert found.text.endswith("1 job waits for it")


def test_nothing_binds_where_there_is_room_or_nothing_waits() -> None:
    room = resource_use([HOST], [])
    assert binding(room, []) is None and binding(room, [TILE, asks(cpu=2000)]) is None


def test_what_most_wait_for_is_named() -> None:
    room = ResourceUse(resource_use([HOST], []).capacity, {"cpu_milli": 2000, "memory_mib": 4096})
    found = binding(room, [asks(cpu=100)] * 2 + [asks(memory=1)] * 3)
    assert found is not None and (found.resource, found.waiting) == ("memory_mib", 3)
    found = binding(room, [asks(cpu=100)] * 4, 20_000)
    assert found is not None and found.waiting == 20_000


def test_an_instance_counts_as_the_part_of_a_gpu_that_it_is() -> None:
    parts: Any = [{"index": n, "memory_mib": 40_448, "parent": "GPU-a", "share_milli": 428} for n in range(2)]
    host: Any = {**HOST, "devices": parts}
    assert resource_use([host], []).capacity["gpu_milli"] == 856
