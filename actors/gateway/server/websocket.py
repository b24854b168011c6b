"""WebSockets: events to one client, by the rules that hold for every other answer that goes on.

The host speaks, and the client listens: whatever it says but the protocol's own pings and closes ends the connection.
So nothing that a client sends is kept, inflated or parsed. Each message is JSON, ``{"event", "id", "data"}``; the last
one is the event ``end``, and the code of the close says the same to who reads only that.

Bounds: ``SOCKETS_MAX`` at once, ``OF_CALLER_MAX`` of one key; 1 KiB of one message of the client, ``CONTROLS_MAX`` of
its pings in ``CONTROLS_S``; 10 s for a client to take what is sent.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from aiohttp import web

from actorgrid.errors import ActorGridError, BadRequest, NotAllowed, Overloaded

from .auth import PROTOCOL, offered_protocols
from .codec import encode_json
from .route import REQUEST_STATE
from .stream import FAREWELL_S, HEARTBEAT_S, WRITE_TIMEOUT_S, cut_off

if TYPE_CHECKING:
    from .route import RequestContext

SOCKETS_MAX = 256
OF_CALLER_MAX = 64
CLIENT_MESSAGE_BYTES = 1024
CONTROLS_MAX, CONTROLS_S = 64, 10.0
"""So many pings in so many seconds are answered."""


class CloseCode(IntEnum):
    """Why a host ends a WebSocket. Those from 4000 on are ours (RFC 6455, 7.4.2)."""

    DONE = 1000
    """All there is was sent: the job is over."""
    STOPPING = 1001
    """The host stops; connect again later, or to another."""
    SAID_SOMETHING = 1003
    """The client sent a message."""
    TOO_MANY_PINGS = 1008
    BROKE_OFF = 1011
    """Something failed; the reason is the error's name."""
    WRONG_TOKEN = 4001
    """The key was revoked or has expired, or the work is over whose credential it was."""
    LAGGING = 4008
    """The client read too slowly; connect again with the last id."""


ENDS = {"done": CloseCode.DONE, "stopping": CloseCode.STOPPING, "lagging": CloseCode.LAGGING}
HINTS = {
    "done": "this is all there is",
    "stopping": "the host is stopping; connect again later with after=ID, the last id that came",
    "lagging": "the client reads too slowly; connect again with after=ID, the last id that came",
}


class WebSockets:
    """Who has one open. Lives in the loop's thread."""

    def __init__(self) -> None:
        self._of_caller: Counter[str] = Counter()
        self.closing = asyncio.Event()
        """Set when the host stops."""

    def __len__(self) -> int:
        return self._of_caller.total()

    def close(self) -> None:
        """Have every one of them end."""
        self.closing.set()

    @contextmanager
    def place(self, caller: str) -> Iterator[None]:
        """While it lasts, *caller* has one more open. Raises Overloaded."""
        if len(self) >= SOCKETS_MAX or self._of_caller[caller] >= OF_CALLER_MAX:
            of_all = len(self) >= SOCKETS_MAX
            raise Overloaded(
                "the host serves its maximum of WebSockets" + ("" if of_all else " with this token"),
                found=f"{SOCKETS_MAX if of_all else OF_CALLER_MAX}",
                hint="close some that are not read, or share one",
            )
        self._of_caller[caller] += 1
        try:
            yield
        finally:
            self._of_caller[caller] -= 1
            if not self._of_caller[caller]:
                del self._of_caller[caller]


