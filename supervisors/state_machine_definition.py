"""The definition of a state machine: its states, and which method handles what in which of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from actorgrid.errors import BadRequest


class AnyState(Enum):
    """The type of ``any_state``."""

    ANY = "any state"


any_state: Final = AnyState.ANY


@dataclass(frozen=True, slots=True)
class Handler:
    """One method of a machine: what it handles. ``message_type`` is ``None`` for a state enter call."""

    method: str
    states: str | Iterable[str] | AnyState
    message_type: type | None


@dataclass(frozen=True, slots=True)
class Definition:
    """The states of a machine, and which method handles what in which of them. Made by ``define``."""

    states: tuple[str, ...] = ()
    handlers: Mapping[tuple[str | AnyState, type], str] = field(default_factory=dict)
    enter_handlers: Mapping[str | AnyState, str] = field(default_factory=dict)

    def message_types(self) -> frozenset[type]:
        """The message types that some state handles."""
        return frozenset(message_type for _, message_type in self.handlers)

    def check(self, state: str) -> None:
        """Assert that there is a *state* of that name to go to."""
        known = ", ".join(map(repr, self.states))
        assert state in self.states, f"there is no state {state!r} to go to; the states are {known}"

    def handler(self, state: str, message_type: type) -> str | None:
        """The method for such a message in *state*: its own before that of any state."""
        return self.handlers.get((state, message_type)) or self.handlers.get((any_state, message_type))

    def enter_handler(self, state: str) -> str | None:
        """The method for the state enter call of *state*: its own before that of any state."""
        return self.enter_handlers.get(state) or self.enter_handlers.get(any_state)


def define(owner: str, states: Iterable[str], marks: Iterable[Handler]) -> Definition:
    """Check a definition; raises BadRequest that says what is wrong in class *owner*.

    Wrong are: no states, a state twice, a handler for a state that does not exist or for no state, two handlers for
    one state and message (one for a state and one for any state is right: the first goes before), and the same for
    state enter calls.
    """
    names = (states,) if isinstance(states, str) else tuple(states)
    marks = list(marks)
    known = ", ".join(map(repr, names))
    if not names:
        raise BadRequest(f"{owner} has no states", hint='set them: states = ("first", "second")')
    for name in names:
        if not isinstance(name, str) or not name or names.count(name) > 1:
            raise BadRequest(
                f"{owner}: the states are different words that are not empty", asked=f"{name!r}", found=known
            )
    handlers: dict[tuple[str | AnyState, type], str] = {}
    enter_handlers: dict[str | AnyState, str] = {}
    for mark in marks:
        what = "state enter calls" if mark.message_type is None else mark.message_type.__name__
        wanted = (mark.states,) if isinstance(mark.states, str | AnyState) else tuple(mark.states)
        if not wanted:
            raise BadRequest(f"{owner}.{mark.method} handles {what} in no state", hint="name one, or use any_state")
        for state in wanted:
            if state is not any_state and state not in names:
                raise BadRequest(
                    f"{owner}.{mark.method} handles {what} in a state that does not exist",
                    asked=repr(state),
                    found=known,
                )
            if mark.message_type is None:
                other = enter_handlers.setdefault(state, mark.method)
            else:
                other = handlers.setdefault((state, mark.message_type), mark.method)
            if other != mark.method:
                where = "any state" if state is any_state else f"state {state!r}"
                raise BadRequest(f"{owner} has two handlers for {what} in {where}", found=f"{other} and {mark.method}")
    return Definition(names, handlers, enter_handlers)
