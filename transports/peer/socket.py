"""One link on one socket: carries a PeerLink's bytes.

Memory beyond the link's own: what one ``bytes_to_send`` gave and the kernel has not taken. The kernel is told to keep
little of what is not on the wire yet (TCP_NOTSENT_LOWAT), or control frames would wait behind streams in its buffer.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

from actorgrid.errors import MalformedMessage

from .calls import NetLoop
from .end import Handlers, PeerEnd
from .limits import Refusal
from .link import LinkUp, PeerLink
from .session import LinkDown, SessionEvent
from .streams import StreamReceived
from .tls import TlsPipe

RECEIVE_BYTES = 256 * 1024
"""Many TLS records at once: what one read has of a stream is handed on together."""
RECEIVES_A_TURN = 2
"""Then other sockets have their turn."""
NOT_SENT_BYTES = 128 * 1024


class PeerSocket(PeerEnd):
    """A link on a socket: sends and receives its bytes. *address* is the other end's."""

    def __init__(
        self,
        loop: NetLoop,
        connection: socket.socket,
        link: PeerLink,
        address: str,
        handlers: Handlers,
        on_up: Callable[[PeerEnd], None],
        on_down: Callable[[PeerEnd, LinkDown], None],
    ) -> None:
        super().__init__(link.session, handlers, on_up, on_down)
        self.dialled = link.dialled
        self.address = address
        self.link = link
        self._loop = loop
        self._socket = connection
        self._unsent = memoryview(b"")
        self._closed = False
        self._busy = False
        self._given_away = False
        self._watches_writable: bool | None = None
        self._came: dict[int, list[bytes]] = {}  # of streams, and not handed on yet: no more than their windows
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, NOT_SENT_BYTES)
        self._watch(writable=link.dialled)  # a dialled one is writable when it is connected, or cannot be

    @property
    def held_bytes(self) -> int:
        """As ``PeerLink.held_bytes``."""
        return self.link.held_bytes

    def tick(self) -> None:
        """Check timeouts; called every ``tick_s``."""
        self.link.tick(self._loop.monotonic())
        if self.link.restless:
            self._go_on()

    def close(self, refusal: Refusal, message: str) -> None:
        """Close the link at once."""
        self.link.close(refusal, message)
        self._go_on()

    def give_away(self) -> tuple[socket.socket, TlsPipe, bytes]:
        """Give the socket, its TLS, and what is to be sent first, to whoever goes on with it; this link is over then.

        Raises MalformedMessage, and the socket is closed then.
        """
        self._closed = self._given_away = True
        self._loop.unwatch(self._socket.fileno())
        try:
            tls = self.link.give_away()
        except MalformedMessage:
            self._socket.close()
            raise
        return self._socket, tls, bytes(self._unsent) + tls.take()

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
        """Handle events and send what is due, until neither is left or the kernel takes no more."""
        if self._busy or self._closed:
            return
        self._busy = True
        try:
            while True:
                while (event := self.link.next_event()) is not None:
                    if isinstance(event, LinkDown):
                        self._hand_on()
                        self._leave()
                        self._lost(event)
                        return
                    if isinstance(event, LinkUp):
                        self.lane, self.fingerprint = event.lane, event.fingerprint
                        self._on_up(self)
                        if self._given_away:
                            return
                    else:
                        self._happened(event)
                if self._came:
                    self._hand_on()
                if not self._send():
                    break
        finally:
            self._busy = False

    def _happened(self, event: SessionEvent) -> None:
        # Order is within a stream alone, but whoever is told of anything else is told after all that came before.
        if self._came and not isinstance(event, StreamReceived):
            self._hand_on()
        super()._happened(event)

    def _received(self, stream_id: int, data: bytes) -> None:
        self._came.setdefault(stream_id, []).append(data)

    def _hand_on(self) -> None:
        """Hand on what came of streams, that of each in one piece: whoever writes it on does so in one go."""
        came, self._came = self._came, {}
        for stream_id, pieces in came.items():
            super()._received(stream_id, pieces[0] if len(pieces) == 1 else b"".join(pieces))

    def _send(self) -> bool:
        """Give the kernel what it takes; whether it took a whole load and there is more to do."""
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
                return self.link.restless
        self._watch(writable=False)
        return False

    def _leave(self) -> None:
        """Send the last bytes if the kernel takes them, and close the socket."""
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
