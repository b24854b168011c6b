"""The children of one supervisor as its decision core sees them: their states, timers and open requests.

It knows how one process is started, asked to stop and killed; ``restart.py`` decides which, when and why. Every step
adds instructions (``instructions.py``), which :meth:`ChildTable.flush` hands out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from actorgrid.errors import ActorGridError, CallTimeout, NoSuchChild

from .child import ChildSpec
from .exits import ExitReason
from .instructions import (
    CancelTimer,
    Forgotten,
    Instruction,
    KillProcess,
    Purpose,
    ReplyTo,
    Request,
    SetTimer,
    StartProcess,
    StopProcess,
    Tag,
)

KILL_S = 10.0
"""After so long a killed process waits in the kernel (a dead disk or mount): nobody here can do more, so we go on."""
_OF_A_PROCESS: tuple[Purpose, ...] = ("start", "linger", "stop", "kill")

State = Literal["waiting", "starting", "up", "restarting", "stopping", "down"]


@dataclass(slots=True)
class Child:
    """One child as the decision core sees it, which alone writes to it.

    States: ``waiting`` for its turn in the supervisor's own start, ``starting``, ``up``, ``restarting`` (without a
    process, about to be started), ``stopping``, ``down``. ``restarts`` counts those the supervisor did by itself,
    ``starts`` all of its processes.
    """

    id: str
    spec: ChildSpec
    arguments: tuple[Any, ...]
    state: State = "waiting"
    has_process: bool = False
    starts: int = 0
    restarts: int = 0
    last_exit: ExitReason | None = None
    failures: int = 0  # starts that failed since it was last up
    start_error: ActorGridError | None = None  # why the start under way has failed; its process still ends
    start_request: Request | None = None
    stop_requests: list[Request] = field(default_factory=list)
    is_new: bool = False  # the request that brought its spec is open: the spec goes if the start fails
    is_stuck: bool = False  # killed, and its process does not end

    @property
    def runs(self) -> bool:
        """Whether the child has a process, or is about to get one."""
        return self.has_process or self.state == "restarting"

    def undying(self) -> CallTimeout:
        """The error for whoever waits for the end of a child that does not die."""
        return CallTimeout(
            f"{self.id} does not end, not even {KILL_S:g} s after it was killed",
            hint="it waits in the kernel (a dead disk or mount?); it will be gone once that lets go",
        )


class ChildTable:
    """The children in start order, what is timed for them, and what is to be done now."""

    def __init__(self, supervisor: str, specs: Sequence[ChildSpec]) -> None:
        self.supervisor = supervisor
        self.children = {spec.id: Child(spec.id, spec, spec.arguments) for spec in specs}
        self.out: list[Instruction] = []
        self.open_requests = 0
        self.processes = 0
        self._timers: dict[Tag, None] = {}

    def flush(self) -> list[Instruction]:
        """The instructions to carry out now, in order; each comes out once."""
        out, self.out = self.out, []
        return out

    # -- the children

    def find(self, child_id: str) -> Child:
        """The child of that id. Raises NoSuchChild."""
        child = self.children.get(child_id)
        if child is None:
            raise NoSuchChild(f"{self.supervisor} has no child {child_id!r}", hint="WhichChildren lists them")
        return child

    def with_process(self, child_id: str) -> Child | None:
        """The child, if it has a process."""
        child = self.children.get(child_id)
        return child if child is not None and child.has_process else None

    def living(self, ids: Sequence[str]) -> list[Child]:
        """Those of *ids* with a process that may be waited for, the last one first."""
        found = [self.children[child_id] for child_id in reversed(ids) if child_id in self.children]
        return [child for child in found if child.has_process and not child.is_stuck]

    def forget(self, child: Child) -> None:
        """Drop the child and its spec."""
        self.cancel(Tag("retry", child.id))
        del self.children[child.id]
        self.out.append(Forgotten(child.id))

    # -- their processes

    def launch(self, child: Child) -> None:
        """Start the child's process."""
        if child.has_process:
            raise AssertionError(f"{child.id} has a process already")
        child.state, child.has_process, child.start_error = "starting", True, None
        child.starts += 1
        self.processes += 1
        self.out.append(StartProcess(child.id, child.spec, child.arguments))
        self.set(Tag("start", child.id), child.spec.start_timeout_s)

    def stop(self, child: Child, reason: str) -> None:
        """End the child's process, in order if its spec says so. Harmless when that is under way."""
        if child.state == "stopping":
            return
        child.state = "stopping"
        self.cancel(Tag("start", child.id))
        self.cancel(Tag("linger", child.id))
        # It is being killed already: asked to stop as well, it would be waited for once more.
        if Tag("kill", child.id) in self._timers:
            return
        limit_s = child.spec.shutdown_s()
        if limit_s == 0.0:
            self.kill(child, "")
            return
        self.out.append(StopProcess(child.id, reason))
        if limit_s is not None:
            self.set(Tag("stop", child.id), limit_s)

    def kill(self, child: Child, why: str) -> None:
        """Kill the child's process now; *why* is for the log, empty when its spec says ``brutal_kill``."""
        self.out.append(KillProcess(child.id, why))
        self.set(Tag("kill", child.id), KILL_S)

    def buried(self, child: Child, reason: ExitReason) -> None:
        """Note that the child's process is gone."""
        child.has_process, child.is_stuck, child.start_error, child.last_exit = False, False, None, reason
        self.processes -= 1
        for what in _OF_A_PROCESS:
            self.cancel(Tag(what, child.id))
        self.reply_stops(child, None)

    # -- timers

    def set(self, tag: Tag, delay_s: float) -> None:
        """Set the timer *tag*."""
        self._timers[tag] = None
        self.out.append(SetTimer(tag, delay_s))

    def cancel(self, tag: Tag) -> None:
        """Cancel the timer *tag*; harmless when it is not set."""
        if tag in self._timers:
            del self._timers[tag]
            self.out.append(CancelTimer(tag))

    def fired(self, tag: Tag) -> bool:
        """Take a timer that is due; ``False`` when it was cancelled."""
        if tag not in self._timers:
            return False
        del self._timers[tag]
        return True

    # -- requests

    def reply(self, request: Request, child_id: str, error: ActorGridError | None) -> None:
        """Answer an open request."""
        self.open_requests -= 1
        self.out.append(ReplyTo(request, child_id, error))

    def reply_start(self, child: Child, error: ActorGridError | None) -> None:
        """Answer who asked for the child's start, if anyone did."""
        if child.start_request is not None:
            self.reply(child.start_request, child.id, error)
            child.start_request = None

    def reply_stops(self, child: Child, error: ActorGridError | None) -> None:
        """Answer all who asked for the child's end."""
        requests, child.stop_requests = child.stop_requests, []
        for request in requests:
            self.reply(request, child.id, error)
