"""What a vendor's library found, and what it tells later: the words between a probe child and its parent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Protocol, runtime_checkable

from .device import Device
from .mig_report import GPUS_MAX, MigGpu
from .readings import Readings

OUTCOMES = ("absent", "no_library", "version_mismatch", "no_driver", "no_permission", "ok")
TEXT_MAX = 300
LINKS_MAX = 8192
"""Links that are told of a host's devices of one vendor: all of 128 devices."""


class SettingRefused(Exception):
    """A library did not do what it was asked to set; the text says why, for people."""


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What does not change while a driver runs. ``None`` has its reason in ``unsupported``."""

    uuid: str
    architecture: str | None = None
    """Hopper, CDNA 3, Xe-HPC."""
    driver_version: str | None = None
    runtime_version: str | None = None
    """The newest CUDA, ROCm or Level Zero that the driver serves."""
    firmware: str | None = None
    serial: str | None = None
    minor: int | None = None
    """The number in its device file, which is neither its index nor its place on the bus."""
    parent: str | None = None
    """Of a partition: the UUID of the whole device."""
    partition: str | None = None
    """How a partition is called: 1g.10gb, CPX/NPS4."""
    power_default_watts: float | None = None
    power_min_watts: float | None = None
    power_max_watts: float | None = None
    clock_max_mhz: float | None = None
    memory_clock_max_mhz: float | None = None
    slowdown_celsius: float | None = None
    """From here on the driver slows the device down by itself."""
    shutdown_celsius: float | None = None
    pcie_generation_max: int | None = None
    pcie_lanes_max: int | None = None
    links: int | None = None
    """NVLinks, XGMI or Xe links that it has."""
    ecc: bool | None = None
    """Whether its memory corrects errors."""
    can_partition: bool | None = None
    """Whether it can be cut into parts by hardware (MIG, compute partitions)."""
    unsupported: dict[str, str] = field(default_factory=dict)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> DeviceFacts:
        """The facts of a record; fields of later versions, and values of a wrong type, are passed over."""
        found: dict[str, Any] = {"unsupported": {}}
        told = record.get("unsupported")
        if isinstance(told, Mapping):
            found["unsupported"] = {str(name): str(why)[:TEXT_MAX] for name, why in list(told.items())[:64]}
        for one in fields(cls):
            value = record.get(one.name)
            kind = str(one.type)
            if isinstance(value, str) and "str" in kind:
                found[one.name] = value[:TEXT_MAX]
            elif isinstance(value, bool):
                if "bool" in kind:
                    found[one.name] = value
            elif isinstance(value, int | float) and ("int" in kind or "float" in kind):
                if math.isfinite(value):
                    found[one.name] = value
                else:
                    found["unsupported"].setdefault(one.name, f"cannot be {value}")
        return cls(**found)


FACTS = tuple(one.name for one in fields(DeviceFacts) if one.name not in ("uuid", "unsupported", "parent", "partition"))
"""The names of all facts that are a value or have a reason; a whole device has no parent, which needs none."""


@dataclass(frozen=True, slots=True)
class DeviceLink:
    """How two devices of a host are joined, in nvidia-smi's words.

    ``word`` is NV4, XGMI or XL2 (a fabric, with the number of its links where it is known), PIX (one PCIe switch), PXB
    (several), PHB (a host bridge), NODE (one NUMA node) or SYS (across nodes); ``distance`` orders them, 5 to 50.
    """

    one: str
    other: str
    word: str
    distance: int


DISTANCES = {"PIX": 10, "PXB": 20, "PHB": 30, "NODE": 40, "SYS": 50}
FABRIC_DISTANCE = 5


def link(one: str, other: str, word: str) -> DeviceLink:
    """The link of that *word* between the devices with these UUIDs."""
    return DeviceLink(one, other, word, DISTANCES.get(word, FABRIC_DISTANCE))


@dataclass(frozen=True, slots=True)
class DeviceEvent:
    """The word of a driver that something happened to a device, now."""

    uuid: str
    """The device; empty where the driver does not say which."""
    kind: str
    """xid, ecc_corrected, ecc_uncorrected, ecc_storm, thermal, reset, lost, page_fault, or other."""
    code: int = 0
    """Of an ``xid`` its number, else the driver's own."""
    text: str = ""

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> DeviceEvent:
        """The event of a record. Raises TypeError or ValueError for what is none."""
        return cls(
            str(record["uuid"])[:TEXT_MAX],
            str(record["kind"])[:40],
            int(record.get("code", 0)),
            str(record.get("text", ""))[:TEXT_MAX],
        )


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """The report of what a vendor's library found. ``outcome`` is one of OUTCOMES; ``problems`` are for people."""

    vendor: str
    outcome: str
    message: str = ""
    driver_version: str | None = None
    devices: tuple[Device, ...] = ()
    problems: tuple[str, ...] = ()
    facts: tuple[DeviceFacts, ...] = ()
    links: tuple[DeviceLink, ...] = ()
    binding: str = ""
    """Which library of the vendor's answered, with its version."""
    mig: tuple[MigGpu, ...] = ()
    """The whole GPUs that can be cut into MIG instances, those that are cut included."""

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> ProbeReport:
        """The report of a record. Raises ValueError, KeyError, TypeError or AttributeError for what is none."""
        version = record.get("driver_version")
        outcome = str(record["outcome"])
        if outcome not in OUTCOMES:
            raise ValueError(f"no outcome is called {outcome[:40]!r}")
        return cls(
            str(record["vendor"]),
            outcome,
            str(record.get("message", ""))[:TEXT_MAX],
            None if version is None else str(version)[:TEXT_MAX],
            tuple(_device(one) for one in record["devices"]),
            tuple(str(one)[:TEXT_MAX] for one in record["problems"][:64]),
            tuple(DeviceFacts.from_record(one) for one in record.get("facts", ())),
            tuple(
                DeviceLink(str(one["one"]), str(one["other"]), str(one["word"])[:16], int(one["distance"]))
                for one in record.get("links", ())[:LINKS_MAX]
            ),
            str(record.get("binding", ""))[:TEXT_MAX],
            tuple(MigGpu.from_record(one) for one in record.get("mig", ())[:GPUS_MAX]),
        )


