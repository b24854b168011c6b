"""The engine of a state machine, without I/O: which event is handled next, and what a transition does.

It follows OTP's gen_statem (manual page gen_statem, type ``transition_option()``, "the sequence of steps for a state
transition"; OTP Design Principles, "gen_statem Behaviour"):

1. The actions are taken in their order; a reply is sent at once.
2. If the state changes, or is repeated, the state enter call is made; what it returns starts again at 1.
3. The event is postponed, if that was asked for.
4. If the state has changed, the queue starts again with the oldest postponed event, and the state timeout ends.
5. Inserted events go before all that are queued.
6. Timers are started and cancelled; the last action for a timer counts. A zero timeout becomes an event behind those
   that are queued, and before any that has not been received.
7. The oldest queued event is handled; with none, the oldest zero timeout; with none, the machine waits.

Events go in (``begin``, ``receive``, ``fired``), instructions come out, to be carried out in order. ``Handle`` and
``Enter`` are always last: the answer to them is ``handled``, and what is received until then waits.

Bounds: 10,000 events are postponed and 10,000 wait for a handler; a call beyond that is answered MailboxFull, anything
else is dropped and counted. 1,000 timers run. One received event may cause 1,000 inserted events, zero timeouts and
repeated enter calls in all, and an event may be postponed by 1,000 state changes in a row; more is an endless loop,
and an assertion names it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from actorgrid.errors import ActorDown, ActorGridError, MailboxFull, NotSupported

from .exits import ExitReason
from .state_machine_definition import Definition
from .transitions import (
    EVENT_TIMER,
    NO_REPLY,
    STATE_TIMER,
    Action,
    CancelTimeout,
    NextEvent,
    Postpone,
    StartTimeout,
    TimerKey,
    Transition,
    keep_state,
)

POSTPONED_MAX = 10_000
WAITING_MAX = 10_000
TIMERS_MAX = 1_000
CHAIN_MAX = 1_000
REMEMBERED = 6


# -- what goes in and comes out


@dataclass(slots=True, eq=False)
class MachineEvent:
    """One event on its way through the machine.

    ``origin`` belongs to who feeds the machine. ``owed``: a call that nobody has answered; ``deferred``: its handler
    has promised to.
    """

    kind: Literal["call", "cast", "internal", "timeout"]
    message: Any
    origin: Any = None
    owed: bool = False
    deferred: bool = False

    @property
    def type_name(self) -> str:
        """The name of the message's type, for logs and errors."""
        return type(self.message).__name__


@dataclass(frozen=True, slots=True)
class Handle:
    """Call *method* with the event's message; then ``handled``."""

    method: str
    event: MachineEvent


@dataclass(frozen=True, slots=True)
class Enter:
    """Make the state enter call *method*, with the state we come from; then ``handled``."""

    method: str
    old_state: str


@dataclass(frozen=True, slots=True)
class AnswerCall:
    """Answer the call *event*."""

    event: MachineEvent
    value: Any


@dataclass(frozen=True, slots=True)
class RefuseCall:
    """Answer the call *event* with *error*; log it for any other event."""

    event: MachineEvent
    error: ActorGridError


@dataclass(frozen=True, slots=True)
class StartTimer:
    """Call ``fired(timer_id)`` in *delay_s*."""

    timer_id: int
    delay_s: float


@dataclass(frozen=True, slots=True)
class StopTimer:
    """Never call ``fired(timer_id)``; harmless if it was called."""

    timer_id: int


@dataclass(frozen=True, slots=True)
class LeaveProcess:
    """The machine has stopped: end the process in order."""

    reason: ExitReason


Instruction = Handle | Enter | AnswerCall | RefuseCall | StartTimer | StopTimer | LeaveProcess


@dataclass(slots=True)
class _Timer:
    id: int
    key: TimerKey
    message: Any
    fired: bool = False


@dataclass(slots=True)
class _Change:
    """A transition under way: what its actions have asked for so far."""

    old_state: str
    event: MachineEvent | None
    postponed: bool = False
    inserted: list[MachineEvent] = field(default_factory=list)
    timers: dict[TimerKey, StartTimeout | CancelTimeout] = field(default_factory=dict)


