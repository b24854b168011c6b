"""Servers in one process and one thread, on a clock the caller moves: for tests and for embedding.

The same :class:`~actorgrid.supervisors.server.Server` code runs here as under Thespian. Messages go
through one FIFO; timers fire in order of their due time; watched file descriptors are really polled.
"""

from __future__ import annotations

import heapq
import inspect
import itertools
import selectors
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from time import CLOCK_BOOTTIME, clock_gettime, monotonic
from typing import Any

from actorgrid.errors import ActorGridError, NoSuchActor

from .envelope import CALL, REPLY, Envelope
from .exits import ExitReason
from .missing import no_such_server
from .ref import Ref
from .registry import MemoryRegistry
from .server import Server
from .wire import pack, unpack

TEST = Ref("test", "test")
REAL_LIMIT_S, SIMULATED_LIMIT_S = 60.0, 10.0
"""How long ``run_until`` and ``request`` go on: on the real clock so long that only a hang reaches it."""


class InlineTimer:
    """A pending callback."""

    __slots__ = ("callback", "cancelled")

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        """Cancel the callback: it is never called."""
        self.cancelled = True


class InlineRuntime:
    """One server's view of its node: the :class:`~actorgrid.supervisors.runtime.Runtime` protocol."""

    def __init__(self, node: InlineNode, name: str, arguments: tuple[Any, ...]) -> None:
        self.node = node
        self.me = Ref(name, name)
        self.arguments = arguments
        self.in_place = not node.real_time
        self.registry = node.registry
        self.monotonic = node.monotonic
        self.boottime = node.boottime
        self.after = node.after
        self.watch = node.watch
        self.unwatch = node.unwatch
        self.crash = node.crash
        self._hold: InlineTimer | None = None

    def send(self, to: str | Ref, envelope: Envelope) -> str:
        """Queue for *to*."""
        return self.node.post(to, envelope, self.me)

    def when_capacity(self, _to: str | Ref, callback: Callable[[], None]) -> None:
        """Call back in one of the next steps: queues here have no bound."""
        self.node.after(0.0, callback)

    def watch_peer(self, ref: Ref) -> None:
        """Do nothing: the node tells of every end by itself."""
        if ref.address not in self.node.servers:
            raise NoSuchActor(f"{ref} is gone")

    def die(self, reason: ExitReason) -> None:
        """End this server, without ``stop``."""
        self.node.end(self.me.address, reason)

    def leave(self, reason: ExitReason) -> None:
        """Run ``stop``, then end this server."""
        server = self.node.servers[self.me.address]
        result = server.stop(reason.message or reason.kind)
        if inspect.iscoroutine(result):
            server.spawn(self._leave_after(result, reason))
        else:
            self.die(reason)

    async def _leave_after(self, stop: Any, reason: ExitReason) -> None:
        await stop
        self.die(reason)

    def hold(self, for_s: float, release: Callable[[], None]) -> None:
        """Call *release* after *for_s* seconds. Timers and watches go on: a node has one clock for all."""
        self.go_on()
        self._hold = self.node.after(for_s, release)

    def go_on(self) -> None:
        """End ``hold``."""
        if self._hold is not None:
            self._hold.cancel()
            self._hold = None


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
        self.ended: dict[str, ExitReason] = {}
        self.registry = MemoryRegistry(lambda address: address in self.servers or address == TEST.address)
        self.registry.register("test", TEST)
        self._inbox: deque[tuple[str, Ref, bytes]] = deque()
        self._timers: list[tuple[float, int, InlineTimer]] = []
        self._count = itertools.count()
        self._selector = selectors.DefaultSelector()
        self._replies: dict[tuple[int, int], Envelope] = {}

    # -- for the servers' runtimes

    def post(self, to: str | Ref, envelope: Envelope, source: Ref) -> str:
        """Queue for *to*; a message that cannot be pickled fails here, as it would between processes."""
        target = to if isinstance(to, Ref) else self.registry.whereis(to)
        if target is None or (target.address not in self.servers and target != TEST):
            raise no_such_server(to, self.servers)
        self._inbox.append((target.address, source, pack(envelope)))
        return target.address

    def end(self, name: str, reason: ExitReason, silent: bool = False) -> None:
        """End a server; *silent*: it says nothing itself, and those who watch it hear of its end from the node."""
        server = self.servers[name]
        if not silent:
            server.say_ending(reason)
        del self.servers[name]
        self.registry.bury(name)
        self.ended[name] = reason
        for other in list(self.servers.values()):
            if other.watches(name):
                other.peer_ended(Ref(name, name), reason)

    def after(self, delay_s: float, callback: Callable[[], None]) -> InlineTimer:
        """Call *callback* once the clock has moved *delay_s* seconds."""
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
        """Seconds on the node's clock."""
        return monotonic() if self.real_time else self.now_s

    def boottime(self) -> float:
        """Seconds on the node's clock, or since the machine's boot where time is real, as shims count them."""
        return clock_gettime(CLOCK_BOOTTIME) if self.real_time else self.now_s

    def crash(self, error: BaseException) -> None:
        """Note that a server died of *error*: the next ``step`` raises it."""
        self.crashed[type(error).__name__] = error
        raise error

    # -- for tests

    def add(self, kind: type[Server], host: Any, *arguments: Any, name: str = "") -> Server:
        """Make a server and start it; what ``start`` raises comes out here once it has ended."""
        name = name or kind.name
        server = kind(host, InlineRuntime(self, name, arguments))
        self.servers[name] = server
        self.registry.register(name, Ref(name, name))
        outcome: list[BaseException | None] = []
        server.begin(outcome.append)
        self.run_until(lambda: bool(outcome), what=f"start of {name}")
        if outcome[0] is not None:
            raise outcome[0]
        return server

    def remove(self, name: str) -> None:
        """End a server, as a SIGKILL would: no goodbye. Open calls to it wait for their timeouts."""
        self.end(name, ExitReason("killed"), silent=True)

    def send(self, to: str | Ref, envelope: Envelope) -> None:
        """Send from outside, as if from the envelope's sender; an answer to "test" is dropped, nobody waits for it."""
        self.post(to, envelope, Ref(envelope.sender, envelope.sender))

    def request(self, to: str | Ref, message: Any, timeout_s: float | None = None) -> Any:
        """Call *to* from outside and wait for the answer."""
        ref = (0, next(self._count))
        self.post(to, Envelope(CALL, "test", ref, message), TEST)
        self.run_until(lambda: ref in self._replies, timeout_s, what=f"reply to {type(message).__name__}")
        reply = self._replies.pop(ref)
        if reply.kind == REPLY:
            return reply.body
        raise reply.body

    def step(self, wait_s: float = 0.0) -> bool:
        """Do one thing if there is one; ``False`` when all is quiet.

        On the real clock descriptors have their turn after each timer, too: where timers come due faster than they
        are called, as on a loaded machine, nothing would be heard any more.
        """
        if self._inbox:
            to, source, data = self._inbox.popleft()
            envelope = replace(unpack(data, source.address), source=source)
            if to == TEST.address and envelope.ref is not None:
                self._replies[envelope.ref] = envelope
            elif to in self.servers:
                self.servers[to].deliver(envelope)
            return True
        fired = self._fire()
        if fired:
            wait_s = 0.0
            if not self.real_time:
                return True
        elif self._timers:
            wait_s = min(wait_s, max(0.0, self._timers[0][0] - self.monotonic()))
        ready = self._selector.select(wait_s if self.real_time else 0) if self._selector.get_map() or wait_s else []
        for key, mask in ready:
            on_readable, on_writable = key.data
            if mask & selectors.EVENT_READ and on_readable:
                on_readable()
            if mask & selectors.EVENT_WRITE and on_writable:
                on_writable()
        return fired or bool(ready)

    def _fire(self) -> bool:
        """Call the first timer that is due; whether there was one."""
        while self._timers and (self._timers[0][0] <= self.monotonic() or self._timers[0][2].cancelled):
            _, _, timer = heapq.heappop(self._timers)
            if not timer.cancelled:
                timer.callback()
                return True
        return False

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

    def run_until(self, condition: Callable[[], bool], timeout_s: float | None = None, what: str = "condition") -> None:
        """Run until *condition* holds, for at most *timeout_s*: by itself ``REAL_LIMIT_S``, or ``SIMULATED_LIMIT_S``.

        With a simulated clock, moves it so far at most. Raises ActorGridError.
        """
        if timeout_s is None:
            timeout_s = REAL_LIMIT_S if self.real_time else SIMULATED_LIMIT_S
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
