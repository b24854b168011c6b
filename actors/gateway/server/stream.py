"""Answers that go on: server-sent events and raw bytes, to clients that may be slow or gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing

from aiohttp import web

from .codec import encode_json
from .hub import GAP, Item, Listener
from .route import REQUEST_STATE

HEARTBEAT_S = 15.0
WRITE_TIMEOUT_S = 10.0
"""A client that takes nothing for this long is cut off."""
FAREWELL_S = 2.0
"""Given to the last words to a client that is being cut off."""


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


async def send_events(
    request: web.Request,
    listener: Listener,
    start: AsyncIterator[Item],
    refill: Callable[[int], AsyncIterator[Item]],
    *,
    own: Callable[[Item], Awaitable[Item | None]] | None = None,
) -> web.StreamResponse:
    """Server-sent events: those of *start*, then what *listener* gets, each index once.

    ``refill(last)`` gives again what a gap may have hidden; *own* gives the part that the client may see, if any. Ends
    with ``event: end`` and the reason when the client is too slow or the host stops.
    """
    response = await begin(request, "text/event-stream", {"X-Accel-Buffering": "no"})
    last = 0

    async def send(item: Item) -> None:
        nonlocal last
        if item.index and item.index <= last:
            return
        last = max(last, item.index)
        shown = item if own is None else await own(item)
        if shown is not None:
            await write(request, response, sse(shown.data, event_id=shown.index), last_words("lagging"))

    async def send_all(items: AsyncIterator[Item]) -> None:
        async for item in items:
            await send(item)

    return await follow(request, response, listener, lambda: send_all(start), send, lambda: send_all(refill(last)))


async def follow(
    request: web.Request,
    response: web.StreamResponse,
    listener: Listener,
    first: Callable[[], Awaitable[None]],
    send: Callable[[Item], Awaitable[None]],
    fill_gap: Callable[[], Awaitable[None]],
) -> web.StreamResponse:
    """Do *first*, then *send* what *listener* gets until the client or the listener ends; behind a gap *fill_gap*.

    A client that hears nothing for ``HEARTBEAT_S`` gets a sign of life.
    """
    try:
        await write(request, response, b": listening\n\n")
        await first()
        while not gone(request):
            got = await listener.next(HEARTBEAT_S)
            if got is GAP:
                await fill_gap()
            elif got is not None:
                await send(got)
            elif listener.ended:
                await write(request, response, last_words(listener.ended), within_s=FAREWELL_S)
                await response.write_eof()
                break
            else:
                await write(request, response, b": still here\n\n", last_words("lagging"))
    except ConnectionError:
        return response  # the client went, or was made to
    cut_off(request)
    return response


def last_words(reason: str) -> bytes:
    """The event that ends a stream."""
    hint = {
        "lagging": "the client reads too slowly; connect again with Last-Event-ID",
        "stopping": "the host is stopping; connect again later with Last-Event-ID",
    }.get(reason, reason)
    return sse(encode_json({"reason": reason, "hint": hint}), event="end")
