"""What light processes are told: ends of others, answers to requests; and the words that say why a process ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from actorgrid.errors import ActorGridError, BadRequest
from actorgrid.hotpath.light import Pid

from ..exits import NORMAL, SHUTDOWN, ExitReason

KILLED = ExitReason("killed")
_BY_WORD = {"normal": NORMAL, "shutdown": SHUTDOWN, "killed": KILLED}


@dataclass(frozen=True, slots=True)
class ProcessDown:
    """The process that is monitored as ``monitor`` has ended: OTP's ``'DOWN'``. Once for each monitor.

    ``pid`` is ``None`` where a name was monitored that nobody had.
    """

    monitor: int
    pid: Pid | None
    reason: ExitReason


@dataclass(frozen=True, slots=True)
class ProcessExit:
    """A linked process has ended, or somebody asks us to: OTP's ``'EXIT'``, for those alone who trap exits."""

    pid: Pid | None
    reason: ExitReason


@dataclass(frozen=True, slots=True)
class CallReply:
    """The answer to ``send_request``: a value, or the error that ``call`` would have raised."""

    label: Any
    value: Any = None
    error: BaseException | None = None

    def result(self) -> Any:
        """The value; or the error is raised."""
        if self.error is not None:
            raise self.error
        return self.value


def reason_of(said: ExitReason | str) -> ExitReason:
    """An exit reason, from itself or from a word: ``normal``, ``shutdown``, ``killed``, any other text as ``error``.

    Raises BadRequest.
    """
    if isinstance(said, ExitReason):
        return said
    if not isinstance(said, str):
        raise BadRequest("this is no exit reason", asked=repr(said)[:200], hint="give an ExitReason or a word")
    return _BY_WORD.get(said) or ExitReason("error", said)


def error_of(reason: ExitReason, who: object) -> ActorGridError:
    """What is raised at those who wait for an answer of one that ended."""
    from actorgrid.errors import ActorDown

    return ActorDown(f"{who} ended before it answered: {reason}")
