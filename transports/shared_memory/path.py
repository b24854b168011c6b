"""A path of messages through shared memory: two rings, a bell for each side, and a unix socket whose end is death.

Nothing goes over the socket once the memory was taken: it is there to end with its process, which a memory does not.
What the other side says in the memory is checked by the ring; what it says on the socket, but its end, is an error.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable
from math import ceil
from time import monotonic

from actorgrid.errors import ActorGridError, MalformedMessage, PeerGone
from actorgrid.hotpath import MessageRing

from ..numa import place_for_reader
from ..paths import Buffer, PathKind, ignore_end, nothing
from ..peer.calls import NetLoop
from .segment import HEADER_BYTES, PathSegment
from .spin import AdaptiveSpin

IN_VAIN, OTHERS = 0, 2
_RING = (1).to_bytes(8, "little")


class SharedMemoryPath:
    """One end of a path (``actorgrid.transports.paths``) over *segment*, beside the connected *guard*: its own both.

    With a *loop* it is told by it; without one, its owner calls ``wait``. *spin_us*: for how long to look for a message
    before sleeping, 0 for not at all; it is not done with fewer than 4 cores, nor for long where it brings nothing.
    """

    kind: PathKind = PathKind.SHARED_MEMORY

    def __init__(
        self, segment: PathSegment, guard: socket.socket, loop: NetLoop | None = None, *, spin_us: int = 0
    ) -> None:
        self.on_message: Callable[[], None] = nothing
        self.on_room: Callable[[], None] = nothing
        self.on_end: Callable[[ActorGridError], None] = ignore_end
        second = HEADER_BYTES + segment.ring_bytes
        out, back = (0, second) if segment.offered else (second, 0)
        place_for_reader(segment.memory, back, HEADER_BYTES + segment.ring_bytes)
        self._out = MessageRing(segment.memory, out, segment.ring_bytes, True)
        self._in = MessageRing(segment.memory, back, segment.ring_bytes, False)
        self.largest_bytes = self._out.largest_bytes
        self._segment = segment
        self._guard = guard
        self._loop = loop
        self._error: ActorGridError | None = None
        self._starves = False
        self._closed = False
        self._spin = AdaptiveSpin(spin_us)
        self._bell, self._other_bell = segment.own_bell, segment.other_bell
        self._sleeper: select.epoll | None = None
        self._sleeper_fd = -1
        if loop is None:
            # By edges, so that a bell need not be read: each ring of it is another, and the socket has but one.
            self._sleeper = select.epoll()
            self._sleeper_fd = self._sleeper.fileno()
            self._sleeper.register(segment.own_bell, select.EPOLLIN | select.EPOLLET)
            self._sleeper.register(guard, select.EPOLLIN | select.EPOLLET)
        else:
            loop.watch(segment.own_bell, self._rung)
            loop.watch(guard.fileno(), self._guard_readable)
            self._in.arm()
            loop.after(0.0, self._look)  # what came before there was anybody to be told

    def send(self, message: Buffer) -> bool:
        """As ``MessagePath.send``."""
        if self._error is not None:
            raise self._error
        try:
            sent = self._out.send(message, self._other_bell)
            if not sent and not self._out.starve():
                sent = self._out.send(message, self._other_bell)  # half of the ring is free, enough for any
            if not sent:
                self._starves = True
        except MalformedMessage as error:
            self._end(error)
            raise
        return sent

    def take(self) -> bytes | None:
        """As ``MessagePath.take``."""
        if self._closed:
            raise self._error or PeerGone("the path is closed")
        try:
            message = self._in.pop()
            if message is None and self._loop is not None and self._error is None and not self._in.arm():
                message = self._in.pop()
        except MalformedMessage as error:
            self._end(error)
            raise
        if message is None and self._error is not None:
            raise self._error
        if self._in.owed:
            self._ring_for_room()
        return message

    def wait(self, timeout_s: float | None) -> bool:
        """For an owner without a loop: wait until there is something to ``take``, room again, or the end. ``False``: in
        vain. Given up, it loses nothing."""
        budget = self._spin.microseconds
        if budget:
            found = self._in.spin(budget)
            self._spin.note(found)
            if found:
                return True
        happened = self._in.sleep(self._sleeper_fd, self._bell, -1 if timeout_s is None else ceil(timeout_s * 1e3))
        if happened == OTHERS:
            self._guard_readable()
        return happened != IN_VAIN

    def receive(self, timeout_s: float | None = None) -> bytes | None:
        """For an owner without a loop: the next message; ``None``: none came in time. Raises what ended the path."""
        if timeout_s is None and self._error is None and not self._spin.microseconds:
            got = self._in.receive(self._sleeper_fd, self._bell, -1)
            if isinstance(got, bytes):
                if self._in.owed:
                    self._ring_for_room()
                return got
            if got == OTHERS:
                self._guard_readable()
        until = None if timeout_s is None else monotonic() + timeout_s
        while True:
            message = self.take()
            if message is not None:
                return message
            left = None if until is None else until - monotonic()
            if left is not None and left <= 0:
                return None
            self.wait(left)

    def close(self) -> None:
        """As ``MessagePath.close``."""
        if not self._closed:
            self._error = self._error or PeerGone("the path is closed")
            self._let_go()
            self._closed = True
            self._in.close()
            self._out.close()
            if self._sleeper is not None:
                self._sleeper.close()
            self._segment.close()
            self._guard.close()

    def _rung(self) -> None:
        self._hush()
        self._look()

    def _look(self) -> None:
        if self._closed:
            return
        if self._starves:
            self._starves = False
            self.on_room()
        if not self._closed:
            self.on_message()

    def _guard_readable(self) -> None:
        try:
            said = self._guard.recv(1)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        if said:
            self._end(MalformedMessage("bytes came beside shared memory, where only an end may"))
        else:
            self._end(PeerGone("the other side of shared memory is gone"))

    def _end(self, error: ActorGridError) -> None:
        if self._error is not None:
            return
        self._error = error
        self._let_go()
        self.on_message()  # what it pushed before
        self.on_end(error)

    def _let_go(self) -> None:
        if self._loop is not None and not self._closed:
            self._loop.unwatch(self._segment.own_bell)
            self._loop.unwatch(self._guard.fileno())

    def _hush(self) -> None:
        try:
            os.read(self._segment.own_bell, 8)
        except BlockingIOError:
            return

    def _ring_for_room(self) -> None:
        self._in.take_ring()
        try:
            os.write(self._segment.other_bell, _RING)
        except BlockingIOError:
            return  # it is as loud as it can be
