"""Servers in one process and one thread, on a clock the caller moves: for tests and for embedding.

The same :class:`~actorgrid.supervisors.server.Server` code runs here as under Thespian. Messages go
through one FIFO; timers fire in order of their due time; watched file descriptors are really polled.
"""

from __future__ import annotations

import heapq
import itertools
import pickle  # nosec B403 - round trips of our own messages, to hold them to what a process border allows
import selectors
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any

from actorgrid.errors import ActorGridError, NoSuchActor

from .server import CALL, REPLY, Envelope, Server


class InlineTimer:
    """A pending callback."""

    __slots__ = ("callback", "cancelled")

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        """Never call it."""
        self.cancelled = True


class InlineNode:
    """All servers of one host. ``run_until`` makes things happen; nothing runs by itself.

    ``real_time=True`` waits on the real clock (for servers that own sockets or child processes);
    otherwise time stands still until ``advance``.
    """

    def __init__(self, real_time: bool = False) -> None:
        self.real_time = real_time
        self.now_s = monotonic() if real_time else 0.0
        self.servers: dict[str, Server] = {}
        self.crashed: dict[str, BaseException] = {}
        self._inbox: deque[tuple[str, bytes]] = deque()
        self._timers: list[tuple[float, int, InlineTimer]] = []
        self._count = itertools.count()
        self._selector = selectors.DefaultSelector()
        self._replies: dict[tuple[int, int], Envelope] = {}

    # -- the Runtime protocol

    def send(self, to: str, envelope: Envelope) -> None:
        """Queue for *to*; a message that cannot be pickled fails here, as it would between processes."""
        if to != "test" and to not in self.servers:
            raise NoSuchActor(f"no server is called {to!r}", found=", ".join(sorted(self.servers)))
        self._inbox.append((to, pickle.dumps(envelope)))

    def after(self, delay_s: float, callback: Callable[[], None]) -> InlineTimer:
        """Call back once the clock has moved that far."""
        timer = InlineTimer(callback)
        heapq.heappush(self._timers, (self.monotonic() + delay_s, next(self._count), timer))
        return timer

    def watch(
        self, fd: int, on_readable: Callable[[], None] | None, on_writable: Callable[[], None] | None = None
    ) -> None:
        """Call back while *fd* is ready."""
        self.unwatch(fd)
        events = (selectors.EVENT_READ if on_readable else 0) | (selectors.EVENT_WRITE if on_writable else 0)
        if events:
            self._selector.register(fd, events, (on_readable, on_writable))

    def unwatch(self, fd: int) -> None:
        """Forget *fd*."""
        try:
            self._selector.unregister(fd)
        except (KeyError, ValueError):
            return

    def monotonic(self) -> float:
        """The node's clock."""
        return monotonic() if self.real_time else self.now_s

    def crash(self, error: BaseException) -> None:
        """A server died of *error*; raised again by the next ``step``."""
        self.crashed[type(error).__name__] = error
        raise error

    # -- for tests

    def add(self, kind: type[Server], host: Any) -> Server:
        """Make a server and start it; what ``start`` raises comes out here once it has ended."""
        server = kind(host, self)
        self.servers[server.name] = server
        outcome: list[BaseException | None] = []
        server.begin(outcome.append)
        self.run_until(lambda: bool(outcome), what=f"start of {server.name}")
        if outcome[0] is not None:
            raise outcome[0]
        return server

    def remove(self, name: str) -> None:
        """Forget a server, as a SIGKILL would: no goodbye."""
        del self.servers[name]

    def request(self, to: str, message: Any, timeout_s: float = 10.0) -> Any:
        """Call *to* from outside and wait for the answer."""
        ref = (0, next(self._count))
        self.send(to, Envelope(CALL, "test", ref, message))
        self.run_until(lambda: ref in self._replies, timeout_s, what=f"reply to {type(message).__name__}")
        reply = self._replies.pop(ref)
        if reply.kind == REPLY:
            return reply.body
        raise reply.body

    def step(self, wait_s: float = 0.0) -> bool:
        """Do one thing if there is one; ``False`` when all is quiet."""
        if self._inbox:
            to, data = self._inbox.popleft()
            envelope = pickle.loads(data)  # nosec B301 - our own bytes, made in send
            if to == "test":
                self._replies[envelope.ref] = envelope
            elif to in self.servers:
                self.servers[to].deliver(envelope)
            return True
        while self._timers and (self._timers[0][0] <= self.monotonic() or self._timers[0][2].cancelled):
            _, _, timer = heapq.heappop(self._timers)
            if not timer.cancelled:
                timer.callback()
                return True
        if self._timers:
            wait_s = min(wait_s, max(0.0, self._timers[0][0] - self.monotonic()))
        ready = self._selector.select(wait_s if self.real_time else 0) if self._selector.get_map() or wait_s else []
        for key, mask in ready:
            on_readable, on_writable = key.data
            if mask & selectors.EVENT_READ and on_readable:
                on_readable()
            if mask & selectors.EVENT_WRITE and on_writable:
                on_writable()
        return bool(ready)

    def settle(self) -> None:
        """Run until nothing is left to do now."""
        while self.step():
            pass

    def advance(self, seconds: float) -> None:
        """Move the simulated clock, firing what falls due on the way."""
        end = self.now_s + seconds
        self.settle()
        while self._timers and self._timers[0][0] <= end:
            self.now_s = max(self.now_s, self._timers[0][0])
            self.settle()
        self.now_s = end
        self.settle()

    def run_until(self, condition: Callable[[], bool], timeout_s: float = 10.0, what: str = "condition") -> None:
        """Run until *condition* holds. With a simulated clock, moves it at most *timeout_s*."""
        deadline = self.monotonic() + timeout_s
        while not condition():
            if self.step(wait_s=0.05):
                continue
            if self.real_time:
                if monotonic() > deadline:
                    raise ActorGridError(f"{what}: not reached in {timeout_s:g} s")
            elif self._timers and self._timers[0][0] <= deadline:
                self.now_s = max(self.now_s, self._timers[0][0])
            else:
                raise ActorGridError(f"{what}: nothing left that could bring it about")
