"""Devices that take nothing new, and why: what a host finds of its own is in its record, for whoever places work.

Only the host itself reads its devices; the host that leads, and answers for all, goes by the ledger's records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from actorgrid.actors.ledger.record_types import HostRecord

from .device import Device

UNFIT = "unfit"
TELL_AGAIN_S = 5.0
"""A device that is unfit now and fit then is told at most so often: each time is an entry of the ledger."""


def device_records(devices: Iterable[Device], unfit: Mapping[str, str]) -> list[dict[str, Any]]:
    """A host's devices as its record has them."""
    return [device.to_record() | ({UNFIT: unfit[device.uuid]} if device.uuid in unfit else {}) for device in devices]


def told(host: HostRecord | None) -> dict[str, str]:
    """What a host's record says of its devices: the unfit ones by UUID."""
    if host is None:
        return {}
    return {device["uuid"]: device["unfit"] for device in host["devices"] if device.get("unfit")}


def everywhere(hosts: Mapping[str, HostRecord], own: str, found: Mapping[str, str]) -> dict[str, str]:
    """The unfit devices of all hosts, of the *own* one as *found* now."""
    all_told = dict(found)
    for host_id, host in hosts.items():
        if host_id != own:
            all_told.update(told(host))
    return all_told


def listed(hosts: Mapping[str, HostRecord], unfit: Mapping[str, str]) -> list[dict[str, Any]]:
    """The devices of *hosts* that take nothing new, as [{"host", "gpu", "why"}] for status and doctor."""
    return [
        {"host": host_id, "gpu": device["index"], "why": unfit[device["uuid"]]}
        for host_id, host in sorted(hosts.items())
        for device in host["devices"]
        if device["uuid"] in unfit
    ]
