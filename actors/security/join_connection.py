"""One connection to the join port: bytes of its socket through TLS to the exchange, and answers the same way back."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable

from actorgrid.errors import PeerRefused
from actorgrid.transports.peer.calls import NetLoop
from actorgrid.transports.peer.tls import TlsPipe

from .join_acceptor import ExchangeInstruction, JoinExchange, Redeem
from .joiner import Close, SendBytes

RECEIVE_BYTES = 64 * 1024
BYTES_IN_MAX = 256 * 1024
"""Of TLS, from one connection; one that sends more is cut off."""
LINGER_S = 5.0
"""For the other side to take our last word."""


class JoinConnection:
    """Drives *exchange* over *connection*. *redeem* is asked to carry out a Redeem, *gone* is told when it is over,
    *note* what a person may want to read."""

    def __init__(
        self,
        loop: NetLoop,
        connection: socket.socket,
        context: ssl.SSLContext,
        exchange: JoinExchange,
        wall_s: Callable[[], float],
        redeem: Callable[[JoinConnection, Redeem], None],
        gone: Callable[[JoinConnection], None],
        note: Callable[[str], None],
    ) -> None:
        self.exchange = exchange
        self._loop, self._socket, self._wall_s = loop, connection, wall_s
        self._redeem, self._gone, self._note = redeem, gone, note
        self._pipe = TlsPipe(context, server_side=True)
        self._shaken = False
        self._bytes_in = 0
        self._unsent = b""
        self._leave_at: float | None = None
        self._closed = False
        loop.watch(connection.fileno(), self._readable)

    def do(self, instructions: list[ExchangeInstruction]) -> None:
        """Carry out the exchange's instructions."""
        for instruction in instructions:
            if self._closed:
                return
            if isinstance(instruction, SendBytes):
                self._pipe.write(instruction.data)
            elif isinstance(instruction, Close):
                self._pipe.finish(b"")
                self._leave_at = self._loop.monotonic() + LINGER_S
            else:
                self._redeem(self, instruction)
        self._flush()

    def tick(self) -> None:
        """Check the exchange's time limits."""
        now_s = self._loop.monotonic()
        if self._leave_at is not None and now_s > self._leave_at:
            self.close()
            return
        if not self._closed:
            self.do(self.exchange.tick(now_s))

    def close(self) -> None:
        """Close the connection at once."""
        if self._closed:
            return
        self._closed = True
        self.exchange.closed()
        self._loop.unwatch(self._socket.fileno())
        self._socket.close()
        self._gone(self)

    def _readable(self) -> None:
        try:
            data = self._socket.recv(RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        self._bytes_in += len(data)
        if not data or self._bytes_in > BYTES_IN_MAX:
            self.close()
        elif self._leave_at is None:  # else it has nothing to say any more
            self._take(data)

    def _take(self, data: bytes) -> None:
        self._pipe.feed(data)
        try:
            if not self._shaken:
                self._shaken = self._pipe.handshake()
                if self._shaken:
                    self.do(self.exchange.begin(self._loop.monotonic()))
            while self._shaken and not self._closed:
                text = self._pipe.read()
                if text is None:
                    self.close()
                    return
                if not text:
                    break
                self.do(self.exchange.received(text, self._loop.monotonic(), self._wall_s()))
        except PeerRefused as error:
            self._note(f"a connection to the join port: {error}")
            self.close()
            return
        self._flush()

    def _flush(self) -> None:
        if self._closed:
            return
        self._unsent += self._pipe.take()
        try:
            while self._unsent:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except (BlockingIOError, InterruptedError):
            self._loop.watch(self._socket.fileno(), self._readable, self._flush)
            return
        except OSError:
            self.close()
            return
        self._loop.watch(self._socket.fileno(), self._readable)
        if self._leave_at is not None:
            self._shut()

    def _shut(self) -> None:
        # The other side reads to our end, and closes; closing first could lose what it has not read yet.
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            self.close()
