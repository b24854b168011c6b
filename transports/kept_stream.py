"""A stream of bytes that outlives the connections it goes over: what was under way when one broke goes over the next.

Each side keeps what it has sent until the other says that it has it. The first frame of a connection (frames.py) is
the client's, and says which stream it carries on and how much of it has come; the answer says the same of the other
side, and then both send segments, beginning with what the other lacks::

    ["keep", {"version", "secret", "id", "received"}]   id: 32 hexadecimal digits of the client's choice, new for each
    ["kept", {"received"}]                              stream; received: 0 for one that begins
    ["refused", error]                                  instead of a "kept", and before it hangs up

    segment: kind (1) | size (4, big-endian) | bytes
    DATA   what the stream carries, ``PIECE_BYTES`` at most
    ACK    8 bytes, big-endian: how much has come in all, and was taken
    END    nothing: the stream is over, both ways

Nothing here is taken twice or left out, however often connections break. Bytes in, bytes out; no socket here. Held are
a window (``WINDOW_BYTES``) at most that the other side has not confirmed, and what the connection has not taken of
them; and of what came, no more than that before it is taken. So a side may read its connections always, which it has
to: one that waited with that until its user reads could wait for ever, if the user writes first and the confirmations
lie unread.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import Any, NamedTuple

from actorgrid.errors import ActorGridError, FrameTooLarge, MalformedBody

from .frames import HEADER_BYTES, FrameDecoder, encode_frame

VERSION = 1
WINDOW_BYTES = 4 * 2**20
PIECE_BYTES = 64 * 1024
ACKS_OF_A_WINDOW = 16
"""A side confirms what has come each time that it is such a part of the window."""
ID_CHARS = 32
FIRST_FRAME_BYTES = 16 * 1024
"""The first frame of a connection is no longer."""
DATA, ACK, END = 0, 1, 2
_HEAD = struct.Struct(">BI")
_COUNT = struct.Struct(">Q")
_HEX = frozenset("0123456789abcdef")


class Keep(NamedTuple):
    """The first frame of a connection: which stream it carries on."""

    secret: str
    stream_id: str
    received: int


def encode_keep(secret: str, stream_id: str, received: int) -> bytes:
    """The first frame of a client's connection."""
    return encode_frame(["keep", {"version": VERSION, "secret": secret, "id": stream_id, "received": received}])


def encode_kept(received: int) -> bytes:
    """The frame that takes a connection."""
    return encode_frame(["kept", {"received": received}])


def encode_keep_refused(error: ActorGridError) -> bytes:
    """The frame that refuses a connection; close after it."""
    return encode_frame(["refused", error.to_dict()])


def parse_keep(frame: list[Any]) -> Keep | None:
    """Read the first frame of a connection; ``None`` for one that is no kept stream's. Raises MalformedBody."""
    match frame:
        case [
            "keep",
            {"version": int(version), "secret": str(secret), "id": str(stream_id), "received": int(received)},
        ]:
            if version != VERSION:
                raise MalformedBody("another version of kept streams", asked=str(version), found=str(VERSION))
            if len(stream_id) != ID_CHARS or set(stream_id) - _HEX or received < 0:
                raise MalformedBody("a kept stream's id or count cannot be", found=f"{stream_id[:40]!r}, {received}")
            return Keep(secret, stream_id, received)
        case ["keep", *_]:
            raise MalformedBody("not the first frame of a kept stream")
    return None


def take_first_frame(came: bytearray) -> list[Any] | None:
    """Take the first frame out of what has come over a connection; ``None`` while it is not complete.

    Raises FrameTooLarge, MalformedBody.
    """
    if len(came) < HEADER_BYTES:
        return None
    size = HEADER_BYTES + int.from_bytes(came[:HEADER_BYTES], "big")
    if size > FIRST_FRAME_BYTES:
        raise FrameTooLarge(f"the first frame of a connection announces {size} bytes", found=f"{FIRST_FRAME_BYTES}")
    if len(came) < size:
        return None
    (frame,) = FrameDecoder(FIRST_FRAME_BYTES).feed(bytes(came[:size]))
    del came[:size]
    return frame


