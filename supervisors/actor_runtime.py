"""The :class:`~actorgrid.supervisors.runtime.Runtime` of one actor process: timers, descriptors, mail, ends.

What carries the bytes is a :class:`Process` (``actor.py``); this decides what is sent and when the process ends.

Bounds: 10,000 messages are held for a server whose ``start`` has not ended; calls beyond that are answered
MailboxFull, casts are dropped and logged.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import logging
import os
import resource
import select
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from time import CLOCK_BOOTTIME, clock_gettime, monotonic
from typing import Any, Protocol

from actorgrid.errors import ActorGridError, MailboxFull, NoSuchActor, PeerGone, StartFailed

from .crash_report import STATE_ATTRIBUTES_MAX, TRACEBACK_TAIL_CHARACTERS
from .envelope import CALL, CAST, ERROR, REPLY, SIGNAL, Beat, Envelope
from .exits import SHUTDOWN, ExitReason, LastMoments, from_error
from .heartbeat import OwnHeartbeat
from .inspection import shown_message
from .ref import Ref
from .registry import Registry
from .server import Server
from .timers import ActorTimer, Timers
from .wire import (
    Ended,
    HostServer,
    Inherited,
    LastWords,
    ServerStarted,
    ServerStartFailed,
    WhyEnded,
    pack,
    unpack,
)

HELD_MAX = 10_000
CRASH_EXIT_STATUS = 70
START_FAILED_EXIT_STATUS = 71
_EVENTS_A_TURN = 64
_WHY_S = 1.0
_WATCH_AGAIN_S = 0.5
_STOP_LIMIT_FACTOR = 2.0  # the supervisor kills at the limit itself: the watchdog is for supervisors that do not


_handed_on: Any = None


def share_host(host: Any) -> None:
    """In a supervisor, before it forks: the children's *host*, which need not be pickled for each and has one copy."""
    global _handed_on
    _handed_on = host


class ActorProcess(Protocol):
    """What a runtime asks of the actor around it."""

    @property
    def address(self) -> str:
        """The name of our socket."""

    @property
    def boot_folder(self) -> Path:
        """The folder that holds the sockets of this boot."""

    def post(self, to: str, data: bytes) -> None:
        """Send an envelope. Raises PeerGone, MailboxFull or FrameTooLarge."""

    def tell(self, to: str, message: Any) -> None:
        """Send one of ``wire``'s messages; nothing happens when *to* is gone."""

    def watch_peer(self, address: str) -> None:
        """Have the end of that process told to ``peer_lost``. Raises PeerGone."""

    def when_capacity(self, address: str, callback: Callable[[], None]) -> None:
        """Call back when under half of the queue to that process is used, or it is gone."""

    def wakeupAfter(self, delay: timedelta) -> None:
        """Call ``alarm`` once that time has passed."""

    def watch_descriptors(self, fds: list[int]) -> None:
        """Call ``descriptors_ready`` while one of exactly these can be read."""

    def leave_in_order(self) -> None:
        """End the process once what is queued went out."""

    def end_now(self, last_words: Any, status: int) -> None:
        """Tell the supervisor, and end: no handler, no ``stop``, no waiting for threads. Does not return."""


