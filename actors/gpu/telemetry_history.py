"""What devices read over time: a bounded history for each, and one picture of all of them. No I/O, no clock."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from actorgrid.errors import BadRequest, UnknownNode

from .device import Device
from .readings import Readings

HISTORY_MAX = 64
"""Samples kept of one device unless told otherwise: five minutes at the default interval of 5 s, about 20 KB."""
_COLDEST_C, _HOTTEST_C = -100.0, 300.0


@dataclass(frozen=True, slots=True)
class GpuMetrics:
    """One sample of one device. ``None`` is a reading the device does not have; it is never taken for zero.

    ``timestamp`` is in seconds, on whatever clock all samples of the cluster share. Raises BadRequest for what no
    device can read: not a number, negative amounts, more used than there is, over 100 %, a temperature outside of
    -100 to 300 °C.
    """

    device_id: str
    timestamp: float
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    compute_utilization_percent: float | None = None
    power_watts: float | None = None
    temperature_celsius: float | None = None
    clock_rate_mhz: float | None = None

    def __post_init__(self) -> None:
        if not self.device_id or not isinstance(self.device_id, str):
            raise BadRequest("a sample names no device", asked=repr(self.device_id), hint="give the device's UUID")
        self._check("timestamp", self.timestamp, -math.inf, math.inf)
        for name, most in (
            ("memory_used_bytes", 2**60),
            ("memory_total_bytes", 2**60),
            ("compute_utilization_percent", 100.0),
            ("power_watts", 1e6),
            ("clock_rate_mhz", 1e6),
        ):
            value = getattr(self, name)
            if value is not None:
                self._check(name, value, 0, most)
        for name in ("memory_used_bytes", "memory_total_bytes"):
            if not isinstance(getattr(self, name), int | None):
                raise BadRequest(
                    f"{self.device_id}: {name} is not a whole number of bytes", asked=repr(getattr(self, name))
                )
        if self.temperature_celsius is not None:
            self._check("temperature_celsius", self.temperature_celsius, _COLDEST_C, _HOTTEST_C)
        used, total = self.memory_used_bytes, self.memory_total_bytes
        if used is not None and total is not None and used > total:
            raise BadRequest(
                f"{self.device_id} cannot use more memory than it has", asked=f"{used} bytes", found=f"{total} bytes"
            )

    def _check(self, name: str, value: object, least: float, most: float) -> None:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise BadRequest(
                f"{self.device_id}: {name} is not a number", asked=repr(value), hint="give None for what is not known"
            )
        if not least <= value <= most:
            raise BadRequest(
                f"{self.device_id}: {name} cannot be {value:g}",
                asked=f"{value:g}",
                hint=f"{least:g} to {most:g}, or None for what is not known",
            )

    @classmethod
    def of(cls, device: Device, readings: Readings, timestamp: float) -> GpuMetrics:
        """The sample that a probe's *readings* of *device* are."""
        used = readings.memory_used_mib
        return cls(
            device_id=device.uuid,
            timestamp=timestamp,
            # A driver's own share is in what it calls used, and totals are rounded down to MiB.
            memory_used_bytes=None if used is None else min(used, device.memory_mib) << 20,
            memory_total_bytes=device.memory_mib << 20,
            compute_utilization_percent=readings.utilization_percent,
            power_watts=readings.power_watts,
            temperature_celsius=readings.temperature_celsius,
        )


