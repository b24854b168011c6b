"""Relays: streams of clients on other machines to workers, each over one HTTP connection that was upgraded.

A stream is joined to the socket on which the worker of a lease listens, or the shim of a job for those who come to
that, or to the one that leads to users' actors (links/actor_relays.py); or, where a worker or job is on another host,
to this host's way there. What goes over it is between the client and the worker: nothing is read here. The client goes
on over another connection, of any host, where this one breaks (transports/kept_stream.py).

Bounds: ``RELAYS_MAX`` connections, ``STREAMS_OF_ALL_MAX`` streams, those whose worker is being looked for counted, and
of each stream what its windows hold, or ``FIRST_BYTES_MAX`` before its worker is found; no worker is read while the
connection does not take what it says. A client that has shown a key keeps its relay until the key is revoked, or the
work is over whose credential it was.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgpack
from aiohttp import web

from actorgrid.access import Scope
from actorgrid.actors.cluster.messages import GetJob
from actorgrid.actors.ledger.record_types import AllocationRecord, JobRecord
from actorgrid.actors.links.messages import AskHost, OpenRelay
from actorgrid.actors.links.pipe import Pipe
from actorgrid.actors.work.attempt_specs import object_store_path
from actorgrid.actors.work.environment import host_tag
from actorgrid.actors.work.messages import FindChannel, FindWorker
from actorgrid.errors import (
    ActorGridError,
    BadRequest,
    NotSupported,
    Overloaded,
    PeerGone,
    UnknownAllocation,
)
from actorgrid.transports.peer.calls import Stream
from actorgrid.transports.peer.limits import Refusal
from actorgrid.transports.peer.relay_end import ACTOR, GATEWAY_LIMITS, JOB, UPGRADE, WORKER, RelayEnd
from actorgrid.transports.user_actor_frames import encode_far_caller, far_actors_path, far_caller_of

if TYPE_CHECKING:
    from .application import GatewayApp

RELAYS_MAX = 128
STREAMS_OF_ALL_MAX = 1024
HIGH_WATER_BYTES = 256 * 1024
"""So much waits for the client in this process; then no worker is read for it."""
HEAD_BYTES_MAX = 1024
FIRST_BYTES_MAX = 64 * 1024
"""A client says no more than its first frame before the worker has answered (``FIRST_FRAME_BYTES``)."""
FIND_S = 5.0
CATCH_UP_S = 5.0
PROVE_AGAIN_S = 0.3
CHANNEL_PATHS_MAX = 256
CHANNEL_PATH_GOOD_S = 5.0
"""A browser opens many connections to a port of a job, one after the other."""

log = logging.getLogger("actorgrid.gateway")


class AsyncioNetLoop:
    """What a pipe needs of the loop that it lives in."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.monotonic = loop.time

    def after(self, delay_s: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """As of ``NetLoop``."""
        return self._loop.call_later(delay_s, callback)

    def watch(
        self, fd: int, on_readable: Callable[[], None] | None, on_writable: Callable[[], None] | None = None
    ) -> None:
        """As of ``NetLoop``."""
        if on_readable is None:
            self._loop.remove_reader(fd)
        else:
            self._loop.add_reader(fd, on_readable)
        if on_writable is None:
            self._loop.remove_writer(fd)
        else:
            self._loop.add_writer(fd, on_writable)

    def unwatch(self, fd: int) -> None:
        """As of ``NetLoop``."""
        self._loop.remove_reader(fd)
        self._loop.remove_writer(fd)


class WorkerRelay(RelayEnd, asyncio.Protocol):
    """One client's relay. *request*: the one that was upgraded; *scope*: as of ``RequestContext``."""

    def __init__(self, relays: WorkerRelays, request: web.Request, scope: Scope) -> None:
        loop = asyncio.get_running_loop()
        super().__init__("the client", False, GATEWAY_LIMITS, self._stream_came, relays.ended, loop.time)
        if request.transport is None:
            raise PeerGone("the client has left")
        self._relays = relays
        self.scope = scope
        self.authorization = request.headers.get("Authorization")
        self._transport = request.transport
        self._before = request.protocol
        self._writable = True
        self._opening: set[asyncio.Task[None]] = set()
        self.pipes: set[Pipe] = set()

    def begin(self) -> None:
        """Take the connection over: from here on it speaks no HTTP."""
        self._transport.set_protocol(self)
        self._transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)
        self._transport.write(
            f"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {UPGRADE}\r\n\r\n".encode()
        )

    # -- the connection

    def data_received(self, data: bytes) -> None:
        """As of ``asyncio.Protocol``."""
        self.receive(data)

    def pause_writing(self) -> None:
        """As of ``asyncio.Protocol``."""
        self._writable = False

    def resume_writing(self) -> None:
        """As of ``asyncio.Protocol``."""
        self._writable = True
        self.go_on()

    def connection_lost(self, exc: Exception | None) -> None:
        """As of ``asyncio.Protocol``."""
        self.lost(f"the connection ended: {exc}" if exc else "the connection ended")
        self._before.connection_lost(exc)

    def _send(self) -> None:
        while self._writable and (data := self.session.next_bytes()) is not None:
            self._put_last(data)

    def _put_last(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)

    def _hang_up(self) -> None:
        for task in self._opening:
            task.cancel()
        self._transport.close()

    # -- its streams

    @property
    def opening(self) -> int:
        """The number of streams whose worker is being looked for."""
        return len(self._opening)

    def _stream_came(self, stream: Stream) -> None:
        if stream.target not in (WORKER, JOB, ACTOR):
            known = f"{WORKER}, {JOB}, {ACTOR}"
            raise NotSupported("a relay leads to no such thing", asked=stream.target[:80], found=known)
        head = _read_head(stream.head)
        if self._relays.streams >= STREAMS_OF_ALL_MAX:
            raise Overloaded("this host relays its maximum of streams", found=f"{STREAMS_OF_ALL_MAX}")
        first = bytearray()
        task = asyncio.get_running_loop().create_task(self._lead(stream, head, first))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

        def given_up(error: ActorGridError | None) -> None:
            task.cancel()
            if error is None:
                stream.end()

        def said_before(data: bytes) -> None:
            if len(first) + len(data) > FIRST_BYTES_MAX:
                task.cancel()
                raise BadRequest("a stream says too much before its worker has answered", found=f"{FIRST_BYTES_MAX}")
            first.extend(data)

        stream.attach(said_before, given_up)

    async def _lead(self, stream: Stream, head: dict[str, Any], first: bytearray) -> None:
        line = b""
        try:
            if stream.target == JOB:
                path = await self._relays.channel_path(str(head.get("attempt_id")), self.scope)
            elif stream.target == ACTOR:
                # Who may call it, the actor says: it has a secret with those who have its handle.
                line, path = encode_far_caller(far_caller_of(head)), self._relays.actors_path()
            else:
                path = await self._relays.worker_path(str(head.get("lease_id")), self.scope)
            try:
                local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
            except OSError as error:
                raise Overloaded(f"this host can open no more connections: {error.strerror}") from error
            try:
                local.connect(path)
                local.send(line)  # into an empty buffer, which has room for it
            except OSError as error:
                local.close()
                raise PeerGone(f"the worker takes no connections: {error.strerror}") from error
        except ActorGridError as error:
            stream.reset(error)
            return
        self.pipes.add(Pipe(self._relays.loop, local, stream, self._pipe_over, bytes(first)))
        self._relays.opened_total += 1

    def _pipe_over(self, pipe: Pipe) -> None:
        self.pipes.discard(pipe)


