"""The streams of one link: who may send how much, so that a slow reader costs its sender and itself a bounded amount.

Credit-based flow control as in HTTP/2 (RFC 9113, section 5.2), but for streams alone: the reader's side grants bytes, a
writer sends no more than it was granted, and more is granted as the reader consumes, a quarter of the window at a time.

Frames in, events and frames out; no socket and no clock. What to send comes from ``urgent`` (grants, resets: they
overtake) and ``next_frame`` (data and ends, one stream after the other).
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from actorgrid.errors import ActorGridError, MailboxFull, MalformedMessage, PeerGone

from .frames import (
    CHUNK_BYTES_MAX,
    StreamCredit,
    StreamData,
    StreamEnd,
    StreamOpen,
    StreamReset,
    decode_error,
    encode_error,
)
from .limits import PeerLimits

PIECE_BYTES = 64 * 1024
"""What one stream sends before the next has its turn."""
WRITABLE_BYTES_MIN = 32 * 1024
WINDOW_MAX = 2**31


class StreamOpened(NamedTuple):
    """The other side opened a stream."""

    id: int
    target: str
    head: bytes


class StreamReceived(NamedTuple):
    """A piece of a stream came. Say ``consumed`` when it is dealt with, or the writer stops at the window."""

    id: int
    data: bytes


class StreamWritable(NamedTuple):
    """A stream that did not take all that was written takes more now."""

    id: int


class StreamEnded(NamedTuple):
    """The other side writes no more; with an error, the stream is over both ways."""

    id: int
    error: ActorGridError | None


class StreamDone(NamedTuple):
    """Both sides have ended a stream, ours after theirs: nothing more comes of it or goes to it."""

    id: int


StreamEvent = StreamOpened | StreamReceived | StreamWritable | StreamEnded | StreamDone


class _Stream:
    __slots__ = (
        "compress",
        "consumed",
        "credit",
        "end_wanted",
        "ended_by_them",
        "ended_by_us",
        "granted",
        "queue",
        "short",
        "unsent",
    )

    def __init__(self, credit: int, granted: int, compress: bool) -> None:
        self.credit = credit  # what they take, beyond what was sent
        self.granted = granted  # what we take, beyond what came
        self.consumed = 0  # and not granted again yet
        self.compress = compress
        self.queue: deque[bytes] = deque()
        self.unsent = 0
        self.short = False
        self.end_wanted = self.ended_by_us = self.ended_by_them = False


class Streams:
    """The streams of one link.

    *first_id*: 1 for the side that dialled, 2 for the other; ours count up by two from there.
    """

    def __init__(self, first_id: int, limits: PeerLimits) -> None:
        self._limits = limits
        self._streams: dict[int, _Stream] = {}
        self._next_id = first_id
        self._their_parity = 1 - first_id % 2
        self._their_last = 0
        self._grants: dict[int, int] = {}
        self._urgent: deque[StreamReset] = deque()
        self._turns: deque[int] = deque()  # streams with something to send, each once
        self.events: deque[StreamEvent] = deque()

    def __len__(self) -> int:
        return len(self._streams)

    def __contains__(self, stream_id: object) -> bool:
        return stream_id in self._streams

    @property
    def unsent_bytes(self) -> int:
        """Bytes written and not sent yet."""
        return sum(stream.unsent for stream in self._streams.values())

    @property
    def unsent_resets(self) -> int:
        """Resets not sent yet: each costs the other side a frame, so that one that does not read could pile them up."""
        return len(self._urgent)

    # -- for the owner

    def open(self, target: str, head: bytes, compress: bool) -> StreamOpen:
        """Begin a stream; gives the frame to send. Raises MailboxFull."""
        if sum(stream_id % 2 != self._their_parity for stream_id in self._streams) >= self._limits.streams_max:
            raise MailboxFull(
                f"{self._limits.streams_max} streams to this host are open", hint="end one, or open it later"
            )
        stream_id, self._next_id = self._next_id, self._next_id + 2
        window = self._limits.stream_window_bytes
        self._streams[stream_id] = stream = _Stream(0, window, compress)
        stream.short = True  # until the other side grants, nothing can be written: tell when it can
        return StreamOpen(stream_id, target, head, window, compress)

    def capacity(self, stream_id: int) -> int:
        """How many bytes ``write`` takes now; 0 when the stream is over."""
        stream = self._streams.get(stream_id)
        if stream is None or stream.end_wanted:
            return 0
        return max(0, min(stream.credit, self._limits.stream_unsent_bytes) - stream.unsent)

    def write(self, stream_id: int, data: bytes | bytearray | memoryview) -> int:
        """Take as much of *data* as there is room for; gives how much. StreamWritable follows when it was not all.

        Raises PeerGone when the stream is over, or was ended by us.
        """
        stream = self._streams.get(stream_id)
        if stream is None or stream.end_wanted:
            raise PeerGone("the stream is over", asked=f"write {len(data)} bytes")
        taken = min(len(data), self.capacity(stream_id))
        stream.short = taken < len(data)
        if taken:
            # Copied: the caller may write into its buffer as soon as this returns.
            with memoryview(data) as view:
                for start in range(0, taken, PIECE_BYTES):
                    stream.queue.append(bytes(view[start : min(start + PIECE_BYTES, taken)]))
            if not stream.unsent:
                self._turns.append(stream_id)
            stream.unsent += taken
        return taken

    def end(self, stream_id: int) -> None:
        """Write no more; what was written still goes. The other direction goes on. Harmless when it is over."""
        stream = self._streams.get(stream_id)
        if stream is not None and not stream.end_wanted:
            stream.end_wanted = True
            if not stream.unsent:
                self._turns.append(stream_id)

    def reset(self, stream_id: int, error: ActorGridError) -> None:
        """End both ways at once; the other side is told *error*. Harmless when it is over."""
        if self._forget(stream_id):
            self._urgent.append(StreamReset(stream_id, encode_error(error)))

    def consumed(self, stream_id: int, count: int) -> None:
        """Say that the reader has dealt with *count* bytes: as many more may come."""
        stream = self._streams.get(stream_id)
        if stream is None or stream.ended_by_them:
            return
        window = self._limits.stream_window_bytes
        # No more than came: a reader that counts twice must not make the other side's window larger than it is.
        stream.consumed = min(stream.consumed + count, window - stream.granted)
        if stream.consumed * 4 >= window:
            self._grants[stream_id] = self._grants.get(stream_id, 0) + stream.consumed
            stream.granted += stream.consumed
            stream.consumed = 0

    # -- out

    def urgent(self) -> StreamReset | StreamCredit | None:
        """The next frame that overtakes everything else; ``None`` without one."""
        if self._urgent:
            return self._urgent.popleft()
        if self._grants:
            stream_id = next(iter(self._grants))
            return StreamCredit(stream_id, self._grants.pop(stream_id))
        return None

    @property
    def waiting(self) -> bool:
        """Whether ``next_frame`` has something."""
        return bool(self._turns)

    @property
    def restless(self) -> bool:
        """Whether there is a frame to send: an end is one, though it is no byte of ``unsent_bytes``."""
        return bool(self._turns or self._urgent or self._grants)

    def next_frame(self) -> tuple[StreamData | StreamEnd, bool] | None:
        """The next piece or end, of the streams in turn, and whether it may be compressed."""
        while self._turns:
            stream_id = self._turns.popleft()
            stream = self._streams.get(stream_id)
            if stream is None:
                continue
            if stream.queue:
                piece = stream.queue.popleft()
                stream.unsent -= len(piece)
                stream.credit -= len(piece)
                if stream.queue or stream.end_wanted:
                    self._turns.append(stream_id)
                self._tell_writable(stream_id, stream)
                return StreamData(stream_id, piece), stream.compress
            stream.ended_by_us = True
            if stream.ended_by_them:
                self._forget(stream_id)
                self.events.append(StreamDone(stream_id))
            return StreamEnd(stream_id), False
        return None

    def _tell_writable(self, stream_id: int, stream: _Stream) -> None:
        free = self.capacity(stream_id) if stream.short else 0
        if free >= WRITABLE_BYTES_MIN or (free and not stream.unsent):
            stream.short = False
            self.events.append(StreamWritable(stream_id))

    # -- in

    def take(self, frame: StreamOpen | StreamData | StreamCredit | StreamEnd | StreamReset) -> None:
        """Take a frame of the other side; what follows is in ``events``. Raises MalformedMessage.

        Frames of a stream that is over are dropped: they were under way when it was reset.
        """
        if isinstance(frame, StreamOpen):
            self._take_open(frame)
            return
        stream = self._streams.get(frame.id)
        if stream is None:
            last = self._their_last if frame.id % 2 == self._their_parity else self._next_id - 2
            if frame.id > last:
                raise MalformedMessage("a stream that nobody opened", found=f"{type(frame).__name__} {frame.id}")
        elif isinstance(frame, StreamData):
            self._take_data(frame, stream)
        elif isinstance(frame, StreamCredit):
            if not 0 < frame.more <= WINDOW_MAX - stream.credit:
                raise MalformedMessage("a grant that cannot be", found=str(frame.more))
            stream.credit += frame.more
            self._tell_writable(frame.id, stream)
        elif isinstance(frame, StreamEnd):
            if stream.ended_by_them:
                raise MalformedMessage("a stream was ended twice by one side")
            stream.ended_by_them = True
            if stream.ended_by_us:
                self._forget(frame.id)
            self.events.append(StreamEnded(frame.id, None))
        else:
            error = decode_error(frame.error)
            self._forget(frame.id)
            self.events.append(StreamEnded(frame.id, error))

    def _take_open(self, frame: StreamOpen) -> None:
        if frame.id % 2 != self._their_parity or frame.id <= self._their_last or frame.window > WINDOW_MAX:
            raise MalformedMessage("a stream is opened with a number or window that cannot be", found=str(frame.id))
        self._their_last = frame.id
        if sum(stream_id % 2 == self._their_parity for stream_id in self._streams) >= self._limits.streams_max:
            error = MailboxFull(f"this host has {self._limits.streams_max} streams of yours", hint="open it later")
            self._urgent.append(StreamReset(frame.id, encode_error(error)))
            return
        window = self._limits.stream_window_bytes
        self._streams[frame.id] = _Stream(frame.window, window, frame.compress)
        self._grants[frame.id] = window
        self.events.append(StreamOpened(frame.id, frame.target, frame.head))

    def _take_data(self, frame: StreamData, stream: _Stream) -> None:
        if stream.ended_by_them or not frame.data or len(frame.data) > min(stream.granted, CHUNK_BYTES_MAX):
            raise MalformedMessage(
                "a stream holds more than was granted, or more after its end",
                asked=f"{stream.granted} bytes",
                found=f"{len(frame.data)} bytes",
            )
        stream.granted -= len(frame.data)
        self.events.append(StreamReceived(frame.id, frame.data))

    def _forget(self, stream_id: int) -> bool:
        self._grants.pop(stream_id, None)
        return self._streams.pop(stream_id, None) is not None
