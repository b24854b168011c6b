"""The HTTP API of the host, as the gRPC door asks it: for each client with its own token, and for nobody else's.

Bounds: ``CONNECTIONS_MAX`` requests at once, others wait for one; what comes of a stream is not read ahead of its
client.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlencode

import aiohttp

from actorgrid.actors.gateway.server.door_headers import DOOR_HEADER, PEER_HEADER
from actorgrid.errors import HostUnreachable, MalformedMessage, WrongToken

from .door_connections import DoorConnections, peer_named
from .translation import EventReader, HttpAsk, StreamedEvent, error_in

CONNECTIONS_MAX = 512
ANSWER_BYTES_MAX = 256 * 2**20
CONNECT_S = 5.0


@dataclass(frozen=True, slots=True)
class Asker:
    """A client: what it shows, and where it is. *deadline_s*: by ``time.monotonic()``; ``None``: it set none."""

    authorization: str | None
    address: str
    deadline_s: float | None
    port: int = 0
    """With the address, of its connection; 0: that is not known."""

    def left_s(self, without_s: float) -> float:
        """How long an answer may take; *without_s* where it set no deadline."""
        return without_s if self.deadline_s is None else max(0.001, self.deadline_s - time.monotonic())


class HostApi:
    """The HTTP door at *url*, to which *secret* proves that this is the gRPC door. Lives in one loop.

    *connections* are told whose token was good.
    """

    def __init__(self, url: str, secret: str, connections: DoorConnections | None = None) -> None:
        self._connections = connections
        self._url = url
        self._secret = secret
        connector = aiohttp.TCPConnector(limit=CONNECTIONS_MAX)
        # Whatever is in the environment, such as a proxy, is not for this.
        self._session = aiohttp.ClientSession(connector=connector, trust_env=False, cookie_jar=aiohttp.DummyCookieJar())

    async def close(self) -> None:
        """Let go of all connections."""
        await self._session.close()

    async def answer(self, who: Asker, ask: HttpAsk, within_s: float) -> bytes:
        """The body of the answer. Raises the named error that it is, HostUnreachable, or TimeoutError."""
        async with self._asked(who, ask, aiohttp.ClientTimeout(total=within_s, connect=CONNECT_S)) as response:
            text = await response.content.read(ANSWER_BYTES_MAX)
            if not response.content.at_eof():
                raise MalformedMessage("the host's answer is too long", found=f"over {ANSWER_BYTES_MAX} bytes")
            return text

    @asynccontextmanager
    async def stream(
        self, who: Asker, ask: HttpAsk, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """An answer that goes on, once it has begun well. Raises as ``answer`` does, and WrongToken when the token
        ends."""
        total_s = None if who.deadline_s is None else who.left_s(0.0)
        limits = aiohttp.ClientTimeout(total=total_s, connect=CONNECT_S)
        try:
            async with self._asked(who, ask, limits, headers or {}) as response:
                yield response
        except HostUnreachable:
            # It was broken off: by an end of the host's, or of the token's. The host knows.
            await self.answer(who, HttpAsk("GET", "/api/me", {}, None, 0.0), CONNECT_S)
            raise

    async def events(
        self, who: Asker, ask: HttpAsk, headers: Mapping[str, str] | None = None
    ) -> AsyncGenerator[StreamedEvent]:
        """The events of an answer, until its last word. Raises HostUnreachable with that, and as ``stream`` does."""
        reader = EventReader()
        async with self.stream(who, ask, headers) as response:
            async for data in response.content.iter_any():
                for event in reader.feed(data):
                    if event.event == "end":
                        raise _Ended(event.data)
                    yield event

    @asynccontextmanager
    async def _asked(
        self, who: Asker, ask: HttpAsk, limits: aiohttp.ClientTimeout, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        if who.authorization is None:
            raise WrongToken(
                "the bearer token is missing",
                asked="metadata: authorization: Bearer TOKEN",
                hint="an API key of this cluster is needed, still good: actorgrid login, or key create on its hosts",
            )
        own = {
            "Authorization": who.authorization,
            DOOR_HEADER: self._secret,
            PEER_HEADER: who.address,
            "Accept": "application/json",
            **(headers or {}),
        }
        if ask.body is not None:
            own["Content-Type"] = "application/json"
        url = self._url + ask.path + ("?" + urlencode(ask.query) if ask.query else "")
        try:
            async with self._session.request(
                ask.method, url, data=ask.body, headers=own, timeout=limits, allow_redirects=False
            ) as response:
                if response.status >= 400:
                    raise error_in(response.status, await response.content.read(2**20))
                if self._connections is not None and who.port:
                    self._connections.prove(peer_named(who.address, who.port), who.authorization)
                yield response
        except TimeoutError:
            raise
        except aiohttp.ClientError as error:
            raise HostUnreachable("the host's own API does not answer", found=str(error)[:200]) from None


class _Ended(HostUnreachable):
    """The host's last word on a stream."""

    def __init__(self, data: bytes) -> None:
        super().__init__(
            "the stream has ended", found=data.decode("utf-8", "replace")[:300], hint="ask again, after the last id"
        )
