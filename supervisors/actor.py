"""A Thespian actor that hosts one :class:`Server`: the process of a server in production.

Thespian's own manners that end here: a handler that raises is not run a second time (the process says why to its
supervisor and dies), fatal signals kill instead of spinning, a process dies with its supervisor, and the list
of watched descriptors survives every message. Beats come from the message loop: a stuck server stops beating.

Bounds: 10,000 messages are held for a server whose ``start`` has not ended; calls beyond that are answered
MailboxFull, casts are dropped and logged.
"""

from __future__ import annotations

import heapq
import importlib
import inspect
import itertools
import logging
import os
import select
import signal
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from time import monotonic
from typing import Any

from setproctitle import setproctitle
from thespian.actors import (
    Actor,
    ActorExitRequest,
    ChildActorExited,
    ThespianWatch,
    WakeupMessage,
    WatchMessage,
)

from actorgrid.errors import ActorDown, ActorGridError, MailboxFull, NoSuchActor, PeerGone, StartFailed
from actorgrid.transports.thespian_unix import Parcel, address_of, name_of

from .child import ChildSpec
from .server import CALL, CAST, ERROR, REPLY, Beat, Envelope, Server
from .wire import (
    Directory,
    HostServer,
    Place,
    ServerCrashed,
    ServerStarted,
    ServerStartFailed,
    StopServer,
    pack,
    unpack,
)

HELD_MAX = 10_000
CRASH_EXIT_STATUS = 70
START_FAILED_EXIT_STATUS = 71
_FLUSH_S = 1.0
_COMPACT_FROM = 256
_EVENTS_A_TURN = 64


