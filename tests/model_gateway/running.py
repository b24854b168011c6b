"""A gateway in a thread of its own, on the loop that it has in production, over tables that tests make."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, TypeVar

import uvloop

from actorgrid.actors.model_gateway.gateway import ModelGateway
from actorgrid.actors.model_gateway.gateway_client import GatewayClient
from actorgrid.actors.serving.table import (
    ReplicaEndpoint,
    ReplicaState,
    RoutingStrategy,
    ServiceKey,
    ServiceRoute,
    ServiceTable,
)

from .scripted_replica import ScriptedReplica

Answer = TypeVar("Answer")
HOST = "host-a"


def endpoint(replica: ScriptedReplica | int, number: int = 0, **more: Any) -> ReplicaEndpoint:
    port = replica if isinstance(replica, int) else replica.port
    made = ReplicaEndpoint(f"r{number}", HOST, f"r{number}.1", "v1", ReplicaState.READY, port)
    return replace(made, **more)


def route(*replicas: ReplicaEndpoint, **more: Any) -> ServiceRoute:
    made = ServiceRoute("chat", ("m",), replicas, strategy=RoutingStrategy.ROUND_ROBIN)
    return replace(made, **more)


def table(*routes: ServiceRoute, keys: tuple[ServiceKey, ...] = (), **more: Any) -> ServiceTable:
    return ServiceTable(1, HOST, routes, keys, **{"keys_required": bool(keys), **more})


class RunningGateway:
    """One gateway process' worth, to be asked over its socket."""

    def __init__(self, now: ServiceTable) -> None:
        self.woken: list[str] = []
        self.was_woken = threading.Event()
        self._loop = uvloop.new_event_loop()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(now,), name="gateway", daemon=True)
        self._thread.start()
        assert self._started.wait(10)

    def _run(self, now: ServiceTable) -> None:
        self._loop.run_until_complete(self._serve(now))
        self._loop.close()

    async def _serve(self, now: ServiceTable) -> None:
        self.gateway = ModelGateway(self._wake)
        self.gateway.use(now)
        self._stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: GatewayClient(self.gateway, False), "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        turning = asyncio.create_task(self.gateway.turn_wheel())
        self._started.set()
        await self._stop.wait()
        turning.cancel()
        server.close()
        self.gateway.pool.close()
        for client in list(self.gateway.clients):
            if client.transport is not None:
                client.transport.abort()
        await asyncio.sleep(0)

    def _wake(self, service: str) -> None:
        self.woken.append(service)
        self.was_woken.set()

    def ask(self, what: Callable[[ModelGateway], Answer]) -> Answer:
        """Ask in the loop's thread."""

        async def answer() -> Answer:
            return what(self.gateway)

        return asyncio.run_coroutine_threadsafe(answer(), self._loop).result(10)

    def begin(self, what: Callable[[ModelGateway], Coroutine[Any, Any, Answer]]) -> Future[Answer]:
        """Begin something that takes a while in the loop's thread."""
        return asyncio.run_coroutine_threadsafe(what(self.gateway), self._loop)

    def use(self, now: ServiceTable) -> None:
        self.ask(lambda gateway: gateway.use(now))

    def until(self, what: Callable[[ModelGateway], bool], seconds: float = 10.0) -> None:
        """Wait until that holds, asked each turn of the loop or so."""

        async def wait() -> None:
            async with asyncio.timeout(seconds):
                while not what(self.gateway):
                    await asyncio.sleep(0.005)

        asyncio.run_coroutine_threadsafe(wait(), self._loop).result(seconds + 5)

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(10)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def connect(self) -> socket.socket:
        made = socket.create_connection(("127.0.0.1", self.port), 20)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made
