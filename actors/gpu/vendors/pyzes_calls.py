"""Calls of pyzes, which gives codes and fills structures, as Python has them: values, and errors with names."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..readings import DeviceProcess
from .level_zero import SysmanError

HANDLES_MAX = 1024


@dataclass(slots=True)
class DeviceParts:
    """A device with the handles of its parts, which stay as long as the process lives."""

    handle: Any
    memory: list[Any] = field(default_factory=list)
    power: Any = None
    clock: Any = None
    memory_clock: Any = None
    heat: Any = None
    memory_heat: Any = None
    engine: Any = None
    last_energy: tuple[int, int] | None = None
    last_busy: tuple[int, int] | None = None


class PyzesCalls:
    """The calls over the binding *zes*. Each raises SysmanError."""

    def __init__(self, zes: Any) -> None:
        self.zes = zes
        self.names = {
            value & 0xFFFFFFFF: name.removeprefix("ZE_RESULT_ERROR_")
            for name, value in vars(zes).items()
            if name.startswith("ZE_RESULT_ERROR_") and isinstance(value, int)
        }

    def check(self, code: int, call: str = "Level Zero") -> None:
        """Raise SysmanError for a *code* that is no success."""
        if code != self.zes.ZE_RESULT_SUCCESS:
            raise SysmanError(call, code)

    def listed(self, function: Callable[..., int], kind: Any, *of: Any) -> list[Any]:
        """What one of the counting calls lists: asked how many first, then for them."""
        count = ctypes.c_uint32(0)
        self.check(function(*of, ctypes.byref(count), None), function.__name__)
        if not count.value:
            return []
        count.value = min(count.value, HANDLES_MAX)
        handles = (kind * count.value)()
        self.check(function(*of, ctypes.byref(count), handles), function.__name__)
        return [
            kind(handles[place]) if isinstance(handles[place], int) else handles[place] for place in range(count.value)
        ]

    def filled(self, function: Callable[..., int], structure: Any, handle: Any) -> Any:
        """A structure that a call has filled."""
        structure.pNext = None if hasattr(structure, "pNext") else structure
        self.check(function(handle, ctypes.byref(structure)), function.__name__)
        return structure

    def words(self, error: Exception) -> str:
        """What an error says, for people."""
        if isinstance(error, SysmanError):
            name = self.names.get(error.code)
            return f"{name.lower().replace('_', ' ')}" if name else str(error)
        return str(error)

    def bus_id(self, handle: Any) -> str | None:
        """The address on the bus, as domain:bus:device.function; ``None`` where the driver does not say."""
        zes = self.zes
        told = zes.zes_pci_properties_t(stype=zes.ZES_STRUCTURE_TYPE_PCI_PROPERTIES)
        try:
            address = self.filled(zes.zesDevicePciGetProperties, told, handle).address
        except SysmanError:
            return None
        return f"{address.domain:04x}:{address.bus:02x}:{address.device:02x}.{address.function:x}"

    def find_parts(self, known: DeviceParts) -> None:
        """Keep the handles of what is read: those of the whole device, before those of its tiles."""
        zes = self.zes

        def parts(function: Any, kind: Any) -> list[Any]:
            try:
                return self.listed(function, kind, known.handle)
            except (SysmanError, AttributeError):
                return []

        known.memory = parts(zes.zesDeviceEnumMemoryModules, zes.zes_mem_handle_t)
        powers = parts(zes.zesDeviceEnumPowerDomains, zes.zes_pwr_handle_t)
        known.power = self._whole_first(
            powers,
            zes.zesPowerGetProperties,
            lambda: zes.zes_power_properties_t(stype=zes.ZES_STRUCTURE_TYPE_POWER_PROPERTIES),
        )
        for handle in parts(zes.zesDeviceEnumFrequencyDomains, zes.zes_freq_handle_t):
            told = self._told(
                zes.zesFrequencyGetProperties,
                zes.zes_freq_properties_t(stype=zes.ZES_STRUCTURE_TYPE_FREQ_PROPERTIES),
                handle,
            )
            if told is not None and told.type == zes.ZES_FREQ_DOMAIN_GPU and known.clock is None:
                known.clock = handle
            elif told is not None and told.type == zes.ZES_FREQ_DOMAIN_MEMORY and known.memory_clock is None:
                known.memory_clock = handle
        for handle in parts(zes.zesDeviceEnumTemperatureSensors, zes.zes_temp_handle_t):
            told = self._told(
                zes.zesTemperatureGetProperties,
                zes.zes_temp_properties_t(stype=zes.ZES_STRUCTURE_TYPE_TEMP_PROPERTIES),
                handle,
            )
            if told is None:
                continue
            if told.type == zes.ZES_TEMP_SENSORS_MEMORY:
                known.memory_heat = known.memory_heat or handle
            elif told.type in (zes.ZES_TEMP_SENSORS_GPU, zes.ZES_TEMP_SENSORS_GLOBAL):
                known.heat = known.heat or handle
        engines = parts(zes.zesDeviceEnumEngineGroups, zes.zes_engine_handle_t)
        for wanted in (zes.ZES_ENGINE_GROUP_ALL, zes.ZES_ENGINE_GROUP_COMPUTE_ALL):
            for handle in engines:
                told = self._told(
                    zes.zesEngineGetProperties,
                    zes.zes_engine_properties_t(stype=zes.ZES_STRUCTURE_TYPE_ENGINE_PROPERTIES),
                    handle,
                )
                if known.engine is None and told is not None and told.type == wanted:
                    known.engine = handle

    def _told(self, function: Any, structure: Any, handle: Any) -> Any:
        try:
            return self.filled(function, structure, handle)
        except SysmanError:
            return None

    def _whole_first(self, handles: list[Any], function: Any, make: Callable[[], Any]) -> Any:
        told = [(self._told(function, make(), handle), handle) for handle in handles]
        for properties, handle in told:
            if properties is not None and not properties.onSubdevice:
                return handle
        return handles[0] if handles else None

    def has_ecc(self, known: DeviceParts) -> bool:
        """Whether its memory corrects errors now."""
        zes = self.zes
        told = zes.zes_device_ecc_properties_t(stype=zes.ZES_STRUCTURE_TYPE_DEVICE_ECC_PROPERTIES)
        return bool(
            self.filled(zes.zesDeviceGetEccState, told, known.handle).currentState == zes.ZES_DEVICE_ECC_STATE_ENABLED
        )

    def clock_max(self, handle: Any) -> float | None:
        """The highest clock of a domain, in MHz."""
        zes = self.zes
        if handle is None:
            return None
        told = zes.zes_freq_properties_t(stype=zes.ZES_STRUCTURE_TYPE_FREQ_PROPERTIES)
        found = float(self.filled(zes.zesFrequencyGetProperties, told, handle).max)
        return found if found > 0 else None

    def heat_max(self, handle: Any) -> float | None:
        """The temperature from which on a sensor's part is slowed down, in °C."""
        zes = self.zes
        if handle is None:
            return None
        told = zes.zes_temp_properties_t(stype=zes.ZES_STRUCTURE_TYPE_TEMP_PROPERTIES)
        found = float(self.filled(zes.zesTemperatureGetProperties, told, handle).maxTemperature)
        return found if found > 0 else None

    def memory_states(self, known: DeviceParts) -> list[Any] | None:
        """The states of all memory of a device."""
        zes = self.zes
        if not known.memory:
            return None
        return [
            self.filled(zes.zesMemoryGetState, zes.zes_mem_state_t(stype=zes.ZES_STRUCTURE_TYPE_MEM_STATE), memory)
            for memory in known.memory
        ]

    def temperature(self, handle: Any) -> float | None:
        """What a sensor reads, in °C."""
        if handle is None:
            return None
        value = ctypes.c_double()
        self.check(self.zes.zesTemperatureGetState(handle, ctypes.byref(value)), "zesTemperatureGetState")
        return float(value.value)

    def limit(self, known: DeviceParts) -> tuple[float | None, Any]:
        """The sustained limit in watts, and its descriptor."""
        zes = self.zes
        if known.power is None:
            return None, None
        count = ctypes.c_uint32(0)
        self.check(zes.zesPowerGetLimitsExt(known.power, ctypes.byref(count), None), "zesPowerGetLimitsExt")
        if not count.value:
            return None, None
        limits = (zes.zes_power_limit_ext_desc_t * count.value)()
        self.check(zes.zesPowerGetLimitsExt(known.power, ctypes.byref(count), limits), "zesPowerGetLimitsExt")
        for one in limits:
            if one.level == zes.ZES_POWER_LEVEL_SUSTAINED and one.limitUnit == zes.ZES_LIMIT_UNIT_POWER:
                return one.limit / 1000, one
        return None, None

    def frequency(self, handle: Any) -> Any:
        """The state of a clock domain."""
        zes = self.zes
        if handle is None:
            raise SysmanError("zesFrequencyGetState", zes.ZE_RESULT_ERROR_UNSUPPORTED_FEATURE)
        return self.filled(
            zes.zesFrequencyGetState, zes.zes_freq_state_t(stype=zes.ZES_STRUCTURE_TYPE_FREQ_STATE), handle
        )

    def clock(self, handle: Any) -> float | None:
        """The clock of a domain now, in MHz."""
        actual = float(self.frequency(handle).actual)
        return actual if actual >= 0 else None

    def processes(self, known: DeviceParts) -> tuple[DeviceProcess, ...]:
        """Who uses the device, and how much of its memory."""
        zes = self.zes
        count = ctypes.c_uint32(0)
        self.check(
            zes.zesDeviceProcessesGetState(known.handle, ctypes.byref(count), None), "zesDeviceProcessesGetState"
        )
        if not count.value:
            return ()
        count.value = count.value * 2 + 4  # some may start before the second call
        states = (zes.zes_process_state_t * count.value)()
        self.check(
            zes.zesDeviceProcessesGetState(known.handle, ctypes.byref(count), states), "zesDeviceProcessesGetState"
        )
        return tuple(DeviceProcess(one.processId, int(one.memSize) // 2**20) for one in states[: count.value])
