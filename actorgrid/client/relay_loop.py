"""The loop of a client's relay: one thread, its descriptors and its timers. What pipes and links between hosts live in,
too (``NetLoop``), and small enough for a client.
"""

from __future__ import annotations

import heapq
import itertools
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable

Call = Callable[[], None]


class LoopTimer:
    """A pending callback."""

    __slots__ = ("callback",)

    def __init__(self, callback: Call) -> None:
        self.callback: Call | None = callback

    def cancel(self) -> None:
        """Cancel the callback; harmless when it was called already."""
        self.callback = None


class RelayLoop:
    """The thread runs from ``start`` until ``finish``; ``post`` is for any thread, all else for the loop's own."""

    def __init__(self, name: str = "actorgrid-relay") -> None:
        self._watched: dict[int, tuple[Call | None, Call | None]] = {}
        self._timers: list[tuple[float, int, LoopTimer]] = []
        self._count = itertools.count()
        self._posted: deque[Call] = deque()
        self._over = False
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll = select.epoll()
        self._epoll.register(self._wake_fd, select.EPOLLIN)
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def post(self, call: Call) -> bool:
        """Have *call* called in the loop's thread; ``False`` once that has finished."""
        with self._lock:
            if self._wake_fd < 0:
                return False
            self._posted.append(call)
            os.eventfd_write(self._wake_fd, 1)
            return True

    def finish(self, timeout_s: float) -> None:
        """Have the thread end when what was posted is done, and wait for that, unless it is the caller."""
        self.post(self._end)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)

    # -- as of NetLoop

    def monotonic(self) -> float:
        """Seconds on a clock that never steps back."""
        return time.monotonic()

    def after(self, delay_s: float, callback: Call) -> LoopTimer:
        """Call back once, no earlier than *delay_s* from now."""
        timer = LoopTimer(callback)
        heapq.heappush(self._timers, (time.monotonic() + delay_s, next(self._count), timer))
        return timer

    def watch(self, fd: int, on_readable: Call | None, on_writable: Call | None = None) -> None:
        """Call back while *fd* is ready; replaces an earlier watch of the same descriptor."""
        mask = (select.EPOLLIN if on_readable else 0) | (select.EPOLLOUT if on_writable else 0)
        before = self._watched.get(fd)
        if before is None:
            self._epoll.register(fd, mask)
        elif mask != (select.EPOLLIN if before[0] else 0) | (select.EPOLLOUT if before[1] else 0):
            self._epoll.modify(fd, mask)
        self._watched[fd] = on_readable, on_writable

    def unwatch(self, fd: int) -> None:
        """Forget *fd*; harmless when it was not watched."""
        if self._watched.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    # -- the thread

    def _end(self) -> None:
        self._over = True

    def _run(self) -> None:
        while not self._over:
            for fd, mask in self._epoll.poll(self._wait_s()):
                if fd == self._wake_fd:
                    os.eventfd_read(fd)
                    continue
                self._ready(fd, mask)
            while self._posted:
                self._posted.popleft()()
            now = time.monotonic()
            while self._timers and self._timers[0][0] <= now:
                callback = heapq.heappop(self._timers)[2].callback
                if callback is not None:
                    callback()
        with self._lock:
            os.close(self._wake_fd)
            self._wake_fd = -1
        while self._posted:
            self._posted.popleft()()
        self._epoll.close()

    def _wait_s(self) -> float:
        if self._posted:
            return 0.0
        return -1.0 if not self._timers else max(0.0, self._timers[0][0] - time.monotonic())

    def _ready(self, fd: int, mask: int) -> None:
        # Looked up for each: the one may have unwatched it before the other.
        readable, writable = self._watched.get(fd, (None, None))
        if readable is not None and mask & ~select.EPOLLOUT:
            readable()
        readable, writable = self._watched.get(fd, (None, None))
        if writable is not None and mask & (select.EPOLLOUT | select.EPOLLHUP | select.EPOLLERR):
            writable()
