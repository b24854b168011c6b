"""The process of a host's gRPC door: translates, and decides nothing (docs/decisions/0071).

    python -m actorgrid.actors.gateway.grpc_door.main SPEC

The first line of its standard input is what it proves itself with to the HTTP door; that it ends there is the order to
stop. It says one line on its standard output: where it serves, or why it does not. A process of its own, and begun by
exec: gRPC's threads do not survive a fork, and a crash of its C code must not be one of the HTTP door.

Bounds: ``CONNECTIONS_MAX`` connections, of one address fewer (``door_connections.py``), and ``HANDSHAKE_MS`` for the
beginning of one; ``CALLS_MAX`` calls at once, more are RESOURCE_EXHAUSTED; messages of ``security.max_body_bytes``;
metadata of 16 KiB; a client that is silent for five minutes is let go.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from contextlib import suppress

import aiohttp

from actorgrid.actors.ledger.names import is_loopback
from actorgrid.errors import ActorGridError, NotSupported, StartFailed

from .door_connections import LOOK_S, DoorConnections
from .door_spec import DoorSpec, DoorWord, read_spec, write_word

log = logging.getLogger("actorgrid.grpc")
CALLS_MAX = 1024
CONNECTIONS_MAX = 1024
HANDSHAKE_MS = 10_000
METADATA_BYTES_MAX = 16 * 2**10
GRACE_S = 2.0
READY_S = 2.0
"""How often it is asked whether the host takes work, for the health service."""


def channel_options(spec: DoorSpec) -> list[tuple[str, int]]:
    """What gRPC holds its clients to."""
    return [
        ("grpc.max_receive_message_length", spec.message_bytes_max),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", METADATA_BYTES_MAX),
        ("grpc.absolute_max_metadata_size", 2 * METADATA_BYTES_MAX),
        ("grpc.max_allowed_incoming_connections", CONNECTIONS_MAX),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
        ("grpc.max_connection_idle_ms", 300_000),
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ("grpc.so_reuseport", 0),  # a port that is taken is an error
    ]


async def serve(spec: DoorSpec, secret: str, stop: asyncio.Event) -> None:
    """Serve until *stop*. Raises StartFailed, KeyUnusable, or NotSupported without the libraries."""
    try:
        import grpc
        from grpc_health.v1 import health, health_pb2, health_pb2_grpc
        from grpc_reflection.v1alpha import reflection

        from actorgrid.rpc import actorgrid_pb2 as pb

        from .calls import handlers_of
    except ImportError as error:
        raise NotSupported("the gRPC door's libraries are not there", found=str(error), hint=INSTALL) from None
    from .host_api import HostApi

    server = grpc.aio.server(options=channel_options(spec), maximum_concurrent_rpcs=CALLS_MAX)
    host = spec.listen.rpartition(":")[0]
    connections = DoorConnections(here=is_loopback(host.strip("[]")))
    api = HostApi(spec.url, secret, connections)
    looking = asyncio.create_task(_look_at(connections))
    try:
        server.add_generic_rpc_handlers(tuple(handlers_of(api)))
        names = [service.full_name for service in pb.DESCRIPTOR.services_by_name.values()]
        checks = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(checks, server)
        reflection.enable_server_reflection((*names, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
        try:
            if spec.security:
                from .door_tls import server_credentials

                port = server.add_secure_port(spec.listen, server_credentials(spec))
            else:
                port = server.add_insecure_port(spec.listen)
        except RuntimeError as error:
            raise StartFailed("the gRPC door cannot listen", asked=spec.listen, found=str(error)[:300]) from None
        connections.port = port
        serving, not_serving = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
        for name in ("", *names):  # before anybody can ask, who would be told that there is no such service
            await checks.set(name, not_serving)
        await server.start()
        say(DoorWord(address=f"{host}:{port}"))
        async with aiohttp.ClientSession(trust_env=False) as session:
            while not stop.is_set():
                state = serving if await _is_ready(session, spec.url) else not_serving
                for name in ("", *names):
                    await checks.set(name, state)
                with suppress(TimeoutError):
                    async with asyncio.timeout(READY_S):
                        await stop.wait()
        await checks.enter_graceful_shutdown()
        await server.stop(GRACE_S)
    finally:
        looking.cancel()
        await server.stop(None)
        await api.close()


async def _look_at(connections: DoorConnections) -> None:
    while True:
        await asyncio.sleep(LOOK_S)
        connections.look()


INSTALL = "pip install 'actorgrid[grpc]'"


async def _is_ready(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(f"{url}/readyz", timeout=aiohttp.ClientTimeout(total=READY_S)) as response:
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False


def say(word: DoorWord) -> None:
    """Say the one line; whoever started this may be gone."""
    with suppress(OSError):
        os.write(1, write_word(word))


async def run(spec: DoorSpec, secret: str) -> None:
    """Serve until the standard input ends, or SIGTERM comes."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)

    def heard() -> None:
        if not os.read(0, 4096):
            loop.remove_reader(0)
            stop.set()

    loop.add_reader(0, heard)
    await serve(spec, secret, stop)


def main() -> int:
    """The process's outermost function; gives its exit code."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    try:
        spec = read_spec(sys.argv[1])
        secret = b""
        while not secret.endswith(b"\n"):
            piece = os.read(0, 256)
            if not piece or len(secret) > 1024:
                raise StartFailed("nobody told the gRPC door its secret")
            secret += piece
        asyncio.run(run(spec, secret.decode("ascii").strip()))
    except ActorGridError as error:
        log.error("%s", error)
        say(DoorWord(error=str(error)))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
