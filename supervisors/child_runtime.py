"""The runtime of a supervisor's process: it makes, names, watches and buries the processes of the children.

Implements :class:`~actorgrid.supervisors.supervisor.ChildRuntime`. Each child has a heartbeat (``heartbeat.py``), made
before its fork; a judge (``watchdog.py``) looks at them once every beat and has the hung killed.

Bounds: a tree has ``TreeSettings.actors_max`` processes; the ends of the last 1,000 children are remembered for those
who ask why.
"""

from __future__ import annotations

import logging
import os
import signal
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from actorgrid.errors import ActorGridError, MailboxFull, PeerGone, StartFailed, TooManyActors

from .actor_runtime import ActorProcess, ActorRuntime, share_host
from .child import ChildSpec
from .exits import SHUTDOWN, ExitReason, LastMoments, from_error, from_status
from .heartbeat import TRACEBACK_WAIT_S, Heartbeat, OwnHeartbeat
from .ref import Ref
from .supervisor import Started
from .watchdog import Hung, Watchdog
from .wire import (
    CameBack,
    Ended,
    HostServer,
    Inherited,
    LastWords,
    ServerStarted,
    ServerStartFailed,
    StopServer,
    WhyEnded,
)

if TYPE_CHECKING:
    from .supervisor import Supervisor

REMEMBERED_MAX = 1_000
_BURY_AGAIN_S = 0.5

log = logging.getLogger("actorgrid.supervisor")


class ParentProcess(ActorProcess, Protocol):
    """What this runtime asks of the actor around it, beyond what any does."""

    def fork_child(self, is_supervisor: bool) -> tuple[int, str]:
        """Make an actor process; gives its pid and address. Raises StartFailed."""


@dataclass(slots=True)
class _Child:
    spec: ChildSpec
    ref: Ref
    pid: int
    heartbeat: Heartbeat
    up: bool = False
    returned: bool = False
    last_words: ExitReason | None = None
    hung: ExitReason | None = None
    asked_by: dict[str, None] = field(default_factory=dict)  # living processes: no more than the tree may have


