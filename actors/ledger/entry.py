"""How a command finds the method that carries it out, and what that method is told of the entry it came with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from actorgrid.errors import StaleToken

from .command import Command


@dataclass(frozen=True, slots=True)
class EntryContext:
    """Of the entry that is being applied: its *index* in the log, when it was proposed (*at*, seconds since the epoch,
    by the proposer's clock), and the fencing *token* of whatever it gives out: the recovery epoch and the index."""

    index: int
    at: float
    token: list[int]


Verb = Callable[[Any, EntryContext], Mapping[str, Any]]
"""Carries out one command; gives the answer, or raises what it is refused with, and then nothing has changed."""
_F = TypeVar("_F", bound=Callable[..., Mapping[str, Any]])


def applies(command: type[Command]) -> Callable[[_F], _F]:
    """Mark the method that carries out commands of a class: ``method(command, entry)``."""

    def marked(method: _F) -> _F:
        method._applies = command  # type: ignore[attr-defined]
        return method

    return marked


def refuse_other_term(command: Any, term: int) -> None:
    """Raises StaleToken for a command of a leadership other than that of *term*."""
    if command.term != term:
        raise StaleToken(
            "that was decided under another leadership",
            asked=f"{command.verb} of term {command.term}",
            found=f"term {term}",
            hint="decide again from the state of this term",
        )


def verbs_of(*tables: object) -> dict[type[Command], Verb]:
    """The methods of *tables* by the command that each carries out; an override counts without a mark of its own."""
    found: dict[type[Command], Verb] = {}
    for table in tables:
        for kind in type(table).__mro__:
            for name, value in vars(kind).items():
                command = getattr(value, "_applies", None)
                if command is not None:
                    found.setdefault(command, getattr(table, name))
    return found
