"""A ring of messages from one process to another, in memory that both have mapped, in plain Python.

One side only pushes, the other only pops. What either does is written as steps, each of which touches the shared memory
once: ``tests/hotpath/test_ring_interleavings.py`` plays the steps of both sides in every order that memory allows, and
``docs/memory_ordering.md`` says why each order holds. Plain Python has no fences between processes, so that this twin
is the kernel's oracle, and a path through shared memory is offered only where the kernel is compiled.

The other side may be hostile, and it can write everywhere in the memory. So a side keeps its own count in its own
memory, reads what the other says once, checks that, and copies a message out before anybody looks at it.

The memory: ``head`` (bytes pushed ever), ``tail`` (popped), ``sleeping`` (who pops wants to be rung), ``starving`` (who
pushes does), each on a cache line of its own, then the bytes. A message is its length in 4 bytes, its bytes, as much
as makes it a multiple of 8.
"""

from __future__ import annotations

import os
import select
import struct
from collections.abc import Generator
from contextlib import suppress
from typing import Any

from actorgrid.errors import BadRequest, FrameTooLarge, MalformedMessage

HEAD, TAIL, SLEEPING, STARVING = 0, 64, 128, 192
HEADER_BYTES = 256
LENGTH_BYTES = 4
CAPACITY_MIN, CAPACITY_MAX = 64, 1 << 30
FULL, PUSHED, PUSHED_RING = 0, 1, 2
"""What ``push`` gives: nothing was done; it is there; it is there, and the other side sleeps and has to be rung."""

IN_VAIN, RUNG, OTHERS = 0, 1, 2
"""What ``sleep`` gives."""

Step = tuple[Any, ...]
"""``("load", cell)``, ``("store", cell, value)``, ``("release", cell, value)``, ``("swap", cell, value)``,
``("fence",)``, ``("read", position, count)``, ``("write", position, bytes)``."""
Steps = Generator[Step, Any, Any]


def rounded(count: int) -> int:
    """What a message of *count* bytes takes of the ring."""
    return (LENGTH_BYTES + count + 7) & ~7


class RingSide:
    """What one side knows by itself, and its steps."""

    __slots__ = ("capacity", "head", "ring_other", "tail")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.head = self.tail = 0
        self.ring_other = False  # whether the other side waits for room and has to be rung

    @property
    def largest_bytes(self) -> int:
        """The largest message: half of the ring with its length, so that half a ring of room is enough for any."""
        return self.capacity // 2 - 8

    def push(self, message: bytes) -> Steps:
        """Who pushes: one message in. Gives ``FULL``, ``PUSHED`` or ``PUSHED_RING``."""
        need = rounded(len(message))
        if need > self.capacity - (self.head - self.tail):
            self.tail = self._checked_tail((yield "load", TAIL))
            if need > self.capacity - (self.head - self.tail):
                return FULL
        data = struct.pack("<I", len(message)) + message
        yield "write", self.head, data
        self.head += need
        yield "release", HEAD, self.head  # who sees the new head sees the bytes
        # Between the head and the look at the flag, as between the flag and the look at the head in ``arm``: one of
        # the two sides sees what the other wrote.
        yield ("fence",)
        if (yield "load", SLEEPING) and (yield "swap", SLEEPING, 0):
            return PUSHED_RING
        return PUSHED

    def starve(self) -> Steps:
        """Who pushes: it wants to be rung when half of the ring is free. ``False`` when that is so already."""
        yield "store", STARVING, 1
        yield ("fence",)
        self.tail = self._checked_tail((yield "load", TAIL))
        if (self.head - self.tail) * 2 > self.capacity:
            return True
        yield "store", STARVING, 0
        return False

    def pop(self) -> Steps:
        """Who pops: the next message, or ``None``."""
        if self.head == self.tail:
            self.head = self._checked_head((yield "load", HEAD))
            if self.head == self.tail:
                return None
        (length,) = struct.unpack("<I", (yield "read", self.tail, LENGTH_BYTES))
        if length > self.largest_bytes or rounded(length) > self.head - self.tail:
            raise MalformedMessage("a message in shared memory is longer than what was pushed", found=str(length))
        message = (yield "read", self.tail, LENGTH_BYTES + length)[LENGTH_BYTES:]
        self.tail += rounded(length)
        yield "release", TAIL, self.tail  # who sees the new tail may write where the message was: it is read
        yield ("fence",)
        if (yield "load", STARVING) and self.head - self.tail <= self.capacity // 2:
            # What was pushed since is not counted, and is no reason to let it sleep: it pushes, so it does not.
            self.ring_other = bool((yield "swap", STARVING, 0)) or self.ring_other
        return message

    def arm(self) -> Steps:
        """Who pops: it wants to be rung. ``False`` when there is a message, and it is not to sleep."""
        yield "store", SLEEPING, 1
        yield ("fence",)
        self.head = self._checked_head((yield "load", HEAD))
        if self.head == self.tail:
            return True
        yield "store", SLEEPING, 0
        return False

    def _checked_head(self, head: int) -> int:
        if not self.head <= head <= self.tail + self.capacity or head % 8:
            raise MalformedMessage("the head of a ring in shared memory is nowhere in it", found=str(head))
        return head

    def _checked_tail(self, tail: int) -> int:
        if not self.tail <= tail <= self.head or tail % 8:
            raise MalformedMessage("the tail of a ring in shared memory is nowhere in it", found=str(tail))
        return tail


