"""What a gateway's main process and its workers say to each other, over a socket pair. To a worker::

    ["table", json]             the services
    ["news", source, body]      what another process, here or on another host, told (gateway_news.py)
    ["spent", month, rows]      what each key with a budget used beside what this one counted: id, tokens, requests
    ["drain"]                   take no more requests, finish those there are, end

and from it::

    ["report", json]            a DemandReport, twice a second
    ["wake", service]           a request came for a service without a ready replica
    ["news", body]              what this one has to tell
    ["spent", month, rows]      what this one counted of keys with a budget since it began, where that has changed
    ["peer_news", host, body]   what the gateway of another host told, as it came
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

from actorgrid.actors.serving.control_frames import CONTROL_FRAME_MAX
from actorgrid.errors import MalformedBody, TransportError
from actorgrid.transports.frames import FrameDecoder, encode_frame

UNSENT_MAX = 64 * 2**20
"""What is told to somebody who does not read: then the connection is given up."""


class FrameStream(asyncio.Protocol):
    """Frames over a stream. *told* gets each; *ended* is called once when the other side is gone or talks nonsense."""

    def __init__(self, told: Callable[[list[Any]], None], ended: Callable[[], None]) -> None:
        self._told = told
        self._ended = ended
        self._decoder = FrameDecoder(CONTROL_FRAME_MAX)
        self._transport: asyncio.Transport | None = None
        self._is_gone = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The stream is there."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Bytes have come."""
        try:
            for frame in self._decoder.feed(data):
                self._told(frame)
        except (MalformedBody, TransportError):
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        """The other side is gone."""
        self._transport = None
        self._is_gone.set()
        self._ended()

    def send(self, frame: list[Any]) -> None:
        """Tell the other side."""
        if self._transport is None or self._transport.is_closing():
            return
        if self._transport.get_write_buffer_size() > UNSENT_MAX:
            self._transport.abort()
            return
        self._transport.write(encode_frame(frame, CONTROL_FRAME_MAX))

    async def finished(self, seconds: float) -> None:
        """Hang up once all that was sent has gone out, or after *seconds*."""
        if self._transport is None:
            return
        self._transport.close()
        if not await self.gone(seconds):
            self.close()

    async def gone(self, seconds: float) -> bool:
        """Wait until the other side is gone; whether it is after *seconds*."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, seconds)):
                await self._is_gone.wait()
        return self._is_gone.is_set()

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.abort()


async def frame_stream(
    sock: socket.socket, told: Callable[[list[Any]], None], ended: Callable[[], None]
) -> FrameStream:
    """Frames over a connected socket."""
    loop = asyncio.get_running_loop()
    _, made = await loop.create_connection(lambda: FrameStream(told, ended), sock=sock)
    return made
