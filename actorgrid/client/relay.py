"""A client's way to workers that it has no socket of: through the door of a host, over one connection (or a few).

Whoever uses it gets one end of a socket pair for each worker, and reads and writes that as if it were the worker's
socket. A thread carries the bytes. When the connection breaks, it makes another, to whichever host of the cluster
answers, and goes on where both sides are (transports/kept_stream.py): nothing is lost, and nothing comes twice.

A worker that is really gone ends its socket, and so does a cluster that has not been reached for ``AWAY_MAX_S``.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from typing import TYPE_CHECKING, Any

import msgpack

from actorgrid.errors import (
    ActorGridError,
    BadRequest,
    CertificateRefused,
    HostUnreachable,
    MailboxFull,
    NotAllowed,
    NotFound,
    NotSupported,
    PeerGone,
    WrongToken,
)
from actorgrid.transports.channel_frames import WINDOW_BYTES as CHANNEL_BYTES
from actorgrid.transports.kept_stream import WINDOW_BYTES
from actorgrid.transports.peer.calls import Stream
from actorgrid.transports.peer.limits import Refusal
from actorgrid.transports.peer.relay_end import ACTOR, CLIENT_LIMITS, JOB, STREAMS_MAX, UPGRADE, WORKER, RelayEnd
from actorgrid.transports.peer.session import LinkDown

from .far_actors import FarActorSocket
from .relay_loop import LoopTimer, RelayLoop
from .relayed_socket import RETRY_MAX_S, RETRY_S, CarryingStream, RelayedSocket

if TYPE_CHECKING:
    from collections.abc import Callable

    from actorgrid.transports.user_actor_frames import FarCaller
    from actorgrid.user_actor_context import ActorReference

    from .http import AdminHttp

PATH = "/api/relay"
AWAY_MAX_S = 60.0
"""How long no worker is reached before it counts as lost: a host keeps the session of such a client as long."""
CONNECTIONS_MAX = 8
IDLE_S = 10.0
"""A connection that leads to no worker is closed after so long."""
READ_BYTES = 64 * 1024
SEND_BYTES = 64 * 1024
CLOSE_S = 2.0
_REFUSED = (WrongToken, NotAllowed, NotSupported, CertificateRefused, BadRequest)
"""What no other host, and no later try, would say differently."""


class Relay:
    """All relayed sockets of one client. ``open`` and ``close`` are for any thread."""

    def __init__(self, http: AdminHttp) -> None:
        self._http = http
        self._loop = RelayLoop()
        self._started = False
        self._lock = threading.Lock()
        # In the loop's thread:
        self._sockets: list[RelayedSocket] = []
        self._actors: list[FarActorSocket] = []
        self._ends: list[_ClientEnd] = []
        self._dialling = False
        self._dial_at = 0.0
        self._delay_s = RETRY_S
        self._closed = False
        self._ticking = False
        self._again: LoopTimer | None = None  # when the next one may ask for a stream

    def open_worker(self, lease_id: str, secret: str) -> RelayedSocket:
        """A socket to a lease's worker, at once; it may turn out to lead nowhere."""
        return self._open(WORKER, {"lease_id": lease_id}, secret)

    def open_job(self, attempt_id: str, secret: str) -> RelayedSocket:
        """A channel to a job's attempt, at once; it may turn out to lead nowhere."""
        return self._open(JOB, {"attempt_id": attempt_id}, secret, CHANNEL_BYTES)

    def open_actor(
        self, reference: ActorReference, at: str, begun_fd: int, on_away: Callable[[], None] | None
    ) -> FarActorSocket:
        """A socket to an actor on host *at*, as of ``FarActors.open``."""
        made = FarActorSocket(self._loop, self._open_actor_stream, at, reference, begun_fd, on_away)
        self._start()
        if not self._loop.post(lambda: self._add_actor(made)):
            made.close()
        return made

    def _open(self, target: str, head: dict[str, Any], secret: str, window_bytes: int = WINDOW_BYTES) -> RelayedSocket:
        made = RelayedSocket(self._loop, target, head, secret, window_bytes)
        self._start()
        if not self._loop.post(lambda: self._add(made)):
            made.close()
        return made

    def _start(self) -> None:
        with self._lock:
            if not self._started:
                self._started = True
                self._loop.start()

    def close(self) -> None:
        """End all sockets, and the thread."""
        with self._lock:
            if not self._started:
                return
        self._loop.post(self._close)
        self._loop.finish(CLOSE_S)

    # -- in the loop's thread

    def _add(self, made: RelayedSocket) -> None:
        if self._closed:
            made.close()
            return
        self._sockets.append(made)
        made.begin()
        self._tick_soon()
        self._supply()

    def _add_actor(self, made: FarActorSocket) -> None:
        if self._closed:
            made.close()
            return
        self._actors.append(made)
        made.begin()
        self._tick_soon()
        made.look(self._loop.monotonic())

    def _tick_soon(self) -> None:
        if not self._ticking:
            self._ticking = True
            self._loop.after(CLIENT_LIMITS.tick_s, self._tick)

    def _open_actor_stream(
        self,
        wanted: FarCaller,
        on_data: Callable[[bytes], None],
        on_end: Callable[[ActorGridError | None], None],
        on_capacity: Callable[[], None] | None,
    ) -> CarryingStream:
        end = next((end for end in self._ends if end.streams < STREAMS_MAX), None)
        if end is None:
            self._dial(self._loop.monotonic())
            raise PeerGone("there is no connection to a host's door now")
        stream = Stream("the host", ACTOR, msgpack.packb(wanted._asdict()))
        stream.attach(on_data, on_end, on_capacity)
        try:
            end.open(stream, False)
        except MailboxFull as error:
            raise PeerGone(f"the connection takes no more streams now: {error.message}") from error
        return stream

    def _close(self) -> None:
        self._closed = True
        for one in [*self._sockets, *self._actors]:
            one.close()
        for end in list(self._ends):
            end.close(Refusal.CLOSING, "the client is closed")

    def _tick(self) -> None:
        """Look after everything twice a second; not any more when there is nothing."""
        now = self._loop.monotonic()
        self._sockets = [one for one in self._sockets if not one.is_over]
        for one in self._sockets:
            if one.away_for_s(now) > AWAY_MAX_S:
                one.fail(HostUnreachable(f"no host of the cluster has been reached for {AWAY_MAX_S:g} s"))
        for actor in self._actors:
            actor.look(now)
        self._actors = [actor for actor in self._actors if not actor.is_over]
        for end in list(self._ends):
            end.tick()
            if not end.is_down and end.idle_for_s(now) > IDLE_S:
                end.close(Refusal.CLOSING, "nothing is under way")
        self._supply()
        self._ticking = bool(self._sockets or self._actors or self._ends)
        if self._ticking:
            self._loop.after(CLIENT_LIMITS.tick_s, self._tick)

    def _supply(self) -> None:
        """Give streams to those that want one, over the connections that there are, or make one."""
        now = self._loop.monotonic()
        for one in self._sockets:
            if not one.wants_stream(now):
                continue
            end = next((end for end in self._ends if end.streams < STREAMS_MAX), None)
            if end is None:
                self._dial(now)
                break
            with contextlib.suppress(MailboxFull, PeerGone):  # it is on its way out: there will be another
                one.connect(end)
        soonest = min((one.try_at for one in self._sockets), default=float("inf"))
        if now < soonest < now + CLIENT_LIMITS.tick_s:
            self._supply_at(soonest)

    def _supply_at(self, at: float) -> None:
        if self._again is not None:
            self._again.cancel()
        self._again = self._loop.after(at - self._loop.monotonic(), self._supply)

    def _dial(self, now: float) -> None:
        if self._dialling or self._closed or len(self._ends) >= CONNECTIONS_MAX:
            return
        if now < self._dial_at:
            self._supply_at(self._dial_at)
            return
        self._dialling = True
        threading.Thread(target=self._dial_now, name="actorgrid-relay-dial", daemon=True).start()

    def _dial_now(self) -> None:
        """Make a connection, in a thread of its own: it may take seconds."""
        try:
            made = self._http.upgrade(PATH, UPGRADE)
        except ActorGridError as error:
            failure = error
            self._loop.post(lambda: self._not_dialled(failure))
            return
        if not self._loop.post(lambda: self._dialled(made)):
            made.close()

    def _dialled(self, made: socket.socket) -> None:
        self._dialling = False
        if self._closed:
            made.close()
            return
        self._delay_s = RETRY_S
        self._ends.append(_ClientEnd(self._loop, made, self._end_is_down))
        self._supply()
        for actor in self._actors:
            actor.look_now()

    def _not_dialled(self, error: ActorGridError) -> None:
        self._dialling = False
        self._dial_at = self._loop.monotonic() + self._delay_s
        self._delay_s = min(RETRY_MAX_S, 2 * self._delay_s)
        if type(error) is NotFound:
            error = NotSupported(
                "session tasks from another machine need a host that relays to its workers",
                asked=self._http.url,
                found="a host of an earlier version",
                hint="upgrade the host; or say durable=True, which makes it a job",
            )
        if isinstance(error, _REFUSED):
            for one in [*self._sockets, *self._actors]:
                if one.wants_stream(float("inf")):
                    one.fail(error)
            return
        self._supply()

    def _end_is_down(self, end: RelayEnd, _down: LinkDown) -> None:
        self._ends = [one for one in self._ends if one is not end]
        self._loop.after(0.0, self._supply)


