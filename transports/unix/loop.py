"""The event loop of one process of an actor system: one persistent epoll, and timers that are not late.

``epoll_wait`` counts in milliseconds and the kernel adds 50 µs of slack to it, so a wait with an end is a timerfd in
the epoll instead: it has neither. It is armed only when the end comes nearer; one armed too early costs an empty turn.

Bounds: 64 events are dealt with in a turn; callbacks that these ask for (``soon``) wait for the end of the turn.

Single-threaded, except ``interrupt``, which signal handlers and threads may call too.
"""

from __future__ import annotations

import ctypes
import errno
import heapq
import itertools
import logging
import os
import select
from array import array
from collections import deque
from collections.abc import Callable, Iterable
from time import monotonic

EVENTS_A_TURN = 64

_CLOCK_MONOTONIC = 1
_TFD_TIMER_ABSTIME = 1
_NEAR_S = 20e-6  # a timer this close to the wanted end is close enough
_READABLE = select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR
_WRITABLE = select.EPOLLOUT | select.EPOLLHUP | select.EPOLLERR
_LIBC = ctypes.CDLL(None, use_errno=True)

Handler = Callable[[int], None]
log = logging.getLogger("actorgrid.transport")


def _make_timer() -> int:
    fd = int(_LIBC.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC))
    if fd < 0:
        raise OSError(ctypes.get_errno(), "timerfd_create failed")
    return fd


