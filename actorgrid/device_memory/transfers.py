"""Copies between blocks of two pools, of one device, of two, or of two vendors: those go through the host's memory.

A driver copies from one of its devices to another where their links allow it (peer access), and none from another
vendor's. Where none does, a piece is read into the host's memory and written to the other device
while the next is read: two buses are busy, and no more of the host's memory is used than PIECES pieces.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from actorgrid.errors import BadRequest, CrossVendorTransferError, DeviceError

from .device_pool import DeviceBlock, DevicePool

PIECE_BYTES = 8 << 20
"""Large enough that a call costs nothing beside its copy, at 25 GB/s of a bus some 0.3 ms."""
PIECES = 2
"""That are in the host's memory at a time: the one that is written and the one that is read."""
WAYS = ("auto", "device", "host")


class DeviceTransfer(NamedTuple):
    """How a copy went."""

    n_bytes: int
    way: str
    """``device``: by the devices themselves; ``host``: through the host's memory."""
    pieces: int


def transfer(
    from_pool: DevicePool,
    source: DeviceBlock,
    to_pool: DevicePool,
    destination: DeviceBlock,
    n_bytes: int | None = None,
    *,
    way: str = "auto",
) -> DeviceTransfer:
    """Copy the first *n_bytes* of *source* to the beginning of *destination*, after what their streams have.

    By default as much as both have: vendors' blocks are rounded up differently.

    It waits until they are there. *way*: ``device`` has the device copy, which takes one device, or two of one vendor
    of which the driver lets one copy to the other; ``host`` goes through the host's memory; ``auto`` is the first where
    it can be. Nobody may free the blocks meanwhile.

    Raises CrossVendorTransferError for ``device`` between two vendors, and when a copy between two of them breaks off
    (``details`` say on which side, and how much has arrived: the rest of the destination is as it was); BadRequest,
    InvalidBlock; between devices of one vendor what their driver raises.
    """
    from_pool.check(source)
    to_pool.check(destination)
    size = min(source.size, destination.size) if n_bytes is None else n_bytes
    _check(source, destination, size, way)
    is_one_device = from_pool.memory is to_pool.memory
    if is_one_device and way != "host":
        from_pool.copy_to(source, destination, size)
        return DeviceTransfer(size, "device", 1)
    if way != "host" and from_pool.memory.reaches(to_pool.memory):
        from_pool.copy_across(source, to_pool, destination, size)
        return DeviceTransfer(size, "device", 1)
    if way == "device":
        raise _no_direct_way(from_pool, to_pool, size)
    return DeviceTransfer(size, "host", _through_host(from_pool, source, to_pool, destination, size))


def _check(source: DeviceBlock, destination: DeviceBlock, size: int, way: str) -> None:
    if way not in WAYS:
        raise BadRequest("there is no such way", asked=f"{way!r:.40}", found=", ".join(WAYS))
    if source is destination:
        raise BadRequest("a block cannot be copied to itself")
    for name, block in (("source", source), ("destination", destination)):
        if not 0 < size <= block.size:
            raise BadRequest(
                f"the {name} is of another size",
                asked=f"{size} bytes",
                found=f"{block.size} bytes",
                hint="ask for less",
            )


def _through_host(
    from_pool: DevicePool, source: DeviceBlock, to_pool: DevicePool, destination: DeviceBlock, size: int
) -> int:
    offsets = range(0, size, PIECE_BYTES)
    side, arrived = "source", 0
    with ThreadPoolExecutor(1, "device-transfer") as reader:

        def read(offset: int) -> bytes:
            return from_pool.read(source, min(PIECE_BYTES, size - offset), offset)

        try:
            ahead = reader.submit(read, 0)
            for offset in offsets:
                side = "source"
                piece = ahead.result()
                if offset + PIECE_BYTES < size:
                    ahead = reader.submit(read, offset + PIECE_BYTES)
                side = "destination"
                to_pool.write(destination, piece, offset)
                arrived += len(piece)
        except DeviceError as error:
            vendors = (from_pool.memory.vendor, to_pool.memory.vendor)
            if vendors[0] == vendors[1]:
                raise
            raise CrossVendorTransferError(
                f"the copy from {vendors[0]} to {vendors[1]} broke off at its {side}: {error.message}",
                asked=f"{size} bytes",
                found=f"{arrived} bytes arrived",
                hint="what arrived is whole pieces from the beginning; copy anew, or go on from there",
                side=side,
                arrived_bytes=arrived,
            ) from error
    return len(offsets)


def _no_direct_way(from_pool: DevicePool, to_pool: DevicePool, size: int) -> DeviceError | BadRequest:
    one, other = from_pool.memory.vendor, to_pool.memory.vendor
    if one != other:
        return CrossVendorTransferError(
            f"no driver copies from {one} to {other} devices",
            asked=f"{size} bytes by the device itself",
            hint="way='host' goes through the host's memory, and 'auto' does where it has to",
            side="",
            arrived_bytes=0,
        )
    return BadRequest(
        "the two blocks are on two devices, of which the driver lets neither copy to the other",
        asked="way='device'",
        hint="way='host' goes through the host's memory",
    )
