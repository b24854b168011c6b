"""The sockets of leased workers, or of actors: one thread that reads them all; whichever thread has something writes.

Who uses it decides; here is only the I/O. Everything but the reader's own loop is called with the user's lock held.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

TICK_S = 0.02


class SocketLink(Protocol):
    """Whoever is at the other end of a socket."""

    sock: Any
    fd: int
    out: bytearray
    """What is to be sent."""
    lost: bool
    watches_out: bool


L = TypeVar("L", bound=SocketLink)


class WorkerSockets(Generic[L]):
    """One epoll, and the thread that waits on it.

    *lock* is held here to write what a socket would not take before. *on_readable* is called by the thread for a
    link that said something or is gone, *on_tick* every 20 ms while ``ticking``, which is its user's to reset.
    """

    def __init__(
        self, lock: threading.Lock, on_readable: Callable[[L], None], on_tick: Callable[[float], None]
    ) -> None:
        self._lock = lock
        self._on_readable = on_readable
        self._on_tick = on_tick
        self.links: dict[int, L] = {}
        self._soon: deque[Callable[[], None]] = deque()
        self._closed = False
        self.ticking = False
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll = select.epoll()
        self._epoll.register(self._wake_fd, select.EPOLLIN)
        self._thread = threading.Thread(target=self._run, name="actorgrid-results", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def is_reader(self) -> bool:
        """Whether the caller is the thread that reads."""
        return threading.current_thread() is self._thread

    def add(self, link: L) -> None:
        """Read what *link* says from now on."""
        self.links[link.fd] = link
        self._epoll.register(link.fd, select.EPOLLIN)

    def remove(self, link: L) -> None:
        """Read nothing of *link* any more; its socket stays open."""
        self.links.pop(link.fd, None)
        self._epoll.unregister(link.fd)

    def flush(self, link: L) -> None:
        """Send what is queued for *link*; what its socket does not take now goes when it does."""
        if not link.out or link.lost:
            return
        try:
            sent = link.sock.send(link.out)
        except BlockingIOError:
            sent = 0
        except OSError:
            return  # the reader sees the same and deals with it
        if sent == len(link.out):
            link.out.clear()
            if link.watches_out:
                link.watches_out = False
                self._epoll.modify(link.fd, select.EPOLLIN)
            return
        del link.out[:sent]
        if not link.watches_out:
            link.watches_out = True
            self._epoll.modify(link.fd, select.EPOLLIN | select.EPOLLOUT)

    def tick_soon(self) -> None:
        """Have ``on_tick`` called within 20 ms."""
        if not self.ticking:
            self.ticking = True
            if not self._closed:
                os.eventfd_write(self._wake_fd, 1)

    def soon(self, call: Callable[[], None]) -> None:
        """Have *call* called by the thread, without the lock: for what ends futures, whose callbacks are the user's."""
        self._soon.append(call)
        os.eventfd_write(self._wake_fd, 1)

    def close(self) -> None:
        """Have the thread end; ``join`` waits for that."""
        self._closed = True
        os.eventfd_write(self._wake_fd, 1)

    def join(self, timeout_s: float) -> None:
        """Wait for the thread's end, without the lock. At once when it is the caller."""
        if not self.is_reader():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        next_tick = 0.0
        while not self._closed:
            for fd, mask in self._epoll.poll(TICK_S if self.ticking else -1):
                if fd == self._wake_fd:
                    os.eventfd_read(fd)
                    continue
                link = self.links.get(fd)
                if link is None:
                    continue
                if mask & select.EPOLLOUT:
                    with self._lock:
                        self.flush(link)
                if mask & ~select.EPOLLOUT:
                    self._on_readable(link)
            while self._soon:
                self._soon.popleft()()
            now = time.monotonic()
            if self.ticking and now >= next_tick:
                next_tick = now + TICK_S
                self._on_tick(now)
        with self._lock:  # close() may have said so and be about to use them
            self._epoll.close()
            os.close(self._wake_fd)
