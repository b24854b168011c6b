"""Messages between voters that are larger than a frame: each goes as a stream of its own, whole or not at all.

Streams have a link of their own between two hosts and wait for their reader, so that heartbeats pass meanwhile: a slow
link takes longer for a large entry, and does not cost the leader its leadership.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from actorgrid.errors import ActorGridError, FrameTooLarge, MailboxFull, MalformedMessage
from actorgrid.sizes import RAFT_MESSAGE_BYTES_MAX
from actorgrid.transports.peer.calls import Stream

TARGET = "raft"
QUEUED_BYTES_MAX = 2 * RAFT_MESSAGE_BYTES_MAX
"""Of messages that wait for or are on their way to one host; then MailboxFull."""
ARRIVING_BYTES_MAX = 4 * RAFT_MESSAGE_BYTES_MAX
"""Of messages on their way here, by what they said of themselves; then the stream is reset with MailboxFull."""
_LENGTH = struct.Struct(">Q")


@dataclass(slots=True)
class _Message:
    kind: str
    body: bytes
    sent: int = 0


class LargeMessages:
    """Large messages on their way, to and from other hosts.

    *on_message*: (host id, body), for one that came whole; *on_lost*: (host id), for one of ours that did not arrive.
    """

    def __init__(
        self,
        open_stream: Callable[[str, str, bytes], Stream],
        on_message: Callable[[str, bytes], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self._open_stream, self._on_message, self._on_lost = open_stream, on_message, on_lost
        self._queues: dict[str, deque[_Message]] = {}  # the first of each is on its way
        self._arriving: dict[str, _Arriving] = {}
        self.sent_total = 0
        self.received_total = 0
        self.lost_total = 0

    # -- ours

    def send(self, host_id: str, kind: str, body: bytes) -> None:
        """Bring *body* to the host after those before it.

        Nothing is done for an append while another one waits or is on its way: a leader repeats it until it is
        answered, and a copy behind each would never end. Raises FrameTooLarge and MailboxFull.
        """
        if len(body) > RAFT_MESSAGE_BYTES_MAX:
            raise FrameTooLarge(
                "a message to another voter is too large", asked=f"{len(body)} bytes", found=f"{RAFT_MESSAGE_BYTES_MAX}"
            )
        queue = self._queues.setdefault(host_id, deque())
        if kind == "append" and any(message.kind == kind for message in queue):
            return
        if sum(len(message.body) for message in queue) + len(body) > QUEUED_BYTES_MAX:
            raise MailboxFull(f"too much waits to be sent to {host_id}", found=f"{QUEUED_BYTES_MAX} bytes")
        queue.append(_Message(kind, body))
        if len(queue) == 1:
            self._begin(host_id)

    def _begin(self, host_id: str) -> None:
        message = self._queues[host_id][0]
        try:
            stream = self._open_stream(host_id, TARGET, _LENGTH.pack(len(message.body)))
        except ActorGridError:
            self._over(host_id, message, lost=True)
            return

        def write() -> None:
            try:
                message.sent += stream.write(memoryview(message.body)[message.sent :])
            except ActorGridError:
                return  # it is lost: on_end says so
            if message.sent == len(message.body):
                stream.end()

        def ended(error: ActorGridError | None) -> None:
            # Whoever reads it ends its own direction once it has it all.
            self._over(host_id, message, lost=error is not None or message.sent < len(message.body))

        stream.attach(lambda _data: None, ended, write)
        write()

    def _over(self, host_id: str, message: _Message, lost: bool) -> None:
        queue = self._queues.get(host_id)
        if not queue or queue[0] is not message:
            return  # told before: a stream may end, and then be lost
        queue.popleft()
        if queue:
            self._begin(host_id)
        else:
            self._queues.pop(host_id, None)
        self.sent_total += not lost
        self.lost_total += lost
        if lost:
            self._on_lost(host_id)

    # -- theirs

    def take(self, stream: Stream) -> None:
        """Receive the message of a *stream* that another host opened.

        Raises MalformedMessage, FrameTooLarge or MailboxFull: then it is reset.
        """
        if stream.target != TARGET or len(stream.head) != _LENGTH.size:
            raise MalformedMessage("no message of Raft begins so", found=stream.target[:40])
        (length,) = _LENGTH.unpack(stream.head)
        if length > RAFT_MESSAGE_BYTES_MAX:
            raise FrameTooLarge(
                "a message of another voter is too large", asked=f"{length} bytes", found=f"{RAFT_MESSAGE_BYTES_MAX}"
            )
        # A host sends one after the other: one more means that it has given up the one before.
        before = self._arriving.pop(stream.host_id, None)
        if before is not None:
            before.stream.reset(MalformedMessage("another message began"))
        if sum(each.length for each in self._arriving.values()) + length > ARRIVING_BYTES_MAX:
            raise MailboxFull("too much is on its way to this host", hint="it is sent again")
        arriving = self._arriving[stream.host_id] = _Arriving(stream, length)

        def came(data: bytes) -> None:
            if len(arriving.body) + len(data) > length:
                self._drop(arriving)
                raise MalformedMessage("a message is longer than it said", found=f"{length} bytes")
            arriving.body += data
            stream.consumed(len(data))

        def ended(error: ActorGridError | None) -> None:
            if not self._drop(arriving):
                return
            if error is None and len(arriving.body) == length:
                stream.end()
                self.received_total += 1
                self._on_message(stream.host_id, bytes(arriving.body))
            elif error is None:
                stream.reset(MalformedMessage("a message is shorter than it said", found=f"{len(arriving.body)} bytes"))

        stream.attach(came, ended)

    def _drop(self, arriving: _Arriving) -> bool:
        known = self._arriving.get(arriving.stream.host_id) is arriving
        if known:
            del self._arriving[arriving.stream.host_id]
        return known


class _Arriving:
    __slots__ = ("body", "length", "stream")

    def __init__(self, stream: Stream, length: int) -> None:
        self.stream, self.length, self.body = stream, length, bytearray()
