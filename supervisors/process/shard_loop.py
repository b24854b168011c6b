"""A shard of a set in a thread of its own: its turns, its sockets, and what is asked from the process's other threads.

Other shards come to a socket of ours, over our host's agent where they are on another host; to those of higher slots we
go, by the ways that are found for us (``connect``). What bytes mean is decided in ``shard_links.py``.

Bounds: a connection holds 4 MiB that were not sent; 64 connections that have not said who they are.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic_ns
from typing import Any, cast

from actorgrid.errors import ActorGridError, StartFailed
from actorgrid.hotpath.light import Pid

from ..exits import ExitReason
from .asyncio_bridge import LoopAwaiting
from .cluster_shard import ClusterShard
from .releases import ShardReleases
from .shard_links import ShardIdentity

TURN_NS = 2_000_000
"""How long light processes have turns before what came is looked at."""
HANDLER_MAX_S = 10.0
"""A handler, or a ``code_change``, that runs longer is interrupted: nobody else in the shard has turns meanwhile."""
HANDLER_PATIENCE = 0.75
"""At most so much of what other shards wait for a word of this one: one handler that hangs breaks no links."""
UNSENT_MAX = 4 * 2**20
TICKS = 8
"""How often silent links are looked at, in the time that they may be silent."""
START_S = 10.0
CONNECT_S = 5.0
LEAVE_S = 0.5
"""For what was written to be sent, when the shard ends."""


@dataclass(frozen=True, slots=True)
class ShardRoute:
    """The way to another shard: a socket of this host, and what is said there first."""

    path: str
    line: bytes = b""


class SocketChannel(asyncio.Protocol):
    """A connection to another shard."""

    def __init__(self, loop: ShardLoop, slot: int | None, line: bytes = b"") -> None:
        self._loop = loop
        self._slot = slot
        self._line = line
        self._transport: asyncio.Transport | None = None  # None once it is closed
        self._made: asyncio.Transport | None = None
        self.is_full = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take it."""
        self._transport = self._made = cast("asyncio.Transport", transport)
        self._loop.transports.add(self._made)
        self._transport.set_write_buffer_limits(UNSENT_MAX)
        links, now_s = self._loop.shard.links, self._loop.shard.now_s()
        if self._slot is None:
            links.accepted(self, now_s)
            return
        self._transport.write(self._line)
        links.dialed(self, self._slot, now_s)

    def data_received(self, data: bytes) -> None:
        """Take bytes, and give turns to whom they are for."""
        self._loop.shard.links.received(self, data, self._loop.shard.now_s())
        self._loop.give_turns()

    def connection_lost(self, error: Exception | None) -> None:
        """Take its end."""
        if self._made is not None:
            self._loop.transports.discard(self._made)
        if not self._loop.shard.closed:
            self._loop.shard.links.closed(self)
            self._loop.give_turns()

    def pause_writing(self) -> None:
        """Let what is to be sent wait."""
        self.is_full = True

    def resume_writing(self) -> None:
        """Send what has waited."""
        self.is_full = False
        self._loop.give_turns()

    def write(self, data: bytes) -> None:
        """As of ``LinkChannel``."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        """As of ``LinkChannel``: what cannot be sent soon is not sent."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.close()
            self._loop.later(1.0, transport.abort)


