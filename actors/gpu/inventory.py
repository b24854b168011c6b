"""This host's devices: from the vendors' libraries, simulated or declared, with what they read last and how they are.

``gpus.source`` says where from. ``auto`` asks each vendor's library of which there is a sign, hardware or the library
itself, and simulates where none has a device. Where hardware and driver are there but keep us out, nothing is
simulated: the host then has no GPUs and says so; a driver that does not answer goes on being asked. Each library is
asked in a process of its own: one that hangs, or dies, takes no other's devices with it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from time import time
from typing import Any

from actorgrid.configs.gpus_section import GpusSection
from actorgrid.supervisors.runtime import Runtime, Waiter

from .device import Device
from .device_health import DeviceHealth, HealthIncident, HealthState, HostDeviceHealth
from .mig_report import MigGpu
from .probe import DeviceProbe
from .probe_report import DeviceEvent, DeviceFacts, DeviceLink, ProbeReport
from .readings import Readings
from .simulated_play import SimulatedPlay
from .vendors.amd import traces_of_amd
from .vendors.declared import declared_devices, declared_readings
from .vendors.intel import traces_of_intel
from .vendors.nvidia import traces_of_nvidia
from .vendors.pci import bound_gpus
from .vendors.simulated import simulated_devices, simulated_links

FALLBACK = "simulated:8xH100-80GB"
MAX_DEVICES = 1024
"""What the ledger takes per host."""
VENDORS = {"nvidia": "NVML", "amd": "AMD SMI", "intel": "Level Zero"}
"""Vendors with a library that can be asked, and what people call it."""
LOOK_AGAIN_S = 30.0
"""While devices are missing, or the bus has others than before, a library is loaded anew at most so often."""

OTHERS_S = 2.0
"""How long the first list waits for slower libraries once one has told its devices."""

Allocated = Mapping[int, tuple[int, int, list[str]]]


@dataclass(slots=True)
class _Asked:
    """A vendor whose library is asked: its probe, while there is one, and what it said last."""

    vendor: str
    hardware: bool
    """Whether there are devices of it on this machine, whatever its library says."""
    probe: DeviceProbe | None = None
    outcome: str = "absent"
    message: str = ""
    binding: str = ""
    driver_version: str | None = None
    devices: list[Device] = field(default_factory=list)
    """Those that were listed last; those missing since are in ``gone``."""
    gone: dict[str, Device] = field(default_factory=dict)
    recut: set[str] = field(default_factory=set)
    """Devices of GPUs that were cut otherwise: where they are listed no more, they are not missing."""
    on_listed: list[Callable[[], None]] = field(default_factory=list)
    """Called once, with the next list."""
    facts: dict[str, DeviceFacts] = field(default_factory=dict)
    links: tuple[DeviceLink, ...] = ()
    mig: tuple[MigGpu, ...] = ()
    settled: bool = False
    """Whether it has said something, or was lost, since the start."""
    looked_at: float = 0.0

    @property
    def keeps_out(self) -> bool:
        """Whether there are devices, and we are kept from them: then nothing is simulated in their place."""
        return self.hardware and self.outcome in ("version_mismatch", "no_permission")


class HostInventory:
    """The devices of one host. ``start`` begins looking; *on_change* is called whenever the list is another.

    *on_health* is called whenever the health of a device has changed, with what has; *on_readings* with each sample of
    a vendor's devices.
    """

    def __init__(
        self,
        settings: GpusSection,
        host_id: str,
        runtime: Runtime,
        on_change: Callable[[], None],
        log: logging.Logger,
        on_health: Callable[[list[HealthIncident]], None] = lambda incidents: None,
        on_readings: Callable[[dict[str, Readings]], None] = lambda readings: None,
    ) -> None:
        self.settings = settings
        self.host_id = host_id
        self.devices: list[Device] = []
        self.notes: list[str] = []
        self.withdrawn: frozenset[str] = frozenset()
        """GPUs of NVIDIA's of which nothing is said to be cut for work: their driver does not."""
        self.health = HostDeviceHealth()
        self._play = SimulatedPlay(settings, runtime.monotonic, self._note)
        self._runtime = runtime
        self._on_change = on_change
        self._on_health = on_health
        self._on_readings = on_readings
        self._log = log
        self._readings: dict[str, Readings] = {}
        self._asked: dict[str, _Asked] = {}
        self._known = Waiter()
        self._bus: frozenset[str] = frozenset()
        self._simulated = False
        self._waits = False

    # -- beginning and end

    def start(self) -> Waiter:
        """Look for devices; the answer awaits the first list, which may be empty."""
        source = self.settings.source
        self._bus = bound_gpus()
        if source == "none":
            self._settle()
        elif source.startswith("simulated:"):
            self._simulate(source)
        else:
            for vendor in VENDORS if source == "auto" else (source,):
                worth_it, sign = traces(vendor)
                if worth_it or source == vendor:
                    self._asked[vendor] = self._ask_vendor(vendor, sign == "device" or source == vendor)
            for asked in list(self._asked.values()):
                assert asked.probe is not None, "it was just made"
                asked.probe.start()
            if not self._asked:
                self._simulate(FALLBACK, "no GPU of NVIDIA, AMD or Intel, and no library of theirs, is on this host")
        return self._known

    def stop(self) -> None:
        """End the probe children."""
        for asked in self._asked.values():
            self._stop_probe(asked)

    def _ask_vendor(self, vendor: str, hardware: bool) -> _Asked:
        asked = _Asked(vendor, hardware)
        asked.probe = DeviceProbe(
            vendor,
            self._runtime,
            self.settings.probe_timeout_s,
            lambda report: self._reported(asked, report),
            lambda readings: self._read(asked, readings),
            lambda why: self._lost(asked, why),
            self._happened,
        )
        return asked

    def _stop_probe(self, asked: _Asked) -> None:
        if asked.probe is not None:
            asked.probe.stop()
            asked.probe = None

    # -- asking

    def ask(self) -> None:
        """Have probed devices read again; the answer shows in ``readings`` later. Look whether others have come."""
        bus = bound_gpus()
        changed, self._bus = bus ^ self._bus, bus
        for asked in self._asked.values():
            if asked.probe is None:
                continue
            due = self._runtime.monotonic() - asked.looked_at >= LOOK_AGAIN_S
            lost = asked.devices and all(self._reads_nothing(device) for device in asked.devices)
            if changed:
                asked.probe.look_again("devices came or went on the bus")
            elif due and (asked.gone or lost or not asked.devices):
                asked.probe.look_again("devices are missing")
            else:
                asked.probe.ask()
        if changed and self._simulated and self.settings.source == "auto":
            self._note("GPUs have come while simulated ones are in use: restart the agent to use them", warn=True)

    def _reads_nothing(self, device: Device) -> bool:
        readings = self._readings.get(device.uuid)
        return readings is not None and bool(readings.error)

    def set_power_limit(
        self, device: Device, watts: float, before: float | None, answered: Callable[[str], None]
    ) -> None:
        """Have *device* draw at most *watts*; *answered* gets "" when it does, else why not.

        *before* is what it draws again when what sets it ends, however that is; ``None``: that lasts.
        """
        asked = self._asked.get(device.vendor)
        if device.source != "probed" or asked is None or asked.probe is None:
            answered(f"a {device.source} device has no power limit that can be set")
            return
        asked.probe.set_power_limit(device.uuid, watts, before, answered)

    def set_partitions(self, uuid: str, change: str, what: str, answered: Callable[[str, str], None]) -> None:
        """Have NVIDIA's GPU *uuid* be cut otherwise (``CuttingVendor``). *answered*: why not, and what was made."""
        asked = self._asked.get("nvidia")
        if asked is None or asked.probe is None:
            answered("no library of NVIDIA's is asked on this host", "")
            return
        asked.probe.set_partitions(uuid, change, what, answered)

    def set_amd_partitions(
        self, uuids: Collection[str], change: str, what: str, answered: Callable[[str], None]
    ) -> None:
        """Have AMD's GPU whose parts *uuids* are be cut otherwise. *answered*: why not, once it is listed anew."""
        asked = self._asked.get("amd")
        probe = None if asked is None else asked.probe
        if asked is None or probe is None:
            answered("no library of AMD's is asked on this host")
            return

        def done(why: str, _made: str) -> None:
            if why:
                answered(why)
                return
            asked.recut.update(uuids)
            asked.on_listed.append(lambda: answered(""))
            probe.look_again("its GPUs are cut otherwise, and some are missing")

        probe.set_partitions(min(uuids), change, what, done)

    def amd_gpus(self) -> dict[str, list[tuple[Device, str]]]:
        """AMD's GPUs that can be cut, by their place on the bus: their parts, each with how it is cut."""
        found: dict[str, list[tuple[Device, str]]] = {}
        asked = self._asked.get("amd")
        for device in asked.devices if asked is not None else ():
            facts = asked.facts.get(device.uuid) if asked is not None else None
            if facts is not None and facts.can_partition and device.pcie_bus_id:
                place = device.pcie_bus_id.rpartition(".")[0]
                found.setdefault(place, []).append((device, facts.partition or "SPX"))
        return found

    @property
    def can_cut(self) -> bool:
        """Whether NVIDIA's library can be asked to cut a GPU, and ``mig_gpus`` is what it told last."""
        asked = self._asked.get("nvidia")
        return asked is not None and asked.probe is not None and asked.probe.answers

    def mig_gpus(self) -> tuple[MigGpu, ...]:
        """NVIDIA's GPUs that can be cut into MIG instances, as they were listed last."""
        return tuple(gpu for asked in self._asked.values() for gpu in asked.mig)

    def settings_changed(self) -> None:
        """Take the list anew by settings that are others now."""
        if self._known.done and not self._simulated:
            self._settle(fresh=False)

    # -- what is known

    def readings(self, device: Device, allocated_milli: int, allocated_mib: int) -> Readings:
        """What *device* read last; for a simulated one, what it would read with that much of it given out."""
        if device.source == "simulated":
            return self._play.readings(device, allocated_milli, allocated_mib)
        if device.source == "declared":
            return declared_readings()
        health = self.health.of(device.uuid)
        if health.state is HealthState.UNKNOWN:
            return Readings.none(health.reason, unknown=health.reason)
        if health.state is HealthState.LOST:
            return Readings.none(health.reason, error=health.reason)
        return self._readings.get(device.uuid) or Readings.none("not read yet")

    def health_of(self, device: Device) -> DeviceHealth:
        """How *device* is. Of a declared one nobody can say."""
        if device.source == "declared":
            return DeviceHealth(HealthState.UNKNOWN, "declared: no library reads it")
        is_well = device.source == "simulated" and not self._play.is_on
        return DeviceHealth() if is_well else self.health.of(device.uuid)

    @property
    def has_script(self) -> bool:
        """Whether the simulated devices play a script: then they are judged by what they read, as real ones are."""
        return self._play.is_on

    def play(self, readings: Mapping[str, Readings]) -> None:
        """Take what simulated devices that play a script read now, and what it lets happen to them."""
        uuids = {device.index: device.uuid for device in self.devices if device.source == "simulated"}
        events = [DeviceEvent(uuids[index], "xid", xid) for index, xid in self._play.xids() if index in uuids]
        self._tell([*self.health.happened(events, time()), *self.health.read(readings, time())])

    def facts(self, device: Device) -> DeviceFacts | None:
        """What is known of a probed device that does not change; ``None`` for others."""
        asked = self._asked.get(device.vendor)
        return None if asked is None else asked.facts.get(device.uuid)

    @property
    def links(self) -> tuple[tuple[DeviceLink, ...], ...]:
        """What is known of how probed devices are joined, by vendor."""
        return tuple(asked.links for asked in self._asked.values())

    def links_of(self, device: Device) -> dict[str, str]:
        """How *device* is joined to others of this host, by their UUIDs, as far as it is known."""
        if device.source == "simulated":
            return simulated_links(device, self.devices)
        asked = self._asked.get(device.vendor)
        links = () if asked is None else asked.links
        found = {link.other: link.word for link in links if link.one == device.uuid}
        return found | {link.one: link.word for link in links if link.other == device.uuid}

    def troubles(self) -> dict[str, str]:
        """Devices in trouble, by UUID, with what troubles them."""
        return self.health.unfit()

    def status(self) -> dict[str, Any]:
        """Where the devices are from and how their probes are, as ``actorgrid inspect`` shows it."""
        vendors = {
            asked.vendor: {
                "outcome": asked.outcome,
                "message": asked.message,
                "binding": asked.binding,
                "driver_version": asked.driver_version,
                "devices": len(asked.devices),
                "missing": len(asked.gone),
                "pid": asked.probe.pid if asked.probe else None,
                "restarts": asked.probe.restarts if asked.probe else 0,
            }
            for asked in self._asked.values()
        }
        return {"source": self.settings.source, "vendors": vendors, "notes": list(self.notes)}

    # -- what probes say

    def _reported(self, asked: _Asked, report: ProbeReport) -> None:
        asked.outcome, asked.message = report.outcome, report.message
        asked.binding, asked.driver_version = report.binding, report.driver_version
        asked.looked_at = self._runtime.monotonic()
        for problem in report.problems:
            self._note(problem, warn=True)
        found = {device.uuid: device for device in report.devices}
        before = {**asked.gone, **{device.uuid: device for device in asked.devices}}
        # One that is cut, or an instance that was put together, is not missing.
        cut = {gpu.uuid for gpu in report.mig} | asked.recut
        asked.recut -= found.keys()
        asked.gone = {
            uuid: device
            for uuid, device in before.items()
            if uuid not in found and uuid not in cut and device.parent not in cut
        }
        asked.devices = list(found.values())
        asked.facts = {fact.uuid: fact for fact in report.facts if fact.uuid in found}
        asked.mig = report.mig
        asked.links = tuple(link for link in report.links if link.one in found and link.other in found)
        first, asked.settled = not asked.settled, True
        on_listed, asked.on_listed = asked.on_listed, []
        for listed in on_listed:
            listed()
        if not found:
            what = f"{VENDORS[asked.vendor]}: {report.outcome}" + (f" ({report.message})" if report.message else "")
            self._note(what, warn=asked.hardware)
            if first and not before:
                self._stop_probe(asked)  # nothing to read: no need to keep the process
        self._take(asked, fresh=asked.probe is None or not asked.probe.is_setting)
        if asked.probe is not None:
            asked.probe.ask()

    def _take(self, asked: _Asked, fresh: bool = True) -> None:
        """Have the list be as the vendors' libraries say, once each of them has said something."""
        if not self._known.done and not all(each.settled for each in self._asked.values()):
            if not self._waits and any(each.devices for each in self._asked.values()):
                # The others have a moment, so that indexes do not hang on who was faster, and no more.
                self._waits = True
                self._runtime.after(OTHERS_S, self._others_had_time)
            return
        if not self._known.done and not any(each.devices or each.gone for each in self._asked.values()):
            self._without_devices()
            return
        self._settle(fresh=fresh)
        why = f"{VENDORS[asked.vendor]} does not list it any more"
        self._tell(self.health.missing(asked.gone, why, time()))

    def _others_had_time(self) -> None:
        if not self._known.done:
            self._settle()

    def _without_devices(self) -> None:
        """Begin without a device that a library lists: simulate, where nobody means real ones."""
        waited_for = [each for each in self._asked.values() if each.keeps_out or (each.hardware and each.probe)]
        if self.settings.source == "auto" and not waited_for:
            names = ", ".join(f"{VENDORS[each.vendor]} {each.outcome}" for each in self._asked.values())
            for each in self._asked.values():
                self._stop_probe(each)
            self._simulate(FALLBACK, f"no device can be used ({names})")
        else:
            self._settle()

    def _read(self, asked: _Asked, readings: dict[str, Readings]) -> None:
        known = {device.uuid for device in asked.devices}
        self._readings.update({uuid: said for uuid, said in readings.items() if uuid in known})
        self._tell(self.health.read({uuid: said for uuid, said in readings.items() if uuid in known}, time()))
        self._on_readings({uuid: said for uuid, said in readings.items() if uuid in known})

    def _happened(self, events: list[DeviceEvent]) -> None:
        self._tell(self.health.happened(events, time()))

    def _lost(self, asked: _Asked, why: str) -> None:
        if asked.probe is None:
            return
        again = asked.settled and why.endswith(("on the bus", "are missing"))
        if not again:
            self._note(f"the {asked.vendor} probe {why}", warn=True)
        # Old readings are not readings.
        for device in asked.devices:
            self._readings.pop(device.uuid, None)
        if again:
            return  # we ended it ourselves, to look anew: nothing is known to be wrong
        if asked.settled:
            text = f"nobody can say how it is: its {VENDORS[asked.vendor]} probe {why}"
            self._tell(self.health.unheard([device.uuid for device in asked.devices], text, time()))
            return
        asked.settled = True
        asked.outcome = "no_driver"
        asked.message = why
        if not asked.hardware:
            self._stop_probe(asked)
        self._take(asked)

    def _tell(self, incidents: list[HealthIncident]) -> None:
        for incident in incidents:
            if incident.kind != HealthState.OK:
                self._log.warning("device %s: %s: %s", incident.uuid, incident.kind, incident.text)
            else:
                self._log.info("device %s: %s", incident.uuid, incident.text)
        if incidents:
            self._on_health(incidents)

    # -- the list

    def _simulate(self, spec: str, why: str = "") -> None:
        self._simulated = True
        if why:
            self._note(f"{why}: GPUs are simulated ({spec})", warn=True)
        devices = simulated_devices(spec, self.host_id)
        self._play.begin(len(devices))
        self._settle(devices)

    def _settle(self, simulated: list[Device] | None = None, fresh: bool = True) -> None:
        """Take the list as it is now, with what is declared; tell whoever waits, or that it changed."""
        found: dict[str, Device] = {}
        for asked in self._asked.values():
            for device in (*asked.devices, *asked.gone.values()):
                if device.uuid in found:
                    self._note(f"two devices are called {device.uuid}: the second is left out", warn=True)
                else:
                    found[device.uuid] = device
        listed = self._by_mig_setting(found) if simulated is None else simulated
        devices = [_at(device, place) for place, device in enumerate(listed)]
        devices += declared_devices(self.settings.declared, self.host_id, len(devices))
        if len(devices) > MAX_DEVICES:
            self._note(
                f"{len(devices)} devices are more than a host may have: the first {MAX_DEVICES} count", warn=True
            )
            devices = devices[:MAX_DEVICES]
        probed = [
            device
            for device in devices
            if device.source == "probed" or (device.source == "simulated" and self._play.is_on)
        ]
        parents = {
            fact.uuid: fact.parent for asked in self._asked.values() for fact in asked.facts.values() if fact.parent
        }
        self.health.listed(probed, parents, fresh)
        before = {device.uuid: device for device in self.devices}
        same = before.keys() == {device.uuid for device in devices}
        # Indexes that were given stay as they are: HostRegistration gives them, anew when the list is another.
        now = [_at(device, before[device.uuid].index) for device in devices] if same else devices
        same = same and all(_parts(device) == _parts(before[device.uuid]) for device in now)
        self.devices = now
        if not self._known.done:
            self._known.set(None)
        elif not same:
            self._on_change()

    def _by_mig_setting(self, found: Mapping[str, Device]) -> list[Device]:
        """What counts of *found*: with instances, or without; and what each free GPU is cut into when work asks."""
        if self.settings.mig == "off" and any(device.parent for device in found.values()):
            self._note("MIG instances are given to nobody: gpus.mig is off", warn=True)
        profiles = {
            gpu.uuid: tuple(each.name for each in gpu.profiles)
            for gpu in self.mig_gpus()
            if gpu.uuid not in self.withdrawn
        }
        is_dynamic = self.settings.mig == "dynamic"
        return [
            replace(device, profiles=profiles.get(device.uuid, ()) if is_dynamic else ())
            for device in found.values()
            if not device.parent or self.settings.mig != "off"
        ]

    def _note(self, text: str, warn: bool = False) -> None:
        """Keep the last 20 things worth telling people."""
        if text not in self.notes:
            self.notes = [*self.notes[-19:], text]
            self._log.log(logging.WARNING if warn else logging.INFO, text)


def traces(vendor: str) -> tuple[bool, str]:
    """Whether a vendor's library is worth asking, and by what sign."""
    look = {"nvidia": traces_of_nvidia, "amd": traces_of_amd, "intel": traces_of_intel}[vendor]
    return look()


def _parts(device: Device) -> tuple[bool, tuple[str, ...]]:
    return device.cut, device.profiles


def _at(device: Device, index: int) -> Device:
    return device if device.index == index else device.at(index)
