"""Links to other hosts over TCP with mutual TLS 1.3: listens, dials when there is something to say, refuses the rest.

A net has at most two links in use to each host: one for calls and casts, and one for streams, so that a call does not
wait in the kernel's buffers behind a stream. It dials on demand, and always for the hosts it is told to ``keep``. When a
dial fails, what waited for it fails with HostUnreachable, and the next comes after a growing, jittered delay only. Names
are not resolved here: that blocks, and addresses come from the ledger.

A host is believed when its certificate says so and ``admit`` has nothing against it, both at every new link. Everything
else is closed, counted by its reason and, at most once a reason in ``LOG_EVERY_S``, logged.

Everything runs in the loop's thread. ``PeerLimits`` says the bounds.
"""

from __future__ import annotations

import logging
import random
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from actorgrid.errors import (
    ActorGridError,
    CallTimeout,
    HostUnreachable,
    MailboxFull,
    NotSupported,
    PeerGone,
    PortInUse,
)

from .peer_calls import Answer, Cancellable, Loop, OnCall, OnCast, OnStream, Stream
from .peer_door import Door
from .peer_frames import BULK_LANE, CONTROL_LANE, LANES
from .peer_limits import PeerLimits, Refusal
from .peer_link import Admit, Down, PeerLink, Up
from .peer_route import Route, Work
from .peer_socket import PeerSocket
from .peer_tls import PeerIdentity, tls_context

LOG_EVERY_S = 10.0
ACCEPT_AGAIN_S = 1.0
ACCEPTS_A_TURN = 16
BACKLOG = 128
_QUIET = {Refusal.GONE, Refusal.RETIRED, Refusal.CLOSING}

Address = tuple[str, int]
Resolve = Callable[[str], Sequence[Address]]
"""host id -> where it listens, numeric, best first; none when that is not known."""
OnPeer = Callable[[str, bool], None]
"""(host id, reachable): its link for calls is up now, or is not any more."""

log = logging.getLogger("actorgrid.links")


