"""A supervisor: a server that starts its children in order, restarts them, and stops them in reverse.

The decisions are ``restart.py``'s; this carries them out over a :class:`ChildRuntime`, which owns the processes.
A restart begins only when the old process is gone, so two never hold the same files or ports.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from time import time
from typing import Any, ClassVar, Protocol

from actorgrid.errors import ActorGridError, CallTimeout, RestartIntensityExceeded, StartFailed

from .child import ChildSpec
from .exits import ExitReason
from .ref import Ref
from .restart import Forget, GiveUp, Instruction, Restart, RestartPolicy, Stop
from .server import Runtime, Server, Timer, Waiter, handles

_KILL_S = 10.0


@dataclass(frozen=True, slots=True)
class WhichChildren:
    """Answer: list of {"name", "pid", "state", "restarts", "last_exit"} in start order.

    States: waiting, starting, up, restarting, stopping, down. ``last_exit``: {"at", "reason"} or None.
    """


@dataclass(frozen=True, slots=True)
class Started:
    """The process that ``start_child`` made: its pid and its Ref. The server in it has yet to start."""

    pid: int
    ref: Ref


class ChildRuntime(Runtime, Protocol):
    """What a supervisor asks of its process beyond what any server does.

    For each process that ``start_child`` made, the runtime calls back: ``child_started(child_id)`` when the server's
    start ended well, or ``child_start_failed(child_id, error)`` when it raised (the process is ending), at most one
    of the two; and last, exactly once, ``child_exited(child_id, reason)`` when the process is gone. For a child of
    type ``supervisor`` that is when its whole subtree is gone. No process of an id is asked for before the one
    before it has exited.
    """

    arguments: tuple[Any, ...]

    def start_child(self, child_id: str, spec: ChildSpec, arguments: tuple[Any, ...]) -> Started:
        """Make a process for the child and order it to start with *arguments*. Raises StartFailed, TooManyActors.

        *child_id* is the spec's id, or ``id:number`` for a dynamic child. When it raises, there was no process
        and no callback follows. It never calls back from within.
        """

    def stop_child(self, child_id: str, reason: str) -> None:
        """Ask the child to stop in order, even one that has not started yet; harmless when it is gone."""

    def kill_child(self, child_id: str) -> None:
        """SIGKILL; harmless when it is gone."""

    def fail(self, error: ActorGridError) -> None:
        """Tell our own supervisor that we ended with *error*, and leave. All children are gone (or cannot be killed)."""

    def exit(self) -> None:
        """Leave in order (an end that a transient child is not restarted after)."""


class ChildEvents(Protocol):
    """What a :class:`ChildRuntime` calls: a Supervisor."""

    def child_started(self, child_id: str) -> None:
        """The child's ``start`` ended well."""

    def child_start_failed(self, child_id: str, error: ActorGridError) -> None:
        """The child's ``start`` raised."""

    def child_exited(self, child_id: str, reason: ExitReason) -> None:
        """The child's process is gone."""


class _FormerRuntime(Runtime, Protocol):
    """What a supervisor asks of its process beyond what any server does.

    For each ``start_child`` come ``child_started`` or ``child_start_failed`` at most, and ``child_exited`` once,
    last; ``child_crashed`` may come before it, with the reason.
    """

    children: tuple[ChildSpec, ...]

    def start_child(self, spec: ChildSpec) -> int:
        """Make the child's process; gives its pid. Raises StartFailed."""

    def stop_child(self, child_id: str, reason: str) -> None:
        """Ask the child to stop in order."""

    def kill_child(self, child_id: str) -> None:
        """SIGKILL."""

    def fail(self, error: ActorGridError) -> None:
        """Tell our own supervisor that we gave up, and leave."""

    def exit(self) -> None:
        """Leave in order."""


@dataclass(slots=True)
class _Child:
    spec: ChildSpec
    state: str = "waiting"
    pid: int | None = None
    last_exit: dict[str, Any] | None = None
    reason: ActorGridError | None = None  # what the process said before it ended
    first_start: Waiter | None = None
    ended: list[Waiter] = field(default_factory=list)  # whoever waits for its process to be gone
    start_timer: Timer | None = None