class _ClientEnd(RelayEnd):
    """One connection: TLS, or plain on this machine."""

    def __init__(
        self, loop: RelayLoop, connection: socket.socket, on_down: Callable[[RelayEnd, LinkDown], None]
    ) -> None:
        super().__init__("the host", True, CLIENT_LIMITS, lambda stream: None, on_down, loop.monotonic)
        self._loop = loop
        self._socket = connection
        self._unsent = b""
        self._used_at = loop.monotonic()
        connection.setblocking(False)
        loop.watch(connection.fileno(), self._readable)

    def idle_for_s(self, now: float) -> float:
        """Seconds for which it has had no stream."""
        if self.streams:
            self._used_at = now
        return now - self._used_at

    def _readable(self) -> None:
        while not self.is_down:
            try:
                data = self._socket.recv(READ_BYTES)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError):
                return
            except OSError as error:
                self.lost(f"the connection broke: {error}")
                return
            if not data:
                self.lost("the host closed the connection")
                return
            self.receive(data)
            if len(data) < READ_BYTES and not self._pending():
                return

    def _pending(self) -> int:
        return self._socket.pending() if isinstance(self._socket, ssl.SSLSocket) else 0

    def _send(self) -> None:
        while True:
            if not self._unsent:
                pieces, size = [], 0
                while size < SEND_BYTES and (data := self.session.next_bytes()) is not None:
                    pieces.append(data)
                    size += len(data)
                self._unsent = b"".join(pieces)
            if not self._unsent:
                self._loop.watch(self._socket.fileno(), self._readable)
                return
            try:
                # What TLS has not taken has to be offered again as it was, which it is: the whole of it.
                sent = self._socket.send(self._unsent)
            except (ssl.SSLWantWriteError, ssl.SSLWantReadError, BlockingIOError):
                self._loop.watch(self._socket.fileno(), self._readable, self.go_on)
                return
            except OSError as error:
                self.session.end(Refusal.GONE, PeerGone(f"the connection broke: {error}"))
                return
            self.bytes_out += sent
            self._unsent = self._unsent[sent:]

    def _put_last(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # it takes no more: the end is heard all the same
            if not self._unsent:
                self._socket.send(data)

    def _hang_up(self) -> None:
        self._loop.unwatch(self._socket.fileno())
        self._socket.close()
