"""Memory of AMD devices: HIP's runtime, ``libamdhip64``, which comes with ROCm and with PyTorch for it.

There is no binding of AMD's for HIP that installs everywhere; the calls below are a dozen, so ctypes does them.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

from actorgrid.errors import DeviceCallFailed

from .memory_driver import DeviceMemory, driver_out_of_memory, host_bytes, no_driver, refused

LIBRARY_VARIABLE = "ACTORGRID_HIP_LIBRARY"
LIBRARIES = ("libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5")
_OUT_OF_MEMORY = 2
_NOT_READY = 600
_STREAM_NON_BLOCKING = 1
_EVENT_DISABLE_TIMING = 2
_PEER_ACCESS_ALREADY_ENABLED = 704
_POINTER, _SIZE, _NUMBER = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint
_CALLS: dict[str, tuple[Any, ...]] = {
    "hipInit": (_NUMBER,),
    "hipGetDeviceCount": (_POINTER,),
    "hipSetDevice": (ctypes.c_int,),
    "hipGetDevice": (_POINTER,),
    "hipMemGetInfo": (_POINTER, _POINTER),
    "hipMalloc": (_POINTER, _SIZE),
    "hipFree": (_POINTER,),
    "hipMemcpyHtoDAsync": (_POINTER, _POINTER, _SIZE, _POINTER),
    "hipMemcpyDtoHAsync": (_POINTER, _POINTER, _SIZE, _POINTER),
    "hipMemcpyDtoDAsync": (_POINTER, _POINTER, _SIZE, _POINTER),
    "hipDeviceCanAccessPeer": (_POINTER, ctypes.c_int, ctypes.c_int),
    "hipDeviceEnablePeerAccess": (ctypes.c_int, _NUMBER),
    "hipMemcpyPeerAsync": (_POINTER, ctypes.c_int, _POINTER, ctypes.c_int, _SIZE, _POINTER),
    "hipStreamCreateWithFlags": (_POINTER, _NUMBER),
    "hipStreamDestroy": (_POINTER,),
    "hipStreamSynchronize": (_POINTER,),
    "hipStreamWaitEvent": (_POINTER, _POINTER, _NUMBER),
    "hipEventCreateWithFlags": (_POINTER, _NUMBER),
    "hipEventDestroy": (_POINTER,),
    "hipEventRecord": (_POINTER, _POINTER),
    "hipEventQuery": (_POINTER,),
    "hipEventSynchronize": (_POINTER,),
}


class HipMemory:
    """The memory of HIP device *number*, as HIP counts those it sees. Raises NoDeviceDriver.

    ``DeviceMemory`` says what the methods do. ``ACTORGRID_HIP_LIBRARY`` names the library where the linker does not
    find it.
    """

    vendor = "amd"

    def __init__(self, number: int = 0) -> None:
        library = _loaded()
        try:
            self._calls = {name: getattr(library, name) for name in _CALLS}
            self._name_of = library.hipGetErrorName
        except AttributeError as error:
            raise no_driver("AMD", f"the library lacks a call: {error}", "install a newer ROCm") from error
        for name, call in self._calls.items():
            call.argtypes, call.restype = _CALLS[name], ctypes.c_int
        self._name_of.argtypes, self._name_of.restype = (ctypes.c_int,), ctypes.c_char_p
        count = ctypes.c_int(0)
        try:
            self._call("hipInit", 0)
            self._call("hipGetDeviceCount", ctypes.byref(count))
        except DeviceCallFailed as error:
            raise no_driver("AMD", str(error), "rocminfo says how the driver is") from error
        if not 0 <= number < count.value:
            raise no_driver("AMD", f"{count.value} devices, no number {number}", "see ROCR_VISIBLE_DEVICES")
        self.number = number
        self._peers: dict[int, bool] = {}

    def _call(self, name: str, *arguments: Any) -> None:
        code = self._calls[name](*arguments)
        if code:
            raise self._refused(name, code)

    def _refused(self, name: str, code: int) -> DeviceCallFailed:
        return refused(name, code, (self._name_of(code) or b"unknown error").decode(errors="replace"))

    def _on_device(self, name: str, *arguments: Any) -> int:
        """The code of a call for which the thread's current device counts; the thread has its own again after it."""
        before = ctypes.c_int(0)
        self._call("hipGetDevice", ctypes.byref(before))
        if before.value == self.number:
            return int(self._calls[name](*arguments))
        self._call("hipSetDevice", self.number)
        try:
            return int(self._calls[name](*arguments))
        finally:
            self._call("hipSetDevice", before.value)

    def _there(self, name: str, *arguments: Any) -> None:
        code = self._on_device(name, *arguments)
        if code:
            raise self._refused(name, code)

    def memory_bytes(self) -> tuple[int | None, int]:
        """As DeviceMemory says."""
        free, total = ctypes.c_size_t(0), ctypes.c_size_t(0)
        self._there("hipMemGetInfo", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def allocate(self, n_bytes: int) -> int:
        """As DeviceMemory says."""
        address = ctypes.c_void_p()
        code = self._on_device("hipMalloc", ctypes.byref(address), n_bytes)
        if code == _OUT_OF_MEMORY:
            raise driver_out_of_memory(n_bytes, *self.memory_bytes())
        if code:
            raise self._refused("hipMalloc", code)
        return address.value or 0

    def free(self, address: int) -> None:
        """As DeviceMemory says."""
        self._there("hipFree", address)

    def copy_from_host(self, address: int, data: bytes | bytearray | memoryview, stream: int = 0) -> None:
        """As DeviceMemory says."""
        source, size, _kept = host_bytes(data)
        self._there("hipMemcpyHtoDAsync", address, source, size, stream)
        self._there("hipStreamSynchronize", stream)

    def copy_to_host(self, address: int, n_bytes: int, stream: int = 0) -> bytes:
        """As DeviceMemory says."""
        into = bytearray(n_bytes)
        destination, size, _kept = host_bytes(into)
        self._there("hipMemcpyDtoHAsync", destination, address, size, stream)
        self._there("hipStreamSynchronize", stream)
        return bytes(into)

    def copy_within(self, source: int, destination: int, n_bytes: int, stream: int = 0) -> None:
        """As DeviceMemory says."""
        self._there("hipMemcpyDtoDAsync", destination, source, n_bytes, stream)

    def reaches(self, other: DeviceMemory) -> bool:
        """As DeviceMemory says: what the two devices' links and the system allow."""
        if not isinstance(other, HipMemory):
            return False
        if other.number not in self._peers:
            self._peers[other.number] = other.number == self.number or self._allows(other.number)
        return self._peers[other.number]

    def _allows(self, number: int) -> bool:
        can = ctypes.c_int(0)
        self._call("hipDeviceCanAccessPeer", ctypes.byref(can), self.number, number)
        if not can.value:
            return False
        # Refused: the driver would go through the host's memory, as we do.
        return self._on_device("hipDeviceEnablePeerAccess", number, 0) in (0, _PEER_ACCESS_ALREADY_ENABLED)

    def copy_to_peer(self, source: int, other: DeviceMemory, destination: int, n_bytes: int, stream: int = 0) -> None:
        """As DeviceMemory says."""
        assert isinstance(other, HipMemory), "it reaches no other"
        if other.number == self.number:
            self._there("hipMemcpyDtoDAsync", destination, source, n_bytes, stream)
        else:
            self._there("hipMemcpyPeerAsync", destination, other.number, source, self.number, n_bytes, stream)

    def new_stream(self) -> int:
        """As DeviceMemory says."""
        stream = ctypes.c_void_p()
        self._there("hipStreamCreateWithFlags", ctypes.byref(stream), _STREAM_NON_BLOCKING)
        return stream.value or 0

    def end_stream(self, stream: int) -> None:
        """As DeviceMemory says."""
        self._call("hipStreamDestroy", stream)

    def new_event(self) -> int:
        """As DeviceMemory says."""
        event = ctypes.c_void_p()
        self._there("hipEventCreateWithFlags", ctypes.byref(event), _EVENT_DISABLE_TIMING)
        return event.value or 0

    def end_event(self, event: int) -> None:
        """As DeviceMemory says."""
        self._call("hipEventDestroy", event)

    def record(self, event: int, stream: int) -> None:
        """As DeviceMemory says."""
        self._there("hipEventRecord", event, stream)

    def is_done(self, event: int) -> bool:
        """As DeviceMemory says."""
        code = self._calls["hipEventQuery"](event)
        if code not in (0, _NOT_READY):
            raise self._refused("hipEventQuery", code)
        return bool(code == 0)

    def wait(self, event: int) -> None:
        """As DeviceMemory says."""
        self._call("hipEventSynchronize", event)

    def order(self, stream: int, event: int) -> None:
        """As DeviceMemory says."""
        self._there("hipStreamWaitEvent", stream, event, 0)

    def close(self) -> None:
        """Nothing is to be let go of: HIP keeps a process's devices until it ends."""


def _loaded() -> ctypes.CDLL:
    named = os.environ.get(LIBRARY_VARIABLE)
    why = ""
    for name in (named,) if named else LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            why = why or str(error)
    raise no_driver("AMD", why, f"install ROCm's runtime, or name its library in {LIBRARY_VARIABLE}")
