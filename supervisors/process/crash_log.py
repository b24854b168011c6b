"""Why processes end, told to people: each crash with its traceback, and in a storm of them how many more there were.

A traceback costs as much to write as a thousand messages. So only the first hundred crashes of a second get one; the
reason of the others names the error and the line. Ten of a second are logged, and then how many were not.
"""

from __future__ import annotations

import logging
from typing import Any

from actorgrid.errors import ActorGridError

from ..exits import ExitReason, from_error

TRACEBACKS_PER_S = 100
LOGGED_PER_S = 10

log = logging.getLogger("actorgrid.process")


class CrashLog:
    """Turns what a process raised into its exit reason, and logs some of it. *clock* gives nanoseconds."""

    def __init__(self) -> None:
        self.crashes = 0
        self._second = -1
        self._traced = 0
        self._logged = 0
        self._silent = 0

    def reason(self, error: BaseException, now_ns: int) -> ExitReason:
        """The exit reason of a process that died of *error*, which lets go of its frames."""
        self._count(now_ns)
        self._traced += 1
        reason = from_error(error) if self._traced <= TRACEBACKS_PER_S else _short(error)
        # Frames hold the process and all that its handler had in hand.
        error.__traceback__ = None
        return reason

    def tell(self, who: str, reason: ExitReason, now_ns: int) -> None:
        """Log a crash, unless there were too many of late."""
        self.crashes += 1
        self._count(now_ns)
        if self._logged < LOGGED_PER_S:
            self._logged += 1
            log.error("%s crashed: %s%s", who, reason.message or reason.kind, _indented(reason.traceback))
        else:
            self._silent += 1

    def _count(self, now_ns: int) -> None:
        second = now_ns // 1_000_000_000
        if second != self._second:
            if self._silent:
                log.error("%s more processes crashed within that second", self._silent)
            self._second, self._traced, self._logged, self._silent = second, 0, 0, 0


def _short(error: BaseException) -> ExitReason:
    traceback: Any = error.__traceback__
    where = ""
    while traceback is not None:
        code = traceback.tb_frame.f_code
        where = f'  File "{code.co_filename}", line {traceback.tb_lineno}, in {code.co_name}'
        traceback = traceback.tb_next
    named = error if isinstance(error, ActorGridError) else None
    said = f"{type(error).__name__}: {named.message if named is not None else error}"
    return ExitReason("error", said, where, error=named)


def _indented(traceback: str) -> str:
    return "".join(f"\n    {line}" for line in traceback.splitlines())
