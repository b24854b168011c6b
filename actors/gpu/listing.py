"""Devices as they are listed, with what they read now: this host's own, and those of the others, which are asked."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from actorgrid.errors import ActorGridError
from actorgrid.models import DeviceSource, GPUStatus
from actorgrid.supervisors.server import Server

from ..links.messages import AskHosts
from .device import Device, Readings

READINGS_S = 1.0
READINGS_HOSTS_MAX = 256
"""Hosts that are asked for readings of their devices when somebody lists all; of the others there are none."""
NOT_ASKED = Readings.none("its host did not answer, or was not asked")

Elsewhere = dict[str, tuple[Readings, float | None]]
"""By UUID: readings and score."""


async def readings_elsewhere(server: Server, hosts: Iterable[str]) -> Elsewhere:
    """What other *hosts* read of their devices now, as far as they answer soon."""
    asked = tuple(islice(hosts, READINGS_HOSTS_MAX))
    try:
        answers = await server.call("links", AskHosts(asked, "readings", {}, READINGS_S), READINGS_S + 1)
    except ActorGridError as error:
        server.log.info("the other hosts' readings: %s", error)
        return {}
    return {
        uuid: (Readings.from_record(record), record.get("score"))
        for answer in answers.values()
        for uuid, record in answer.items()
    }


def device_row(
    host_id: str, device: Device, readings: Readings, milli: int, memory_mib: int, owners: list[str]
) -> dict[str, Any]:
    """A device as models.GPUDevice has it, and why readings are missing."""
    healthy = GPUStatus.ALLOCATED if milli else GPUStatus.AVAILABLE
    used = readings.memory_used_mib
    return {
        "device_id": device.uuid,
        "vendor": device.vendor,
        "model": device.model,
        "host": host_id,
        "index": device.index,
        "source": DeviceSource(device.source).value,
        "memory_total_bytes": device.memory_mib * 2**20,
        "memory_allocated_bytes": memory_mib * 2**20,
        "memory_used_bytes": None if used is None else used * 2**20,
        "allocated_milli": milli,
        "compute_capability": device.compute_capability,
        "pcie_bus_id": device.pcie_bus_id,
        "numa_node": device.numa_node,
        "temperature_celsius": readings.temperature_celsius,
        "power_usage_watts": readings.power_watts,
        "utilization_percent": readings.utilization_percent,
        "status": (GPUStatus.ERROR if readings.error else healthy).value,
        "jobs": owners,
        "unsupported": dict(readings.unsupported),
        "error": readings.error or None,
    }
