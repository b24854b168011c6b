"""What two hosts have under way on one link that is up: calls, casts, streams, pings; frames in, events and bytes out.

No socket, no TLS, no clock. Whoever carries the bytes owns it: ``PeerLink`` over TLS, ``FaultyNet`` through memory.

Control frames (calls, casts, answers, grants) overtake streams, but of what is sent while a stream has something to
send, at least a piece in ``CONTROL_TURN_BYTES`` is a stream's. ``PeerLimits`` says every bound, and what happens there.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from actorgrid.errors import ActorGridError, FrameTooLarge, MailboxFull, MalformedMessage, PeerGone

from .frames import (
    PAYLOAD_BYTES_MAX,
    TEXT_CHARS_MAX,
    Bye,
    Call,
    Cancel,
    Cast,
    Failure,
    Frame,
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
from .limits import PeerLimits, Refusal
from .streams import StreamEvent, Streams

CONTROL_TURN_BYTES = 64 * 1024
_RESETS_MAX = 256
_JOINED_BYTES = 16 * 1024


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


class LinkDown(NamedTuple):
    """The end of the link."""

    refusal: Refusal
    error: ActorGridError


SessionEvent = Called | Cancelled | Replied | CastReceived | StreamEvent


class PeerSession:
    """All that is under way on one link. It can be used between ``start`` and the moment ``over`` says why it ended."""

    def __init__(self, dialled: bool, limits: PeerLimits) -> None:
        self.host_id = ""
        self.events: deque[SessionEvent] = deque()
        self.over: LinkDown | None = None
        """Why the link is to end, or has."""
        self.rtt_s: float | None = None
        self.retiring = False
        """Whether either side said Retire: begin nothing new here."""
        self._limits = limits
        self._started = False
        self._control: deque[bytes] = deque()
        self._control_bytes = 0
        self._turn_bytes = 0
        self._call_id = 0
        self._calls: set[int] = set()
        self._served: dict[int, int] = {}
        self._served_bytes = 0
        self._called_last = -1
        self._streams = Streams(1 if dialled else 2, limits)
        self._retired_by_us = self._retired_by_them = False
        self._heard_s = self._ticked_s = self._pinged_s = 0.0
        self._ping = 0
        self._ping_open = False
        self._pong_due: int | None = None

    def start(self, host_id: str, now_s: float) -> None:
        """Begin: both sides have proven themselves, the other as *host_id*."""
        self.host_id = host_id
        self._started = True
        self._heard_s = self._ticked_s = self._pinged_s = now_s

    def end(self, refusal: Refusal, error: ActorGridError) -> None:
        """End the session and drop all that was under way. The first reason stays."""
        if self.over is None:
            self.over = LinkDown(refusal, error)
            self._control.clear()
            self._control_bytes = 0
            self._calls.clear()
            self._served.clear()
            self._served_bytes = 0
            self._streams = Streams(1, self._limits)
            self._pong_due = None

    @property
    def usable(self) -> bool:
        """Whether calls, casts and streams may begin."""
        return self._started and self.over is None

    @property
    def at_rest(self) -> bool:
        """Whether nothing is under way in either direction."""
        return not (self._calls or self._served or len(self._streams) or self._control)

    @property
    def unsent_bytes(self) -> int:
        """Bytes that wait to be sent."""
        return self._control_bytes + self._streams.unsent_bytes

    @property
    def restless(self) -> bool:
        """Whether there is an event to take, an end to tell of, or something to send: ``next_bytes`` may give it."""
        due = self._control or self._pong_due is not None or self._streams.restless
        return bool(self.events or self.over is not None or due)

    @property
    def served_bytes(self) -> int:
        """Bytes of the bodies of requests that are not answered."""
        return self._served_bytes

    def received(self, now_s: float) -> None:
        """Take note that something came from the other side."""
        self._heard_s = now_s

    def tick(self, now_s: float) -> None:
        """Check for silence and ping every so often. Call it at least every ``idle_s / 2``."""
        if not self.usable:
            return
        limits = self._limits
        if now_s - self._ticked_s > limits.idle_s / 2:
            # We were stopped, and what came meanwhile is not read yet: that says nothing about the other side.
            self._heard_s = now_s
            self._pinged_s = now_s if self._ping_open else self._pinged_s
        self._ticked_s = now_s
        silent_s = now_s - (self._pinged_s if self._ping_open else self._heard_s)
        if silent_s > limits.idle_s:
            self.end(Refusal.SILENT, PeerGone(f"{self.host_id} did not answer a ping for {silent_s:.1f} s"))
        elif not self._ping_open and now_s - self._pinged_s >= limits.ping_s:
            self._ping, self._ping_open, self._pinged_s = self._ping + 1, True, now_s
            self._put(encode(Ping(self._ping)))
        elif self._retired_by_us and self._retired_by_them and self.at_rest:
            self.end(Refusal.RETIRED, PeerGone(f"the link to {self.host_id} was replaced"))

    # -- what the owner may begin, while it is up

    def call(self, target: str, body: bytes) -> int:
        """Send a call; gives the id that Replied will have. Raises MailboxFull, FrameTooLarge or PeerGone."""
        if len(self._calls) >= self._limits.calls_max:
            raise MailboxFull(f"{len(self._calls)} calls to {self.host_id} are not answered", hint="await some first")
        self._call_id += 1
        self._begin(Call(self._call_id, target, body), target, body)
        self._calls.add(self._call_id)
        return self._call_id

    def cancel(self, call_id: int) -> None:
        """Stop waiting for an answer: there will be no Replied. Harmless when it was answered."""
        if call_id in self._calls and self.usable:
            self._calls.discard(call_id)
            self._put(encode(Cancel(call_id)))

    def cast(self, target: str, body: bytes) -> None:
        """Send a cast. Raises MailboxFull, FrameTooLarge or PeerGone."""
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
        """Give a stream bytes; how many it took. StreamWritable: it takes more. Raises PeerGone when it is over."""
        return self._streams.write(stream_id, data)

    def capacity(self, stream_id: int) -> int:
        """How many bytes ``write`` takes now."""
        return self._streams.capacity(stream_id)

    def has_stream(self, stream_id: int) -> bool:
        """Whether the stream is open in a direction, or its end is not sent yet."""
        return stream_id in self._streams

    def consumed(self, stream_id: int, count: int) -> None:
        """Say that *count* received bytes of a stream are dealt with."""
        self._streams.consumed(stream_id, count)

    def end_stream(self, stream_id: int) -> None:
        """Write no more to a stream."""
        self._streams.end(stream_id)

    def reset_stream(self, stream_id: int, error: ActorGridError) -> None:
        """End a stream both ways, with an error for the other side."""
        self._streams.reset(stream_id, error)

    def retire(self) -> None:
        """Begin nothing new; the session ends (RETIRED) at a tick once both sides say so and nothing is under way."""
        if self.usable and not self._retired_by_us:
            self._retired_by_us = self.retiring = True
            self._put(encode(Retire()))

    # -- out

    def next_bytes(self) -> bytes | None:
        """The next frame, or some small ones together; ``None`` when there is nothing to send."""
        while True:
            self._put_urgent()
            bulk_waits = self._streams.waiting
            if self._control and not (bulk_waits and self._turn_bytes >= CONTROL_TURN_BYTES):
                data = self._next_control()
                self._turn_bytes = self._turn_bytes + len(data) if bulk_waits else 0
                return data
            self._turn_bytes = 0
            found = self._streams.next_frame()
            self._gather_stream_events()
            if found is not None:
                return encode(found[0], compress=found[1])
            if not self._control:
                return None

    def _next_control(self) -> bytes:
        data = self._control.popleft()
        if len(data) < _JOINED_BYTES:  # small frames share a TLS record
            pieces, size = [data], len(data)
            while self._control and size + len(self._control[0]) <= _JOINED_BYTES:
                pieces.append(self._control.popleft())
                size += len(pieces[-1])
            data = b"".join(pieces)
        self._control_bytes -= len(data)
        return data

    def _put_urgent(self) -> None:
        if self._pong_due is not None:
            # Before all that waits: behind a megabyte of answers on a slow link it would be taken for silence.
            pong, self._pong_due = encode(Pong(self._pong_due)), None
            self._control.appendleft(pong)
            self._control_bytes += len(pong)
        while (frame := self._streams.urgent()) is not None:
            self._put(encode(frame))

    def _put(self, data: bytes) -> None:
        self._control.append(data)
        self._control_bytes += len(data)
        # Long before, what is begun here is refused (``_ready_for``) and a large answer becomes a short error. But such
        # errors and grants have no bound of their own: a peer that asks on and reads nothing of them is cut off.
        if self._control_bytes > 2 * self._limits.unsent_bytes_max + PAYLOAD_BYTES_MAX:
            self._not_reading()

    def _not_reading(self) -> None:
        self.end(Refusal.NOT_READING, PeerGone(f"{self.host_id} does not read what it is sent"))

    def _ready_for(self, target: str, body: bytes) -> None:
        if not self.usable:
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
        if size is None or not self.usable:
            return False
        self._served_bytes -= size
        return True

    # -- in

    def take(self, frame: Frame) -> None:
        """Take a frame of the other side; what follows is in ``events`` and ``over``. Raises MalformedMessage."""
        if isinstance(frame, StreamData | StreamCredit | StreamOpen | StreamEnd | StreamReset):
            self._streams.take(frame)
            self._gather_stream_events()
            if self._streams.unsent_resets > _RESETS_MAX:
                self._not_reading()
        else:
            self._take_control(frame)

    def _take_control(self, frame: Frame) -> None:
        match frame:
            case Call():
                self._take_call(frame)
            case Reply(call_id, body):
                if self._ours(call_id):
                    self.events.append(Replied(call_id, body, None))
            case Failure(call_id, packed):
                error = decode_error(packed)
                if self._ours(call_id):
                    self.events.append(Replied(call_id, b"", error))
            case Cast(target, body):
                self.events.append(CastReceived(target, body))
            case Cancel(call_id):
                if self._settle(call_id):
                    self.events.append(Cancelled(call_id))
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
        self.events.append(Called(*frame))

    def _ours(self, call_id: int) -> bool:
        """Whether an answer is awaited. One to a cancelled call came too late, which is no fault of the other side."""
        if call_id in self._calls:
            self._calls.discard(call_id)
            return True
        if call_id > self._call_id:
            raise MalformedMessage("an answer to a call that was never made", found=str(call_id))
        return False

    def _take_bye(self, frame: Bye) -> None:
        if frame.code == Refusal.RETIRED:
            self.end(Refusal.RETIRED, PeerGone(f"{self.host_id} replaced the link"))
        elif frame.code == Refusal.UNKNOWN_HOST:
            self.end(Refusal.REFUSED_US, PeerGone(f"{self.host_id} refuses this host", found=frame.message))
        else:
            self.end(Refusal.GONE, PeerGone(f"{self.host_id} closed the link", found=frame.message))

    def _gather_stream_events(self) -> None:
        self.events.extend(self._streams.events)
        self._streams.events.clear()


def _check(target: str, body: bytes) -> None:
    if len(body) > PAYLOAD_BYTES_MAX:
        raise FrameTooLarge(
            f"{len(body)} bytes are over the limit of {PAYLOAD_BYTES_MAX}", asked=target, hint="send them as a stream"
        )
    if len(target) > TEXT_CHARS_MAX or not target.isprintable():
        raise FrameTooLarge(f"a target is printable text of at most {TEXT_CHARS_MAX} characters", asked=target[:40])
