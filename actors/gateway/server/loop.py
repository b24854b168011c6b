"""The loop's thread: a uvloop event loop that serves the door on a socket made by the server's thread."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

import uvloop
from aiohttp import web
from aiohttp.web_protocol import RequestHandler
from aiohttp.web_request import BaseRequest

from actorgrid.actors.security.token_rate_limit import network_of
from actorgrid.errors import BadRequest, Overloaded
from actorgrid.transports.stack_room import with_stack_room

from .application import SECURITY_HEADERS, GatewayApp
from .bridge import Bridge
from .codec import encode_json
from .connections import CONNECTIONS_MAX, OF_CALLER_MAX, UNPROVEN_S, Connections
from .hub import Hub

if TYPE_CHECKING:
    from .tls_listener import TlsListener

FIRST_REQUEST_S = 15.0
"""A connection must bring the head of its first request within this time."""
KEEP_ALIVE_S = 75.0
SLOW_READER_S = 60.0
"""A client that leaves an answer unread for so long, with 64 KiB of it waiting here, is cut off."""
LINGER_S = 2.0
"""How long the rest of a refused body is read, so that the client gets to see the refusal."""
MAX_HEAD_BYTES = 16 * 2**10
DRAIN_S = 2.0
"""Given to requests under way when the host stops."""


class Connection(RequestHandler):
    """aiohttp's connection with a time limit on the first request and on the first token, and errors in our form."""

    __slots__ = ("_deadlines", "_here", "_slow", "_table")

    def __init__(self, table: Connections, here: bool, served: web.Server, **settings: Any) -> None:
        super().__init__(served, **settings)
        self._table = table
        self._here = here
        self._deadlines: list[asyncio.TimerHandle] = []
        self._slow: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a place, and start the clocks."""
        super().connection_made(transport)
        peer = transport.get_extra_info("peername")
        if not self._table.add(self, network_of(str(peer[0])) if peer else "", self._here):
            cast(asyncio.Transport, transport).write(_full())
            self.force_close()
            return
        self._deadlines = [
            self._loop.call_later(FIRST_REQUEST_S, self._too_late),
            self._loop.call_later(UNPROVEN_S, self._unproven_too_long),
        ]

    @property
    def idle(self) -> bool:
        """See ``connections.ManagedConnection``."""
        return self._current_request is None

    def close_now(self) -> None:
        """See ``connections.ManagedConnection``. What is under way is broken off."""
        if self.transport is not None:
            self.transport.abort()

    def prove(self, caller: str) -> None:
        """A request showed a good token. Raises Overloaded where its owner has too many connections."""
        if not self._table.prove(self, caller):
            raise Overloaded(
                "there are too many connections with this token",
                found=f"{OF_CALLER_MAX}",
                hint="keep connections open and use them again, or close those that are idle",
            )

    def _too_late(self) -> None:
        if not self._request_count:
            self.force_close()

    def _unproven_too_long(self) -> None:
        if not self._table.is_proven(self):
            self.close()  # an answer that is on its way is finished
            if self.idle:
                self.force_close()

    def pause_writing(self) -> None:
        """What is answered is not read fast enough: from now on the client has ``SLOW_READER_S`` to go on."""
        super().pause_writing()
        if self._slow is None:
            self._slow = self._loop.call_later(SLOW_READER_S, self.close_now)

    def resume_writing(self) -> None:
        """The client has read."""
        super().resume_writing()
        self._reads()

    def _reads(self) -> None:
        if self._slow is not None:
            self._slow.cancel()
            self._slow = None

    def connection_lost(self, exc: BaseException | None) -> None:
        """Stop the clocks, and give the place back."""
        for deadline in self._deadlines:
            deadline.cancel()
        self._reads()
        self._table.remove(self)
        super().connection_lost(exc)

    def handle_error(
        self,
        request: BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what is no HTTP in the form of every other error."""
        if status >= 500:
            return super().handle_error(request, status, exc, message)
        if request.writer.output_size > 0:
            raise ConnectionError("an answer is on its way already")
        error = BadRequest(
            "the request is not HTTP this host reads",
            found=(message or HTTPStatus(status).phrase).splitlines()[0][:200],
            hint="send HTTP/1.1; heads are limited to 16 KiB",
        )
        response = web.Response(
            body=encode_json({"error": error.to_dict()}), status=status, content_type="application/json"
        )
        response.headers.update(SECURITY_HEADERS)
        response.force_close()
        return response


