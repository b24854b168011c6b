"""A device: what it is, by which names it is known, and which place it has on its host."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, cast

from actorgrid.actors.ledger.record_types import DeviceRecord, HostRecord
from actorgrid.hotpath.records import WHOLE_GPU_MILLI


@dataclass(frozen=True, slots=True)
class Device:
    """One device of a host. ``uuid`` is its identity; ``index`` is its place on this host and may have gaps."""

    uuid: str
    index: int
    vendor: str
    model: str
    memory_mib: int
    source: str
    compute_capability: str | None = None
    """Of NVIDIA's as major.minor; of others what their compilers call the architecture: gfx942, xe-hpc."""
    pcie_bus_id: str | None = None
    numa_node: int | None = None
    parent: str = ""
    """Of a MIG instance: the UUID of the whole device."""
    share_milli: int = WHOLE_GPU_MILLI
    """Of a MIG instance: how much it is of a whole device."""
    cut: bool = False
    """Whether nothing is given out of it, because it is cut into instances, or is about to be."""
    profiles: tuple[str, ...] = ()
    """The instances that it is cut into when work asks for one; empty: it is not."""
    whole_mib: int = 0
    """Of a MIG instance that is there for work alone: the memory of its GPU, which is whole again afterwards."""

    def at(self, index: int) -> Device:
        """The same device at another place of its host."""
        return replace(self, index=index)

    def to_record(self, with_parts: bool = True) -> DeviceRecord:
        """The device as the ledger's host record holds it; not *with_parts*: as hosts before version 9 know it."""
        record = asdict(self)
        parts = {name: record.pop(name) for name in ("parent", "share_milli", "cut", "profiles", "whole_mib")}
        if with_parts:
            # Only what is not as ever: else a host without instances would register in words that are new.
            record |= {name: value for name, value in parts.items() if value and value != WHOLE_GPU_MILLI}
            if self.profiles:
                record["profiles"] = list(self.profiles)
        return cast("DeviceRecord", record)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Device:
        """The device of a host record; fields of later versions are passed over."""
        found = {known.name: record[known.name] for known in fields(cls) if known.name in record}
        if "profiles" in found:
            found["profiles"] = tuple(found["profiles"]) if isinstance(found["profiles"], list | tuple) else ()
        return cls(**found)


def unhealthy_in(host: HostRecord | None) -> dict[str, str]:
    """The devices that take nothing new by what *host*'s own record says of them: why, by UUID.

    Only the host itself reads its devices; the host that leads, and answers for all, goes by the ledger's records.
    """
    if host is None:
        return {}
    return {device["uuid"]: device["unfit"] for device in host["devices"] if device.get("unfit")}


def keep_indexes(found: Iterable[Device], known: dict[str, int]) -> list[Device]:
    """*found* with indexes that stay true across restarts.

    A device known from before (by UUID) keeps its index, so that what the ledger holds on it goes on
    meaning the same device; a new one takes the lowest index no one had.
    """
    found = list(found)
    taken = {known[device.uuid] for device in found if device.uuid in known} | set(known.values())
    spare = iter(index for index in range(len(found) + len(taken) + 1) if index not in taken)
    kept = []
    for device in found:
        index = known[device.uuid] if device.uuid in known else next(spare)
        kept.append(device.at(index))
    return sorted(kept, key=lambda device: device.index)
