"""Memory of NVIDIA devices: CUDA's driver, through NVIDIA's ``cuda-bindings`` (the extra ``cuda``).

The device's primary context is taken, which CUDA's runtime and so PyTorch, CuPy and others in this process use too:
their addresses and streams are of the same kind as those here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from actorgrid.errors import DeviceCallFailed

from .memory_driver import DeviceMemory, driver_out_of_memory, host_bytes, no_driver, refused

_OUT_OF_MEMORY = 2
_NOT_READY = 600
_STREAM_NON_BLOCKING = 1
_EVENT_DISABLE_TIMING = 2
_PEER_ACCESS_ALREADY_ENABLED = 704


class CudaMemory:
    """The memory of CUDA device *number*, as CUDA counts those it sees. Raises NoDeviceDriver.

    ``DeviceMemory`` says what the methods do.
    """

    vendor = "nvidia"

    def __init__(self, number: int = 0) -> None:
        try:
            from cuda.bindings import driver
        except ImportError as error:
            raise no_driver("NVIDIA", f"{error}", "pip install 'actorgrid[cuda]'") from error
        self._driver: Any = driver
        try:
            self._call("cuInit", 0)
            count = int(self._call("cuDeviceGetCount"))
        except (RuntimeError, DeviceCallFailed) as error:  # RuntimeError: libcuda is not there, or lacks the call
            raise no_driver("NVIDIA", str(error), "nvidia-smi says how the driver is") from error
        if not 0 <= number < count:
            raise no_driver("NVIDIA", f"{count} devices, no number {number}", "see CUDA_VISIBLE_DEVICES")
        self._device = self._call("cuDeviceGet", number)
        self._context = self._call("cuDevicePrimaryCtxRetain", self._device)
        self.number = number
        self._peers: dict[int, bool] = {}

    def _call(self, name: str, *arguments: Any) -> Any:
        """What a call gives besides its code."""
        answer = getattr(self._driver, name)(*arguments)
        if answer[0]:
            raise _refused(name, answer[0])
        return answer[1] if len(answer) > 1 else None

    @contextmanager
    def _current(self) -> Iterator[None]:
        """With the device's context, whatever this thread had: the default stream and new things are of that one."""
        self._call("cuCtxPushCurrent", self._context)
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent")

    def memory_bytes(self) -> tuple[int | None, int]:
        """As DeviceMemory says."""
        with self._current():
            code, free, total = self._driver.cuMemGetInfo()
        if code:
            raise _refused("cuMemGetInfo", code)
        return int(free), int(total)

    def allocate(self, n_bytes: int) -> int:
        """As DeviceMemory says."""
        with self._current():
            code, address = self._driver.cuMemAlloc(n_bytes)
        if int(code) == _OUT_OF_MEMORY:
            raise driver_out_of_memory(n_bytes, *self.memory_bytes())
        if code:
            raise _refused("cuMemAlloc", code)
        return int(address)

    def free(self, address: int) -> None:
        """As DeviceMemory says."""
        with self._current():
            self._call("cuMemFree", address)

    def copy_from_host(self, address: int, data: bytes | bytearray | memoryview, stream: int = 0) -> None:
        """As DeviceMemory says."""
        source, size, _kept = host_bytes(data)
        with self._current():
            self._call("cuMemcpyHtoDAsync", address, source, size, stream)
            self._call("cuStreamSynchronize", stream)

    def copy_to_host(self, address: int, n_bytes: int, stream: int = 0) -> bytes:
        """As DeviceMemory says."""
        into = bytearray(n_bytes)
        destination, size, _kept = host_bytes(into)
        with self._current():
            self._call("cuMemcpyDtoHAsync", destination, address, size, stream)
            self._call("cuStreamSynchronize", stream)
        return bytes(into)

    def copy_within(self, source: int, destination: int, n_bytes: int, stream: int = 0) -> None:
        """As DeviceMemory says."""
        with self._current():
            self._call("cuMemcpyDtoDAsync", destination, source, n_bytes, stream)

    def reaches(self, other: DeviceMemory) -> bool:
        """As DeviceMemory says: what the two devices' links and the system allow."""
        if not isinstance(other, CudaMemory):
            return False
        if other.number not in self._peers:
            self._peers[other.number] = other.number == self.number or self._allows(other)
        return self._peers[other.number]

    def _allows(self, other: CudaMemory) -> bool:
        if not int(self._call("cuDeviceCanAccessPeer", self._device, other._device)):
            return False
        with self._current():
            (code,) = self._driver.cuCtxEnablePeerAccess(other._context, 0)
        # Refused, say for too many peers: the driver would go through the host's memory, as we do.
        return int(code) in (0, _PEER_ACCESS_ALREADY_ENABLED)

    def copy_to_peer(self, source: int, other: DeviceMemory, destination: int, n_bytes: int, stream: int = 0) -> None:
        """As DeviceMemory says."""
        assert isinstance(other, CudaMemory), "it reaches no other"
        with self._current():
            if other.number == self.number:
                self._call("cuMemcpyDtoDAsync", destination, source, n_bytes, stream)
            else:
                self._call("cuMemcpyPeerAsync", destination, other._context, source, self._context, n_bytes, stream)

    def new_stream(self) -> int:
        """As DeviceMemory says."""
        with self._current():
            return int(self._call("cuStreamCreate", _STREAM_NON_BLOCKING))

    def end_stream(self, stream: int) -> None:
        """As DeviceMemory says."""
        self._call("cuStreamDestroy", stream)

    def new_event(self) -> int:
        """As DeviceMemory says."""
        with self._current():
            return int(self._call("cuEventCreate", _EVENT_DISABLE_TIMING))

    def end_event(self, event: int) -> None:
        """As DeviceMemory says."""
        self._call("cuEventDestroy", event)

    def record(self, event: int, stream: int) -> None:
        """As DeviceMemory says."""
        with self._current():
            self._call("cuEventRecord", event, stream)

    def is_done(self, event: int) -> bool:
        """As DeviceMemory says."""
        code = self._driver.cuEventQuery(event)[0]
        if int(code) not in (0, _NOT_READY):
            raise _refused("cuEventQuery", code)
        return not code

    def wait(self, event: int) -> None:
        """As DeviceMemory says."""
        self._call("cuEventSynchronize", event)

    def order(self, stream: int, event: int) -> None:
        """As DeviceMemory says."""
        with self._current():
            self._call("cuStreamWaitEvent", stream, event, 0)

    def close(self) -> None:
        """As DeviceMemory says."""
        self._call("cuDevicePrimaryCtxRelease", self._device)


def _refused(name: str, code: Any) -> DeviceCallFailed:
    return refused(name, int(code), getattr(code, "name", "an error that cuda-bindings does not know"))
