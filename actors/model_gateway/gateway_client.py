"""A client's connection: requests are cut out of its bytes here, one at a time.

The next request is not looked at before the last is answered: what a client sends ahead is held, up to 64 kB, and then
not read. (httptools would call back for several requests within one read, and answers would be mixed up.) Reading goes
on while a request is answered, so that a client that is gone is noticed in each phase. The end of what a client sends
counts for that too: nobody who wants an answer closes half of a connection.

Bounds: a head of 64 kB within 10 s, a body of 32 MiB with 30 s between its pieces, 75 s between two requests, 60 s in
which a client reads nothing.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from .chunked_body import ChunkedBody, too_large
from .exchange import Exchange, RequestDeadline
from .refusals import RequestRefused, status_line
from .request_head import BODY_MAX, HEAD_MAX, RequestHead, parse_head, usual_head

if TYPE_CHECKING:
    from .gateway import ModelGateway

HEAD_S, BODY_IDLE_S, IDLE_S, STALLED_S = 10.0, 30.0, 75.0, 60.0
AHEAD_MAX = 64 * 1024
HIGH_WATER = 64 * 1024
LINGER_S = 2.0
"""How long what a client still sends is read and thrown away after a refusal, so that it gets to read that."""


class GatewayClient(asyncio.Protocol):
    """One connection. *is_peer*: of another host's gateway, which names the replica."""

    def __init__(self, gateway: ModelGateway, is_peer: bool) -> None:
        self.gateway = gateway
        self.is_peer = is_peer
        self.transport: asyncio.Transport | None = None
        self.source = ""
        """The address, of another machine."""
        self.host = ""
        """The host whose gateway it is."""
        self._held = bytearray()
        self._head: RequestHead | None = None
        self._chunks: ChunkedBody | None = None
        self._exchange: Exchange | None = None
        self._is_reading = True
        self.is_stalled = False
        self._is_closing = False
        self.due_at: float | None = None
        self.wheel_at: float | None = None
        self.request_deadline = RequestDeadline()

    # -- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there."""
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=HIGH_WATER)
        address = transport.get_extra_info("peername")
        self.source = self.gateway.source_of(address[0] if isinstance(address, tuple) else "")
        if self.is_peer:
            self.host = self.gateway.peers.host_of(transport.get_extra_info("ssl_object")) or ""
        if not self.gateway.admits(self) or (self.is_peer and not self.host):
            self.transport.abort()
            return
        self._wait(IDLE_S)

    def connection_lost(self, error: Exception | None) -> None:
        """The client is gone."""
        self.gateway.forget(self)
        self.due_at = None
        self._is_closing = True
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.client_gone()

    def eof_received(self) -> bool:
        """The client sends no more: it is gone."""
        return False

    def data_received(self, data: bytes) -> None:
        """The client sent something."""
        if self._is_closing:
            return
        if not self._held and self._exchange is None and self._head is None and self._take_whole(data):
            return
        self._held += data
        if self._exchange is None:
            self._read()
        elif len(self._held) > AHEAD_MAX and self._is_reading:
            self._is_reading = False
            self._stream.pause_reading()

    def pause_writing(self) -> None:
        """The client does not read: nothing more for it is read from the replica."""
        self.is_stalled = True
        self._wait(STALLED_S)
        if self._exchange is not None:
            self._exchange.pause()

    def resume_writing(self) -> None:
        """The client reads again."""
        self.is_stalled = False
        if self._exchange is not None:
            self.due_at = None
            self._exchange.resume()

    def ran_out(self, now: float) -> None:
        """The client took too long."""
        if self._exchange is None and self._head is not None:
            self._refuse(RequestRefused(408, "the body of the request did not come in time", "timeout", closes=True))
        elif self._exchange is None and self._held and not self._is_closing:
            self._refuse(RequestRefused(408, "the head of the request did not come in time", "timeout", closes=True))
        else:
            self._stream.abort()

    # -- requests

    @property
    def _stream(self) -> asyncio.Transport:
        assert self.transport is not None, "bytes come after the connection"
        return self.transport

    def _wait(self, seconds: float) -> None:
        self.gateway.wheel.put(self, self.gateway.now() + seconds)

    def _read(self) -> None:
        """Take a request from what is held, if there is a whole one."""
        try:
            while self._exchange is None and not self._is_closing:
                if self._head is None and not self._read_head():
                    return
                head = self._head
                if head is not None:
                    body = self._read_body(head)
                    if body is None:
                        self._wait(BODY_IDLE_S)
                        return
                    self._head = self._chunks = None
                    self._begin(head, body)
        except RequestRefused as refused:
            self._refuse(refused)

    def _take_whole(self, data: bytes) -> bool:
        """Take the request that *data* is, where it is one from the first byte to the last: it is not copied then."""
        found = usual_head(data)
        if found is None:
            return False
        head, size = found
        length = head.content_length or 0
        if len(data) != size + length or size > HEAD_MAX:
            return False
        try:
            self.gateway.check_memory(length)
        except RequestRefused as refused:
            self._refuse(refused)
            return True
        self._is_timed = False
        self._begin(head, data[size:])
        return True

    def _begin(self, head: RequestHead, body: bytes) -> None:
        self.due_at = None
        self._exchange = exchange = Exchange(self, head, body)
        exchange.start()

    def _read_head(self) -> bool:
        held = self._held
        while held[:2] == b"\r\n":  # an empty line before a request is let pass, as RFC 9112 (2.2) wishes
            del held[:2]
        end = held.find(b"\r\n\r\n", 0, HEAD_MAX + 4)
        if end < 0:
            if len(held) > HEAD_MAX:
                raise RequestRefused(431, f"the head of a request has at most {HEAD_MAX} bytes", "head", closes=True)
            if held and (self.due_at is None or self.wheel_at is None or not self._is_timed):
                self._is_timed = True
                self._wait(HEAD_S)
            return False
        self._is_timed = False
        head = parse_head(bytes(held[: end + 4]))
        del held[: end + 4]
        if head.content_length is not None and head.content_length > BODY_MAX:
            raise too_large(BODY_MAX)
        self.gateway.check_memory(head.content_length or 0)
        self._head = head
        if head.is_chunked:
            self._chunks = ChunkedBody(BODY_MAX)
        if head.expects_continue and not held:
            self._stream.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return True

    _is_timed = False
    """Whether the time of a head runs."""

    def _read_body(self, head: RequestHead) -> bytes | None:
        if self._chunks is not None:
            if not self._chunks.feed(self._held):
                self.gateway.check_memory(len(self._chunks.body))
                return None
            return bytes(self._chunks.body)
        length = head.content_length or 0
        if len(self._held) < length:
            return None
        body = bytes(memoryview(self._held)[:length]) if length else b""
        del self._held[:length]
        return body

    def finished(self, keeps_alive: bool) -> None:
        """The answer is whole: the next request's turn."""
        self._exchange = None
        if self._is_closing:
            return
        if not keeps_alive or self.gateway.is_draining:
            self._is_closing = True
            self._stream.close()
            self._wait(STALLED_S)
            return
        if not self._is_reading:
            self._is_reading = True
            self._stream.resume_reading()
        self._wait(IDLE_S)
        if self._held:
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        if self._exchange is None and not self._is_closing:
            self._read()

    def send(self, data: bytes) -> None:
        """Send to the client."""
        if not self._is_closing:
            self._stream.write(data)

    def replica_is_wedged(self, attempt: str) -> None:
        """A replica does not answer: a request that waits for its first byte from there goes to another."""
        if self._exchange is not None:
            self._exchange.replica_is_wedged(attempt)

    def close_if_idle(self) -> None:
        """End the connection where no request is on it: the gateway stops."""
        if self._exchange is None and not self._is_closing:
            self._is_closing = True
            self._stream.close()
            if self._stream.get_write_buffer_size():
                self._wait(STALLED_S)  # of the last answer something has not gone out yet
            else:
                self.gateway.forget(self)  # nothing is owed to it, whenever it says goodbye

    def _refuse(self, refused: RequestRefused) -> None:
        """Answer what could not be read as a request; the connection ends, as nobody knows where the next begins."""
        body = refused.body()
        lines = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        lines += [(b"x-request-id", self.gateway.next_request_id()), (b"connection", b"close"), *refused.headers()]
        self._stream.write(
            status_line(refused.status) + b"".join(b"%s: %s\r\n" % line for line in lines) + b"\r\n" + body
        )
        self.gateway.figures.refused_total += 1
        self._is_closing = True
        self._held.clear()
        # Closed with what it sent unread, a connection is reset, and the refusal may never be read.
        self._stream.write_eof() if self._stream.can_write_eof() else self._stream.close()
        self._wait(LINGER_S)