class TelemetryHistory:
    """The last *per_device* samples of every device. Raises BadRequest when that is not 1 to 100,000."""

    def __init__(self, per_device: int = HISTORY_MAX) -> None:
        if not 1 <= per_device <= 100_000:
            raise BadRequest("a history keeps 1 to 100,000 samples of a device", asked=str(per_device))
        self.per_device = per_device
        self._samples: dict[str, deque[GpuMetrics]] = {}

    def record(self, sample: GpuMetrics) -> None:
        """Keep *sample*; the oldest of that device makes room.

        Raises BadRequest when its time is before the last one's: then clocks or messages are out of order, and
        nothing is kept. Equal times are fine.
        """
        samples = self._samples.get(sample.device_id)
        if samples is None:
            samples = self._samples[sample.device_id] = deque(maxlen=self.per_device)
        elif sample.timestamp < samples[-1].timestamp:
            raise BadRequest(
                f"a sample of {sample.device_id} is older than the last one",
                asked=f"a sample of {sample.timestamp!r} s",
                found=f"the last one is of {samples[-1].timestamp!r} s",
                hint="send the samples of a device in the order they were taken",
            )
        samples.append(sample)

    def forget(self, device_id: str) -> None:
        """Drop what is kept of a device, if anything."""
        self._samples.pop(device_id, None)

    def samples(self, device_id: str) -> tuple[GpuMetrics, ...]:
        """What is kept of a device, oldest first. Raises UnknownNode for one that never sent a sample."""
        kept = self._samples.get(device_id)
        if kept is None:
            raise UnknownNode(f"no device {device_id!r} has sent a sample", asked=device_id)
        return tuple(kept)

    def latest(self, device_id: str, at: float | None = None) -> GpuMetrics | None:
        """The last sample of a device, or the last one not taken after *at*; ``None`` when there is none."""
        kept = self._samples.get(device_id)
        if not kept:
            return None
        if at is None or kept[-1].timestamp <= at:
            return kept[-1]
        place = bisect_right(kept, at, key=lambda sample: sample.timestamp)
        return kept[place - 1] if place else None


def aggregate(devices: Iterable[tuple[Device, GpuMetrics | None]]) -> dict[str, Any]:
    """One picture of many devices, from one sample of each (or ``None``).

    Sums and averages are over the devices that have the reading; without any they are ``None``, and ``unknown``
    counts per reading the devices that lack it. Memory totals come from the devices where no sample tells.
    ``oldest_timestamp`` and ``newest_timestamp`` say how far apart the samples were taken.
    """
    pairs = list(devices)
    count = len(pairs)
    vendors = Counter(device.vendor for device, _ in pairs)
    samples = [sample for _, sample in pairs if sample is not None]
    total = sum(
        device.memory_mib << 20 if sample is None or sample.memory_total_bytes is None else sample.memory_total_bytes
        for device, sample in pairs
    )
    times = [sample.timestamp for sample in samples]
    used = _known(samples, "memory_used_bytes")
    utilization = _known(samples, "compute_utilization_percent")
    power = _known(samples, "power_watts")
    temperature = _known(samples, "temperature_celsius")
    clock = _known(samples, "clock_rate_mhz")
    unknown = {
        "memory_used_bytes": count - len(used),
        "compute_utilization_percent": count - len(utilization),
        "power_watts": count - len(power),
        "temperature_celsius": count - len(temperature),
        "clock_rate_mhz": count - len(clock),
    }
    return {
        "device_count": count,
        "devices_by_vendor": dict(sorted(vendors.items())),
        "devices_reporting": len(times),
        "total_memory_bytes": total,
        "used_memory_bytes": sum(used) if used else None,
        "average_utilization_percent": _mean(utilization),
        "average_temperature_celsius": _mean(temperature),
        "max_temperature_celsius": max(temperature, default=None),
        "total_power_watts": math.fsum(power) if power else None,
        "average_clock_rate_mhz": _mean(clock),
        "unknown": {name: missing for name, missing in unknown.items() if missing},
        "oldest_timestamp": min(times, default=None),
        "newest_timestamp": max(times, default=None),
    }


def _known(samples: list[GpuMetrics], name: str) -> list[Any]:
    return [value for value in map(attrgetter(name), samples) if value is not None]


def _mean(values: list[float]) -> float | None:
    # fsum rounds once, so that the order of the devices does not matter.
    return math.fsum(values) / len(values) if values else None
