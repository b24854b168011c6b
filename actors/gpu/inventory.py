"""This host's devices: from a vendor's library, simulated or declared, with what they read last.

``gpus.source`` says where from. ``auto`` asks NVML where there is a sign of NVIDIA hardware or its library, and
simulates where there is no driver. Where hardware and driver are there but keep us out, nothing is simulated: the
host then has no GPUs and says so; a driver that does not answer goes on being asked.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from actorgrid.configs.schema import GpusSection
from actorgrid.supervisors.runtime import Runtime, Waiter

from .device import Device, ProbeReport, Readings
from .probe import DeviceProbe
from .vendors.declared import declared_devices, declared_readings
from .vendors.nvidia import traces_of_nvidia
from .vendors.simulated import simulated_devices, simulated_readings

FALLBACK = "simulated:8xH100-80GB"
MAX_DEVICES = 1024
"""What the ledger takes per host."""

Allocated = Mapping[int, tuple[int, int, list[str]]]


class HostInventory:
    """The devices of one host. ``start`` begins looking; *on_change* is called whenever the list is another."""

    def __init__(
        self,
        settings: GpusSection,
        host_id: str,
        runtime: Runtime,
        on_change: Callable[[], None],
        log: logging.Logger,
    ) -> None:
        self.settings = settings
        self.host_id = host_id
        self.devices: list[Device] = []
        self.notes: list[str] = []
        self.outcome = "absent"
        self.driver_version: str | None = None
        self.probe: DeviceProbe | None = None
        self._runtime = runtime
        self._on_change = on_change
        self._log = log
        self._readings: dict[str, Readings] = {}
        self._trouble: dict[str, str] = {}
        self._known = Waiter()
        self._hardware = False

    def start(self) -> Waiter:
        """Look for devices; the answer awaits the first list, which may be empty."""
        source = self.settings.source
        if source == "none":
            self._settle([])
        elif source.startswith("simulated:"):
            self._simulate(source)
        else:
            worth_it, sign = traces_of_nvidia()
            self._hardware = sign == "device" or source == "nvidia"
            if worth_it or source == "nvidia":
                self.probe = DeviceProbe(
                    "nvidia",
                    self._runtime,
                    self.settings.probe_timeout_s,
                    self._reported,
                    self._readings.update,
                    self._lost,
                )
                self.probe.start()
            else:
                self._simulate(FALLBACK, "no NVIDIA device or library is on this host")
        return self._known

    def stop(self) -> None:
        """End the probe child, if there is one."""
        if self.probe is not None:
            self.probe.stop()
            self.probe = None

    def ask(self) -> None:
        """Have probed devices read again; the answer shows in ``readings`` later."""
        if self.probe is not None:
            self.probe.ask()

    def readings(self, device: Device, allocated_milli: int, allocated_mib: int) -> Readings:
        """What *device* read last; for a simulated one, what it would read with that much of it given out."""
        if device.source == "simulated":
            return simulated_readings(device, allocated_milli, allocated_mib)
        if device.source == "declared":
            return declared_readings()
        if device.uuid in self._trouble:
            return Readings.none(self._trouble[device.uuid], error=self._trouble[device.uuid])
        return self._readings.get(device.uuid) or Readings.none("not read yet")

    def troubles(self) -> dict[str, str]:
        """Devices in trouble, by UUID, with what troubles them."""
        failed = {uuid: said.error for uuid, said in self._readings.items() if said.error}
        return {**failed, **self._trouble}

    def status(self) -> dict[str, Any]:
        """Where the devices are from and how their probe is, as ``actorgrid inspect`` shows it."""
        return {
            "source": self.settings.source,
            "outcome": self.outcome,
            "driver_version": self.driver_version,
            "probe_pid": self.probe.pid if self.probe else None,
            "probe_restarts": self.probe.restarts if self.probe else 0,
            "notes": list(self.notes),
        }

    def _simulate(self, spec: str, why: str = "") -> None:
        if why:
            self._note(f"{why}: GPUs are simulated ({spec})", warn=True)
        self._settle(simulated_devices(spec, self.host_id))

    def _reported(self, report: ProbeReport) -> None:
        self.outcome, self.driver_version = report.outcome, report.driver_version
        for problem in report.problems:
            self._note(problem, warn=True)
        if report.devices:
            self._take_probed(list(report.devices))
            return
        if self._known.done and any(device.source == "probed" for device in self.devices):
            # It had devices before: the probe stays, and each device says that it is not seen.
            self._take_probed([])
            return
        self.stop()  # nothing to read: no need to keep the process
        what = f"NVML: {report.outcome}" + (f" ({report.message})" if report.message else "")
        real_but_closed = self._hardware and report.outcome in ("version_mismatch", "no_permission")
        if self.settings.source == "auto" and not real_but_closed:
            self._simulate(FALLBACK, what)
        else:
            self._note(what, warn=True)
            self._settle([])

    def _lost(self, why: str) -> None:
        self._note(f"the NVIDIA probe {why}", warn=True)
        if self._known.done:
            # Old readings are not readings.
            self._readings.clear()
            return
        self.outcome = "no_driver"
        if self._hardware:
            self._settle([])
        else:
            self.stop()
            self._simulate(FALLBACK, "NVML does not answer and no NVIDIA device is on this host")

    def _take_probed(self, found: list[Device]) -> None:
        seen = {device.uuid for device in found}
        before = [device for device in self.devices if device.source == "probed"]
        self._trouble = {
            device.uuid: "the library does not list it any more" for device in before if device.uuid not in seen
        }
        gone = [device for device in before if device.uuid in self._trouble]
        self._settle([*found, *gone])

    def _settle(self, found: list[Device]) -> None:
        """Take the list as it is now, with what is declared; tell whoever waits, or that it changed."""
        devices = [*found, *declared_devices(self.settings.declared, self.host_id, len(found))]
        if len(devices) > MAX_DEVICES:
            self._note(
                f"{len(devices)} devices are more than a host may have: the first {MAX_DEVICES} count", warn=True
            )
            devices = devices[:MAX_DEVICES]
        same = {device.uuid for device in devices} == {device.uuid for device in self.devices}
        self.devices = devices
        if not self._known.done:
            self._known.set(None)
        elif not same:
            self._on_change()

    def _note(self, text: str, warn: bool = False) -> None:
        """Keep the last 20 things worth telling people."""
        if text not in self.notes:
            self.notes = [*self.notes[-19:], text]
            self._log.log(logging.WARNING if warn else logging.INFO, text)
