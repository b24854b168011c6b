"""The figures of many devices together, kept as their samples come: asking costs the same for eight and for 100,000.

What a device adds is taken out again, exactly, when its next sample comes. So sums are kept as whole numbers: a float
is a whole number over a power of two, and such numbers add up without rounding, in any order. What is told is rounded
once, as ``telemetry_history.aggregate`` does, which reads all anew and gives the same.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from actorgrid.hotpath import RankHeap

from .device import Device
from .telemetry_history import GpuMetrics

_SCALE_BITS = 1074
"""Every float is a whole number over that power of two, at most."""
_SCALE = 1 << _SCALE_BITS


class ExactSum:
    """The sum of numbers that come and go, exact at any time, and how many there are."""

    __slots__ = ("_scaled", "count")

    def __init__(self) -> None:
        self._scaled = 0
        self.count = 0

    def add(self, value: float, times: int = 1) -> None:
        """Add *value* to it; *times* -1: take it out again."""
        above, below = value.as_integer_ratio()
        self._scaled += times * (above << (_SCALE_BITS + 1 - below.bit_length()))
        self.count += times

    def total(self) -> float | None:
        """The sum, rounded once; ``None`` without any number."""
        return self._scaled / _SCALE if self.count else None

    def mean(self) -> float | None:
        """The mean; ``None`` without any number."""
        total = self.total()
        return None if total is None else total / self.count


class Extremes:
    """The least and the greatest of the numbers of devices, by device."""

    def __init__(self) -> None:
        self._least, self._greatest = RankHeap(), RankHeap()
        self._held: dict[str, tuple[int, int, float]] = {}

    def put(self, id: str, value: float | None) -> None:
        """The number of device *id* is *value*; ``None``: it has none."""
        before = self._held.pop(id, None)
        if value is None:
            if before is not None:
                self._least.remove(before[0])
                self._greatest.remove(before[1])
            return
        if before is None:
            least = self._least.insert(value, 0, 0, 0, id)
            greatest = self._greatest.insert(-value, 0, 0, 0, id)
        else:
            least, greatest, _ = before
            self._least.move(least, value, 0, 0, 0)
            self._greatest.move(greatest, -value, 0, 0, 0)
        self._held[id] = least, greatest, value

    def least(self) -> float | None:
        """The least of them; ``None`` without any."""
        first = self._least.first()
        return None if first is None else self._held[first][2]

    def greatest(self) -> float | None:
        """The greatest of them; ``None`` without any."""
        first = self._greatest.first()
        return None if first is None else self._held[first][2]


class RunningTotals:
    """What ``aggregate`` says of all devices, kept device by device."""

    def __init__(self) -> None:
        self._vendors: Counter[str] = Counter()
        self._reporting = 0
        self._memory_bytes = self._used_bytes = self._used_count = 0
        self._utilization, self._power = ExactSum(), ExactSum()
        self._temperature, self._clock = ExactSum(), ExactSum()
        self._temperatures, self._times = Extremes(), Extremes()

    def replace(
        self,
        device: Device,
        before: GpuMetrics | None,
        after: GpuMetrics | None,
    ) -> None:
        """The last sample of *device*, which is counted already, is *after* and not *before* any more."""
        self._count(device, before, -1)
        self._count(device, after, 1)
        self._place(device.uuid, after)

    def enter(self, device: Device) -> None:
        """Count *device*, of which there is no sample yet."""
        self._vendors[device.vendor] += 1
        self._count(device, None, 1)

    def leave(self, device: Device, last: GpuMetrics | None) -> None:
        """Count *device* no more, of which *last* was the last sample."""
        self._vendors[device.vendor] -= 1
        self._count(device, last, -1)
        self._place(device.uuid, None)

    def picture(self) -> dict[str, Any]:
        """The figures, by the names that ``aggregate`` gives them."""
        vendors = {vendor: count for vendor, count in sorted(self._vendors.items()) if count}
        count = sum(vendors.values())
        unknown = {
            "memory_used_bytes": count - self._used_count,
            "compute_utilization_percent": count - self._utilization.count,
            "power_watts": count - self._power.count,
            "temperature_celsius": count - self._temperature.count,
            "clock_rate_mhz": count - self._clock.count,
        }
        return {
            "device_count": count,
            "devices_by_vendor": vendors,
            "devices_reporting": self._reporting,
            "total_memory_bytes": self._memory_bytes,
            "used_memory_bytes": self._used_bytes if self._used_count else None,
            "average_utilization_percent": self._utilization.mean(),
            "average_temperature_celsius": self._temperature.mean(),
            "max_temperature_celsius": self._temperatures.greatest(),
            "total_power_watts": self._power.total(),
            "average_clock_rate_mhz": self._clock.mean(),
            "unknown": {name: missing for name, missing in unknown.items() if missing},
            "oldest_timestamp": self._times.least(),
            "newest_timestamp": self._times.greatest(),
        }

    def _count(self, device: Device, sample: GpuMetrics | None, times: int) -> None:
        said = None if sample is None else sample.memory_total_bytes
        self._memory_bytes += times * (device.memory_mib << 20 if said is None else said)
        if sample is None:
            return
        self._reporting += times
        if sample.memory_used_bytes is not None:
            self._used_bytes += times * sample.memory_used_bytes
            self._used_count += times
        for total, value in (
            (self._utilization, sample.compute_utilization_percent),
            (self._power, sample.power_watts),
            (self._temperature, sample.temperature_celsius),
            (self._clock, sample.clock_rate_mhz),
        ):
            if value is not None:
                total.add(value, times)

    def _place(self, id: str, sample: GpuMetrics | None) -> None:
        self._temperatures.put(id, None if sample is None else sample.temperature_celsius)
        self._times.put(id, None if sample is None else sample.timestamp)
