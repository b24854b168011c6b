"""One link on one socket: carries a PeerLink's bytes, and its events to the calls and streams they are for.

Memory beyond the link's own: what one ``bytes_to_send`` gave and the kernel has not taken. The kernel is told to keep
little of what is not on the wire yet (TCP_NOTSENT_LOWAT), or control frames would wait behind streams in its buffer.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

from actorgrid.errors import ActorGridError

from .peer_calls import Answer, Bytes, IncomingCall, Loop, OnCall, OnCast, OnStream, Stream
from .peer_limits import Refusal
from .peer_link import Called, Cancelled, CastReceived, Down, Event, PeerLink, Replied, Up
from .peer_streams import StreamDone, StreamEnded, StreamOpened, StreamReceived, StreamRoom

RECEIVE_BYTES = 64 * 1024
RECEIVES_A_TURN = 4
"""Then other sockets have their turn."""
NOT_SENT_BYTES = 128 * 1024


class PeerSocket:
    """See the module. *on_up* and *on_down* are the net's; *address* is the other end's."""

    def __init__(
        self,
        loop: Loop,
        connection: socket.socket,
        link: PeerLink,
        address: str,
        handlers: tuple[OnCall, OnCast, OnStream],
        on_up: Callable[[PeerSocket, Up], None],
        on_down: Callable[[PeerSocket, Down], None],
    ) -> None:
        self.link = link
        self.address = address
        self.up_since_s: float | None = None
        self.bytes_in = self.bytes_out = 0
        self._loop = loop
        self._socket = connection
        self._on_call, self._on_cast, self._on_stream = handlers
        self._on_up, self._on_down = on_up, on_down
        self._unsent = memoryview(b"")
        self._closed = False
        self._busy = False
        self._watches_writable: bool | None = None
        self._answers: dict[int, Answer] = {}
        self._incoming: dict[int, IncomingCall] = {}
        self._streams: dict[int, Stream] = {}
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, NOT_SENT_BYTES)
        self._watch(writable=link.dialled)  # a dialled one is writable when it is connected, or cannot be

    # -- state, for the net

    @property
    def usable(self) -> bool:
        """Whether something new may begin here."""
        return self.link.is_up and not self.link.retiring

    @property
    def calls(self) -> int:
        """How many calls of ours are not answered."""
        return len(self._answers)

    @property
    def streams(self) -> int:
        """How many streams there are."""
        return len(self._streams)

    def tick(self) -> None:
        """Some time has passed."""
        self.link.tick(self._loop.monotonic())
        self.link.end_if_done()
        self._go_on()

    def retire(self) -> None:
        """Begin nothing new; it closes when nothing is under way."""
        self.link.retire()
        self._go_on()

    def close(self, refusal: Refusal, message: str) -> None:
        """End it now."""
        self.link.close(refusal, message)
        self._go_on()

    # -- what begins here

    def call(self, target: str, body: bytes, answer: Answer) -> None:
        """Ask. Raises MailboxFull, FrameTooLarge or PeerGone, and leaves *answer* alone then."""
        call_id = self.link.call(target, body)
        self._answers[call_id] = answer
        answer.when_cancelled(lambda: self._cancel(call_id))
        self._go_on()

    def cast(self, target: str, body: bytes) -> None:
        """Tell. Raises MailboxFull, FrameTooLarge or PeerGone."""
        self.link.cast(target, body)
        self._go_on()

    def open(self, stream: Stream, compress: bool) -> None:
        """Begin *stream*. Raises MailboxFull, FrameTooLarge or PeerGone, and leaves it alone then."""
        stream_id = self.link.open_stream(stream.target, stream.head, compress)
        self._streams[stream_id] = stream
        stream.bind(self, stream_id)
        self._go_on()

    def _cancel(self, call_id: int) -> None:
        if self._answers.pop(call_id, None) is not None:
            self.link.cancel(call_id)
            self._go_on()

    # -- the port of streams

    def write_stream(self, stream_id: int, data: Bytes) -> int:
        """As ``Stream.write``."""
        taken = self.link.write(stream_id, data)
        self._go_on()
        return taken

    def stream_room(self, stream_id: int) -> int:
        """As ``Stream.room``."""
        return self.link.room(stream_id)

    def stream_consumed(self, stream_id: int, count: int) -> None:
        """As ``Stream.consumed``."""
        self.link.consumed(stream_id, count)
        self._go_on()

    def end_stream(self, stream_id: int) -> None:
        """As ``Stream.end``."""
        self.link.end_stream(stream_id)
        self._go_on()

    def reset_stream(self, stream_id: int, error: ActorGridError) -> None:
        """As ``Stream.reset``."""
        self._streams.pop(stream_id, None)
        self.link.reset_stream(stream_id, error)
        self._go_on()

    # -- bytes

    def _watch(self, writable: bool) -> None:
        if self._watches_writable is not writable:
            self._watches_writable = writable
            self._loop.watch(self._socket.fileno(), self._readable, self._writable if writable else None)

    def _readable(self) -> None:
        for _ in range(RECEIVES_A_TURN):
            if self._closed:
                return
            try:
                data = self._socket.recv(RECEIVE_BYTES)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                data = b""
            if data:
                self.bytes_in += len(data)
                self.link.receive(data, self._loop.monotonic())
            else:
                self.link.end_of_stream()
            self._go_on()
            if len(data) < RECEIVE_BYTES:
                return

    def _writable(self) -> None:
        self._go_on()

    def _go_on(self) -> None:
        """Deal with what happened and send what there is to send, until neither is left or the kernel takes no more.

        What handlers begin meanwhile comes through here too; it is sent with the rest.
        """
        if self._busy or self._closed:
            return
        self._busy = True
        try:
            while True:
                while (event := self.link.next_event()) is not None:
                    self._happened(event)
                    if isinstance(event, Down):
                        return
                if not self._send():
                    break
        finally:
            self._busy = False

    def _send(self) -> bool:
        """Give the kernel what it takes; whether it took a whole load and there may be more."""
        if not self._unsent:
            self._unsent = memoryview(self.link.bytes_to_send())
        while self._unsent:
            try:
                sent = self._socket.send(self._unsent)
            except (BlockingIOError, InterruptedError):
                self._watch(writable=True)
                return False
            except OSError:
                self._unsent = memoryview(b"")
                self.link.end_of_stream()
                return True
            self.bytes_out += sent
            self._unsent = self._unsent[sent:]
            if not self._unsent:
                self._watch(writable=False)
                return True
        self._watch(writable=False)
        return False

    def _leave(self) -> None:
        """Send the last bytes if the kernel takes them, and close the socket."""
        if self._closed:
            return
        self._closed = True
        self._loop.unwatch(self._socket.fileno())
        last = bytes(self._unsent) + self.link.bytes_to_send()
        try:
            if last:
                self.bytes_out += self._socket.send(last)
            # What came and was not read would have the kernel reset the connection, and our last words with it.
            for _ in range(RECEIVES_A_TURN):
                if not self._socket.recv(RECEIVE_BYTES):
                    break
        except OSError:
            pass
        self._socket.close()

    # -- events

    def _happened(self, event: Event) -> None:
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
                self._on_cast(self.link.host_id, target, body)
            case StreamReceived(stream_id, data):
                if (stream := self._streams.get(stream_id)) is not None:
                    stream.received(data)
            case StreamRoom(stream_id):
                if (stream := self._streams.get(stream_id)) is not None:
                    stream.has_room()
            case StreamOpened(stream_id, target, head):
                self._opened(stream_id, target, head)
            case StreamEnded(stream_id, error):
                if (stream := self._streams.get(stream_id)) is not None:
                    if not self.link.has_stream(stream_id):
                        del self._streams[stream_id]
                    stream.ended(error)
            case StreamDone(stream_id):
                self._streams.pop(stream_id, None)
            case Cancelled(call_id):
                if (call := self._incoming.pop(call_id, None)) is not None:
                    call.cancel()
            case Up():
                self.up_since_s = self._loop.monotonic()
                self._on_up(self, event)
            case Down():
                self._lost(event)

    def _called(self, call_id: int, target: str, body: bytes) -> None:
        def answer(found: bytes | ActorGridError) -> None:
            if isinstance(found, ActorGridError):
                self.link.fail(call_id, found)
            else:
                self.link.reply(call_id, found)
            self._incoming.pop(call_id, None)
            self._go_on()

        call = self._incoming[call_id] = IncomingCall(self.link.host_id, target, body, answer)
        try:
            self._on_call(call)
        except ActorGridError as error:
            call.fail(error)

    def _opened(self, stream_id: int, target: str, head: bytes) -> None:
        stream = self._streams[stream_id] = Stream(self.link.host_id, target, head)
        stream.bind(self, stream_id)
        try:
            self._on_stream(stream)
        except ActorGridError as error:
            stream.reset(error)

    def _lost(self, event: Down) -> None:
        self._leave()
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
