"""Large messages as sealed memory files (memfd): copied in once, handed over as a descriptor, mapped by the receiver.

A stream of 64 MiB keeps both processes busy in lockstep; a memory file is whole before it is offered, so the receiver
has it at once even if the sender is busy or gone meanwhile. From what size it pays is measured (docs/decisions/0002).

The seals (memfd_create(2), fcntl(2)) say that neither side can change or shrink it any more: reading a mapping of it
cannot fault. The receiver looks for them and for the size, though the sender has proven who it is.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import mmap
import os
import socket
import struct
from dataclasses import dataclass

LARGE_BYTES_MIN = 2 * 2**20

_F_ADD_SEALS, _F_GET_SEALS = 1033, 1034
_SEAL_SEAL, _SEAL_SHRINK, _SEAL_GROW, _SEAL_WRITE = 1, 2, 4, 8
_SEALS = _SEAL_SEAL | _SEAL_SHRINK | _SEAL_GROW | _SEAL_WRITE
_MFD_NOEXEC_SEAL = 8  # Linux 6.3; hosts may demand it (sysctl vm.memfd_noexec)
_FLAGS = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
_FD = struct.Struct("i")
FD_SPACE = socket.CMSG_SPACE(_FD.size)

log = logging.getLogger("actorgrid.transport")


@dataclass(slots=True)
class Large:
    """A large message that waits for its turn; ``fd`` is its file while the kernel has no room for the offer."""

    kind: int
    payload: bytes | bytearray
    fd: int = -1

    def close(self) -> None:
        """Close this holder's descriptor of the file; other holders keep theirs."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def seal(payload: bytes | bytearray) -> int:
    """A sealed memory file that holds *payload*; -1 when there is no descriptor, memory or quota for one."""
    try:
        fd = _create()
    except OSError as error:
        log.debug("a large message goes as a stream: %s", error)
        return -1
    try:
        with memoryview(payload) as view:
            written = 0
            while written < len(payload):
                written += os.write(fd, view[written:])
        fcntl.fcntl(fd, _F_ADD_SEALS, _SEALS)
    except OSError as error:
        os.close(fd)
        log.debug("a large message goes as a stream: %s", error)
        return -1
    return fd


def _create() -> int:
    try:
        return os.memfd_create("actorgrid-message", _FLAGS | _MFD_NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a kernel from before that flag
            raise
        return os.memfd_create("actorgrid-message", _FLAGS)


def offer(connection: socket.socket, header: bytes, fd: int) -> None:
    """Send *header* with the file. Raises BlockingIOError or OSError; nothing was sent then."""
    connection.sendmsg((header,), ((socket.SOL_SOCKET, socket.SCM_RIGHTS, _FD.pack(fd)),))


def received_files(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    """The descriptors that came with a read; the caller closes them."""
    found: list[int] = []
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found += (number for (number,) in _FD.iter_unpack(data[: len(data) - len(data) % _FD.size]))
    return found


def take(fd: int, size: int) -> memoryview | None:
    """The *size* bytes of a received file, which is closed; ``None`` when it is not sealed, or not of that size.

    The bytes are a mapping that holds a descriptor of its own as long as the message lives. Raises OSError when there
    is no descriptor or address space for it.
    """
    try:
        try:
            seals = fcntl.fcntl(fd, _F_GET_SEALS)
        except OSError:  # no memory file at all
            return None
        if seals & _SEALS != _SEALS or os.fstat(fd).st_size != size or not size:
            return None
        return memoryview(mmap.mmap(fd, size, access=mmap.ACCESS_READ))
    finally:
        os.close(fd)
