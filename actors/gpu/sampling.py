"""A host's own devices in a GpuClusteringManager: registered as the inventory lists them, sampled as the probe reads.

No clock and no I/O: GPUCoordinator calls it, at ``gpus.probe_interval_s``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from actorgrid.errors import BadRequest

from .clustering import GpuClusteringManager
from .device import Device
from .device_score import ONE, HeatLimits
from .readings import Readings
from .telemetry_history import GpuMetrics


class HostSampling:
    """Keeps ``manager`` at what host *host_id* has and reads."""

    def __init__(
        self,
        host_id: str,
        log: logging.Logger,
        heat_limits: Callable[[Device], HeatLimits] = lambda device: HeatLimits(),
    ) -> None:
        self.manager = GpuClusteringManager()
        self._heat_limits = heat_limits
        self._host_id = host_id
        self._log = log
        self._last_at = 0.0

    def take(
        self, devices: Iterable[Device], read: Callable[[Device], Readings], troubles: Mapping[str, str], at: float
    ) -> None:
        """Record a sample of each of *devices*, which are all there are now, at the time *at*.

        A clock that was set back stands still here until it has caught up. Readings no device can have (a driver's
        mistake) are logged and count as unknown.
        """
        self._last_at = max(self._last_at, at)
        for device_id, device in self._keep(devices).items():
            # Each time: they follow a setting that may change, and what a driver tells when it is loaded anew.
            self.manager.set_heat_limits(device_id, self._heat_limits(device))
            try:
                metrics = GpuMetrics.of(device, read(device), self._last_at)
            except BadRequest as error:
                self._log.warning("readings of GPU %d: %s", device.index, error)
                metrics = GpuMetrics(device_id, self._last_at)
            self.manager.record_metrics(metrics)
            self.manager.set_problem(device_id, troubles.get(device_id, ""))

    def take_problems(self, devices: Iterable[Device], troubles: Mapping[str, str]) -> None:
        """Take which of *devices*, all there are, are in trouble, by UUID, and why; the others are not."""
        for device_id in self._keep(devices):
            self.manager.set_problem(device_id, troubles.get(device_id, ""))

    def _keep(self, devices: Iterable[Device]) -> dict[str, Device]:
        """Have the manager know *devices* and no others, each at its place; they are given back by UUID."""
        found = {device.uuid: device for device in devices}
        for known in self.manager.list_devices():
            if found.get(known.device_id) != known.device:
                self.manager.remove_device(known.device_id)
        for device_id, device in found.items():
            if device_id not in self.manager:
                self.manager.register_device(device, self._host_id)
        return found

    def unhealthy(self) -> dict[str, str]:
        """The devices that take nothing new, by UUID, with the reason: in trouble, or too hot."""
        return {
            known.device_id: known.problem or known.score.excluded
            for known in self.manager.list_devices()
            if not known.available
        }

    def score(self, device_id: str) -> float | None:
        """A device's score, 1 at best; ``None`` for one that was not sampled yet."""
        if device_id not in self.manager:
            return None
        return self.manager.device(device_id).score.total / ONE

    def scores(self) -> dict[tuple[str, int], int]:
        """All scores as the engine takes them: thousandths by (node, device index)."""
        return {(known.node, known.device.index): known.score.permille for known in self.manager.list_devices()}

    def figures(self) -> dict[str, float]:
        """The figures for ``/metrics``: what the devices read together; what none of them reads is left out."""
        picture = self.manager.get_aggregated_metrics()
        figures = {
            "gpus_memory_used_bytes": picture["used_memory_bytes"],
            "gpus_utilization_percent": picture["average_utilization_percent"],
            "gpus_temperature_max_celsius": picture["max_temperature_celsius"],
            "gpus_power_watts": picture["total_power_watts"],
            "gpus_unavailable": picture["devices_unavailable"],
        }
        return {name: float(value) for name, value in figures.items() if value is not None}