class ActorTimer:
    """A pending callback."""

    __slots__ = ("callback", "timers")

    def __init__(self, timers: Timers, callback: Callable[[], None]) -> None:
        self.timers = timers
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Never call it."""
        if self.callback is not None:
            self.callback = None
            self.timers.cancelled += 1


class Timers:
    """Callbacks by due time, over an alarm that can only be set, never cleared.

    Cancelled timers (each answered call leaves one) are dropped once they are the greater part.
    """

    def __init__(self, set_alarm: Callable[[float], None]) -> None:
        self._set_alarm = set_alarm
        self._heap: list[tuple[float, int, ActorTimer]] = []
        self._alarms: list[float] = []  # what set_alarm was asked for and has not come yet
        self._count = itertools.count()
        self.cancelled = 0

    def after(self, delay_s: float, callback: Callable[[], None]) -> ActorTimer:
        """Call back once, no earlier than *delay_s* from now."""
        timer = ActorTimer(self, callback)
        heapq.heappush(self._heap, (monotonic() + max(0.0, delay_s), next(self._count), timer))
        if self.cancelled > _COMPACT_FROM and self.cancelled * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].callback is not None]
            heapq.heapify(self._heap)
            self.cancelled = 0
        self._arm()
        return timer

    def run_due(self, stop: Callable[[], bool]) -> None:
        """The alarm came: call what is due, until *stop* says so."""
        now = monotonic()
        while self._alarms and self._alarms[0] <= now:
            heapq.heappop(self._alarms)
        while self._heap and not stop():
            due, _, timer = self._heap[0]
            if timer.callback is None:
                heapq.heappop(self._heap)
                self.cancelled -= 1
                continue
            if due > now:
                break
            heapq.heappop(self._heap)
            callback, timer.callback = timer.callback, None
            callback()
        self._arm()

    def _arm(self) -> None:
        if self._heap and (not self._alarms or self._heap[0][0] < self._alarms[0]):
            due = self._heap[0][0]
            heapq.heappush(self._alarms, due)
            self._set_alarm(max(0.0, due - monotonic()))


class ActorRuntime:
    """The :class:`~actorgrid.supervisors.server.Runtime` of one actor process."""

    def __init__(self, actor: ServerActor, order: HostServer, owner: str) -> None:
        self.actor = actor
        self.name = order.name
        self.generation = order.generation
        self.owner = owner
        self.directory: dict[str, Place] = {}
        self.fatal: BaseException | None = None
        self.server: Server | None = None
        self._timers = Timers(lambda delay_s: actor.wakeupAfter(timedelta(seconds=delay_s)))
        self._epoll = select.epoll()
        self._callbacks: dict[int, tuple[Callable[[], None] | None, Callable[[], None] | None]] = {}
        self._held: deque[Envelope] | None = deque()
        self._seen_up: dict[str, int] = {}
        self._addresses: dict[str, Any] = {}
        self._stopping = False
        self.watch_fds = [self._epoll.fileno()]

    # -- the Runtime protocol

    def send(self, to: str, envelope: Envelope) -> None:
        """Queue for the server named *to*; raises NoSuchActor, MailboxFull or FrameTooLarge."""
        place = self.directory.get(to)
        if place is None:
            raise NoSuchActor(f"no server is called {to!r} now", found=", ".join(sorted(self.directory)))
        address = self._addresses.get(place.address)
        if address is None:
            address = self._addresses[place.address] = address_of(place.address)
        try:
            self.actor.send(address, Parcel(pack(envelope, self.generation)))
        except PeerGone as error:
            raise NoSuchActor(f"{to} is down", found=error.message, hint="it is being restarted") from None

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

    def crash(self, error: BaseException) -> None:
        """Die of *error* after the current handler."""
        if self.fatal is None:
            self.fatal = error

    # -- driven by the actor

    def begin(self, order: HostServer) -> None:
        """Make the server and start it."""
        self.take_directory(order.directory)
        try:
            kind = load_server(order.kind)
            server = kind(order.host, self)
        except ActorGridError as error:
            self._start_ended(error)
            return
        self.server = server
        server.begin(self._start_ended)

    def _start_ended(self, error: BaseException | None) -> None:
        if error is not None:
            if not isinstance(error, ActorGridError):
                logging.getLogger(f"actorgrid.{self.name}").error("%s did not start", self.name, exc_info=error)
                error = StartFailed(
                    f"{self.name} did not start: {error!r}", hint="the agent's log has the traceback", server=self.name
                )
            self.actor.leave(ServerStartFailed(self.name, self.generation, error), START_FAILED_EXIT_STATUS)
        held, self._held = self._held or deque(), None
        self.actor.send(address_of(self.owner), ServerStarted(self.name, self.generation, os.getpid()))
        if self.server is None:
            raise AssertionError("a start ended well without a server")
        for envelope in held:
            self.server.deliver(envelope)
        self._beat(self.server, self.server.host.settings.monitoring.beat_interval_s)

    def _beat(self, server: Server, interval_s: float) -> None:
        beat = Envelope(CAST, self.name, None, Beat(self.name, os.getpid(), server.handled))
        with suppress(ActorGridError):  # no fault detector now, or one that is behind: the next beat will do
            self.send("fault_detector", beat)
        self.after(interval_s, lambda: self._beat(server, interval_s))

    def receive(self, data: bytes | bytearray, sender: str) -> None:
        """One envelope from another server."""
        try:
            envelope, generation = unpack(data)
        except Exception:
            logging.getLogger(f"actorgrid.{self.name}").exception("a message from %s cannot be read", sender)
            return
        known = self.directory.get(envelope.sender)
        if known is None or known.generation < generation:
            # Its first message was faster than the supervisor's news of it.
            self.directory[envelope.sender] = Place(sender, generation, False)
        if self._held is not None and envelope.kind not in (REPLY, ERROR):
            self._hold(envelope, self._held)
        elif self.server is not None:
            self.server.deliver(envelope)

    def _hold(self, envelope: Envelope, held: deque[Envelope]) -> None:
        if len(held) < HELD_MAX:
            held.append(envelope)
            return
        logging.getLogger(f"actorgrid.{self.name}").warning("%s starts; a message is refused", self.name)
        if envelope.kind == CALL:
            error = MailboxFull(f"{self.name} has not started and holds {HELD_MAX} messages")
            with suppress(ActorGridError):  # the caller is gone or floods us: it has a timeout
                self.send(envelope.sender, Envelope(ERROR, self.name, envelope.ref, error))

    def take_directory(self, places: dict[str, Place]) -> None:
        """The supervisor says who is where."""
        old, self.directory = self.directory, dict(places)
        for name, before in old.items():
            now = places.get(name)
            if now is not None and now.generation < before.generation:
                self.directory[name] = before  # we heard of it from itself, and the supervisor's news is older
            elif (now is None or now.generation > before.generation) and self.server is not None:
                self.server.fail_calls(name, ActorDown(f"{name} died before it answered"))
        live = {place.address for place in self.directory.values()}
        self._addresses = {name: address for name, address in self._addresses.items() if name in live}
        for name, place in places.items():
            seen = self._seen_up.get(name)
            if not place.up or seen == place.generation or name == self.name:
                continue
            self._seen_up[name] = place.generation
            if self.server is not None and (seen is not None or place.generation > 1):
                self.server.peer_restarted(name)

    def descriptors_ready(self) -> None:
        """Something watched is ready."""
        for fd, events in self._epoll.poll(0, _EVENTS_A_TURN):
            on_readable, on_writable = self._callbacks.get(fd, (None, None))
            if on_readable is not None and events & ~select.EPOLLOUT and self.fatal is None:
                on_readable()
            # The first callback may have unwatched, closed or re-watched the descriptor.
            current = self._callbacks.get(fd, (None, None))[1]
            if current is not None and current is on_writable and events & ~select.EPOLLIN and self.fatal is None:
                on_writable()

    def alarm(self) -> None:
        """A wakeup came."""
        self._timers.run_due(lambda: self.fatal is not None)

    def stop(self, reason: str) -> None:
        """Run the server's ``stop``, to its end if it is a coroutine, then leave."""
        if self._stopping:
            return
        self._stopping = True
        started = self._held is None
        result = self.server.stop(reason) if started and self.server is not None else None
        if inspect.iscoroutine(result) and self.server is not None:
            self.server.spawn(self._leave_after(result))
        else:
            self.exit()

    async def _leave_after(self, stop: Any) -> None:
        try:
            await stop
        finally:
            self.exit()

    def exit(self) -> None:
        """Leave in order once what is queued went out."""
        self._stopping = True
        self.actor.send(self.actor.myAddress, ActorExitRequest())


