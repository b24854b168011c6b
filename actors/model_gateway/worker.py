"""A worker of the model gateway: the process that carries requests. One for a core; they share the port.

    python -m actorgrid.actors.model_gateway.worker SPEC

It is told everything by the main process; where that is gone it takes no more requests, finishes those it has, and
ends: the next one starts workers of its own.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import uvloop
from setproctitle import setproctitle

from actorgrid.actors.serving.routing import ReplicaLoad
from actorgrid.actors.serving.table import decode_table, encode_report
from actorgrid.errors import MalformedMessage

from .gateway import CONNECTIONS_MAX, ModelGateway
from .gateway_client import GatewayClient
from .gateway_news import read_news
from .month_budgets import read_spent
from .peer_tls import GatewayTls
from .process_spec import (
    BACKLOG,
    GatewayWorkerSpec,
    allow_descriptors,
    connections_within,
    descriptors_for,
    read_worker_spec,
)
from .request_log import RequestLog
from .worker_frames import FrameStream, frame_stream

log = logging.getLogger("actorgrid.model_gateway")
REPORT_S, NEWS_S, LOOK_S = 0.5, 0.2, 1.0
DRAIN_MAX_S = 120.0
LAST_WORD_S = 1.0
HANDSHAKE_S = 5.0


class GatewayWorker:
    """The process."""

    def __init__(self, spec: GatewayWorkerSpec) -> None:
        self._spec = spec
        self._stream: FrameStream | None = None
        self._is_over = asyncio.Event()
        log_file = RequestLog(Path(spec.log_path)) if spec.log_path else None
        self._tls = GatewayTls(Path(spec.security), lambda: self.gateway.table.members)
        self.gateway = ModelGateway(self._wake, self._tls, log_file, self._tell_peer_news)

    async def run(self) -> None:
        """Serve until told to end, or nobody is there to tell it."""
        self._stream = await frame_stream(socket.socket(fileno=self._spec.control), self._told, self._is_over.set)
        loop = asyncio.get_running_loop()
        clients = socket.socket(fileno=self._spec.clients)
        handshake = self._handshake(self._tls.clients) if self._spec.has_tls else {}
        # It listens already, but the loop listens anew, with room for 100 unless told.
        servers = [await loop.create_server(self._client, sock=clients, backlog=BACKLOG, **handshake)]
        if self._spec.peers >= 0 and self._tls.server is not None:
            peers = socket.socket(fileno=self._spec.peers)
            handshake = self._handshake(self._tls.server)
            servers.append(await loop.create_server(self._peer, sock=peers, backlog=BACKLOG, **handshake))
        tasks = [asyncio.create_task(each) for each in (self.gateway.turn_wheel(), self._report(), self._tell())]
        await self._is_over.wait()
        for server in servers:
            server.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_MAX_S):
                await self.gateway.drained()
        self._send_report()
        self._tell_spent()
        for task in tasks:
            task.cancel()
        self.gateway.pool.close()
        if self.gateway.request_log is not None:
            self.gateway.request_log.flush()
        await self._stream.finished(LAST_WORD_S)

    def _handshake(self, context: Any) -> dict[str, Any]:
        return {"ssl": context, "ssl_handshake_timeout": HANDSHAKE_S}

    def _client(self) -> GatewayClient:
        return GatewayClient(self.gateway, is_peer=False)

    def _peer(self) -> GatewayClient:
        return GatewayClient(self.gateway, is_peer=True)

    def _told(self, frame: list[Any]) -> None:
        match frame:
            case ["table", bytes(text)]:
                try:
                    self.gateway.use(decode_table(text))
                except MalformedMessage as error:
                    log.error("%s", error)
            case ["news", str(source), bytes(body)]:
                try:
                    self.gateway.hear(source, read_news(body))
                except MalformedMessage as error:
                    log.warning("%s", error)
            case ["spent", str(month), list(rows)]:
                try:
                    self.gateway.keys.spent_elsewhere(month, read_spent(rows))
                except MalformedMessage as error:
                    log.warning("%s", error)
            case ["drain"]:
                self._is_over.set()

    def _wake(self, service: str) -> None:
        if self._stream is not None:
            self._stream.send(["wake", service])

    def _tell_peer_news(self, host: str, body: bytes) -> None:
        if self._stream is not None:
            self._stream.send(["peer_news", host, body])

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(REPORT_S)
            self._send_report()

    def _tell_spent(self) -> None:
        month, rows = self.gateway.keys.take_spent(self.gateway.at())
        if rows and self._stream is not None:
            self._stream.send(["spent", month, [[key_id, *spent] for key_id, spent in rows.items()]])

    def _send_report(self) -> None:
        if self._stream is not None:
            self._stream.send(["report", encode_report(self.gateway.report())])

    async def _tell(self) -> None:
        looked = 0.0
        while True:
            await asyncio.sleep(NEWS_S)
            if self._stream is not None:
                loads: dict[tuple[str, str], ReplicaLoad] = {
                    (name, attempt): load
                    for name, service in self.gateway.services.items()
                    for attempt, load in service.router.loads.items()
                }
                self._stream.send(["news", self.gateway.news.take(loads, self.gateway.keys.counts)])
                self._tell_spent()
            looked += NEWS_S
            if looked >= LOOK_S:
                looked = 0.0
                self._tls.look()
                if self.gateway.request_log is not None:
                    self.gateway.request_log.flush()


def main() -> None:
    """The process' own main."""
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    setproctitle("actorgrid: model gateway worker")
    allowed = allow_descriptors(descriptors_for(CONNECTIONS_MAX))
    room = min(CONNECTIONS_MAX, connections_within(allowed))
    if room < CONNECTIONS_MAX:
        log.warning(
            "%d descriptors are allowed (ulimit -Hn): %d connections instead of %d", allowed, room, CONNECTIONS_MAX
        )
    spec = read_worker_spec(sys.argv[1])

    async def run() -> None:
        worker = GatewayWorker(spec)
        worker.gateway.connections_max = room
        await worker.run()

    gc.freeze()
    uvloop.run(run())


if __name__ == "__main__":
    main()
