"""Readings of devices in OpenTelemetry's words: the ``hw.*`` metrics of its semantic conventions for hardware.

https://opentelemetry.io/docs/specs/semconv/hardware/gpu/ (status: development), with the common ones beside them
(``hw.energy``, ``hw.power``, ``hw.temperature``). No I/O and no clock: what is sent, and how, is ``metric_sender``'s.
A reading that is not there makes no point; never a 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from .device import Device
from .device_listing import DeviceNow

Attribute = str | int | float | bool
POINTS_MAX = 16_384
"""Points of one sample: 1,024 devices with all that there is."""
_VENDORS = {"nvidia": "NVIDIA", "amd": "AMD", "intel": "Intel"}
_STATES = {"ok": "ok", "degraded": "degraded", "failed": "failed", "lost": "failed"}


class Instrument(Enum):
    """The kinds of figures that OpenTelemetry tells apart."""

    GAUGE = "gauge"
    UP_DOWN = "updowncounter"
    """A sum that may go down: what devices have of it adds up."""
    COUNTER = "counter"
    """A sum that only goes up, since ``since_s``."""


@dataclass(frozen=True, slots=True)
class MetricPoint:
    """One figure of one device."""

    name: str
    unit: str
    """In UCUM's words: By, Cel, J, W, 1, {error}."""
    kind: Instrument
    value: float
    attributes: Mapping[str, Attribute]
    since_s: float = 0.0
    """Of a counter: since when it counts, as far as it was watched; seconds since the epoch."""


class HardwareMetrics:
    """Makes the points of each sample, and remembers since when each counter counts: it begins anew with the driver."""

    def __init__(self) -> None:
        self._counters: dict[tuple[str, ...], tuple[float, float]] = {}

    def points(self, sample: Iterable[tuple[Device, DeviceNow]], at_s: float) -> list[MetricPoint]:
        """The points of real devices, at most ``POINTS_MAX``; *at_s*: now, since the epoch."""
        found: list[MetricPoint] = []
        kept: dict[tuple[str, ...], tuple[float, float]] = {}
        for device, now in sample:
            if device.source == "probed" and len(found) < POINTS_MAX:
                found += self._of_device(device, now, at_s, kept)
        self._counters = kept  # of what is there now
        return found[:POINTS_MAX]

    def _of_device(
        self, device: Device, now: DeviceNow, at_s: float, kept: dict[tuple[str, ...], tuple[float, float]]
    ) -> list[MetricPoint]:
        readings = now.readings
        about = _attributes(device, now.facts or {})
        common = {name: value for name, value in about.items() if name in ("hw.id", "hw.name", "hw.parent")}
        common["hw.type"] = "gpu"
        found: list[MetricPoint] = []

        def add(
            name: str, unit: str, kind: Instrument, value: float | None, attributes: dict[str, Attribute], **more: str
        ) -> None:
            if value is None:
                return
            said = attributes | {word.replace("__", "."): text for word, text in more.items()}
            since = self._since((device.uuid, name, *more.values()), value, at_s, kept) if kind is _COUNTER else 0.0
            found.append(MetricPoint(name, unit, kind, value, said, since))

        used, total = readings.memory_used_mib, device.memory_mib
        add(
            "hw.gpu.utilization",
            "1",
            _GAUGE,
            _times(readings.utilization_percent, 0.01),
            about,
            hw__gpu__task="general",
        )
        add("hw.gpu.memory.limit", "By", _UP_DOWN, total * 2**20 or None, about)
        add("hw.gpu.memory.usage", "By", _UP_DOWN, None if used is None else used * 2**20, about)
        add("hw.gpu.memory.utilization", "1", _GAUGE, used / total if used is not None and total else None, about)
        add("hw.power", "W", _GAUGE, readings.power_watts, common)
        add("hw.energy", "J", _COUNTER, _times(readings.energy_millijoules, 0.001), common)
        for place, celsius in (("gpu", readings.temperature_celsius), ("memory", readings.memory_temperature_celsius)):
            add("hw.temperature", "Cel", _GAUGE, celsius, common, hw__sensor_location=place)
        for kind, count in (("corrected", readings.ecc_corrected), ("uncorrected", readings.ecc_uncorrected)):
            add("hw.errors", "{error}", _COUNTER, count, common, error__type=kind)
        state = _STATES.get(now.health)  # of one that nobody can tell about, nothing is told
        for each in ("ok", "degraded", "failed") if state else ():
            add("hw.status", "1", _UP_DOWN, int(each == state), common, hw__state=each)
        return found

    def _since(
        self, counter: tuple[str, ...], value: float, at_s: float, kept: dict[tuple[str, ...], tuple[float, float]]
    ) -> float:
        since, before = self._counters.get(counter, (at_s, value))
        if value < before:
            since = at_s
        kept[counter] = since, value
        return since


_GAUGE, _UP_DOWN, _COUNTER = Instrument.GAUGE, Instrument.UP_DOWN, Instrument.COUNTER


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _attributes(device: Device, facts: Mapping[str, Any]) -> dict[str, Attribute]:
    """What is said of a device with each of its figures; what is not known is left out."""
    said = {
        "hw.id": device.uuid,
        "hw.name": f"GPU {device.index}",
        "hw.vendor": _VENDORS.get(device.vendor, device.vendor),
        "hw.model": device.model,
        "hw.parent": facts.get("parent"),
        "hw.serial_number": facts.get("serial"),
        "hw.driver_version": facts.get("driver_version"),
        "hw.firmware_version": facts.get("firmware"),
    }
    return {name: str(value) for name, value in said.items() if value}
