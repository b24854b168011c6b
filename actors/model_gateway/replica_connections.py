"""Connections to replicas: HTTP/1.1 over loopback, or over mutual TLS to the gateway of a replica's host.

Idle ones are kept for each replica, the last used first, for less time than servers keep them (uvicorn: 5 s). One that
was cut short, said something unasked or was left in the middle of an answer is never used again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, cast

import httptools

from actorgrid.actors.serving.table import ReplicaEndpoint

from .request_head import AnswerHead, answer_head, usual_answer

if TYPE_CHECKING:
    import ssl

IDLE_S = 4.0
IDLE_MAX = 64
"""Idle connections that are kept for one replica."""
JOINED_MAX = 16 * 1024
"""A longer body is not copied to stand behind its head."""
ANSWER_HEAD_MAX = 64 * 1024


class AnswerTaker(Protocol):
    """Who waits for an answer."""

    def answer_began(self, head: AnswerHead) -> None:
        """Its head has come."""

    def answer_body(self, data: bytes) -> None:
        """The next piece of the body."""

    def flush(self) -> None:
        """That was all for now."""

    def answer_ended(self, can_be_used_again: bool) -> None:
        """It is whole."""

    def answer_broke(self, why: str, heard_anything: bool) -> None:
        """The connection broke, or what came is no HTTP."""


class ReplicaConnection(asyncio.Protocol):
    """One connection, for one request at a time."""

    def __init__(self, pool: ReplicaPool, attempt: str) -> None:
        self._pool = pool
        self.attempt = attempt
        self.taker: AnswerTaker | None = None
        self.transport: asyncio.Transport | None = None
        self.idle_since = 0.0
        self._forget()

    def _forget(self) -> None:
        self._parser: httptools.HttpResponseParser | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0
        self._pieces: list[bytes] = []
        self._has_head = self._is_whole = self._is_interim = self._heard = False
        self._is_framed = self._keeps_alive = False

    # -- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is there."""
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """The replica said something."""
        taker = self.taker
        if taker is None:
            self.close()
            return
        if not self._heard and self._take_whole(taker, data):
            return
        self._heard = True
        if self._parser is None:
            self._parser = httptools.HttpResponseParser(self)
        if not self._has_head:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            if not self._is_whole:
                self._break("what the replica answered is not HTTP")
                return
            self._is_framed = False  # the answer is whole, and more came that nobody asked for: never again
        if not self._has_head and self._head_bytes > ANSWER_HEAD_MAX:
            self._break("the head of the replica's answer is too long")
            return
        if self._pieces and self.taker is taker:
            pieces, self._pieces = self._pieces, []
            taker.answer_body(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        if self._is_whole and self.taker is taker:
            self.taker = None
            again = self._keeps_alive and self._is_framed
            self._forget()
            taker.answer_ended(again)
            if not again:
                self.close()
        elif self.taker is taker:
            taker.flush()

    def _take_whole(self, taker: AnswerTaker, data: bytes) -> bool:
        """Take the answer that *data* is, where it is a usual one from its first byte to its last."""
        found = usual_answer(data)
        if found is None:
            return False
        head, size = found
        if len(data) != size + (head.content_length or 0) or size > ANSWER_HEAD_MAX:
            return False
        taker.answer_began(head)
        if len(data) > size and self.taker is taker:
            taker.answer_body(data[size:])
        if self.taker is taker:
            self.taker = None
            taker.answer_ended(True)
        return True

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is over."""
        self._pool.forget(self)
        taker, self.taker = self.taker, None
        if taker is None:
            return
        if self._has_head and not self._is_framed and error is None:
            taker.answer_ended(False)  # the end of the connection is the end of such an answer
        else:
            taker.answer_broke("the replica closed the connection", self._heard)

    # -- httptools' side

    def on_message_begin(self) -> None:
        """An answer begins: none is expected after the first."""
        if self._is_whole:
            raise RuntimeError("an answer that nobody asked for")

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header."""
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """The head is whole."""
        assert self._parser is not None, "it calls"
        status = self._parser.get_status_code()
        if status < 200:
            self._is_interim = True
            return
        self._has_head = True
        self._keeps_alive = self._parser.should_keep_alive()  # it knows that here, and not once all is read
        length: int | None = None
        for name, value in self._headers:
            if name == b"content-length" and value.isdigit() and len(value) < 16:
                length = int(value)
                self._is_framed = True
            elif name == b"transfer-encoding":
                self._is_framed = True
        if status in (204, 304):
            self._is_framed = True
        if self.taker is not None:
            self.taker.answer_began(answer_head(status, self._headers, length))

    def on_body(self, data: bytes) -> None:
        """A part of the body."""
        self._pieces.append(data)

    def on_message_complete(self) -> None:
        """The answer is whole, or was an interim one."""
        if self._is_interim:
            self._is_interim = False
            self._headers = []
            return
        self._is_whole = True

    # -- the exchange's side

    def ask(self, taker: AnswerTaker, head: bytes, body: bytes = b"") -> None:
        """Send a request."""
        assert self.transport is not None
        self.taker = taker
        if len(body) <= JOINED_MAX:
            self.transport.write(head + body)
        else:
            self.transport.write(head)
            self.transport.write(body)  # the loop hands both to the system at once

    def pause(self) -> None:
        """Read no more for now: whoever is to get it does not read."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def close(self) -> None:
        """End it now; whoever waits is not told."""
        self.taker = None
        if self.transport is not None:
            self.transport.abort()

    def _break(self, why: str) -> None:
        taker = self.taker
        heard = self._heard
        self.close()
        if taker is not None:
            taker.answer_broke(why, heard)


class ReplicaPool:
    """The connections of one gateway process."""

    def __init__(self, host: Callable[[], str], tls: Callable[[], ssl.SSLContext | None]) -> None:
        self._host = host
        self._tls = tls
        self._idle: dict[str, list[ReplicaConnection]] = {}
        self.opened_total = 0

    def is_local(self, endpoint: ReplicaEndpoint) -> bool:
        """Whether the replica runs on this host."""
        return endpoint.host == self._host()

    def take(self, endpoint: ReplicaEndpoint) -> ReplicaConnection | None:
        """An idle connection to that replica."""
        idle = self._idle.get(endpoint.attempt)
        while idle:
            found = idle.pop()
            if found.transport is not None and not found.transport.is_closing():
                return found
        return None

    async def open(self, endpoint: ReplicaEndpoint) -> ReplicaConnection:
        """A new one. Raises OSError, or TimeoutError by whoever waits."""
        self.opened_total += 1
        loop = asyncio.get_running_loop()
        if self.is_local(endpoint):
            _, made = await loop.create_connection(
                lambda: ReplicaConnection(self, endpoint.attempt), "127.0.0.1", endpoint.port
            )
            return made
        address, _, port = endpoint.gateway.rpartition(":")
        context = self._tls()
        if context is None or not address or not port.isdigit():
            raise OSError("the gateway of the replica's host is not known, or this host is alone")
        _, made = await loop.create_connection(
            lambda: ReplicaConnection(self, endpoint.attempt), address.strip("[]"), int(port), ssl=context,
            server_hostname="",
        )  # fmt: skip
        return made

    def keep(self, connection: ReplicaConnection, now: float) -> None:
        """Keep a connection that can be used again."""
        idle = self._idle.setdefault(connection.attempt, [])
        if len(idle) >= IDLE_MAX or connection.transport is None or connection.transport.is_closing():
            connection.close()
            return
        connection.idle_since = now
        idle.append(connection)

    def forget(self, connection: ReplicaConnection) -> None:
        """One is over."""
        idle = self._idle.get(connection.attempt)
        if idle is not None and connection in idle:
            idle.remove(connection)

    def sweep(self, now: float, attempts: set[str]) -> None:
        """Close what was idle for long, and what leads to replicas that are gone."""
        for attempt in list(self._idle):
            idle = self._idle[attempt]
            over = [each for each in idle if attempt not in attempts or now - each.idle_since > IDLE_S]
            self._idle[attempt] = [each for each in idle if each not in over]
            for each in over:
                each.close()
            if not self._idle[attempt]:
                del self._idle[attempt]

    def close(self) -> None:
        """Close all that are idle."""
        self.sweep(0.0, set())
