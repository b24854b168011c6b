"""What a state machine's handler can ask for: a transition, and the actions that go with it.

The words are those of OTP's gen_statem (OTP Design Principles, "gen_statem Behaviour", sections "State Callback",
"Transition Actions" and "Time-Outs"). A handler makes these values and returns them; nothing happens before it has
returned.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final, Literal

from .exits import NORMAL, ExitReason

TimerKind = Literal["state", "event", "named"]


@dataclass(frozen=True, slots=True)
class TimerKey:
    """The identity of a timer: a machine has one state timer, one event timer, and any number of named ones."""

    kind: TimerKind
    name: str = ""

    def __str__(self) -> str:
        return self.name if self.kind == "named" else f"{self.kind} timeout"


STATE_TIMER = TimerKey("state")
EVENT_TIMER = TimerKey("event")


# -- actions


@dataclass(frozen=True, slots=True)
class Postpone:
    """Keep this event for after the next state change."""


@dataclass(frozen=True, slots=True)
class NextEvent:
    """Handle *message* before anything that waits."""

    message: Any


@dataclass(frozen=True, slots=True)
class StartTimeout:
    """(Re)start the timer *key*."""

    key: TimerKey
    delay_s: float
    message: Any

    def __post_init__(self) -> None:
        assert math.isfinite(self.delay_s) and self.delay_s >= 0, (
            f"{self.key}: a timeout takes a finite number of seconds, 0 or more, not {self.delay_s!r}"
        )


@dataclass(frozen=True, slots=True)
class CancelTimeout:
    """Stop the timer *key*; harmless when it does not run."""

    key: TimerKey


Action = Postpone | NextEvent | StartTimeout | CancelTimeout


def postpone() -> Postpone:
    """Keep the present event; it is handled again, in order of arrival, after the next state change.

    Section "Postponing Events". A call that is postponed stays open. At most 10,000 events are postponed: a call
    beyond that is answered MailboxFull, anything else is dropped and counted.
    """
    return Postpone()


def next_event(message: Any) -> NextEvent:
    """Insert an event of our own, to be handled before events that wait already. Section "Inserted Events".

    Several in one transition keep their order. At most 1,000 may follow one received event; more is an endless
    loop, and ends the machine with an assertion that shows it.
    """
    return NextEvent(message)


def state_timeout(delay_s: float, message: Any) -> StartTimeout:
    """Send *message* to ourselves in *delay_s*, unless the state changes first. Section "State Time-Outs".

    There is one such timer: starting it again restarts it. A delay of 0 comes after the events that wait already and
    before any that has not been received (section "Time-Out Zero").
    """
    return StartTimeout(STATE_TIMER, delay_s, message)


def event_timeout(delay_s: float, message: Any) -> StartTimeout:
    """Send *message* to ourselves if no event at all is handled for *delay_s*. Section "Event Time-Outs".

    Events that were postponed or inserted, and other timeouts, end it too.
    """
    return StartTimeout(EVENT_TIMER, delay_s, message)


def timeout(name: str, delay_s: float, message: Any) -> StartTimeout:
    """Send *message* to ourselves in *delay_s*, in whatever state we are then. Section "Generic Time-Outs".

    The same *name* again restarts it. At most 1,000 timers run at once.
    """
    return StartTimeout(TimerKey("named", name), delay_s, message)


def cancel_timeout(name: str) -> CancelTimeout:
    """Stop the timer *name*: its message will not come. Harmless when it does not run."""
    return CancelTimeout(TimerKey("named", name))


def cancel_state_timeout() -> CancelTimeout:
    """Stop the state timeout without changing the state."""
    return CancelTimeout(STATE_TIMER)


# -- transitions

NO_REPLY: Final = object()


@dataclass(frozen=True, slots=True)
class Transition:
    """What a handler returns: the next state and the actions. Made by the functions below."""

    kind: Literal["next", "keep", "repeat", "stop"]
    state: str = ""
    actions: tuple[Action, ...] = ()
    reply: Any = NO_REPLY
    reason: ExitReason = NORMAL

    def __post_init__(self) -> None:
        for action in self.actions:
            assert isinstance(action, Action), f"a transition takes actions such as postpone(), not {action!r}"
        assert self.reply is NO_REPLY or not self.postpones, "a call is either answered or postponed, not both"

    @property
    def postpones(self) -> bool:
        """Whether the event is kept."""
        return any(isinstance(action, Postpone) for action in self.actions)


def next_state(name: str, *actions: Action, reply: Any = NO_REPLY) -> Transition:
    """Go to the state *name*; the same as ``keep_state`` when we are in it already.

    *reply* answers the call that is being handled; for other events it is dropped.
    """
    return Transition("next", name, actions, reply)


def keep_state(*actions: Action, reply: Any = NO_REPLY) -> Transition:
    """Stay: postponed events stay postponed, the state timeout goes on, no state enter call is made."""
    return Transition("keep", "", actions, reply)


def repeat_state(*actions: Action, reply: Any = NO_REPLY) -> Transition:
    """Stay, and make the state enter call again. Nothing else differs from ``keep_state``."""
    return Transition("repeat", "", actions, reply)


def stop(reason: ExitReason = NORMAL, *, reply: Any = NO_REPLY) -> Transition:
    """End the machine in order, of *reason*, after answering the call that is being handled with *reply*.

    Calls that were postponed or wait are answered ActorDown; no timer fires any more.
    """
    return Transition("stop", "", (), reply, reason)