class Supervisor(Server):
    """Subclasses give a name, and an intensity if the default is not right."""

    intensity: ClassVar[int] = 10
    period_s: ClassVar[float] = 30.0

    def __init__(self, host: Any, runtime: _FormerRuntime) -> None:
        super().__init__(host, runtime)
        self.processes = runtime
        self.policy = RestartPolicy(runtime.children, self.intensity, self.period_s)
        self.stopping = ""
        self.failure: ActorGridError | None = None
        self._children_by_id = {spec.id: _Child(spec) for spec in runtime.children}

    # -- starting

    async def start(self) -> None:
        """Start all children, each when the one before it is up. Raises what the first failing one raised."""
        try:
            for child in self._children_by_id.values():
                child.first_start = Waiter()
                self._launch(child)
                await child.first_start
                child.first_start = None
                if self.stopping:
                    raise StartFailed(f"stopped while starting: {self.stopping}")
        except ActorGridError as error:
            self.log.error("%s does not start: %s", self.name, error)
            await self.stop_children(f"{self.name} does not start")
            raise self.failure or error from None

    def _launch(self, child: _Child) -> None:
        spec, child.state, child.reason = child.spec, "starting", None
        try:
            child.pid = self.processes.start_child(spec)
        except StartFailed as error:
            child.reason = error
            self._gone(child, "no process could be made")
            return
        self._cancel_start_timer(child)
        child.start_timer = self.runtime.after(spec.start_timeout_s, lambda: self._start_too_slow(child))

    def _start_too_slow(self, child: _Child) -> None:
        error = StartFailed(f"{child.spec.id} did not start in {child.spec.start_timeout_s:g} s")
        self.child_start_failed(child.spec.id, error)

    def _cancel_start_timer(self, child: _Child) -> None:
        if child.start_timer is not None:
            child.start_timer.cancel()
            child.start_timer = None

    # -- what the runtime reports

    def child_started(self, child_id: str) -> None:
        """The child's ``start`` ended well."""
        child = self._children_by_id[child_id]
        self._cancel_start_timer(child)
        if child.state != "starting":
            return
        child.state = "up"
        self.log.info("%s is up, pid %s", child_id, child.pid)
        self.policy.started(child_id, self.runtime.monotonic())
        if child.first_start is not None:
            child.first_start.set(None)
        else:
            self.child_came_back(child_id)

    def child_came_back(self, child_id: str) -> None:
        """For subclasses: a restarted child is up."""

    def child_start_failed(self, child_id: str, error: ActorGridError) -> None:
        """The child's ``start`` raised: end its process; the rest follows when it is gone."""
        child = self._children_by_id[child_id]
        self._cancel_start_timer(child)
        if child.state == "starting":
            child.reason = error
            self.processes.kill_child(child_id)

    def child_crashed(self, child_id: str, error: ActorGridError) -> None:
        """The child says why it is about to end."""
        self._children_by_id[child_id].reason = error

    def child_exited(self, child_id: str, exit_status: int) -> None:
        """The child's process is gone."""
        child = self._children_by_id[child_id]
        self._gone(child, describe_exit(exit_status), normal=exit_status == 0)

    def _gone(self, child: _Child, how: str, normal: bool = False) -> None:
        was, child.pid, child_id = child.state, None, child.spec.id
        self._cancel_start_timer(child)
        child.last_exit = {"at": time(), "reason": f"{child.reason.message} ({how})" if child.reason else how}
        ended, child.ended = child.ended, []
        for waiter in ended:
            waiter.set(None)
        if self.stopping or was == "stopping":
            child.state = "down"
            if child.first_start is not None:
                child.first_start.fail(child.reason or StartFailed(f"{child_id} was stopped: {self.stopping}"))
            return
        if child.first_start is not None:
            child.state = "down"
            child.first_start.fail(
                child.reason or StartFailed(f"{child_id} died while it started: {how}", hint="see the agent's log")
            )
            return
        now_s = self.runtime.monotonic()
        self.log.warning("%s ended: %s", child_id, child.last_exit["reason"])
        if was == "starting":
            self._carry_out(self.policy.start_failed(child_id, now_s))
        else:
            self._carry_out(self.policy.child_exited(child_id, normal, now_s))

    def _carry_out(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            child = self._children_by_id[instruction.id]
            if isinstance(instruction, Restart):
                child.state = "restarting"
                self._after(instruction.delay_s, partial(self._restart, child))
            elif isinstance(instruction, Forget):
                child.state = "down"
            elif isinstance(instruction, GiveUp):
                child.state = "down"
                self.spawn(self._give_up(instruction, child))
            elif isinstance(instruction, Stop):
                raise AssertionError("one_for_one stops no other child")

    def _after(self, delay_s: float, action: Callable[[], None]) -> None:
        if delay_s > 0:
            self.runtime.after(delay_s, action)
        else:
            action()

    def _restart(self, child: _Child) -> None:
        if not self.stopping and child.state == "restarting":
            self._launch(child)

    async def _give_up(self, instruction: GiveUp, child: _Child) -> None:
        reason = child.last_exit["reason"] if child.last_exit else "unknown"
        error = RestartIntensityExceeded(
            f"{instruction.id} ended again after {instruction.restarts} restarts in {instruction.period_s:g} s",
            found=f"its last end: {reason}",
            hint="the agent's log shows what ended it; mend that and start the agent again",
        )
        self.failure = error
        self.log.critical("%s gives up: %s", self.name, error)
        await self.stop_children(error.message)
        self.processes.fail(error)

    # -- stopping

    async def stop(self, reason: str) -> None:
        """Stop all children, the last started first."""
        await self.stop_children(reason)

    async def stop_children(self, reason: str) -> None:
        """Stop what runs, in reverse order, each within its ``shutdown``; nothing is started any more."""
        if not self.stopping:
            self.log.info("%s stops: %s", self.name, reason)
        self.stopping = self.stopping or reason or "asked to"
        for child in reversed(self._children_by_id.values()):
            if child.pid is not None:
                await self._stop_one(child, reason)
            child.state = "down"

    async def _stop_one(self, child: _Child, reason: str) -> None:
        if child.state == "starting" and child.reason is None:
            child.reason = StartFailed(f"{child.spec.id} was stopped while it started: {reason}")
        child.state = "stopping"
        child_id, limit_s = child.spec.id, child.spec.shutdown_s()
        if limit_s != 0.0:
            self.processes.stop_child(child_id, reason)
            if await self._ended_within(child, limit_s):
                return
            self.log.warning("%s did not stop in %s s and is killed", child_id, limit_s)
        self.processes.kill_child(child_id)
        if not await self._ended_within(child, _KILL_S):
            self.log.error("%s (pid %s) does not die of SIGKILL", child_id, child.pid)

    async def _ended_within(self, child: _Child, limit_s: float | None) -> bool:
        if child.pid is None:
            return True
        ended = Waiter()
        child.ended.append(ended)
        timer = self.runtime.after(limit_s, lambda: ended.fail(CallTimeout(""))) if limit_s is not None else None
        try:
            await ended
        except CallTimeout:
            return False
        finally:
            if timer is not None:
                timer.cancel()
        return True

    # -- questions

    @handles(WhichChildren)
    def _which_children(self, _request: WhichChildren) -> list[dict[str, Any]]:
        return self.children_now()

    def children_now(self) -> list[dict[str, Any]]:
        """The answer to WhichChildren."""
        return [
            {
                "name": child.spec.id,
                "pid": child.pid,
                "state": child.state,
                "restarts": self.policy.restarts(child.spec.id),
                "last_exit": child.last_exit,
            }
            for child in self._children_by_id.values()
        ]


def describe_exit(status: int) -> str:
    """An exit status in words."""
    if status < 0:
        try:
            return f"killed by {signal.Signals(-status).name}"
        except ValueError:
            return f"killed by signal {-status}"
    return "left in order" if status == 0 else f"exit status {status}"