class ServerActor(Actor):  # type: ignore[misc]
    """The process of one server. Its first message is HostServer, from its supervisor."""

    runtime_kind: type[ActorRuntime] = ActorRuntime

    def __init__(self) -> None:
        super().__init__()
        self.runtime: ActorRuntime | None = None
        self._watch: Any = None
        # Other servers learn our address as soon as there is one, and may be faster than our first order.
        self._early: deque[tuple[Any, Any]] = deque(maxlen=HELD_MAX)

    def receiveMessage(self, message: Any, sender: Any) -> Any:
        """Any message. Lets no exception out: Thespian would run the handler a second time."""
        try:
            runtime = self.runtime
            if runtime is None:
                if isinstance(message, HostServer):
                    self._become(message, name_of(sender))
                    while self._early:
                        self.receiveMessage(*self._early.popleft())
                elif isinstance(message, Parcel | StopServer):
                    self._early.append((message, sender))
            elif type(message) is Parcel:
                runtime.receive(message.data, name_of(sender))
            elif isinstance(message, WatchMessage):
                runtime.descriptors_ready()
            elif isinstance(message, WakeupMessage):
                runtime.alarm()
            elif isinstance(message, Directory):
                runtime.take_directory(message.places)
            elif isinstance(message, StopServer):
                runtime.stop(message.reason)
            else:
                self.other_message(message, sender)
            if self.runtime is not None and self.runtime.fatal is not None:
                self._die(self.runtime.fatal)
        except BaseException as error:  # noqa: BLE001 - the outermost loop of the process
            self._die(error)
        return self._watch

    def other_message(self, message: Any, sender: Any) -> None:
        """For actors that take more."""

    def _become(self, order: HostServer, owner: str) -> None:
        setproctitle(f"actorgrid: {order.name}")
        self.runtime = self.runtime_kind(self, order, owner)
        self._watch = ThespianWatch(self.runtime.watch_fds)
        transport = self._myRef.transport
        signal.signal(signal.SIGTERM, lambda _number, _frame: transport.notify(StopServer("SIGTERM")))
        self.runtime.begin(order)

    def _die(self, error: BaseException) -> None:
        name = self.runtime.name if self.runtime is not None else "a server without a name"
        log = logging.getLogger(f"actorgrid.{name}")
        log.critical("%s ends: %r", name, error, exc_info=error)
        if self.runtime is None:
            os._exit(CRASH_EXIT_STATUS)
        reason = error if isinstance(error, ActorGridError) else ActorDown(f"{name} crashed: {error!r}")
        self.leave(ServerCrashed(name, self.runtime.generation, reason), CRASH_EXIT_STATUS)

    def leave(self, last_words: Any, status: int) -> None:
        """Tell the supervisor and end the process now: no handler, no ``stop``, no waiting for threads."""
        if self.runtime is not None:
            with suppress(ActorGridError):  # the supervisor is gone or stuck: the exit status says enough
                self.send(address_of(self.runtime.owner), last_words)
        self._myRef.transport.flush(_FLUSH_S)
        logging.shutdown()
        os._exit(status)


