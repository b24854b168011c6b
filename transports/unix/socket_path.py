"""A path of messages over one unix stream socket: each message with its length before it.

What shared memory is measured against, and what two processes go on with where there is none.
"""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Callable
from time import monotonic

from actorgrid.errors import ActorGridError, FrameTooLarge, MalformedMessage, PeerGone

from ..paths import Buffer, PathKind, ignore_end, nothing
from ..peer.calls import NetLoop

LARGEST_BYTES = 16 * 2**20
HELD_BYTES = 256 * 1024
"""What waits here for the kernel: with more, ``send`` is refused."""
READ_BYTES = 256 * 1024
_LENGTH = struct.Struct("<I")


class SocketPath:
    """One end of a path (``actorgrid.transports.paths``) over *connected*, which is its own.

    With a *loop* it is told by it; without one, its owner calls ``receive``.
    """

    kind: PathKind = PathKind.UNIX
    largest_bytes = LARGEST_BYTES

    def __init__(self, connected: socket.socket, loop: NetLoop | None = None) -> None:
        self.on_message: Callable[[], None] = nothing
        self.on_room: Callable[[], None] = nothing
        self.on_end: Callable[[ActorGridError], None] = ignore_end
        connected.setblocking(False)
        self._socket = connected
        self._loop = loop
        self._in = bytearray()
        self._out = bytearray()
        self._starves = False
        self._error: ActorGridError | None = None
        self._poll = select.poll()
        self._watch()

    def send(self, message: Buffer) -> bool:
        """As ``MessagePath.send``."""
        if self._error is not None:
            raise self._error
        if len(message) > LARGEST_BYTES:
            raise FrameTooLarge(f"a message of {len(message)} bytes is over the limit of {LARGEST_BYTES}")
        if len(self._out) > HELD_BYTES:
            self._starves = True
            return False
        self._out += _LENGTH.pack(len(message))
        self._out += message
        self._flush()
        return True

    def take(self) -> bytes | None:
        """As ``MessagePath.take``."""
        if len(self._in) >= _LENGTH.size:
            end = _LENGTH.size + int(_LENGTH.unpack_from(self._in)[0])
            if end > _LENGTH.size + LARGEST_BYTES:
                self._end(MalformedMessage("a message is announced that is too large", found=str(end)))
            elif len(self._in) >= end:
                message = bytes(memoryview(self._in)[_LENGTH.size : end])
                del self._in[:end]
                return message
        if self._error is not None:
            raise self._error
        if self._read():
            return self.take()
        return None

    def receive(self, timeout_s: float | None = None) -> bytes | None:
        """For an owner without a loop: the next message; ``None``: none came in time. Raises what ended the path."""
        until = None if timeout_s is None else monotonic() + timeout_s
        while (message := self.take()) is None:
            left = None if until is None else until - monotonic()
            if left is not None and left <= 0:
                return None
            for _fd, events in self._poll.poll(None if left is None else left * 1e3):
                if events & select.POLLOUT:
                    self._flush()
        return message

    def close(self) -> None:
        """As ``MessagePath.close``."""
        if self._loop is not None:
            self._loop.unwatch(self._socket.fileno())
        self._error = self._error or PeerGone("the path is closed")
        self._socket.close()

    def _watch(self) -> None:
        writes = self._flush if self._out else None
        if self._loop is not None:
            self._loop.watch(self._socket.fileno(), self._readable, writes)
        else:
            self._poll.register(self._socket, select.POLLIN | (select.POLLOUT if writes else 0))

    def _readable(self) -> None:
        self.on_message()

    def _read(self) -> bool:
        """Read once; whether something came. What was read is at most a message and one read: a reader who does not
        take reads no more."""
        try:
            data = self._socket.recv(READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        self._in += data
        if not data:
            self._end(PeerGone("the other side of a unix socket is gone"))
        return True

    def _flush(self) -> None:
        waited = bool(self._out)
        try:
            while self._out:
                del self._out[: self._socket.send(self._out)]
        except BlockingIOError:
            waited = True
        except OSError:
            return  # the reader sees the end
        if waited:
            self._watch()
        if self._starves and len(self._out) <= HELD_BYTES:
            self._starves = False
            self.on_room()

    def _end(self, error: ActorGridError) -> None:
        if self._error is None:
            self._error = error
            if self._loop is not None:
                self._loop.unwatch(self._socket.fileno())
            self.on_end(error)
