"""What is told of GPUs that can be cut into MIG instances: their mode, their instances, and what there is room for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

GPUS_MAX = 128
INSTANCES_MAX = 64
PROFILES_MAX = 32
UNFINISHED = "gpu-instance-"
_TEXT_MAX = 300


@dataclass(frozen=True, slots=True)
class MigInstance:
    """An instance that there is: a GPU instance with a compute instance in it, which work sees as one device."""

    uuid: str
    profile: str
    """As 3g.40gb."""
    memory_mib: int


@dataclass(frozen=True, slots=True)
class MigProfile:
    """A kind of instance that a GPU can be cut into."""

    name: str
    memory_mib: int
    most: int
    """How many of it a GPU has room for that has no other."""
    room: int | None
    """How many there is room for now; ``None``: it is known once MIG is on."""


@dataclass(frozen=True, slots=True)
class MigGpu:
    """A whole GPU that can be cut."""

    uuid: str
    model: str
    memory_mib: int
    pcie_bus_id: str | None
    enabled: bool
    """Whether MIG is on: then there is work on its instances alone."""
    pending: bool
    """Whether it will be on after the next reset."""
    instances: tuple[MigInstance, ...] = ()
    profiles: tuple[MigProfile, ...] = ()
    unfinished: tuple[MigInstance, ...] = ()
    """GPU instances without a compute instance: they take room, and no work sees them. Their ``uuid`` is
    UNFINISHED and a number."""

    def profile(self, name: str) -> MigProfile | None:
        """The profile of that name, if it has one."""
        return next((each for each in self.profiles if each.name == name), None)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> MigGpu:
        """It from a record, as :func:`dataclasses.asdict` makes one. Raises KeyError, TypeError, ValueError."""
        bus = record["pcie_bus_id"]
        return cls(
            _text(record["uuid"]),
            _text(record["model"]),
            int(record["memory_mib"]),
            None if bus is None else _text(bus),
            record["enabled"] is True,
            record["pending"] is True,
            _instances(record["instances"]),
            tuple(
                MigProfile(
                    _text(one["name"]),
                    int(one["memory_mib"]),
                    int(one["most"]),
                    None if one["room"] is None else int(one["room"]),
                )
                for one in record["profiles"][:PROFILES_MAX]
            ),
            _instances(record.get("unfinished", ())),
        )


def _instances(told: Any) -> tuple[MigInstance, ...]:
    return tuple(
        MigInstance(_text(one["uuid"]), _text(one["profile"]), int(one["memory_mib"])) for one in told[:INSTANCES_MAX]
    )


def _text(value: object) -> str:
    return str(value)[:_TEXT_MAX]