class PeerNet:
    """See the module. *listen*: a numeric address and a port (0: any), or ``None`` to dial only.

    Raises PortInUse, and ConfigError when the identity cannot be used.
    """

    def __init__(
        self,
        loop: Loop,
        identity: PeerIdentity,
        listen: Address | None,
        *,
        resolve: Resolve,
        admit: Admit,
        on_call: OnCall,
        on_cast: OnCast,
        on_stream: OnStream,
        on_peer: OnPeer | None = None,
        software: str = "",
        limits: PeerLimits | None = None,
        dice: random.Random | None = None,
    ) -> None:
        self.host_id = identity.host_id
        self.refusals: Counter[str] = Counter()
        """Links refused or closed for a reason, by ``Refusal``. A connection that just ended is none."""
        self._loop = loop
        self._limits = limits or PeerLimits()
        self._resolve, self._admits, self._on_peer = resolve, admit, on_peer
        self._told_up: set[str] = set()
        self._handlers = (on_call, on_cast, on_stream)
        self._software = software
        self._dice = dice or random.Random()  # nosec B311 - spreads delays, keeps no secret
        self._routes: dict[tuple[str, str], Route[PeerSocket]] = {}
        self._timers: dict[tuple[str, str], Cancellable] = {}
        self._kept: frozenset[str] = frozenset()
        self._sockets: dict[PeerSocket, None] = {}
        self._half_open: dict[PeerSocket, None] = {}  # accepted, oldest first
        self._dials: dict[PeerSocket, tuple[Route[PeerSocket], str, list[Address]]] = {}
        self._door = Door(self._limits)
        self._logged_s: dict[str, float] = {}
        self._closed = False
        self._listener: socket.socket | None = None
        self.renew(identity)
        if listen is not None:
            self._listener = _listen(listen)
            self._loop.watch(self._listener.fileno(), self._accept)
        self._ticker = loop.after(self._limits.tick_s, self._tick)

    # -- for the owner

    @property
    def port(self) -> int:
        """Where it listens; 0 when it does not."""
        return 0 if self._listener is None else int(self._listener.getsockname()[1])

    def renew(self, identity: PeerIdentity) -> None:
        """Use other TLS material for every link from now on; those that exist stay. Raises ConfigError, and keeps the
        old then."""
        if identity.host_id != self.host_id:
            raise NotSupported("a net keeps its host id", asked=identity.host_id, found=self.host_id)
        contexts = tls_context(identity, server_side=False), tls_context(identity, server_side=True)
        self._identity = identity
        self._client_context, self._server_context = contexts

    def keep(self, host_ids: Iterable[str]) -> None:
        """Have a link for calls to these hosts always, as far as they can be reached; to no others than asked."""
        self._kept = frozenset(host_ids) - {self.host_id}
        for host_id in self._kept:
            self._plan(self._route(host_id, CONTROL_LANE), CONTROL_LANE)

    def call(self, host_id: str, target: str, body: bytes, timeout_s: float) -> Answer:
        """Ask *target* at a host; the answer fails with what it raised there, CallTimeout, HostUnreachable, PeerGone,
        MailboxFull or FrameTooLarge. The time for dialling counts."""
        answer = Answer()
        if self._closed or host_id == self.host_id:
            answer.fail(NotSupported("a net calls other hosts, until it is closed", asked=host_id))
            return answer

        def begin(link: PeerSocket) -> None:
            if not answer.done:
                link.call(target, body, answer)

        def expire() -> None:
            if not answer.done:
                error = CallTimeout(
                    f"{target} at {host_id} did not answer in {timeout_s:g} s", hint="whether it acted is unknown"
                )
                answer.expire(error)

        timer = self._loop.after(timeout_s, expire)
        answer.when_settled(timer.cancel)
        work = Work(begin, answer.fail, len(body), self._loop.monotonic() + timeout_s)
        try:
            route = self._route(host_id, CONTROL_LANE)
            answer.when_cancelled(lambda: route.forget(work))
            self._submit(route, CONTROL_LANE, work)
        except ActorGridError as error:
            answer.fail(error)
        return answer

    def cast(self, host_id: str, target: str, body: bytes) -> None:
        """Tell *target* at a host; nothing says whether it came. Raises MailboxFull or FrameTooLarge.

        Without a link it waits for the next dial, if that is due within ``handshake_s``, or is dropped.
        """
        if self._closed or host_id == self.host_id:
            raise NotSupported("a net casts to other hosts, until it is closed", asked=host_id)
        deadline_s = self._loop.monotonic() + self._limits.handshake_s
        work = Work[PeerSocket](lambda link: link.cast(target, body), lambda _error: None, len(body), deadline_s)
        try:
            self._submit(self._route(host_id, CONTROL_LANE), CONTROL_LANE, work)
        except (HostUnreachable, PeerGone):
            self._dropped_cast(host_id)

    def open_stream(self, host_id: str, target: str, head: bytes, compress: bool = False) -> Stream:
        """Open a stream to *target* at a host; its ``on_end`` says what failed: as for ``call``, or MailboxFull."""
        if self._closed or host_id == self.host_id:
            raise NotSupported("a net opens streams to other hosts, until it is closed", asked=host_id)
        stream = Stream(host_id, target, head)

        def begin(link: PeerSocket) -> None:
            if not stream.over:
                link.open(stream, compress)

        deadline_s = self._loop.monotonic() + self._limits.handshake_s
        work = Work(begin, stream.ended, len(head), deadline_s)
        try:
            self._submit(self._route(host_id, BULK_LANE), BULK_LANE, work)
        except ActorGridError as error:
            failed = error
            self._loop.after(0.0, lambda: stream.ended(failed))  # the caller attaches to it first
        return stream

    def drop_refused(self) -> int:
        """Ask ``admit`` again for every link, after the ledger has changed; closes those it refuses, gives how many."""
        refused = 0
        for link in list(self._sockets):
            if link.link.is_up:
                why = self._admit(link.link.host_id, link.link.fingerprint)
                if why is not None:
                    refused += 1
                    link.close(Refusal.UNKNOWN_HOST, why)
        return refused

    def reachable(self, host_id: str) -> bool:
        """Whether a link for calls to *host_id* is up."""
        route = self._routes.get((host_id, CONTROL_LANE))
        return route is not None and route.link is not None

    def stats(self) -> dict[str, Any]:
        """Plain values for metrics: refusals by reason, and for each host with a record its links, bytes, round trip,
        what is under way and what last kept it from being reached. Bytes count what its present links carried."""
        hosts: dict[str, dict[str, Any]] = {}
        for (host_id, lane), route in self._routes.items():
            entry = hosts.setdefault(host_id, {"links": 0, "bytes_in": 0, "bytes_out": 0, "calls": 0, "streams": 0})
            entry[lane] = {"up": route.link is not None, "failures": route.failures, "waiting": route.waiting}
            entry["last_error"] = entry.get("last_error") or route.last_error
        for link in self._sockets:
            found = hosts.get(link.link.host_id)
            if found is not None and link.link.is_up:
                found["links"] += 1
                found["bytes_in"] += link.bytes_in
                found["bytes_out"] += link.bytes_out
                found["calls"] += link.calls
                found["streams"] += link.streams
                if link.link.lane == CONTROL_LANE:
                    found["rtt_s"] = link.link.rtt_s
        return {
            "refusals": dict(self.refusals),
            "half_open": len(self._half_open),
            "connections": len(self._sockets),
            "addresses": len(self._door),
            "hosts": hosts,
        }

    def close(self) -> None:
        """Close everything; what is under way fails with PeerGone."""
        if self._closed:
            return
        self._closed = True
        self._ticker.cancel()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._stop_listening()
        for link in list(self._sockets):
            link.close(Refusal.CLOSING, f"{self.host_id} stops")
        for route in self._routes.values():
            for work in route.take_waiting():
                work.give_up(PeerGone(f"{self.host_id} stops"))

    # -- routes

    def _route(self, host_id: str, lane: str) -> Route[PeerSocket]:
        route = self._routes.get((host_id, lane))
        if route is None:
            if len(self._routes) >= len(LANES) * self._limits.hosts_max:
                raise MailboxFull(f"links to {self._limits.hosts_max} hosts are recorded", asked=host_id)
            route = self._routes[host_id, lane] = Route(self.host_id, host_id, self._limits)
        return route

    def _submit(self, route: Route[PeerSocket], lane: str, work: Work[PeerSocket]) -> None:
        if route.link is not None:
            work.begin(route.link)
            return
        route.wait(work, self._loop.monotonic())
        self._plan(route, lane)

    def _plan(self, route: Route[PeerSocket], lane: str) -> None:
        """Dial, now or when the route says, if there is something to dial for."""
        key = route.host_id, lane
        if self._closed or key in self._timers:
            return
        delay_s = route.dial_in_s(self._loop.monotonic(), wanted=self._is_kept(route, lane))
        if delay_s is None:
            return
        if delay_s > 0:
            self._timers[key] = self._loop.after(delay_s, lambda: self._due(route, lane))
            return
        route.dialling = True
        addresses = list(self._resolve(route.host_id))
        self._dial(route, lane, addresses, "no address is known for it")

    def _due(self, route: Route[PeerSocket], lane: str) -> None:
        self._timers.pop((route.host_id, lane), None)
        self._plan(route, lane)

    def _is_kept(self, route: Route[PeerSocket], lane: str) -> bool:
        return lane == CONTROL_LANE and route.host_id in self._kept

    def _dial(self, route: Route[PeerSocket], lane: str, addresses: list[Address], why: str) -> None:
        while addresses:
            address = addresses.pop(0)
            try:
                connection = _connect(address)
            except OSError as error:
                why = f"{address[0]}:{address[1]}: {error}"
                continue
            link = PeerLink(
                self._client_context,
                self._identity.cluster_id,
                self._admit,
                self._loop.monotonic(),
                dialled=True,
                expected_host=route.host_id,
                lane=lane,
                software=self._software,
                limits=self._limits,
            )
            peer = self._take_in(connection, link, f"{address[0]}:{address[1]}")
            self._dials[peer] = (route, lane, addresses)
            return
        self._dial_failed(route, lane, why)

    def _dial_failed(self, route: Route[PeerSocket], lane: str, why: str) -> None:
        route.dial_failed(why, self._loop.monotonic(), self._dice.random())
        error = HostUnreachable(
            f"{route.host_id} cannot be reached",
            found=why,
            hint="see whether its agent runs and the addresses are right",
        )
        for work in route.take_waiting():
            work.give_up(error)
        self._plan(route, lane)

    def _take_in(self, connection: socket.socket, link: PeerLink, address: str) -> PeerSocket:
        peer = PeerSocket(self._loop, connection, link, address, self._handlers, self._went_up, self._went_down)
        self._sockets[peer] = None
        return peer

    # -- links come and go

    def _went_up(self, peer: PeerSocket, event: Up) -> None:
        if peer in self._half_open:
            del self._half_open[peer]
            self._door.proven(peer.address)
        dial = self._dials.pop(peer, None)
        if dial is not None:
            dial[0].dialling = False
        now_s = self._loop.monotonic()
        route = self._route(event.host_id, event.lane)
        loser = route.settle(peer, peer.link.dialled, now_s)
        if loser is not None:
            loser.retire()
        if event.lane == CONTROL_LANE:
            self._tell(event.host_id, True)
        for work in route.take_waiting():
            try:
                self._submit(route, event.lane, work)
            except ActorGridError as error:
                work.give_up(error)

    def _went_down(self, peer: PeerSocket, event: Down) -> None:
        self._sockets.pop(peer, None)
        if peer in self._half_open:
            del self._half_open[peer]
            self._door.gone(peer.address)
        self._count(event, peer)
        dial = self._dials.pop(peer, None)
        if dial is not None and not self._closed:
            route, lane, addresses = dial
            self._dial(route, lane, addresses, f"{peer.address}: {event.error}")
        if peer.up_since_s is None:
            return
        key = peer.link.host_id, peer.link.lane
        found = self._routes.get(key)
        if found is not None and found.lost(peer, str(event.error), self._loop.monotonic(), self._dice.random()):
            if key[1] == CONTROL_LANE:
                self._tell(key[0], False)
            self._plan(found, key[1])

    def _tell(self, host_id: str, up: bool) -> None:
        if up is (host_id in self._told_up):
            return
        (self._told_up.add if up else self._told_up.discard)(host_id)
        if self._on_peer is not None:
            self._on_peer(host_id, up)

    def _admit(self, host_id: str, fingerprint: str) -> str | None:
        if host_id == self.host_id:
            return "that is the id of this very host"
        return self._admits(host_id, fingerprint)

    def _count(self, event: Down, peer: PeerSocket) -> None:
        if event.refusal in _QUIET:
            return
        refusal = event.refusal
        if peer.link.dialled and not peer.bytes_in:
            refusal = Refusal.UNREACHABLE
        self.refusals[refusal] += 1
        self._say(refusal, f"a link with {peer.link.host_id or 'a host'} at {peer.address}: {event.error}")

    def _say(self, refusal: Refusal, text: str) -> None:
        now_s = self._loop.monotonic()
        if now_s - self._logged_s.get(refusal, -LOG_EVERY_S) >= LOG_EVERY_S:
            self._logged_s[refusal] = now_s
            log.warning("%s (%s, %d so far)", text, refusal, self.refusals[refusal])

    def _dropped_cast(self, host_id: str) -> None:
        self.refusals[Refusal.UNREACHABLE] += 1
        self._say(Refusal.UNREACHABLE, f"a cast to {host_id} is dropped: it cannot be reached now")

    # -- accepting

    def _accept(self) -> None:
        for _ in range(ACCEPTS_A_TURN):
            if self._listener is None:
                return
            try:
                connection, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionError):
                return
            except OSError as error:  # no descriptor or no memory is left: the listener would wake us for ever
                log.warning("no connection can be taken for %g s: %s", ACCEPT_AGAIN_S, error)
                self._loop.unwatch(self._listener.fileno())
                self._loop.after(ACCEPT_AGAIN_S, self._listen_again)
                return
            self._knocked(connection, str(address[0]))

    def _listen_again(self) -> None:
        if self._listener is not None:
            self._loop.watch(self._listener.fileno(), self._accept)

    def _knocked(self, connection: socket.socket, address: str) -> None:
        now_s = self._loop.monotonic()
        refusal = self._door.knock(address, now_s)
        if refusal is not None:
            connection.close()
            self.refusals[refusal] += 1
            self._say(refusal, f"a connection from {address} is closed unread")
            return
        connection.setblocking(False)
        link = PeerLink(
            self._server_context,
            self._identity.cluster_id,
            self._admit,
            now_s,
            dialled=False,
            software=self._software,
            limits=self._limits,
        )
        self._half_open[self._take_in(connection, link, address)] = None
        if len(self._half_open) > self._limits.half_open_max:
            oldest = next(iter(self._half_open))
            oldest.close(Refusal.TOO_MANY_HALF_OPEN, "too many connections wait for a proof of identity")

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._loop.unwatch(self._listener.fileno())
            self._listener.close()
            self._listener = None

    # -- time

    def _tick(self) -> None:
        self._ticker = self._loop.after(self._limits.tick_s, self._tick)
        for peer in list(self._sockets):
            peer.tick()
        for host_id in self._kept:
            self._plan(self._route(host_id, CONTROL_LANE), CONTROL_LANE)
        now_s = self._loop.monotonic()
        idle = [key for key, route in self._routes.items() if route.idle(now_s) and key[0] not in self._kept]
        for key in idle:
            del self._routes[key]


def _listen(address: Address) -> socket.socket:
    listener = socket.socket(_family(address), socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setblocking(False)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise PortInUse(
            f"the port for links between hosts cannot be used: {error}", asked=f"{address[0]}:{address[1]}"
        ) from None
    return listener


def _connect(address: Address) -> socket.socket:
    """A socket that is connecting. Raises OSError."""
    connection = socket.socket(_family(address), socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        connection.connect(address)
    except BlockingIOError:
        return connection
    except OSError:
        connection.close()
        raise
    return connection


def _family(address: Address) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address[0] else socket.AF_INET
