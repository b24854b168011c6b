"""Collects what the own process runs on NVIDIA's devices, through CUPTI (``cupti-python``, the extra ``cupti``).

CUPTI sees its own process alone, and gives its records to one listener: not while PyTorch's profiler runs here.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
import time
from types import TracebackType
from typing import Any, Self

from actorgrid.errors import BadRequest, DeviceCallFailed, NoDeviceDriver

from .kernel_events import NAME_CHARS_MAX, KernelEvent, KernelTimeline

BUFFER_BYTES = 8 << 20
"""What CUPTI is given at a time; it asks for more where that is full."""
_KEPT_MAX = 1_000_000
_BRACKETS = 5
_COPIES = {
    1: "host to device", 2: "device to host", 3: "host to array", 4: "array to host", 5: "array to array",
    6: "array to device", 7: "device to array", 8: "device to device", 9: "host to host", 10: "peer to peer",
}  # fmt: skip
_NAMES_MAX = 10_000
_one_at_a_time = threading.Lock()
_current: CuptiCollector | None = None


class CuptiCollector:
    """While it is entered, what runs on devices is collected; ``timeline`` has it afterwards.

    At most *events_max* events are kept; what comes beside them is counted. Wait for the device before leaving
    (``torch.cuda.synchronize()``): what has not ended is not there. Raises NoDeviceDriver, BadRequest (another one
    collects), DeviceCallFailed.
    """

    def __init__(self, events_max: int = _KEPT_MAX, source: str = "") -> None:
        try:
            from cupti import cupti
        except (ImportError, RuntimeError, OSError) as error:
            raise NoDeviceDriver(
                "CUPTI cannot be used in this process", found=str(error), hint="pip install 'actorgrid[cupti]'"
            ) from error
        self._cupti: Any = cupti
        kinds = cupti.ActivityKind
        self._kinds = {int(kinds.CONCURRENT_KERNEL): "kernel", int(kinds.MEMCPY): "copy", int(kinds.MEMSET): "set"}
        self._events_max = events_max
        self._clock_offset_ns = 0
        self.timeline = KernelTimeline(source or f"process {os.getpid()}")

    def __enter__(self) -> Self:
        global _current
        if not _one_at_a_time.acquire(blocking=False):
            raise BadRequest("this process collects a timeline already", hint="leave the other collector first")
        try:
            self._call("activity_register_callbacks", _buffer_wanted, _buffer_full)
            for kind in self._kinds:
                self._call("activity_enable", kind)
            self._clock_offset_ns, self.timeline.clock_error_ns = self._compare_clocks()
        except BaseException:
            _one_at_a_time.release()
            raise
        _current = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        global _current
        try:
            self._call("activity_flush_all", 1)
            for each in self._kinds:
                self._call("activity_disable", each)
            self.timeline.events.sort(key=lambda event: event.start_ns)
        finally:
            _current = None
            _one_at_a_time.release()

    def _call(self, name: str, *arguments: Any) -> Any:
        try:
            return getattr(self._cupti, name)(*arguments)
        except self._cupti.cuptiError as error:
            raise DeviceCallFailed(
                "CUPTI refused a call",
                asked=name,
                found=str(error),
                hint="another profiler may run in this process, or the driver keeps its counters from users",
                call=name,
                driver_code=int(getattr(error, "status", -1)),
            ) from error

    def _compare_clocks(self) -> tuple[int, int]:
        """(what is added to CUPTI's times for those of the host's clock, how wrong that may be), in nanoseconds."""
        found = []
        for _ in range(_BRACKETS):
            before = time.time_ns()
            theirs = int(self._call("get_timestamp"))
            after = time.time_ns()
            found.append((after - before, (before + after) // 2 - theirs))
        width, offset = min(found)
        # Most Linux drivers give the host's clock itself: what is less than the measurement's own error is none.
        return (0 if abs(offset) <= width else offset), width

    def take(self, records: list[Any]) -> None:
        """Keep what a buffer of CUPTI's has. Called by a thread of CUPTI's."""
        events, process = self.timeline.events, os.getpid()
        for record in records:
            kind = self._kinds.get(int(record.kind))
            if kind is None or len(events) >= self._events_max:
                self.timeline.dropped += 1
                continue
            start, stream = int(record.start), int(record.stream_id)
            if kind == "kernel":
                name = readable_name(str(record.name))
            elif kind == "copy":
                name = f"copy {_COPIES.get(int(record.copy_kind), 'of memory')}"
            else:
                name = "set memory"
            events.append(
                KernelEvent(
                    name=name,
                    kind=kind,
                    start_ns=start + self._clock_offset_ns,
                    duration_ns=max(0, int(record.end) - start),
                    process=process,
                    thread=stream,
                    device=int(record.device_id),
                    stream=stream,
                    correlation=int(record.correlation_id),
                    n_bytes=None if kind == "kernel" else int(record.bytes),
                )
            )


@functools.lru_cache(maxsize=_NAMES_MAX)
def readable_name(symbol: str) -> str:
    """The name of a kernel as its author wrote it: CUPTI gives the linker's, as ``_ZN2at6native...``."""
    if not symbol.startswith("_Z"):
        return symbol[:NAME_CHARS_MAX]
    try:
        library = ctypes.CDLL("libstdc++.so.6")
        readable = library.__getattr__("__cxa_demangle")
    except (OSError, AttributeError):
        return symbol[:NAME_CHARS_MAX]
    readable.restype = ctypes.c_void_p
    readable.argtypes = (ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int))
    status = ctypes.c_int(0)
    text = readable(symbol.encode(), None, None, ctypes.byref(status))
    if not text:
        return symbol[:NAME_CHARS_MAX]
    name = ctypes.cast(text, ctypes.c_char_p).value or b""
    ctypes.CDLL(None).free(ctypes.c_void_p(text))
    return name.decode(errors="replace")[:NAME_CHARS_MAX]


def _buffer_wanted() -> tuple[int, int]:
    return BUFFER_BYTES, 0


def _buffer_full(records: list[Any]) -> None:
    collector = _current
    if collector is not None:
        collector.take(records)
