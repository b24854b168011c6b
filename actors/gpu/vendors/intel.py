"""Intel devices through Level Zero's Sysman: ``pyzes``, and ``level_zero.py`` for what it does not have.

Runs inside a DeviceProbe child only. ``ACTORGRID_LEVEL_ZERO_LIBRARY`` names the loader's file where the linker does not
find it. A device is listed whole, also one of several tiles.
"""

from __future__ import annotations

import ctypes
import os
import uuid as uuids
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..device import Device
from ..probe_report import FACTS, DeviceEvent, DeviceFacts, DeviceLink, ProbeReport, SettingRefused, link
from ..readings import READINGS, Readings
from .answers import Answers, DeviceLost
from .binding import BindingFailed, load
from .level_zero import (
    CORRECTED,
    EVENT_DETACH,
    EVENT_HOT,
    EVENT_RAS_CORRECTED,
    EVENT_RAS_UNCORRECTED,
    EVENT_RESET_REQUIRED,
    SONAME,
    UNCORRECTED,
    Sysman,
    SysmanError,
    found_by_soname,
)
from .pci import links_by_bus, list_gpus, numa_node
from .pyzes_calls import DeviceParts, PyzesCalls

LIBRARY_VARIABLE = "ACTORGRID_LEVEL_ZERO_LIBRARY"
MAX_DEVICES = 1024
_NOT_TOLD = "Level Zero does not tell it"
_WEDGED = 1
_THERMAL = 1 << 3 | 1 << 8
_POWER_TROUBLE = 1 << 2 | 1 << 4
_ARCHITECTURES = ((0x0BD0, 0x0BEF, "xe-hpc"), (0x56A0, 0x56CF, "xe-hpg"), (0xE200, 0xE2FF, "xe2-hpg"))
"""By PCI device ids: Data Center GPU Max; Arc A and Flex; Battlemage."""
_EVENTS = (
    (EVENT_DETACH, "lost"),
    (EVENT_RESET_REQUIRED, "reset_required"),
    (EVENT_HOT, "thermal"),
    (EVENT_RAS_CORRECTED, "ecc_corrected"),
    (EVENT_RAS_UNCORRECTED, "ecc_uncorrected"),
)


def traces_of_intel(root: str = "/", environ: dict[str, str] | None = None) -> tuple[bool, str]:
    """Whether Level Zero is worth asking, and by what sign: ``device``, ``library`` (only named), or empty.

    A chipset's own graphics is no sign: it is what most machines have, and nobody means it by a GPU of a cluster.
    """
    variables = os.environ if environ is None else environ
    found = [gpu for gpu in list_gpus(Path(root)) if gpu.vendor == "intel" and architecture_of(gpu.device_id)]
    if found:
        return True, "device"
    return (True, "library") if variables.get(LIBRARY_VARIABLE) else (False, "")


def architecture_of(device_id: int) -> str | None:
    """The architecture of a PCI device id; ``None`` for one that is not known here."""
    return next((name for first, last, name in _ARCHITECTURES if first <= device_id <= last), None)


