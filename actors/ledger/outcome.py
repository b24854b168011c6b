"""What one entry of the ledger's log did: result or refusal, changed records, events for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from actorgrid.actors.ledger.record_types import JobRecord
from actorgrid.errors import ActorGridError

Change = tuple[str, str, Any]


@dataclass(frozen=True, slots=True)
class Event:
    """An event for people to read, numbered from 1 over the ledger's whole life."""

    number: int
    index: int
    at: float
    type: str
    kind: str
    id: str
    state: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one entry. ``index`` is where the command first stood, when this was a repetition.

    Exactly one of ``result`` and ``error`` is given. ``retired`` are ended jobs that left memory, as
    (number, record): their only home is now the history.
    """

    index: int
    result: Mapping[str, Any] | None
    error: ActorGridError | None
    changes: tuple[Change, ...] = ()
    events: tuple[Event, ...] = ()
    retired: tuple[tuple[int, JobRecord], ...] = ()
    repeated: bool = False
