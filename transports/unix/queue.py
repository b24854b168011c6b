"""The send queue to one peer: a stream of bytes in chunks, and large messages between them, in order.

Small frames are written one behind the other into chunks that are mapped for it (mmap(2)) and unmapped when they are
sent. As objects of their own they left holes in the heap between short-lived blocks of nearly their size: 128 MiB of
10 KB messages took up to 238 MiB, most of which the process never gave back.

Frames of 128 KiB and more stay the objects that they were, between the chunks: to copy them takes time, and the heap
gives blocks of that size back.

Bound: none here (``outgoing.py`` has it). Memory beyond what waits: the sent part of the first chunk, the rest of
each chunk that a larger frame follows, and two chunks that a process keeps for the next time.
"""

from __future__ import annotations

import mmap
from collections import deque
from collections.abc import Callable, Sequence

from .large import Large

CHUNK_BYTES = 256 * 1024
COPIED_BELOW_BYTES = 128 * 1024
SPARE_CHUNKS_MAX = 2

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
        self.dones: list[tuple[int, Done]] = []  # where a frame ends, and who is told when it is sent


class Chunks:
    """A store of areas for the queues of one process.

    To map one and touch its pages costs as much as to fill and send it.
    """

    __slots__ = ("_spare",)

    def __init__(self) -> None:
        self._spare: list[tuple[mmap.mmap, memoryview]] = []

    def take(self, will_fill: bool) -> _Chunk:
        """An empty chunk; the pages of one that *will_fill* are made at once. Raises MemoryError."""
        if self._spare:
            return _Chunk(*self._spare.pop(), 0)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | (mmap.MAP_POPULATE if will_fill else 0)
        try:
            area = mmap.mmap(-1, CHUNK_BYTES, flags=flags)
        except OSError as error:  # as any other object there is no memory for
            raise MemoryError(f"no memory for {CHUNK_BYTES} bytes that are to be sent: {error}") from error
        return _Chunk(area, memoryview(area), 0)

    def give_back(self, chunk: _Chunk) -> None:
        """Take back a chunk that is sent."""
        if chunk.area is not None and len(self._spare) < SPARE_CHUNKS_MAX:
            self._spare.append((chunk.area, chunk.view))


class _LargeFrame:
    __slots__ = ("bytes", "done", "message")

    def __init__(self, message: Large, size: int, done: Done | None) -> None:
        self.message = message
        self.bytes = size
        self.done = done


class SendQueue:
    """What waits to be sent to one peer.

    ``bytes`` is its size; ``frames`` counts those of a half-sent chunk to its end.
    """

    __slots__ = ("_chunks", "_parts", "bytes", "frames")

    def __init__(self, chunks: Chunks) -> None:
        self._chunks = chunks
        self._parts: deque[_Chunk | _LargeFrame] = deque()
        self.bytes = 0
        self.frames = 0

    def __bool__(self) -> bool:
        return bool(self._parts)

    def add(self, pieces: Sequence[Bytes], done: Done | None) -> None:
        """Put one frame, given in pieces that do not change any more, at the end."""
        chunk = self._parts[-1] if self._parts else None
        size = sum(map(len, pieces))
        for piece in pieces:
            if size < COPIED_BELOW_BYTES:
                chunk = self._copy(chunk, piece)
            else:
                chunk = _Chunk(None, memoryview(piece), len(piece))
                self._parts.append(chunk)
        if not isinstance(chunk, _Chunk):
            raise AssertionError("a frame without a byte")
        chunk.frames += 1
        self.frames += 1
        self.bytes += size
        if done is not None:
            chunk.dones.append((chunk.filled, done))

    def _copy(self, chunk: _Chunk | _LargeFrame | None, piece: Bytes) -> _Chunk | _LargeFrame | None:
        at, size = 0, len(piece)
        while at < size:
            if not isinstance(chunk, _Chunk) or chunk.area is None or chunk.filled == CHUNK_BYTES:
                was_full = isinstance(chunk, _Chunk) and chunk.area is not None
                chunk = self._chunks.take(will_fill=was_full)
                self._parts.append(chunk)
            area, start = chunk.area, chunk.filled
            if area is None:
                raise AssertionError("a chunk that was taken has an area")
            count = min(size - at, CHUNK_BYTES - start)
            area[start : start + count] = piece if count == size else memoryview(piece)[at : at + count]
            chunk.filled += count
            at += count
        return chunk

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
        """The next bytes to send, up to the first large message, or until they are *bytes_max* or more."""
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
        """Drop the first *count* bytes of ``views``, which are sent; gives who is to be told of it."""
        told: list[Done] = []
        self.bytes -= count
        while count:
            chunk = self._parts[0]
            if not isinstance(chunk, _Chunk):
                raise AssertionError("a large message was sent as bytes")
            step = min(count, chunk.filled - chunk.sent)
            chunk.sent += step
            count -= step
            if chunk.dones:
                told += (done for end, done in chunk.dones if end <= chunk.sent)
                chunk.dones = [entry for entry in chunk.dones if entry[0] > chunk.sent]
            if chunk.sent == chunk.filled:
                self.frames -= chunk.frames
                self._parts.popleft()
                self._chunks.give_back(chunk)
        return told

    def large_sent(self) -> list[Done]:
        """Drop the large message that is first, which is sent; gives who is to be told of it."""
        first = self._first_large()
        self._parts.popleft()
        self.bytes -= first.bytes
        self.frames -= 1
        return [] if first.done is None else [first.done]

    def stream_large(self, header: bytes) -> None:
        """Have the large message that is first sent as bytes, behind *header*."""
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
