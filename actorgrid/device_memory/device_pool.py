"""A pool over a real range of a device's memory, which gives no block out while work that was to use it is pending.

A pool has a *home stream*, and an order of its own follows from it without asking the driver for anything: what is
freed on the home stream and given out there again is used in the order of that stream. Everything else takes events:

* a block that other streams used goes back to the pool when events that were recorded on those, at its freeing, came;
* a block that is given out for another stream makes that stream begin after what the home stream had by then.

So a program with one stream, which most are, never records an event.
"""

from __future__ import annotations

import threading
from collections import deque
from types import TracebackType
from typing import Any, NamedTuple, Self

from actorgrid.errors import BadRequest, DeviceError, InvalidBlock, OutOfDeviceMemory
from actorgrid.hotpath import Block, MemoryPool, PoolStats, vendor_alignment_bytes

from .memory_driver import DeviceMemory

PENDING_MAX = 4096
"""Blocks that were freed and wait for other streams; beyond that, freeing waits for the one that is freed longest."""
LOOKED_AT = 8
"""Pending blocks whose events an ``allocate`` asks for."""


class DevicePoolStats(NamedTuple):
    """A device pool's figures, beside those of the account."""

    account: PoolStats
    """What is waited for counts as used."""
    pending_blocks: int
    """Freed, and waiting for streams."""
    pending_bytes: int
    waits: int
    """How often somebody had to wait for a stream, ever."""
    events: int
    """Events of the driver's that the pool has."""


class DeviceBlock:
    """A block of a DevicePool: ``address`` on the device, ``size`` in bytes. Made by ``DevicePool.allocate`` alone."""

    __slots__ = ("_base", "_block", "_others", "freed", "stream")

    def __init__(self, block: Block, base: int, stream: int) -> None:
        self._block = block
        self._base = base
        self._others: set[int] | None = None
        self.stream = stream
        self.freed = False

    @property
    def address(self) -> int:
        """Where it is now: a defragmentation changes it. Raises InvalidBlock once it is freed."""
        if self.freed:
            raise _freed()
        return self._base + self._block.offset

    @property
    def size(self) -> int:
        """How many bytes are its own. Raises InvalidBlock once it is freed."""
        if self.freed:
            raise _freed()
        return self._block.size

    def __repr__(self) -> str:
        return "DeviceBlock(freed)" if self.freed else f"DeviceBlock({self.address:#x}, {self.size} bytes)"