class SupervisorRuntime(ActorRuntime):
    """The runtime of a server that has children (``supervisor.py``)."""

    def __init__(self, actor: ServerActor, order: HostServer, owner: str) -> None:
        super().__init__(actor, order, owner)
        self.children = order.children
        self._host = order.host
        self._generations: dict[str, int] = {}
        self._pids: dict[str, int] = {}
        self._names: dict[str, str] = {}  # socket name -> child id
        self._places: dict[str, Place] = {
            order.name: Place(name_of(actor.myAddress), order.generation, True),
            "main": Place(owner, 0, True),
        }
        self.directory = dict(self._places)

    def start_child(self, spec: ChildSpec) -> int:
        """Fork a process for *spec* and order it to start; gives its pid. Raises StartFailed."""
        generation = self._generations[spec.id] = self._generations.get(spec.id, 0) + 1
        manager = self.actor._myRef
        local = self.actor.createActor(ServerActor)
        pid = manager.child_pid(local)
        if pid is None:
            raise StartFailed(f"no process could be made for {spec.id}", hint="the agent's log says why")
        address = name_of(manager._addrManager.exportAddr(local))
        self._pids[spec.id], self._names[address] = pid, spec.id
        self._places[spec.id] = Place(address, generation, False)
        self.actor.send(address_of(address), HostServer(spec.id, spec.kind, self._host, generation, dict(self._places)))
        self.publish(besides=spec.id)
        return int(pid)

    def stop_child(self, child_id: str, reason: str) -> None:
        """Ask a child to stop in order; harmless when it is gone."""
        place = self._places.get(child_id)
        if place is not None:
            self.actor.send(address_of(place.address), StopServer(reason))

    def kill_child(self, child_id: str) -> None:
        """SIGKILL; harmless when it is gone. Its pid cannot be another process: we have not buried it."""
        pid = self._pids.get(child_id)
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def stop(self, reason: str) -> None:
        """Stop the children in order, even those of an unfinished start, then leave."""
        if self.server is None:
            self.exit()
        elif not self._stopping:
            self._stopping = True
            self.server.spawn(self._leave_after(self.server.stop(reason)))

    def fail(self, error: ActorGridError) -> None:
        """Tell the owner that this supervisor gave up, and leave in order."""
        self.actor.send(address_of(self.owner), ServerCrashed(self.name, self.generation, error))
        self.exit()

    def publish(self, besides: str = "") -> None:
        """Tell all children (and ourselves) who is where."""
        self.take_directory(self._places)
        for child_id in self._pids:
            place = self._places.get(child_id)
            if child_id != besides and place is not None:
                self.actor.send(address_of(place.address), Directory(dict(self._places)))

    def child_message(self, message: Any, sender: str) -> None:
        """News from or of a child."""
        child_id = self._names.get(sender, "")
        place = self._places.get(child_id)
        if place is None or place.address != sender:
            return
        server: Any = self.server
        if isinstance(message, ServerStarted):
            self._places[child_id] = Place(place.address, place.generation, True)
            self.publish()
            server.child_started(child_id)
        elif isinstance(message, ServerStartFailed):
            server.child_start_failed(child_id, message.error)
        elif isinstance(message, ServerCrashed):
            server.child_crashed(child_id, message.error)

    def child_exited(self, address: str, exit_status: int) -> None:
        """The kernel says a child is gone; a second word about the same process is ignored."""
        child_id = self._names.pop(address, None)
        if child_id is None:
            return
        del self._places[child_id], self._pids[child_id]
        self.publish()
        server: Any = self.server
        server.child_exited(child_id, exit_status)


class SupervisorActor(ServerActor):
    """The process of a server that has children."""

    runtime_kind = SupervisorRuntime

    def other_message(self, message: Any, sender: Any) -> None:
        """What children say and how they end."""
        runtime = self.runtime
        if not isinstance(runtime, SupervisorRuntime):
            return
        if isinstance(message, ChildActorExited):
            status = getattr(message, "exit_status", None)
            if status is not None:
                runtime.child_exited(name_of(message.childAddress), status)
        elif isinstance(message, (ServerStarted, ServerStartFailed, ServerCrashed)):
            runtime.child_message(message, name_of(sender))


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
