"""One link between two hosts, without a socket or a clock: TLS, Hello, calls, casts and streams; bytes in, events out.

The owner carries bytes: ``receive`` what a socket gave, then ``next_event`` until it gives ``None``, then send what
``bytes_to_send`` gives; ``tick`` now and then. Only ``next_event`` unpacks frames, one at a time, so that a peer whose
frames inflate costs memory for one of them.

A link is refused or closed with a ``Refusal``: the last event is Down, in every case and once. All calls of ours that
are not answered and all streams are over then; whether the other side carried a call out is unknown.

Control frames (calls, casts, answers, grants) overtake streams, but of what is sent while a stream has something to
send, at least a piece in ``CONTROL_TURN_BYTES`` is a stream's. ``PeerLimits`` says every bound, and what happens there.
"""

from __future__ import annotations

import ssl
from collections import deque
from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

from actorgrid.errors import ActorGridError, FrameTooLarge, MailboxFull, MalformedMessage, PeerGone, PeerRefused

from .peer_frames import (
    CONTROL_LANE,
    LANES,
    MAGIC,
    PAYLOAD_BYTES_MAX,
    TEXT_CHARS_MAX,
    VERSION_HIGH,
    VERSION_LOW,
    Bye,
    Call,
    Cancel,
    Cast,
    Failure,
    Frame,
    Hello,
    PeerDecoder,
    Ping,
    Pong,
    Reply,
    Retire,
    StreamCredit,
    StreamData,
    StreamEnd,
    StreamOpen,
    StreamReset,
    decode_error,
    encode,
    encode_error,
)
from .peer_limits import PeerLimits, Refusal
from .peer_streams import StreamEvent, Streams
from .peer_tls import TLS_HANDSHAKE_BYTE, TlsPipe, link_refused

CONTROL_TURN_BYTES = 64 * 1024
SEND_BYTES = 128 * 1024
"""What ``bytes_to_send`` gives at once: what comes later in the control lane waits for so much at most."""
_RESETS_MAX = 256
_JOINED_BYTES = 16 * 1024

Admit = Callable[[str, str], str | None]
"""(host id, its certificate's SHA-256 in hex) -> why not, or ``None``: the ledger's word on a host."""


class Up(NamedTuple):
    """Both sides have proven themselves and agree on a version."""

    host_id: str
    fingerprint: str
    version: int
    software: str
    lane: str


class Called(NamedTuple):
    """A request: ``reply`` or ``fail`` it, with this id."""

    id: int
    target: str
    body: bytes


class Cancelled(NamedTuple):
    """Nobody waits for the answer of that request any more; answering it is harmless."""

    id: int


class Replied(NamedTuple):
    """A call of ours is answered: by a body, or by an error."""

    id: int
    body: bytes
    error: ActorGridError | None


class CastReceived(NamedTuple):
    """A message without an answer."""

    target: str
    body: bytes


class Down(NamedTuple):
    """The end of the link."""

    refusal: Refusal
    error: ActorGridError


Event = Up | Called | Cancelled | Replied | CastReceived | Down | StreamEvent


class _State(IntEnum):
    HANDSHAKE = 0
    HELLO = 1
    UP = 2
    DOWN = 3