class DevicePool:
    """*size_bytes* of *memory*, allocated at once and handed out in blocks. Any thread may call; calls take turns.

    *home_stream* is the stream that most is done on (0: the device's default stream). *movable*: nobody keeps addresses
    over a ``defragment``. *account* is for PyTorch's entry (torch_entry.pyx). Raises OutOfDeviceMemory, BadRequest.
    """

    def __init__(
        self,
        memory: DeviceMemory,
        size_bytes: int,
        *,
        home_stream: int = 0,
        movable: bool = False,
        account: type[Any] = MemoryPool,
    ) -> None:
        alignment = vendor_alignment_bytes(memory.vendor)
        self._account: Any = account(size_bytes, alignment)
        self._memory = memory
        self._range = memory.allocate(self._account.size_bytes + alignment)
        self._base = -(-self._range // alignment) * alignment
        self.home_stream = home_stream
        self.movable = movable
        self._lock = threading.Lock()
        self._pending: deque[tuple[DeviceBlock, list[int]]] = deque()
        self._pending_bytes = 0
        self._events: list[int] = []
        self._made = 0
        self._waits = 0
        # Another account is one that others change, too: what they freed on the home stream nobody tells here.
        self._freed_at_home = account is not MemoryPool
        self._abroad = 0
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- blocks

    def allocate(self, n_bytes: int, stream: int | None = None) -> DeviceBlock:
        """A block for work of *stream* (by default the home stream). Raises OutOfDeviceMemory, BadRequest.

        Where nothing is free, but blocks wait for streams, it waits for those, longest freed first.
        """
        if stream is not None:
            _check_stream(stream)
        with self._lock:
            if self._closed:
                raise _closed()
            if self._pending:
                self._look(LOOKED_AT)
            try:
                block = self._account.allocate(n_bytes)
            except OutOfDeviceMemory:
                block = self._allocate_after_others(n_bytes)
            home = self.home_stream
            if stream is None or stream == home:
                return DeviceBlock(block, self._base, home)
            if self._freed_at_home:
                try:
                    self._order(stream)
                except DeviceError:
                    self._account.free(block)
                    raise
            self._abroad += 1
            return DeviceBlock(block, self._base, stream)

    def _allocate_after_others(self, n_bytes: int) -> Block:
        while self._pending:
            self._wait_for_oldest()
            try:
                block: Block = self._account.allocate(n_bytes)
            except OutOfDeviceMemory:
                continue
            return block
        return self._account.allocate(n_bytes)  # type: ignore[no-any-return]

    def used_on(self, block: DeviceBlock, stream: int) -> None:
        """Say that *stream* uses *block* too: it is not given out again before what that stream has at its freeing.

        Raises InvalidBlock, BadRequest.
        """
        _check_stream(stream)
        with self._lock:
            self._check(block)
            if stream != block.stream:
                if block._others is None:
                    block._others = set()
                    self._abroad += block.stream == self.home_stream
                block._others.add(stream)

    def free(self, block: DeviceBlock) -> None:
        """Give *block* back, which streams may still be using. Raises InvalidBlock, and DeviceCallFailed for a stream
        that is no more; then nothing was changed.
        """
        with self._lock:
            self._check(block)
            home = self.home_stream
            if block._others is None and block.stream == home:
                self._account.free(block._block)
                block.freed = self._freed_at_home = True
                return
            streams = {block.stream, *(block._others or ())} - {home}
            events: list[int] = []
            try:
                for stream in streams:
                    events.append(self._event())
                    self._memory.record(events[-1], stream)
            except DeviceError:
                self._events += events
                raise
            self._abroad -= 1
            self._pending_bytes += block.size
            block.freed = True
            self._pending.append((block, events))
            if len(self._pending) > PENDING_MAX:
                self._wait_for_oldest()

    @property
    def memory(self) -> DeviceMemory:
        """The device's memory that the pool is of."""
        return self._memory

    def check(self, block: DeviceBlock) -> None:
        """Raises InvalidBlock, or BadRequest, for what is no block of this pool that is out."""
        with self._lock:
            self._check(block)

    def _check(self, block: DeviceBlock) -> None:
        if self._closed:
            raise _closed()
        if not isinstance(block, DeviceBlock):
            raise BadRequest("this is no block of a device pool", asked=f"a {type(block).__name__}")
        if block.freed:
            raise _freed()
        if block._base != self._base:
            raise InvalidBlock("this is another pool's block", hint="give it to the pool that it came from")

    def _event(self) -> int:
        if self._events:
            return self._events.pop()
        self._made += 1
        return self._memory.new_event()

    def _order(self, stream: int) -> None:
        event = self._event()
        try:
            self._memory.record(event, self.home_stream)
            self._memory.order(stream, event)
        finally:
            self._events.append(event)

    def _look(self, most: int) -> None:
        """Take back what nobody uses any more, of the *most* that were freed longest ago."""
        for _ in range(min(most, len(self._pending))):
            block, events = self._pending[0]
            if all(self._memory.is_done(event) for event in events):
                self._pending.popleft()
                self._take_back(block, events)
            else:
                self._pending.rotate(-1)

    def _wait_for_oldest(self) -> None:
        block, events = self._pending[0]
        self._waits += 1
        for event in events:
            self._memory.wait(event)
        self._pending.popleft()
        self._take_back(block, events)

    def _take_back(self, block: DeviceBlock, events: list[int]) -> None:
        self._pending_bytes -= block._block.size
        self._account.free(block._block)
        self._events += events
        self._freed_at_home = True  # the home stream may have used it too

    # -- contents

    def write(self, block: DeviceBlock, data: bytes | bytearray | memoryview, offset: int = 0) -> None:
        """Copy *data* into *block*, from its byte *offset* on, in the order of its stream, and wait for it.

        Raises BadRequest, InvalidBlock. Nobody may free the block meanwhile.
        """
        self.check(block)
        size = memoryview(data).nbytes
        if offset < 0 or offset + size > block.size:
            asked = f"{size} bytes" + (f" from byte {offset} on" if offset else "")
            raise BadRequest("the block is smaller than the data", asked=asked, found=f"{block.size} bytes")
        self._memory.copy_from_host(block.address + offset, data, block.stream)

    def read(self, block: DeviceBlock, n_bytes: int | None = None, offset: int = 0) -> bytes:
        """*n_bytes* of *block* (all there are) from its byte *offset* on, after what its stream has.

        Raises BadRequest, InvalidBlock.
        """
        self.check(block)
        size = block.size - offset if n_bytes is None else n_bytes
        if offset < 0 or not 0 < size <= block.size - offset:
            asked = f"{size} bytes" + (f" from byte {offset} on" if offset else "")
            raise BadRequest("the block is of another size", asked=asked, found=f"{block.size} bytes")
        return self._memory.copy_to_host(block.address + offset, size, block.stream)

    def copy_to(self, source: DeviceBlock, destination: DeviceBlock, n_bytes: int) -> None:
        """Have the device copy the beginning of *source* to that of *destination*, of any pool over the same memory.

        After what both their streams have; it is waited for. The caller has checked the blocks (``transfer`` does).
        """
        event = self._memory.new_event()
        try:
            if destination.stream != source.stream:
                self._memory.record(event, destination.stream)
                self._memory.order(source.stream, event)
            self._memory.copy_within(source.address, destination.address, n_bytes, source.stream)
            self._memory.record(event, source.stream)
            self._memory.wait(event)
        finally:
            self._memory.end_event(event)

    def copy_across(self, source: DeviceBlock, other: DevicePool, destination: DeviceBlock, n_bytes: int) -> None:
        """As ``copy_to``, to a block of *other*, whose device this one ``reaches``."""
        there = other.memory.new_event()
        try:
            other.memory.record(there, destination.stream)
            other.memory.wait(there)
        finally:
            other.memory.end_event(there)
        event = self._memory.new_event()
        try:
            self._memory.copy_to_peer(source.address, other.memory, destination.address, n_bytes, source.stream)
            self._memory.record(event, source.stream)
            self._memory.wait(event)
        finally:
            self._memory.end_event(event)

    def defragment(self, want_bytes: int | None = None, max_moved_bytes: int | None = None) -> int:
        """Move blocks until *want_bytes* (by default as much as can be) are in one piece; how many bytes were moved.

        The device copies, after all that its streams have and before anything after this call: it waits for both. For
        a *movable* pool, and blocks that only the home stream uses. Raises BadRequest.
        """
        if not self.movable:
            hint = "make the pool with movable=True, and ask a block for its address each time"
            raise BadRequest("the blocks of this pool do not move: somebody may have their addresses", hint=hint)
        with self._lock:
            if self._closed:
                raise _closed()
            if self._abroad:
                hint = "free those first: the home stream, which copies, knows nothing of what other streams do"
                raise BadRequest(
                    "blocks that other streams use do not move", found=f"{self._abroad} of them", hint=hint
                )
            while self._pending:
                self._wait_for_oldest()
            moves = list(self._account.defragment(want_bytes, max_moved_bytes=max_moved_bytes))
            for move in moves:
                for source, destination, size in move.chunks():
                    self._memory.copy_within(self._base + source, self._base + destination, size, self.home_stream)
            event = self._event()
            self._memory.record(event, self.home_stream)
            self._memory.wait(event)
            self._events.append(event)
            for move in moves:
                self._account.commit(move)
            return sum(move.size for move in moves)

    # -- the whole

    def stats(self) -> DevicePoolStats:
        """The pool's figures now."""
        with self._lock:
            return DevicePoolStats(
                self._account.stats(), len(self._pending), self._pending_bytes, self._waits, self._made
            )

    def close(self) -> None:
        """Wait for what is pending, and give the range back to the driver; blocks that are out are void. Once."""
        with self._lock:
            if self._closed:
                return
            while self._pending:
                self._wait_for_oldest()
            event = self._event()
            self._memory.record(event, self.home_stream)
            self._memory.wait(event)
            self._closed = True
            for each in (*self._events, event):
                self._memory.end_event(each)
            self._events = []
            self._memory.free(self._range)


def _check_stream(stream: object) -> None:
    """Raises BadRequest for what is no handle of a stream."""
    if not isinstance(stream, int) or isinstance(stream, bool) or not 0 <= stream < 2**64:
        raise BadRequest(
            "a stream is the whole number that the driver gave",
            asked=f"{stream!r:.60}",
            hint="memory.new_stream() gives one; PyTorch's have it as stream.cuda_stream",
        )


def _freed() -> InvalidBlock:
    return InvalidBlock("the block was freed already", found="nothing was changed", hint="free each block once")


def _closed() -> InvalidBlock:
    return InvalidBlock("the pool is closed", hint="make another one")