class SupervisorRuntime(ActorRuntime):
    """The runtime of a server that has children; see the module."""

    def __init__(self, process: ParentProcess, order: HostServer, owner: str, heartbeat: OwnHeartbeat) -> None:
        super().__init__(process, order, owner, heartbeat)
        self.parent = process
        share_host(self.host)
        self._children: dict[str, _Child] = {}
        self._addresses: dict[str, str] = {}  # address -> child id
        self._started_once: set[str] = set()
        self._reasons: dict[str, ExitReason] = {}
        self._reasons_order: deque[str] = deque()
        settings = order.settings
        self._watchdog = Watchdog(settings.beat_interval_s, settings.hang_margin_s)
        self._chores.after(settings.beat_interval_s, self._judge)

    # -- the ChildRuntime protocol

    def start_child(self, child_id: str, spec: ChildSpec, arguments: tuple[Any, ...]) -> Started:
        """Fork a process and order it to be that server. Raises StartFailed or TooManyActors."""
        self._check_room(child_id)
        if spec.register:
            self._check_free(child_id)
        heartbeat = Heartbeat()
        try:
            pid, address = self.parent.fork_child(spec.type == "supervisor")
        except BaseException:
            heartbeat.close()
            raise
        heartbeat.pid = pid
        child = _Child(spec, Ref(address, child_id), pid, heartbeat, returned=self._has_returned(child_id, spec))
        self._children[child_id], self._addresses[address] = child, child_id
        if spec.register:
            try:
                self.registry.register(child_id, child.ref)
            except ActorGridError as error:
                # It exists already, so this is a failed start like any other: child_exited follows.
                child.last_words = from_error(error)
                self.kill_child(child_id)
                return Started(pid, child.ref)
        # Only what gets its order is watched; the one above is being killed.
        self._watchdog.watch(child_id, spec.max_handler_s)
        self.process.tell(address, self._order_for(child_id, spec, arguments, child))
        return Started(pid, child.ref)

    def _order_for(self, child_id: str, spec: ChildSpec, arguments: tuple[Any, ...], child: _Child) -> HostServer:
        return HostServer(
            name=child_id,
            kind=spec.kind,
            host=Inherited(),
            arguments=arguments,
            settings=self._order.settings,
            heartbeat=child.heartbeat.number,
            registered=spec.register,
            returned=child.returned,
            shutdown_s=spec.shutdown_s(),
            max_handler_s=spec.max_handler_s,
            memory_mib=spec.memory_mib,
        )

    def _check_room(self, child_id: str) -> None:
        limit = self._order.settings.actors_max
        # Each process has one socket in the folder; so has the admin, and whoever started the tree.
        try:
            names = os.listdir(self.process.boot_folder)
        except OSError as error:  # out of descriptors, most likely: then there is none for a process either
            raise TooManyActors(
                f"{child_id} is not started: the actors of this host cannot be counted",
                asked=f"start {child_id}",
                found=str(error),
                hint="raise the limit of open files (ulimit -n), or close some",
            ) from None
        living = sum(name.startswith("a") and "." in name for name in names)
        if living >= limit:
            raise TooManyActors(
                f"{child_id} is not started: {living} actors live on this host",
                asked=f"start {child_id}",
                found=f"the limit is {limit}",
                hint="stop some, use lightweight processes inside an actor, or raise the limit",
            )

    def _check_free(self, child_id: str) -> None:
        holder = self.registry.whereis(child_id)
        if holder is not None:
            raise StartFailed(
                f"{child_id} is not started: its name is taken",
                found=f"{holder} has it",
                hint="give the child another id, or register=False",
            )

    def _has_returned(self, child_id: str, spec: ChildSpec) -> bool:
        if not spec.register:
            return False  # nobody knows it by name
        if child_id in self._started_once or self._order.returned:
            return True
        self._started_once.add(child_id)
        return False

    def stop_child(self, child_id: str, reason: str) -> None:
        """Ask a child to stop in order; harmless when it is gone."""
        child = self._children.get(child_id)
        if child is not None:
            self.process.tell(child.ref.address, StopServer(reason))

    def kill_child(self, child_id: str) -> None:
        """Kill a child with SIGKILL; harmless when it is gone. Its pid is not reused, since it is not reaped yet."""
        child = self._children.get(child_id)
        if child is not None:
            with suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGKILL)

    def fail(self, error: ActorGridError) -> None:
        """Tell the owner that this supervisor gave up, and leave in order."""
        self.exit(from_error(error))

    # -- stopping ourselves

    def leave(self, reason: ExitReason) -> None:
        """Stop the children in order, even those of an unfinished start, then leave."""
        if self.server is None:
            self.exit(reason)
        elif not self._stopping:
            self._begin_stop()
            self.server.spawn(self._leave_after(self.server.stop(reason.message or reason.kind), reason))

    # -- news of and from children

    def child_said(self, message: Any, sender: str) -> None:
        """Take one of a child's messages to its supervisor."""
        child_id = self._addresses.get(sender)
        child = self._children.get(child_id) if child_id is not None else None
        if child is None or child_id is None or child.ref.address != sender:
            return
        if isinstance(message, ServerStarted):
            self._came_up(child_id, child)
        elif isinstance(message, ServerStartFailed):
            traceback = str(message.error.details.get("traceback", ""))
            child.last_words = from_error(message.error).with_traceback(traceback)
            self._supervisor.child_start_failed(child_id, message.error)
        elif isinstance(message, LastWords):
            child.last_words = message.reason

    def _came_up(self, child_id: str, child: _Child) -> None:
        child.up = True
        self._supervisor.child_started(child_id)
        if child.returned and child.spec.register:
            self.came_back(child_id, child.ref.address)

    @property
    def _supervisor(self) -> Supervisor:
        if self.server is None:
            raise AssertionError("children before their supervisor")
        return self.server  # type: ignore[return-value]

    def came_back(self, name: str, sender: str) -> None:
        """Tell the server, and pass it on: to the children and upwards, but not to where it came from."""
        super().came_back(name, sender)
        for child in self._children.values():
            if child.ref.address != sender:
                self.process.tell(child.ref.address, CameBack(name))
        if self.owner != sender:
            self.process.tell(self.owner, CameBack(name))

    def child_exited(self, address: str, exit_status: int) -> None:
        """The kernel says a child is gone; a second word about the same process is ignored."""
        child_id = self._addresses.pop(address, None)
        if child_id is None:
            return
        child = self._children[child_id]
        if not child.up and self.server is not None and child.heartbeat.read().state == "running":
            self._came_up(child_id, child)  # it died before its word of that got through
        del self._children[child_id]
        self._watchdog.forget(child_id)
        reason = child.hung or child.last_words
        reason = from_status(exit_status) if reason is None else reason.with_status(exit_status)
        if reason.kind == "error":
            reason = reason.with_traceback(child.heartbeat.traceback())
        if reason.moments is None and not reason.is_normal and (handler := child.heartbeat.read().handler):
            reason = reason.with_moments(LastMoments(handler))  # it could not say more than its heartbeat
        child.heartbeat.close()
        # Its names go before we tell of its end: who then looks one up, to ask again, must not find the dead one.
        self._bury(address)
        self._remember(address, reason)
        for asker in child.asked_by:
            self.process.tell(asker, Ended(child.ref, reason))
        if self.server is not None:
            self.server.fail_calls(child.ref, reason)
            if self.server.watches(address):
                self.server.peer_ended(child.ref, reason)
            self._supervisor.child_exited(child_id, reason)

    def _bury(self, address: str) -> None:
        """Remove the names of a dead child; again in a moment where that fails now (no descriptor is left, say)."""
        try:
            self.registry.bury(address)
        except ActorGridError as error:
            log.error("the names of %s cannot be removed: %s", address, error)
            self._chores.after(_BURY_AGAIN_S, lambda: self._bury(address))

    def _remember(self, address: str, reason: ExitReason) -> None:
        self._reasons[address] = reason
        self._reasons_order.append(address)
        if len(self._reasons_order) > REMEMBERED_MAX:
            self._reasons.pop(self._reasons_order.popleft(), None)

    def peer_lost(self, address: str) -> None:
        """Deal with a lost connection; of a child's end the kernel tells, in ``child_exited``, with the exit status."""
        for child in self._children.values():
            child.asked_by.pop(address, None)
        if address not in self._addresses:
            super().peer_lost(address)

    def _ask_ahead(self, ref: Ref) -> None:
        if ref.address not in self._addresses:
            super()._ask_ahead(ref)

    def why_ended(self, question: WhyEnded, asker: str) -> None:
        """Answer whoever asks why one of our children ended; who asks while it lives is answered when it has ended."""
        address = question.ref.address
        reason = self._reasons.get(address)
        if reason is not None:
            self.process.tell(asker, Ended(question.ref, reason))
        elif address in self._addresses:
            asked_by = self._children[self._addresses[address]].asked_by
            asked_by[asker] = None
            # Connect now, so that the answer goes out at once, before the fork of a successor; and its end is told.
            try:
                self.process.watch_peer(asker)
            except PeerGone:
                del asked_by[asker]
            except MailboxFull as error:
                log.warning("no connection to %s, which watches %s, can be made yet: %s", asker, question.ref, error)

    # -- the watchdog

    def _judge(self) -> None:
        readings = {child_id: child.heartbeat.read() for child_id, child in self._children.items()}
        for hung in self._watchdog.judge(readings, self.monotonic()):
            self._end_hung(hung)
        self._chores.after(self._order.settings.beat_interval_s, self._judge)

    def _end_hung(self, hung: Hung) -> None:
        child = self._children[hung.child_id]
        log.error("%s hangs and is killed: %s", child.ref, hung.message)
        child.hung = ExitReason("hung", hung.message)

        def kill() -> None:
            if self._children.get(hung.child_id) is child:
                child.hung = ExitReason("hung", hung.message, child.heartbeat.traceback())
                self.kill_child(hung.child_id)

        self._chores.after(TRACEBACK_WAIT_S if child.heartbeat.ask_traceback() else 0.0, kill)


def told_to_stop(reason: str) -> ExitReason:
    """The exit reason of a server that its supervisor stops."""
    return ExitReason(SHUTDOWN.kind, reason)
