"""Memory of Intel devices: Level Zero's loader, ``libze_loader``. Layouts and numbers are those of ``ze_api.h``.

A stream is an immediate command list that keeps its order. Events of Level Zero are set once and have to be cleared
before they are set again, which must not be while a list still waits for one: so after each wait that is put into a
list follows an event of ours, and what was waited for is cleared only after that one came.
"""

from __future__ import annotations

import ctypes
import os
import threading
from typing import Any

from actorgrid.errors import DeviceCallFailed

from .memory_driver import DeviceMemory, driver_out_of_memory, host_bytes, no_driver, refused

LIBRARY_VARIABLE = "ACTORGRID_LEVEL_ZERO_LIBRARY"
LIBRARY = "libze_loader.so.1"
_NOT_READY = 1
_OUT_OF_DEVICE_MEMORY = 0x70000003
_IN_ORDER, _ASYNCHRONOUS = 2, 2
_HOST_VISIBLE, _HOST_SCOPE = 1, 4
_FOREVER = 2**64 - 1
_EVENTS_AT_ONCE = 64
_DRIVERS_MAX = 16
_WORDS = {
    0x70000001: "the device is lost",
    0x70000002: "out of host memory",
    _OUT_OF_DEVICE_MEMORY: "out of device memory",
    0x70010000: "insufficient permissions",
    0x78000001: "uninitialized",
    0x78000003: "unsupported feature",
    0x78000004: "invalid argument",
    0x78000009: "unsupported size",
}


class ContextDescription(ctypes.Structure):
    """ze_context_desc_t."""

    _fields_ = [("stype", ctypes.c_uint32), ("pNext", ctypes.c_void_p), ("flags", ctypes.c_uint32)]


