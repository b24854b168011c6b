"""One worker, or channel of a job, that a client reaches through a relay, over all the connections that it takes. In
the relay's thread."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from typing import Any, Protocol

import msgpack

from actorgrid.errors import (
    ActorGridError,
    BadRequest,
    NotAllowed,
    NotSupported,
    PeerGone,
    PeerRefused,
    PythonMismatch,
    TransportError,
    UnknownAllocation,
    WrongToken,
    error_from_dict,
)
from actorgrid.transports.kept_stream import ID_CHARS, WINDOW_BYTES, KeptStream, encode_keep, take_first_frame
from actorgrid.transports.peer.calls import Bytes, Stream
from actorgrid.transports.peer.relay_end import RelayEnd

from .relay_loop import RelayLoop

RETRY_S, RETRY_MAX_S = 0.05, 1.0
READ_BYTES = 256 * 1024
UNSENT_BYTES_MAX = 512 * 1024
_FINAL = (UnknownAllocation, NotAllowed, NotSupported, PeerRefused, WrongToken, BadRequest, PythonMismatch)
"""What no later try would change: the worker is gone, or not ours."""


class CarryingStream(Protocol):
    """What a worker's stream goes over for now: a stream of a connection through a door, or a local relay's socket."""

    over: bool

    def attach(
        self,
        on_data: Callable[[bytes], None],
        on_end: Callable[[ActorGridError | None], None],
        on_capacity: Callable[[], None] | None = None,
    ) -> None:
        """As ``Stream.attach``."""

    def write(self, data: Bytes) -> int:
        """As ``Stream.write``."""

    def consumed(self, count: int) -> None:
        """As ``Stream.consumed``."""

    def end(self) -> None:
        """As ``Stream.end``."""


class RelayedSocket:
    """A socket that leads to a worker. ``sock`` is the user's end of a pair: it reads the end when all is over."""

    def __init__(
        self, loop: RelayLoop, target: str, head: dict[str, Any], secret: str, window_bytes: int = WINDOW_BYTES
    ) -> None:
        self._inner, self.sock = socket.socketpair()
        self._inner.setblocking(False)
        self.failure: ActorGridError | TransportError | None = None
        """Why it is over, where that is known."""
        self.is_away = True
        """Whether there is no connection just now: nothing that the other side does is heard."""
        self.back_at = 0.0
        """When there was one again, on the monotonic clock."""
        self.travel_s = float("inf")
        """The shortest time in which the worker has answered a connection, as far as is known."""
        self.is_over = False
        self._loop = loop
        self._target = target
        self._head = head
        self._secret = secret
        self._id = secrets.token_hex(ID_CHARS // 2)
        self._kept = KeptStream(window_bytes)
        self._stream: CarryingStream | None = None
        self._answered = False  # whether the worker has taken the present connection
        self._first_in = bytearray()  # what came before that
        self._first_out = b""  # our first frame, as far as it is not written
        self._said_at = 0.0
        self._to_inner = bytearray()
        self._unconsumed = 0
        self._away_since = loop.monotonic()
        self._delay_s = RETRY_S
        self._try_at = 0.0

    def begin(self) -> None:
        """Read what the user writes."""
        self._watch()

    def wants_stream(self, now: float) -> bool:
        """Whether it has none, and may ask for one by now."""
        return self._wants_stream and now >= self._try_at

    @property
    def try_at(self) -> float:
        """When it may ask for a stream; never, while it has one or is over."""
        return self._try_at if self._wants_stream else float("inf")

    @property
    def _wants_stream(self) -> bool:
        return self._stream is None and not self.is_over and self.failure is None

    def away_for_s(self, now: float) -> float:
        """Seconds for which there has been no connection."""
        return now - self._away_since if self.is_away else 0.0

    def connect(self, end: RelayEnd) -> None:
        """Ask for a stream over that connection. Raises MailboxFull, PeerGone."""
        stream = Stream("the host", self._target, msgpack.packb(self._head))
        stream.attach(self._came, self._ended, self._pump_out)
        end.open(stream, False)
        self._go_on_over(stream)

    def _go_on_over(self, stream: CarryingStream) -> None:
        self._stream, self._answered = stream, False
        self._first_in.clear()
        self._first_out = encode_keep(self._secret, self._id, self._kept.received)
        self._pump_out()

    def fail(self, error: ActorGridError | TransportError) -> None:
        """Be over, for that reason, as soon as the user has what came before: the worker was told that it arrived."""
        if self.is_over or self.failure is not None:
            return
        self.failure = error
        self._leave_stream()
        self._pump_in()

    def close(self) -> None:
        """Be over; the worker is told, if it can be."""
        if not self.is_over:
            self._kept.end()
            self._pump_out()
            self._finish()

    # -- from the worker

    def _came(self, data: bytes) -> None:
        size = len(data)
        try:
            if not self._answered:
                self._first_in += data
                data = self._take_first()
            self._unconsumed += size
            if self._answered:
                data = self._kept.feed(data)
                self._to_inner += data
                self._kept.taken(len(data))  # what waits here is bounded by the stream's window
        except (ActorGridError, TransportError) as error:
            self.fail(error)
            return
        self._pump_in()
        self._pump_out()

    def _take_first(self) -> bytes:
        """Take the worker's first frame, if it is complete; what came behind it. Raises what it refuses with."""
        match take_first_frame(self._first_in):
            case None:
                return b""
            case ["kept", {"received": int(received)}]:
                self._kept.connect(received)
                self._answered = True
                self.is_away, self.back_at = False, self._loop.monotonic()
                self.travel_s = min(self.travel_s, self.back_at - self._said_at)
                self._delay_s = RETRY_S
                rest = bytes(self._first_in)
                self._first_in.clear()
                return rest
            case ["refused", dict(record)]:
                raise error_from_dict(record)
            case frame:
                raise PeerRefused("the leased worker does not answer as one", found=str(frame[0])[:40])

    def _pump_in(self) -> None:
        """Give the user what came, as far as it is read."""
        if self.is_over:
            return
        if self._to_inner:
            try:
                del self._to_inner[: self._inner.send(self._to_inner)]
            except BlockingIOError:
                pass
            except OSError:
                self.close()
                return
        if self._to_inner:
            self._watch()
            return
        if self._stream is not None and self._unconsumed:
            self._stream.consumed(self._unconsumed)
        self._unconsumed = 0
        if self._kept.ended or self.failure is not None:
            self._finish()
        else:
            self._watch()

    def _ended(self, error: ActorGridError | None) -> None:
        """Take note that the stream is over: the way broke, or the worker is gone, or never was."""
        if self._stream is not None:
            self._stream.end()
        self._stream, self._unconsumed = None, 0
        if not self.is_away:
            self.is_away, self._away_since = True, self._loop.monotonic()
        if isinstance(error, _FINAL):
            self.fail(error)
            return
        self._try_at = self._loop.monotonic() + self._delay_s
        self._delay_s = min(RETRY_MAX_S, 2 * self._delay_s)

    # -- from the user

    def _read(self) -> None:
        room = min(self._kept.room, READ_BYTES)
        if not room:
            self._watch()
            return
        try:
            data = self._inner.recv(room)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        self._kept.write(data)
        self._pump_out()
        self._watch()

    def _pump_out(self) -> None:
        """Give the stream what is to go to the worker, as far as it takes it."""
        stream = self._stream
        if stream is None or stream.over:
            return
        try:
            if self._first_out:
                self._first_out = self._first_out[stream.write(self._first_out) :]
                self._said_at = self._loop.monotonic()
            while self._answered and self._kept.out:
                taken = stream.write(memoryview(self._kept.out)[:UNSENT_BYTES_MAX])
                if not taken:
                    break
                del self._kept.out[:taken]
        except PeerGone:
            return  # its end is about to be told
        if not self.is_over:
            self._watch()

    def _watch(self) -> None:
        wants = self._kept.room > 0 and len(self._kept.out) < UNSENT_BYTES_MAX and self.failure is None
        read, write = self._read if wants else None, self._pump_in if self._to_inner else None
        if read is None and write is None:
            self._loop.unwatch(self._inner.fileno())
        else:
            self._loop.watch(self._inner.fileno(), read, write)

    def _finish(self) -> None:
        self.is_over = True
        self._leave_stream()
        self._loop.unwatch(self._inner.fileno())
        self._inner.close()

    def _leave_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.end()
            if not stream.over:
                stream.attach(lambda data: stream.consumed(len(data)), lambda _error: None)
