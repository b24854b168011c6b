"""AMD devices through AMD SMI's own binding, ``amdsmi``."""

from __future__ import annotations

import ctypes
from typing import Any

from ..device import Device
from ..probe_report import FACTS, DeviceEvent, DeviceFacts, DeviceLink, ProbeReport, SettingRefused, link
from ..readings import READINGS, DeviceProcess, Readings
from .amd_identity import architecture_of, distinct, runtime_name
from .answers import Answers, DeviceLost
from .binding import BindingFailed, load, quietly
from .pci import common_ancestor, numa_node

MAX_DEVICES = 1024
_NOT_TOLD = "the library does not tell it"
_MTS = {2500: 1, 5000: 2, 8000: 3, 16000: 4, 32000: 5, 64000: 6}
"""PCIe generations by millions of transfers per second."""
SLOW_EVERY = 12
"""Reads between two looks at what hardly changes: one a minute at the default interval, not all devices at once."""
_EVENT_KINDS = {
    "VMFAULT": "page_fault",
    "THERMAL_THROTTLE": "thermal",
    "GPU_PRE_RESET": "reset",
    "GPU_POST_RESET": "reset_done",
}


class AmdSmi:
    """AMD SMI behind the Vendor interface."""

    name = "amd"

    def __init__(self) -> None:
        self._smi: Any = None
        self._handles: dict[str, Any] = {}
        self._reads = 0
        self._slow: dict[str, Answers] = {}
        self._uuid_by_address: dict[Any, str] = {}
        self._readers: list[Any] = []
        self._version = "amdsmi"

    # -- what there is

    def probe(self) -> ProbeReport:
        """Load AMD SMI and list the devices."""
        try:
            self._smi = smi = load(_binding, "amdsmi", "amd")
            quietly(smi.amdsmi_init)
        except BindingFailed as error:
            return ProbeReport(self.name, error.outcome, str(error), binding=self._version)
        except smi.AmdSmiException as error:
            return ProbeReport(self.name, self._outcome(error), _words(error), binding=self._version)
        self._version = f"amdsmi {getattr(smi, '__version__', '')}".strip()
        try:
            handles = quietly(smi.amdsmi_get_processor_handles)[:MAX_DEVICES]
        except smi.AmdSmiException as error:
            return ProbeReport(self.name, self._outcome(error), _words(error), binding=self._version)
        devices, facts, problems = self._devices(handles)
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
            self._version,
        )

    def _outcome(self, error: Any) -> str:
        wrapper = self._smi.amdsmi_interface.amdsmi_wrapper
        by_code = {
            wrapper.AMDSMI_STATUS_NO_PERM: "no_permission",
            wrapper.AMDSMI_STATUS_FAIL_LOAD_MODULE: "no_library",
            wrapper.AMDSMI_STATUS_FAIL_LOAD_SYMBOL: "version_mismatch",
        }
        return by_code.get(getattr(error, "err_code", None), "no_driver")

    def _devices(self, handles: list[Any]) -> tuple[list[Device], list[DeviceFacts], list[str]]:
        smi = self._smi
        told: list[tuple[Any, dict[str, Any], str, str | None]] = []
        problems = []
        for number, handle in enumerate(handles):
            try:
                asic = smi.amdsmi_get_gpu_asic_info(handle)
                bus = smi.amdsmi_get_gpu_device_bdf(handle)
            except (smi.AmdSmiException, ValueError) as error:
                problems.append(f"AMD GPU {number}: {_words(error)}")
                continue
            told.append((handle, asic, bus, self._value(lambda handle=handle: smi.amdsmi_get_gpu_device_uuid(handle))))
        names = distinct((runtime_name(_known(asic.get("asic_serial"))), bus, uuid) for _, asic, bus, uuid in told)
        devices: list[Device] = []
        facts: list[DeviceFacts] = []
        for (handle, asic, bus, _), uuid in zip(told, names, strict=True):
            try:
                total = int(smi.amdsmi_get_gpu_memory_total(handle, smi.AmdSmiMemoryType.VRAM)) // 2**20
            except smi.AmdSmiException as error:
                problems.append(f"AMD GPU {bus}: {_words(error)}")
                continue
            target = _known(asic.get("target_graphics_version"))
            node = self._value(lambda handle=handle: int(smi.amdsmi_topo_get_numa_node_number(handle)))
            device = Device(
                uuid=uuid,
                index=len(devices),
                vendor=self.name,
                model=_known(asic.get("market_name")) or "AMD GPU",
                memory_mib=total,
                source="probed",
                compute_capability=target,
                pcie_bus_id=bus,
                numa_node=node if node is not None and 0 <= node < 2**16 else numa_node(bus),
            )
            self._handles[uuid] = handle
            self._uuid_by_address[_address(handle)] = uuid
            devices.append(device)
            facts.append(self._facts(device, handle))
        return devices, facts, problems

    def _facts(self, device: Device, handle: Any) -> DeviceFacts:
        smi = self._smi
        answers = Answers(self._explain)
        ask, values = answers.ask, answers.values
        try:
            ask("architecture", lambda: architecture_of(device.compute_capability))
            ask("driver_version", lambda: _known(smi.amdsmi_get_gpu_driver_info(handle)["driver_version"]))
            ask("firmware", lambda: _known(smi.amdsmi_get_gpu_vbios_info(handle)["version"]))
            ask("minor", lambda: _number(smi.amdsmi_get_gpu_enumeration_info(handle)["drm_render"]))
            caps = ask("caps", lambda: smi.amdsmi_get_power_cap_info(handle))
            names = {
                "power_default_watts": "default_power_cap",
                "power_min_watts": "min_power_cap",
                "power_max_watts": "max_power_cap",
            }
            if caps is None:
                answers.lack(answers.unsupported.pop("caps"), *names)
            else:
                del values["caps"]
                values.update({name: caps[key] / 1e6 for name, key in names.items()})
            ask("clock_max_mhz", lambda: _real(smi.amdsmi_get_clock_info(handle, smi.AmdSmiClkType.GFX)["max_clk"]))
            ask(
                "memory_clock_max_mhz",
                lambda: _real(smi.amdsmi_get_clock_info(handle, smi.AmdSmiClkType.MEM)["max_clk"]),
            )
            critical = (smi.AmdSmiTemperatureType.HOTSPOT, smi.AmdSmiTemperatureMetric.CRITICAL)
            ask("slowdown_celsius", lambda: float(smi.amdsmi_get_temp_metric(handle, *critical)))
            pcie = ask("pcie", lambda: smi.amdsmi_get_pcie_info(handle)["pcie_static"])
            if pcie is None:
                answers.lack(answers.unsupported.pop("pcie"), "pcie_generation_max", "pcie_lanes_max")
            else:
                del values["pcie"]
                ask("pcie_generation_max", lambda: _MTS.get(_number(pcie["max_pcie_speed"]) or 0))
                ask("pcie_lanes_max", lambda: _number(pcie["max_pcie_width"]))
            parts = self._partition(handle)
            values["can_partition"] = parts is not None
            serial = device.uuid.removeprefix("GPU-") if device.uuid.startswith("GPU-") else None
            ask("serial", lambda: serial)
        except DeviceLost as error:
            answers.lack(str(error), *FACTS)
            parts = None
        answers.lack(_NOT_TOLD, *(name for name in FACTS if name not in values))
        partition = None if parts is None or parts.startswith("SPX") else parts
        return DeviceFacts(uuid=device.uuid, partition=partition, unsupported=answers.unsupported, **values)

    def _partition(self, handle: Any) -> str | None:
        """How the device is cut, as compute/memory mode: SPX/NPS1 is whole. ``None``: this model cannot be cut."""
        compute = _known(self._value(lambda: self._smi.amdsmi_get_gpu_compute_partition(handle)))
        if compute is None:
            return None
        memory = _known(self._value(lambda: self._smi.amdsmi_get_gpu_memory_partition(handle)))
        return f"{compute}/{memory}" if memory else compute

    def _links(self, devices: list[Device]) -> list[DeviceLink]:
        smi = self._smi
        types = smi.AmdSmiLinkType
        found = []
        for place, one in enumerate(devices):
            for other in devices[place + 1 :]:
                pair = self._handles[one.uuid], self._handles[other.uuid]
                told = self._value(lambda pair=pair: smi.amdsmi_topo_get_link_type(*pair))
                if told is not None and told["type"] == types.AMDSMI_LINK_TYPE_XGMI:
                    found.append(link(one.uuid, other.uuid, "XGMI"))
                    continue
                word = common_ancestor(str(one.pcie_bus_id), str(other.pcie_bus_id))
                if word is None and None not in (one.numa_node, other.numa_node):
                    word = "NODE" if one.numa_node == other.numa_node else "SYS"
                if word is None and told is not None:
                    word = "SYS"
                if word is not None:
                    found.append(link(one.uuid, other.uuid, word))
        return found

    # -- what they read

    def read(self) -> dict[str, Readings]:
        """Readings by UUID; a device that fails says so and leaves the others alone."""
        self._reads += 1
        return {uuid: self._read_one(uuid, handle, place) for place, (uuid, handle) in enumerate(self._handles.items())}

    def _read_one(self, uuid: str, handle: Any, place: int) -> Readings:
        smi = self._smi
        answers = Answers(self._explain)
        ask, values = answers.ask, answers.values
        heat, clocks = smi.AmdSmiTemperatureType, smi.AmdSmiClkType
        now = smi.AmdSmiTemperatureMetric.CURRENT

        try:
            ask(
                "memory_used_mib", lambda: int(smi.amdsmi_get_gpu_memory_usage(handle, smi.AmdSmiMemoryType.VRAM)) >> 20
            )
            answers.ask_together(
                lambda: smi.amdsmi_get_gpu_activity(handle),
                utilization_percent=lambda told: _real(told["gfx_activity"]),
                memory_busy_percent=lambda told: _real(told["umc_activity"]),
            )
            # The hottest spot is what it throttles by; where there is no sensor at it, the edge.
            if ask("temperature_celsius", lambda: float(smi.amdsmi_get_temp_metric(handle, heat.HOTSPOT, now))) is None:
                reason = answers.unsupported.pop("temperature_celsius")
                if (
                    ask("temperature_celsius", lambda: float(smi.amdsmi_get_temp_metric(handle, heat.EDGE, now)))
                    is None
                ):
                    answers.unsupported["temperature_celsius"] = reason
            ask("memory_temperature_celsius", lambda: float(smi.amdsmi_get_temp_metric(handle, heat.VRAM, now)))
            ask("power_watts", lambda: _power(smi.amdsmi_get_power_info(handle)))
            ask("energy_millijoules", lambda: _energy(smi.amdsmi_get_energy_count(handle)))
            ask("clock_mhz", lambda: _real(smi.amdsmi_get_clock_info(handle, clocks.GFX)["clk"]))
            ask("memory_clock_mhz", lambda: _real(smi.amdsmi_get_clock_info(handle, clocks.MEM)["clk"]))
            answers.ask_together(
                lambda: smi.amdsmi_get_gpu_total_ecc_count(handle),
                ecc_corrected=lambda told: _number(told["correctable_count"]),
                ecc_uncorrected=lambda told: _number(told["uncorrectable_count"]),
            )
            if uuid not in self._slow or (self._reads + place) % SLOW_EVERY == 0:
                self._slow[uuid] = self._read_slow(handle)
            ask("processes", lambda: self._processes(handle))
            throttled = self._throttled(handle)
        except DeviceLost as error:
            return Readings.none(str(error), error=str(error))
        slow = self._slow[uuid]
        values.update(slow.values)
        answers.unsupported.update(slow.unsupported)
        answers.lack(_NOT_TOLD, *(name for name in READINGS if name not in values))
        return Readings(**values, unsupported=answers.unsupported, throttled=throttled)

    def _read_slow(self, handle: Any) -> Answers:
        """What hardly changes, or is costly to ask."""
        smi = self._smi
        answers = Answers(self._explain)
        ask = answers.ask
        ask("rows_remapped_uncorrected", lambda: len(smi.amdsmi_get_gpu_bad_page_info(handle)))
        answers.ask_together(
            lambda: smi.amdsmi_get_pcie_info(handle)["pcie_metric"],
            pcie_generation=lambda told: _MTS.get(_number(told["pcie_speed"]) or 0),
            pcie_lanes=lambda told: _number(told["pcie_width"]),
            pcie_replays=lambda told: _number(told["pcie_replay_count"]),
        )
        ask("power_limit_watts", lambda: smi.amdsmi_get_power_cap_info(handle)["power_cap"] / 1e6)
        return answers

    def _throttled(self, handle: Any) -> str:
        status = self._value(lambda: _violations(self._smi, handle))
        return ", ".join(status or ())

    def _processes(self, handle: Any) -> tuple[DeviceProcess, ...]:
        found = {}
        for process in self._smi.amdsmi_get_gpu_process_list(handle):
            memory = _number(process["memory_usage"]["vram_mem"])
            pid = _number(process["pid"])
            if pid:
                found[pid] = DeviceProcess(pid, None if memory is None else memory // 2**20)
        return tuple(found.values())

    def _explain(self, error: Exception) -> str:
        wrapper = self._smi.amdsmi_interface.amdsmi_wrapper
        if isinstance(error, self._smi.AmdSmiException):
            code = getattr(error, "err_code", None)
            if code in (
                wrapper.AMDSMI_STATUS_NOT_FOUND,
                wrapper.AMDSMI_STATUS_NOT_INIT,
                wrapper.AMDSMI_STATUS_DRIVER_NOT_LOADED,
            ):
                raise DeviceLost(_words(error)) from error
            return _words(error)
        if isinstance(error, AttributeError | KeyError | ValueError | TypeError):
            return f"amdsmi gave something else than it says: {error}"
        raise error

    def _value(self, ask: Any) -> Any:
        try:
            return ask()
        except Exception as error:  # noqa: BLE001 - explain raises again what is not the library's
            self._explain(error)
            return None

    # -- what happens to them

    def _listen(self) -> None:
        smi = self._smi
        kinds = [getattr(smi.AmdSmiEvtNotificationType, name) for name in _EVENT_KINDS]
        for handle in self._handles.values():
            reader = self._value(lambda handle=handle: smi.AmdSmiEventReader(handle, kinds))
            if reader is not None:
                self._readers.append(reader)

    def next_events(self, wait_s: float) -> list[DeviceEvent] | None:
        """Resets, heat and page faults, where the kernel lets us hear of them."""
        if not self._readers:
            return None
        smi = self._smi
        try:
            told = self._readers[0].read(int(wait_s * 1000))
        except smi.AmdSmiException as error:
            wrapper = smi.amdsmi_interface.amdsmi_wrapper
            if getattr(error, "err_code", None) in (wrapper.AMDSMI_STATUS_NO_DATA, wrapper.AMDSMI_STATUS_TIMEOUT):
                return []
            self._readers = []
            return None
        return [
            DeviceEvent(
                self._uuid_by_address.get(_address(one["processor_handle"]), ""),
                _EVENT_KINDS.get(one["event"], "other"),
                0,
                str(one["message"]),
            )
            for one in told
        ]

    # -- what is set

    def set_partitions(self, uuid: str, change: str, what: str) -> str:
        """Have the GPU that *uuid* is, or is a part of, be cut as *what* says: *change* is ``compute`` (SPX, CPX) or
        ``memory`` (NPS1, NPS4). Raises SettingRefused; the driver does it only while nothing runs on any part of it."""
        smi, handle = self._smi, self._handles.get(uuid)
        if handle is None:
            raise SettingRefused(f"AMD SMI lists no device {uuid}")
        kinds = {
            "compute": (smi.AmdSmiComputePartitionType, smi.amdsmi_set_gpu_compute_partition),
            "memory": (smi.AmdSmiMemoryPartitionType, smi.amdsmi_set_gpu_memory_partition),
        }
        if change not in kinds or what == "INVALID" or what not in kinds[change][0].__members__:
            raise SettingRefused(f"AMD SMI knows no {change} partition {what}")
        modes, setter = kinds[change]
        try:
            quietly(lambda: setter(handle, modes[what]))
        except smi.AmdSmiException as error:
            raise SettingRefused(f"{what}: {_words(error)}") from error
        return ""

    def set_power_limit(self, uuid: str, watts: float) -> None:
        """Set the power cap, which needs root and lasts until the driver is unloaded."""
        handle = self._handles.get(uuid)
        if handle is None:
            raise SettingRefused(f"AMD SMI lists no device {uuid}")
        try:
            self._smi.amdsmi_set_power_cap(handle, 0, round(watts * 1e6))
        except self._smi.AmdSmiException as error:
            raise SettingRefused(_words(error)) from error
        self._slow.pop(uuid, None)  # the limit is among it


def _address(handle: Any) -> Any:
    return ctypes.cast(handle, ctypes.c_void_p).value


def _words(error: Exception) -> str:
    """What an error says, on one line: amdsmi writes its code on one and its name on the next."""
    said = getattr(error, "err_info", None) or getattr(error, "err_msg", None) or str(error)
    return " ".join(str(said).split())


def _known(value: Any) -> str | None:
    return None if value in (None, "", "N/A") else str(value)


def _number(value: Any) -> int | None:
    """A whole number; amdsmi says N/A for what it does not know."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _real(value: Any) -> float | None:
    return None if isinstance(value, str | bool) or value is None else float(value)


def _power(told: dict[str, Any]) -> float | None:
    """Watts now, or on average where a model has that alone; 0 stands for neither."""
    for name in ("current_socket_power", "average_socket_power", "socket_power"):
        value = _real(told.get(name))
        if value:
            return value
    return None


def _energy(told: dict[str, Any]) -> int:
    """Millijoules of counts of so many microjoules each."""
    return round(float(told["energy_accumulator"]) * float(told["counter_resolution"]) / 1000)


def _violations(smi: Any, handle: Any) -> list[str]:
    status = smi.amdsmi_interface.amdsmi_wrapper.amdsmi_violation_status_t()
    code = smi.amdsmi_interface.amdsmi_wrapper.amdsmi_get_violation_status(handle, ctypes.byref(status))
    if code:
        return []
    words = {
        "active_socket_thrm": "heat (socket)",
        "active_vr_thrm": "heat (regulator)",
        "active_hbm_thrm": "heat (memory)",
    }
    return [word for name, word in words.items() if getattr(status, name, 0) == 1]


def _binding() -> Any:
    import amdsmi

    return amdsmi
