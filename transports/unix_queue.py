"""What waits to be sent to one peer: a stream of bytes in chunks, and large messages between them, in order.

Small frames are written one behind the other into chunks that are mapped for it (mmap(2)) and unmapped when they are
sent. As objects of their own they left holes in the heap between short-lived blocks of nearly their size: 128 MiB of
10 KB messages took up to 238 MiB, most of which the process never gave back.

Bound: none here (``unix_outgoing`` has it). Memory beyond what waits is two chunks, the first partly sent and the last
partly filled, beside the large messages, which stay the objects that they were.
"""

from __future__ import annotations

import mmap
from collections import deque
from collections.abc import Callable, Iterable

from .unix_large import Large

CHUNK_BYTES = 256 * 1024

Done = Callable[[bool], None]
Bytes = bytes | bytearray | memoryview


class _Chunk:
    """Bytes that go out one after the other: an area with room for more, or (without) a message as it is."""

    __slots__ = ("area", "dones", "filled", "frames", "sent", "view")

    def __init__(self, area: mmap.mmap | None, view: memoryview, filled: int) -> None:
        self.area = area
        self.view = view
        self.sent = 0
        self.filled = filled
        self.frames = 0  # that end in it
        self.dones: deque[tuple[int, Done]] = deque()  # where a frame ends, and who is told when it is sent


def _new_chunk(will_fill: bool) -> _Chunk:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | (mmap.MAP_POPULATE if will_fill else 0)
    try:
        area = mmap.mmap(-1, CHUNK_BYTES, flags=flags)
    except OSError as error:  # as any other object there is no memory for
        raise MemoryError(f"no memory for {CHUNK_BYTES} bytes that are to be sent: {error}") from error
    return _Chunk(area, memoryview(area), 0)


class _LargeFrame:
    __slots__ = ("bytes", "done", "message")

    def __init__(self, message: Large, size: int, done: Done | None) -> None:
        self.message = message
        self.bytes = size
        self.done = done


class SendQueue:
    """See the module. ``bytes`` is what waits; ``frames`` counts those of a half-sent chunk until all of it is sent."""

    __slots__ = ("_parts", "bytes", "frames")

    def __init__(self) -> None:
        self._parts: deque[_Chunk | _LargeFrame] = deque()
        self.bytes = 0
        self.frames = 0

    def __bool__(self) -> bool:
        return bool(self._parts)

    def add(self, pieces: Iterable[Bytes], done: Done | None) -> None:
        """Put one frame, given in pieces, at the end; it is copied."""
        last = self._parts[-1] if self._parts else None
        chunk = last if isinstance(last, _Chunk) else None
        for piece in pieces:
            at, size = 0, len(piece)
            while at < size:
                if chunk is None or chunk.area is None or chunk.filled == CHUNK_BYTES:
                    chunk = _new_chunk(will_fill=chunk is not None)  # where one is full already, this one will be
                    self._parts.append(chunk)
                count = min(size - at, CHUNK_BYTES - chunk.filled)
                area = chunk.area
                if area is None:
                    raise AssertionError("a chunk without an area is written to")
                end = chunk.filled + count
                area[chunk.filled : end] = piece if count == size else memoryview(piece)[at : at + count]
                chunk.filled = end
                self.bytes += count
                at += count
        if chunk is None:
            raise AssertionError("a frame without a byte")
        chunk.frames += 1
        self.frames += 1
        if done is not None:
            chunk.dones.append((chunk.filled, done))

    def add_large(self, message: Large, size: int, done: Done | None) -> None:
        """Put a large message, which counts for *size* bytes, at the end."""
        self._parts.append(_LargeFrame(message, size, done))
        self.bytes += size
        self.frames += 1

    @property
    def large(self) -> Large | None:
        """The large message that is first."""
        first = self._parts[0] if self._parts else None
        return first.message if isinstance(first, _LargeFrame) else None

    def views(self, bytes_max: int) -> list[memoryview]:
        """What is next, up to the first large message, or until it is *bytes_max* or more."""
        found: list[memoryview] = []
        total = 0
        for part in self._parts:
            if isinstance(part, _LargeFrame) or total >= bytes_max:
                break
            view = part.view[part.sent : part.filled]
            total += len(view)
            found.append(view)
        return found

    def sent(self, count: int) -> list[Done]:
        """The first *count* bytes of ``views`` are sent; gives who is to be told of it."""
        told: list[Done] = []
        self.bytes -= count
        while count:
            chunk = self._parts[0]
            if not isinstance(chunk, _Chunk):
                raise AssertionError("a large message was sent as bytes")
            step = min(count, chunk.filled - chunk.sent)
            chunk.sent += step
            count -= step
            while chunk.dones and chunk.dones[0][0] <= chunk.sent:
                told.append(chunk.dones.popleft()[1])
            if chunk.sent == chunk.filled:
                self.frames -= chunk.frames
                self._parts.popleft()
        return told

    def large_sent(self) -> list[Done]:
        """The large message that is first is sent; gives who is to be told of it."""
        first = self._first_large()
        self._parts.popleft()
        self.bytes -= first.bytes
        self.frames -= 1
        return [] if first.done is None else [first.done]

    def stream_large(self, header: bytes) -> None:
        """The large message that is first goes as bytes, behind *header*."""
        first = self._first_large()
        self._parts.popleft()
        payload = first.message.payload
        self.bytes += len(header) + len(payload) - first.bytes
        stream = _Chunk(None, memoryview(payload), len(payload))
        stream.frames = 1
        if first.done is not None:
            stream.dones.append((len(payload), first.done))
        self._parts.appendleft(stream)
        if header:
            self._parts.appendleft(_Chunk(None, memoryview(header), len(header)))

    def _first_large(self) -> _LargeFrame:
        first = self._parts[0]
        if not isinstance(first, _LargeFrame):
            raise AssertionError("no large message is first")
        return first

    def clear(self) -> list[Done]:
        """Drop all, and close the files of large messages; gives who is to be told that it was not sent."""
        parts, self._parts = self._parts, deque()
        self.bytes = self.frames = 0
        told: list[Done] = []
        for part in parts:
            if isinstance(part, _Chunk):
                told += (done for _end, done in part.dones)
            else:
                part.message.close()
                if part.done is not None:
                    told.append(part.done)
        return told
