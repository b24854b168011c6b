"""What the two ends of an RDMA path say: heads of messages in a pair's slots, and frames on the TLS stream beside it.

All numbers are big-endian. Bytes in, values out; a wrong one is MalformedMessage.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, NamedTuple

from actorgrid.errors import MalformedMessage

VERSION: Final = 1
"""Two hosts of other versions stay with TLS: the frames up to Hello, MESSAGE and CONSUMED are those of each version."""
FRAME_BYTES_MAX: Final = 4 * 2**20 + 64

HEAD: Final = struct.Struct(">BxHIQQQ")
"""kind, epoch, bytes of the message, its number, how many of the receiver's were consumed, how many left slots."""
WHERE: Final = struct.Struct(">QI")
"""Where a message is to be fetched: address and key."""
EAGER, FETCH, REPORT = 1, 2, 3

_FRAME = struct.Struct(">BI")
_HELLO = struct.Struct(">HB8s8sQ")
_OFFER = struct.Struct(">HIIB16sIH")
_EPOCH = struct.Struct(">H")
_MESSAGE = struct.Struct(">QQ")
_CONSUMED = struct.Struct(">Q")
REASON_BYTES_MAX = 200


class PathFrame(IntEnum):
    """The kinds of frames on the TLS stream."""

    HELLO = 1
    OFFER = 2
    ANSWER = 3
    READY = 4
    DROPPED = 5
    MESSAGE = 6
    CONSUMED = 7


class PathHello(NamedTuple):
    """The first frame of each side. *opening* names this life of the process's path, *theirs* the one it knows of the
    other side (zeros: none), and *arrived* how many messages of that one came."""

    version: int
    usable: bool
    opening: bytes
    theirs: bytes
    arrived: int


class PairDetails(NamedTuple):
    """One side of a pair: how the other reaches it."""

    epoch: int
    qp_number: int
    packet_number: int
    mtu: int
    gid: bytes
    slot_bytes: int
    credits: int


def encode_frame(kind: PathFrame, body: bytes) -> bytes:
    """A frame of the TLS stream."""
    return _FRAME.pack(kind, len(body)) + body


def encode_hello(hello: PathHello) -> bytes:
    """A Hello as a frame."""
    return encode_frame(PathFrame.HELLO, _HELLO.pack(*hello))


def decode_hello(body: bytes) -> PathHello:
    """A later version may say more behind these fields. Raises MalformedMessage."""
    if len(body) < _HELLO.size:
        raise MalformedMessage("a Hello of an RDMA path that is too short", found=f"{len(body)} bytes")
    version, usable, opening, theirs, arrived = _HELLO.unpack_from(body)
    return PathHello(version, bool(usable), opening, theirs, arrived)


def encode_details(kind: PathFrame, details: PairDetails) -> bytes:
    """An OFFER or an ANSWER as a frame."""
    return encode_frame(kind, _OFFER.pack(*details))


def decode_details(body: bytes) -> PairDetails:
    """Raises MalformedMessage: for what no device could have said, too."""
    if len(body) != _OFFER.size:
        raise MalformedMessage("a frame of an RDMA path of a wrong length", found=f"{len(body)} bytes")
    details = PairDetails(*_OFFER.unpack(body))
    if details.qp_number >= 2**24 or details.packet_number >= 2**24 or not 1 <= details.mtu <= 5:
        raise MalformedMessage("details of a pair that cannot be", found=str(details)[:200])
    if not HEAD.size + WHERE.size <= details.slot_bytes <= 2**20 or not 1 <= details.credits <= 2**15:
        raise MalformedMessage("a pair with slots or credits that cannot be", found=str(details)[:200])
    return details


def encode_epoch(kind: PathFrame, epoch: int, reason: str = "") -> bytes:
    """A READY or a DROPPED as a frame."""
    return encode_frame(kind, _EPOCH.pack(epoch) + reason.encode(errors="replace")[:REASON_BYTES_MAX])


def decode_epoch(body: bytes) -> tuple[int, str]:
    """An epoch, and a reason. Raises MalformedMessage."""
    if len(body) < _EPOCH.size:
        raise MalformedMessage("a frame of an RDMA path that is too short", found=f"{len(body)} bytes")
    text = body[_EPOCH.size : _EPOCH.size + REASON_BYTES_MAX].decode(errors="replace")
    return _EPOCH.unpack_from(body)[0], "".join(letter if letter.isprintable() else "?" for letter in text)


def encode_message(number: int, consumed: int, data: bytes) -> bytes:
    """A MESSAGE as a frame."""
    return _FRAME.pack(PathFrame.MESSAGE, _MESSAGE.size + len(data)) + _MESSAGE.pack(number, consumed) + data


def decode_message(body: bytes) -> tuple[int, int, bytes]:
    """Number, how many of ours were consumed, and the bytes. Raises MalformedMessage."""
    if len(body) < _MESSAGE.size:
        raise MalformedMessage("a message of an RDMA path that is too short", found=f"{len(body)} bytes")
    number, consumed = _MESSAGE.unpack_from(body)
    return number, consumed, body[_MESSAGE.size :]


def encode_consumed(consumed: int) -> bytes:
    """A CONSUMED as a frame."""
    return encode_frame(PathFrame.CONSUMED, _CONSUMED.pack(consumed))


def decode_consumed(body: bytes) -> int:
    """Raises MalformedMessage."""
    if len(body) != _CONSUMED.size:
        raise MalformedMessage("a frame of an RDMA path of a wrong length", found=f"{len(body)} bytes")
    return int(_CONSUMED.unpack(body)[0])


class FrameCutter:
    """Cuts the TLS stream into frames. Holds at most one, and what was fed beyond it."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> None:
        """Take bytes in; ``next`` gives what they complete."""
        self._held += data

    def next(self) -> tuple[int, bytes] | None:
        """The next frame's kind and body; ``None`` while it is not complete. Raises MalformedMessage."""
        if len(self._held) < _FRAME.size:
            return None
        kind, length = _FRAME.unpack_from(self._held)
        if length > FRAME_BYTES_MAX:
            raise MalformedMessage("a frame of an RDMA path that is too long", found=f"{length} bytes")
        end = _FRAME.size + length
        if len(self._held) < end:
            return None
        body = bytes(memoryview(self._held)[_FRAME.size : end])
        del self._held[:end]
        return kind, body
