"""Ways to users' actors on other hosts of the cluster: through the agents of both, over connections that may break.

For each there is a socket pair, as for workers behind a relay: nothing is lost and nothing comes twice when the link
between the hosts breaks, or an agent is started again. Once the actor is gone, its host is asked which calls it had
begun; only then the user's end of the pair reads the end, and finds the answer where an actor of this host leaves it.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from actorgrid.errors import ActorGridError, HostUnreachable, Overloaded, PeerGone, TransportError
from actorgrid.transports.peer.calls import Bytes
from actorgrid.transports.user_actor_frames import (
    BEGUN,
    BEGUN_UNKNOWN,
    FarCaller,
    encode_far_caller,
)
from actorgrid.user_actor_context import ActorReference

from .forks import renew_in_children
from .relay_loop import RelayLoop
from .relayed_socket import CarryingStream, RelayedSocket

AWAY_MAX_S = 60.0
"""So long a way to the actor is looked for again; then it is given up, with all that it was asked."""
ASK_MAX_S = 3.0
"""For its host to say what was begun."""
AWAY_LOOK_S = 2.0
LED_S = 10.0
"""A connection that lasts longer has led to the actor's host, though the actor took no note of it."""
TICK_S = 0.5
READ_BYTES = 256 * 1024
_PASSING = (HostUnreachable, PeerGone, Overloaded)
"""What may be otherwise a moment later."""


class LineStream:
    """A connection to this host's relay to actors; first a line says who is wanted. In the loop's thread."""

    def __init__(self, loop: RelayLoop, path: str, line: bytes) -> None:
        self._loop = loop
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        self.over = False
        self._waits = False
        self._on_data: Callable[[bytes], None] = lambda _data: None
        self._on_end: Callable[[ActorGridError | None], None] = lambda _error: None
        self._on_capacity: Callable[[], None] | None = None
        try:
            self._socket.connect(path)
            self._socket.send(line)  # into an empty buffer, which has room for it
        except OSError as error:
            self._socket.close()
            raise PeerGone(f"this host's agent takes no callers of actors now: {error}", asked=path) from error
        self._loop.watch(self._socket.fileno(), self._read)

    def attach(
        self,
        on_data: Callable[[bytes], None],
        on_end: Callable[[ActorGridError | None], None],
        on_capacity: Callable[[], None] | None = None,
    ) -> None:
        """As ``Stream.attach``."""
        self._on_data, self._on_end, self._on_capacity = on_data, on_end, on_capacity

    def write(self, data: Bytes) -> int:
        """As ``Stream.write``."""
        if self.over:
            raise PeerGone("the way to the actor is over")
        try:
            sent = self._socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            raise PeerGone(f"the way to the actor broke: {error}") from error  # the reader tells
        if sent < len(data) and not self._waits:
            self._waits = True
            self._loop.watch(self._socket.fileno(), self._read, self._room)
        return sent

    def consumed(self, count: int) -> None:
        """Nothing: what may come is bounded by the window of the kept stream."""

    def end(self) -> None:
        """Hang up."""
        if not self.over:
            self.over = True
            self._loop.unwatch(self._socket.fileno())
            self._socket.close()

    def _room(self) -> None:
        self._waits = False
        self._loop.watch(self._socket.fileno(), self._read)
        if self._on_capacity is not None:
            self._on_capacity()

    def _read(self) -> None:
        try:
            data = self._socket.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._on_data(data)
            return
        self.end()
        self._on_end(None)


OpenActorStream = Callable[
    [FarCaller, Callable[[bytes], None], Callable[[ActorGridError | None], None], Callable[[], None] | None],
    CarryingStream,
]
"""Opens a stream to an actor: who is wanted, and what ``Stream.attach`` takes. Raises PeerGone."""


