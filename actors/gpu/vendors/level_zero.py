"""A thin layer over the Level Zero loader for the part of its Sysman API that pyzes does not have.

Errors of memory (RAS), ports of the fabric (Xe links), the device's state, and events. Layouts and numbers are those of
``zes_api.h``. The loader is found by its SONAME: pyzes looks for it at one path of Debian's alone.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SONAME = "libze_loader.so.1"
PYZES_PATH = "/usr/lib/x86_64-linux-gnu/libze_loader.so.1"
SUCCESS = 0
_PORTS_MAX = 64
_SETS_MAX = 16
RAS_CATEGORIES = 7
CORRECTED, UNCORRECTED = 0, 1
EVENT_DETACH, EVENT_RESET_REQUIRED = 1 << 0, 1 << 14
EVENT_HOT, EVENT_RAS_CORRECTED, EVENT_RAS_UNCORRECTED = 1 << 6, 1 << 12, 1 << 13
PORT_WORKS = (1, 2)
"""Healthy and degraded: the others have failed, are off, or nobody is at their end."""
_TYPES = {"ras_properties": 0xF, "ras_state": 0x22, "port_properties": 0x6, "port_state": 0x19, "device_state": 0x15}
"""zes_structure_type_t of what is passed."""


class RasProperties(ctypes.Structure):
    """zes_ras_properties_t."""

    _fields_ = [
        ("stype", ctypes.c_int32),
        ("pNext", ctypes.c_void_p),
        ("type", ctypes.c_int32),
        ("onSubdevice", ctypes.c_uint8),
        ("subdeviceId", ctypes.c_uint32),
    ]


class RasState(ctypes.Structure):
    """zes_ras_state_t."""

    _fields_ = [
        ("stype", ctypes.c_int32),
        ("pNext", ctypes.c_void_p),
        ("category", ctypes.c_uint64 * RAS_CATEGORIES),
    ]


class PortId(ctypes.Structure):
    """zes_fabric_port_id_t."""

    _fields_ = [("fabricId", ctypes.c_uint32), ("attachId", ctypes.c_uint32), ("portNumber", ctypes.c_uint8)]


class PortSpeed(ctypes.Structure):
    """zes_fabric_port_speed_t."""

    _fields_ = [("bitRate", ctypes.c_int64), ("width", ctypes.c_int32)]


class PortProperties(ctypes.Structure):
    """zes_fabric_port_properties_t."""

    _fields_ = [
        ("stype", ctypes.c_int32),
        ("pNext", ctypes.c_void_p),
        ("model", ctypes.c_char * 256),
        ("onSubdevice", ctypes.c_uint8),
        ("subdeviceId", ctypes.c_uint32),
        ("portId", PortId),
        ("maxRxSpeed", PortSpeed),
        ("maxTxSpeed", PortSpeed),
    ]


class PortState(ctypes.Structure):
    """zes_fabric_port_state_t."""

    _fields_ = [
        ("stype", ctypes.c_int32),
        ("pNext", ctypes.c_void_p),
        ("status", ctypes.c_int32),
        ("qualityIssues", ctypes.c_uint32),
        ("failureReasons", ctypes.c_uint32),
        ("remotePortId", PortId),
        ("rxSpeed", PortSpeed),
        ("txSpeed", PortSpeed),
    ]


class DeviceState(ctypes.Structure):
    """zes_device_state_t."""

    _fields_ = [
        ("stype", ctypes.c_int32),
        ("pNext", ctypes.c_void_p),
        ("reset", ctypes.c_uint32),
        ("repaired", ctypes.c_int32),
    ]


class SysmanError(Exception):
    """A call of Level Zero failed; ``code`` is its ze_result_t."""

    def __init__(self, call: str, code: int) -> None:
        super().__init__(f"{call}: {code & 0xFFFFFFFF:#x}")
        self.code = code & 0xFFFFFFFF


@contextmanager
def found_by_soname() -> Iterator[None]:
    """While inside, who asks ctypes for pyzes' fixed path gets the loader by its SONAME, where that path has none."""
    plain = ctypes.CDLL

    def load(name: Any, *arguments: Any, **keywords: Any) -> Any:
        if name == PYZES_PATH:
            try:
                return plain(name, *arguments, **keywords)
            except OSError:
                return plain(SONAME, *arguments, **keywords)
        return plain(name, *arguments, **keywords)

    ctypes.CDLL = load  # type: ignore[assignment,misc]
    try:
        yield
    finally:
        ctypes.CDLL = plain  # type: ignore[misc]


