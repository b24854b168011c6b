"""A process's side of a large object that its agent brings from another host: memory of ours, filled by the agent.

The process makes a memfd as large as the object, seals it, and sends it with what it wants; the agent writes there,
says when it is done, or what it could not bring. To hang up is to give up.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
import time
from typing import Any, NamedTuple

from actorgrid.errors import HostUnreachable, MalformedBody, Overloaded, PeerGone
from actorgrid.transports.bulk.pieces import BulkPiece
from actorgrid.transports.frames import FrameDecoder, encode_frame
from actorgrid.transports.numa import place_for_reader
from actorgrid.transports.object_frames import ObjectKey

ANSWER_BYTES_MAX = 2**20
READ_BYTES = 65536
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class Brought(NamedTuple):
    """What came of it."""

    memory: memoryview
    missing: list[BulkPiece]
    """Parts that have not come."""


def bring(path: str, host: str, secret: bytes, key: ObjectKey, until: float | None) -> Brought:
    """Have the agent that listens at *path* bring an object of *host*; *until*: on the monotonic clock.

    Raises OSError and TransportError where nothing could be had this way, and TimeoutError.
    """
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    fd = -1
    try:
        door.connect(path)
        fd = os.memfd_create("actorgrid-object", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, key.size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
        mapped = mmap.mmap(fd, key.size)
        place_for_reader(mapped)
        memory = memoryview(mapped)
        socket.send_fds(door, [encode_frame(["bring", host, secret, list(key)])], [fd])
        return Brought(memory, _missing(_answer(door, until), key))
    finally:
        door.close()
        if fd >= 0:
            os.close(fd)


def _answer(door: socket.socket, until: float | None) -> list[Any]:
    decoder = FrameDecoder(ANSWER_BYTES_MAX)
    while True:
        left = None if until is None else until - time.monotonic()
        if left is not None and left <= 0:
            raise TimeoutError("an object of another host has not come in time")
        door.settimeout(left)
        data = door.recv(READ_BYTES)
        if not data:
            raise PeerGone("the agent hung up while it brought an object")
        for frame in decoder.feed(data):
            return frame


def _missing(frame: list[Any], key: ObjectKey) -> list[BulkPiece]:
    match frame:
        case ["brought"]:
            return []
        case ["failed", str(why)]:
            raise Overloaded(why)
        case ["failed", str(why), list(parts)]:
            missing = [BulkPiece(*part) for part in parts if _is_part(part, key.size)]
            if len(missing) != len(parts):
                raise MalformedBody("parts that are none of the object")
            if missing == [BulkPiece(0, key.size)]:
                raise HostUnreachable(why)
            return missing
    raise MalformedBody("not what became of an object that was to be brought", found=str(frame[0])[:40])


def _is_part(part: Any, size: int) -> bool:
    match part:
        case [int(offset), int(count)]:
            return offset >= 0 and count > 0 and offset + count <= size
    return False