class MessageRing:
    """One side of the ring in *memory* from *offset* on, of *capacity* bytes (a power of two) and a header.

    *pushes*: whether it is the side that pushes. The memory is zero at first. Raises BadRequest.
    """

    def __init__(self, memory: Any, offset: int, capacity: int, pushes: bool) -> None:
        view = memoryview(memory).cast("B")
        if not CAPACITY_MIN <= capacity <= CAPACITY_MAX or capacity & (capacity - 1):
            raise BadRequest("no capacity of a ring", asked=str(capacity), hint="a power of two from 64 to 2**30")
        if view.readonly or offset < 0 or offset % 64 or offset + HEADER_BYTES + capacity > len(view):
            raise BadRequest("no room for a ring", asked=f"{offset} + {HEADER_BYTES + capacity}", found=str(len(view)))
        self._memory = view[offset : offset + HEADER_BYTES + capacity]
        self._pushes = pushes
        self._side = RingSide(capacity)
        self.capacity = capacity
        self.largest_bytes = self._side.largest_bytes

    def push(self, message: bytes | bytearray | memoryview) -> int:
        """Put a message in: ``FULL``, ``PUSHED``, or ``PUSHED_RING``. Raises FrameTooLarge, MalformedMessage."""
        self._check(True)
        data = bytes(memoryview(message).cast("B"))
        if len(data) > self.largest_bytes:
            raise FrameTooLarge(
                f"a message of {len(data)} bytes is over the limit of {self.largest_bytes}", hint="send it in pieces"
            )
        return int(self._run(self._side.push(data)))

    def pop(self) -> bytes | None:
        """Take the next message out; ``None`` when there is none. Raises MalformedMessage."""
        self._check(False)
        found: bytes | None = self._run(self._side.pop())
        return found

    def send(self, message: bytes | bytearray | memoryview, bell: int) -> bool:
        """``push``, and ring the eventfd *bell* of the other side where it sleeps; ``False`` where the ring is full."""
        pushed = self.push(message)
        if pushed == PUSHED_RING:
            with suppress(BlockingIOError):  # it is as loud as it can be
                os.eventfd_write(bell, 1)
        return pushed != FULL

    def sleep(self, sleeper: int, own_bell: int, timeout_ms: int) -> int:
        """``arm``, and wait at the epoll *sleeper*: ``IN_VAIN``, ``RUNG`` (or there is a message), or ``OTHERS``, which
        have something to say besides."""
        if not self.arm():
            return RUNG
        poll = select.epoll.fromfd(os.dup(sleeper))
        found = {fd for fd, _ in poll.poll(timeout_ms / 1e3 if timeout_ms >= 0 else -1)}
        poll.close()
        return OTHERS if found - {own_bell} else RUNG if found else IN_VAIN

    def receive(self, sleeper: int, own_bell: int, timeout_ms: int) -> bytes | int:
        """The next message, waited for as by ``sleep`` where there is none; what that gives where none came."""
        message = self.pop()
        if message is None:
            found = self.sleep(sleeper, own_bell, timeout_ms)
            if found != RUNG:
                return found
            message = self.pop()
        return RUNG if message is None else message

    @property
    def owed(self) -> bool:
        """Whether the other side waits for room, has it since the last ``pop``, and has to be rung."""
        return self._side.ring_other

    def take_ring(self) -> bool:
        """Whether the other side waits for room, has it since the last ``pop``, and has to be rung."""
        owed, self._side.ring_other = self._side.ring_other, False
        return owed

    def arm(self) -> bool:
        """Ask to be rung at the next message; ``False`` when there is one. Raises MalformedMessage."""
        self._check(False)
        return bool(self._run(self._side.arm()))

    def starve(self) -> bool:
        """Ask to be rung when half of the ring is free; ``False`` when it is. Raises MalformedMessage."""
        self._check(True)
        return bool(self._run(self._side.starve()))

    def spin(self, microseconds: int) -> bool:
        """Look for a message, for so long at most; whether there is one. The twin looks once."""
        self._check(False)
        return int(self._load(HEAD)) != self._side.tail

    def close(self) -> None:
        """Let go of the memory; nothing else may be asked then."""
        self._memory.release()

    def _check(self, pushes: bool) -> None:
        if pushes != self._pushes:
            raise BadRequest("a ring has one side that pushes, and one that pops")

    def _run(self, steps: Steps) -> Any:
        answer = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as end:
                return end.value
            answer = self._do(step)

    def _do(self, step: Step) -> Any:
        match step:
            case ("load", cell):
                return self._load(cell)
            case ("store" | "release", cell, value):
                struct.pack_into("<Q", self._memory, cell, value)
            case ("swap", cell, value):
                before = self._load(cell)
                struct.pack_into("<Q", self._memory, cell, value)
                return before
            case ("read", position, count):
                at = position & (self.capacity - 1)
                first = self._memory[HEADER_BYTES + at :][:count]
                return bytes(first) + bytes(self._memory[HEADER_BYTES:][: count - len(first)])
            case ("write", position, data):
                at = HEADER_BYTES + (position & (self.capacity - 1))
                first = min(len(data), len(self._memory) - at)
                self._memory[at : at + first] = data[:first]
                self._memory[HEADER_BYTES : HEADER_BYTES + len(data) - first] = data[first:]
        return None

    def _load(self, cell: int) -> int:
        (value,) = struct.unpack_from("<Q", self._memory, cell)
        return int(value)