# -- the engine


class Machine:
    """The engine of one state machine. ``state`` is the present one; during a state enter call already the new one."""

    def __init__(self, definition: Definition) -> None:
        self._definition = definition
        self.state = definition.states[0]
        self.dropped = 0
        self._phase: Literal["new", "waiting", "handling", "entering", "stopped"] = "new"
        self._event: MachineEvent | None = None
        self._change: _Change | None = None
        self._queue: deque[MachineEvent] = deque()  # inserted events and postponed ones that are tried again
        self._postponed: deque[MachineEvent] = deque()
        self._received: deque[MachineEvent | int] = deque()  # while a handler runs; a number is a timer that fired
        self._received_events = 0
        self._timers: dict[TimerKey, _Timer] = {}
        self._timer_of: dict[int, _Timer] = {}  # those of _timers whose delay was not 0
        self._zero: deque[TimerKey] = deque()  # those of _timers whose delay was 0, oldest first
        self._next_timer_id = 1
        self._chain = 0
        self._moves = 0
        self._trail: deque[str] = deque(maxlen=REMEMBERED)

    @property
    def event(self) -> MachineEvent | None:
        """The event that is being handled, up to the end of its transition; ``None`` between events."""
        return self._event

    @property
    def postponed(self) -> int:
        """How many events wait for another state."""
        return len(self._postponed)

    @property
    def waiting(self) -> int:
        """How many events wait for the running handler to end."""
        return len(self._queue) + self._received_events

    def timers(self) -> list[tuple[int, TimerKey]]:
        """The running timers; ids are those of ``StartTimer`` (a zero timeout has one too, but is never started)."""
        return [(timer.id, key) for key, timer in self._timers.items()]

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for an event."""
        return self._phase == "waiting"

    def change_definition(self, definition: Definition, state: str) -> None:
        """Go on by another definition, in that state of it; while it waits for an event."""
        assert self._phase == "waiting", "a definition changes between two events"
        definition.check(state)
        self._definition, self.state = definition, state

    # -- events

    def begin(self, initial: Transition | None) -> list[Instruction]:
        """Enter the first state: the first of the definition, unless *initial* says another.

        Section "The First State". As there, the state enter call gets this state as the old one, and postponing
        means nothing.
        """
        assert self._phase == "new", "a machine begins once"
        out: list[Instruction] = []
        transition = initial if initial is not None else keep_state()
        if transition.kind == "stop":
            return self._stop(transition, out)
        if transition.kind == "next":
            self._definition.check(transition.state)
            self.state = transition.state
        self._change = _Change(self.state, None)
        self._collect(self._change, transition.actions)
        if not self._enter(self._change, out):
            self._complete(self._change, out)
        return out

    def receive(self, event: MachineEvent) -> list[Instruction]:
        """Take an event from outside."""
        if self._phase == "stopped":
            return self._turn_away([event])
        if self._phase != "waiting":
            if self._received_events >= WAITING_MAX:
                return self._refuse_full(event, f"{WAITING_MAX} events wait for the handler that runs")
            self._received.append(event)
            self._received_events += 1
            return []
        out: list[Instruction] = []
        self._received.append(event)
        self._received_events += 1
        self._next(out)
        return out

    def fired(self, timer_id: int) -> list[Instruction]:
        """Act on a timer that is due; one that was cancelled or restarted meanwhile is ignored."""
        timer = self._timer_of.get(timer_id)
        if timer is None:
            return []
        timer.fired = True
        self._received.append(timer_id)
        out: list[Instruction] = []
        if self._phase == "waiting":
            self._next(out)
        return out

    def handled(self, transition: Transition | None) -> list[Instruction]:
        """Take what the handler, or state enter call, returned; ``None`` is ``keep_state()``."""
        out: list[Instruction] = []
        if self._phase == "stopped":
            return out
        transition = transition if transition is not None else keep_state()
        if self._phase == "entering":
            self._entered(transition, out)
        else:
            assert self._phase == "handling" and self._event is not None, "no handler runs"
            self._handled(self._event, transition, out)
        return out

    def halt(self) -> None:
        """Handle nothing more, as the process dies; timers that come due are ignored."""
        self._phase = "stopped"
        self._timers.clear()
        self._timer_of.clear()
        self._zero.clear()
        self._queue.clear()
        self._postponed.clear()
        self._received.clear()
        self._received_events = 0
        self._change = self._event = None

    # -- a transition, step by step; the numbers are those of the module

    def _handled(self, event: MachineEvent, transition: Transition, out: list[Instruction]) -> None:
        target = self.state
        if transition.kind == "next":
            target = transition.state
            self._definition.check(target)
        if transition.reply is not NO_REPLY and event.kind == "call":  # 1
            assert event.owed, f"the call {event.type_name} is answered twice in state {self.state!r}"
            out.append(AnswerCall(event, transition.reply))
            event.owed = False
        if transition.kind == "stop":
            self._stop(transition, out)
            return
        change = self._change = _Change(self.state, event)
        self._collect(change, transition.actions)
        self.state = target
        entered = transition.kind == "repeat" or target != change.old_state
        if not (entered and self._enter(change, out)):  # 2
            self._complete(change, out)

    def _entered(self, transition: Transition, out: list[Instruction]) -> None:
        change = self._change
        assert change is not None, "no transition is under way"
        where = f"the state enter call of {self.state!r}"
        assert transition.kind != "next" or transition.state == self.state, f"{where} may not change the state"
        assert transition.kind == "stop" or transition.reply is NO_REPLY, (
            f"{where} has no call to reply to; use self.reply(handle, value)"
        )
        for action in transition.actions:
            assert not isinstance(action, Postpone | NextEvent), f"{where} may start and cancel timeouts only"
        if transition.kind == "stop":
            self._stop(transition, out)
            return
        self._collect(change, transition.actions)
        if transition.kind == "repeat":
            self._count(1)
            self._enter(change, out)
            return
        self._complete(change, out)

    def _collect(self, change: _Change, actions: Iterable[Action]) -> None:
        for action in actions:
            if isinstance(action, Postpone):
                change.postponed = True
            elif isinstance(action, NextEvent):
                change.inserted.append(MachineEvent("internal", action.message))
            else:
                change.timers.pop(action.key, None)  # the last one counts, in the last one's place
                change.timers[action.key] = action

    def _enter(self, change: _Change, out: list[Instruction]) -> bool:
        method = self._definition.enter_handler(self.state)
        if method is None:
            return False
        self._phase = "entering"
        out.append(Enter(method, change.old_state))
        return True

    def _complete(self, change: _Change, out: list[Instruction]) -> None:
        changed = self.state != change.old_state
        event = change.event
        if event is not None:
            if change.postponed:  # 3
                assert not event.deferred, f"the call {event.type_name} is both deferred and postponed"
                self._moves = self._moves + 1 if changed else self._moves
                assert self._moves <= CHAIN_MAX, self._loop("an event was postponed by as many state changes in a row")
                self._postpone(event, out)
            else:
                self._moves = 0
                if event.owed and not event.deferred:
                    out.append(RefuseCall(event, self._unanswered(event, change.old_state)))
                    event.owed = False
        if changed:  # 4
            self._queue.extendleft(reversed(self._postponed))
            self._postponed.clear()
            self._cancel(STATE_TIMER, out)
        self._queue.extendleft(reversed(change.inserted))  # 5
        self._count(len(change.inserted))
        for action in change.timers.values():  # 6
            self._cancel(action.key, out)
            if isinstance(action, StartTimeout):
                self._start(action, out)
        self._change = self._event = None
        self._next(out)  # 7

    def _postpone(self, event: MachineEvent, out: list[Instruction]) -> None:
        if len(self._postponed) < POSTPONED_MAX:
            self._postponed.append(event)
        else:
            out += self._refuse_full(event, f"{POSTPONED_MAX} events are postponed in state {self.state!r}")

    def _start(self, action: StartTimeout, out: list[Instruction]) -> None:
        assert len(self._timers) < TIMERS_MAX, f"{TIMERS_MAX} timers run already: {action.key} is one too many"
        timer = _Timer(self._next_timer_id, action.key, action.message)
        self._next_timer_id += 1
        self._timers[action.key] = timer
        if action.delay_s == 0:
            self._zero.append(action.key)
            self._count(1)
        else:
            self._timer_of[timer.id] = timer
            out.append(StartTimer(timer.id, action.delay_s))

    def _cancel(self, key: TimerKey, out: list[Instruction]) -> None:
        timer = self._timers.pop(key, None)
        if timer is None:
            return
        if timer.id not in self._timer_of:
            self._zero.remove(key)
            return
        del self._timer_of[timer.id]
        if timer.fired:
            self._received.remove(timer.id)
        else:
            out.append(StopTimer(timer.id))

    def _next(self, out: list[Instruction]) -> None:
        """Take the next event that somebody handles; wait when there is none."""
        while True:
            event = self._pick()
            if event is None:
                self._phase = "waiting"
                return
            self._cancel(EVENT_TIMER, out)  # any event ends it
            self._trail.append(f"{event.type_name} in {self.state!r}")
            method = self._definition.handler(self.state, type(event.message))
            if method is not None:
                self._phase, self._event = "handling", event
                out.append(Handle(method, event))
                return
            self._moves = 0
            out.append(RefuseCall(event, self._unknown(event)))
            event.owed = False

    def _pick(self) -> MachineEvent | None:
        if self._queue:
            return self._queue.popleft()
        if self._zero:
            return MachineEvent("timeout", self._timers.pop(self._zero.popleft()).message)
        if self._received:
            first = self._received.popleft()
            self._chain = self._moves = 0
            if isinstance(first, MachineEvent):
                self._received_events -= 1
                return first
            timer = self._timer_of.pop(first)
            del self._timers[timer.key]
            return MachineEvent("timeout", timer.message)
        return None

    def _stop(self, transition: Transition, out: list[Instruction]) -> list[Instruction]:
        held = [*self._postponed, *self._queue, *(each for each in self._received if isinstance(each, MachineEvent))]
        if self._event is not None and not self._event.deferred:
            held.insert(0, self._event)
        out += [StopTimer(timer_id) for timer_id, timer in self._timer_of.items() if not timer.fired]
        self.halt()
        out += self._turn_away(held)
        out.append(LeaveProcess(transition.reason))
        return out

    # -- refusals

    def _turn_away(self, events: Iterable[MachineEvent]) -> list[Instruction]:
        error = ActorDown(f"the machine has stopped in state {self.state!r}")
        owed = [event for event in events if event.owed]
        for event in owed:
            event.owed = False
        return [RefuseCall(event, error) for event in owed]

    def _refuse_full(self, event: MachineEvent, found: str) -> list[Instruction]:
        if event.owed:
            event.owed = False
            error = MailboxFull(f"no room to keep {event.type_name}", found=found, hint="ask again later")
            return [RefuseCall(event, error)]
        self.dropped += 1
        return []

    def _unknown(self, event: MachineEvent) -> NotSupported:
        return NotSupported(
            f"{event.type_name} has no handler in state {self.state!r}",
            asked=event.type_name,
            found=f"state {self.state!r}",
            hint="ask again in another state, or give it a handler with @on",
        )

    def _unanswered(self, event: MachineEvent, state: str) -> NotSupported:
        return NotSupported(
            f"{event.type_name} is handled in state {state!r}, but not answered",
            asked=event.type_name,
            found=f"state {state!r}",
            hint="cast it; or let its handler return reply=..., postpone() or self.defer() the call",
        )

    def _count(self, events: int) -> None:
        self._chain += events
        assert self._chain <= CHAIN_MAX, self._loop("as many events of our own followed one that was received")

    def _loop(self, what: str) -> str:
        trail = ", then ".join(self._trail)
        return f"an endless loop, stopped after {CHAIN_MAX} rounds: {what}; the last were: {trail}"
