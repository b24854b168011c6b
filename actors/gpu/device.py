"""A device and its readings: what is known, and for what is not, why."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Protocol, cast

from actorgrid.actors.ledger.record_types import DeviceRecord, HostRecord

OUTCOMES = ("absent", "no_library", "version_mismatch", "no_driver", "no_permission", "ok")

_WORD = re.compile(r"[a-z0-9.]+")


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
    pcie_bus_id: str | None = None
    numa_node: int | None = None

    def to_record(self) -> DeviceRecord:
        """The device as the ledger's host record holds it."""
        return cast("DeviceRecord", asdict(self))

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Device:
        """The device of a host record; fields of later versions are passed over."""
        return cls(**{known.name: record[known.name] for known in fields(cls) if known.name in record})


@dataclass(frozen=True, slots=True)
class Readings:
    """The last readings of a device: each is a value, or ``None`` and a reason in ``unsupported``; never 0 for unknown.

    ``error`` is set when the device itself is in trouble; then nothing is placed on it.
    """

    memory_used_mib: int | None = None
    utilization_percent: float | None = None
    temperature_celsius: float | None = None
    power_watts: float | None = None
    unsupported: dict[str, str] = field(default_factory=dict)
    error: str = ""
    ecc_corrected: int | None = None
    """Memory errors that were corrected since the driver was loaded; ``None``: the device does not count them."""
    ecc_uncorrected: int | None = None
    """Those that were not."""
    throttled: str = ""
    """Why it runs slower than it could, where that is heat or power; empty: it does not, or does not say."""

    @classmethod
    def none(cls, reason: str, error: str = "") -> Readings:
        """Readings of a device of which nothing can be read, for one reason."""
        return cls(unsupported=dict.fromkeys(READINGS, reason), error=error)

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Readings:
        """The readings that :func:`dataclasses.asdict` made *record* of; fields of later versions are passed over."""
        return cls(**{known.name: record[known.name] for known in fields(cls) if known.name in record})


READINGS = ("memory_used_mib", "utilization_percent", "temperature_celsius", "power_watts")


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """The report of what a vendor's library found. ``outcome`` is one of OUTCOMES; ``problems`` are for people."""

    vendor: str
    outcome: str
    message: str = ""
    driver_version: str | None = None
    devices: tuple[Device, ...] = ()
    problems: tuple[str, ...] = ()


class Vendor(Protocol):
    """A vendor's library, used inside a DeviceProbe child only: any call may hang or kill the process."""

    name: str

    def probe(self) -> ProbeReport:
        """Load the library and list the devices. Never raises: what goes wrong is the report's outcome."""

    def read(self) -> dict[str, Readings]:
        """Readings by UUID, for every device listed by ``probe``."""


def unhealthy_in(host: HostRecord | None) -> dict[str, str]:
    """The devices that take nothing new by what *host*'s own record says of them: why, by UUID.

    Only the host itself reads its devices; the host that leads, and answers for all, goes by the ledger's records.
    """
    if host is None:
        return {}
    return {device["uuid"]: device["unfit"] for device in host["devices"] if device.get("unfit")}


def words_of_model(model: str, memory_mib: int = 0) -> frozenset[str]:
    """The words a model answers to: ``NVIDIA H100 80GB HBM3`` answers to h100, 80gb, hbm3, nvidia."""
    words = set(_WORD.findall(model.lower()))
    if memory_mib:
        words.add(f"{round(memory_mib / 1024)}gb")
    return frozenset(words)


def answers_to(asked: str, model: str, memory_mib: int = 0) -> bool:
    """Whether a device of *model* is what someone means by *asked* (``h100``, ``H100-80GB``, the full name)."""
    wanted = words_of_model(asked)
    return bool(wanted) and wanted <= words_of_model(model, memory_mib)


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
        kept.append(Device(**(asdict(device) | {"index": index})))
    return sorted(kept, key=lambda device: device.index)
