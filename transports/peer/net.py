"""Links to other hosts over TCP with mutual TLS 1.3: listens, dials, refuses whoever is no host of the cluster.

A host is believed when its certificate says so and ``admit`` has nothing against it, both at every new link. Everything
else is closed and counted. Names are not resolved here: that blocks, and addresses come from the ledger.

What may be asked of it is in ``PeerHosts``.
"""

from __future__ import annotations

import logging
import random
import socket
from collections.abc import Callable, Sequence
from typing import Any

from actorgrid.errors import MalformedMessage, NotSupported, PortInUse

from .acceptor import PeerAcceptor
from .calls import Cancellable, NetLoop, OnCall, OnCast, OnStream
from .dials import SILENT_S, Dials
from .end import PeerEnd
from .frames import PIECES_LANE
from .hosts import OnPeer, PeerHosts, PeerRoute
from .limits import PeerLimits, Refusal
from .link import Admit, PeerLink
from .session import LinkDown
from .socket import PeerSocket
from .tls import PeerIdentity, TlsPipe

ACCEPT_AGAIN_S = 1.0
ACCEPTS_A_TURN = 16
BACKLOG = 1024
"""Every host of a large cluster may dial at once, when it has a new leader or the agent here is back: whose packet the
kernel drops comes again a second later."""

Address = tuple[str, int]
Resolve = Callable[[str], Sequence[Address]]
"""host id -> where it listens, numeric, best first; none when that is not known."""

log = logging.getLogger("actorgrid.links")


class PeerNet(PeerHosts):
    """See the module. *listen*: a numeric address and a port (0: any), or ``None`` to dial only.

    Raises PortInUse.
    """

    def __init__(
        self,
        loop: NetLoop,
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
        rng: random.Random | None = None,
    ) -> None:
        self.on_pieces: Callable[[str, str, socket.socket, TlsPipe, bytes], None] | None = None
        """Given each connection for pieces that another host opened: its id, its key's fingerprint, the socket, its
        TLS, and what is to be sent first. Where there is nobody, it is closed."""
        self._own_id = identity.host_id
        self.renew(identity)
        self._listener = None if listen is None else _listen(listen)
        rng = rng or random.Random()  # nosec B311 - spreads delays, keeps no secret
        super().__init__(loop, identity.host_id, on_call, on_cast, on_stream, on_peer, limits, rng)
        self._resolve, self._admits = resolve, admit
        self._software = software
        self._half_open: dict[PeerSocket, None] = {}  # accepted, oldest first
        self._dials: dict[PeerSocket, tuple[PeerRoute, str, list[Address]]] = {}
        self._turns: Dials[tuple[PeerRoute, str], PeerSocket] = Dials(self._limits.dials_max)
        self._turns_timer: Cancellable | None = None
        self._door = PeerAcceptor(self._limits)
        self._listen_again()

    @property
    def port(self) -> int:
        """The port on which this net listens; 0 when it does not."""
        return 0 if self._listener is None else int(self._listener.getsockname()[1])

    @property
    def identity(self) -> PeerIdentity:
        """What new links use."""
        return self._identity

    def renew(self, identity: PeerIdentity) -> None:
        """Use other TLS material for every new link; those that exist stay as they are."""
        if identity.host_id != self._own_id:
            raise NotSupported("a net keeps its host id", asked=identity.host_id, found=self._own_id)
        self._identity = identity

    def stats(self) -> dict[str, Any]:
        """As ``PeerHosts.stats``, with the connections that have not proven a host, and the addresses that knocked."""
        return {**super().stats(), "half_open": len(self._half_open), "addresses": len(self._door)}

    def close(self) -> None:
        """Close everything; what is under way fails with PeerGone."""
        if self._listener is not None:
            self._loop.unwatch(self._listener.fileno())
            self._listener.close()
            self._listener = None
        if self._turns_timer is not None:
            self._turns_timer.cancel()
        super().close()

    # -- dialling

    def _dial(self, route: PeerRoute, lane: str) -> None:
        self._turns.ask((route, lane))
        self._dial_next()

    def _dial_next(self) -> None:
        while not self._closed and (found := self._turns.next(self._loop.monotonic())) is not None:
            route, lane = found
            self._try(route, lane, list(self._resolve(route.host_id)), "no address is known for it")
        if self._turns and self._turns_timer is None and not self._closed:
            self._turns_timer = self._loop.after(SILENT_S, self._look_for_turns)

    def _look_for_turns(self) -> None:
        self._turns_timer = None
        self._dial_next()

    def _try(self, route: PeerRoute, lane: str, addresses: list[Address], why: str) -> None:
        while addresses:
            address = addresses.pop(0)
            try:
                connection = _connect(address)
            except OSError as error:
                why = f"{address[0]}:{address[1]}: {error}"
                continue
            link = PeerLink(
                self._identity,
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
            self._turns.began(peer, self._loop.monotonic())
            return
        self._dial_failed(route, lane, why)

    def _take_in(self, connection: socket.socket, link: PeerLink, address: str) -> PeerSocket:
        peer = PeerSocket(self._loop, connection, link, address, self._handlers, self._went_up, self._went_down)
        self._ends[peer] = None
        return peer

    def _went_up(self, end: PeerEnd) -> None:
        if isinstance(end, PeerSocket):
            self._dials.pop(end, None)
            self._turns.over(end)
            if end in self._half_open:
                del self._half_open[end]
                self._door.proven(end.address)
            if end.lane == PIECES_LANE:
                self._give_away(end)
                return
        super()._went_up(end)
        self._dial_next()

    def _give_away(self, end: PeerSocket) -> None:
        """Have a link for pieces carried by whoever takes these; its bytes are none of ours any more."""
        self._ends.pop(end, None)
        host_id, fingerprint = end.host_id, end.fingerprint
        try:
            given = end.give_away()
        except MalformedMessage as error:
            self._count(Refusal.MALFORMED, f"a link for pieces with {host_id}: {error}", host_id)
            return
        if self.on_pieces is None:
            given[0].close()
        else:
            self.on_pieces(host_id, fingerprint, *given)

    def _went_down(self, end: PeerEnd, event: LinkDown) -> None:
        super()._went_down(end, event)
        if not isinstance(end, PeerSocket):
            raise AssertionError("a net of sockets has other links")
        refusal = Refusal.UNREACHABLE if end.dialled and not end.bytes_in else event.refusal
        host_id = end.link.host_id
        about = f"a link with {host_id or 'a host'} at {end.address}: {event.error}"
        self._count(refusal, about, host_id, end.link.lane)
        if refusal == Refusal.REFUSED_US and host_id:
            self._refused_us(host_id, event.error.found)
        if end in self._half_open:
            del self._half_open[end]
            self._door.gone(end.address)
        dial = self._dials.pop(end, None)
        self._turns.over(end)
        if dial is not None and not self._closed:
            route, lane, addresses = dial
            self._try(route, lane, addresses, f"{end.address}: {event.error}")
            self._dial_next()

    def _admit(self, host_id: str, fingerprint: str) -> str | None:
        if host_id == self.host_id:
            return "that is the id of this very host"
        if not self._has_room_for(host_id):
            return f"links to {self._limits.hosts_max} hosts are recorded"
        return self._admits(host_id, fingerprint)

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
        refusal = self._door.admit(address, now_s)
        if refusal is not None:
            connection.close()
            self._count(refusal, f"a connection from {address} is closed unread")
            return
        connection.setblocking(False)
        link = PeerLink(
            self._identity,
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
