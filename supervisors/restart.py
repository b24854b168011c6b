"""All decisions of an OTP supervisor, without its processes: events in, instructions (``instructions.py``) out.

After OTP's supervisor.erl and its reference manual, rule by rule:

* Children start in order, each when the one before it is up. If one does not, those before it are stopped, the last
  one first, and the supervisor's own start has failed.
* A child that ends is restarted as its spec says, together with those its strategy binds to it: they are stopped,
  the last one first, and all of them that are not temporary are started in order, even one that had been terminated.
  Exits of members while the group is being stopped are part of it. A temporary child is forgotten when it ends.
* One restart of a group counts once. One restart too many within the period: everything is stopped and the supervisor
  ends, with RestartIntensityExceeded (OTP says ``shutdown`` here; ours names the child and its last end).
* A restart that fails is tried again and counts again; in a group, the child that failed becomes its cause.
* A stop is asked for; after the spec's ``shutdown`` comes the kill; after 10 s more we go on without it.
* A significant child that ends by itself, for good, may end the supervisor (``auto_shutdown``).

OTP's supervisor does one thing at a time, because a start blocks it. Here starts take their time, so: under
``one_for_one`` and ``simple_one_for_one`` each child is restarted on its own, whatever the others do. Under the other
two strategies, while a start on request (or our own) is under way, exits that ask for a restart wait until
it has ended, and requests wait until a group restart has. At most 1,000 requests are open; more get MailboxFull.

Same events, same instructions. After a call, carry out all instructions before the next event.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from actorgrid.errors import (
    ActorGridError,
    ChildExists,
    InvalidChildSpec,
    MailboxFull,
    NotSupported,
    RestartIntensityExceeded,
    StartFailed,
    TooManyActors,
)

from .child import CHILDREN_MAX, ChildSpec, SupervisorFlags, check_significance, check_supervisor
from .child_table import Child, ChildTable
from .exits import ExitReason, describe_status
from .instructions import (
    Exit,
    GoOnWithout,
    Instruction,
    Request,
    StartEnded,
    Stopping,
    Tag,
)
from .intensity import Intensity, retry_delay_s, who_shares_fate

LINGER_S = 1.0
"""How long a process whose start has failed may take to end by itself, before it is killed."""
REQUESTS_MAX = 1000

Phase = Literal["new", "starting", "running", "stopping", "ended"]


@dataclass(slots=True)
class _Group:
    """A group restart: its members in start order, first all stopped, then (after a pause) all started."""

    cause: str
    members: Sequence[str]
    delay_s: float
    phase: Literal["stopping", "waiting", "starting"] = "stopping"
    current: str = ""
    to_start: deque[str] = field(default_factory=deque)


class SupervisorCore:
    """The decisions of one supervisor. Raises InvalidChildSpec when flags and specs do not fit.

    Every event but ``shutdown`` takes the time on a clock that never steps back.
    """

    def __init__(
        self, name: str, flags: SupervisorFlags, specs: Sequence[ChildSpec], children_max: int = CHILDREN_MAX
    ) -> None:
        checked = check_supervisor(flags, specs, children_max)
        self._children_max = children_max
        self.name = name
        self.flags = flags
        self.phase: Phase = "new"
        # Children of one spec cannot all have its name.
        self._template = replace(checked[0], register=False) if flags.simple else None
        self._table = ChildTable(name, () if flags.simple else checked)
        self._all_told = False  # to stop
        self._stuck = 0  # children that do not die
        self._grouped = flags.strategy in ("one_for_all", "rest_for_one")
        self._intensity = Intensity(flags.intensity, flags.period_s)
        self._numbers = itertools.count(1)
        self._first = deque(self._table.children)  # what our own start has yet to start, and what it is starting
        self._first_current = ""
        self._group: _Group | None = None
        self._requested = ""  # grouped: the child that a request starts
        self._deferred: list[str] = []  # grouped: who ended meanwhile and is to be restarted
        self._significant_ended = False  # during our own start
        self._queue: deque[tuple[Request, Callable[[float], None]]] = deque()
        self._why = ""
        self._own_start_error: ActorGridError | None = None
        self._exit = ExitReason("shutdown")

    # -- reading

    def children(self) -> tuple[Child, ...]:
        """All children, in start order."""
        return tuple(self._table.children.values())

    def child(self, child_id: str) -> Child | None:
        """The child of that id, or ``None``."""
        return self._table.children.get(child_id)

    def count(self) -> dict[str, int]:
        """OTP's ``count_children``: "specs", "active" (with a process), "supervisors", "workers"."""
        children = self.children()
        supervisors = sum(1 for child in children if child.spec.type == "supervisor")
        return {
            "specs": 1 if self._template is not None else len(children),
            "active": sum(1 for child in children if child.has_process),
            "supervisors": supervisors,
            "workers": len(children) - supervisors,
        }

    # -- events: our own life

    def start(self, now_s: float) -> list[Instruction]:
        """Start the children; StartEnded follows, now or later."""
        if self.phase == "new":
            self.phase = "starting"
            self._start_next_first(now_s)
        return self._table.flush()

    def shutdown(self, reason: str) -> list[Instruction]:
        """Stop everything; Exit follows, now or later. A second one changes nothing."""
        if self.phase not in ("stopping", "ended"):
            self._finish(reason or "asked to", ExitReason("shutdown", reason), None)
        return self._table.flush()

    # -- events: what processes do

    def process_refused(self, child_id: str, error: ActorGridError, now_s: float) -> list[Instruction]:
        """Take note that StartProcess could not be carried out: there was no process."""
        child = self._table.with_process(child_id)
        if child is not None:
            child.start_error = error
            self._gone(child, ExitReason("error", "no process could be made", error=error), now_s)
        return self._table.flush()

    def child_started(self, child_id: str, now_s: float) -> list[Instruction]:
        """Take note that the child is up."""
        child = self._table.with_process(child_id)
        if child is None or child.state != "starting" or child.start_error is not None:
            return []  # too late: it is being ended
        self._table.cancel(Tag("start", child_id))
        child.state, child.failures, child.is_new = "up", 0, False
        if child.start_request is not None:
            self._table.reply_start(child, None)
        if child_id == self._requested:
            self._requested = ""
            self._settle(now_s)
        elif child_id == self._first_current:
            self._start_next_first(now_s)
        elif self._group is not None and child_id == self._group.current:
            self._go_on_with_group(self._group, now_s)
        return self._table.flush()

    def child_start_failed(self, child_id: str, error: ActorGridError, now_s: float) -> list[Instruction]:
        """Take note that the child's start raised *error*; its process is ending, and is killed after 1 s more."""
        child = self._table.with_process(child_id)
        if child is not None and child.state == "starting" and child.start_error is None:
            child.start_error = error
            self._table.cancel(Tag("start", child_id))
            self._table.set(Tag("linger", child_id), LINGER_S)
        return self._table.flush()

    def child_exited(self, child_id: str, reason: ExitReason, now_s: float) -> list[Instruction]:
        """Take note that the child's process is gone."""
        child = self._table.with_process(child_id)
        if child is not None:
            self._gone(child, reason, now_s)
        return self._table.flush()

    def timer_fired(self, tag: Tag, now_s: float) -> list[Instruction]:
        """Act on a timer that is due."""
        child = self._table.children.get(tag.id)
        if not self._table.fired(tag) or child is None:
            return []
        if tag.what == "retry":
            self._retry(child, now_s)
        elif tag.what == "start":
            child.start_error = StartFailed(f"{child.id} did not start in {child.spec.start_timeout_s:g} s")
            self._table.kill(child, child.start_error.message)
        elif tag.what == "linger":
            self._table.kill(child, "its start failed and it did not end")
        elif tag.what == "stop":
            self._table.kill(child, f"did not stop in {child.spec.shutdown_s():g} s")
        else:
            self._does_not_die(child, now_s)
        return self._table.flush()

    # -- events: requests, each answered with one Reply

    def start_child(self, request: Request, spec: ChildSpec, now_s: float) -> list[Instruction]:
        """Add a child and start it; its spec is dropped again when it does not start.

        Errors: InvalidChildSpec, ChildExists, TooManyActors, NotSupported (simple_one_for_one), StartFailed and what
        the start raised.
        """
        return self._take(request, lambda _now_s: self._start_new(request, spec), now_s)

    def start_dynamic(self, request: Request, arguments: tuple[Any, ...], now_s: float) -> list[Instruction]:
        """Start one more child of a simple_one_for_one supervisor, with *arguments* after those of the spec.

        Its id is the spec's with ":" and a number that no other child has had. Errors as for ``start_child``.
        """
        return self._take(request, lambda _now_s: self._start_dynamic(request, arguments), now_s)

    def terminate_child(self, request: Request, child_id: str, now_s: float) -> list[Instruction]:
        """Stop a child; answered when it is gone. Its spec stays, unless it is temporary or dynamic.

        Errors: NoSuchChild; CallTimeout when it does not even die of a kill.
        """
        return self._take(request, lambda now_s: self._terminate(request, child_id), now_s)

    def restart_child(self, request: Request, child_id: str, now_s: float) -> list[Instruction]:
        """Start a child that is stopped; answered when it is up.

        Errors: NoSuchChild, ChildExists (it runs, or will), NotSupported (simple_one_for_one), StartFailed and what
        the start raised; the spec stays.
        """
        return self._take(request, lambda _now_s: self._restart_stopped(request, child_id), now_s)

    def delete_child(self, request: Request, child_id: str, now_s: float) -> list[Instruction]:
        """Forget the spec of a child that is stopped.

        Errors: NoSuchChild, ChildExists (it runs, or will), NotSupported (simple_one_for_one).
        """
        return self._take(request, lambda _now_s: self._delete(request, child_id), now_s)

    # -- requests

    def _take(self, request: Request, action: Callable[[float], None], now_s: float) -> list[Instruction]:
        self._table.open_requests += 1
        if self.phase in ("stopping", "ended"):
            self._table.reply(request, "", self._stops())
        elif self._table.open_requests > REQUESTS_MAX:
            error = MailboxFull(f"{self.name} has {REQUESTS_MAX} requests open", hint="wait for their answers")
            self._table.reply(request, "", error)
        elif self._is_busy():
            self._queue.append((request, action))
        else:
            self._do(request, action, now_s)
        return self._table.flush()

    def _do(self, request: Request, action: Callable[[float], None], now_s: float) -> None:
        try:
            action(now_s)
        except ActorGridError as error:
            self._table.reply(request, "", error)

    def _is_busy(self) -> bool:
        return self.phase in ("new", "starting") or self._group is not None or bool(self._requested)

    def _start_new(self, request: Request, spec: ChildSpec) -> None:
        if self._template is not None:
            raise NotSupported(
                f"{self.name} starts all its children from one spec (simple_one_for_one)",
                hint="ask with StartChild(arguments=(...))",
            )
        if not isinstance(spec, ChildSpec):
            raise InvalidChildSpec(
                "a child is described by something else than a ChildSpec",
                found=repr(spec)[:200],
                hint="ask with StartChild(ChildSpec(id, 'package.module:Class', ...))",
            )
        check_significance(self.flags, spec)
        known = self._table.children.get(spec.id)
        if known is not None:
            hint = "choose another id" if known.runs else "RestartChild starts it; DeleteChild makes room"
            raise ChildExists(f"{self.name} has a child {spec.id!r}", found=known.state, hint=hint)
        self._add(request, Child(spec.id, spec, spec.arguments))

    def _start_dynamic(self, request: Request, arguments: tuple[Any, ...]) -> None:
        if self._template is None:
            raise NotSupported(
                f"{self.name} is not simple_one_for_one", hint="ask with StartChild(ChildSpec(id, kind, ...))"
            )
        if not isinstance(arguments, tuple):
            raise InvalidChildSpec("StartChild: arguments are wrong", asked=repr(arguments)[:200], hint="give a tuple")
        child_id = f"{self._template.id}:{next(self._numbers)}"
        self._add(request, Child(child_id, self._template, self._template.arguments + arguments))

    def _add(self, request: Request, child: Child) -> None:
        if len(self._table.children) >= self._children_max:
            raise TooManyActors(f"{self.name} has {self._children_max} children", hint="put supervisors between them")
        self._table.children[child.id] = child
        child.is_new = True
        self._start_on_request(request, child)

    def _start_on_request(self, request: Request, child: Child) -> None:
        child.start_request = request
        if self._grouped:
            self._requested = child.id
        self._table.launch(child)

    def _terminate(self, request: Request, child_id: str) -> None:
        child = self._table.find(child_id)
        if child.is_stuck:
            raise child.undying()
        if child.has_process:
            child.stop_requests.append(request)
            self._table.stop(child, "terminated on request")
            return
        self._table.cancel(Tag("retry", child_id))
        child.state = "down"
        if self._ends_for_good(child):
            self._table.forget(child)
        self._table.reply(request, child_id, None)

    def _restart_stopped(self, request: Request, child_id: str) -> None:
        self._start_on_request(request, self._find_stopped(child_id, "restarted"))

    def _delete(self, request: Request, child_id: str) -> None:
        self._table.forget(self._find_stopped(child_id, "deleted"))
        self._table.reply(request, child_id, None)

    def _find_stopped(self, child_id: str, what: str) -> Child:
        if self._template is not None:
            raise NotSupported(
                f"no child of {self.name} can be {what}: their specs end with them (simple_one_for_one)",
                hint="TerminateChild stops one, StartChild starts another",
            )
        child = self._table.find(child_id)
        if child.runs:
            raise ChildExists(f"{child_id} cannot be {what} now", found=child.state, hint="TerminateChild stops it")
        return child

    def _stops(self) -> NotSupported:
        return NotSupported(f"{self.name} is stopping: {self._why}", hint="ask again once it has been restarted")

    # -- starting

    def _start_next_first(self, now_s: float) -> None:
        if self._first:
            self._first_current = self._first.popleft()
            self._table.launch(self._table.children[self._first_current])
            return
        self._first_current = ""
        self.phase = "running"
        self._table.out.append(StartEnded(None))
        if self._significant_ended and self._is_shutdown_due():
            self._shut_down_by_itself("a significant child ended during the start")
        else:
            self._settle(now_s)

    def _start_failed(self, child: Child, error: ActorGridError, now_s: float) -> None:
        child.failures += 1
        child.state = "down"
        if child.start_request is not None:
            self._table.reply_start(child, error)
            if child.is_new:
                self._table.forget(child)
            self._request_ended(child, now_s)
        elif child.id == self._first_current:
            self._fail_own_start(error)
        else:
            self._restart(child, retry_delay_s(child.failures), now_s)

    def _fail_own_start(self, error: ActorGridError) -> None:
        self._finish(f"{self.name} does not start", ExitReason("error", error.message, error=error), error)

    def _request_ended(self, child: Child, now_s: float) -> None:
        if child.id == self._requested:
            self._requested = ""
            self._settle(now_s)

    def _settle(self, now_s: float) -> None:
        """Do what had to wait, once nothing blocks any more."""
        deferred, self._deferred = self._deferred, []
        for child_id in deferred:
            child = self._table.children.get(child_id)
            covered = self._group is not None and child_id in self._group.members
            if child is not None and self.phase == "running" and not covered:
                self._restart(child, 0.0, now_s)
        while self._queue and self.phase == "running" and not self._is_busy():
            request, action = self._queue.popleft()
            self._do(request, action, now_s)

    # -- ends

    def _gone(self, child: Child, reason: ExitReason, now_s: float) -> None:
        was, error = child.state, child.start_error
        if error is not None and not reason.message:
            reason = replace(reason, message=error.message)
        self._table.buried(child, reason)
        if self.phase in ("stopping", "ended"):
            child.state = "down"
            self._table.reply_start(child, error or self._stopped_while_starting(child))
            self._go_on_stopping()
        elif was == "starting":
            died = StartFailed(f"{child.id} died while it started: {exit_in_words(reason)}", found=reason.clue)
            self._start_failed(child, error or died, now_s)
        elif was == "up" and not self._is_being_stopped_with_its_group(child):
            self._ended(child, reason, now_s)
        else:
            self._was_stopped(child, error, now_s)

    def _ended(self, child: Child, reason: ExitReason, now_s: float) -> None:
        """Deal with the end of a child that was up and ended by itself."""
        if child.spec.wants_restart(reason.is_normal):
            self._restart(child, 0.0, now_s)
            return
        child.state = "down"
        if self._ends_for_good(child):
            self._table.forget(child)
        if child.spec.significant:
            if self.phase == "starting":
                self._significant_ended = True
            elif self._is_shutdown_due():
                self._shut_down_by_itself(f"{child.id} ended: {exit_in_words(reason)}")

    def _was_stopped(self, child: Child, error: ActorGridError | None, now_s: float) -> None:
        """Deal with the end of a child that was stopped, on request or with its group."""
        child.state = "down"
        self._table.reply_start(child, error or self._stopped_while_starting(child))
        if child.is_new or self._ends_for_good(child):
            self._table.forget(child)
        self._request_ended(child, now_s)
        if self._group is not None:
            self._go_on_with_group(self._group, now_s)

    def _is_being_stopped_with_its_group(self, child: Child) -> bool:
        return self._group is not None and self._group.phase == "stopping" and child.id in self._group.members

    def _stopped_while_starting(self, child: Child) -> StartFailed:
        return StartFailed(f"{child.id} was stopped while it started{self._why and ': '}{self._why}")

    def _ends_for_good(self, child: Child) -> bool:
        return child.spec.restart == "temporary" or self._template is not None

    def _is_shutdown_due(self) -> bool:
        if self.flags.auto_shutdown == "any_significant":
            return True
        return not any(child.spec.significant and child.runs for child in self.children())

    def _shut_down_by_itself(self, why: str) -> None:
        self._finish(why, ExitReason("shutdown", why), None)

    # -- restarts

    def _restart(self, child: Child, delay_s: float, now_s: float) -> None:
        child.state = "restarting"
        # Who has to wait is not counted yet: ``_settle`` comes here again, and one restart would count twice.
        if self._grouped and (self.phase == "starting" or self._requested):
            self._deferred.append(child.id)
        elif not self._intensity.allows(now_s):
            self._give_up(child)
        elif self._grouped:
            if self._group is not None:
                # Left to run, the pause of the group before would start this one while its members are being stopped.
                self._table.cancel(Tag("retry", self._group.cause))
            members = who_shares_fate(self.flags.strategy, tuple(self._table.children), child.id)
            self._group = _Group(child.id, members, delay_s)
            self._go_on_with_group(self._group, now_s)
        else:
            child.restarts += 1
            if delay_s > 0:
                self._table.set(Tag("retry", child.id), delay_s)
            else:
                self._table.launch(child)

    def _retry(self, child: Child, now_s: float) -> None:
        if self._group is not None:
            self._group.phase = "starting"
            self._go_on_with_group(self._group, now_s)
        else:
            self._table.launch(child)

    def _go_on_with_group(self, group: _Group, now_s: float) -> None:
        if group.phase == "stopping":
            for member in self._table.living(group.members):
                # One at a time: who was started later may use who was started before, until its own end.
                self._table.stop(member, f"stopped to be restarted with {group.cause}")
                return
            members = [self._table.children[member] for member in group.members if member in self._table.children]
            if any(member.has_process for member in members):
                return  # never two processes of one id: we wait for the one that does not die
            for member in members:
                member.state = "restarting"
                member.restarts += 1
                group.to_start.append(member.id)
            if group.delay_s > 0:
                group.phase = "waiting"
                self._table.set(Tag("retry", group.cause), group.delay_s)
            else:
                group.phase = "starting"
        if group.phase != "starting":
            return
        if group.to_start:
            group.current = group.to_start.popleft()
            self._table.launch(self._table.children[group.current])
        else:
            self._group = None
            self._settle(now_s)

    def _give_up(self, child: Child) -> None:
        last_end = "unknown"
        if child.last_exit is not None:
            last_end = "; ".join(filter(None, (exit_in_words(child.last_exit), child.last_exit.clue)))
        error = RestartIntensityExceeded(
            f"{child.id} ended again after {self.flags.intensity} restarts in {self.flags.period_s:g} s",
            found=f"its last end: {last_end}",
            hint="mend what ended it, and start it again",
            supervisor=self.name,
            child=child.id,
        )
        self._finish(error.message, ExitReason("error", error.message, error=error), error)

    # -- stopping

    def _finish(self, why: str, exit_reason: ExitReason, error: ActorGridError | None) -> None:
        """Stop all children; when they are gone, Exit."""
        if self.phase in ("new", "starting"):
            self._own_start_error = error or StartFailed(f"{self.name} was stopped while it started: {why}")
        self.phase, self._why, self._exit = "stopping", why, exit_reason
        self._table.out.append(Stopping(why, error))
        self._group, self._requested, self._first_current = None, "", ""
        self._first.clear()
        self._deferred.clear()
        for child in self.children():
            self._table.cancel(Tag("retry", child.id))
            if not child.has_process:
                child.state = "down"
        while self._queue:
            self._table.reply(self._queue.popleft()[0], "", self._stops())
        self._go_on_stopping()

    def _go_on_stopping(self) -> None:
        if self.phase == "ended":
            return
        if self._template is not None and self._all_told and self._table.processes > self._stuck:
            return  # the end of each of a hundred thousand must not look at all the others
        waited_for = self._table.living(tuple(self._table.children))
        if waited_for:
            # One at a time, as above; but children of one spec know no order, and there may be thousands, each with its
            # time to stop: OTP, too, stops these all at once.
            self._all_told = True
            for child in waited_for if self._template is not None else waited_for[:1]:
                self._table.stop(child, self._why)
            return
        self.phase = "ended"
        for child in self.children():
            self._table.reply_start(child, self._stopped_while_starting(child))  # of one that does not die
        # Before Exit: who waits for our start hears why from that, and the end that follows need not be told again.
        if self._own_start_error is not None:
            self._table.out.append(StartEnded(self._own_start_error))
        self._table.out.append(Exit(self._exit))

    def _does_not_die(self, child: Child, now_s: float) -> None:
        was, error, child.is_stuck, child.state = child.state, child.undying(), True, "stopping"
        self._stuck += 1
        self._table.out.append(GoOnWithout(child.id))
        self._table.reply_stops(child, error)
        self._table.reply_start(child, error)
        if self.phase == "stopping":
            self._go_on_stopping()
        elif was == "starting" and child.id == self._first_current:
            self._fail_own_start(child.start_error or error)
        elif child.id == self._requested:
            self._request_ended(child, now_s)
        elif self._group is not None:
            self._go_on_with_group(self._group, now_s)


def exit_in_words(reason: ExitReason) -> str:
    """The end of a process in words: what it said, and how it ended."""
    how = describe_status(reason.exit_status) if reason.exit_status is not None else reason.kind
    return f"{reason.message} ({how})" if reason.message else how
