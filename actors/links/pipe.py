"""Bytes between a local socket and a stream to another host, both ways, as fast as the slower side takes them.

Holds at most one read of each direction: what has no room yet is not read. Ends when both directions have ended, or
either side is lost.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress

from actorgrid.errors import ActorGridError, PeerGone
from actorgrid.transports.peer.calls import NetLoop, Stream

READ_BYTES = 256 * 2**10


class Pipe:
    """Joins a socket and a stream. *on_over* is called once, when both have ended. *first*: what came by the stream
    before; *said*: what was read of the socket before. *refuse*: gives what the socket is told of an error that ends a
    stream over which nothing has come. *on_bytes*: is told how many bytes came by the stream."""

    def __init__(
        self,
        loop: NetLoop,
        local: socket.socket,
        stream: Stream,
        on_over: Callable[[Pipe], None],
        first: bytes = b"",
        said: bytes = b"",
        refuse: Callable[[ActorGridError], bytes] | None = None,
        on_bytes: Callable[[int], None] | None = None,
    ) -> None:
        self._loop = loop
        self._local = local
        self._stream = stream
        self._on_over = on_over
        self._from_local = said  # read, and not taken by the stream yet
        self._to_local = bytearray(first)  # come by the stream, and not taken by the socket yet
        self._local_ended = False
        self._stream_ended = False
        self._over = False
        self._watched = False, False  # whether for reading, and for writing
        self._refuse = refuse
        self._on_bytes = on_bytes
        local.setblocking(False)
        stream.attach(self._came, self._remote_ended, self._pump_out)
        self._watch()

    def close(self, error: ActorGridError) -> None:
        """End both sides now; the other host is told *error*."""
        self._stream.reset(error)
        self._finish()

    # -- from the local side

    def _read(self) -> None:
        try:
            data = self._local.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self.close(PeerGone(f"the local end of a relay is gone: {error}"))
            return
        if not data:
            self._local_ended = True
            self._stream.end()
            self._settle()
            return
        self._from_local = data
        self._pump_out()

    def _pump_out(self) -> None:
        if self._over or not self._from_local:
            return
        try:
            taken = self._stream.write(self._from_local)
        except ActorGridError:
            self._finish()
            return
        self._from_local = self._from_local[taken:] if taken else self._from_local
        self._watch()

    # -- from the other host

    def _came(self, data: bytes) -> None:
        self._refuse = None
        if self._on_bytes is not None:
            self._on_bytes(len(data))
        if self._to_local or self._over:
            self._to_local += data
            return  # the socket takes no more now: it says when it does
        try:
            sent = self._local.send(data)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self.close(PeerGone(f"the local end of a relay is gone: {error}"))
            return
        if sent:
            self._stream.consumed(sent)
        if sent < len(data):
            self._to_local += memoryview(data)[sent:]
            self._watch()

    def _pump_in(self) -> None:
        if self._over:
            return
        sent = 0
        if self._to_local:
            try:
                sent = self._local.send(self._to_local)
            except BlockingIOError:
                sent = 0
            except OSError as error:
                self.close(PeerGone(f"the local end of a relay is gone: {error}"))
                return
            del self._to_local[:sent]
            self._stream.consumed(sent)
        if self._stream_ended and not self._to_local:
            try:
                self._local.shutdown(socket.SHUT_WR)
            except OSError:
                self._finish()
                return
        self._settle()

    def _remote_ended(self, error: ActorGridError | None) -> None:
        if error is not None:
            if self._refuse is not None and not self._over:
                with suppress(OSError):  # it left
                    self._local.send(self._refuse(error))
            self._finish()
            return
        self._stream_ended = True
        self._pump_in()

    # -- both

    def _settle(self) -> None:
        if self._local_ended and self._stream_ended and not self._to_local:
            self._finish()
        else:
            self._watch()

    def _watch(self) -> None:
        if self._over:
            return
        wants = not self._from_local and not self._local_ended, bool(self._to_local)
        if wants == self._watched:
            return  # a system call or two, for each piece of a stream
        self._watched = wants
        if wants == (False, False):
            self._loop.unwatch(self._local.fileno())
        else:
            read, write = self._read if wants[0] else None, self._pump_in if wants[1] else None
            self._loop.watch(self._local.fileno(), read, write)

    def _finish(self) -> None:
        if self._over:
            return
        self._over = True
        self._loop.unwatch(self._local.fileno())
        self._local.close()
        self._on_over(self)
