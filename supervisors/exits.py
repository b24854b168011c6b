"""Why an actor ended: OTP's exit reasons, in a form that crosses processes and can be read by people.

Seven kinds. ``normal``: it was done. ``shutdown``: it was told to stop, and did in order. ``error``: a broken
invariant, a failed start, a fatal signal of its own making, an exit status. ``killed``: SIGKILL from outside, or an
untrappable exit signal. ``hung``: the watchdog killed it. ``noproc``: it was gone before anyone asked.
``noconnection``: a light process of another shard that nobody reaches any more; it may live.
"""

from __future__ import annotations

import signal
import traceback as tracebacks
from dataclasses import dataclass, field, replace
from typing import Literal

from actorgrid.errors import ActorDown, ActorGridError

ExitKind = Literal["normal", "shutdown", "error", "killed", "hung", "noproc", "noconnection"]

TRACEBACK_CHARACTERS_MAX = 16_384


@dataclass(frozen=True, slots=True)
class LastMoments:
    """What an actor was doing when it crashed: the message that it handled, and its state as inspection shows it."""

    message: str = ""
    state: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExitReason:
    """Why one actor ended.

    ``message`` is one sentence; ``traceback`` is Python's, when there was one (at most 16,384 characters, the last
    ones); ``exit_status`` is the process's (negative: the signal), once it is known. ``error`` is the named error it
    died of, if it was one. ``moments``: what it was at when it crashed, as far as its process could tell.
    """

    kind: ExitKind
    message: str = ""
    traceback: str = ""
    exit_status: int | None = None
    error: ActorGridError | None = field(default=None, compare=False)
    moments: LastMoments | None = field(default=None, compare=False)

    @property
    def is_normal(self) -> bool:
        """Whether a transient child stays down after it: ``normal`` and ``shutdown``."""
        return self.kind in ("normal", "shutdown")

    def with_status(self, exit_status: int) -> ExitReason:
        """The same reason with the exit status that the kernel tells."""
        return replace(self, exit_status=exit_status)

    def with_traceback(self, text: str) -> ExitReason:
        """The same reason with *traceback*, unless it has one."""
        return self if self.traceback or not text else replace(self, traceback=text[-TRACEBACK_CHARACTERS_MAX:])

    def with_moments(self, moments: LastMoments) -> ExitReason:
        """The same reason with what the actor was doing. Never another's: who dies with a linked one has its own."""
        return replace(self, moments=moments)

    @property
    def place(self) -> str:
        """Where in the code the actor ended, from its traceback: ``shop.py, line 12, in sell``; empty without one."""
        lines = [line.strip() for line in self.traceback.splitlines() if line.strip().startswith("File ")]
        return lines[-1].removeprefix("File ").replace('"', "") if lines else ""

    @property
    def clue(self) -> str:
        """What is known beside the reason, in one line: the last message and the place; empty when nothing is."""
        message = f"its last message: {self.moments.message}" if self.moments and self.moments.message else ""
        return "; ".join(filter(None, (message, f"at {self.place}" if self.place else "")))

    def to_error(self, name: str) -> ActorGridError:
        """The error to raise for the end of *name*: the named error it died of, or ActorDown."""
        return self.error if self.error is not None else ActorDown(f"{name} ended: {self}")

    def __str__(self) -> str:
        words = self.kind if not self.message else f"{self.kind}: {self.message}"
        if self.exit_status:
            words += f" ({describe_status(self.exit_status)})"
        return words


NORMAL = ExitReason("normal")
SHUTDOWN = ExitReason("shutdown")
NOPROC = ExitReason("noproc", "there was no such actor any more")


def from_error(error: BaseException) -> ExitReason:
    """The reason of an actor that died of *error*."""
    named = error if isinstance(error, ActorGridError) else None
    said = f"{type(error).__name__}: {named.message if named is not None else error}"
    text = "".join(tracebacks.format_exception(error)) if error.__traceback__ is not None else ""
    return ExitReason("error", said, text[-TRACEBACK_CHARACTERS_MAX:], error=named)


def from_status(exit_status: int) -> ExitReason:
    """The reason of a process that said nothing before it ended with *exit_status*."""
    if exit_status == 0:
        return ExitReason("normal", exit_status=0)
    kind: ExitKind = "killed" if exit_status == -signal.SIGKILL else "error"
    return ExitReason(kind, exit_status=exit_status)


def describe_status(exit_status: int) -> str:
    """An exit status in words."""
    if exit_status < 0:
        try:
            return f"killed by {signal.Signals(-exit_status).name}"
        except ValueError:
            return f"killed by signal {-exit_status}"
    return "left in order" if exit_status == 0 else f"exit status {exit_status}"