class Intel:
    """Level Zero behind the Vendor interface. Load and power are differences between two reads: the first has none."""

    name = "intel"

    def __init__(self) -> None:
        self._zes: Any = None
        self._pyzes: PyzesCalls
        self._sysman: Sysman | None = None
        self._driver: Any = None
        self._known: dict[str, DeviceParts] = {}
        self._tells = False

    # -- what there is

    def probe(self) -> ProbeReport:
        """Load Level Zero and list the devices."""
        library = os.environ.get(LIBRARY_VARIABLE)
        try:
            if library:
                # glibc takes a loaded object for one of the same name, whatever path is asked for.
                ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
            with found_by_soname():
                self._zes = zes = load(_binding, "pyzes", "intel")
        except BindingFailed as error:
            return ProbeReport(self.name, error.outcome, str(error), binding="pyzes")
        except OSError as error:
            return ProbeReport(self.name, "no_library", f"{library}: {error}", binding="pyzes")
        self._pyzes = PyzesCalls(zes)
        self._sysman = Sysman(zes.gpuLib)
        try:
            self._pyzes.check(zes.zesInit(0))
            drivers = self._pyzes.listed(zes.zesDriverGet, zes.zes_driver_handle_t)
        except (SysmanError, AttributeError) as error:
            return ProbeReport(self.name, self._outcome(error), self._pyzes.words(error), binding="pyzes")
        devices: list[Device] = []
        facts: list[DeviceFacts] = []
        problems: list[str] = []
        for driver in drivers:
            try:
                handles = self._pyzes.listed(zes.zesDeviceGet, zes.zes_device_handle_t, driver)[:MAX_DEVICES]
            except SysmanError as error:
                problems.append(self._pyzes.words(error))
                continue
            self._driver = driver
            for handle in handles:
                try:
                    device, fact = self._device(handle, len(devices))
                except (SysmanError, DeviceLost) as error:
                    problems.append(f"Intel GPU {len(devices)}: {self._pyzes.words(error)}")
                    continue
                if device is not None and fact is not None:
                    devices.append(device)
                    facts.append(fact)
        links = self._links(devices)
        self._listen()
        return ProbeReport(
            self.name,
            "ok" if devices else "absent",
            "",
            next((fact.driver_version for fact in facts if fact.driver_version), None),
            tuple(devices),
            tuple(problems),
            tuple(facts),
            tuple(links),
            f"pyzes over {SONAME}",
        )

    def _outcome(self, error: Exception) -> str:
        if isinstance(error, AttributeError):
            return "version_mismatch"  # the loader is older than Sysman's own start (1.5)
        name = self._pyzes.names.get(getattr(error, "code", 0), "")
        by_name = {"INSUFFICIENT_PERMISSIONS": "no_permission", "UNSUPPORTED_VERSION": "version_mismatch"}
        return by_name.get(name, "no_driver")

    def _device(self, handle: Any, index: int) -> tuple[Device | None, DeviceFacts | None]:
        zes = self._zes
        properties = zes.zes_device_properties_t(stype=zes.ZES_STRUCTURE_TYPE_DEVICE_PROPERTIES)
        self._pyzes.filled(zes.zesDeviceGetProperties, properties, handle)
        if properties.core.type != zes.ZE_DEVICE_TYPE_GPU:
            return None, None
        known = DeviceParts(handle)
        self._pyzes.find_parts(known)
        total = 0
        for memory in known.memory:
            told = zes.zes_mem_properties_t(stype=zes.ZES_STRUCTURE_TYPE_MEM_PROPERTIES)
            self._pyzes.filled(zes.zesMemoryGetProperties, told, memory)
            state = zes.zes_mem_state_t(stype=zes.ZES_STRUCTURE_TYPE_MEM_STATE)
            # Some drivers say 0 for the size of what is soldered on, and know it as the state's.
            total += int(told.physicalSize) or int(self._pyzes.filled(zes.zesMemoryGetState, state, memory).size)
        raw = bytes(properties.core.uuid.id)
        if not any(raw):
            raise SysmanError("a device without UUID", 0)
        name = str(uuids.UUID(bytes=raw[::-1]))
        bus = self._pyzes.bus_id(handle)
        device = Device(
            uuid=f"GPU-{name}",
            index=index,
            vendor=self.name,
            model=properties.core.name.decode(errors="replace") or f"Intel GPU {properties.core.deviceId:04x}",
            memory_mib=total // 2**20,
            source="probed",
            compute_capability=architecture_of(properties.core.deviceId),
            pcie_bus_id=bus,
            numa_node=numa_node(bus),
        )
        self._known[device.uuid] = known
        return device, self._facts(device, known, properties)

    def _facts(self, device: Device, known: DeviceParts, properties: Any) -> DeviceFacts:
        zes = self._zes
        answers = Answers(self._explain)
        ask, values = answers.ask, answers.values
        ask(
            "architecture",
            lambda: {"xe-hpc": "Xe-HPC", "xe-hpg": "Xe-HPG", "xe2-hpg": "Xe2-HPG"}.get(str(device.compute_capability)),
        )
        ask("driver_version", lambda: properties.driverVersion.decode(errors="replace") or None)
        ask("serial", lambda: properties.serialNumber.decode(errors="replace") or None)

        def limits() -> Any:
            if known.power is None:
                raise SysmanError("zesPowerGetProperties", zes.ZE_RESULT_ERROR_UNSUPPORTED_FEATURE)
            told = zes.zes_power_properties_t(stype=zes.ZES_STRUCTURE_TYPE_POWER_PROPERTIES)
            return self._pyzes.filled(zes.zesPowerGetProperties, told, known.power)

        power = ask("power", limits)
        names = {"power_default_watts": "defaultLimit", "power_min_watts": "minLimit", "power_max_watts": "maxLimit"}
        if power is None:
            answers.lack(answers.unsupported.pop("power"), *names)
        else:
            del values["power"]
            for name, key in names.items():
                # It says -1 for what it does not know.
                ask(name, lambda key=key: milliwatts / 1000 if (milliwatts := getattr(power, key)) > 0 else None)  # type: ignore[misc]
        ask("clock_max_mhz", lambda: self._pyzes.clock_max(known.clock))
        ask("memory_clock_max_mhz", lambda: self._pyzes.clock_max(known.memory_clock))
        ask("slowdown_celsius", lambda: self._pyzes.heat_max(known.heat))

        def pci() -> Any:
            told = zes.zes_pci_properties_t(stype=zes.ZES_STRUCTURE_TYPE_PCI_PROPERTIES)
            return self._pyzes.filled(zes.zesDevicePciGetProperties, told, known.handle).maxSpeed

        speed = ask("speed", pci)
        if speed is None:
            answers.lack(answers.unsupported.pop("speed"), "pcie_generation_max", "pcie_lanes_max")
        else:
            del values["speed"]
            ask("pcie_generation_max", lambda: _positive(speed.gen))
            ask("pcie_lanes_max", lambda: _positive(speed.width))
        ask("ecc", lambda: self._pyzes.has_ecc(known))
        ask("links", lambda: len(self._calls.ports(known.handle)))
        values["can_partition"] = False
        answers.lack(_NOT_TOLD, *(name for name in FACTS if name not in values))
        return DeviceFacts(uuid=device.uuid, unsupported=answers.unsupported, **values)

    @property
    def _calls(self) -> Sysman:
        assert self._sysman is not None, "probe comes before all else"
        return self._sysman

    def _links(self, devices: list[Device]) -> list[DeviceLink]:
        by_fabric: dict[int, str] = {}
        ends: dict[str, list[int]] = {}
        for device in devices:
            try:
                ports = self._calls.ports(self._known[device.uuid].handle)
            except (SysmanError, AttributeError):
                continue
            for own, remote, _ in ports:
                by_fabric[own] = device.uuid
                if remote is not None:
                    ends.setdefault(device.uuid, []).append(remote)
        joined: dict[tuple[str, str], int] = {}
        for uuid, remotes in ends.items():
            for remote in remotes:
                other = by_fabric.get(remote)
                if other is not None and other > uuid:
                    joined[uuid, other] = joined.get((uuid, other), 0) + 1
        found = [link(one, other, f"XL{number}") for (one, other), number in joined.items()]
        found += [way for way in links_by_bus(devices) if tuple(sorted((way.one, way.other))) not in joined]
        return found

    # -- what they read

    def read(self) -> dict[str, Readings]:
        """Readings by UUID; a device that fails says so and leaves the others alone."""
        return {uuid: self._read_one(known) for uuid, known in self._known.items()}

    def _read_one(self, known: DeviceParts) -> Readings:
        zes = self._zes
        answers = Answers(self._explain)
        ask, values = answers.ask, answers.values
        trouble = ""
        try:
            states = ask("states", lambda: self._pyzes.memory_states(known))
            if states is None:
                answers.lack(answers.unsupported.pop("states"), "memory_used_mib")
            else:
                del values["states"]
                values["memory_used_mib"] = sum(int(one.size) - int(one.free) for one in states) // 2**20
                if any(one.health in (zes.ZES_MEM_HEALTH_CRITICAL, zes.ZES_MEM_HEALTH_REPLACE) for one in states):
                    trouble = "its memory is failing, says the driver"
            ask("temperature_celsius", lambda: self._pyzes.temperature(known.heat))
            ask("memory_temperature_celsius", lambda: self._pyzes.temperature(known.memory_heat))
            ask("power_watts", lambda: self._power(known, values))
            ask("power_limit_watts", lambda: self._pyzes.limit(known)[0])
            ask("utilization_percent", lambda: self._load(known))
            ask("clock_mhz", lambda: self._pyzes.clock(known.clock))
            ask("memory_clock_mhz", lambda: self._pyzes.clock(known.memory_clock))
            self._read_errors(known, answers)
            self._read_bus(known, answers)
            ask("links_down", lambda: self._links_down(known))
            ask("processes", lambda: self._pyzes.processes(known))
            reasons = self._value(lambda: int(self._pyzes.frequency(known.clock).throttleReasons)) or 0
            wedged = self._value(lambda: self._calls.reset_reasons(known.handle)) or 0
        except DeviceLost as error:
            return Readings.none(str(error), error=str(error))
        if wedged & _WEDGED:
            trouble = "it is wedged and has to be reset, says the driver"
        words = [word for bits, word in ((_THERMAL, "heat"), (_POWER_TROUBLE, "power supply")) if reasons & bits]
        answers.lack(_NOT_TOLD, *(name for name in READINGS if name not in values))
        return Readings(**values, unsupported=answers.unsupported, throttled=", ".join(words), error=trouble)

    def _power(self, known: DeviceParts, values: dict[str, Any]) -> float | None:
        """Watts since the last read, from the counter of energy, which is kept as a reading too."""
        zes = self._zes
        if known.power is None:
            return None
        counter = zes.zes_power_energy_counter_t()
        self._pyzes.check(zes.zesPowerGetEnergyCounter(known.power, ctypes.byref(counter)), "zesPowerGetEnergyCounter")
        now = int(counter.energy), int(counter.timestamp)
        values["energy_millijoules"] = now[0] // 1000
        before, known.last_energy = known.last_energy, now
        if before is None or now[1] <= before[1] or now[0] < before[0]:
            return None
        return (now[0] - before[0]) / (now[1] - before[1])  # microjoules per microsecond

    def _load(self, known: DeviceParts) -> float | None:
        zes = self._zes
        if known.engine is None:
            return None
        stats = zes.zes_engine_stats_t()
        self._pyzes.check(zes.zesEngineGetActivity(known.engine, ctypes.byref(stats)), "zesEngineGetActivity")
        now = int(stats.activeTime), int(stats.timestamp)
        before, known.last_busy = known.last_busy, now
        if before is None or now[1] <= before[1] or now[0] < before[0]:
            return None
        return min(100.0, 100.0 * (now[0] - before[0]) / (now[1] - before[1]))

    def _read_errors(self, known: DeviceParts, answers: Answers) -> None:
        errors = answers.ask("errors", lambda: self._calls.ras_errors(known.handle))
        if errors is None:
            answers.lack(answers.unsupported.pop("errors"), "ecc_corrected", "ecc_uncorrected")
            return
        del answers.values["errors"]
        answers.ask("ecc_corrected", lambda: errors.get(CORRECTED))
        answers.ask("ecc_uncorrected", lambda: errors.get(UNCORRECTED))

    def _read_bus(self, known: DeviceParts, answers: Answers) -> None:
        zes = self._zes
        told = zes.zes_pci_state_t(stype=zes.ZES_STRUCTURE_TYPE_PCI_STATE)
        speed = answers.ask("speed", lambda: self._pyzes.filled(zes.zesDevicePciGetState, told, known.handle).speed)
        if speed is None:
            answers.lack(answers.unsupported.pop("speed"), "pcie_generation", "pcie_lanes")
        else:
            del answers.values["speed"]
            answers.ask("pcie_generation", lambda: _positive(speed.gen))
            answers.ask("pcie_lanes", lambda: _positive(speed.width))

        def replays() -> int:
            stats = zes.zes_pci_stats_t()
            self._pyzes.check(zes.zesDevicePciGetStats(known.handle, ctypes.byref(stats)), "zesDevicePciGetStats")
            return int(stats.replayCounter)

        answers.ask("pcie_replays", replays)

    def _links_down(self, known: DeviceParts) -> int:
        return sum(not healthy for _, _, healthy in self._calls.ports(known.handle))

    def _explain(self, error: Exception) -> str:
        if isinstance(error, SysmanError):
            words = self._pyzes.words(error)
            if self._pyzes.names.get(error.code) in ("DEVICE_LOST", "UNINITIALIZED"):
                raise DeviceLost(words) from error
            return words
        if isinstance(error, AttributeError):
            return f"the Level Zero loader is too old: {error}"
        raise error

    def _value(self, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except (SysmanError, AttributeError) as error:
            self._explain(error)
            return None

    # -- what happens to them

    def _listen(self) -> None:
        for known in self._known.values():
            try:
                self._calls.register(known.handle)
                self._tells = True
            except (SysmanError, AttributeError):
                continue

    def next_events(self, wait_s: float) -> list[DeviceEvent] | None:
        """Detaching, resets, heat and errors of memory."""
        if not self._tells:
            return None
        names = list(self._known)
        try:
            told = self._calls.listen(self._driver, [self._known[name].handle for name in names], wait_s)
        except (SysmanError, AttributeError):
            self._tells = False
            return None
        return [
            DeviceEvent(name, kind, bits)
            for name, bits in zip(names, told, strict=True)
            for bit, kind in _EVENTS
            if bits & bit
        ]

    # -- what is set

    def set_power_limit(self, uuid: str, watts: float) -> None:
        """Set the sustained limit, which needs root and lasts until the driver is unloaded."""
        zes, known = self._zes, self._known.get(uuid)
        if known is None:
            raise SettingRefused(f"Level Zero lists no device {uuid}")
        try:
            _, limit = self._pyzes.limit(known)
            if limit is None:
                raise SettingRefused("this device has no power limit that can be set")
            limit.limit = round(watts * 1000)
            count = ctypes.c_uint32(1)
            self._pyzes.check(
                zes.zesPowerSetLimitsExt(known.power, ctypes.byref(count), ctypes.byref(limit)), "zesPowerSetLimitsExt"
            )
        except SysmanError as error:
            raise SettingRefused(self._pyzes.words(error)) from error


def _positive(value: int) -> int | None:
    """The number, or ``None`` for the -1 that stands for unknown."""
    return int(value) if value > 0 else None


def _binding() -> Any:
    import pyzes

    return pyzes