class FarActorSocket(RelayedSocket):
    """The way to one actor. ``sock`` is the caller's; *begun_fd*: where it looks for what was begun."""

    def __init__(
        self,
        loop: RelayLoop,
        open_stream: OpenActorStream,
        at: str,
        reference: ActorReference,
        begun_fd: int,
        on_away: Callable[[], None] | None,
    ) -> None:
        super().__init__(loop, "", {}, reference.secret)
        self.sock.setblocking(False)
        self.host_id = at or reference.host_id
        self._open_stream = open_stream
        folder = os.path.basename(os.path.dirname(reference.path))
        self._wanted = FarCaller(self.host_id, folder, reference.actor_id, self._id, False)
        self._begun_fd = os.dup(begun_fd)
        self._on_away = on_away
        self._look_at = loop.monotonic() + AWAY_LOOK_S
        self._was_answered = False
        self._left = False  # the caller has hung up
        self._question: CarryingStream | None = None
        self._ask_until = 0.0
        self._led_at = 0.0
        self._told = b""

    def look(self, now: float) -> None:
        """Do what is due: connect, or give up."""
        if self.is_over:
            return
        if not self.is_away:
            self._look_at = now + AWAY_LOOK_S
        elif self._on_away is not None and now > self._look_at:
            self._look_at = now + AWAY_LOOK_S
            self._on_away()
        if self._question is not None:
            if now > self._ask_until:
                self._know(BEGUN_UNKNOWN)
        elif self.wants_stream(now):
            if self.away_for_s(now) > AWAY_MAX_S:
                self.fail(HostUnreachable(f"host {self.host_id} has not been reached for {AWAY_MAX_S:g} s"))
                return
            try:
                stream = self._open_stream(self._wanted, self._came, self._ended, self._pump_out)
            except PeerGone:
                self._ended(None)
                return
            self._led_at = now
            self._go_on_over(stream)

    def look_now(self) -> None:
        """Try again at once, as there may be a way by now."""
        self._try_at = 0.0
        self.look(self._loop.monotonic())

    def leave(self) -> None:
        """Give up a way to where the actor is not any more. For any thread."""
        self._loop.post(self.give_up)

    def fail(self, error: ActorGridError | TransportError) -> None:
        """As of ``RelayedSocket``; what may be otherwise in a moment only ends the connection."""
        if isinstance(error, _PASSING) and self.away_for_s(self._loop.monotonic()) <= AWAY_MAX_S:
            self._ended(None)
            return
        super().fail(error)

    def give_up(self) -> None:
        """Be over, with all that was sent."""
        if not self.is_over:
            super().fail(HostUnreachable(f"the actor is not on host {self.host_id} any more"))

    def _ended(self, error: ActorGridError | None) -> None:
        now = self._loop.monotonic()
        if self.is_away and self._stream is not None and now - self._led_at > LED_S:
            self._away_since = now  # it led to the actor, which was busy
        super()._ended(error)
        if self.try_at < float("inf"):
            self._loop.after(max(0.0, self.try_at - now), lambda: self.look(self._loop.monotonic()))

    def close(self) -> None:
        """As of ``RelayedSocket``, as the caller has hung up."""
        self._left = True
        super().close()

    def _take_first(self) -> bytes:
        rest = super()._take_first()
        self._was_answered = self._was_answered or self._answered
        return rest

    def _finish(self) -> None:
        """Be over, once it is known what was begun."""
        if self.is_over or self._question is not None:
            return
        if self._left or not self._was_answered:  # nobody asks, or nothing was sent
            self._be_over()
            return
        if isinstance(self.failure, HostUnreachable):
            self._know(BEGUN_UNKNOWN)
            return
        self._leave_stream()
        self._loop.unwatch(self._inner.fileno())
        wanted = self._wanted._replace(asks=True)
        try:
            self._question = self._open_stream(wanted, self._answer_came, self._answer_ended, None)
        except PeerGone:
            self._know(BEGUN_UNKNOWN)
            return
        self._ask_until = self._loop.monotonic() + ASK_MAX_S

    def _answer_came(self, data: bytes) -> None:
        self._told += data
        if len(self._told) >= BEGUN.size:
            whole = len(self._told) == BEGUN.size  # more is an error's frame
            self._know(BEGUN.unpack(self._told)[0] if whole else BEGUN_UNKNOWN)

    def _answer_ended(self, _error: ActorGridError | None) -> None:
        self._know(BEGUN_UNKNOWN)

    def _know(self, last: int) -> None:
        if not self.is_over:
            os.pwrite(self._begun_fd, BEGUN.pack(last), 0)
            self._be_over()

    def _be_over(self) -> None:
        if self._question is not None:
            self._question.end()
        os.close(self._begun_fd)
        super()._finish()


class FarActors:
    """All of this process's ways to actors on other hosts, and the thread that carries them."""

    def __init__(self) -> None:
        self._begin()
        renew_in_children(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._loop: RelayLoop | None = None
        self._sockets: list[FarActorSocket] = []
        self._ticking = False

    def after_fork(self) -> None:
        """Begin anew in a forked child."""
        self._begin()

    def open(
        self,
        path: str,
        at: str,
        reference: ActorReference,
        begun_fd: int,
        on_away: Callable[[], None] | None = None,
    ) -> FarActorSocket:
        """A socket to an actor, at once; it may turn out to lead nowhere. *path*: of our host's relay; *at*: on which
        host, where that is not its creator's; *on_away*: called every ``AWAY_LOOK_S`` in which nobody answers there."""
        with self._lock:
            if self._loop is None:
                self._loop = RelayLoop("actorgrid-far-actors")
                self._loop.start()
            loop = self._loop

        def open_stream(
            wanted: FarCaller,
            on_data: Callable[[bytes], None],
            on_end: Callable[[ActorGridError | None], None],
            on_capacity: Callable[[], None] | None,
        ) -> CarryingStream:
            stream = LineStream(loop, path, encode_far_caller(wanted))
            stream.attach(on_data, on_end, on_capacity)
            return stream

        made = FarActorSocket(loop, open_stream, at, reference, begun_fd, on_away)
        loop.post(lambda: self._add(made))
        return made

    def _add(self, made: FarActorSocket) -> None:
        self._sockets.append(made)
        made.begin()
        self._look()

    def _look(self) -> None:
        loop = self._loop
        assert loop is not None, "it runs this"
        now = loop.monotonic()
        for one in self._sockets:
            with suppress(PeerGone):
                one.look(now)
        self._sockets = [one for one in self._sockets if not one.is_over]
        if self._sockets and not self._ticking:
            soonest = min((one.try_at for one in self._sockets), default=now + TICK_S)
            self._ticking = True
            loop.after(max(0.01, min(TICK_S, soonest - now)), self._tick)

    def _tick(self) -> None:
        self._ticking = False
        self._look()


far_actors = FarActors()
