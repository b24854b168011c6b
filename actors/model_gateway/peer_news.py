"""Tells the gateways of other hosts what this one's workers tell each other (``gateway_news.py``).

Four times a second, to each, in one request over mutual TLS; where one cannot be reached it is tried again a second
later, and what it missed is not told again. 64 hosts at most: of more, the first by a hash of both names, so that each
is told by some.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

import msgpack

from actorgrid.rendezvous import ranked

from .exchange import PEER_NEWS
from .gateway_news import NEWS_BYTES_MAX
from .peer_tls import GatewayTls

log = logging.getLogger("actorgrid.model_gateway")
PEERS_MAX = 64
INTERVAL_S, AGAIN_S, ASK_S = 0.25, 1.0, 2.0


class PeerNews:
    """What is to be told, and to whom."""

    def __init__(self, tls: GatewayTls) -> None:
        self._tls = tls
        self._waiting: dict[str, list[bytes]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @staticmethod
    def read(body: bytes) -> list[tuple[str, bytes]]:
        """Who told what, in a request of another gateway; nothing where it is not as it should be."""
        try:
            plain = msgpack.unpackb(body, raw=False, max_array_len=1_024, max_map_len=0)
        except (ValueError, msgpack.UnpackException, RecursionError):
            return []
        if not isinstance(plain, list):
            return []
        return [
            (each[0][:100], each[1])
            for each in plain
            if isinstance(each, list) and len(each) == 2 and isinstance(each[0], str) and isinstance(each[1], bytes)
        ]

    def use(self, host: str, peers: Iterable[str]) -> None:
        """Tell these from now on. *host*: this one's id."""
        wanted = set(ranked(f"the model gateway of {host}", peers)[:PEERS_MAX])
        for peer in self._tasks.keys() - wanted:
            self._tasks.pop(peer).cancel()
            self._waiting.pop(peer, None)
        for peer in wanted - self._tasks.keys():
            self._waiting[peer] = []
            self._tasks[peer] = asyncio.get_running_loop().create_task(self._keep_telling(peer))

    def tell(self, source: str, body: bytes) -> None:
        """Have that told with the next request; of one source's messages that wait, all are sent, 64 at most."""
        packed: bytes = msgpack.packb([source, body])
        for waiting in self._waiting.values():
            waiting.append(packed)
            del waiting[:-64]

    async def run(self) -> None:
        """Live until cancelled; then nobody is told any more."""
        try:
            await asyncio.Event().wait()
        finally:
            for task in self._tasks.values():
                task.cancel()

    async def _keep_telling(self, peer: str) -> None:
        while True:
            try:
                await self._tell_one(peer)
            except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
                log.debug("the gateway at %s is not told: %s", peer, error)
            self._waiting[peer] = []
            await asyncio.sleep(AGAIN_S)

    async def _tell_one(self, peer: str) -> None:
        address, _, port = peer.rpartition(":")
        context = self._tls.context()
        if context is None or not port.isdigit():
            return
        async with asyncio.timeout(ASK_S):
            reader, writer = await asyncio.open_connection(
                address.strip("[]"), int(port), ssl=context, server_hostname=""
            )
        try:
            if self._tls.host_of(writer.get_extra_info("ssl_object")) is None:
                raise OSError("it is no gateway of this cluster")
            while True:
                await asyncio.sleep(INTERVAL_S)
                waiting, self._waiting[peer] = self._waiting[peer], []
                if not waiting:
                    continue
                body = bytes([0xDC]) + len(waiting).to_bytes(2, "big") + b"".join(waiting)  # an array of msgpack
                if len(body) > NEWS_BYTES_MAX:
                    continue
                head = f"POST {PEER_NEWS} HTTP/1.1\r\nhost: gateway\r\ncontent-length: {len(body)}\r\n\r\n"
                writer.write(head.encode() + body)
                async with asyncio.timeout(ASK_S):
                    await writer.drain()
                    answer = await reader.readuntil(b"\r\n\r\n")
                if not answer.startswith(b"HTTP/1.1 204"):
                    raise OSError("it does not take news")
        finally:
            writer.transport.abort()
