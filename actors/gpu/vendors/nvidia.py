"""NVIDIA devices through NVML (module ``pynvml`` of nvidia-ml-py). Runs inside a DeviceProbe child only.

``ACTORGRID_NVML_LIBRARY`` names the library's file where it is not on the linker's path; its SONAME must be
``libnvidia-ml.so.1``. A GPU with MIG on is listed as its instances.
"""

from __future__ import annotations

import ctypes
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ..device import Device
from ..mig_report import MigGpu, MigInstance
from ..probe_report import FACTS, DeviceEvent, DeviceFacts, DeviceLink, ProbeReport, SettingRefused, link
from ..readings import DeviceProcess, Readings
from .answers import Answers, DeviceLost
from .binding import BindingFailed, load
from .mig import SLICES, MigCalls, ProfilesKey
from .mig import text_of as _text
from .pci import common_ancestor, numa_node

LIBRARY_VARIABLE = "ACTORGRID_NVML_LIBRARY"
MAX_DEVICES = 1024
_PCI_VENDOR = "0x10de"
_ARCHITECTURES = {
    2: "Kepler", 3: "Maxwell", 4: "Pascal", 5: "Volta", 6: "Turing", 7: "Ampere", 8: "Ada", 9: "Hopper",
    10: "Blackwell", 13: "Rubin",
}  # fmt: skip
_ANCESTORS = {10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
SLOWDOWNS = ((0x20, "heat (software)"), (0x40, "heat (hardware)"), (0x80, "power brake"))
"""Bits of nvmlDeviceGetCurrentClocksThrottleReasons that are signs of trouble; a power cap or idleness is none."""
_EVENTS_AT_ONCE = 64
LINKS_EVERY = 12
"""Reads between two looks at all NVLinks of a GPU: one a minute at the default interval."""
_OF_WHOLE = "it is measured for the whole GPU only"
_NO_ACTIVITY = "NVML does not measure the load of an instance"
_INSTANCE_LACKS = ("power_watts", "energy_millijoules", "power_limit_watts", "fan_percent", "links_down")


def traces_of_nvidia(root: str = "/", environ: dict[str, str] | None = None) -> tuple[bool, str]:
    """Whether NVML is worth asking, and by what sign; reads a few files, loads nothing.

    The sign is ``device`` (a driver's device node or a PCI device is there), ``library`` (only the library
    is installed, or named) or empty.
    """
    base = Path(root)
    variables = os.environ if environ is None else environ
    if (base / "dev/nvidiactl").exists() or (base / "dev/dxg").exists():
        return True, "device"
    for vendor in (base / "sys/bus/pci/devices").glob("*/vendor"):
        try:
            if vendor.read_text().strip() == _PCI_VENDOR:
                return True, "device"
        except OSError:
            continue
    if variables.get(LIBRARY_VARIABLE):
        return True, "library"
    folders = variables.get("LD_LIBRARY_PATH", "").split(":")
    if any(folder and Path(folder, "libnvidia-ml.so.1").exists() for folder in folders):
        return True, "library"
    try:
        cached = (base / "etc/ld.so.cache").read_bytes()
    except OSError:
        return False, ""
    return (True, "library") if b"libnvidia-ml.so.1" in cached else (False, "")


@dataclass(slots=True)
class _Known:
    """A device that is listed: its handle, and that of the GPU it is an instance of (itself, when it is whole)."""

    handle: Any
    whole: Any
    ends: tuple[str | None, ...]
    """Where each NVLink leads: the other's bus id, ``switch``, or ``None`` for one that is down."""
    links_down: int | None = None
    reads: int = 0

    @property
    def is_instance(self) -> bool:
        return self.handle is not self.whole


class Nvidia:
    """NVML behind the Vendor interface. Handles are kept from ``probe`` to ``read``."""

    name = "nvidia"

    def __init__(self) -> None:
        self._nvml: Any = None
        self._known: dict[str, _Known] = {}
        self._events: Any = None
        self._fatal: frozenset[int] = frozenset()
        self._old_temperature = False
        self._mig: MigCalls

    # -- what there is

    def probe(self) -> ProbeReport:
        """Load NVML and list the devices."""
        library = os.environ.get(LIBRARY_VARIABLE)
        try:
            self._nvml = nvml = load(_binding, "pynvml", "nvidia")
            if library:
                ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)  # the linker then takes it for the SONAME
            nvml.nvmlInit()
        except BindingFailed as error:
            return ProbeReport(self.name, error.outcome, str(error))
        except OSError as error:
            return ProbeReport(self.name, "no_library", f"{library}: {error}")
        except nvml.NVMLError as error:
            return ProbeReport(self.name, self._outcome(error), str(error))
        self._fatal = frozenset(
            (nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_UNINITIALIZED, nvml.NVML_ERROR_RESET_REQUIRED)
        )
        self._mig = MigCalls(nvml, self._value)
        report = self.list_again()
        self._listen()
        return report

    def list_again(self) -> ProbeReport:
        """List the devices anew, which may be cut into others by now."""
        nvml = self._nvml
        known, self._known = self._known, {}
        problems: list[str] = []
        try:
            driver = _text(nvml.nvmlSystemGetDriverVersion())
            count = min(int(nvml.nvmlDeviceGetCount()), MAX_DEVICES)
        except nvml.NVMLError as error:
            self._known = known
            return ProbeReport(self.name, self._outcome(error), str(error))
        devices: list[Device] = []
        facts: list[DeviceFacts] = []
        mig: list[MigGpu] = []
        profiles_of: dict[ProfilesKey, dict[str, Any]] = {}
        for number in range(count):
            try:
                whole = nvml.nvmlDeviceGetHandleByIndex(number)
                uuid = _text(nvml.nvmlDeviceGetUUID(whole))
                cut = (self._mig.modes(whole) or (False, False))[0]
                parts = self._mig.instances(whole) if cut else []
                found = [self._device(handle, whole, uuid, len(devices) + place) for place, handle in enumerate(parts)]
                if not parts:
                    # With MIG on, and nothing cut, it is there for nobody.
                    found = [replace(self._device(whole, whole, uuid, len(devices)), cut=cut)]
                devices += found
                facts += [self._facts(device, driver, uuid if parts else None) for device in found]
                listed = [MigInstance(one.uuid, self._partition(one), one.memory_mib) for one in found if one.parent]
                model, bus_id = _text(nvml.nvmlDeviceGetName(whole)), found[0].pcie_bus_id
                if (gpu := self._mig.gpu(whole, uuid, model, bus_id, listed, profiles_of)) is not None:
                    mig.append(gpu)
            except (nvml.NVMLError, DeviceLost) as error:
                problems.append(f"NVIDIA GPU {number}: {error}")
        links = self._links(devices)
        outcome = "ok" if devices else "absent"
        version = self._value(lambda: _text(nvml.nvmlSystemGetNVMLVersion()))
        return ProbeReport(
            self.name,
            outcome,
            "",
            driver,
            tuple(devices),
            tuple(problems),
            tuple(facts),
            tuple(links),
            f"NVML {version}" if version else "NVML",
            tuple(mig),
        )

    def _outcome(self, error: Any) -> str:
        nvml = self._nvml
        by_code = {
            nvml.NVML_ERROR_LIBRARY_NOT_FOUND: "no_library",
            nvml.NVML_ERROR_FUNCTION_NOT_FOUND: "version_mismatch",
            nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "version_mismatch",
            nvml.NVML_ERROR_NO_PERMISSION: "no_permission",
        }
        return by_code.get(error.value, "no_driver")

    def _partition(self, device: Device) -> str:
        """The profile of an instance that is listed."""
        return self._mig.profile_of(self._known[device.uuid].handle, device.model)

    def _device(self, handle: Any, whole: Any, parent: str, index: int) -> Device:
        nvml = self._nvml
        is_part = handle is not whole
        uuid = _text(nvml.nvmlDeviceGetUUID(handle)) if is_part else parent
        name = self._value(lambda: _text(nvml.nvmlDeviceGetName(handle)))  # older drivers do not name instances
        bus_id = self._value(lambda: _text(nvml.nvmlDeviceGetPciInfo(whole).busId))
        capability = self._value(lambda: nvml.nvmlDeviceGetCudaComputeCapability(whole))
        node = self._value(lambda: int(nvml.nvmlDeviceGetNumaNodeId(whole)))
        self._known[uuid] = _Known(handle, whole, () if is_part else self._link_ends(whole))
        if is_part and (not name or " MIG " not in name):
            name = f"{_text(nvml.nvmlDeviceGetName(whole))} MIG {self._mig.profile_of(handle, '')}".strip()
        return Device(
            uuid=uuid,
            index=index,
            vendor=self.name,
            model=name or _text(nvml.nvmlDeviceGetName(whole)),
            memory_mib=int(nvml.nvmlDeviceGetMemoryInfo(handle).total) // 2**20,
            source="probed",
            compute_capability=None if capability is None else "{}.{}".format(*capability),
            pcie_bus_id=bus_id,
            numa_node=node if node is not None and node >= 0 else numa_node(bus_id),  # the driver rarely says
            parent=parent if is_part else "",
            share_milli=self._mig.slices(handle) * 1000 // SLICES if is_part else 1000,
        )

    def _facts(self, device: Device, driver: str, parent: str | None) -> DeviceFacts:
        nvml, known = self._nvml, self._known[device.uuid]
        whole = known.whole
        answers = Answers(self._explain)
        ask = answers.ask
        ask("architecture", lambda: _ARCHITECTURES.get(nvml.nvmlDeviceGetArchitecture(whole)))
        ask("driver_version", lambda: driver)
        ask("runtime_version", self._cuda)
        ask("firmware", lambda: _text(nvml.nvmlDeviceGetVbiosVersion(whole)))
        ask("serial", lambda: _text(nvml.nvmlDeviceGetSerial(whole)))
        ask("minor", lambda: nvml.nvmlDeviceGetMinorNumber(whole))
        ask("clock_max_mhz", lambda: float(nvml.nvmlDeviceGetMaxClockInfo(whole, nvml.NVML_CLOCK_SM)))
        ask("memory_clock_max_mhz", lambda: float(nvml.nvmlDeviceGetMaxClockInfo(whole, nvml.NVML_CLOCK_MEM)))
        for name, kind in (
            ("slowdown_celsius", nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN),
            ("shutdown_celsius", nvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN),
        ):
            ask(name, partial(nvml.nvmlDeviceGetTemperatureThreshold, whole, kind))
        ask("pcie_generation_max", lambda: nvml.nvmlDeviceGetMaxPcieLinkGeneration(whole))
        ask("pcie_lanes_max", lambda: nvml.nvmlDeviceGetMaxPcieLinkWidth(whole))
        ask("ecc", lambda: nvml.nvmlDeviceGetEccMode(whole)[0] == 1)
        # Not by nvmlDeviceGetMaxMigDeviceCount: real drivers say 0 as long as MIG is off.
        ask("can_partition", lambda: self._mig.modes(whole) is not None)
        power = ("power_default_watts", "power_min_watts", "power_max_watts")
        if known.is_instance:
            answers.lack(_OF_WHOLE, *power, "links")
        else:
            ask(power[0], lambda: nvml.nvmlDeviceGetPowerManagementDefaultLimit(whole) / 1000)
            limits = ask("limits", lambda: nvml.nvmlDeviceGetPowerManagementLimitConstraints(whole))
            if limits is not None:
                answers.values.update({power[1]: limits[0] / 1000, power[2]: limits[1] / 1000})
            answers.lack(answers.unsupported.pop("limits", ""), *(name for name in power if name not in answers.values))
            answers.values.pop("limits", None)
            answers.values["links"] = len(known.ends)
        answers.lack("the driver does not tell it", *(name for name in FACTS if name not in answers.values))
        partition = self._partition(device) or None if known.is_instance else None
        return DeviceFacts(
            uuid=device.uuid,
            parent=parent,
            partition=partition,
            unsupported={name: why for name, why in answers.unsupported.items() if name not in answers.values},
            **answers.values,
        )

    def _cuda(self) -> str:
        version = int(self._nvml.nvmlSystemGetCudaDriverVersion())
        return f"CUDA {version // 1000}.{version % 1000 // 10}"

    # -- how they are joined

    def _link_ends(self, handle: Any) -> tuple[str | None, ...]:
        """Where the NVLinks of a GPU lead."""
        nvml = self._nvml
        ends: list[str | None] = []
        for number in range(nvml.NVML_NVLINK_MAX_LINKS):
            state = self._value(partial(nvml.nvmlDeviceGetNvLinkState, handle, number))
            if state is None:
                break
            end = None
            if state == 1:
                kind = self._value(partial(nvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, number))
                if kind == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
                    end = "switch"
                else:
                    remote = self._value(partial(nvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, number))
                    end = None if remote is None else _text(remote.busId).lower()
            ends.append(end)
        return tuple(ends)

    def _links(self, devices: list[Device]) -> list[DeviceLink]:
        whole = [device for device in devices if not self._known[device.uuid].is_instance]
        remote = {device.uuid: Counter(filter(None, self._known[device.uuid].ends)) for device in whole}
        found = []
        for place, one in enumerate(whole):
            for other in whole[place + 1 :]:
                word = self._word(one, other, remote)
                if word is not None:
                    found.append(link(one.uuid, other.uuid, word))
        return found

    def _word(self, one: Device, other: Device, remote: dict[str, Counter[str]]) -> str | None:
        nvml = self._nvml
        direct = remote[one.uuid][str(other.pcie_bus_id).lower()]
        switched = min(remote[one.uuid]["switch"], remote[other.uuid]["switch"])
        if direct or switched:
            return f"NV{direct or switched}"
        level = self._value(
            lambda: nvml.nvmlDeviceGetTopologyCommonAncestor(
                self._known[one.uuid].handle, self._known[other.uuid].handle
            )
        )
        word = _ANCESTORS.get(level)
        if word is None and one.pcie_bus_id and other.pcie_bus_id:
            word = common_ancestor(one.pcie_bus_id, other.pcie_bus_id)
        return word

    # -- what they read

    def read(self) -> dict[str, Readings]:
        """Readings by UUID; a device that fails says so and leaves the others alone."""
        return {uuid: self._read_one(known) for uuid, known in self._known.items()}

    def _read_one(self, known: _Known) -> Readings:
        nvml, handle, whole = self._nvml, known.handle, known.whole
        answers = Answers(self._explain)
        ask, values = answers.ask, answers.values
        try:
            self._read_memory(handle, answers)
            if known.is_instance:
                answers.lack(_NO_ACTIVITY, "utilization_percent", "memory_busy_percent")
                answers.lack(_OF_WHOLE, *_INSTANCE_LACKS)
            else:
                rates = ask("rates", lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
                if rates is None:
                    answers.lack(answers.unsupported.pop("rates"), "utilization_percent", "memory_busy_percent")
                else:
                    del values["rates"]
                    values["utilization_percent"] = float(rates.gpu)
                    values["memory_busy_percent"] = float(rates.memory)
                ask("power_watts", lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000.0)
                ask("energy_millijoules", lambda: int(nvml.nvmlDeviceGetTotalEnergyConsumption(handle)))
                ask("power_limit_watts", lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000.0)
                ask("fan_percent", lambda: float(nvml.nvmlDeviceGetFanSpeed(handle)))
                if known.ends:
                    ask("links_down", lambda: self._links_down(known))
                else:
                    answers.lack("it has no NVLink", "links_down")
            ask("temperature_celsius", lambda: float(self._temperature(whole)))
            ask("memory_temperature_celsius", lambda: self._memory_temperature(whole))
            ask("clock_mhz", lambda: float(nvml.nvmlDeviceGetClockInfo(whole, nvml.NVML_CLOCK_SM)))
            ask("memory_clock_mhz", lambda: float(nvml.nvmlDeviceGetClockInfo(whole, nvml.NVML_CLOCK_MEM)))
            for name, kind in (
                ("ecc_corrected", nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
                ("ecc_uncorrected", nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
            ):
                ask(name, partial(nvml.nvmlDeviceGetTotalEccErrors, whole, kind, nvml.NVML_VOLATILE_ECC))
            rows = ask("rows", lambda: nvml.nvmlDeviceGetRemappedRows(whole))
            names = ("rows_remapped_corrected", "rows_remapped_uncorrected", "row_remap_pending", "row_remap_failed")
            if rows is None:
                answers.lack(answers.unsupported.pop("rows"), *names)
            else:
                del values["rows"]
                values.update(zip(names, (rows[0], rows[1], bool(rows[2]), bool(rows[3])), strict=True))
            ask("pcie_generation", lambda: nvml.nvmlDeviceGetCurrPcieLinkGeneration(whole))
            ask("pcie_lanes", lambda: nvml.nvmlDeviceGetCurrPcieLinkWidth(whole))
            ask("pcie_replays", lambda: nvml.nvmlDeviceGetPcieReplayCounter(whole))
            ask("processes", lambda: self._processes(handle))
        except DeviceLost as error:
            return Readings.none(str(error), error=str(error))
        reasons = self._value(lambda: int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(whole))) or 0
        throttled = ", ".join(word for bits, word in SLOWDOWNS if reasons & bits)
        return Readings(**values, unsupported=answers.unsupported, throttled=throttled)

    def _read_memory(self, handle: Any, answers: Answers) -> None:
        nvml = self._nvml
        # The second version tells what the driver keeps for itself; older drivers have the first alone.
        both = answers.ask("both", lambda: nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2))
        if both is not None:
            del answers.values["both"]
            answers.values["memory_used_mib"] = int(both.used) // 2**20
            answers.values["memory_reserved_mib"] = int(both.reserved) // 2**20
            return
        answers.unsupported["memory_reserved_mib"] = answers.unsupported.pop("both")
        answers.ask("memory_used_mib", lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle).used) // 2**20)

    def _temperature(self, handle: Any) -> int:
        """In °C. The call that CUDA 14 is to take away is for drivers that do not have its successor."""
        nvml = self._nvml
        if not self._old_temperature:
            try:
                return int(nvml.nvmlDeviceGetTemperatureV(handle, nvml.NVML_TEMPERATURE_GPU))
            except AttributeError:
                self._old_temperature = True
            except nvml.NVMLError as error:
                if error.value != nvml.NVML_ERROR_FUNCTION_NOT_FOUND:
                    raise
                self._old_temperature = True
        return int(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))

    def _memory_temperature(self, handle: Any) -> float | None:
        nvml = self._nvml
        (value,) = nvml.nvmlDeviceGetFieldValues(handle, [nvml.NVML_FI_DEV_MEMORY_TEMP])
        if value.nvmlReturn != nvml.NVML_SUCCESS:
            raise nvml.NVMLError(value.nvmlReturn)
        return float(value.value.uiVal)

    def _links_down(self, known: _Known) -> int | None:
        """NVLinks that do not work. There are up to 18 to ask, so they are asked now and then; an XID tells sooner."""
        if known.reads % LINKS_EVERY == 0:
            state = self._nvml.nvmlDeviceGetNvLinkState
            asked = [self._value(partial(state, known.handle, number)) for number in range(len(known.ends))]
            known.links_down = None if None in asked else sum(answer != 1 for answer in asked)
        known.reads += 1
        return known.links_down

    def _processes(self, handle: Any) -> tuple[DeviceProcess, ...]:
        found: dict[int, DeviceProcess] = {}
        for process in self._nvml.nvmlDeviceGetComputeRunningProcesses(handle):
            memory = None if process.usedGpuMemory is None else int(process.usedGpuMemory) // 2**20
            found[int(process.pid)] = DeviceProcess(int(process.pid), memory)
        return tuple(found.values())

    def _explain(self, error: Exception) -> str:
        nvml = self._nvml
        if isinstance(error, nvml.NVMLError):
            if error.value in self._fatal:
                raise DeviceLost(str(error)) from error
            return str(error)
        if isinstance(error, AttributeError):  # an older pynvml does not have it
            return f"nvidia-ml-py is too old: {error}"
        raise error

    def _value(self, ask: Callable[[], Any]) -> Any:
        """The answer, or ``None`` when there is none: nobody depends on it. A device that is lost is DeviceLost."""
        try:
            return ask()
        except (self._nvml.NVMLError, AttributeError) as error:
            self._explain(error)
            return None

    # -- what happens to them

    def _listen(self) -> None:
        nvml = self._nvml
        wholes: dict[str, Any] = {}
        for uuid, known in self._known.items():
            wholes.setdefault(
                uuid if not known.is_instance else _text(nvml.nvmlDeviceGetUUID(known.whole)), known.whole
            )
        try:
            events = nvml.nvmlEventSetCreate()
        except nvml.NVMLError:
            return
        wanted = (
            nvml.nvmlEventTypeXidCriticalError
            | nvml.nvmlEventTypeDoubleBitEccError
            | nvml.nvmlEventTypeSingleBitEccErrorStorm
        )
        for handle in wholes.values():
            kinds = self._value(partial(nvml.nvmlDeviceGetSupportedEventTypes, handle))
            if kinds:
                self._value(partial(nvml.nvmlDeviceRegisterEvents, handle, kinds & wanted, events))
                self._events = events

    def next_events(self, wait_s: float) -> list[DeviceEvent] | None:
        """XIDs and ECC errors as they happen."""
        nvml = self._nvml
        if self._events is None:
            return None
        found: list[DeviceEvent] = []
        timeout_ms = int(wait_s * 1000)
        while len(found) < _EVENTS_AT_ONCE:
            try:
                data = nvml.nvmlEventSetWait_v2(self._events, timeout_ms)
            except nvml.NVMLError as error:
                if error.value == nvml.NVML_ERROR_TIMEOUT:
                    return found
                if error.value == nvml.NVML_ERROR_GPU_IS_LOST:
                    # Then the set is of no more use: one of its devices fell off the bus.
                    self._events = None
                    return [*found, DeviceEvent("", "lost", error.value, str(error))]
                self._events = None
                return found or None
            timeout_ms = 0
            found.append(self._event(data))
        return found

    def _event(self, data: Any) -> DeviceEvent:
        nvml = self._nvml
        uuid = self._value(lambda: _text(nvml.nvmlDeviceGetUUID(data.device))) or self._uuid_at(data.device)
        if data.eventType == nvml.nvmlEventTypeXidCriticalError:
            return DeviceEvent(uuid, "xid", int(data.eventData))
        kinds = {
            nvml.nvmlEventTypeDoubleBitEccError: "ecc_uncorrected",
            nvml.nvmlEventTypeSingleBitEccError: "ecc_corrected",
            nvml.nvmlEventTypeSingleBitEccErrorStorm: "ecc_storm",
        }
        return DeviceEvent(uuid, kinds.get(data.eventType, "other"), int(data.eventType))

    def _uuid_at(self, handle: Any) -> str:
        """The UUID of a device that does not answer any more, by the handle it was listed with."""
        address = ctypes.cast(handle, ctypes.c_void_p).value
        for uuid, known in list(self._known.items()):  # the list may be made anew meanwhile
            if ctypes.cast(known.whole, ctypes.c_void_p).value == address:
                return uuid
        return ""

    # -- what is set

    def set_power_limit(self, uuid: str, watts: float) -> None:
        """Set the power limit, which needs root and lasts until the driver is unloaded."""
        known = self._known.get(uuid)
        if known is None:
            raise SettingRefused(f"NVML lists no device {uuid}")
        if known.is_instance:
            raise SettingRefused("an instance has no power limit of its own; its GPU has")
        try:
            self._nvml.nvmlDeviceSetPowerManagementLimit(known.handle, round(watts * 1000))
        except self._nvml.NVMLError as error:
            raise SettingRefused(str(error)) from error

    def set_partitions(self, uuid: str, change: str, what: str) -> str:
        """Cut the whole GPU *uuid*, or put it together: see Vendor. Needs root; nothing may run on what is changed."""
        nvml = self._nvml
        try:
            whole = nvml.nvmlDeviceGetHandleByUUID(uuid)
            if change == "mode":
                self._mig.set_mode(whole, what == "on")
                return ""
            if change == "create":
                return self._mig.create(whole, what)
            self._mig.destroy(whole, what)
            return ""
        except nvml.NVMLError as error:
            raise SettingRefused(str(error)) from error


def _binding() -> Any:
    import pynvml

    return pynvml
