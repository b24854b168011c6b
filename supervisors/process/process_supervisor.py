"""Supervisors of light processes, which are light processes themselves.

All decisions are those of ``supervisors/restart.py``, which decides for OS processes, too; this carries them out in a
shard. A child's end is known at once, so it is restarted before anybody else has a turn.

What differs from OS processes: a child that traps exits and is no GenServer is asked to stop by a ProcessExit message;
all others are stopped on the spot, with their ``terminate``. A supervisor that is killed takes its children with it.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from actorgrid.errors import ActorGridError, InvalidChildSpec
from actorgrid.hotpath.light import NO_REPLY, Pid, ProcessCall, SendTimer, Waiting

from ..child import SupervisorFlags
from ..exits import SHUTDOWN, ExitReason
from ..instructions import (
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
from ..restart import SupervisorCore
from ..supervisor import CountChildren, DeleteChild, RestartChild, StartChild, TerminateChild, WhichChildren
from .base import Process
from .events import KILLED, ProcessExit
from .gen_server import GenServer
from .process_spec import LIGHT_CHILDREN_MAX, ProcessSpec, load_kind

if TYPE_CHECKING:
    from .shard import Shard

log = logging.getLogger("actorgrid.process")


class ProcessSupervisor(Process):
    """Starts its children in order, restarts them as their specs say, stops them in reverse: OTP's ``supervisor``.

    Override ``init(self, *args)``, which gives (SupervisorFlags, specs); or set ``flags``, and give the specs to
    ``spawn``. Requests (``StartChild`` and so on) are calls; ``StartChild`` and ``RestartChild`` answer with the Pid of
    the child.
    """

    flags: ClassVar[SupervisorFlags] = SupervisorFlags()
    priority = "high"

    def init(self, *args: Any) -> tuple[SupervisorFlags, Sequence[ProcessSpec]]:
        """The flags and the children."""
        if len(args) != 1:
            raise InvalidChildSpec(
                f"{type(self).__name__} takes its children as its one argument",
                found=f"{len(args)} arguments",
                hint="spawn(ProcessSupervisor, [ProcessSpec('a', A), ...]), or override init",
            )
        return self.flags, args[0]

    async def begin(self, *args: Any) -> None:
        """Start all children, each when the one before it is up. Raises what the first failing one raised."""
        self._children: dict[str, Pid] = {}
        self._ids: dict[Pid, str] = {}
        self._timers: dict[Tag, SendTimer] = {}
        self._to_do: deque[Instruction] = deque()
        self._doing = False
        self._open: dict[Request, ProcessCall] = {}
        self._numbers = itertools.count(1)
        self._own_start: Waiting = self.shard.core.waiting(self)
        flags, specs = self.init(*args)
        title = self.label or type(self).__name__
        self._decisions = SupervisorCore(title, flags, tuple(specs), LIGHT_CHILDREN_MAX)
        self.shard.supervisors[self.pid] = self
        self._carry_out(self._decisions.start(self._now_s()))
        await self._own_start

    def _now_s(self) -> float:
        return self.shard.now_ns() / 1e9

    # -- what the shard reports

    def child_up(self, pid: Pid) -> None:
        """Take note that the child's start has ended well."""
        child_id = self._ids.get(pid)
        if child_id is not None:
            self._carry_out(self._decisions.child_started(child_id, self._now_s()))

    def child_gone(self, pid: Pid, reason: ExitReason) -> None:
        """Take note that the child has ended."""
        child_id = self._ids.pop(pid, None)
        if child_id is None:
            return
        self._children.pop(child_id, None)
        if self.status == "ended":
            return
        if reason.error is not None:
            self._carry_out(self._decisions.child_start_failed(child_id, reason.error, self._now_s()))
        self._carry_out(self._decisions.child_exited(child_id, reason, self._now_s()))

    def end_children(self, shard: Shard, reason: ExitReason) -> None:
        """Take those children along that are still there: this process has ended."""
        for timer in self._timers.values():
            timer.cancel()
        why = ExitReason("shutdown", f"its supervisor ended: {reason.kind}")
        for pid in reversed(list(self._ids)):
            process = shard.core.find(pid)
            if process is not None:
                shard.end(process, why)

    def stop_children(self, reason: str) -> None:
        """Stop all, in reverse, each within its time; then end."""
        self._carry_out(self._decisions.shutdown(reason))

    # -- requests

    def handle_call(self, request: Any, caller: ProcessCall) -> Any:
        """Answer what a supervisor is asked."""
        decisions, now_s = self._decisions, self._now_s()
        match request:
            case StartChild(None, arguments):
                return self._ask(caller, lambda number: decisions.start_dynamic(number, arguments, now_s))
            case StartChild(spec, _) if spec is not None:
                return self._ask(caller, lambda number: decisions.start_child(number, spec, now_s))
            case TerminateChild():
                child: Any = request.child
                child_id = self._ids.get(child, str(child)) if isinstance(child, Pid) else str(child)
                return self._ask(caller, lambda number: decisions.terminate_child(number, child_id, now_s))
            case RestartChild(child_id):
                return self._ask(caller, lambda number: decisions.restart_child(number, child_id, now_s))
            case DeleteChild(child_id):
                return self._ask(caller, lambda number: decisions.delete_child(number, child_id, now_s))
            case WhichChildren():
                return self._which_children()
            case CountChildren():
                return decisions.count()
        return super().handle_call(request, caller)

    def handle_info(self, message: Any) -> None:
        """Take exits of linked processes: none of ours, which are known otherwise."""
        if isinstance(message, ProcessExit) and not message.reason.is_normal:
            self.shard.end(self, message.reason)

    def _ask(self, caller: ProcessCall, put: Callable[[Request], list[Instruction]]) -> Any:
        number = next(self._numbers)
        self._open[number] = caller
        self._carry_out(put(number))
        return NO_REPLY

    def _which_children(self) -> list[dict[str, Any]]:
        return [
            {
                "name": child.id,
                "pid": self._children.get(child.id),
                "state": child.state,
                "restarts": child.restarts,
                "last_exit": str(child.last_exit) if child.last_exit is not None else None,
                "type": child.spec.type,
                "restart": child.spec.restart,
                "kind": getattr(child.spec.kind, "__qualname__", str(child.spec.kind)),
            }
            for child in self._decisions.children()
        ]

    def format_state(self) -> dict[str, Any]:
        """What ``inspect`` shows: the children."""
        return {"children": self._which_children()}

    # -- instructions

    def _carry_out(self, instructions: list[Instruction]) -> None:
        """Carry out instructions in order. What follows from one is done after all that are known already."""
        self._to_do.extend(instructions)
        if self._doing:
            return
        self._doing = True
        try:
            while self._to_do and self.status != "ended":
                self._perform(self._to_do.popleft())
        finally:
            self._doing = False

    def _perform(self, instruction: Instruction) -> None:
        match instruction:
            case StartProcess(child_id, spec, arguments):
                self._start_child(child_id, spec, arguments)
            case StopProcess(child_id, reason):
                self._stop_child(self._children.get(child_id), reason)
            case KillProcess(child_id, why):
                if why:
                    log.warning("%s of %s %s and is killed", child_id, self.pid, why)
                self._end_child(self._children.get(child_id), KILLED)
            case SetTimer(tag, delay_s):
                self._timers[tag] = self.shard.core.call_after(delay_s, lambda: self._timer_fired(tag))
            case CancelTimer(tag):
                self._timers.pop(tag).cancel()
            case ReplyTo(request, child_id, error):
                caller = self._open.pop(request)
                if error is not None:
                    caller.fail(error)
                else:
                    caller.reply(self._children.get(child_id))
            case Stopping(reason, error):
                if error is not None:
                    log.error("supervisor %s %s gives up: %s", type(self).__name__, self.pid, error)
                else:
                    log.debug("supervisor %s stops: %s", self.pid, reason)
            case StartEnded(error):
                if error is None:
                    self._own_start.settle(None)
                else:
                    self._own_start.fail(error)
            case Exit(reason):
                self.shard.end(self, reason)
            case Forgotten() | GoOnWithout():
                return

    def _start_child(self, child_id: str, spec: Any, arguments: tuple[Any, ...]) -> None:
        shard = self.shard
        try:
            process = shard.core.spawn(load_kind(spec.kind), arguments, self.pid, None, True)
            self._ids[process.pid] = child_id
            self._children[child_id] = process.pid
            if spec.register:
                try:
                    shard.register(child_id, process.pid)
                except ActorGridError:
                    del self._ids[process.pid], self._children[child_id]
                    shard.end(process, KILLED)
                    raise
        except ActorGridError as error:
            self._carry_out(self._decisions.process_refused(child_id, error, self._now_s()))

    def _stop_child(self, pid: Pid | None, reason: str) -> None:
        process: Any = self.shard.core.find(pid) if pid is not None else None
        if isinstance(process, ProcessSupervisor) and process.pid in self.shard.supervisors:
            process.stop_children(reason)
        elif process is not None and process.trap_exit and not isinstance(process, GenServer):
            self.shard.core.tell(process, ProcessExit(self.pid, ExitReason(SHUTDOWN.kind, reason)))
        else:
            self._end_child(pid, ExitReason(SHUTDOWN.kind, reason))

    def _end_child(self, pid: Pid | None, reason: ExitReason) -> None:
        process = self.shard.core.find(pid) if pid is not None else None
        if process is not None:
            self.shard.end(process, reason)

    def _timer_fired(self, tag: Tag) -> None:
        del self._timers[tag]
        self._carry_out(self._decisions.timer_fired(tag, self._now_s()))


class DynamicSupervisor(ProcessSupervisor):
    """Starts any number of children from one spec, on request: ``simple_one_for_one``.

    ``spawn(DynamicSupervisor, ProcessSpec("worker", Worker))``; then ``call(supervisor, StartChild(arguments=(1, 2)))``
    starts ``Worker`` with the spec's arguments and these.
    """

    flags = SupervisorFlags("simple_one_for_one")

    def init(self, *args: Any) -> tuple[SupervisorFlags, Sequence[ProcessSpec]]:
        """The flags and the one spec."""
        if len(args) != 1 or not isinstance(args[0], ProcessSpec):
            raise InvalidChildSpec(
                f"{type(self).__name__} takes one ProcessSpec", found=repr(args)[:200], hint="or override init"
            )
        return self.flags, args
