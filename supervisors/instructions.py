"""What a supervisor's decision core (``restart.py``) tells the process around it to do, in order.

Frozen dataclasses only. Children are named by id; what a process is, is the business of whoever carries this out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from actorgrid.errors import ActorGridError

from .child import ChildSpec
from .exits import ExitReason

Request = int
Purpose = Literal["start", "linger", "stop", "kill", "retry"]


@dataclass(frozen=True, slots=True)
class Tag:
    """The identity of a timer: its purpose and its child. At most one of each is set at a time."""

    what: Purpose
    id: str


@dataclass(frozen=True, slots=True)
class StartProcess:
    """Make a process for the child. The answer is ``process_refused``, or later events of that child."""

    id: str
    spec: ChildSpec
    arguments: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class StopProcess:
    """Ask the child's process to end in order. It may be gone already."""

    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class KillProcess:
    """Kill the process, which may be gone already; ``why`` is for the log, empty when its spec says brutal_kill."""

    id: str
    why: str


@dataclass(frozen=True, slots=True)
class GoOnWithout:
    """Log that the child's process was killed and does not end; nobody waits for it any more."""

    id: str


@dataclass(frozen=True, slots=True)
class Forgotten:
    """The child's spec is gone: nothing more will be said about this id, unless it is given anew."""

    id: str


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Call ``timer_fired(tag)`` after ``delay_s``, unless it is cancelled."""

    tag: Tag
    delay_s: float


@dataclass(frozen=True, slots=True)
class CancelTimer:
    """Forget that timer."""

    tag: Tag


@dataclass(frozen=True, slots=True)
class ReplyTo:
    """Answer a request: with ``error``, or with the child it was about."""

    request: Request
    child_id: str
    error: ActorGridError | None = None


@dataclass(frozen=True, slots=True)
class Stopping:
    """Start nothing from now on; ``error`` is set when that is because something failed."""

    reason: str
    error: ActorGridError | None


@dataclass(frozen=True, slots=True)
class StartEnded:
    """The supervisor's own start: all children are up, or it failed with ``error`` and all have been stopped."""

    error: ActorGridError | None


@dataclass(frozen=True, slots=True)
class Exit:
    """All children have ended: leave, for this reason. Comes once, last."""

    reason: ExitReason


Instruction = (
    StartProcess
    | StopProcess
    | KillProcess
    | GoOnWithout
    | Forgotten
    | SetTimer
    | CancelTimer
    | ReplyTo
    | Stopping
    | StartEnded
    | Exit
)
