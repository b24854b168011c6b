"""The RDMA path to one peer: its TLS stream, the making of pairs, and when to try again.

Either host may open the stream; where both do, that of the host whose id comes first is kept. Over it they say Hello,
and then the host whose id comes first offers a pair: OFFER, ANSWER, READY, each with one side's addresses. What a queue
pair is told comes from a host whose certificate was proven, and no pair outlives the stream.

A path has an opening of its own, random: where the other side's is another than before, its process is a new one, and
what was under way is lost. ``on_reset`` says so.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from actorgrid.errors import ActorGridError, MalformedMessage, PeerGone

from ..peer.calls import Cancellable, NetLoop, Stream
from . import frames
from .frames import FrameCutter, PairDetails, PathFrame, PathHello
from .limits import RdmaLimits
from .peer_core import CarriedBy, PairFailed, PeerCore
from .verbs import LINGER_S, RdmaDevice, RdmaPair

NO_OPENING = bytes(8)
PAIR_S = 10.0
"""For the other side to answer an offer."""
UNSENT_BYTES = 256 * 1024
"""Of frames that the stream has not taken; then messages wait."""
UNSENT_BYTES_MAX = 16 * 2**20
"""Of reports and of a message, besides; then the other side does not read, and the stream is reset."""

log = logging.getLogger("actorgrid.links")


class PathStatus(NamedTuple):
    """A path for who looks at it."""

    host_id: str
    carrier: str
    """"rdma", "tls" while there is no pair, or "none" while there is no stream."""
    reason: str
    """Why there is no pair; empty where there is one."""
    pairs: int
    pairs_failed: int
    unconsumed: int


class RdmaPath:
    """See the module. *device* gives the device that is open now, or why there is none."""

    def __init__(
        self,
        loop: NetLoop,
        own_id: str,
        host_id: str,
        limits: RdmaLimits,
        device: Callable[[], RdmaDevice | str],
        open_stream: Callable[[], Stream],
        on_message: Callable[[bytes], None],
        on_room: Callable[[], None],
        on_reset: Callable[[], None],
        opening: bytes | None = None,
    ) -> None:
        self.host_id = host_id
        self.pairs = 0
        self.version = frames.VERSION
        self._loop, self._own_id, self._limits = loop, own_id, limits
        self._device, self._open_stream = device, open_stream
        self._on_message, self._on_room, self._on_reset = on_message, on_room, on_reset
        self._opening = opening or os.urandom(8)
        self._theirs = NO_OPENING
        self._core = PeerCore(limits, on_message)
        self._stream: Stream | None = None
        self._ours = False  # whether we opened it
        self._cutter = FrameCutter()
        self._unsent: deque[memoryview] = deque()
        self._unsent_bytes = 0
        self._greeted = False
        self._epoch = 0
        self._pair: RdmaPair | None = None
        self._peer_details: PairDetails | None = None
        self._ready = False
        self._why = "no pair was made yet"
        self._failures = 0
        self._again: Cancellable | None = None
        self._offer: Cancellable | None = None
        self._given_up: Cancellable | None = None
        self._due: Cancellable | None = None
        self._closed = self._in_room = False

    # -- for the owner

    @property
    def core(self) -> PeerCore:
        """The messages."""
        return self._core

    @property
    def fast(self) -> bool:
        """Whether messages go over RDMA now."""
        return self._core.carrier == CarriedBy.PAIR

    @property
    def has_room(self) -> bool:
        """Whether ``send`` takes a message now; ``on_room`` follows when it does not."""
        return self._core.has_room

    def send(self, data: bytes) -> None:
        """Send a message. Raises MailboxFull, FrameTooLarge."""
        self._core.send(data)
        self._look()

    def consumed(self, count: int = 1) -> None:
        """Say that messages are dealt with."""
        self._core.consumed(count)
        self._look()

    def status(self) -> PathStatus:
        """What is to be said of it."""
        carrier = {CarriedBy.NONE: "none", CarriedBy.PAIR: "rdma"}.get(self._core.carrier, "tls")
        return PathStatus(self.host_id, carrier, self._why, self.pairs, self._core.pairs_failed, self._core.unconsumed)

    def begin(self) -> None:
        """Open the stream, unless there is one or one is due."""
        if self._stream is None and self._again is None and not self._closed:
            stream = self._open_stream()
            self._take(stream, ours=True)

    def came(self, stream: Stream) -> None:
        """The other host opened a stream. Raises PeerGone where ours is the one to keep."""
        if self._closed:
            raise PeerGone("this end of the path is closed")
        if self._stream is not None and self._ours and self._own_id < self.host_id:
            raise PeerGone("another stream of this host is kept")
        if self._stream is not None:
            self._stream.reset(PeerGone("another stream is kept"))
            self._lost("another stream of the host came")
        self._take(stream, ours=False)

    def close(self, why: str) -> None:
        """End it; what is under way is lost."""
        if self._closed:
            return
        self._closed = True
        for timer in (self._again, self._offer, self._given_up, self._due):
            if timer is not None:
                timer.cancel()
        self._drop_pair(why)
        self._core.stream_down()
        if self._stream is not None:
            self._stream.reset(PeerGone(why))
            self._stream = None

    # -- the stream

    def _take(self, stream: Stream, ours: bool) -> None:
        if self._again is not None:
            self._again.cancel()
            self._again = None
        self._stream, self._ours = stream, ours
        self._greeted = False
        self._cutter = FrameCutter()
        self._unsent.clear()
        self._unsent_bytes = 0
        stream.attach(
            lambda data: self._came(stream, data), lambda error: self._ended(stream, error), self._stream_has_room
        )
        usable = isinstance(self._device(), RdmaDevice)
        self.put(frames.encode_hello(PathHello(self.version, usable, self._opening, self._theirs, self._core.arrived)))

    @property
    def stream_has_room(self) -> bool:
        """Whether frames are taken without waiting."""
        return self._unsent_bytes < UNSENT_BYTES

    def put(self, frame: bytes) -> None:
        """Write a frame to the stream, as it takes it."""
        self._unsent.append(memoryview(frame))
        self._unsent_bytes += len(frame)
        self._write()

    def _write(self) -> None:
        stream = self._stream
        try:
            while self._unsent and stream is not None:
                taken = stream.write(self._unsent[0])
                self._unsent_bytes -= taken
                if taken < len(self._unsent[0]):
                    self._unsent[0] = self._unsent[0][taken:]
                    break
                self._unsent.popleft()
        except PeerGone:
            return  # its end is told by itself
        if self._unsent_bytes > UNSENT_BYTES_MAX and stream is not None:
            stream.reset(PeerGone("the other host does not read"))
            self._loop.after(0.0, lambda: self._ended(stream, PeerGone("the other host does not read")))

    def _stream_has_room(self) -> None:
        self._write()
        if self.stream_has_room:
            self._core.has_room_again()
            self._look()

    def _came(self, stream: Stream, data: bytes) -> None:
        if stream is not self._stream:
            return
        stream.consumed(len(data))
        self._cutter.feed(data)
        try:
            while stream is self._stream and (found := self._cutter.next()) is not None:
                self._frame(*found)
        except MalformedMessage as error:
            self._refuse(stream, error)
        self._look()

    def _refuse(self, stream: Stream, error: ActorGridError) -> None:
        log.warning("the RDMA path to %s is reset: %s", self.host_id, error)
        stream.reset(error)
        self._ended(stream, error)

    def _ended(self, stream: Stream, error: ActorGridError | None) -> None:
        if stream is not self._stream or self._closed:
            return
        if error is None:
            stream.reset(PeerGone("the other side ended it"))
        self._lost(f"the TLS stream is lost: {error.message if error else 'ended'}")
        self._failures += 1
        self._begin_again()

    def _lost(self, why: str) -> None:
        self._stream = None
        self._drop_pair(why)
        self._core.stream_down()
        self._why = why
        if self._given_up is None:
            self._given_up = self._loop.after(self._limits.resume_s, self._give_up)

    def _begin_again(self) -> None:
        if self._again is not None or self._closed:
            return
        self._again = self._loop.after(min(self._again_s(), self._limits.resume_s / 4), self._again_now)

    def _again_s(self) -> float:
        """How long to wait after so many failures in a row."""
        return min(self._limits.again_max_s, self._limits.again_first_s * 2.0 ** min(self._failures - 1, 10))

    def _again_now(self) -> None:
        self._again = None
        if self._stream is None:
            self.begin()

    def _give_up(self) -> None:
        self._given_up = None
        if self._stream is None or not self._greeted:
            self._reset_messages(NO_OPENING)

    def _reset_messages(self, theirs: bytes) -> None:
        """All that was under way is lost: begin anew, from number 0, under another name."""
        self._opening = os.urandom(8) if theirs == NO_OPENING else self._opening
        self._theirs = theirs
        self._core = PeerCore(self._limits, self._on_message)
        self._on_reset()

    # -- frames

    def _frame(self, kind: int, body: bytes) -> None:
        if not self._greeted:
            if kind != PathFrame.HELLO:
                raise MalformedMessage("the first frame of an RDMA path is no Hello", found=str(kind))
            self._hello(frames.decode_hello(body))
            return
        match kind:
            case PathFrame.MESSAGE:
                self._core.message(*frames.decode_message(body))
            case PathFrame.CONSUMED:
                self._core.told_consumed(frames.decode_consumed(body))
            case PathFrame.OFFER:
                self._offered(frames.decode_details(body))
            case PathFrame.ANSWER:
                self._answered(frames.decode_details(body))
            case PathFrame.READY:
                epoch, _ = frames.decode_epoch(body)
                if self._pair is not None and epoch == self._epoch:
                    self._pair_is_ready()
            case PathFrame.DROPPED:
                self._dropped(*frames.decode_epoch(body))
            case PathFrame.HELLO:
                raise MalformedMessage("a second Hello on an RDMA path")
            case _:
                pass  # of a later version, which says nothing that matters with ours
        self._tell_room()

    def _hello(self, hello: PathHello) -> None:
        self._greeted = True
        if self._given_up is not None:
            self._given_up.cancel()
            self._given_up = None
        known = hello.theirs == self._opening
        if self._theirs not in (NO_OPENING, hello.opening):
            self._reset_messages(hello.opening)  # another process is there now, or it gave up what was under way
        self._theirs = hello.opening
        self._core.stream_up(_StreamOfPath(self), hello.arrived if known else 0)
        device = self._device()
        if hello.version != self.version:
            self._why = f"the other host speaks version {hello.version} of RDMA paths, this one {self.version}"
        elif not isinstance(device, RdmaDevice):
            self._why = device
        elif not hello.usable:
            self._why = "the other host has no RDMA, or it is off there"
        else:
            self._why = "no pair was made yet"
            if self._own_id < self.host_id:
                self._make_offer()
            self._tell_room()
            return
        if hello.version == self.version:
            self._offer_again()  # what is missing may be there later
        self._tell_room()

    # -- the pair

    def _make_offer(self) -> None:
        self._offer = None
        device = self._device()
        if self._stream is None or not self._greeted or self._pair is not None or self._closed:
            return
        if not isinstance(device, RdmaDevice):
            self._why = device
            self._offer_again()
            return
        self._epoch = (self._epoch + 1) % 2**16
        try:
            self._pair = device.pair(self)
        except PairFailed as error:
            self._why = str(error)
            self._offer_again()
            return
        self._why = "an offer is not answered yet"
        self.put(frames.encode_details(PathFrame.OFFER, self._pair.details(self._epoch)))
        epoch = self._epoch
        self._loop.after(PAIR_S, lambda: self._not_answered(epoch))

    def _not_answered(self, epoch: int) -> None:
        if epoch == self._epoch and self._pair is not None and not self._ready:
            self._drop_pair("an offer was not answered")
            self._offer_again()

    def _offer_again(self) -> None:
        if self._own_id < self.host_id and self._offer is None and not self._closed:
            self._failures += 1
            self._offer = self._loop.after(self._again_s(), self._make_offer)

    def _offered(self, details: PairDetails) -> None:
        if self._own_id < self.host_id:
            raise MalformedMessage("an offer by the host that has to wait for one")
        self._drop_pair("another pair is offered")
        self._core.pair_failed("another pair is offered")
        device, self._epoch = self._device(), details.epoch
        try:
            if not isinstance(device, RdmaDevice):
                raise PairFailed(device)
            self._pair = device.pair(self)
            self._pair.connect(details)
        except PairFailed as error:
            self._drop_pair(str(error))
            self.put(frames.encode_epoch(PathFrame.DROPPED, details.epoch, str(error)))
            return
        self._peer_details = details
        self.put(frames.encode_details(PathFrame.ANSWER, self._pair.details(details.epoch)))

    def _answered(self, details: PairDetails) -> None:
        if self._pair is None or details.epoch != self._epoch or self._ready:
            return  # of an offer that is over
        try:
            self._pair.connect(details)
        except PairFailed as error:
            self._drop_pair(str(error))
            self.put(frames.encode_epoch(PathFrame.DROPPED, details.epoch, str(error)))
            self._offer_again()
            return
        self._peer_details = details
        self.put(frames.encode_epoch(PathFrame.READY, self._epoch))
        self._pair_is_ready()

    def _pair_is_ready(self) -> None:
        pair, details = self._pair, self._peer_details
        if self._ready or pair is None or details is None:
            return
        self._ready = True
        self._failures = 0
        self.pairs += 1
        self._why = ""
        slot_bytes = min(details.slot_bytes, self._limits.slot_bytes)
        self._core.pair_up(pair, self._epoch, slot_bytes, min(details.credits, self._limits.credits))
        self._after_verbs()

    def _dropped(self, epoch: int, reason: str) -> None:
        if epoch != self._epoch or self._pair is None:
            return
        self._core.dropped_there(epoch, reason)
        self._drop_pair(f"dropped by the other host: {reason}")
        self._offer_again()

    def _drop_pair(self, why: str) -> None:
        pair, self._pair = self._pair, None
        self._ready, self._peer_details = False, None
        self._why = why
        if pair is not None:
            pair.close()
            self._loop.after(LINGER_S, pair.destroy)

    def _after_verbs(self) -> None:
        """The core may have dropped the pair by itself, as a verb failed."""
        if self._ready and self._core.carrier < CarriedBy.CHANGING:
            self._drop_pair(self._core.failure)
            self._offer_again()

    # -- the pair's events

    def received(self, slot: memoryview) -> None:
        """As ``PairEvents``. A first message may overtake READY."""
        self._pair_is_ready()
        try:
            self._core.received(slot)
        except ActorGridError as error:
            if self._stream is not None:
                self._refuse(self._stream, error)
        self._tell_room()
        self._look()

    def sent(self) -> None:
        """As ``PairEvents``."""
        self._core.sent()
        self._look()

    def fetched(self, data: bytes) -> None:
        """As ``PairEvents``."""
        try:
            self._core.fetched(data)
        except ActorGridError as error:
            if self._stream is not None:
                self._refuse(self._stream, error)
        self._look()

    def failed(self, reason: str) -> None:
        """As ``PairEvents``."""
        if self._ready:
            self._core.pair_failed(reason)
        elif self._pair is not None:
            self.put(frames.encode_epoch(PathFrame.DROPPED, self._epoch, reason))
        self._drop_pair(reason)
        self._offer_again()
        self._look()

    # -- time and room

    def _look(self) -> None:
        self._after_verbs()
        if self._due is None and self._core.is_due and not self._closed:
            self._due = self._loop.after(self._limits.report_s, self._flush)

    def _flush(self) -> None:
        self._due = None
        self._core.flush()
        self._look()

    def _tell_room(self) -> None:
        if not self._in_room and self._core.has_room:
            self._in_room = True
            try:
                self._on_room()
            finally:
                self._in_room = False


class _StreamOfPath:
    """The stream as the core sees it."""

    __slots__ = ("_path",)

    def __init__(self, path: RdmaPath) -> None:
        self._path = path

    @property
    def has_room(self) -> bool:
        return self._path.stream_has_room

    def put(self, frame: bytes) -> None:
        self._path.put(frame)