class WorkerRelays:
    """All relays of a host. Lives in the loop's thread."""

    def __init__(self, app: GatewayApp) -> None:
        self._app = app
        self._relays: dict[RelayEnd, WorkerRelay] = {}
        self._closed = False
        self._ticks: asyncio.TimerHandle | None = None
        self._prove_at_s = 0.0
        self._channel_paths: dict[str, tuple[str, float]] = {}  # with until when it is not asked for anew
        self.loop: AsyncioNetLoop
        self.opened_total = 0

    def __len__(self) -> int:
        return len(self._relays)

    @property
    def streams(self) -> int:
        """The number of streams that are joined to a worker, or are about to be."""
        return sum(len(relay.pipes) + relay.opening for relay in self._relays.values())

    async def serve(self, request: web.Request, scope: Scope) -> web.StreamResponse:
        """Upgrade a request's connection, and serve it until it ends. Raises BadRequest, Overloaded."""
        if request.headers.get("Upgrade", "") != UPGRADE:
            raise BadRequest(
                "this path is for clients that upgrade their connection",
                asked=f"Upgrade: {request.headers.get('Upgrade', '')}"[:100],
                found=f"Upgrade: {UPGRADE}",
                hint="clients of another major version speak another protocol",
            )
        if len(self._relays) >= RELAYS_MAX or self._closed:
            raise Overloaded(
                "this host relays for its maximum of clients", found=f"{RELAYS_MAX}", hint="go to another host"
            )
        loop = asyncio.get_running_loop()
        if self._ticks is None:
            self.loop = AsyncioNetLoop(loop)
            self._tick()
        relay = WorkerRelay(self, request, scope)
        self._relays[relay] = relay
        relay.begin()
        # Cancelled with the connection's end, as every handler is.
        await loop.create_future()
        raise AssertionError("nobody sets that future")

    def ended(self, relay: RelayEnd, _down: object) -> None:
        """Take note that a relay is over."""
        self._relays.pop(relay, None)

    def close(self) -> None:
        """End all relays, as the host stops: their clients go on over another one, or come back."""
        self._closed = True
        if self._ticks is not None:
            self._ticks.cancel()
        for relay in list(self._relays):
            relay.close(Refusal.CLOSING, "this host is stopping")

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        self._ticks = loop.call_later(GATEWAY_LIMITS.tick_s, self._tick)
        prove = loop.time() >= self._prove_at_s
        if prove:
            self._prove_at_s = loop.time() + PROVE_AGAIN_S
        for relay in list(self._relays.values()):
            relay.tick()
            if prove and not relay.is_down and not self._app.rechecks.is_good(relay.authorization):
                relay.close(Refusal.REFUSED_US, "the key or credential is not good any more")

    async def worker_path(self, lease_id: str, scope: Scope) -> str:
        """The socket on this host that leads to the worker of a lease.

        Raises UnknownAllocation when it has none, NotAllowed, and what asking another host raises.
        """
        allocation = await self._allocation(lease_id)
        if not scope.covers(str(allocation.get("user_id") or "")):
            raise _unknown(lease_id, "session")
        host_id, bridge = allocation["host"], self._app.bridge
        if host_id == str(self._app.host.host_id):
            return str(await bridge.call("worker_manager", FindWorker(lease_id), FIND_S))
        await bridge.call("links", AskHost(host_id, "find_worker", {"lease_id": lease_id}, FIND_S), FIND_S + 1)
        return str(await bridge.call("links", OpenRelay(host_id, lease_id), FIND_S))

    def actors_path(self) -> str:
        """The socket on this host that leads to actors, of this host and of others. Raises NotSupported."""
        host = self._app.host
        if host.enrolment is None:
            raise NotSupported(
                "actors are called from another machine by way of a cluster's host",
                found="a host that is of none",
                hint="actorgrid up --listen begins a cluster",
            )
        sockets = host.paths.work_sockets_dir
        return far_actors_path(str(object_store_path(sockets, host_tag(host.paths.data_dir))))

    async def channel_path(self, attempt_id: str, scope: Scope) -> str:
        """The socket on this host that leads to the channels of an attempt.

        Raises UnknownAllocation when it is over, NotAllowed, JobNotRunning, and what asking another host raises.
        """
        allocation = await self._allocation(attempt_id, "attempt")
        if not scope.is_all:
            asked = GetJob(allocation["owner"]["job_id"])
            job: JobRecord = await self._app.bridge.call("cluster_manager", asked, FIND_S)
            if not scope.covers(str(job["user_id"])):
                raise _unknown(attempt_id, "attempt")
        now_s = asyncio.get_running_loop().time()
        path, good_until_s = self._channel_paths.get(attempt_id, ("", 0.0))
        if now_s >= good_until_s:
            path = await self._find_channel(attempt_id, allocation["host"])
            if len(self._channel_paths) >= CHANNEL_PATHS_MAX:
                self._channel_paths.clear()
            self._channel_paths[attempt_id] = path, now_s + CHANNEL_PATH_GOOD_S
        return path

    async def _find_channel(self, attempt_id: str, host_id: str) -> str:
        bridge = self._app.bridge
        if host_id == str(self._app.host.host_id):
            here: dict[str, Any] = await bridge.call("worker_manager", FindChannel(attempt_id), FIND_S)
            return str(here["path"])
        await bridge.call("links", AskHost(host_id, "find_channel", {"attempt_id": attempt_id}, FIND_S), FIND_S + 1)
        return str(await bridge.call("links", OpenRelay(host_id, attempt_id), FIND_S))

    async def _allocation(self, lease_id: str, owner: str = "session") -> AllocationRecord:
        ledger = self._app.ledger
        found = ledger.allocations.get(lease_id)
        if found is None:  # in this copy: it was granted a moment ago, or we have just started, or it is gone
            await self._app.bridge.run(lambda: ledger.catch_up(CATCH_UP_S), CATCH_UP_S, "a lease")
            found = ledger.allocations.get(lease_id)
        if found is None:
            raise _unknown(lease_id, owner)
        if found["owner"]["kind"] != owner:
            raise BadRequest(f"the grant is no {owner}'s", asked=lease_id[:80])
        return found


def _unknown(lease_id: str, owner: str) -> UnknownAllocation:
    what = "lease" if owner == "session" else "attempt of a job"
    return UnknownAllocation(f"there is no such {what} (any more)", asked=lease_id[:80])


def _read_head(packed: bytes) -> dict[str, Any]:
    try:
        head = msgpack.unpackb(packed, raw=False) if len(packed) <= HEAD_BYTES_MAX else None
    except (ValueError, TypeError, msgpack.UnpackException):
        head = None
    if not isinstance(head, dict):
        raise BadRequest("a stream of a relay has a map for its head", found=f"{len(packed)} bytes")
    return head