class KeptStream:
    """One side of a stream, over all its connections. ``out`` is what the present connection is to be given.

    *window_bytes*: how much may be under way, each way; the same on both sides.
    """

    def __init__(self, window_bytes: int = WINDOW_BYTES) -> None:
        self._window = window_bytes
        self.out = bytearray()
        self.received = 0
        """How much has come, and was taken: what the other side is told."""
        self.ended = False
        """Whether the other side has ended it."""
        self._told = 0  # how much of that was confirmed
        self._untaken = 0  # what came beyond that
        self._unconfirmed: deque[bytes] = deque()
        self._size = 0
        self._confirmed = 0  # of all that was ever sent
        self._end_wanted = False
        self._held = bytearray()  # of a segment that is not complete

    def to_plain(self) -> dict[str, Any]:
        """All of it, for another program in the same process to go on with."""
        kept = {name: getattr(self, name) for name in _COUNTS}
        return {**kept, **{name: bytes(getattr(self, name)) for name in _BUFFERS}, "pieces": list(self._unconfirmed)}

    @classmethod
    def of_plain(cls, plain: dict[str, Any]) -> KeptStream:
        """What ``to_plain`` gave."""
        made = cls()
        for name in _COUNTS:
            setattr(made, name, plain[name])
        for name in _BUFFERS:
            setattr(made, name, bytearray(plain[name]))
        made._unconfirmed.extend(plain["pieces"])
        return made

    @property
    def room(self) -> int:
        """How many bytes ``write`` takes now."""
        return 0 if self._end_wanted else max(0, self._window - self._size)

    def write(self, data: bytes | memoryview) -> int:
        """Take as much of *data* as there is room for; gives how much."""
        taken = min(len(data), self.room)
        with memoryview(data) as view:
            for start in range(0, taken, PIECE_BYTES):
                piece = bytes(view[start : min(start + PIECE_BYTES, taken)])
                self._unconfirmed.append(piece)
                self.out += _HEAD.pack(DATA, len(piece))
                self.out += piece
        self._size += taken
        return taken

    def end(self) -> None:
        """Say that the stream is over."""
        if not self._end_wanted:
            self._end_wanted = True
            self.out += _HEAD.pack(END, 0)

    def connect(self, their_received: int) -> None:
        """Begin with a new connection, whose other side has so much of what was written. Raises MalformedBody.

        What ``feed`` gave and nobody has taken comes again: forget it.
        """
        self._confirm(their_received)
        self._untaken = 0
        self.ended = False  # its end comes again, too
        self._held.clear()
        self.out.clear()
        self._told = self.received
        for piece in self._unconfirmed:
            self.out += _HEAD.pack(DATA, len(piece))
            self.out += piece
        if self._end_wanted:
            self.out += _HEAD.pack(END, 0)

    def feed(self, data: bytes) -> bytes:
        """Take what came; gives what the stream carries of it, in order and once; say ``taken`` of all that it gave.

        Raises MalformedBody.
        """
        held = self._held
        held += data
        found: list[bytes] = []
        at = 0
        while len(held) - at >= _HEAD.size:
            kind, size = _HEAD.unpack_from(held, at)
            if not _SIZES.get(kind, (1, 0))[0] <= size <= _SIZES.get(kind, (1, 0))[1]:
                raise MalformedBody("not a segment of a kept stream", found=f"kind {kind}, {size} bytes")
            start, at_end = at + _HEAD.size, at + _HEAD.size + size
            if len(held) < at_end:
                break
            if self.ended:
                raise MalformedBody("a kept stream goes on after its end")
            if kind == DATA:
                found.append(bytes(held[start:at_end]))
                self._untaken += size
                if self._untaken > self._window:
                    raise MalformedBody("a kept stream sends more than its window", asked=f"{self._window} bytes")
            elif kind == ACK:
                self._confirm(_COUNT.unpack_from(held, start)[0])
            else:
                self.ended = True
            at = at_end
        del held[:at]
        return b"".join(found)

    def taken(self, count: int) -> None:
        """Say that *count* more bytes of what ``feed`` gave are where no broken connection reaches them."""
        self._untaken -= count
        self.received += count
        if self.received - self._told >= self._window // ACKS_OF_A_WINDOW:
            self._told = self.received
            self.out += _HEAD.pack(ACK, _COUNT.size) + _COUNT.pack(self.received)

    def _confirm(self, count: int) -> None:
        new = count - self._confirmed
        if not 0 <= new <= self._size:
            raise MalformedBody(
                "a kept stream is confirmed that was not sent, or was given up",
                asked=f"{self._confirmed} to {self._confirmed + self._size}",
                found=str(count),
            )
        self._confirmed, self._size = count, self._size - new
        while new:
            piece = self._unconfirmed.popleft()
            if len(piece) > new:
                self._unconfirmed.appendleft(piece[new:])
                return
            new -= len(piece)


_COUNTS = ("received", "ended", "_told", "_untaken", "_size", "_confirmed", "_end_wanted")
_BUFFERS = ("out", "_held")
_SIZES = {DATA: (1, PIECE_BYTES), ACK: (_COUNT.size, _COUNT.size), END: (0, 0)}
