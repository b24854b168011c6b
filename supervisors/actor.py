"""The Thespian actor that hosts one :class:`~actorgrid.supervisors.server.Server`: its process in production.

Thespian's own manners that end here: a handler that raises is not run a second time (the process says why to its
supervisor and dies), fatal signals kill instead of spinning, a process dies with its supervisor, and the list
of watched descriptors survives every message. What the process does otherwise is ``actor_runtime.py``'s.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
from collections import deque
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

from setproctitle import setproctitle
from thespian.actors import Actor, ActorExitRequest, ChildActorExited, ThespianWatch, WakeupMessage, WatchMessage

from actorgrid.errors import ActorGridError, StartFailed
from actorgrid.transports.unix.thespian import PARCEL, Parcel, PeerLost, UnixTransport, address_of, name_of

from .actor_runtime import CRASH_EXIT_STATUS, HELD_MAX, ActorRuntime
from .child_runtime import SupervisorRuntime, told_to_stop
from .crash_report import log_crash
from .exits import ExitReason, from_error
from .heartbeat import adopt
from .wire import (
    CameBack,
    Ended,
    HostServer,
    LastWords,
    ServerStarted,
    ServerStartFailed,
    StopServer,
    WhyEnded,
)

_FLUSH_S = 1.0
_LOOK_AGAIN_S = 0.005
_NO_DESCRIPTORS = "raise the limit of open files (ulimit -n), or close some"
_FORK_HINTS = {
    errno.EAGAIN: "the limit of processes is reached (ulimit -u, or pids.max of the cgroup): stop some, or raise it",
    errno.ENOMEM: "the kernel has no memory for one more process: stop some, or give the host more memory",
    errno.EMFILE: _NO_DESCRIPTORS,
    errno.ENFILE: _NO_DESCRIPTORS,
}
_OTHER_FORK_HINT = "see to what the error names; the folder of the boot must be ours alone and have space"


class ServerActor(Actor):  # type: ignore[misc]
    """The process of one server. Its first message is HostServer, from its supervisor."""

    takes_nothing = True  # its ``__init__``: see ``UnixManager``

    def __init__(self) -> None:
        super().__init__()
        self.runtime: ActorRuntime | None = None
        self._watch: Any = None
        # Other servers learn our address as soon as there is one, and may be faster than our first order.
        self._early: deque[tuple[Any, Any]] = deque(maxlen=HELD_MAX)

    def receiveMessage(self, message: Any, sender: Any) -> Any:
        """Handle any message. Lets no exception out: Thespian would run the handler a second time."""
        try:
            if self.runtime is None:
                self._first_messages(message, sender)
            else:
                self._receive(self.runtime, message, sender)
            if self.runtime is not None and self.runtime.end is not None:
                self._die(self.runtime, self.runtime.end)
        except BaseException as error:
            if self.runtime is None:
                logging.getLogger("actorgrid.actor").critical("an actor without an order ends", exc_info=error)
                os._exit(CRASH_EXIT_STATUS)
            self.runtime.crash(error)
            self._die(self.runtime, self.runtime.end or from_error(error))
        return self._watch

    def _first_messages(self, message: Any, sender: Any) -> None:
        if isinstance(message, HostServer):
            self._become(message, name_of(sender))
            while self._early:
                self.receiveMessage(*self._early.popleft())
        elif isinstance(message, Parcel | StopServer | PeerLost | WhyEnded):
            self._early.append((message, sender))

    def _receive(self, runtime: ActorRuntime, message: Any, sender: Any) -> None:
        if type(message) is Parcel:
            runtime.receive(message.data, name_of(sender))
        elif isinstance(message, WatchMessage):
            runtime.descriptors_ready()
        elif isinstance(message, WakeupMessage):
            runtime.alarm()
        else:
            runtime.heartbeat.handler_started(runtime.limit_s, type(message).__name__)
            self.other_message(runtime, message, sender)
        runtime.heartbeat.handler_ended()

    def other_message(self, runtime: ActorRuntime, message: Any, sender: Any) -> None:
        """Handle the rarer messages: orders of the supervisor and reports of the transport."""
        if isinstance(message, PeerLost):
            runtime.peer_lost(message.peer)
        elif isinstance(message, StopServer):
            runtime.leave(told_to_stop(message.reason))
        elif isinstance(message, CameBack):
            runtime.came_back(message.name, name_of(sender))
        elif isinstance(message, Ended):
            runtime.ended(message)

    def _become(self, order: HostServer, owner: str) -> None:
        setproctitle(f"actorgrid: {order.name}")
        self.runtime = self.make_runtime(order, owner)
        # Before its start, which may take long: a SIGTERM meanwhile is a stop in order, too.
        signal.signal(signal.SIGTERM, lambda _number, _frame: self._transport.notify(StopServer("SIGTERM")))
        self.runtime.begin()

    def make_runtime(self, order: HostServer, owner: str) -> ActorRuntime:
        """Make the runtime of this kind of actor."""
        return ActorRuntime(self, order, owner, adopt(order.heartbeat))

    def _die(self, runtime: ActorRuntime, reason: ExitReason) -> None:
        log = logging.getLogger(f"actorgrid.{runtime.name}")
        if reason.is_normal:
            log.info("%s ends: %s", runtime.name, reason)
        else:
            log.debug("%s ends: %s", runtime.name, reason)  # its supervisor tells it, with all that is known
        runtime.say_ending(reason)
        self.end_now(LastWords(runtime.with_moments(reason)), 0 if reason.is_normal else CRASH_EXIT_STATUS)

    # -- what the runtime asks (``actor_runtime.Process``)

    @property
    def _transport(self) -> UnixTransport:
        transport: UnixTransport = self._myRef.transport
        return transport

    @property
    def address(self) -> str:
        """The name of our socket."""
        return name_of(self.myAddress)

    @property
    def boot_folder(self) -> Path:
        """The folder that holds the sockets of this boot."""
        return self._transport.mesh.folder

    def post(self, to: str, data: bytes) -> None:
        """Send an envelope, past Thespian's bookkeeping."""
        self._transport.mesh.post(to, PARCEL, data)

    def tell(self, to: str, message: Any) -> None:
        """Send an order or a report."""
        self.send(address_of(to), message)

    def watch_peer(self, address: str) -> None:
        """Have the end of the process *to* told as PeerLost."""
        self._transport.watch_peer(address)

    def when_capacity(self, address: str, callback: Callable[[], None]) -> None:
        """Call *callback* when under half of the queue to *to* is used."""
        self._transport.when_capacity(address, callback)

    def watch_descriptors(self, fds: list[int]) -> None:
        """Note the descriptors to watch; they are given to Thespian at the end of every handler."""
        self._watch = ThespianWatch(fds)

    def leave_in_order(self) -> None:
        """End the process once what is queued went out; a second is given to peers that are slow to take it."""
        self._leave_by(monotonic() + _FLUSH_S)

    def _leave_by(self, deadline_s: float) -> None:
        mesh = self._transport.mesh
        if mesh.pending and monotonic() < deadline_s:
            mesh.loop.after(_LOOK_AGAIN_S, lambda: self._leave_by(deadline_s))
        else:
            self._transport.notify(ActorExitRequest())

    def end_now(self, last_words: Any, status: int) -> None:
        """Tell the supervisor why, and end the process at once."""
        if self.runtime is not None:
            try:
                self.tell(self.runtime.owner, last_words)
            except ActorGridError as error:  # it is gone or stuck, so nobody else will tell
                log = logging.getLogger(f"actorgrid.{self.runtime.name}")
                log.info("the supervisor does not hear why we end: %s", error)
                if isinstance(last_words, LastWords) and not last_words.reason.is_normal:
                    log_crash(log, self.runtime.name, os.getpid(), last_words.reason)
        # ``_exit`` sends nothing that is queued: the reason of this end, told just now, would be lost.
        self._transport.flush(_FLUSH_S)
        logging.shutdown()
        os._exit(status)


