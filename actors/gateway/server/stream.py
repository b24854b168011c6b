"""Answers that go on: events and raw bytes, to clients that may be slow or gone.

What is told is the same to a client that reads server-sent events and to one with a WebSocket (``websocket.py``).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import Protocol

from aiohttp import web

from .codec import encode_json
from .hub import GAP, Item, Listener
from .route import REQUEST_STATE

HEARTBEAT_S = 15.0
WRITE_TIMEOUT_S = 10.0
"""A client that takes nothing for this long is cut off."""
FAREWELL_S = 2.0
"""Given to the last words to a client that is being cut off."""
TOGETHER_BYTES_MAX = 64 * 1024
"""Events that are there at once go out in pieces of about that size."""


async def write(
    request: web.Request, response: web.StreamResponse, data: bytes, last_words: bytes = b"", within_s: float = 0.0
) -> None:
    """Send a piece; a client that does not take it in time is cut off, with *last_words* if it ever reads on.

    Raises ConnectionError when the client is gone. Nothing is cancelled while it waits for room: a cancelled
    wait would make aiohttp's writer cancel whoever waits next.
    """
    loop = asyncio.get_running_loop()
    timer = loop.call_later(within_s or WRITE_TIMEOUT_S, _give_up, request, response, last_words)
    try:
        await response.write(data)
    finally:
        timer.cancel()


def _give_up(request: web.Request, response: web.StreamResponse, last_words: bytes) -> None:
    transport = request.transport
    if transport is not None and not transport.is_closing():
        if last_words and response.chunked:
            # Past aiohttp's writer, which is waiting for room.
            transport.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(last_words), last_words))
        cut_off(request)


def cut_off(request: web.Request) -> None:
    """Close the connection although the client still has it open, dropping what it does not take in time."""
    transport = request.transport
    if transport is not None:
        transport.close()
        asyncio.get_running_loop().call_later(FAREWELL_S, transport.abort)


def gone(request: web.Request) -> bool:
    """Whether the client hung up."""
    return request.transport is None or request.transport.is_closing()


async def begin(request: web.Request, content_type: str, headers: dict[str, str] | None = None) -> web.StreamResponse:
    """Send the head of a chunked answer; from here on an error can only break it off."""
    response = web.StreamResponse(headers=headers)
    response.content_type = content_type
    # Before the head goes out: an error that comes while it does cannot be answered any more.
    REQUEST_STATE.get().streaming = True
    await response.prepare(request)
    return response


async def send_bytes(
    request: web.Request, pieces: AsyncGenerator[bytes], headers: dict[str, str]
) -> web.StreamResponse:
    """Send raw bytes, chunked, until *pieces* end. A client that is gone or too slow ends it early."""
    # Left unfinished, a generator is closed some time later; what it has open is to be closed now.
    async with aclosing(pieces):
        response = await begin(request, "application/octet-stream", headers)
        async for piece in pieces:
            await write(request, response, piece)
    await response.write_eof()
    return response


def sse(data: bytes, event: str = "", event_id: int | str = 0) -> bytes:
    """The bytes of a server-sent event; *data* holds no line break (our JSON never does)."""
    head = f"event: {event}\n".encode() if event else b""
    if event_id:
        head += f"id: {event_id}\n".encode()
    return head + b"data: " + data + b"\n\n"


class EventSink(Protocol):
    """Where the events of one client go. Each method raises ConnectionError when it is gone, or was too slow."""

    @property
    def response(self) -> web.StreamResponse:
        """What the handler gives back, once it was begun."""

    async def begin(self) -> None:
        """Send the head: from here on an error can only break it off."""

    async def send(self, data: bytes, event: str = "", event_id: int | str = 0) -> None:
        """Send an event; *data* is JSON. Without a name it is a ``message``."""

    def together(self) -> AbstractAsyncContextManager[None]:
        """Within it what is sent may wait for what follows it; all of it has gone out at the end."""

    async def still_here(self) -> None:
        """A sign of life, where the transport has none of its own."""

    async def end(self, reason: str) -> None:
        """Say why nothing more comes, and hang up."""


class ServerSentEvents:
    """Events as ``text/event-stream``."""

    response: web.StreamResponse

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self._held: bytearray | None = None

    async def begin(self) -> None:
        """As of ``EventSink``."""
        self.response = await begin(self._request, "text/event-stream", {"X-Accel-Buffering": "no"})
        await self._write(b": listening\n\n")

    async def send(self, data: bytes, event: str = "", event_id: int | str = 0) -> None:
        """As of ``EventSink``."""
        text = sse(data, event, event_id)
        if self._held is None:
            await self._write(text)
            return
        self._held += text
        if len(self._held) >= TOGETHER_BYTES_MAX:
            await self._write_held()

    @asynccontextmanager
    async def together(self) -> AsyncGenerator[None]:
        """As of ``EventSink``: one system call, and one time that the client wakes, for many small events."""
        self._held = bytearray()
        try:
            yield
            await self._write_held()
        finally:
            self._held = None

    async def _write_held(self) -> None:
        held, self._held = self._held, bytearray()
        if held:
            await self._write(bytes(held))

    async def still_here(self) -> None:
        """As of ``EventSink``."""
        await self._write(b": still here\n\n")

    async def end(self, reason: str) -> None:
        """As of ``EventSink``."""
        await write(self._request, self.response, last_words(reason), within_s=FAREWELL_S)
        await self.response.write_eof()
        cut_off(self._request)

    async def _write(self, data: bytes) -> None:
        await write(self._request, self.response, data, last_words("lagging"))


async def send_events(
    request: web.Request,
    sink: EventSink,
    listener: Listener,
    start: AsyncIterator[Item],
    refill: Callable[[int], AsyncIterator[Item]],
    *,
    own: Callable[[Item], Awaitable[Item | None]] | None = None,
) -> web.StreamResponse:
    """Events of the ledger: those of *start*, then what *listener* gets, each index once.

    ``refill(last)`` gives again what a gap may have hidden; *own* gives the part that the client may see, if any. Ends
    with the reason when the client is too slow or the host stops.
    """
    last = 0

    async def send(item: Item) -> None:
        nonlocal last
        if item.index and item.index <= last:
            return
        last = max(last, item.index)
        shown = item if own is None else await own(item)
        if shown is not None:
            await sink.send(shown.data, event_id=shown.index)

    async def send_all(items: AsyncIterator[Item]) -> None:
        async for item in items:
            await send(item)

    return await follow(request, sink, listener, lambda: send_all(start), send, lambda: send_all(refill(last)))


async def follow(
    request: web.Request,
    sink: EventSink,
    listener: Listener,
    first: Callable[[], Awaitable[None]],
    send: Callable[[Item], Awaitable[None]],
    fill_gap: Callable[[], Awaitable[None]],
) -> web.StreamResponse:
    """Do *first*, then *send* what *listener* gets until the client or the listener ends; behind a gap *fill_gap*.

    A client that hears nothing for ``HEARTBEAT_S`` gets a sign of life.
    """
    await sink.begin()
    try:
        await first()
        while not gone(request):
            got = await listener.next(HEARTBEAT_S)
            if got is GAP:
                await fill_gap()
            elif got is not None:
                async with sink.together():
                    await send(got)
                    while (got := listener.next_here()) is not None:
                        await send(got)
            elif listener.ended:
                await sink.end(listener.ended)
                return sink.response
            else:
                await sink.still_here()
    except ConnectionError:
        return sink.response  # the client went, or was made to
    cut_off(request)
    return sink.response


def hint_of(reason: str) -> str:
    """What to do about a stream that ended for that reason."""
    return {
        "lagging": "the client reads too slowly; connect again with Last-Event-ID",
        "stopping": "the host is stopping; connect again later with Last-Event-ID",
    }.get(reason, reason)


def last_words(reason: str) -> bytes:
    """The server-sent event that ends a stream."""
    return sse(encode_json({"reason": reason, "hint": hint_of(reason)}), event="end")
