"""Devices as they are listed, with what they read now: this host's own, and those of the others, which are asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any

from actorgrid.actors.ledger.record_types import HostRecord
from actorgrid.actors.ledger.records import share_of
from actorgrid.errors import ActorGridError
from actorgrid.models import DeviceSource, GPUStatus
from actorgrid.supervisors.server import Server

from ..links.messages import AskHosts
from .device import Device
from .device_health import HealthState
from .readings import READINGS, REASON_MAX, Readings

READINGS_S = 1.0
LINKS_MAX = 1024
_SHOWN = tuple(name for name in READINGS if name != "processes")
READINGS_HOSTS_MAX = 256
"""Hosts that are asked for readings of their devices when somebody lists all; of the others there are none."""


@dataclass(frozen=True, slots=True)
class DeviceNow:
    """How a device is now, as its own host knows it."""

    readings: Readings
    score: float | None = None
    health: str = HealthState.UNKNOWN.value
    health_reason: str = ""
    last_xid: int | None = None
    """Of NVIDIA's: the last XID since the agent started, 0 for none; ``None`` for others."""
    links: dict[str, str] = field(default_factory=dict)
    """How it is joined to other devices of its host, by their UUIDs, in nvidia-smi's words."""
    facts: dict[str, Any] | None = None
    """The fields of ``probe_report.DeviceFacts``, of a probed device."""

    def to_record(self) -> dict[str, Any]:
        """It as it crosses to another host: the fields of readings, with those of this one beside them."""
        own = {"score": self.score, "health": self.health, "health_reason": self.health_reason}
        return {**asdict(self.readings), **own, "last_xid": self.last_xid, "links": self.links, "facts": self.facts}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> DeviceNow:
        """It from the word of another host, which may be of another version. Raises TypeError for what is none."""
        score, facts, last_xid = record.get("score"), record.get("facts"), record.get("last_xid")
        return cls(
            Readings.from_record(record),
            score if isinstance(score, float) else None,
            str(record.get("health", HealthState.UNKNOWN.value))[:40],
            str(record.get("health_reason", ""))[:REASON_MAX],
            last_xid if isinstance(last_xid, int) else None,
            _links(record.get("links")),
            dict(facts) if isinstance(facts, Mapping) else None,
        )


def _links(told: object) -> dict[str, str]:
    """Links as another host tells them: texts by text, bounded; what is none of that is left out."""
    pairs = list(told.items())[:LINKS_MAX] if isinstance(told, Mapping) else []
    return {str(uuid)[:REASON_MAX]: str(word)[:16] for uuid, word in pairs}


NOT_ASKED = DeviceNow(Readings.none("its host did not answer, or was not asked"))

Elsewhere = dict[str, DeviceNow]
"""By UUID."""


async def readings_elsewhere(server: Server, hosts: Iterable[str]) -> Elsewhere:
    """What other *hosts* read of their devices now, as far as they answer soon."""
    asked = tuple(islice(hosts, READINGS_HOSTS_MAX))
    try:
        answers = await server.call("links", AskHosts(asked, "readings", {}, READINGS_S), READINGS_S + 1)
    except ActorGridError as error:
        server.log.info("the other hosts' readings: %s", error)
        return {}
    found: Elsewhere = {}
    for host_id, answer in answers.items():
        try:
            found.update({str(uuid): DeviceNow.from_record(record) for uuid, record in answer.items()})
        except (TypeError, AttributeError) as error:  # a member may send anything
            server.log.info("the readings of host %s make no sense: %s", host_id, error)
    return found


def device_rows(
    hosts: Mapping[str, HostRecord],
    allocated: Mapping[tuple[str, int], tuple[int, int, list[str]]],
    unhealthy: Mapping[str, str],
    read: Callable[[str, Device, int, int], DeviceNow],
) -> list[dict[str, Any]]:
    """All devices of *hosts*: what is *allocated* of each, what *read* gives for it, and why it takes nothing new.

    *read* is asked with the host's id, the device, and the thousandths and MiB of it that are given out.
    """
    rows = []
    for host_id, host in sorted(hosts.items()):
        for record in host["devices"]:
            device = Device.from_record(record)
            milli, memory_mib, owners = allocated.get((host_id, device.index), (0, 0, []))
            now = read(host_id, device, milli, memory_mib)
            row = _device_row(host_id, device, now.readings, milli, memory_mib, owners)
            row |= {
                "share_milli": share_of(record),
                "score": now.score,
                "unfit": unhealthy.get(device.uuid),
                "health": now.health,
            }
            row |= {"health_reason": now.health_reason or None, "last_xid": now.last_xid, "links": now.links}
            rows.append({**row, "facts": now.facts})
    return rows


def unhealthy_rows(hosts: Mapping[str, HostRecord], unhealthy: Mapping[str, str]) -> list[dict[str, Any]]:
    """The devices of *hosts* that take nothing new, as [{"host", "gpu", "why"}] for status and doctor."""
    return [
        {"host": host_id, "gpu": device["index"], "why": unhealthy[device["uuid"]]}
        for host_id, host in sorted(hosts.items())
        for device in host["devices"]
        if device["uuid"] in unhealthy
    ]


def _device_row(
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
        "throttled": readings.throttled or None,
        "readings": {name: getattr(readings, name) for name in _SHOWN},
        "processes": None if readings.processes is None else [asdict(each) for each in readings.processes],
    }