class ShardLoop:
    """The thread. *path*: of our socket. *on_end* is called when the shard ends by itself, with why: in the thread, or
    in another when that one hangs.
    """

    def __init__(
        self,
        me: ShardIdentity,
        secret: bytes,
        path: str,
        patience_s: float,
        on_end: Callable[[ExitReason], None],
    ) -> None:
        self.path = path
        self.shard = ClusterShard(
            me,
            secret,
            clock=monotonic_ns,
            patience_s=patience_s,
            interrupt_after_s=min(HANDLER_MAX_S, HANDLER_PATIENCE * patience_s),
        )
        self.shard.overruns.on_stuck = lambda found: on_end(
            ExitReason(
                "hung", f"a handler of {found.kind} {found.pid} does not end: {found.seconds:.1f} s", found.stack
            )
        )
        self.releases = ShardReleases(self.shard)
        self.shard.foreign_await = LoopAwaiting(self.shard)  # type: ignore[method-assign]
        self.shard.on_wake = self._wake
        self._on_end = on_end
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="actorgrid-light-shard", daemon=True)
        self._running = False
        self._woken = False
        self._again: asyncio.Handle | None = None
        self._dialing: set[int] = set()
        self.transports: set[asyncio.Transport] = set()
        """Of all connections that have not ended."""
        self._up: Future[None] = Future()

    def start(self) -> None:
        """Begin. Raises StartFailed."""
        self._thread.start()
        self._up.result(START_S)

    def begin_root(self, root: Any, args: tuple[Any, ...]) -> None:
        """Begin the process with whose end, other than in order, the shard ends."""
        self.shard.post_action(lambda: self._begin_root(root, args))

    def connect(self, slot: int, route: ShardRoute) -> None:
        """Go that way to the shard of that slot; from any thread."""
        self._post(lambda: self._dial(slot, route))

    def absent(self, slot: int) -> None:
        """The ledger knows of no incarnation in that slot; from any thread."""
        self._post(lambda: self._absent(slot))

    def wanted(self) -> tuple[list[int], list[int]]:
        """To which slots a way is wanted, and of which it should be known whether anybody is there; from any thread."""

        def look() -> tuple[list[int], list[int]]:
            to_dial = [slot for slot in self.shard.links.to_dial() if slot not in self._dialing]
            missing = set(self.shard.links.missing())
            return to_dial, sorted(self.shard.global_names.unreported & missing)

        return self.shard.post_action(look).result(START_S)

    def close(self) -> None:
        """End all of it; from any other thread."""
        self._post(self._close)
        self._thread.join(START_S)

    # -- in the thread

    def give_turns(self) -> None:
        """Give turns for a while, and see to it that we come again when there is more."""
        if self._running or self.shard.closed:
            return
        self._running = True
        try:
            until = monotonic_ns() + TURN_NS
            while self.shard.run() and monotonic_ns() < until and not self.shard.closed:
                pass
        finally:
            self._running = False
        self._plan()

    def _plan(self) -> None:
        if self.shard.closed:  # by one of its own
            return
        due_ns = self.shard.core.due_in_ns()
        if self._again is not None:
            self._again.cancel()
            self._again = None
        if due_ns == 0:
            self._again = self._loop.call_soon(self._come_again)
        elif due_ns > 0:
            self._again = self._loop.call_later(due_ns / 1e9, self._come_again)

    def later(self, delay_s: float, action: Callable[[], None]) -> None:
        """Do something later."""
        self._loop.call_later(delay_s, action)

    def _come_again(self) -> None:
        self._again = None
        self.give_turns()

    def _wake(self) -> None:
        if not self._woken:
            self._woken = True
            self._post(self._wake_here)

    def _wake_here(self) -> None:
        self._woken = False
        self.give_turns()

    def _post(self, action: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop is closed: so is all it would do
            self._loop.call_soon_threadsafe(action)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            with suppress(FileNotFoundError):
                os.unlink(self.path)  # of the incarnation before, which nobody listens at
            os.makedirs(os.path.dirname(self.path), mode=0o700, exist_ok=True)
            server = self._loop.run_until_complete(
                self._loop.create_unix_server(lambda: SocketChannel(self, None), self.path)
            )
            os.chmod(self.path, 0o600)
        except OSError as error:
            self._up.set_exception(StartFailed(f"a shard cannot listen: {error}", asked=self.path))
            self._loop.close()
            return
        self._up.set_result(None)
        self._tick()
        try:
            self._loop.run_forever()
        finally:
            server.close()
            with suppress(OSError):
                os.unlink(self.path)
            self._loop.run_until_complete(self._leave())
            self._loop.close()

    async def _leave(self) -> None:
        """Let everybody hear the end."""
        for task in asyncio.all_tasks():
            if task is not asyncio.current_task():
                task.cancel()
        until = self._loop.time() + LEAVE_S
        while self.transports and self._loop.time() < until:
            await asyncio.sleep(LEAVE_S / 100)
        for transport in list(self.transports):
            transport.abort()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    def _tick(self) -> None:
        self.shard.links.tick(self.shard.now_s())
        self.give_turns()
        self._loop.call_later(self.shard.links.patience_s / TICKS, self._tick)

    def _dial(self, slot: int, route: ShardRoute) -> None:
        if slot in self._dialing or slot not in self.shard.links.to_dial():
            return
        self._dialing.add(slot)
        made = self._loop.create_unix_connection(lambda: SocketChannel(self, slot, route.line), route.path)
        task = self._loop.create_task(asyncio.wait_for(made, CONNECT_S))
        task.add_done_callback(lambda done: self._dialed(slot, done))

    def _dialed(self, slot: int, done: asyncio.Task[Any]) -> None:
        self._dialing.discard(slot)
        with suppress(asyncio.CancelledError):
            done.exception()  # whatever it was, the way is looked for again

    def _absent(self, slot: int) -> None:
        self.shard.global_names.absent(slot)
        self.give_turns()

    def _begin_root(self, root: Any, args: tuple[Any, ...]) -> None:
        async def watch(me: Any) -> None:
            _, monitor = me.spawn_monitor(root, *args)
            while True:
                down = await me.receive()
                if getattr(down, "monitor", None) == monitor:
                    self._loop.call_soon(self._on_end, down.reason)
                    return

        self.shard.spawn(watch)

    def _close(self) -> None:
        self.shard.close()
        self.shard.links.close()
        self._loop.stop()

    # -- what is asked from outside

    def spawned(self, kind: Any, args: tuple[Any, ...], name: str | None, timeout_s: float) -> Future[Pid]:
        """Begin a process; a future of its Pid when its ``init`` has ended and it has its name of the set."""
        future: Future[Pid] = Future()

        def begin() -> None:
            try:
                pid = self.shard.spawn_opt(kind, args)
                self.shard.when_started(pid, kind, named, future.set_exception)
            except ActorGridError as error:
                future.set_exception(error)

        def named(pid: Pid) -> None:
            process = self.shard.core.find(pid)
            if name is None or process is None:
                future.set_result(pid)
                return

            def settle(error: BaseException | None) -> None:
                if error is None:
                    future.set_result(pid)
                else:
                    self.shard.exit(pid, "killed")
                    future.set_exception(error)

            try:
                self.shard.claim(process, name, timeout_s, settle)
            except ActorGridError as error:
                settle(error)

        self.shard.post_action(begin)
        return future
