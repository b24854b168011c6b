"""One end of a relay: streams between a client on another machine and the work of a cluster, over one connection.

The connection is an HTTP one that was upgraded, so who is at the other end, and that nobody else hears it, was seen
to before the first byte of this. Frames, streams and their bounds are those of links between hosts (session.py), of
which only streams and pings are used: a call or cast has no meaning here.

Whoever carries the bytes is a subclass: the gateway's transport, or the client's socket.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

from actorgrid.errors import FrameTooLarge, MalformedMessage, NotSupported, PeerGone

from .calls import IncomingCall, OnStream
from .end import PeerEnd
from .frames import Bye, PeerDecoder, encode
from .limits import PeerLimits, Refusal
from .session import LinkDown, PeerSession

UPGRADE = "actorgrid-relay/1"
"""What the connection is upgraded to, in both heads."""
WORKER, ACTOR, JOB = "worker", "actor", "job"
"""Whom a stream leads to; its head is msgpack: {"lease_id"}, the fields of a ``FarCaller``, {"attempt_id"}."""
STREAMS_MAX = 256
GATEWAY_LIMITS = PeerLimits(
    streams_max=STREAMS_MAX, stream_window_bytes=2**20, stream_unsent_bytes=2**20, compress=False
)
CLIENT_LIMITS = PeerLimits(
    streams_max=STREAMS_MAX, stream_window_bytes=4 * 2**20, stream_unsent_bytes=2**20, compress=False
)


class RelayEnd(PeerEnd):
    """One end, whose connection is made. *on_down* is called once, when it is over."""

    def __init__(
        self,
        name: str,
        dialled: bool,
        limits: PeerLimits,
        on_stream: OnStream,
        on_down: Callable[[RelayEnd, LinkDown], None],
        monotonic: Callable[[], float],
    ) -> None:
        self._monotonic = monotonic
        self._decoder = PeerDecoder()
        self._decoder.open_up()
        self._busy = False
        self._down = False
        self._on_relay_down = on_down
        session = PeerSession(dialled, limits)
        super().__init__(session, (_refuse_call, _refuse_cast, on_stream), lambda _end: None, lambda _end, _down: None)
        session.start(name, monotonic())

    @property
    def is_down(self) -> bool:
        """Whether it is over."""
        return self._down

    def receive(self, data: bytes) -> None:
        """Take what came over the connection."""
        if self._down:
            return
        self.session.received(self._monotonic())
        self.bytes_in += len(data)
        self._decoder.feed(data)
        try:
            while not self._down and (frame := self._decoder.next()) is not None:
                self.session.take(frame)
                self._handle()
        except (FrameTooLarge, MalformedMessage) as error:
            self.session.end(Refusal.MALFORMED, error)
        self._go_on()

    def tick(self) -> None:
        """Check whether the other side still answers; called every ``tick_s``."""
        self.session.tick(self._monotonic())
        self._go_on()

    def lost(self, why: str) -> None:
        """Take note that the connection is gone."""
        self.session.end(Refusal.GONE, PeerGone(why))
        self._go_on()

    def close(self, refusal: Refusal, message: str) -> None:
        """Close at once; the other side is told, if it takes the bytes."""
        if not self._down:
            self._put_last(encode(Bye(str(refusal), message)))
            self.session.end(refusal, PeerGone(message))
            self._go_on()

    def go_on(self) -> None:
        """Send what waits, as the connection takes more now."""
        self._go_on()

    def _go_on(self) -> None:
        if self._busy or self._down:
            return
        self._busy = True
        try:
            self._handle()
            while self.session.over is None:
                self._send()
                if not self.session.events:
                    break
                self._handle()  # a stream that takes more now was given more: that would lie until something else goes
        finally:
            self._busy = False
        if self.session.over is not None:
            self._go_down(self.session.over)

    def _handle(self) -> None:
        events = self.session.events
        busy, self._busy = self._busy, True
        while events:
            self._happened(events.popleft())
        self._busy = busy

    def _go_down(self, down: LinkDown) -> None:
        if self._down:
            return
        self._down = True
        self._hang_up()
        self._lost(down)
        self._on_relay_down(self, down)

    @abstractmethod
    def _send(self) -> None:
        """Give the connection what ``session.next_bytes`` has, as much as it takes."""

    @abstractmethod
    def _put_last(self, data: bytes) -> None:
        """Give the connection the last bytes, if it takes them."""

    @abstractmethod
    def _hang_up(self) -> None:
        """Close the connection."""


def _refuse_call(call: IncomingCall) -> None:
    raise NotSupported("a relay takes no calls", asked=call.target[:80])


def _refuse_cast(_host: str, target: str, _body: bytes) -> None:
    raise NotSupported("a relay takes no casts", asked=target[:80])