class SupervisorActor(ServerActor):
    """The process of a server that has children. Its own supervisor buries it when its last descendant is gone."""

    has_subtree = True

    def make_runtime(self, order: HostServer, owner: str) -> ActorRuntime:
        """Make the runtime of an actor that has children."""
        return SupervisorRuntime(self, order, owner, adopt(order.heartbeat))

    def other_message(self, runtime: ActorRuntime, message: Any, sender: Any) -> None:
        """Handle what children say, and how they end."""
        if not isinstance(runtime, SupervisorRuntime):
            raise AssertionError("a supervisor's process without its runtime")
        if isinstance(message, ChildActorExited):
            status = getattr(message, "exit_status", None)
            if status is not None:
                runtime.child_exited(name_of(message.childAddress), status)
        elif isinstance(message, ServerStarted | ServerStartFailed | LastWords):
            runtime.child_said(message, name_of(sender))
        elif isinstance(message, WhyEnded):
            runtime.why_ended(message, name_of(sender))
        else:
            super().other_message(runtime, message, sender)

    def fork_child(self, is_supervisor: bool) -> tuple[int, str]:
        """Make an actor process; gives its pid and address. Raises StartFailed, which says what was missing."""
        manager = self._myRef
        local = self.createActor(SupervisorActor if is_supervisor else ServerActor)
        try:
            pid = manager.child_pid(local)
        except OSError as error:
            raise StartFailed(
                "no process could be made", found=str(error), hint=_FORK_HINTS.get(error.errno or 0, _OTHER_FORK_HINT)
            ) from None
        if pid is None:
            raise StartFailed("no process is made any more: this one ends", hint="start it again when its parent is up")
        return int(pid), name_of(manager._addrManager.exportAddr(local))
