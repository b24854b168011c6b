"""The memory of one path and its two bells, and how they go from one process to the other over a unix socket.

Who offers makes a memfd with two rings, seals it against change of its size, and two eventfds, and sends the three with
one line that says what they are. Who takes believes nothing of that: memory that could be cut short under it would end
it by SIGBUS, and a bell that is something else could block it.
"""

from __future__ import annotations

import array
import fcntl
import mmap
import os
import socket
import struct
from typing import NamedTuple

from actorgrid.errors import NotSupported, PeerGone, PeerRefused
from actorgrid.hotpath import COMPILED

OFFER = struct.Struct("<8sHxxI")
MAGIC = b"agrings\0"
VERSION = 1
TAKEN = b"T"
REFUSED = b"R"
HEADER_BYTES = 256
RING_BYTES = 256 * 1024
"""Of a path for messages, each way."""
RING_BYTES_MAX = 64 * 2**20
OFFER_S = 10.0
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_EVENTFD = "anon_inode:[eventfd]"


class PathSegment(NamedTuple):
    """A mapped memory with two rings, and the bells of its sides. All descriptors are the owner's to close."""

    memory: mmap.mmap
    ring_bytes: int
    own_bell: int
    """Rung by the other side."""
    other_bell: int
    offered: bool
    """Whether this side made it: it pushes to the first ring."""

    def close(self) -> None:
        """Close the bells. The memory goes with the last who looks at it."""
        os.close(self.own_bell)
        os.close(self.other_bell)


def unavailable() -> str:
    """Why there are no paths through shared memory here; empty where there are."""
    if not COMPILED:
        return "the kernels are not compiled, and plain Python has no fences between processes"
    if not hasattr(os, "memfd_create") or not hasattr(os, "eventfd"):
        return "this system has no memfd or no eventfd"
    return ""


def segment_bytes(ring_bytes: int) -> int:
    """How large the memory is of two rings of that many bytes."""
    return 2 * (HEADER_BYTES + ring_bytes)


def offer(to: socket.socket, ring_bytes: int = RING_BYTES) -> PathSegment:
    """Offer shared memory over a connected unix socket, and wait for the answer, which has to come within 10 s.

    Raises NotSupported where there is none here, or the other side does not take it (what it says is in ``found``): go
    on over the socket then, which is as it was. Raises PeerGone.
    """
    if why := unavailable():
        raise NotSupported(f"no shared memory: {why}")
    fd = os.memfd_create("actorgrid-path", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    bells: list[int] = []
    try:
        os.ftruncate(fd, segment_bytes(ring_bytes))
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        memory = mmap.mmap(fd, segment_bytes(ring_bytes))
        bells += [os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK) for _ in range(2)]
        to.settimeout(OFFER_S)
        socket.send_fds(to, [OFFER.pack(MAGIC, VERSION, ring_bytes)], [fd, *bells])
        answer = to.recv(1)
        if answer == REFUSED:
            length = to.recv(1)
            raise NotSupported(
                "the other side takes no shared memory", found=to.recv(length[0] if length else 1).decode()
            )
        if answer != TAKEN:
            raise PeerGone("the other side went away while shared memory was offered")
    except BaseException as error:
        for bell in bells:
            os.close(bell)
        if isinstance(error, OSError):
            raise PeerGone(f"shared memory could not be offered: {error}") from error
        raise
    finally:
        os.close(fd)
    to.setblocking(False)
    return PathSegment(memory, ring_bytes, bells[0], bells[1], offered=True)


def take(of: socket.socket) -> PathSegment:
    """Take what the other side of a connected unix socket offers, which has to come within 10 s.

    Raises PeerRefused where that is not what it has to be (the other side is told, and goes on over the socket), and
    PeerGone.
    """
    fds: list[int] = []
    try:
        of.settimeout(OFFER_S)
        data, fds = _receive(of)
        memory, ring_bytes = _checked(data, fds)
        of.send(TAKEN)
    except PeerRefused as error:
        _close_all(fds)
        said = error.message.encode()[:255]
        try:
            of.send(REFUSED + bytes([len(said)]) + said)
        except OSError as gone:
            raise PeerGone(f"the other side went away: {gone}") from error
        raise
    except OSError as error:
        _close_all(fds)
        raise PeerGone(f"shared memory could not be taken: {error}") from error
    os.close(fds[0])
    of.setblocking(False)
    return PathSegment(memory, ring_bytes, fds[2], fds[1], offered=False)


def _receive(of: socket.socket) -> tuple[bytes, list[int]]:
    found: array.array[int] = array.array("i")
    data, ancillary, _, _ = of.recvmsg(OFFER.size, socket.CMSG_SPACE(3 * found.itemsize), socket.MSG_CMSG_CLOEXEC)
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(payload[: len(payload) - len(payload) % found.itemsize])
    if not data:
        _close_all(list(found))
        raise PeerGone("the other side went away before it offered shared memory")
    return data, list(found)


def _checked(data: bytes, fds: list[int]) -> tuple[mmap.mmap, int]:
    """The mapped memory and the size of its rings. Raises PeerRefused."""
    if why := unavailable():
        raise PeerRefused(f"no shared memory: {why}")
    if len(data) != OFFER.size or len(fds) != 3:
        raise PeerRefused("not an offer of shared memory", found=f"{len(data)} bytes, {len(fds)} descriptors")
    magic, version, ring_bytes = OFFER.unpack(data)
    if magic != MAGIC or version != VERSION:
        raise PeerRefused("another version of shared memory", asked=str(VERSION), found=f"{magic!r} {version}")
    size = segment_bytes(ring_bytes)
    try:
        if not 4096 <= ring_bytes <= RING_BYTES_MAX or ring_bytes & (ring_bytes - 1):
            raise PeerRefused("rings of a size that is not allowed", found=str(ring_bytes))
        if fcntl.fcntl(fds[0], fcntl.F_GET_SEALS) & _SEALS != _SEALS or os.fstat(fds[0]).st_size != size:
            raise PeerRefused("memory that is not sealed at its size", asked=f"{size} bytes")
        for bell in fds[1:]:
            if os.readlink(f"/proc/self/fd/{bell}") != _EVENTFD:
                raise PeerRefused("a bell that is no eventfd")
            os.set_blocking(bell, False)
        return mmap.mmap(fds[0], size), ring_bytes
    except (OSError, ValueError) as error:
        raise PeerRefused(f"memory that cannot be used: {error}") from error


def _close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)
