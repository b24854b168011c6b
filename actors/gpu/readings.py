"""What a device reads at one moment: each reading is a value, or ``None`` and the reason why there is none."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeGuard

PROCESSES_MAX = 256
"""Processes that are told of one device; a driver lists those with most memory first or in any order."""
REASON_MAX = 300


@dataclass(frozen=True, slots=True)
class DeviceProcess:
    """A process that has memory on a device, as the driver says. ``memory_mib`` is ``None`` where it does not say."""

    pid: int
    memory_mib: int | None = None


@dataclass(frozen=True, slots=True)
class Readings:
    """The last readings of a device: each is a value, or ``None`` and a reason in ``unsupported``; never 0 for unknown.

    ``error`` is set when the device itself is in trouble; then nothing is placed on it. ``unknown`` is set when nobody
    can say how it is, because what reads it hangs or was refused: it is not free then.
    """

    memory_used_mib: int | None = None
    utilization_percent: float | None = None
    temperature_celsius: float | None = None
    power_watts: float | None = None
    unsupported: dict[str, str] = field(default_factory=dict)
    error: str = ""
    ecc_corrected: int | None = None
    """Memory errors that were corrected since the driver was loaded."""
    ecc_uncorrected: int | None = None
    """Those that were not."""
    throttled: str = ""
    """Why it runs slower than it could, where that is heat or power; empty: it does not, or does not say."""
    unknown: str = ""
    memory_reserved_mib: int | None = None
    """Memory that the driver keeps for itself: it is no one's, and not free."""
    memory_busy_percent: float | None = None
    """Share of the time in which memory was read or written."""
    memory_temperature_celsius: float | None = None
    power_limit_watts: float | None = None
    energy_millijoules: int | None = None
    """A counter, since the driver was loaded; it starts again with the driver."""
    clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    fan_percent: float | None = None
    pcie_generation: int | None = None
    pcie_lanes: int | None = None
    pcie_replays: int | None = None
    """A counter of packets that were sent again."""
    rows_remapped_corrected: int | None = None
    """Rows of memory that were replaced because of corrected errors; AMD: retired pages."""
    rows_remapped_uncorrected: int | None = None
    row_remap_pending: bool | None = None
    """Whether a row waits for a reset to be replaced."""
    row_remap_failed: bool | None = None
    """Whether there was no row left to replace one: the device has to be exchanged."""
    links_down: int | None = None
    """NVLinks, XGMI or Xe links that do not work, of those it has."""
    processes: tuple[DeviceProcess, ...] | None = None

    @classmethod
    def none(cls, reason: str, error: str = "", unknown: str = "") -> Readings:
        """Readings of a device of which nothing can be read, for one reason."""
        return cls(unsupported=dict.fromkeys(READINGS, reason), error=error, unknown=unknown)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Readings:
        """The readings of a record, as :func:`dataclasses.asdict` makes one, of whatever origin.

        Fields of later versions are passed over. What no device can read (not a number, more than 100 %, 9999 °C) is
        ``None`` here, and ``unsupported`` says what came instead. Raises TypeError for what is no record of readings.
        """
        said = record.get("unsupported", {})
        if not isinstance(said, Mapping):
            raise TypeError("unsupported is no mapping")
        unsupported = {str(name): str(why)[:REASON_MAX] for name, why in list(said.items())[:64]}
        found: dict[str, Any] = {
            name: text[:REASON_MAX] for name in _TEXTS if isinstance(text := record.get(name, ""), str)
        }
        for name, (least, most) in _RANGES.items():
            value = record.get(name)
            if value is None:
                continue
            if _is_within(value, least, most):
                found[name] = value
                unsupported.pop(name, None)
            else:
                unsupported[name] = f"cannot be {str(value)[:40]}"
        for name in _WHOLE:
            if isinstance(found.get(name), float):
                found[name] = round(found[name])
        for name in _TRUTHS:
            if isinstance(record.get(name), bool):
                found[name] = record[name]
        if record.get("processes") is not None:
            found["processes"] = _processes(record["processes"])
        return cls(unsupported=unsupported, **found)


_COUNT = (0, 2**63)
_RANGES: dict[str, tuple[float, float]] = {
    "memory_used_mib": (0, 2**40),
    "utilization_percent": (0, 100),
    "temperature_celsius": (-100, 300),
    "power_watts": (0, 100_000),
    "ecc_corrected": _COUNT,
    "ecc_uncorrected": _COUNT,
    "memory_reserved_mib": (0, 2**40),
    "memory_busy_percent": (0, 100),
    "memory_temperature_celsius": (-100, 300),
    "power_limit_watts": (0, 100_000),
    "energy_millijoules": _COUNT,
    "clock_mhz": (0, 100_000),
    "memory_clock_mhz": (0, 100_000),
    "fan_percent": (0, 200),
    "pcie_generation": (1, 16),
    "pcie_lanes": (1, 64),
    "pcie_replays": _COUNT,
    "rows_remapped_corrected": _COUNT,
    "rows_remapped_uncorrected": _COUNT,
    "links_down": (0, 1024),
}
"""What a device can read at all: what is outside is a driver's mistake, and counts as unknown."""
_TRUTHS = ("row_remap_pending", "row_remap_failed")
_TEXTS = ("error", "throttled", "unknown")
_WHOLE = tuple(one.name for one in fields(Readings) if one.name in _RANGES and "float" not in str(one.type))
READINGS = (*_RANGES, *_TRUTHS, "processes")
"""The names of all that is either a value or a reason why there is none."""


def _is_within(value: object, least: float, most: float) -> TypeGuard[float]:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) and least <= value <= most


def _processes(told: object) -> tuple[DeviceProcess, ...]:
    """The processes of a record; those that make no sense are left out."""
    if not isinstance(told, list | tuple):
        raise TypeError("processes are no list")
    found = []
    for one in told[:PROCESSES_MAX]:
        pid, memory = (one.get("pid"), one.get("memory_mib")) if isinstance(one, Mapping) else (None, None)
        if _is_within(pid, 1, 2**32):
            found.append(DeviceProcess(round(pid), round(memory) if _is_within(memory, 0, 2**40) else None))
    return tuple(found)