def _device(record: Mapping[str, Any]) -> Device:
    device = Device.from_record(record)
    texts = (device.uuid, device.vendor, device.model, device.source)
    if not all(isinstance(text, str) and 0 < len(text) <= TEXT_MAX for text in texts):
        raise ValueError("a device without a name")
    if not all(type(number) is int and 0 <= number < 2**40 for number in (device.index, device.memory_mib)):
        raise ValueError(f"device {device.uuid}: a number that cannot be")
    if not isinstance(device.parent, str) or len(device.parent) > TEXT_MAX or type(device.cut) is not bool:
        raise ValueError(f"device {device.uuid}: it is no instance, and not whole either")
    if type(device.share_milli) is not int or not 1 <= device.share_milli <= 1000:
        raise ValueError(f"device {device.uuid}: it is {device.share_milli!r:.40} thousandths of a device")
    return device


class Vendor(Protocol):
    """A vendor's library, used inside a DeviceProbe child only: any call may hang or kill the process."""

    name: str

    def probe(self) -> ProbeReport:
        """Load the library and list the devices. Never raises: what goes wrong is the report's outcome."""

    def read(self) -> dict[str, Readings]:
        """Readings by UUID, for every device listed by ``probe``."""

    def next_events(self, wait_s: float) -> list[DeviceEvent] | None:
        """What happened since the last call, waiting at most *wait_s* s; ``None``: this library tells no events.

        Called in a thread of its own, while ``read`` may run in another.
        """

    def set_power_limit(self, uuid: str, watts: float) -> None:
        """Have the device draw at most that. Raises SettingRefused."""


@runtime_checkable
class CuttingVendor(Protocol):
    """A vendor whose devices can be cut into parts."""

    def list_again(self) -> ProbeReport:
        """List the devices anew, after they were cut into others."""

    def set_partitions(self, uuid: str, change: str, what: str) -> str:
        """Change how the whole device *uuid* is cut; the UUID of what was made, if it was.

        *change* is create (*what*: a profile), destroy (*what*: a part's UUID) or mode (*what*: on, off, or what the
        vendor calls a way to be cut). Raises SettingRefused.
        """