def _full() -> bytes:
    """The bytes sent to one client too many, before it asks anything."""
    error = Overloaded(
        "the host has its maximum of HTTP connections",
        found=f"{CONNECTIONS_MAX}",
        hint="keep connections open and use them again, or close those that are idle",
    )
    body = encode_json({"error": error.to_dict()})
    head = (
        "HTTP/1.1 429 Too Many Requests\r\nContent-Type: application/json\r\nConnection: close\r\n"
        f"Retry-After: 1\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class LoopThread(threading.Thread):
    """The thread of the event loop: runs until ``finish``, and tells the server when it is ready and if it dies."""

    def __init__(
        self,
        sock: socket.socket,
        bridge: Bridge,
        hub: Hub,
        make_app: Callable[[], GatewayApp],
        on_ready: Callable[[GatewayApp], None],
        on_death: Callable[[BaseException], None],
        secured: TlsListener | None = None,
    ) -> None:
        super().__init__(name="gateway-http", daemon=True)
        self._sock = sock
        self._secured = secured
        self._bridge = bridge
        self._hub = hub
        self._make_app = make_app
        self._on_ready = on_ready
        self._on_death = on_death
        self._loop: asyncio.AbstractEventLoop | None = None
        self._finish: asyncio.Event | None = None

    def finish(self) -> None:
        """Ask for an orderly end, from any thread."""
        if self._loop is not None and self._finish is not None:
            try:
                self._loop.call_soon_threadsafe(self._finish.set)
            except RuntimeError:
                return  # it has ended already

    def run(self) -> None:
        """The thread's outermost loop."""
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                with_stack_room(runner.run, self._serve())
        except BaseException as error:  # noqa: BLE001 - told to the server, which lets the process crash
            death = error
            self._bridge.post(lambda: self._on_death(death))
        finally:
            self._sock.close()
            if self._secured is not None:
                self._secured.sock.close()

    async def _serve(self) -> None:
        loop = self._loop = asyncio.get_running_loop()
        self._finish = asyncio.Event()
        app = self._make_app()
        runner = web.AppRunner(
            app.application(),
            handle_signals=False,
            access_log=None,
            keepalive_timeout=KEEP_ALIVE_S,
            lingering_time=LINGER_S,
            max_line_size=MAX_HEAD_BYTES,
            max_field_size=MAX_HEAD_BYTES,
            auto_decompress=False,
            shutdown_timeout=DRAIN_S,
            handler_cancellation=True,  # a client that hangs up frees its place at once
        )
        await runner.setup()
        served = runner.server
        assert served is not None
        settings: dict[str, Any] = served._kwargs
        table = app.connections

        def connect(here: bool) -> asyncio.Protocol:
            return Connection(table, here, served, loop=loop, **settings)

        listening = await loop.create_server(partial(connect, True), sock=self._sock, backlog=1024)
        secured = None if self._secured is None else asyncio.create_task(self._secured.serve(partial(connect, False)))
        # Before the server hears that it is ready: what it tells to a bridge that is not open is dropped.
        self._bridge.open(loop, self._hub)
        self._bridge.post(lambda: self._on_ready(app))
        try:
            await self._finish.wait()
        finally:
            # The doors first: nobody is to come in while those who are inside are seen off.
            listening.close()
            if secured is not None:
                secured.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await secured
            await self._drain(app)
            await runner.cleanup()
            # Last: handlers use its threads until they have ended.
            app.close()

    async def _drain(self, app: GatewayApp) -> None:
        """Answer what waits for others at once, let what is being sent be sent, then hang up."""
        # First: who asks from here on is refused, and does not begin what the rest is to end.
        app.stopping = True
        self._bridge.stop_waiting()
        app.hub.close("stopping")
        app.relays.close()
        app.websockets.close()
        await app.token_streams.close()
        try:
            async with asyncio.timeout(DRAIN_S):
                await app.idle.wait()
        except TimeoutError:
            logging.getLogger("actorgrid.gateway").info("%d request(s) were cut off", app.serving)