class QueueDescription(ctypes.Structure):
    """ze_command_queue_desc_t."""

    _fields_ = [
        ("stype", ctypes.c_uint32),
        ("pNext", ctypes.c_void_p),
        ("ordinal", ctypes.c_uint32),
        ("index", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("mode", ctypes.c_uint32),
        ("priority", ctypes.c_uint32),
    ]


class EventPoolDescription(ctypes.Structure):
    """ze_event_pool_desc_t."""

    _fields_ = [
        ("stype", ctypes.c_uint32),
        ("pNext", ctypes.c_void_p),
        ("flags", ctypes.c_uint32),
        ("count", ctypes.c_uint32),
    ]


class EventDescription(ctypes.Structure):
    """ze_event_desc_t."""

    _fields_ = [
        ("stype", ctypes.c_uint32),
        ("pNext", ctypes.c_void_p),
        ("index", ctypes.c_uint32),
        ("signal", ctypes.c_uint32),
        ("wait", ctypes.c_uint32),
    ]


class AllocationDescription(ctypes.Structure):
    """ze_device_mem_alloc_desc_t."""

    _fields_ = [
        ("stype", ctypes.c_uint32),
        ("pNext", ctypes.c_void_p),
        ("flags", ctypes.c_uint32),
        ("ordinal", ctypes.c_uint32),
    ]


class MemoryProperties(ctypes.Structure):
    """ze_device_memory_properties_t."""

    _fields_ = [
        ("stype", ctypes.c_uint32),
        ("pNext", ctypes.c_void_p),
        ("flags", ctypes.c_uint32),
        ("maxClockRate", ctypes.c_uint32),
        ("maxBusWidth", ctypes.c_uint32),
        ("totalSize", ctypes.c_uint64),
        ("name", ctypes.c_char * 256),
    ]


_TYPES = {
    MemoryProperties: 0x7,
    ContextDescription: 0xD,
    QueueDescription: 0xE,
    EventPoolDescription: 0x10,
    EventDescription: 0x11,
    AllocationDescription: 0x15,
}
_HANDLE, _COUNT, _LONG, _SIZE = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_size_t
_CALLS: dict[str, tuple[Any, ...]] = {
    "zeInit": (_COUNT,),
    "zeDriverGet": (_HANDLE, _HANDLE),
    "zeDeviceGet": (_HANDLE, _HANDLE, _HANDLE),
    "zeDeviceGetMemoryProperties": (_HANDLE, _HANDLE, _HANDLE),
    "zeContextCreate": (_HANDLE, _HANDLE, _HANDLE),
    "zeContextDestroy": (_HANDLE,),
    "zeMemAllocDevice": (_HANDLE, _HANDLE, _SIZE, _SIZE, _HANDLE, _HANDLE),
    "zeMemFree": (_HANDLE, _HANDLE),
    "zeCommandListCreateImmediate": (_HANDLE, _HANDLE, _HANDLE, _HANDLE),
    "zeCommandListDestroy": (_HANDLE,),
    "zeCommandListHostSynchronize": (_HANDLE, _LONG),
    "zeCommandListAppendMemoryCopy": (_HANDLE, _HANDLE, _HANDLE, _SIZE, _HANDLE, _COUNT, _HANDLE),
    "zeCommandListAppendSignalEvent": (_HANDLE, _HANDLE),
    "zeCommandListAppendWaitOnEvents": (_HANDLE, _COUNT, _HANDLE),
    "zeEventPoolCreate": (_HANDLE, _HANDLE, _COUNT, _HANDLE, _HANDLE),
    "zeEventPoolDestroy": (_HANDLE,),
    "zeEventCreate": (_HANDLE, _HANDLE, _HANDLE),
    "zeEventDestroy": (_HANDLE,),
    "zeEventHostReset": (_HANDLE,),
    "zeEventQueryStatus": (_HANDLE,),
    "zeEventHostSynchronize": (_HANDLE, _LONG),
}


class LevelZeroMemory:
    """The memory of Level Zero device *number*, counted over all drivers. Raises NoDeviceDriver.

    ``DeviceMemory`` says what the methods do. ``ACTORGRID_LEVEL_ZERO_LIBRARY`` names the loader where the linker does
    not find it. Level Zero tells here how much memory a device has, and not how much of it is free. Streams and
    addresses are of a context of this object's, so those of other libraries in the process are no streams here.
    """

    vendor = "intel"

    def __init__(self, number: int = 0) -> None:
        name = os.environ.get(LIBRARY_VARIABLE) or LIBRARY
        try:
            library = ctypes.CDLL(name)
            self._calls = {call: getattr(library, call) for call in _CALLS}
        except (OSError, AttributeError) as error:
            hint = f"install Intel's driver, or name the loader in {LIBRARY_VARIABLE}"
            raise no_driver("Intel", str(error), hint) from error
        for call, function in self._calls.items():
            function.argtypes, function.restype = _CALLS[call], ctypes.c_uint32
        self._lock = threading.Lock()
        self._default = 0
        self._pools: list[int] = []
        self._spare: list[int] = []
        self._waited: dict[int, list[int]] = {}
        try:
            self._call("zeInit", 0)
            found = [(driver, device) for driver in self._listed("zeDriverGet") for device in self._devices(driver)]
        except DeviceCallFailed as error:
            raise no_driver("Intel", str(error), "xpu-smi discovery says how the driver is") from error
        if not 0 <= number < len(found):
            raise no_driver("Intel", f"{len(found)} devices, no number {number}", "see ZE_AFFINITY_MASK")
        self.number = number
        driver, self._device = found[number]
        context = ctypes.c_void_p()
        described = _typed(ContextDescription)
        self._call("zeContextCreate", driver, ctypes.byref(described), ctypes.byref(context))
        self._context = context.value or 0

    def _call(self, name: str, *arguments: Any) -> None:
        code = self._calls[name](*arguments)
        if code:
            raise self._refused(name, code)

    def _refused(self, name: str, code: int) -> DeviceCallFailed:
        return refused(name, code, _WORDS.get(code, "an error"))

    def _listed(self, name: str, *of: int) -> list[int]:
        count = ctypes.c_uint32(0)
        self._call(name, *of, ctypes.byref(count), None)
        count.value = min(count.value, _DRIVERS_MAX * _DRIVERS_MAX)
        if not count.value:
            return []
        handles = (ctypes.c_void_p * count.value)()
        self._call(name, *of, ctypes.byref(count), handles)
        return [handle or 0 for handle in handles[: count.value]]

    def _devices(self, driver: int) -> list[int]:
        return self._listed("zeDeviceGet", driver)

    def memory_bytes(self) -> tuple[int | None, int]:
        """As DeviceMemory says; what is free is not told."""
        count = ctypes.c_uint32(0)
        self._call("zeDeviceGetMemoryProperties", self._device, ctypes.byref(count), None)
        count.value = min(count.value, _DRIVERS_MAX)
        told = (MemoryProperties * max(1, count.value))()
        for each in told:
            each.stype = _TYPES[MemoryProperties]
        self._call("zeDeviceGetMemoryProperties", self._device, ctypes.byref(count), told)
        return None, sum(int(each.totalSize) for each in told[: count.value])

    def allocate(self, n_bytes: int) -> int:
        """As DeviceMemory says. Many drivers refuse a single range over 4 GiB."""
        address = ctypes.c_void_p()
        described = _typed(AllocationDescription)
        code = self._calls["zeMemAllocDevice"](
            self._context, ctypes.byref(described), n_bytes, 64, self._device, ctypes.byref(address)
        )
        if code == _OUT_OF_DEVICE_MEMORY:
            raise driver_out_of_memory(n_bytes, *self.memory_bytes())
        if code:
            raise self._refused("zeMemAllocDevice", code)
        return address.value or 0

    def free(self, address: int) -> None:
        """As DeviceMemory says; Level Zero does not wait, so all streams are waited for by whoever frees."""
        self._call("zeMemFree", self._context, address)

    def copy_from_host(self, address: int, data: bytes | bytearray | memoryview, stream: int = 0) -> None:
        """As DeviceMemory says."""
        source, size, _kept = host_bytes(data)
        self._copy(address, source, size, stream)
        self._call("zeCommandListHostSynchronize", self._list(stream), _FOREVER)

    def copy_to_host(self, address: int, n_bytes: int, stream: int = 0) -> bytes:
        """As DeviceMemory says."""
        into = bytearray(n_bytes)
        destination, size, _kept = host_bytes(into)
        self._copy(destination, address, size, stream)
        self._call("zeCommandListHostSynchronize", self._list(stream), _FOREVER)
        return bytes(into)

    def copy_within(self, source: int, destination: int, n_bytes: int, stream: int = 0) -> None:
        """As DeviceMemory says."""
        self._copy(destination, source, n_bytes, stream)

    def reaches(self, other: DeviceMemory) -> bool:
        """As DeviceMemory says: no other: each is a context of its own, and one context's ranges are not another's."""
        return other is self

    def copy_to_peer(self, source: int, other: DeviceMemory, destination: int, n_bytes: int, stream: int = 0) -> None:
        """As DeviceMemory says."""
        assert other is self, "it reaches no other"
        self._copy(destination, source, n_bytes, stream)

    def _copy(self, destination: int, source: int, size: int, stream: int) -> None:
        self._call("zeCommandListAppendMemoryCopy", self._list(stream), destination, source, size, None, 0, None)

    def _list(self, stream: int) -> int:
        if stream:
            return stream
        with self._lock:
            if not self._default:
                self._default = self.new_stream()
            return self._default

    def new_stream(self) -> int:
        """As DeviceMemory says."""
        made = ctypes.c_void_p()
        described = _typed(QueueDescription, flags=_IN_ORDER, mode=_ASYNCHRONOUS)
        self._call(
            *("zeCommandListCreateImmediate", self._context, self._device),
            *(ctypes.byref(described), ctypes.byref(made)),
        )
        return made.value or 0

    def end_stream(self, stream: int) -> None:
        """As DeviceMemory says."""
        self._call("zeCommandListDestroy", stream)

    def new_event(self) -> int:
        """As DeviceMemory says."""
        with self._lock:
            if not self._spare:
                self._more_events()
            return self._spare.pop()

    def _more_events(self) -> None:
        """A pool of the driver's, which is the price of the first of so many events."""
        pool = ctypes.c_void_p()
        described = _typed(EventPoolDescription, flags=_HOST_VISIBLE, count=_EVENTS_AT_ONCE)
        self._call("zeEventPoolCreate", self._context, ctypes.byref(described), 0, None, ctypes.byref(pool))
        self._pools.append(pool.value or 0)
        for place in range(_EVENTS_AT_ONCE):
            event = ctypes.c_void_p()
            each = _typed(EventDescription, index=place, signal=_HOST_SCOPE, wait=_HOST_SCOPE)
            self._call("zeEventCreate", pool, ctypes.byref(each), ctypes.byref(event))
            self._spare.append(event.value or 0)

    def end_event(self, event: int) -> None:
        """As DeviceMemory says; it is kept for the next who wants one."""
        self._clear(event)
        with self._lock:
            self._spare.append(event)

    def _clear(self, event: int) -> None:
        for passed in self._waited.pop(event, ()):
            self._call("zeEventHostSynchronize", passed, _FOREVER)
            self._call("zeEventHostReset", passed)
            with self._lock:
                self._spare.append(passed)
        self._call("zeEventHostReset", event)

    def record(self, event: int, stream: int) -> None:
        """As DeviceMemory says."""
        self._clear(event)
        self._call("zeCommandListAppendSignalEvent", self._list(stream), event)

    def is_done(self, event: int) -> bool:
        """As DeviceMemory says."""
        code = self._calls["zeEventQueryStatus"](event)
        if code not in (0, _NOT_READY):
            raise self._refused("zeEventQueryStatus", code)
        return bool(code == 0)

    def wait(self, event: int) -> None:
        """As DeviceMemory says."""
        self._call("zeEventHostSynchronize", event, _FOREVER)

    def order(self, stream: int, event: int) -> None:
        """As DeviceMemory says."""
        passed = self.new_event()
        waited = (ctypes.c_void_p * 1)(event)
        self._call("zeCommandListAppendWaitOnEvents", self._list(stream), 1, waited)
        self._call("zeCommandListAppendSignalEvent", self._list(stream), passed)
        self._waited.setdefault(event, []).append(passed)

    def close(self) -> None:
        """As DeviceMemory says."""
        if self._default:
            self._call("zeCommandListHostSynchronize", self._default, _FOREVER)
            self.end_stream(self._default)
            self._default = 0
        for passed in self._waited.values():
            self._spare += passed
        for event in self._spare:
            self._call("zeEventDestroy", event)
        for pool in self._pools:
            self._call("zeEventPoolDestroy", pool)
        self._waited, self._spare, self._pools = {}, [], []
        self._call("zeContextDestroy", self._context)


def _typed(of: type[ctypes.Structure], **fields: int) -> Any:
    return of(stype=_TYPES[of], **fields)
