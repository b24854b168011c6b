"""One end of a link to another host: gives what comes to the calls, requests and streams it is for.

It owns the answers awaited, the requests being answered and the streams of one link, and whatever carries the link's
bytes is a subclass: a socket (``PeerSocket``) or memory (``FaultyEnd``).
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable

from actorgrid.errors import ActorGridError

from .calls import Bytes, IncomingCall, OnCall, OnCast, OnStream, PendingAnswer, Stream
from .limits import Refusal
from .session import Called, Cancelled, CastReceived, LinkDown, PeerSession, Replied, SessionEvent
from .streams import StreamDone, StreamEnded, StreamOpened, StreamReceived, StreamWritable

log = logging.getLogger("actorgrid.links")

Handlers = tuple[OnCall, OnCast, OnStream]


class PeerEnd(ABC):
    """One end of a link; see the module. *on_up* and *on_down* are the net's."""

    def __init__(
        self,
        session: PeerSession,
        handlers: Handlers,
        on_up: Callable[[PeerEnd], None],
        on_down: Callable[[PeerEnd, LinkDown], None],
    ) -> None:
        self.session = session
        self.lane = ""
        self.dialled = False
        self.fingerprint = ""
        self.bytes_in = self.bytes_out = 0
        self._on_call, self._on_cast, self._on_stream = handlers
        self._on_up, self._on_down = on_up, on_down
        self._answers: dict[int, PendingAnswer] = {}
        self._incoming: dict[int, IncomingCall] = {}
        self._streams: dict[int, Stream] = {}

    # -- for the net

    @property
    def host_id(self) -> str:
        """The id of the other side's host, once it is proven."""
        return self.session.host_id

    @property
    def usable(self) -> bool:
        """Whether calls, casts and streams may begin on this link."""
        return self.session.usable and not self.session.retiring

    @property
    def calls(self) -> int:
        """The number of our calls that are not answered yet."""
        return len(self._answers)

    @property
    def streams(self) -> int:
        """The number of open streams."""
        return len(self._streams)

    @property
    def held_bytes(self) -> int:
        """Bytes held of the other side: unfinished frames and unanswered requests."""
        return self.session.served_bytes

    def retire(self) -> None:
        """Begin nothing new; the link closes when nothing is under way."""
        self.session.retire()
        self._go_on()

    @abstractmethod
    def tick(self) -> None:
        """Check timeouts; called every ``tick_s``."""

    @abstractmethod
    def close(self, refusal: Refusal, message: str) -> None:
        """Close the link at once."""

    @abstractmethod
    def _go_on(self) -> None:
        """Handle the link's events and send what is due. What handlers begin meanwhile is sent with it."""

    # -- what begins here

    def call(self, target: str, body: bytes, answer: PendingAnswer) -> None:
        """Send a call, whose answer goes to *answer*.

        Raises MailboxFull, FrameTooLarge or PeerGone; *answer* stays as it is then.
        """
        call_id = self.session.call(target, body)
        self._answers[call_id] = answer
        answer.when_cancelled(lambda: self._cancel(call_id))
        self._go_on()

    def cast(self, target: str, body: bytes) -> None:
        """Send a cast. Raises MailboxFull, FrameTooLarge or PeerGone."""
        self.session.cast(target, body)
        self._go_on()

    def open(self, stream: Stream, compress: bool) -> None:
        """Begin *stream*. Raises MailboxFull, FrameTooLarge or PeerGone, and leaves it alone then."""
        stream_id = self.session.open_stream(stream.target, stream.head, compress)
        self._streams[stream_id] = stream
        stream.bind(self, stream_id)
        self._go_on()

    def _cancel(self, call_id: int) -> None:
        if self._answers.pop(call_id, None) is not None:
            self.session.cancel(call_id)
            self._go_on()

    # -- the port of streams

    def write_stream(self, stream_id: int, data: Bytes) -> int:
        """As ``Stream.write``."""
        taken = self.session.write(stream_id, data)
        self._go_on()
        return taken

    def stream_capacity(self, stream_id: int) -> int:
        """As ``Stream.capacity``."""
        return self.session.capacity(stream_id)

    def stream_consumed(self, stream_id: int, count: int) -> None:
        """As ``Stream.consumed``."""
        self.session.consumed(stream_id, count)
        self._go_on()

    def end_stream(self, stream_id: int) -> None:
        """As ``Stream.end``."""
        self.session.end_stream(stream_id)
        self._go_on()

    def reset_stream(self, stream_id: int, error: ActorGridError) -> None:
        """As ``Stream.reset``."""
        self._streams.pop(stream_id, None)
        self.session.reset_stream(stream_id, error)
        self._go_on()

    # -- events

    def _happened(self, event: SessionEvent) -> None:
        match event:
            case Replied(call_id, body, error):
                answer = self._answers.pop(call_id, None)
                if answer is not None and error is not None:
                    answer.fail(error)
                elif answer is not None:
                    answer.set(body)
            case Called(call_id, target, body):
                self._called(call_id, target, body)
            case CastReceived(target, body):
                self._cast_came(target, body)
            case StreamReceived(stream_id, data):
                self._received(stream_id, data)
            case StreamWritable(stream_id):
                self._tell(stream_id, lambda stream: stream.capacity_freed())
            case StreamOpened(stream_id, target, head):
                self._opened(stream_id, target, head)
            case StreamEnded(stream_id, error):
                if (stream := self._streams.get(stream_id)) is not None:
                    if not self.session.has_stream(stream_id):
                        del self._streams[stream_id]
                    stream.ended(error)
            case StreamDone(stream_id):
                self._streams.pop(stream_id, None)
            case Cancelled(call_id):
                if (call := self._incoming.pop(call_id, None)) is not None:
                    call.cancel()

    def _received(self, stream_id: int, data: bytes) -> None:
        """Hand on what came of a stream."""
        self._tell(stream_id, lambda stream: stream.received(data))

    def _called(self, call_id: int, target: str, body: bytes) -> None:
        def answer(found: bytes | ActorGridError) -> None:
            if isinstance(found, ActorGridError):
                self.session.fail(call_id, found)
            else:
                self.session.reply(call_id, found)
            self._incoming.pop(call_id, None)
            self._go_on()

        call = self._incoming[call_id] = IncomingCall(self.host_id, target, body, answer)
        try:
            self._on_call(call)
        except ActorGridError as error:
            call.fail(error)

    def _cast_came(self, target: str, body: bytes) -> None:
        try:
            self._on_cast(self.host_id, target, body)
        except ActorGridError as error:  # nobody waits for an answer that could say so
            log.info("a cast of %s to %s is refused: %s", self.host_id, target, error)

    def _tell(self, stream_id: int, what: Callable[[Stream], None]) -> None:
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        try:
            what(stream)
        except ActorGridError as error:
            stream.reset(error)

    def _opened(self, stream_id: int, target: str, head: bytes) -> None:
        stream = self._streams[stream_id] = Stream(self.host_id, target, head)
        stream.bind(self, stream_id)
        try:
            self._on_stream(stream)
        except ActorGridError as error:
            stream.reset(error)

    def _lost(self, event: LinkDown) -> None:
        answers, self._answers = self._answers, {}
        incoming, self._incoming = self._incoming, {}
        streams, self._streams = self._streams, {}
        self._on_down(self, event)
        for answer in answers.values():
            answer.fail(event.error)
        for call in incoming.values():
            call.cancel()
        for stream in streams.values():
            stream.ended(event.error)


class SessionEnd(PeerEnd):
    """An end whose session speaks to its carrier itself, without a link's TLS between."""

    _busy = _ended = False

    def _go_on(self) -> None:
        if self._busy or self._ended:
            return
        self._busy = True
        try:
            while self.session.events or self._send():
                while self.session.events:
                    self._happened(self.session.events.popleft())
        finally:
            self._busy = False
        if self.session.over is not None:
            self._ended = True
            self._leave(self.session.over)
            self._lost(self.session.over)

    @abstractmethod
    def _send(self) -> bool:
        """Send the next bytes; whether there were any."""

    def _leave(self, over: LinkDown) -> None:
        """Say goodbye, where the carrier takes words."""
