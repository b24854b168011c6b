"""The messages of one peer: numbered, kept until they are consumed, over the pair while there is one and over TLS else.

Each side numbers its messages and keeps them until the other says how many it has consumed. A pair (two connected queue
pairs) that fails is dropped whole: what was not consumed goes over the TLS stream again, from the first on, and the
other side leaves out what has arrived before. So nothing is lost or doubled, whatever of the pair had come through.

* **To the pair**: from TLS only once all that went over TLS is consumed, so that nothing overtakes it.
* **From the pair**: DROPPED goes first on the TLS stream, then the messages. So whoever reads them has let go of the
  pair, and of what it was still fetching.
* **Credits**: a message needs a free slot there; each head says how many were taken. Half of them untold is a report.
* **Large messages**: their bytes are exposed, and the head says where. The receiver fetches them in order; what is
  behind them waits.

It owns no device, socket or clock: the pair and the stream are ports. What the other side does against the rules is
MalformedMessage; what a port cannot do is PairFailed, which never leaves this class.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import IntEnum
from typing import Protocol

from actorgrid.errors import FrameTooLarge, MailboxFull, MalformedMessage

from .frames import EAGER, FETCH, HEAD, REPORT, WHERE, PathFrame, encode_consumed, encode_epoch, encode_message
from .limits import SIGNAL_EVERY, RdmaLimits


class PairFailed(Exception):
    """A verb, or a completion, failed: the pair is of no use any more."""


class PairPort(Protocol):
    """A connected pair. Everything may raise PairFailed."""

    def send(self, head: bytes, body: bytes, signalled: bool) -> None:
        """Post *head* and *body* as one message; both are copied."""

    def expose(self, data: bytes) -> tuple[int, int, int] | None:
        """Let the peer fetch *data*: a token, address and key; ``None`` while there is no room."""

    def conceal(self, token: int) -> None:
        """The peer has what was exposed: its memory may be used again."""

    def fetch(self, address: int, key: int, length: int) -> bool:
        """Begin to fetch; ``fetched`` follows in order. False while there is no room."""

    def close(self) -> None:
        """Let go of the pair and of all that it exposed; harmless when it was."""


class PathStream(Protocol):
    """The TLS stream of a peer."""

    @property
    def has_room(self) -> bool:
        """Whether ``put`` ought to wait."""

    def put(self, frame: bytes) -> None:
        """Send a frame, after those before it."""


class CarriedBy(IntEnum):
    """What carries messages now."""

    NONE = 0
    STREAM = 1
    CHANGING = 2
    """The pair is ready, and waits for the other side to consume what went over the stream."""
    PAIR = 3


class _Landing:
    """A message that came over the pair and is not handed on yet."""

    __slots__ = ("address", "data", "key", "length")

    def __init__(self, length: int, data: bytes | None) -> None:
        self.length, self.data = length, data
        self.address = self.key = 0


class PeerCore:
    """See the module. *deliver* gets each message once and in order; say ``consumed`` when one is dealt with."""

    def __init__(self, limits: RdmaLimits, deliver: Callable[[bytes], None]) -> None:
        self.carrier = CarriedBy.NONE
        self.failure = ""
        """Why the last pair was dropped."""
        self.pairs_failed = 0
        self._limits = limits
        self._deliver = deliver
        self._stream: PathStream | None = None
        self._pair: PairPort | None = None
        self._epoch = 0
        self._eager_max = 0
        # What we send: numbers up to _acked are consumed there, up to _sent on their way, and the rest waits.
        self._acked = self._sent = self._sent_max = 0  # _sent goes back when a pair fails, _sent_max does not
        self._kept: deque[tuple[bytes, int]] = deque()  # with the token of what is exposed, or -1
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        # What comes: up to _consumed dealt with, up to _delivered handed on, up to _arrived here.
        self._consumed = self._delivered = self._arrived = self._told = 0
        self._landing: deque[_Landing] = deque()
        self._unfetched: deque[_Landing] = deque()
        self._fetching: deque[_Landing] = deque()
        # Of the pair: slots of theirs used and free again, ours taken and told; the depth of our send queue.
        self._used = self._freed = self._credits = 0
        self._taken = self._taken_told = 0
        self._queued = self._unsignalled = 0

    # -- for the owner

    @property
    def has_room(self) -> bool:
        """Whether ``send`` takes a message of moderate size."""
        limits = self._limits
        return (
            self._sent - self._acked + len(self._waiting) < limits.messages
            and self._bytes + limits.message_bytes <= limits.unconsumed_bytes
        )

    @property
    def unconsumed(self) -> int:
        """How many of our messages the other side has not consumed."""
        return len(self._kept) + len(self._waiting)

    @property
    def arrived(self) -> int:
        """How many messages came and were handed on: where the other side goes on after a break."""
        return self._delivered

    @property
    def is_due(self) -> bool:
        """Whether ``flush`` would do something: call it within ``report_s``."""
        return self._consumed != self._told or bool(self._waiting) or bool(self._unfetched)

    def send(self, data: bytes) -> None:
        """Send a message. Raises MailboxFull, FrameTooLarge."""
        size, limits = len(data), self._limits
        if size > limits.message_bytes:
            raise FrameTooLarge(f"{size} bytes are over the limit of {limits.message_bytes}", hint="send it in pieces")
        kept = len(self._kept) + len(self._waiting)
        if kept >= limits.messages or self._bytes + size > limits.unconsumed_bytes:
            raise MailboxFull(
                "the other host does not take messages fast enough",
                found=f"{kept} messages and {self._bytes} bytes are not consumed",
                hint="wait until some are",
            )
        self._bytes += size
        self._waiting.append(data)
        self._pump()

    def consumed(self, count: int = 1) -> None:
        """Say that *count* delivered messages are dealt with: as many more may come."""
        self._consumed += count
        if self._consumed - self._told >= self._limits.messages // 2:
            self._report()

    def flush(self) -> None:
        """Do what waits for time: tell what was consumed, and try again what had no room."""
        self._pump()
        self._fetch_next()
        if self._consumed != self._told:
            self._report()

    # -- the stream

    def stream_up(self, stream: PathStream, arrived: int) -> None:
        """A stream is there, and the other side has handed on *arrived* of our messages. Raises MalformedMessage."""
        self._acknowledge(arrived)
        self._stream = stream
        self._rewind()
        self.carrier = CarriedBy.STREAM
        self._pump()

    def stream_down(self) -> None:
        """The stream is lost, and with it who proved who the peer is: no pair outlives it."""
        self._stream = None
        if self._pair is not None:
            self.pair_failed("the TLS link to the host is lost")
        self.carrier = CarriedBy.NONE

    def message(self, number: int, consumed: int, data: bytes) -> None:
        """A message came over the stream. Raises MalformedMessage."""
        self._acknowledge(consumed)
        if number < self._arrived:
            return  # it came over a pair before
        if number != self._arrived or self._landing or number - self._consumed >= self._limits.messages:
            raise MalformedMessage("a message that is not the next", asked=str(self._arrived), found=str(number))
        self._arrived += 1
        self._delivered += 1
        self._deliver(data)

    def told_consumed(self, consumed: int) -> None:
        """The other side says what it has consumed. Raises MalformedMessage."""
        self._acknowledge(consumed)
        self._pump()

    def has_room_again(self) -> None:
        """The stream takes more."""
        self._pump()

    # -- the pair

    def pair_up(self, pair: PairPort, epoch: int, slot_bytes: int, credits: int) -> None:
        """A pair is connected, both ways: use it as soon as nothing is overtaken."""
        assert self._stream is not None and self._pair is None, "a pair belongs to a stream"
        self._pair, self._epoch = pair, epoch
        self._credits = credits
        self._eager_max = slot_bytes - HEAD.size
        self._used = self._freed = self._taken = self._taken_told = 0
        self._queued = self._unsignalled = 0
        self.carrier = CarriedBy.CHANGING if self._kept else CarriedBy.PAIR
        self._pump()

    def received(self, slot: memoryview) -> None:
        """A message lies in a slot, which is free again afterwards. Raises MalformedMessage."""
        if len(slot) < HEAD.size:
            raise MalformedMessage("a message over RDMA without a head", found=f"{len(slot)} bytes")
        kind, epoch, length, number, consumed, taken = HEAD.unpack_from(slot)
        if epoch != self._epoch or not self._freed <= taken <= self._used:
            raise MalformedMessage("a message of another pair", found=f"epoch {epoch}, {taken} taken")
        self._freed = taken
        self._taken += 1
        if consumed != self._acked:
            self._acknowledge(consumed)
        if kind == EAGER:
            end = HEAD.size + length
            if number != self._arrived or end > len(slot) or number - self._consumed >= self._limits.messages:
                raise MalformedMessage("a message over RDMA that is not the next, or cut", found=str(number))
            self._arrived += 1
            data = bytes(slot[HEAD.size : end])
            if self._landing:
                self._landing.append(_Landing(length, data))
            else:
                self._delivered += 1
                self._deliver(data)
        elif kind == FETCH:
            self._announced(slot, length, number)
        elif kind != REPORT:
            raise MalformedMessage("a message over RDMA of no known kind", found=str(kind))
        if self._taken - self._taken_told >= self._limits.credits // 2:
            self._report()
        if self._waiting:
            self._pump()

    def fetched(self, data: bytes) -> None:
        """The oldest fetch is done."""
        if not self._fetching:
            raise MalformedMessage("a fetch is done that was not begun")
        self._queued -= 1
        self._fetching.popleft().data = data
        self._fetch_next()
        landing = self._landing
        while landing and (ready := landing[0].data) is not None:
            landing.popleft()
            self._delivered += 1
            self._deliver(ready)
        if self._waiting:
            self._pump()

    def sent(self) -> None:
        """A send that asked for a completion has it, so all up to it have."""
        self._queued -= SIGNAL_EVERY
        if self._waiting:
            self._pump()

    def pair_failed(self, reason: str) -> None:
        """Drop the pair: the stream carries on from the first message that was not consumed."""
        pair, self._pair = self._pair, None
        if pair is None:
            return
        pair.close()
        self.failure = reason
        self.pairs_failed += 1
        self._landing.clear()
        self._unfetched.clear()
        self._fetching.clear()
        self._arrived = self._delivered
        self._rewind()
        self.carrier = CarriedBy.NONE
        if self._stream is not None:
            self.carrier = CarriedBy.STREAM
            self._stream.put(encode_epoch(PathFrame.DROPPED, self._epoch, reason))
            self._pump()

    def dropped_there(self, epoch: int, reason: str) -> None:
        """The other side has dropped its end of the pair; nothing where ours is another by now."""
        if self._pair is not None and epoch == self._epoch:
            self.pair_failed(f"dropped by the other host: {reason}")

    # -- within

    def _rewind(self) -> None:
        self._waiting.extendleft(data for data, _token in reversed(self._kept))
        self._kept.clear()
        self._sent = self._acked

    def _acknowledge(self, consumed: int) -> None:
        if consumed <= self._acked:
            return  # told before: what goes over the pair may overtake what goes over the stream
        if consumed > self._sent_max:
            raise MalformedMessage(
                "the other host consumed what was not sent", asked=f"up to {self._sent_max}", found=str(consumed)
            )
        kept, waiting = self._kept, self._waiting
        for _ in range(consumed - self._acked):
            # It may have come over a pair that failed since, and wait here to be sent once more.
            data, token = kept.popleft() if kept else (waiting.popleft(), -1)
            self._bytes -= len(data)
            if token >= 0 and self._pair is not None:
                self._pair.conceal(token)
        self._acked = consumed
        self._sent = max(self._sent, consumed)
        if self.carrier == CarriedBy.CHANGING and not kept:
            self.carrier = CarriedBy.PAIR
            self._pump()

    def _pump(self) -> None:
        waiting = self._waiting
        try:
            while waiting:
                if self.carrier == CarriedBy.PAIR:
                    if self._used - self._freed >= self._credits or not self._post(waiting[0]):
                        return
                elif self.carrier == CarriedBy.STREAM and self._stream is not None and self._stream.has_room:
                    self._told = self._consumed
                    self._stream.put(encode_message(self._sent, self._consumed, waiting[0]))
                    self._kept.append((waiting[0], -1))
                else:
                    return
                self._sent += 1
                self._sent_max = max(self._sent_max, self._sent)
                waiting.popleft()
        except PairFailed as failed:
            self.pair_failed(str(failed))

    def _post(self, data: bytes) -> bool:
        """Send *data* over the pair; whether there was room. Raises PairFailed."""
        pair, token = self._pair, -1
        if pair is None or self._queued >= self._limits.send_slots - self._limits.reads - self._limits.spare_credits:
            return False
        if len(data) <= self._eager_max:
            kind, body = EAGER, data
        else:
            exposed = pair.expose(data)
            if exposed is None:
                return False
            token, address, key = exposed
            kind, body = FETCH, WHERE.pack(address, key)
        self._put(pair, kind, len(data), body)
        self._kept.append((data, token))
        return True

    def _put(self, pair: PairPort, kind: int, length: int, body: bytes) -> None:
        self._told, self._taken_told = self._consumed, self._taken
        self._used += 1
        self._queued += 1
        self._unsignalled += 1
        signalled = self._unsignalled == SIGNAL_EVERY
        if signalled:
            self._unsignalled = 0
        pair.send(HEAD.pack(kind, self._epoch, length, self._sent, self._consumed, self._taken), body, signalled)

    def _report(self) -> None:
        """Tell what was consumed and taken, without a message to go along with."""
        if self._pair is not None:
            if self._used - self._freed < self._credits + self._limits.spare_credits:
                try:
                    self._put(self._pair, REPORT, 0, b"")
                except PairFailed as failed:
                    self.pair_failed(str(failed))
        elif self._stream is not None:
            self._told = self._consumed
            self._stream.put(encode_consumed(self._consumed))

    def _announced(self, slot: memoryview, length: int, number: int) -> None:
        limits = self._limits
        if number != self._arrived or not self._eager_max < length <= limits.message_bytes:
            raise MalformedMessage("a message to fetch that is not the next, or too large", found=f"{length} bytes")
        if len(slot) < HEAD.size + WHERE.size or number - self._consumed >= limits.messages:
            raise MalformedMessage("a message to fetch without its place, or beyond the bound", found=str(number))
        self._arrived += 1
        landing = _Landing(length, None)
        landing.address, landing.key = WHERE.unpack_from(slot, HEAD.size)
        self._landing.append(landing)
        self._unfetched.append(landing)
        self._fetch_next()

    def _fetch_next(self) -> None:
        try:
            while self._pair is not None and self._unfetched and len(self._fetching) < self._limits.reads:
                next_one = self._unfetched[0]
                if not self._pair.fetch(next_one.address, next_one.key, next_one.length):
                    return
                self._queued += 1
                self._fetching.append(self._unfetched.popleft())
        except PairFailed as failed:
            self.pair_failed(str(failed))