class PeerLink:
    """See the module. *admit* is asked once, between TLS and Hello; *expected_host* is whom a dialler wants."""

    def __init__(
        self,
        context: ssl.SSLContext,
        cluster_id: str,
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
        self.rtt_s: float | None = None
        self.retiring = False
        """Whether either side said Retire: begin nothing new here."""
        self._cluster_id = cluster_id
        self._expected_host = expected_host
        self._admit = admit
        self._hello = Hello(MAGIC, *versions, software[:TEXT_CHARS_MAX], lane)
        self._limits = limits or PeerLimits()
        self._tls = TlsPipe(context, server_side=not dialled)
        self._decoder = PeerDecoder()
        self._state = _State.HANDSHAKE
        self._received_bytes = 0
        self._events: deque[Event] = deque()
        self._control: deque[bytes] = deque()
        self._control_bytes = 0
        self._turn_bytes = 0
        self._call_id = 0
        self._calls: set[int] = set()
        self._served: dict[int, int] = {}
        self._served_bytes = 0
        self._called_last = -1
        self._streams = Streams(1 if dialled else 2, self._limits)
        self._retired_by_us = self._retired_by_them = False
        self._born_s = self._heard_s = self._ticked_s = self._pinged_s = now_s
        self._ping = 0
        self._pong_due: int | None = None
        self._ping_open = False
        if dialled:
            self._shake_hands()

    # -- state

    @property
    def is_up(self) -> bool:
        """Whether calls, casts and streams may go."""
        return self._state == _State.UP

    @property
    def is_down(self) -> bool:
        """Whether it ended; the last bytes may still be there to send."""
        return self._state == _State.DOWN

    @property
    def at_rest(self) -> bool:
        """Whether nothing is under way in either direction."""
        return not (self._calls or self._served or len(self._streams) or self._control)

    @property
    def unsent_bytes(self) -> int:
        """What waits to be sent, of control frames, streams and TLS."""
        return self._control_bytes + self._streams.unsent_bytes + self._tls.waiting_bytes

    @property
    def held_bytes(self) -> int:
        """What of the other side's bytes is held: a frame that is not complete, requests that are not answered."""
        return self._decoder.pending_bytes + self._served_bytes

    # -- bytes

    def receive(self, data: bytes, now_s: float) -> None:
        """Bytes from the other side; call ``next_event`` until it gives ``None`` before the next ones."""
        if self._state == _State.DOWN or not data:
            return
        self._heard_s = now_s
        if self._state == _State.HANDSHAKE:
            if not self._received_bytes and data[0] != TLS_HANDSHAKE_BYTE:
                self._go_down(
                    Refusal.PLAIN_TEXT, PeerRefused("the other side does not speak TLS", found=repr(data[:16]))
                )
                return
            self._received_bytes += len(data)
            if self._received_bytes > self._limits.handshake_bytes_max:
                self._go_down(Refusal.TLS, PeerRefused("a TLS handshake without an end"))
                return
        self._tls.feed(data)

    def end_of_stream(self) -> None:
        """The socket is at its end, or broken: what came before it is handled first, by ``next_event``."""
        while (event := self._advance()) is not None:
            self._events.append(event)
        self._go_down(Refusal.GONE, PeerGone(f"the connection to {self.host_id or 'a host'} ended"))

    def bytes_to_send(self) -> bytes:
        """What to send next, empty when there is nothing: at most ``SEND_BYTES`` and one frame more."""
        if self._state == _State.UP:
            self._fill()
        return self._tls.take()

    def next_event(self) -> Event | None:
        """What happened, in order; ``None`` when all that came is dealt with."""
        return self._events.popleft() if self._events else self._advance()

    def tick(self, now_s: float) -> None:
        """Time has passed: timeouts, and a ping every so often. Call it at least every ``idle_s / 2``."""
        limits = self._limits
        paused = now_s - self._ticked_s > limits.idle_s / 2
        self._ticked_s = now_s
        if self._state == _State.DOWN:
            return
        if self._state != _State.UP:
            if now_s - self._born_s > limits.handshake_s:
                self._go_down(
                    Refusal.HANDSHAKE_TIMEOUT,
                    PeerRefused(f"no proof of identity within {limits.handshake_s:g} s"),
                )
            return
        if paused:  # we were stopped, and what came meanwhile is not read yet: say nothing about the other side
            self._heard_s = now_s
            self._pinged_s = now_s if self._ping_open else self._pinged_s
        silent_s = now_s - (self._pinged_s if self._ping_open else self._heard_s)
        if silent_s > limits.idle_s:
            self._go_down(Refusal.SILENT, PeerGone(f"{self.host_id} did not answer a ping for {silent_s:.1f} s"))
        elif not self._ping_open and now_s - self._pinged_s >= limits.ping_s:
            self._ping, self._ping_open, self._pinged_s = self._ping + 1, True, now_s
            self._put(encode(Ping(self._ping)))

    # -- what the owner may begin, while it is up

    def call(self, target: str, body: bytes) -> int:
        """Ask; gives the id that Replied will have. Raises MailboxFull, FrameTooLarge or PeerGone."""
        if len(self._calls) >= self._limits.calls_max:
            raise MailboxFull(f"{len(self._calls)} calls to {self.host_id} are not answered", hint="await some first")
        self._call_id += 1
        self._begin(Call(self._call_id, target, body), target, body)
        self._calls.add(self._call_id)
        return self._call_id

    def cancel(self, call_id: int) -> None:
        """Wait no more: there will be no Replied. Harmless when it was answered."""
        if call_id in self._calls and self._state == _State.UP:
            self._calls.discard(call_id)
            self._put(encode(Cancel(call_id)))

    def cast(self, target: str, body: bytes) -> None:
        """Tell. Raises MailboxFull, FrameTooLarge or PeerGone."""
        self._begin(Cast(target, body), target, body)

    def reply(self, call_id: int, body: bytes) -> None:
        """Answer a request; harmless when it is answered, cancelled or lost. Raises FrameTooLarge."""
        _check(target="", body=body)
        if not self._settle(call_id):
            return
        if self._control_bytes + len(body) > self._limits.unsent_bytes_max:
            error = MailboxFull("the answers to this host are not taken fast enough", hint="ask for less at once")
            self._put(encode(Failure(call_id, encode_error(error))))
        else:
            self._put(encode(Reply(call_id, body), compress=self._limits.compress))

    def fail(self, call_id: int, error: ActorGridError) -> None:
        """Answer a request with an error; as ``reply``."""
        if self._settle(call_id):
            self._put(encode(Failure(call_id, encode_error(error))))

    def open_stream(self, target: str, head: bytes, compress: bool = False) -> int:
        """Begin a stream both ways; gives its id. Raises MailboxFull, FrameTooLarge or PeerGone.

        *compress* allows it in both directions: it costs more time than a fast network takes for the bytes it saves.
        """
        self._ready_for(target, head)
        frame = self._streams.open(target, head, compress)
        self._put(encode(frame))
        return frame.id

    def write(self, stream_id: int, data: bytes | bytearray | memoryview) -> int:
        """Give a stream bytes; gives how many it took, the rest after StreamRoom. Raises PeerGone when it is over."""
        return self._streams.write(stream_id, data)

    def room(self, stream_id: int) -> int:
        """How many bytes ``write`` takes now."""
        return self._streams.room(stream_id)

    def has_stream(self, stream_id: int) -> bool:
        """Whether it is open in a direction, or its end is not sent yet."""
        return stream_id in self._streams

    def consumed(self, stream_id: int, count: int) -> None:
        """*count* bytes of a stream are done with."""
        self._streams.consumed(stream_id, count)

    def end_stream(self, stream_id: int) -> None:
        """Write no more to a stream."""
        self._streams.end(stream_id)

    def reset_stream(self, stream_id: int, error: ActorGridError) -> None:
        """End a stream both ways, with an error for the other side."""
        self._streams.reset(stream_id, error)

    def retire(self) -> None:
        """Begin nothing new; the link ends by itself (Down with RETIRED) once both sides say so and nothing is under
        way."""
        if self._state == _State.UP and not self._retired_by_us:
            self._retired_by_us = self.retiring = True
            self._put(encode(Retire()))

    def end_if_done(self) -> None:
        """End a retired link once nothing is under way; the owner says when to look."""
        if self._state == _State.UP and self._retired_by_us and self._retired_by_them and self.at_rest:
            self._go_down(Refusal.RETIRED, PeerGone(f"the link to {self.host_id} was replaced"))

    def close(self, refusal: Refusal, message: str) -> None:
        """End it at once; the other side is told, if it takes the bytes."""
        self._go_down(refusal, PeerGone(message))

    # -- out

    def _ready_for(self, target: str, body: bytes) -> None:
        if self._state != _State.UP:
            raise PeerGone(f"there is no link to {self.host_id or 'a host'} now")
        _check(target, body)
        if self._control_bytes + len(body) > self._limits.unsent_bytes_max:
            raise MailboxFull(
                f"{self._control_bytes} bytes to {self.host_id} are not sent yet",
                hint="send less at once, or large values as a stream",
            )

    def _begin(self, frame: Call | Cast, target: str, body: bytes) -> None:
        self._ready_for(target, body)
        self._put(encode(frame, compress=self._limits.compress))

    def _settle(self, call_id: int) -> bool:
        size = self._served.pop(call_id, None)
        if size is None or self._state != _State.UP:
            return False
        self._served_bytes -= size
        return True

    def _put(self, data: bytes) -> None:
        self._control.append(data)
        self._control_bytes += len(data)
        if self._control_bytes > 2 * self._limits.unsent_bytes_max + PAYLOAD_BYTES_MAX:
            self._go_down(Refusal.NOT_READING, PeerGone(f"{self.host_id} does not read what it is sent"))

    def _fill(self) -> None:
        """Move frames into TLS until there is enough to send."""
        while self._tls.waiting_bytes < SEND_BYTES:
            self._put_urgent()
            bulk_waits = self._streams.waiting
            if self._control and not (bulk_waits and self._turn_bytes >= CONTROL_TURN_BYTES):
                data = self._control.popleft()
                if len(data) < _JOINED_BYTES:  # small frames share a TLS record
                    pieces, size = [data], len(data)
                    while self._control and size + len(self._control[0]) <= _JOINED_BYTES:
                        pieces.append(self._control.popleft())
                        size += len(pieces[-1])
                    data = b"".join(pieces)
                self._control_bytes -= len(data)
                self._turn_bytes = self._turn_bytes + len(data) if bulk_waits else 0
                self._tls.write(data)
                continue
            self._turn_bytes = 0
            found = self._streams.next_frame()
            if found is None:
                if self._control:
                    continue
                break
            self._tls.write(encode(found[0], compress=found[1]))
        self._gather_stream_events()

    def _put_urgent(self) -> None:
        if self._pong_due is not None:
            number, self._pong_due = self._pong_due, None
            self._put_first(encode(Pong(number)))
        while (frame := self._streams.urgent()) is not None:
            self._put(encode(frame))

    def _put_first(self, data: bytes) -> None:
        self._control.appendleft(data)
        self._control_bytes += len(data)

    # -- in

    def _advance(self) -> Event | None:
        """Deal with what came until something happens."""
        try:
            while not self._events and self._state != _State.DOWN:
                frame = self._decoder.next() if self._state >= _State.HELLO else None
                if frame is not None:
                    self._take(frame)
                elif not self._read():
                    break
        except FrameTooLarge as error:
            self._go_down(Refusal.OVERSIZE, error)
        except MalformedMessage as error:
            self._go_down(Refusal.MALFORMED, error)
        except PeerRefused as error:
            self._go_down(Refusal(str(error.details["refusal"])), error)
        return self._events.popleft() if self._events else None

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
        self.host_id, self.fingerprint = self._tls.proven_host(self._cluster_id)
        if self._expected_host not in (None, self.host_id):
            raise link_refused(
                Refusal.WRONG_NAME,
                f"the address of {self._expected_host} is another host's",
                found=self.host_id,
                hint="correct the address",
            )
        self._state = _State.HELLO
        refusal = self._admit(self.host_id, self.fingerprint)
        if refusal is not None:
            raise link_refused(Refusal.UNKNOWN_HOST, f"{self.host_id} is no host of this cluster now", refusal)
        self._tls.write(encode(self._hello))
        return True

    def _take(self, frame: Frame) -> None:
        if self._state == _State.HELLO:
            self._take_first(frame)
        elif isinstance(frame, StreamData | StreamCredit | StreamOpen | StreamEnd | StreamReset):
            self._streams.take(frame)
            self._gather_stream_events()
            if self._streams.unsent_resets > _RESETS_MAX:
                self._go_down(Refusal.NOT_READING, PeerGone(f"{self.host_id} opens streams and reads nothing"))
        else:
            self._take_control(frame)

    def _take_first(self, frame: Frame) -> None:
        if isinstance(frame, Bye):
            self._take_bye(frame)
            return
        if not isinstance(frame, Hello) or frame.magic != MAGIC or frame.lane not in LANES:
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
        self._events.append(Up(self.host_id, self.fingerprint, version, frame.software, self.lane))

    def _take_control(self, frame: Frame) -> None:
        match frame:
            case Call():
                self._take_call(frame)
            case Reply(call_id, body):
                if self._ours(call_id):
                    self._events.append(Replied(call_id, body, None))
            case Failure(call_id, packed):
                error = decode_error(packed)
                if self._ours(call_id):
                    self._events.append(Replied(call_id, b"", error))
            case Cast(target, body):
                self._events.append(CastReceived(target, body))
            case Cancel(call_id):
                if self._settle(call_id):
                    self._events.append(Cancelled(call_id))
            case Ping(number):
                self._pong_due = number
            case Pong(number):
                if self._ping_open and number == self._ping:
                    self._ping_open = False
                    self.rtt_s = max(0.0, self._heard_s - self._pinged_s)
            case Retire():
                self._retired_by_them = True
                self.retire()
            case Bye():
                self._take_bye(frame)
            case _:
                raise MalformedMessage("a frame that has no place here", found=type(frame).__name__)

    def _take_call(self, frame: Call) -> None:
        if frame.id <= self._called_last:
            raise MalformedMessage("a call with a number that was used", found=str(frame.id))
        self._called_last = frame.id
        limits = self._limits
        if len(self._served) >= limits.served_max or self._served_bytes + len(frame.body) > limits.served_bytes_max:
            error = MailboxFull(f"{len(self._served)} calls of yours are under way here", hint="await some first")
            self._put(encode(Failure(frame.id, encode_error(error))))
            return
        self._served[frame.id] = len(frame.body)
        self._served_bytes += len(frame.body)
        self._events.append(Called(*frame))

    def _ours(self, call_id: int) -> bool:
        """Whether an answer is awaited; one that was cancelled came too late, which is no fault of theirs."""
        if call_id in self._calls:
            self._calls.discard(call_id)
            return True
        if call_id > self._call_id:
            raise MalformedMessage("an answer to a call that was never made", found=str(call_id))
        return False

    def _take_bye(self, frame: Bye) -> None:
        if frame.code == Refusal.RETIRED:
            self._go_down(Refusal.RETIRED, PeerGone(f"{self.host_id} replaced the link"))
        elif self._state == _State.UP:
            self._go_down(Refusal.GONE, PeerGone(f"{self.host_id} closed the link", found=frame.message))
        else:
            error = PeerRefused(f"{self.host_id} refused this host", found=frame.message, refusal=frame.code)
            self._go_down(Refusal.REFUSED_US, error)

    def _gather_stream_events(self) -> None:
        self._events.extend(self._streams.events)
        self._streams.events.clear()

    def _go_down(self, refusal: Refusal, error: ActorGridError) -> None:
        if self._state == _State.DOWN:
            return
        proven, self._state = self._state >= _State.HELLO, _State.DOWN
        self._control.clear()
        self._control_bytes = 0
        self._calls.clear()
        self._served.clear()
        self._served_bytes = 0
        self._decoder = PeerDecoder()
        self._streams = Streams(1 if self.dialled else 2, self._limits)
        if proven:
            told = refusal in (Refusal.GONE, Refusal.REFUSED_US)
            self._tls.finish(b"" if told else encode(Bye(str(refusal), _printable(error.message))))
        self._events.append(Down(refusal, error))


def _check(target: str, body: bytes) -> None:
    if len(body) > PAYLOAD_BYTES_MAX:
        raise FrameTooLarge(
            f"{len(body)} bytes are over the limit of {PAYLOAD_BYTES_MAX}", asked=target, hint="send them as a stream"
        )
    if len(target) > TEXT_CHARS_MAX or not target.isprintable():
        raise FrameTooLarge(f"a target is printable text of at most {TEXT_CHARS_MAX} characters", asked=target[:40])


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)[:TEXT_CHARS_MAX]
