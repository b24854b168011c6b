"""A supervisor: a server that starts its children in order, restarts them, and stops them in reverse.

The decisions are ``restart.py``'s; this carries them out over a :class:`ChildRuntime`, which owns the processes, and
answers requests. A restart begins only when the old process is gone, so two never hold the same files or ports.

Bound: 16 requested starts are under way at a time; the next wait, in order, for one to end. A supervisor that forked
hundreds in one turn of its loop would be deaf for seconds: to deaths, and to the first of those very children.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import time
from typing import Any, ClassVar, Protocol

from actorgrid.errors import ActorGridError, InvalidChildSpec, NoSuchChild

from .child import ChildSpec, SupervisorFlags
from .child_table import Child
from .crash_report import log_crash
from .exits import ExitReason
from .instructions import (
    CancelTimer,
    Exit,
    Forgotten,
    GoOnWithout,
    Instruction,
    KillProcess,
    ReplyTo,
    Request,
    SetTimer,
    StartEnded,
    StartProcess,
    Stopping,
    StopProcess,
    Tag,
)
from .ref import Ref
from .restart import SupervisorCore, exit_in_words
from .runtime import Runtime, Timer, Waiter
from .server import Server, handles

STARTS_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class StartChild:
    """Start one more child; answered with ChildInfo when it is up.

    Give ``spec``; or, to a simple_one_for_one supervisor, ``arguments`` that follow those of its one spec. Errors:
    InvalidChildSpec, ChildExists, TooManyActors, NotSupported, StartFailed and what the child's start raised (the
    spec is then dropped again).
    """

    spec: ChildSpec | None = None
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class TerminateChild:
    """Stop a child, named by id or Ref; answered when it is gone. Its spec stays, unless temporary or dynamic.

    Errors: NoSuchChild; CallTimeout when not even a kill ends it.
    """

    child: str | Ref


@dataclass(frozen=True, slots=True)
class RestartChild:
    """Start a child that is stopped; answered with ChildInfo when it is up.

    Errors: NoSuchChild, ChildExists (it runs), NotSupported (simple_one_for_one), StartFailed and what its start
    raised.
    """

    id: str


@dataclass(frozen=True, slots=True)
class DeleteChild:
    """Forget the spec of a child that is stopped. Errors: NoSuchChild, ChildExists (it runs), NotSupported."""

    id: str


@dataclass(frozen=True, slots=True)
class WhichChildren:
    """Answer: a list of dictionaries in start order, one for each child.

    Keys: "name", "pid", "ref", "state", "restarts", "last_exit", "type", "restart" and "kind". States: waiting,
    starting, up, restarting, stopping, down. "pid" and "ref" are None without a process; "last_exit" is
    {"at", "reason", "kind"} or None.
    """


@dataclass(frozen=True, slots=True)
class CountChildren:
    """Answer: {"specs", "active", "supervisors", "workers"}; "active" are those with a process."""


@dataclass(frozen=True, slots=True)
class ChildInfo:
    """A child that is up."""

    id: str
    pid: int
    ref: Ref


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

    def start_child(self, child_id: str, spec: ChildSpec, arguments: tuple[Any, ...]) -> Started:
        """Make a process for the child and order it to start with *arguments*. Raises StartFailed, TooManyActors.

        *child_id* is the spec's id, or ``id:number`` for a dynamic child. When it raises, there was no process
        and no callback follows. It never calls back from within.
        """

    def stop_child(self, child_id: str, reason: str) -> None:
        """Ask the child to stop in order, even one that has not started yet; harmless when it is gone."""

    def kill_child(self, child_id: str) -> None:
        """Kill the child with SIGKILL; harmless when it is gone."""

    def fail(self, error: ActorGridError) -> None:
        """Tell our own supervisor that we ended with *error*, and leave: all children are gone (or do not die)."""

    def exit(self) -> None:
        """Leave in order, after an end that a transient child is not restarted after."""


class Supervisor(Server):
    """Base of supervisors. Override :meth:`init`; or set ``flags`` and give the children as the one argument."""

    name: ClassVar[str] = "supervisor"
    flags: ClassVar[SupervisorFlags] = SupervisorFlags()

    def __init__(self, host: Any, runtime: ChildRuntime) -> None:
        super().__init__(host, runtime)
        self.processes = runtime
        self._core = SupervisorCore(self.title, SupervisorFlags(), ())
        self._own_start = Waiter()
        self._start_failed = False
        self._over = False
        self._to_do: deque[Instruction] = deque()
        self._doing = False
        self._running: dict[str, Started] = {}
        self._ended_at: dict[str, float] = {}
        self._timers: dict[Tag, Timer] = {}
        self._numbers = itertools.count(1)
        self._requests: dict[Request, Waiter] = {}
        self._wait_for_end: list[Waiter] = []
        self._starts_under_way = 0
        self._waiting_starts: deque[Waiter] = deque()

    def init(self, *arguments: Any) -> tuple[SupervisorFlags, Sequence[ChildSpec]]:
        """The flags and the children; *arguments* are those of our own child spec. It may not start anything."""
        if len(arguments) != 1:
            raise InvalidChildSpec(
                f"{self.title} takes its children as its one argument",
                found=f"{len(arguments)} arguments",
                hint="give arguments=(children,) in its child spec, or override init(self, *arguments)",
            )
        return self.flags, arguments[0]

    # -- our own life

    async def start(self) -> None:
        """Start all children, each when the one before it is up. Raises what the first failing one raised."""
        flags, children = self.init(*self.arguments)
        self._core = SupervisorCore(self.title, flags, tuple(children))
        self._carry_out(self._core.start(self.runtime.monotonic()))
        await self._own_start

    async def stop(self, reason: str) -> None:
        """Stop all children, the last started first."""
        await self.stop_children(reason)

    async def stop_children(self, reason: str) -> None:
        """Stop what runs, in reverse order, each within its ``shutdown``; nothing is started any more."""
        ended = Waiter()
        # Before the core is told: where nothing runs, its Exit comes within that call, and an end that nobody waits for
        # makes ``_leave`` end the process.
        self._wait_for_end.append(ended)
        self._carry_out(self._core.shutdown(reason))
        if not self._over:
            await ended

    @property
    def stopping(self) -> bool:
        """Whether nothing is started any more."""
        return self._core.phase in ("stopping", "ended")

    # -- what the runtime reports

    def child_started(self, child_id: str) -> None:
        """Take note that the child's ``start`` ended well."""
        child = self._core.child(child_id)
        if child is None:
            return
        was = child.state
        instructions = self._core.child_started(child_id, self.runtime.monotonic())
        came_up = was == "starting" and child.state == "up"
        if came_up:
            self.log.info("%s is up, pid %s", child_id, self._running[child_id].pid)
        self._carry_out(instructions)
        if came_up and child.starts > 1:
            self.child_came_back(child_id)

    def child_came_back(self, child_id: str) -> None:
        """Called when a child that had been up before is up again; for subclasses to override."""

    def child_start_failed(self, child_id: str, error: ActorGridError) -> None:
        """Take note that the child's ``start`` raised; its process is ending."""
        self.log.debug("%s did not start: %s", child_id, error)  # told when its process has ended, with all else
        self._carry_out(self._core.child_start_failed(child_id, error, self.runtime.monotonic()))

    def child_exited(self, child_id: str, reason: ExitReason) -> None:
        """Take note that the child's process is gone."""
        self._ended(child_id, partial(self._core.child_exited, child_id, reason))

    def _ended(self, child_id: str, tell: Callable[[float], list[Instruction]]) -> None:
        child = self._core.child(child_id)
        if child is None:
            return
        process = self._running.pop(child_id, None)
        self._ended_at[child_id] = time()
        was_asked = child.state == "stopping"
        instructions = tell(self.runtime.monotonic())
        # Before the instructions are carried out: the log tells an end before the start that follows from it.
        if child.last_exit is not None:
            # One that crashes on its own is told even if it was being stopped by then: nobody else tells it.
            crashed = child.last_exit.kind == "error" and child.last_exit.traceback != ""
            if child.last_exit.is_normal or (was_asked and not crashed):
                log = self.log.info if was_asked else self.log.warning
                log("%s ended: %s", child_id, exit_in_words(child.last_exit))
            else:
                log_crash(self.log, child_id, process.pid if process is not None else None, child.last_exit)
        self._carry_out(instructions)

    # -- instructions

    def _carry_out(self, instructions: list[Instruction]) -> None:
        """Carry out instructions in order. What follows from one is done after all that are known already."""
        self._to_do.extend(instructions)
        if self._doing:
            return
        self._doing = True
        try:
            while self._to_do:
                self._perform(self._to_do.popleft())
        finally:
            self._doing = False

    def _perform(self, instruction: Instruction) -> None:
        match instruction:
            case StartProcess(child_id, spec, arguments):
                self._start_process(child_id, spec, arguments)
            case StopProcess(child_id, reason):
                self.processes.stop_child(child_id, reason)
            case KillProcess(child_id, why):
                if why:
                    self.log.warning("%s %s and is killed", child_id, why)
                self.processes.kill_child(child_id)
            case GoOnWithout(child_id):
                process = self._running.get(child_id)
                self.log.error("%s (pid %s) does not die of SIGKILL", child_id, process and process.pid)
            case Forgotten(child_id):
                self._ended_at.pop(child_id, None)
            case SetTimer(tag, delay_s):
                self._timers[tag] = self.runtime.after(delay_s, partial(self._timer_fired, tag))
            case CancelTimer(tag):
                self._timers.pop(tag).cancel()
            case ReplyTo(request, child_id, error):
                self._answer(request, child_id, error)
            case Stopping(reason, error):
                self._say_why(reason, error)
            case StartEnded(error):
                self._end_own_start(error)
            case Exit(reason):
                self._leave(reason)

    def _start_process(self, child_id: str, spec: ChildSpec, arguments: tuple[Any, ...]) -> None:
        try:
            self._running[child_id] = self.processes.start_child(child_id, spec, arguments)
        except ActorGridError as error:
            self._ended(child_id, partial(self._core.process_refused, child_id, error))

    def _timer_fired(self, tag: Tag) -> None:
        del self._timers[tag]
        self._carry_out(self._core.timer_fired(tag, self.runtime.monotonic()))

    def _say_why(self, reason: str, error: ActorGridError | None) -> None:
        if error is None:
            self.log.info("%s stops: %s", self.title, reason)
        elif self._own_start.done:
            self.log.critical("%s gives up: %s", self.title, error)
        else:
            self.log.error("%s does not start: %s", self.title, error)

    def _end_own_start(self, error: ActorGridError | None) -> None:
        if error is None:
            self._own_start.set(None)
        else:
            self._start_failed = True
            self._own_start.fail(error)

    def _leave(self, reason: ExitReason) -> None:
        self._over = True
        waiting, self._wait_for_end = self._wait_for_end, []
        if reason.error is not None:
            if not self._start_failed:  # else whoever runs ``start`` has that error
                self.processes.fail(reason.error)
        elif not waiting:
            self.processes.exit()
        for waiter in waiting:
            waiter.set(None)

    # -- requests

    def _ask(self, put: Callable[[Request, float], list[Instruction]]) -> Waiter:
        request, answer = next(self._numbers), Waiter()
        self._requests[request] = answer
        self._carry_out(put(request, self.runtime.monotonic()))
        return answer

    def _answer(self, request: Request, child_id: str, error: ActorGridError | None) -> None:
        answer = self._requests.pop(request)
        if error is not None:
            answer.fail(error)
            return
        process = self._running.get(child_id)
        answer.set(ChildInfo(child_id, process.pid, process.ref) if process is not None else None)

    @handles(StartChild)
    async def _start_child(self, request: StartChild) -> ChildInfo:
        if self._starts_under_way >= STARTS_AT_ONCE:
            turn = Waiter()
            self._waiting_starts.append(turn)
            await turn  # whose start ended gives us its place
        else:
            self._starts_under_way += 1
        try:
            return await self._start_requested(request)
        finally:
            if self._waiting_starts:
                # In a turn of its own: each may be refused at once, and they are not to be nested in each other.
                self.runtime.after(0.0, partial(self._waiting_starts.popleft().set, None))
            else:
                self._starts_under_way -= 1

    async def _start_requested(self, request: StartChild) -> ChildInfo:
        spec = request.spec
        if spec is None:
            info = await self._ask(lambda number, now_s: self._core.start_dynamic(number, request.arguments, now_s))
        elif request.arguments:
            raise InvalidChildSpec(
                "StartChild: a spec and arguments were given",
                hint="put the arguments into the spec: ChildSpec(..., arguments=...)",
            )
        else:
            info = await self._ask(lambda number, now_s: self._core.start_child(number, spec, now_s))
        return info  # type: ignore[no-any-return] # what _answer makes

    @handles(TerminateChild)
    async def _terminate_child(self, request: TerminateChild) -> None:
        child_id = self._id_of(request.child)
        await self._ask(lambda number, now_s: self._core.terminate_child(number, child_id, now_s))

    @handles(RestartChild)
    async def _restart_child(self, request: RestartChild) -> ChildInfo:
        info = await self._ask(lambda number, now_s: self._core.restart_child(number, request.id, now_s))
        return info  # type: ignore[no-any-return] # what _answer makes

    @handles(DeleteChild)
    async def _delete_child(self, request: DeleteChild) -> None:
        await self._ask(lambda number, now_s: self._core.delete_child(number, request.id, now_s))

    def _id_of(self, child: str | Ref) -> str:
        if isinstance(child, str):
            return child
        for child_id, process in self._running.items():
            if process.ref == child:
                return child_id
        raise NoSuchChild(f"{self.title} has no child {child}", hint="it ended; WhichChildren lists them")

    @handles(WhichChildren)
    def _which_children(self, _request: WhichChildren) -> list[dict[str, Any]]:
        return self.children_now()

    @handles(CountChildren)
    def _count_children(self, _request: CountChildren) -> dict[str, int]:
        return self._core.count()

    def children_now(self) -> list[dict[str, Any]]:
        """The answer to WhichChildren."""
        return [self._describe(child) for child in self._core.children()]

    def _describe(self, child: Child) -> dict[str, Any]:
        process, end = self._running.get(child.id), child.last_exit
        return {
            "name": child.id,
            "pid": process.pid if process is not None else None,
            "ref": process.ref if process is not None else None,
            "state": child.state,
            "restarts": child.restarts,
            "last_exit": {"at": self._ended_at.get(child.id), "reason": exit_in_words(end), "kind": end.kind}
            if end is not None
            else None,
            "type": child.spec.type,
            "restart": child.spec.restart,
            "kind": child.spec.kind,
        }

    def status(self) -> dict[str, Any]:
        """The children as WhichChildren gives them, and how they are kept."""
        return {
            "strategy": self._core.flags.strategy,
            "counts": self._core.count(),
            "children": self.children_now(),
            "stopping": self.stopping,
        }
