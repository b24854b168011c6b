"""One gateway process: the services it knows, its keys, its connections, and what all of that comes to.

Everything is in one thread, that of the event loop. Bounds: 12,000 connections of clients, 256 MiB of bodies of
requests that are not answered yet.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from actorgrid.actors.ledger.names import is_loopback
from actorgrid.actors.serving.routing import ReplicaLoad
from actorgrid.actors.serving.table import (
    DemandReport,
    LoraAdapter,
    ReplicaEndpoint,
    ReplicaState,
    ServiceKey,
    ServiceTable,
)

from . import replica_probe
from .deadline_wheel import TICK_S, DeadlineWheel
from .gateway_figures import GatewayFigures
from .gateway_news import GatewayNews, NewsMessage
from .key_gate import KeyGate
from .refusals import RequestRefused, error_body
from .replica_connections import ReplicaConnection, ReplicaPool
from .replica_health import ReplicaCondition
from .request_log import RequestLog
from .request_usage import UsageLedger
from .running_service import RunningService
from .token_usage import UsedTokens

if TYPE_CHECKING:
    import ssl

    from .exchange import Exchange
    from .gateway_client import GatewayClient

log = logging.getLogger("actorgrid.model_gateway")
CONNECTIONS_MAX = 12_000
BODIES_MAX = 256 * 2**20
SWEEP_TICKS = 10


class PeerDialer(Protocol):
    """Opens connections to replicas of other hosts, and knows whom it has reached."""

    def context(self) -> ssl.SSLContext | None:
        """For TLS with other gateways; ``None`` on a host that is alone."""

    def host_of(self, tls: ssl.SSLObject | None) -> str | None:
        """The member of the cluster at the other side of a connection."""

    def check(self, connection: ReplicaConnection, host: str) -> None:
        """Raises OSError where the other side is not the gateway of *host*."""


class NoPeers:
    """Of a host that is alone."""

    def context(self) -> ssl.SSLContext | None:
        """None."""
        return None

    def host_of(self, tls: ssl.SSLObject | None) -> str | None:
        """Nobody."""
        return None

    def check(self, connection: ReplicaConnection, host: str) -> None:
        """Nobody is there."""
        raise OSError("this host is alone")


class ModelGateway:
    """The gateway of one process. *wake*: tells that a service has no replica and is asked for; *peer_news*: passes on
    what the gateway of another host told."""

    def __init__(
        self,
        wake: Callable[[str], None],
        peers: PeerDialer | None = None,
        log_file: RequestLog | None = None,
        peer_news: Callable[[str, bytes], None] = lambda _host, _body: None,
    ) -> None:
        self.now = time.monotonic
        self.at = time.time
        self.table = ServiceTable(0, "-")
        self.services: dict[str, RunningService] = {}
        self._models: dict[str, tuple[RunningService, LoraAdapter | None]] = {}
        self._local: dict[tuple[str, str], ReplicaEndpoint] = {}
        self.keys = KeyGate()
        self.wheel = DeadlineWheel(self.now())
        self.peers: PeerDialer = peers or NoPeers()
        self.pool = ReplicaPool(lambda: self.table.host, self.peers.context)
        self.figures = GatewayFigures()
        self.news = GatewayNews()
        self.usage = UsageLedger()
        self.request_log = log_file
        self.clients: set[GatewayClient] = set()
        self.connections_max = CONNECTIONS_MAX
        """Fewer, where the process may not have the descriptors."""
        self._probes: set[asyncio.Task[None]] = set()
        self.is_draining = False
        self._is_drained = asyncio.Event()
        self._wake = wake
        self.take_peer_news = peer_news
        self._bodies = 0
        self._exchanges = 0
        random_part = os.urandom(6).hex()
        self._request_prefix = f"req-{random_part}-".encode()
        self._request_number = 0
        self.draw = random.Random(random_part).randrange  # who gets a request is no secret
        self._ticks = 0

    # -- time

    async def turn_wheel(self) -> None:
        """Turn the wheel until cancelled."""
        while True:
            await asyncio.sleep(TICK_S)
            self.wheel.turn(self.now())
            self._ticks += 1
            if self._ticks % SWEEP_TICKS == 0:
                self.pool.sweep(self.now(), self._attempts())

    def _attempts(self) -> set[str]:
        return {each.attempt for service in self.services.values() for each in service.route.replicas}

    # -- what there is

    def use(self, table: ServiceTable) -> None:
        """Route by *table* from now on."""
        self.table = table
        names = {route.name for route in table.services}
        gone = [service for name, service in self.services.items() if name not in names]
        self.services = {name: service for name, service in self.services.items() if name in names}
        for route in table.services:
            found = self.services.get(route.name)
            if found is None:
                self.services[route.name] = RunningService(route)
            else:
                found.use(route)
        for service in gone:
            service.use(replace(service.route, replicas=(), scales_from_zero=False, reason="it was taken away"))
        self._models = {}
        for service in self.services.values():
            for model in service.route.models:
                self._models[model] = (service, None)
            for adapter in service.route.adapters:
                self._models[adapter.model] = (service, adapter)
        self._local = {
            (each.replica_id, each.attempt): each
            for route in table.services
            for each in route.replicas
            if each.host == table.host and each.port
        }
        self.keys.use(table.keys, table.keys_required)
        for service in [*self.services.values(), *gone]:
            if service.held:
                service.let_go()

    def find(self, model: str, key: ServiceKey | None) -> RunningService:
        """The service of a model. Raises RequestRefused, the same for one that is not and one that is not allowed."""
        found = self._models.get(model)
        if found is None or not self.keys.allows(key, model):
            raise RequestRefused(
                404, f"the model {model!r} does not exist or you have no access to it", "model_not_found", param="model"
            )
        return found[0]

    def served_as(self, service: RunningService, model: str) -> str:
        """What the replicas of *service* call *model*."""
        found = self._models.get(model)
        if found is not None and found[0] is service and found[1] is not None:
            return found[1].served_as
        if service.route.served_as:
            return service.route.served_as
        return model if found is not None and found[0] is service else service.route.models[0]

    def local_replica(self, replica_id: str, attempt: str) -> ReplicaEndpoint | None:
        """A replica of this host that has started and not ended."""
        return self._local.get((replica_id, attempt))

    async def open(self, endpoint: ReplicaEndpoint) -> ReplicaConnection:
        """A new connection to a replica. Raises OSError."""
        connection = await self.pool.open(endpoint)
        if not self.pool.is_local(endpoint):
            try:
                self.peers.check(connection, endpoint.host)
            except OSError:
                connection.close()
                raise
        return connection

    def hear(self, source: str, news: NewsMessage) -> None:
        """Take what another gateway process told."""
        now = self.now()
        loads: dict[str, dict[str, ReplicaLoad]] = {}
        for (name, attempt), load in news.loads.items():
            loads.setdefault(name, {})[attempt] = load
        for name, service in self.services.items():
            service.router.hear(source, loads.get(name, {}), now)
        for (name, attempt), blocks in news.blocks.items():
            found = self.services.get(name)
            if found is not None and attempt in found.attempts:
                found.index.add(attempt, blocks)
        self.keys.hear(source, news.keys, now)

    def wake(self, service: str) -> None:
        """Tell that *service* is asked for and has no replica."""
        self._wake(service)

    # -- connections

    def source_of(self, address: str) -> str:
        """The address where it is of another machine; empty else."""
        return "" if not address or is_loopback(address) else address

    def admits(self, client: GatewayClient) -> bool:
        """Whether another connection is taken; it is counted then."""
        if len(self.clients) >= self.connections_max or self.is_draining:
            self.figures.refused_connections_total += 1
            return False
        self.clients.add(client)
        return True

    def forget(self, client: GatewayClient) -> None:
        """A connection is over."""
        self.clients.discard(client)
        if self.is_draining and not self.clients:
            self._is_drained.set()

    def check_memory(self, more: int) -> None:
        """Raises RequestRefused where so many more bytes of a body have no room."""
        if self._bodies + more > BODIES_MAX:
            raise RequestRefused(429, "too many large requests at once", "overloaded", retry_after_s=1, closes=True)

    def next_request_id(self) -> bytes:
        """An id that no other request has."""
        self._request_number += 1
        return b"%s%x" % (self._request_prefix, self._request_number)

    def drain(self) -> None:
        """Take no more, and finish what there is."""
        self.is_draining = True
        for client in list(self.clients):
            client.close_if_idle()
        for service in self.services.values():
            service.let_go()

    def suspect(self, service: RunningService, endpoint: ReplicaEndpoint, lines: bytes) -> None:
        """Ask a replica that has said nothing for a while whether it is there, where another might answer."""
        condition = service.condition_of(endpoint)
        others = any(
            each.state is ReplicaState.READY and each.replica_id != endpoint.replica_id
            for each in service.route.replicas
        )
        if others and not condition.is_asked and condition.said_nothing_for(replica_probe.SUSPECT_S, self.now()):
            condition.is_asked = True
            task = asyncio.get_running_loop().create_task(self._probe(condition, endpoint, lines))
            self._probes.add(task)
            task.add_done_callback(self._probes.discard)

    async def _probe(self, condition: ReplicaCondition, endpoint: ReplicaEndpoint, lines: bytes) -> None:
        try:
            is_there = await replica_probe.answers(self.open, endpoint, lines)
        finally:
            condition.is_asked = False
        now = self.now()
        if is_there:
            condition.heard(now)
        elif condition.said_nothing_for(replica_probe.SUSPECT_S, now):
            for client in list(self.clients):
                client.replica_is_wedged(endpoint.attempt)

    async def drained(self) -> None:
        """Drain, and wait until the last byte of the last answer has gone to its client: a connection ends when all
        that was written to it has gone out, or its client has not read for too long."""
        self.drain()
        if self.clients:
            await self._is_drained.wait()

    # -- requests

    def began(self, exchange: Exchange, body_bytes: int) -> None:
        """A request is in hand."""
        self._exchanges += 1
        self._bodies += body_bytes

    def ended(
        self, exchange: Exchange, status: int, usage: UsedTokens, estimated: int, aborted: bool, counted_tokens: int
    ) -> None:
        """A request is over: count what it came to."""
        self._exchanges -= 1
        self._bodies -= len(exchange.body)
        if exchange.client.is_peer:
            self.figures.forwarded_total += 1
            return
        service, request = exchange.service, exchange.request
        if service is None or request is None:
            return
        now = self.now()
        used = usage.prompt_tokens + usage.completion_tokens
        self.keys.settle(exchange.key, counted_tokens, used, self.at())
        if exchange.sent_at is not None:
            self.usage.count(
                exchange.key, service.route.tenant, service.route.name, request.model, usage, estimated, aborted
            )
        self.figures.request_ended(service.route.name, request.model, exchange, now, status, usage, aborted)
        if self.request_log is not None:
            self.request_log.write(exchange, status, usage, aborted, now, self.at())

    @property
    def requests_in_hand(self) -> int:
        """Requests that are not over."""
        return self._exchanges

    # -- what the gateway itself answers

    def models_answer(self, key: ServiceKey | None, path: str) -> bytes:
        """The models that a key may ask, as OpenAI lists them. Raises RequestRefused."""
        wanted = path.removeprefix("/v1/models").lstrip("/")
        if wanted:
            return json.dumps(_model_row(wanted, self.find(wanted, key))).encode()
        found = [
            _model_row(model, service) for model, (service, _) in self._models.items() if self.keys.allows(key, model)
        ]
        return json.dumps({"object": "list", "data": found}).encode()

    def answer_own(self, exchange: Exchange) -> tuple[int, bytes, bytes]:
        """Status, kind and body of what is no model's matter: health, and on this machine metrics."""
        if exchange.head.path == "/health":
            ready = sum(
                each.state is ReplicaState.READY
                for service in self.services.values()
                for each in service.route.replicas
            )
            status = 503 if self.is_draining else 200
            body = {"status": "draining" if self.is_draining else "ok", "services": len(self.services), "ready": ready}
            return status, b"application/json", json.dumps(body).encode()
        if exchange.client.source:
            return 403, b"application/json", error_body(403, "metrics are told on this machine alone", "not_here")
        return 200, b"text/plain; version=0.0.4; charset=utf-8", self.figures.text(self).encode()

    def report(self) -> DemandReport:
        """What is asked of the services, and what was used since the last report."""
        now = self.now()
        return DemandReport(
            self.table.sequence, tuple(service.demand(now) for service in self.services.values()), self.usage.take()
        )


def _model_row(model: str, service: RunningService) -> dict[str, object]:
    return {"id": model, "object": "model", "created": int(service.route.created), "owned_by": "actorgrid"}
