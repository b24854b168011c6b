"""What a driver does for a pool: ranges of a device's memory, copies, streams, and events that tell how far one is.

Addresses, streams and events are whole numbers, as the driver gave them. Stream 0 is the device's default stream. What
is given to a stream runs in the order given, and beside what other streams have. Every call raises DeviceCallFailed
with the driver's word when it is refused.
"""

from __future__ import annotations

import ctypes
from typing import Any, Protocol

from actorgrid.errors import BadRequest, DeviceCallFailed, NoDeviceDriver, OutOfDeviceMemory


class DeviceMemory(Protocol):
    """A device of a vendor, as far as its memory goes. Methods may be called by any thread."""

    vendor: str
    """``nvidia``, ``amd``, ``intel``."""

    def memory_bytes(self) -> tuple[int | None, int]:
        """(free now, in all), in bytes; ``None`` where the driver does not tell what is free."""
        ...

    def allocate(self, n_bytes: int) -> int:
        """The address of a new range. Raises OutOfDeviceMemory."""
        ...

    def free(self, address: int) -> None:
        """Give a range back; the driver waits until nothing uses it."""
        ...

    def copy_from_host(self, address: int, data: bytes | bytearray | memoryview, stream: int = 0) -> None:
        """Write *data*, after what *stream* has, and wait until it is written."""
        ...

    def copy_to_host(self, address: int, n_bytes: int, stream: int = 0) -> bytes:
        """Read, after what *stream* has, and wait for it."""
        ...

    def copy_within(self, source: int, destination: int, n_bytes: int, stream: int = 0) -> None:
        """Have *stream* copy; the two ranges must not overlap."""
        ...

    def reaches(self, other: DeviceMemory) -> bool:
        """Whether this device copies to *other* by itself; asks the driver the first time, which may allow it then."""
        ...

    def copy_to_peer(self, source: int, other: DeviceMemory, destination: int, n_bytes: int, stream: int = 0) -> None:
        """Have *stream*, of this device, copy to a range of *other*, which it ``reaches``."""
        ...

    def new_stream(self) -> int:
        """A stream that does not wait for others."""
        ...

    def end_stream(self, stream: int) -> None:
        """Give a stream back."""
        ...

    def new_event(self) -> int:
        """An event, for ``record``."""
        ...

    def end_event(self, event: int) -> None:
        """Give an event back."""
        ...

    def record(self, event: int, stream: int) -> None:
        """Have *event* come once *stream* has done what it was given so far. An event may be recorded again."""
        ...

    def is_done(self, event: int) -> bool:
        """Whether what *event* was last recorded after is done. Does not wait."""
        ...

    def wait(self, event: int) -> None:
        """Wait until *event* came."""
        ...

    def order(self, stream: int, event: int) -> None:
        """Have *stream* begin what it is given from now on after *event*, as it was recorded last. Does not wait."""
        ...

    def close(self) -> None:
        """Let go of the device; what was allocated has to be freed before."""
        ...


def host_bytes(data: bytes | bytearray | memoryview) -> tuple[int, int, Any]:
    """(address, length, what keeps it there) of *data* in the host's memory; what cannot be written is copied."""
    view = memoryview(data).cast("B")
    if not view.nbytes:
        raise BadRequest("nothing is to be copied", asked="0 bytes")
    array = ctypes.c_char * view.nbytes
    kept = array.from_buffer_copy(view) if view.readonly else array.from_buffer(view)
    return ctypes.addressof(kept), view.nbytes, kept


def refused(call: str, code: int, word: str) -> DeviceCallFailed:
    """The error for *call*, which answered *code*, in the driver's words *word*."""
    return DeviceCallFailed(
        "the device's driver refused a call",
        asked=call,
        found=f"{word} ({code:#x})" if code > 9999 else f"{word} ({code})",
        hint="the driver's own documentation says what it means; after a fault of a kernel, start the process anew",
        call=call,
        driver_code=code,
    )


def driver_out_of_memory(asked: int, free: int | None, total: int) -> OutOfDeviceMemory:
    """The error when the driver has not *asked* bytes."""
    left = "the driver does not tell how much is free" if free is None else f"{free} bytes free of {total}"
    return OutOfDeviceMemory(
        "the device has not that much memory left",
        asked=f"{asked} bytes",
        found=left,
        hint="ask for less, or see who has it: actorgrid gpus",
        asked_bytes=asked,
        free_bytes=-1 if free is None else free,
    )


def no_driver(vendor: str, why: str, hint: str) -> NoDeviceDriver:
    """The error when the driver of *vendor* cannot be used."""
    return NoDeviceDriver(f"memory of {vendor} devices cannot be had in this process", found=why, hint=hint)