class WebSocketSink:
    """Events as messages of a WebSocket (``stream.EventSink``)."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self._reading: asyncio.Task[None] | None = None
        self._receives = self._is_closing = False
        self.response = web.WebSocketResponse(
            timeout=FAREWELL_S,
            heartbeat=HEARTBEAT_S,
            autoping=False,  # counted below
            protocols=(PROTOCOL,),
            compress=False,  # nothing of a client is inflated
            max_msg_size=CLIENT_MESSAGE_BYTES,
        )

    @property
    def begun(self) -> bool:
        """Whether the connection is one of WebSocket by now."""
        return self.response.prepared

    async def begin(self) -> None:
        """As of ``EventSink``."""
        REQUEST_STATE.get().streaming = True
        await self.response.prepare(self._request)
        self._reading = asyncio.create_task(self._read())

    async def send(self, data: bytes, event: str = "", event_id: int | str = 0) -> None:
        """As of ``EventSink``."""
        known = f',"id":{json.dumps(str(event_id))}' if event_id else ""
        # Half a surrogate, which a value of the shared state may hold, is no text of a message.
        text = f'{{"event":{json.dumps(event or "message")}{known},"data":{data.decode("utf-8", "replace")}}}'
        await self._within(WRITE_TIMEOUT_S, lambda: self.response.send_str(text))

    def together(self) -> AbstractAsyncContextManager[None]:
        """As of ``EventSink``: each event is a message of its own, and waits for none."""
        return nullcontext()

    async def still_here(self) -> None:
        """As of ``EventSink``: there are pings."""

    async def end(self, reason: str) -> None:
        """As of ``EventSink``."""
        if reason != "lagging":  # who lags has no room for it
            await self.send(encode_json({"reason": reason, "hint": HINTS.get(reason, reason)}), "end")
        await self.close(ENDS.get(reason, CloseCode.BROKE_OFF), reason)

    async def close(self, code: CloseCode, reason: str) -> None:
        """Close with *code*, and hang up once the client has done its part of it, or does not in time.

        aiohttp does not wait for the client's part where another task receives, and over TLS the end of the connection
        can overtake the close before it for the client's library, which then tells its program of no code.
        """
        self._is_closing = True
        if self._reading is not None and self._receives:
            self._reading.cancel()
            await asyncio.wait([self._reading])
        try:
            await self._within(
                FAREWELL_S, lambda: self.response.close(code=code, message=reason.encode()[:100], drain=False)
            )
        finally:
            cut_off(self._request)

    async def _within(self, limit_s: float, act: Callable[[], Awaitable[object]]) -> None:
        # By a timer that hangs up, as in ``stream.write``: a wait for room is not cancelled.
        timer = asyncio.get_running_loop().call_later(limit_s, self._too_slow)
        try:
            await act()
        finally:
            timer.cancel()

    def _too_slow(self) -> None:
        transport = self._request.transport
        if transport is not None and not transport.is_closing():
            # Past aiohttp's writer, which waits for room. What it has written are whole frames.
            transport.write(close_frame(CloseCode.LAGGING, "lagging"))
            cut_off(self._request)

    def stop_reading(self) -> None:
        """No more is heard of the client."""
        if self._reading is not None:
            self._reading.cancel()

    async def _read(self) -> None:
        """Answer pings, and end what breaks the rules."""
        loop = asyncio.get_running_loop()
        since_s, controls = loop.time(), 0
        while True:
            if self._is_closing:
                return
            self._receives = True
            try:
                message = await self.response.receive()
            finally:
                self._receives = False
            if message.type in (web.WSMsgType.TEXT, web.WSMsgType.BINARY):
                await self.close(CloseCode.SAID_SOMETHING, "this stream takes no messages")
                return
            if message.type not in (web.WSMsgType.PING, web.WSMsgType.PONG):
                cut_off(self._request)  # closed, or broken: aiohttp has answered
                return
            if loop.time() - since_s > CONTROLS_S:
                since_s, controls = loop.time(), 0
            controls += 1
            if controls > CONTROLS_MAX:
                await self.close(CloseCode.TOO_MANY_PINGS, "too many pings")
                return
            if message.type is web.WSMsgType.PING:
                await self._within(WRITE_TIMEOUT_S, partial(self.response.pong, message.data))


async def serve_websocket(
    call: RequestContext, stream: Callable[[WebSocketSink], Awaitable[object]]
) -> web.StreamResponse:
    """Upgrade the request, and have *stream* send events, until it ends or the client does.

    Raises BadRequest, NotAllowed and Overloaded, and what *stream* raises before it begins its sink: these are answered
    as ever. What it raises later closes the WebSocket, with the error's name.
    """
    check_handshake(call.http, call.app.settings.security.websocket_origins)
    with call.app.websockets.place(call.caller):
        sink = WebSocketSink(call.http)
        if not sink.response.can_prepare(call.http):
            raise BadRequest(
                "the opening of the WebSocket is not as it has to be",
                hint="send Connection: Upgrade, Sec-WebSocket-Version: 13 and a Sec-WebSocket-Key (RFC 6455, 4.1)",
            )
        call.app.rechecks.say_before(call.http, close_frame(CloseCode.WRONG_TOKEN, "WrongToken"))
        try:
            await stream(sink)
        except ActorGridError as error:
            if not sink.begun:
                raise
            await sink.close(CloseCode.BROKE_OFF, error.code)
        except ConnectionError:
            if not sink.begun:
                raise
        finally:
            sink.stop_reading()
        return sink.response


def close_frame(code: CloseCode, reason: str) -> bytes:
    """The bytes of a close that are sent past aiohttp's writer (RFC 6455, 5.5.1). *reason*: at most 123 bytes."""
    payload = code.to_bytes(2, "big") + reason.encode()
    return bytes((0x88, len(payload))) + payload


def check_handshake(request: web.Request, origins: Sequence[str]) -> None:
    """Raises BadRequest for what is no opening of a WebSocket of ours, NotAllowed for a page of a stranger's.

    Keys are shown by whoever opens one, never by the browser on its own, so that a stranger's page gains nothing from
    its visitor's rights; it is refused all the same, as nobody meant it to be here.
    """
    if request.headers.get("Upgrade", "").lower().strip() != "websocket":
        raise BadRequest(
            "this path is for WebSockets",
            asked=f"Upgrade: {request.headers.get('Upgrade', '(none)')[:40]}",
            hint="open it with a WebSocket client, as ws://HOST:PORT/api/ws/..., or read /api/events and the like",
        )
    offered = offered_protocols(request)
    # Said here as aiohttp would write into the log what was offered, and a key may be in it.
    if offered and PROTOCOL not in offered:
        raise BadRequest(
            "none of the protocols that the client offers is spoken here",
            found=f"{len(offered)} other(s)",
            hint=f"offer {PROTOCOL}, and a token as actorgrid.bearer.TOKEN beside it, or none",
        )
    origin = request.headers.get("Origin")
    if origin is None:
        return  # no browser
    if origin not in origins and urlsplit(origin).netloc.lower() != request.headers.get("Host", "").lower():
        raise NotAllowed(
            "pages of that origin may not open WebSockets here",
            asked=f"Origin: {origin[:100]}",
            found=", ".join(origins) or f"only {request.headers.get('Host', '')[:100]}",
            hint="security.websocket_origins names those that may",
        )
