"""One link between two hosts, without a socket or a clock: TLS, then Hello, then a PeerSession; bytes in, events out.

The owner carries bytes: ``receive`` what a socket gave, then ``next_event`` until it gives ``None``, then send what
``bytes_to_send`` gives; ``tick`` now and then. Only ``next_event`` unpacks frames, one at a time, so that a peer whose
frames inflate costs memory for one of them. What to say to the other side goes to ``session``.

A link is refused or closed with a ``Refusal``: the last event is LinkDown, in every case and once. All calls of ours
that are not answered and all streams are over then; whether the other side carried a call out is unknown.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

from actorgrid.errors import ActorGridError, FrameTooLarge, MalformedMessage, PeerGone, PeerRefused

from .frames import (
    CONTROL_LANE,
    LANES,
    MAGIC,
    PIECES_LANE,
    TEXT_CHARS_MAX,
    VERSION_HIGH,
    VERSION_LOW,
    Bye,
    Frame,
    Hello,
    PeerDecoder,
    encode,
)
from .limits import PeerLimits, Refusal
from .session import LinkDown, PeerSession, SessionEvent
from .tls import TLS_HANDSHAKE_BYTE, PeerIdentity, TlsPipe, link_refused

SEND_BYTES = 128 * 1024
"""What ``bytes_to_send`` gives at once: a control frame that comes later waits for so much at most."""

Admit = Callable[[str, str], str | None]
"""(host id, its public key's SHA-256 in hex) -> why not, or ``None``: the ledger's word on a host."""


class LinkUp(NamedTuple):
    """Both sides have proven themselves and agree on a version."""

    host_id: str
    fingerprint: str
    version: int
    software: str
    lane: str


LinkEvent = LinkUp | LinkDown | SessionEvent


class _State(IntEnum):
    HANDSHAKE = 0
    HELLO = 1
    UP = 2
    DOWN = 3


class PeerLink:
    """One link, without its socket.

    *admit* is asked once, between TLS and Hello; *expected_host* is whom a dialler wants.
    """

    def __init__(
        self,
        identity: PeerIdentity,
        admit: Admit,
        now_s: float,
        *,
        dialled: bool,
        expected_host: str | None = None,
        lane: str = CONTROL_LANE,
        software: str = "",
        limits: PeerLimits | None = None,
        versions: tuple[int, int] = (VERSION_LOW, VERSION_HIGH),
    ) -> None:
        self.dialled = dialled
        self.host_id = expected_host or ""
        self.fingerprint = ""
        self.lane = lane
        self._limits = limits or PeerLimits()
        self.session = PeerSession(dialled, self._limits)
        self._cluster_id = identity.cluster_id
        self._expected_host = expected_host
        self._admit = admit
        self._hello = Hello(MAGIC, *versions, software[:TEXT_CHARS_MAX], lane)
        self._tls = TlsPipe(identity.client if dialled else identity.server, server_side=not dialled)
        self._decoder = PeerDecoder()
        self._state = _State.HANDSHAKE
        self._handshake_bytes = 0
        self._handshake_took_s = 0.0
        self._events: deque[LinkEvent] = deque()
        self._ticked_s = self._now_s = now_s
        if dialled:
            self._shake_hands()

    @property
    def unsent_bytes(self) -> int:
        """Bytes that wait to be sent: control frames, streams and TLS."""
        return self.session.unsent_bytes + self._tls.waiting_bytes

    @property
    def held_bytes(self) -> int:
        """Bytes held of the other side: a frame that is not complete, requests that are not answered."""
        return self._decoder.pending_bytes + self.session.served_bytes

    @property
    def restless(self) -> bool:
        """Whether there may be an event to take or something to send, though nothing more comes."""
        return bool(self._events or self.session.restless or self._tls.waiting_bytes)

    def receive(self, data: bytes, now_s: float) -> None:
        """Take bytes from the other side; call ``next_event`` until it gives ``None`` before the next ones."""
        if self._state == _State.DOWN or not data:
            return
        self._now_s = now_s
        self.session.received(now_s)
        if self._state == _State.HANDSHAKE:
            if not self._handshake_bytes and data[0] != TLS_HANDSHAKE_BYTE:
                error = PeerRefused("the other side does not speak TLS", found=repr(data[:16]))
                self._go_down(Refusal.PLAIN_TEXT, error)
                return
            self._handshake_bytes += len(data)
            if self._handshake_bytes > self._limits.handshake_bytes_max:
                self._go_down(Refusal.TLS, PeerRefused("a TLS handshake without an end"))
                return
        self._tls.feed(data)

    def end_of_stream(self) -> None:
        """Take note that the socket is at its end, or broken; what came before is handled first, by ``next_event``."""
        found = []
        while (event := self.next_event()) is not None:
            found.append(event)
        self._events.extend(found)
        self._go_down(Refusal.GONE, PeerGone(f"the connection to {self.host_id or 'a host'} ended"))

    def bytes_to_send(self) -> bytes:
        """The next bytes to send, empty when there are none: at most ``SEND_BYTES`` and one frame more."""
        if self._state == _State.UP:
            while self._tls.waiting_bytes < SEND_BYTES and (data := self.session.next_bytes()) is not None:
                self._tls.write(data)
        return self._tls.take()

    def next_event(self) -> LinkEvent | None:
        """The next event, in order; ``None`` when all that came is dealt with."""
        if not self._events:
            try:
                self._advance()
            except FrameTooLarge as error:
                self._go_down(Refusal.OVERSIZE, error)
            except MalformedMessage as error:
                self._go_down(Refusal.MALFORMED, error)
            except PeerRefused as error:
                self._go_down(Refusal(str(error.details["refusal"])), error)
        return self._events.popleft() if self._events else None

    def tick(self, now_s: float) -> None:
        """Check timeouts and ping every so often. Call it every ``tick_s``.

        Of a longer pause two ticks count against a handshake: this process was stopped, or had too little of a loaded
        processor, and what the other side sent meanwhile is not read yet.
        """
        limits = self._limits
        if self._state == _State.UP:
            self.session.tick(now_s)
        elif self._state != _State.DOWN:
            self._handshake_took_s += min(now_s - self._ticked_s, 2 * limits.tick_s)
            if self._handshake_took_s > limits.handshake_s:
                why = f"no proof of identity within {limits.handshake_s:g} s"
                self._go_down(Refusal.HANDSHAKE_TIMEOUT, PeerRefused(why))
        self._ticked_s = self._now_s = now_s

    def close(self, refusal: Refusal, message: str) -> None:
        """Close the link at once; the other side is told, if it takes the bytes."""
        self._go_down(refusal, PeerGone(message))

    def give_away(self) -> TlsPipe:
        """Give the TLS of a link that is up to whoever goes on with it; this link is over then, without an event.

        Raises MalformedMessage where the other side said more than its Hello already.
        """
        assert self._state == _State.UP, "a link that is up is given away"
        self._state = _State.DOWN
        if self._decoder.pending_bytes:
            raise MalformedMessage("frames came behind a Hello whose link carries none", found=self.host_id)
        return self._tls

    # -- in

    def _advance(self) -> None:
        """Handle what came until there is an event."""
        session = self.session
        while not self._events and self._state != _State.DOWN:
            if session.events:
                self._events.extend(session.events)
                session.events.clear()
            elif session.over is not None:
                self._go_down(*session.over)
            elif (frame := self._decoder.next() if self._state >= _State.HELLO else None) is not None:
                if self._state == _State.HELLO:
                    self._take_first(frame)
                else:
                    session.take(frame)
            elif not self._read():
                break

    def _read(self) -> bool:
        """Move on in TLS; whether there is something new. Raises PeerRefused."""
        if self._state == _State.HANDSHAKE:
            return self._shake_hands()
        data = self._tls.read()
        if data is None:
            self._go_down(Refusal.GONE, PeerGone(f"{self.host_id or 'the other side'} closed the connection"))
            return False
        self._decoder.feed(data)
        return bool(data)

    def _shake_hands(self) -> bool:
        if not self._tls.handshake():
            return False
        host_id, self.fingerprint = self._tls.proven_host(self._cluster_id)
        if self._expected_host not in (None, host_id):
            raise link_refused(
                Refusal.WRONG_NAME,
                f"the address of {self._expected_host} is another host's",
                found=host_id,
                hint="correct the address",
            )
        self.host_id = host_id
        self._state = _State.HELLO
        refusal = self._admit(self.host_id, self.fingerprint)
        if refusal is not None:
            raise link_refused(Refusal.UNKNOWN_HOST, f"{self.host_id} is no host of this cluster now: {refusal}")
        self._tls.write(encode(self._hello))
        return True

    def _take_first(self, frame: Frame) -> None:
        if isinstance(frame, Bye):
            error = PeerRefused(f"{self.host_id} refused this host", found=frame.message, refusal=frame.code)
            self._go_down(Refusal.REFUSED_US, error)
            return
        if not isinstance(frame, Hello) or frame.magic != MAGIC or frame.lane not in (*LANES, PIECES_LANE):
            raise MalformedMessage("the first frame is no Hello", found=type(frame).__name__)
        ours = self._hello
        version = min(ours.version_high, frame.version_high)
        if version < max(ours.version_low, frame.version_low):
            raise link_refused(
                Refusal.VERSION,
                f"{self.host_id} speaks other versions of the protocol",
                found=f"{frame.version_low} to {frame.version_high}, of {frame.software}",
                hint=f"this host speaks {ours.version_low} to {ours.version_high}: upgrade the older one",
            )
        if not self.dialled:
            self.lane = frame.lane
        self._state = _State.UP
        self._decoder.open_up()
        self.session.start(self.host_id, self._now_s)
        self._events.append(LinkUp(self.host_id, self.fingerprint, version, frame.software, self.lane))

    def _go_down(self, refusal: Refusal, error: ActorGridError) -> None:
        if self._state == _State.DOWN:
            return
        proven, self._state = self._state >= _State.HELLO, _State.DOWN
        self._events.extend(self.session.events)
        self.session.events.clear()
        self.session.end(refusal, error)
        self._decoder = PeerDecoder()
        if proven:
            told = refusal in (Refusal.GONE, Refusal.REFUSED_US)
            self._tls.finish(b"" if told else encode(Bye(str(refusal), _printable(error.message))))
        self._events.append(LinkDown(refusal, error))


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)[:TEXT_CHARS_MAX]
