"""The bridge between the gateway's two threads: the event loop of its doors, and the server's own.

Only the server's thread may touch the runtime. The loop's thread leaves work in a queue and wakes the
server with one byte on a socket pair (7 times faster than a message through the actor system); results go
back in batches by ``call_soon_threadsafe``.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

from actorgrid.errors import ActorGridError, CallTimeout, HostUnreachable, Overloaded
from actorgrid.supervisors.ref import Ref
from actorgrid.supervisors.server import Server

MAX_IN_FLIGHT = 4096
"""Calls under way at once; one more is refused with Overloaded."""
MAX_TOLD = 8192
"""Events on their way to the loop; at this bound they are dropped and the loop is told that some are missing."""
TURN = 256
"""Pieces of work started in one go, so that the server's other messages get their turn."""
GRACE_S = 2.0
"""Added to a call's time before the loop gives up by itself: normally the server's own clock answers first."""

_GAP = object()
"""Stands in the queue for the events that were dropped there."""

Work = Callable[[], Coroutine[Any, Any, Any]]


class BridgeListener(Protocol):
    """The receiver of what the server tells; called in the loop's thread."""

    def receive(self, event: Any) -> None:
        """Take one event."""

    def events_dropped(self) -> None:
        """Learn that events were dropped after the last one received, and before the next."""


@dataclass(slots=True)
class _PendingCall:
    work: Work
    name: str
    future: asyncio.Future[Any]
    timeout_s: float


class Bridge:
    """The bridge, owned by the server, whose thread makes, attaches and closes it.

    ``open``, ``call``, ``run`` and ``stop_waiting`` are for the loop's thread; ``tell`` and ``close`` for the
    server's; ``post`` for any.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._near, self._far = socket.socketpair()
        self._near.setblocking(False)
        self._far.setblocking(False)
        self._inbox: deque[_PendingCall | Callable[[], None]] = deque()
        self._outbox: deque[tuple[asyncio.Future[Any] | None, Any, BaseException | None]] = deque()
        self._woken = False
        self._called = False
        self._in_gap = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listener: BridgeListener | None = None
        self._pending: set[asyncio.Future[Any]] = set()
        self.in_flight = 0
        self.stopping = False
        server.runtime.watch(self._near.fileno(), self._drain)

    # -- the server's thread

    def close(self) -> None:
        """Stop watching; what is under way is not answered any more."""
        self._server.runtime.unwatch(self._near.fileno())
        self._loop = None
        self._near.close()
        self._far.close()

    def tell(self, event: Any) -> None:
        """Hand *event* to the audience, in order. Never blocks; at ``MAX_TOLD`` the audience misses some."""
        if self._loop is None:
            return
        if len(self._outbox) >= MAX_TOLD:
            # The gap has its place in the queue: told after later events, it would be looked for behind them.
            if not self._in_gap:
                self._in_gap = True
                self._send_back(None, _GAP, None)
            return
        self._in_gap = False
        self._send_back(None, event, None)

    def _drain(self) -> None:
        try:
            self._near.recv(4096)
        except BlockingIOError:
            return
        # Cleared before the queue is read: whoever adds after that wakes us again.
        self._woken = False
        for _ in range(TURN):
            try:
                pending = self._inbox.popleft()
            except IndexError:
                return
            if isinstance(pending, _PendingCall):
                self._server.spawn(self._carry_out(pending))
            else:
                pending()
        # The rest in a turn of its own: many requests must not keep the server from all else.
        self._wake()

    async def _carry_out(self, pending: _PendingCall) -> None:
        try:
            value = await pending.work()
        except ActorGridError as error:
            self._send_back(pending.future, None, error)
        else:
            self._send_back(pending.future, value, None)

    def _send_back(self, future: asyncio.Future[Any] | None, value: Any, error: BaseException | None) -> None:
        loop = self._loop
        if loop is None:
            return
        self._outbox.append((future, value, error))
        if not self._called:
            self._called = True
            try:
                loop.call_soon_threadsafe(self._deliver)
            except RuntimeError:  # the loop is closed: nobody waits any more
                self._loop = None

    # -- any thread

    @property
    def me(self) -> Ref:
        """The reference to the server's process."""
        return self._server.me

    def post(self, action: Callable[[], None]) -> None:
        """Have *action* called in the server's thread. Unbounded: for the life of the loop, not for requests."""
        # Put there before the server is woken: woken first, it could look, find nothing, and not be woken again.
        self._inbox.append(action)
        self._wake()

    def _wake(self) -> None:
        if not self._woken:
            self._woken = True
            try:
                self._far.send(b"\0")
            except BlockingIOError:
                return  # the pair holds bytes already, so the server will come
            except OSError:
                self.stopping = True  # closed under us: the server is gone

    # -- the loop's thread

    def open(self, loop: asyncio.AbstractEventLoop, listener: BridgeListener) -> None:
        """Open the bridge: from now on the loop gets answers and events. Called once, from the loop's thread."""
        self._loop, self._listener = loop, listener

    async def call(self, to: str | Ref, request: Any, timeout_s: float = 5.0) -> Any:
        """Call server *to* and await its answer. Raises what it raised, CallTimeout, NoSuchActor, or Overloaded."""

        async def ask() -> Any:
            return await self._server.call(to, request, timeout_s)

        return await self.run(ask, timeout_s, f"{to}: {type(request).__name__}")

    async def run(self, work: Work, timeout_s: float = 5.0, name: str = "") -> Any:
        """Run *work* in the server's thread and await its result. Raises the ActorGridError it raised.

        Any other exception crashes the server. *timeout_s* is how long the work says it takes; well past
        that CallTimeout is raised, and the work goes on unheard.
        """
        self._check()
        future = asyncio.get_running_loop().create_future()
        self.in_flight += 1
        self._pending.add(future)
        self._inbox.append(_PendingCall(work, name, future, timeout_s))
        self._wake()
        try:
            async with asyncio.timeout(timeout_s + GRACE_S):
                return await future
        except TimeoutError:
            raise CallTimeout(
                f"{name or 'the gateway'} did not answer in {timeout_s + GRACE_S:g} s",
                hint="it may be restarting; whether it acted is unknown",
            ) from None

    def _check(self) -> None:
        if self.stopping:
            raise _stopping()
        if self.in_flight >= MAX_IN_FLIGHT:
            raise Overloaded(
                "the gateway has its maximum of calls under way",
                found=f"{self.in_flight} of {MAX_IN_FLIGHT}",
                hint="ask again in a moment, with fewer requests at once",
            )

    def stop_waiting(self) -> None:
        """Answer everyone who waits for the server now, as it stops."""
        self.stopping = True
        for future in list(self._pending):
            if not future.done():
                future.set_exception(_stopping())
        self._pending.clear()

    def _deliver(self) -> None:
        # Cleared before the queue is read: whoever adds after that has us called again.
        self._called = False
        while True:
            try:
                future, value, error = self._outbox.popleft()
            except IndexError:
                break
            if future is None:
                if self._listener is None:
                    continue
                if value is _GAP:
                    self._listener.events_dropped()
                else:
                    self._listener.receive(value)
                continue
            # Here, and not where a caller gives up: until its answer is back, the server is at work for it.
            self.in_flight -= 1
            self._pending.discard(future)
            if future.done():  # its caller gave up
                continue
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)


def _stopping() -> HostUnreachable:
    return HostUnreachable("this host is stopping", hint="start it again with actorgrid up, then repeat the request")