class UnixLoop:
    """Descriptors with handlers of our own, descriptors an actor watches, alarms, and the wait for all of them."""

    def __init__(self) -> None:
        self.readable: list[int] = []
        self.writable: list[int] = []
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._timer = _make_timer()
        self._timer_end = 0.0  # 0: not armed
        self._setting = (ctypes.c_long * 4)()  # struct itimerspec
        self._epoll = select.epoll()
        self._handlers: dict[int, tuple[Handler, int]] = {}
        self._descriptors = array("i")  # those of the handlers, as plain numbers for ``abandon``
        self._watched: dict[int, int] = {}
        self._refused_watches: set[int] = set()
        self._latest_watch: list[int] | None = None
        self._latest_copy: list[int] = []
        self._removed: set[int] = set()  # in this turn, whose events may speak of them still
        self._alarms: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._soon: deque[Callable[[], None]] = deque()
        self.add(self._wake, select.EPOLLIN, self._woken)
        self.add(self._timer, select.EPOLLIN, self._timer_fired)

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._epoll.closed

    # -- our own descriptors

    def add(self, fd: int, events: int, handler: Handler) -> None:
        """Call *handler* with what is ready of *events*. Raises OSError when the kernel refuses the descriptor."""
        self._epoll.register(fd, events)
        self._handlers[fd] = (handler, events)
        self._descriptors.append(fd)

    def change(self, fd: int, events: int) -> None:
        """Wait for other events of a descriptor that has a handler."""
        self._epoll.modify(fd, events)
        self._handlers[fd] = (self._handlers[fd][0], events)

    def remove(self, fd: int) -> None:
        """Forget a descriptor; call it before the descriptor is closed."""
        if self._handlers.pop(fd, None) is not None:
            self._removed.add(fd)
            self._descriptors.remove(fd)
            self._unregister(fd)

    def handle(self, fd: int, events: int) -> None:
        """Call the handler of *fd*, if it still has one."""
        entry = self._handlers.get(fd)
        if entry is not None:
            entry[0](events)

    def _unregister(self, fd: int) -> None:
        try:
            self._epoll.unregister(fd)
        except OSError as error:
            if error.errno not in (errno.EBADF, errno.ENOENT):
                raise

    # -- the actor's descriptors

    def watch_only(self, readable: list[int], writable: Iterable[int] = ()) -> None:
        """Report readiness of exactly these descriptors, in ``readable`` and ``writable``.

        One that epoll cannot watch (closed, or a regular file) is left out with a warning. A descriptor that was closed
        and opened again under its number is noticed when *readable* is not the same list as the last time.
        """
        if readable is self._latest_watch and not writable and readable == self._latest_copy:
            return
        self._latest_watch = readable if not writable else None
        self._latest_copy = list(readable)
        wanted = dict.fromkeys(readable, select.EPOLLIN)
        for fd in writable:
            wanted[fd] = wanted.get(fd, 0) | select.EPOLLOUT
        for fd in self._watched.keys() - wanted.keys():
            del self._watched[fd]
            self._removed.add(fd)
            self._unregister(fd)
        self._refused_watches &= wanted.keys()
        for fd, events in wanted.items():
            self._watch(fd, events)

    def _watch(self, fd: int, events: int) -> None:
        try:
            try:
                if fd in self._watched:
                    self._epoll.modify(fd, events)
                else:
                    self._epoll.register(fd, events)
            except FileNotFoundError:  # closed and opened again: the kernel forgot it
                self._epoll.register(fd, events)
        except (OSError, ValueError) as error:
            self._watched.pop(fd, None)
            if fd not in self._refused_watches:
                self._refused_watches.add(fd)
                log.warning("descriptor %d cannot be watched: %s", fd, error)
            return
        self._watched[fd] = events
        self._refused_watches.discard(fd)

    def _watch_ready(self, fd: int, events: int) -> None:
        wanted = self._watched.get(fd)
        if wanted is None:
            if fd not in self._removed:
                self._renew()
            return
        if events & _READABLE and wanted & select.EPOLLIN:
            self.readable.append(fd)
        if events & _WRITABLE and wanted & select.EPOLLOUT:
            self.writable.append(fd)

    def _renew(self) -> None:
        # An epoll goes on about a descriptor that was closed here while a forked child has a copy, and nothing takes it
        # out of the epoll any more (epoll(7), the questions at its end): without a new one we would spin.
        self._epoll.close()
        self._epoll = select.epoll()
        for fd, (_handler, events) in self._handlers.items():
            self._epoll.register(fd, events)
        watched, self._watched = self._watched, {}
        for fd, events in watched.items():
            self._watch(fd, events)

    # -- time

    def after(self, delay_s: float, callback: Callable[[], None]) -> None:
        """Call back once, in a turn of the loop; it cannot be cancelled."""
        # The count keeps two of one moment apart, and in order: callbacks cannot be compared.
        heapq.heappush(self._alarms, (monotonic() + delay_s, next(self._count), callback))

    def soon(self, callback: Callable[[], None]) -> None:
        """Call back at the end of this turn, or of the next one, which does not wait then."""
        self._soon.append(callback)

    def _arm(self, end: float) -> None:
        if self._timer_end and self._timer_end <= end + _NEAR_S:
            return
        nanoseconds = max(1, int(end * 1e9))
        self._setting[2], self._setting[3] = divmod(nanoseconds, 1_000_000_000)
        if _LIBC.timerfd_settime(self._timer, _TFD_TIMER_ABSTIME, self._setting, None) != 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime failed")
        self._timer_end = end

    def _timer_fired(self, _events: int) -> None:
        self._timer_end = 0.0
        try:
            os.read(self._timer, 8)
        except BlockingIOError:
            return

    # -- the wait

    def poll(self, timeout_s: float | None) -> None:
        """One turn: wait for events, at most *timeout_s* (``None``: as long as it takes), and deal with them."""
        if self._soon:
            timeout_s = 0.0
        elif self._alarms:
            left_s = max(0.0, self._alarms[0][0] - monotonic())
            timeout_s = left_s if timeout_s is None else min(timeout_s, left_s)
        if timeout_s is not None and timeout_s > 0.0:
            self._arm(monotonic() + timeout_s)
            timeout_s = None
        handlers = self._handlers
        if self._removed:
            self._removed.clear()
        for fd, events in self._epoll.poll(timeout_s, EVENTS_A_TURN):
            entry = handlers.get(fd)
            if entry is not None:
                entry[0](events)
            else:
                self._watch_ready(fd, events)
        if self._alarms:
            now = monotonic()
            while self._alarms and self._alarms[0][0] <= now:
                heapq.heappop(self._alarms)[2]()
        # Only those that are there now: one that asks to be called again would otherwise keep this turn from ending.
        for _ in range(len(self._soon)):
            self._soon.popleft()()

    def interrupt(self) -> None:
        """Make a waiting ``poll`` return."""
        os.eventfd_write(self._wake, 1)

    def _woken(self, _events: int) -> None:
        try:
            os.eventfd_read(self._wake)
        except BlockingIOError:
            return

    def abandon(self) -> None:
        """In a forked child: close our copies of the parent's epoll and of all that was added to it.

        By number, and no object is touched: a page of memory that a child writes to is its own from then on, and the
        objects of each connection are on a page or two. So they all stay as they are in the child, unused, and have to
        be kept: a socket object that is deleted closes its number, which is somebody else's by then.
        """
        os.close(self._epoll.fileno())
        for fd in self._descriptors:
            os.close(fd)

    def close(self) -> None:
        """Let go of our own descriptors, also in a forked child: the parent's registrations stay with the parent.

        Again: harmless.
        """
        if self.closed:
            return
        self._epoll.close()
        os.close(self._wake)
        os.close(self._timer)
        self._handlers.clear()
        del self._descriptors[:]
        self._alarms.clear()
        self._soon.clear()