class Sysman:
    """The calls, over the library *loader*. Each raises SysmanError; one that the library lacks, AttributeError."""

    def __init__(self, loader: Any) -> None:
        self._library = loader

    def call(self, name: str, *arguments: Any) -> None:
        """One call that gives a ze_result_t."""
        function = getattr(self._library, name)
        function.restype = ctypes.c_int32
        code = function(*arguments)
        if code != SUCCESS:
            raise SysmanError(name, code)

    def _handles(self, name: str, device: Any, most: int) -> list[ctypes.c_void_p]:
        count = ctypes.c_uint32(0)
        self.call(name, device, ctypes.byref(count), None)
        count.value = min(count.value, most)
        if not count.value:
            return []
        handles = (ctypes.c_void_p * count.value)()
        self.call(name, device, ctypes.byref(count), handles)
        return [ctypes.c_void_p(handle) for handle in handles[: count.value]]

    def ras_errors(self, device: Any) -> dict[int, int]:
        """Errors since the driver was loaded, by kind (CORRECTED, UNCORRECTED); kinds it does not count are missing."""
        found: dict[int, int] = {}
        for handle in self._handles("zesDeviceEnumRasErrorSets", device, _SETS_MAX):
            properties = RasProperties(stype=_TYPES["ras_properties"])
            self.call("zesRasGetProperties", handle, ctypes.byref(properties))
            state = RasState(stype=_TYPES["ras_state"])
            self.call("zesRasGetState", handle, ctypes.c_uint8(0), ctypes.byref(state))
            found[properties.type] = found.get(properties.type, 0) + sum(state.category)
        return found

    def ports(self, device: Any) -> list[tuple[int, int | None, bool]]:
        """Ports of the fabric: own fabric id, that of the other end's device (``None``: none), whether it works."""
        found = []
        for handle in self._handles("zesDeviceEnumFabricPorts", device, _PORTS_MAX):
            properties = PortProperties(stype=_TYPES["port_properties"])
            self.call("zesFabricPortGetProperties", handle, ctypes.byref(properties))
            state = PortState(stype=_TYPES["port_state"])
            self.call("zesFabricPortGetState", handle, ctypes.byref(state))
            healthy = state.status in PORT_WORKS
            found.append((properties.portId.fabricId, state.remotePortId.fabricId if healthy else None, healthy))
        return found

    def reset_reasons(self, device: Any) -> int:
        """Why the device has to be reset, as bits: 1 it is wedged, 2 a repair waits; 0: it has not to be."""
        state = DeviceState(stype=_TYPES["device_state"])
        self.call("zesDeviceGetState", device, ctypes.byref(state))
        return int(state.reset)

    def register(self, device: Any) -> None:
        """Have the driver tell of what happens to *device*."""
        kinds = EVENT_DETACH | EVENT_RESET_REQUIRED | EVENT_HOT | EVENT_RAS_CORRECTED | EVENT_RAS_UNCORRECTED
        self.call("zesDeviceEventRegister", device, ctypes.c_uint32(kinds))

    def listen(self, driver: Any, devices: list[Any], wait_s: float) -> list[int]:
        """What happened to each of *devices*, as bits, waiting at most *wait_s* s."""
        size = len(devices)
        handles = (ctypes.c_void_p * size)(*(ctypes.cast(device, ctypes.c_void_p).value for device in devices))
        number, kinds = ctypes.c_uint32(0), (ctypes.c_uint32 * size)()
        self.call(
            "zesDriverEventListenEx",
            driver,
            ctypes.c_uint64(int(wait_s * 1000)),
            ctypes.c_uint32(size),
            handles,
            ctypes.byref(number),
            kinds,
        )
        return list(kinds)
