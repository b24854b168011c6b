"""Crash reports, told of a server that ended badly: one record, of its supervisor, with all that is known.

Bounds: 50 attributes of 200 characters each (``inspection``), a message of 200, the last 4,096 characters of the
traceback.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from .exits import ExitReason, LastMoments, describe_status

STATE_ATTRIBUTES_MAX = 50
TRACEBACK_TAIL_CHARACTERS = 4_096


@dataclass(frozen=True, slots=True)
class CrashReport:
    """All that is known of a server that ended badly.

    ``last_message`` and ``state`` are empty where it could not tell.
    """

    server: str
    pid: int | None
    kind: str
    reason: str
    last_message: str
    state: dict[str, str]
    traceback: str

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values, for logs that keep structures."""
        return {name: getattr(self, name) for name in self.__slots__}

    def __str__(self) -> str:
        lines = [f"{self.server} (pid {self.pid or 'unknown'}) ended: {self.reason}"]
        if self.last_message:
            lines.append(f"  last message: {self.last_message}")
        if self.state:
            lines.append("  state: " + ", ".join(f"{name}={value}" for name, value in self.state.items()))
        lines += [f"  {line}" for line in self.traceback.rstrip().splitlines()]
        return "\n".join(lines)


def log_crash(log: logging.Logger, server: str, pid: int | None, reason: ExitReason) -> None:
    """Log the report as one record: its text has all lines, its attribute ``crash`` the same as a structure."""
    report = crash_report(server, pid, reason)
    log.warning("%s", report, extra={"crash": report.to_dict()})


def crash_report(server: str, pid: int | None, reason: ExitReason) -> CrashReport:
    """Make the report of the end of *server*."""
    how = describe_status(reason.exit_status) if reason.exit_status is not None else reason.kind
    moments = reason.moments or LastMoments()
    return CrashReport(
        server,
        pid,
        reason.kind,
        f"{reason.message} ({how})" if reason.message else how,
        moments.message,
        moments.state,
        reason.traceback[-TRACEBACK_TAIL_CHARACTERS:],
    )