class ActorRuntime:
    """The runtime of a server in its own actor process; see the module."""

    def __init__(self, process: ActorProcess, order: HostServer, owner: str, heartbeat: OwnHeartbeat) -> None:
        self.process = process
        self.name = order.name
        self.owner = owner
        self.arguments = order.arguments
        self.in_place = False
        self.me = Ref(process.address, order.name)
        self.registry = Registry(process.boot_folder)
        self.server: Server | None = None
        self.end: ExitReason | None = None  # set: the process dies of it after the current handler
        self.heartbeat = heartbeat
        self.host = _handed_on if isinstance(order.host, Inherited) else order.host
        self._order = order
        self._timers = Timers(self._set_alarm)
        self._chores = Timers(self._set_alarm)  # the runtime's own, which go on while the server is suspended
        self._epoll = select.epoll()
        self._callbacks: dict[int, tuple[Callable[[], None] | None, Callable[[], None] | None]] = {}
        self._held: deque[Envelope] | None = deque()
        self._whys: dict[str, ActorTimer] = {}
        self._asked: set[str] = set()  # whose parent was asked ahead; until they are lost
        self._known_ends: dict[str, ExitReason] = {}  # answered ahead; until they are lost, after their last messages
        self._on_hold: ActorTimer | None = None
        self._stopping = False
        self._over = False  # said that we end: nothing is handled any more, what is queued still goes out
        process.watch_descriptors([self._epoll.fileno()])

    def _set_alarm(self, delay_s: float) -> None:
        self.process.wakeupAfter(timedelta(seconds=delay_s))

    # -- the Runtime protocol

    def send(self, to: str | Ref, envelope: Envelope) -> str:
        """Queue for *to*; gives its address. Raises NoSuchActor, MailboxFull or FrameTooLarge."""
        target = to if isinstance(to, Ref) else self.registry.whereis(to)
        if target is None or not target.address:
            raise NoSuchActor(f"no server is called {to!s} now", hint="it is being restarted, or has not started yet")
        try:
            self.process.post(target.address, pack(envelope))
        except PeerGone as error:
            raise NoSuchActor(f"{to!s} is down", found=error.message, hint="it is being restarted") from None
        return target.address

    def when_capacity(self, to: str | Ref, callback: Callable[[], None]) -> None:
        """Call back when less than half of the queue to *to* is used, or it is gone."""
        target = to if isinstance(to, Ref) else self.registry.whereis(to)
        if target is None:
            self.after(0.0, callback)
        else:
            self.process.when_capacity(target.address, callback)

    def watch_peer(self, ref: Ref) -> None:
        """Have the end of that process told to the server. Raises NoSuchActor."""
        try:
            if not ref.address:
                raise PeerGone(f"nobody is called {ref.name}")
            self.process.watch_peer(ref.address)
        except PeerGone as error:
            raise NoSuchActor(f"{ref} is gone", found=error.message) from None
        self._ask_ahead(ref)

    def after(self, delay_s: float, callback: Callable[[], None]) -> ActorTimer:
        """Call back once, no earlier than *delay_s* from now."""
        return self._timers.after(delay_s, callback)

    def watch(
        self, fd: int, on_readable: Callable[[], None] | None, on_writable: Callable[[], None] | None = None
    ) -> None:
        """Call back while *fd* is ready; OSError when it is closed or a regular file."""
        events = (select.EPOLLIN if on_readable else 0) | (select.EPOLLOUT if on_writable else 0)
        if not events:
            self.unwatch(fd)
            return
        try:
            self._epoll.register(fd, events)
        except FileExistsError:
            self._epoll.modify(fd, events)
        self._callbacks[fd] = (on_readable, on_writable)

    def unwatch(self, fd: int) -> None:
        """Forget *fd*."""
        if self._callbacks.pop(fd, None) is not None:
            with suppress(OSError):  # closed already: the kernel forgot it with its last copy
                self._epoll.unregister(fd)

    def monotonic(self) -> float:
        """Seconds on a clock that never steps back."""
        return monotonic()

    def boottime(self) -> float:
        """Seconds since the machine's boot, suspended time included."""
        return clock_gettime(CLOCK_BOOTTIME)

    def crash(self, error: BaseException) -> None:
        """Die of *error* after the current handler."""
        if isinstance(error, MemoryError) and self._order.memory_mib is not None:
            hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
            resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))  # the last words need some
            limit = f"MemoryError: over its limit of {self._order.memory_mib} MiB"
            self.die(ExitReason("error", limit, from_error(error).traceback))
        else:
            self.die(from_error(error))

    def die(self, reason: ExitReason) -> None:
        """Die of *reason* after the current handler."""
        if self.end is None:
            self.end = reason

    def leave(self, reason: ExitReason) -> None:
        """Run the server's ``stop``, to its end if it is a coroutine, then end in order."""
        if self._stopping:
            return
        self._begin_stop()
        started = self._held is None
        result = self.server.stop(reason.message or reason.kind) if started and self.server is not None else None
        if inspect.iscoroutine(result) and self.server is not None:
            self.server.spawn(self._leave_after(result, reason))
        else:
            self.exit(reason)

    def _begin_stop(self) -> None:
        self._stopping = True
        limit_s = self._order.shutdown_s
        self.heartbeat.stopping(None if limit_s is None else limit_s * _STOP_LIMIT_FACTOR)

    async def _leave_after(self, stop: Any, reason: ExitReason) -> None:
        try:
            await stop
        except Exception as error:  # noqa: BLE001 - the outermost loop: it is what the process dies of, as in any stop
            self.crash(error)
        else:
            self.exit(reason)

    def exit(self, reason: ExitReason = SHUTDOWN) -> None:
        """End in order, without ``stop``, once what is queued went out."""
        if self._over:
            return
        self._stopping = self._over = True
        self.say_ending(reason)
        self.process.tell(self.owner, LastWords(reason))
        self.process.leave_in_order()

    def hold(self, for_s: float, release: Callable[[], None]) -> None:
        """Call no timer and no watch until ``go_on``; call *release* after *for_s* seconds."""
        if self._on_hold is not None:
            self._on_hold.cancel()
        self._on_hold = self._chores.after(for_s, release)
        self.process.watch_descriptors([])

    def go_on(self) -> None:
        """End ``hold``."""
        if self._on_hold is not None:
            self._on_hold.cancel()
            self._on_hold = None
            self.process.watch_descriptors([self._epoll.fileno()])
            self._chores.after(0.0, self.alarm)

    # -- driven by the actor

    def begin(self) -> None:
        """Make the server and start it."""
        order = self._order
        # Before its code is loaded, which counts as its own.
        if order.memory_mib is not None:
            _limit_memory(order.memory_mib)
        try:
            kind = load_server(order.kind)
            server = kind(self.host, self)
        except ActorGridError as error:
            self._start_ended(error)
            return
        self.server = server
        server.begin(self._start_ended)

    def _start_ended(self, error: BaseException | None) -> None:
        if error is not None:
            if not isinstance(error, ActorGridError):
                reason = from_error(error)
                error = StartFailed(
                    f"{self.name} did not start: {error!r}",
                    found=reason.clue,
                    server=self.name,
                    traceback=reason.traceback[-TRACEBACK_TAIL_CHARACTERS:],
                )
            self.process.end_now(ServerStartFailed(error), START_FAILED_EXIT_STATUS)
        held, self._held = self._held or deque(), None
        if not self._stopping:
            self.heartbeat.running()
        # Before what was held is handled: that may take longer than a start is given.
        self.process.tell(self.owner, ServerStarted(os.getpid()))
        if self.server is None:
            raise AssertionError("a start ended well without a server")
        for envelope in held:
            self.heartbeat.handler_started(self.limit_s, type(envelope.body).__name__)
            self.server.deliver(envelope)
        self._beat(self.server)

    def _beat(self, server: Server) -> None:
        self.heartbeat.beat()
        if self._order.registered:
            beat = Envelope(CAST, self.name, None, Beat(self.name, os.getpid(), server.handled))
            with suppress(ActorGridError):  # no fault detector now, or one that is behind: the next beat will do
                self.send("fault_detector", beat)
        self._chores.after(self._order.settings.beat_interval_s, lambda: self._beat(server))

    @property
    def limit_s(self) -> float:
        """How long a handler may run without an ``await``."""
        declared_s = self._order.max_handler_s
        if declared_s is not None:
            return declared_s
        return Server.max_handler_s if self.server is None else self.server.max_handler_s

    def receive(self, data: bytes | bytearray | memoryview, sender: str) -> None:
        """Take one envelope from another server."""
        if self._over:
            return
        try:
            envelope = unpack(data, sender)
        except Exception:
            logging.getLogger(f"actorgrid.{self.name}").exception("a message from %s cannot be read", sender)
            return
        self.heartbeat.handler_started(self.limit_s, type(envelope.body).__name__)
        if self._held is not None and envelope.kind not in (REPLY, ERROR, SIGNAL):
            self._hold(envelope, self._held)
        elif self.server is not None:
            self.server.deliver(envelope)
            if envelope.kind == SIGNAL:
                self._watch_back(sender)

    def _watch_back(self, address: str) -> None:
        """Watch whoever linked to us or monitors us: it may die without a word."""
        if self.server is None or not self.server.watches(address):
            return
        try:
            self.process.watch_peer(address)
            self._ask_ahead(Ref(address))
        except PeerGone:
            self.peer_lost(address)
        except MailboxFull as error:  # no descriptor is left
            logging.getLogger(f"actorgrid.{self.name}").warning("%s is not watched yet: %s", address, error)
            self._chores.after(_WATCH_AGAIN_S, lambda: self._watch_back(address))

    def _hold(self, envelope: Envelope, held: deque[Envelope]) -> None:
        if len(held) < HELD_MAX:
            held.append(envelope)
            return
        logging.getLogger(f"actorgrid.{self.name}").warning("%s starts; a message is refused", self.name)
        if envelope.kind == CALL and envelope.source is not None:
            error = MailboxFull(f"{self.name} has not started and holds {HELD_MAX} messages")
            with suppress(ActorGridError):  # the caller is gone or floods us: it has a timeout
                self.send(envelope.source, Envelope(ERROR, self.name, envelope.ref, error))

    def came_back(self, name: str, _sender: str) -> None:
        """Tell the server that another registered server was started again."""
        if self.server is not None and name != self.name:
            self.server.peer_restarted(name)

    def descriptors_ready(self) -> None:
        """Call the watches of the descriptors that are ready."""
        for fd, events in self._epoll.poll(0, _EVENTS_A_TURN):
            on_readable, on_writable = self._callbacks.get(fd, (None, None))
            self.heartbeat.handler_started(self.limit_s, "descriptor")
            if on_readable is not None and events & ~select.EPOLLOUT and self.end is None:
                on_readable()
            # The first callback may have unwatched, closed or re-watched the descriptor.
            current = self._callbacks.get(fd, (None, None))[1]
            if current is not None and current is on_writable and events & ~select.EPOLLIN and self.end is None:
                on_writable()

    def alarm(self) -> None:
        """Call the timers that are due: a wakeup came."""
        self._chores.run_due(self._next_callback)
        if self._on_hold is None:
            self._timers.run_due(self._next_callback)

    def _next_callback(self) -> bool:
        # Each callback has the full time of a handler.
        self.heartbeat.handler_started(self.limit_s, "timer")
        return self.end is None

    def say_ending(self, reason: ExitReason) -> None:
        """Tell links and monitors that we end."""
        if self.server is not None:
            self.server.say_ending(reason)

    def with_moments(self, reason: ExitReason) -> ExitReason:
        """*reason* with what the server was at, for its supervisor alone; as it is for one that ends in order."""
        if self.server is None or reason.is_normal:
            return replace(reason, moments=None)
        crashed_on, message = self.server.crashed_on, ""
        if crashed_on is not None:
            message = f"{crashed_on.kind} {shown_message(crashed_on.body)} from {crashed_on.sender}"
        try:
            state = dict(itertools.islice(self.server.format_state().items(), STATE_ATTRIBUTES_MAX))
        except Exception as error:  # noqa: BLE001 - the server's own code, in whatever state the crash left it
            state = {"(state)": f"not shown: {type(error).__name__}"}
        return reason.with_moments(LastMoments(message, state))

    # -- the ends of others

    def peer_lost(self, address: str) -> None:
        """Deal with the end of the process at *address*, told by the kernel once what it left behind was read."""
        self._asked.discard(address)
        reason = self._known_ends.pop(address, None)
        if self.server is None:
            return
        ref = Ref(address)
        self.server.fail_calls(ref, reason)
        if not self.server.watches(address) or address in self._whys:
            return
        if reason is not None:
            self.server.peer_ended(ref, reason)
        else:
            self._ask_why(ref)

    def _ask_ahead(self, ref: Ref) -> None:
        """Ask a process's parent why it ends before it does: afterwards that parent may be busy making the next."""
        parent = ref.address.rpartition(".")[0]
        if "." in parent and ref.address not in self._asked:  # the admin, which has no parent, answers nobody
            self._asked.add(ref.address)
            self.process.tell(parent, WhyEnded(ref))

    def _ask_why(self, ref: Ref) -> None:
        unknown = ExitReason("killed", "and so was its supervisor, or it does not say why")
        self._whys[ref.address] = self._chores.after(_WHY_S, lambda: self.ended(Ended(ref, unknown)))
        parent = ref.address.rpartition(".")[0]
        if parent:
            self.process.tell(parent, WhyEnded(ref))

    def ended(self, answer: Ended) -> None:
        """Take the reason asked for, or that none will come. One that comes before the loss is kept until then."""
        address = answer.ref.address
        timer = self._whys.pop(address, None)
        if self.server is None:
            return
        if timer is not None:
            timer.cancel()
            self.server.peer_ended(answer.ref, answer.reason)
        elif self.server.watches(address):
            self._known_ends[address] = answer.reason


def _limit_memory(memory_mib: int) -> None:
    with open("/proc/self/status", encoding="ascii") as status:
        used_kib = next(int(line.split()[1]) for line in status if line.startswith("VmData:"))
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    # On top of what it was forked with: the kernel counts that as this process's, too.
    wanted = used_kib * 1024 + memory_mib * 2**20
    resource.setrlimit(resource.RLIMIT_DATA, (wanted if hard < 0 else min(wanted, hard), hard))


def load_server(kind: str) -> type[Server]:
    """The Server class that ``package.module:Class`` names. Raises StartFailed."""
    module_name, _, class_name = kind.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError, ValueError, TypeError) as error:  # the last two: no module, or a relative one
        raise StartFailed(f"{kind!r} cannot be loaded: {error}", asked=kind, hint="check the child spec") from error
    if not (isinstance(found, type) and issubclass(found, Server)):
        raise StartFailed(f"{kind} is not a Server", asked=kind, found=repr(found))
    return found
