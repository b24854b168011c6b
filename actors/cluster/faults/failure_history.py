"""The failures of one host, as it keeps them itself: when a check failed, and that it went on failing; decisions only.

A failure is counted when a check begins to fail, and again each ``repeat_s`` for which it goes on: trouble that stays
weighs as much as trouble that comes back. It is kept on the host (``to_plain`` on its disk), so that it outlives the
server and any change of leader, and needs no entry in the ledger.

Bound: the last 256 events.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from .check_results import TEXT_MAX, CheckResult, CheckStatus, is_figure

EVENTS_MAX = 256
AHEAD_MAX_S = 5.0
"""An event that is further in the future was written before the clock was set back: it counts as of now."""
WORDS = ("failed", "still_failed", "degraded", "ok")


@dataclass(frozen=True, slots=True)
class HealthEvent:
    """One event of a host's health. ``word`` is one of ``WORDS``; ``still_failed``: it goes on, and counts again."""

    at: float
    check: str
    word: str
    reason: str

    @property
    def counts(self) -> bool:
        """Whether it is a failure."""
        return self.word in ("failed", "still_failed")

    @property
    def is_flap(self) -> bool:
        """Whether something that was not failed before has failed."""
        return self.word == "failed"

    def to_plain(self) -> dict[str, Any]:
        """The event as it is kept, told and shown."""
        return {"at": self.at, "check": self.check, "word": self.word, "reason": self.reason}


class FailureHistory:
    """Takes the results of each round of checks; keeps what has changed, and gives them their ``since``."""

    def __init__(self, repeat_s: float, events: Iterable[HealthEvent] = ()) -> None:
        self.repeat_s = repeat_s
        self.events: deque[HealthEvent] = deque(events, EVENTS_MAX)
        self._last: dict[str, CheckResult] = {}
        self._counted_at: dict[str, float] = {}

    def take(self, results: Iterable[CheckResult], now: float) -> tuple[CheckResult, ...]:
        """Take a round of results; gives them with ``since``. What is not among them any more is forgotten."""
        taken: dict[str, CheckResult] = {}
        for result in results:
            before = self._last.get(result.name)
            changed = before is None or before.status is not result.status
            since = now if changed or before is None or before.since is None else min(before.since, now)
            taken[result.name] = replace(result, since=since)
            if changed and not (before is None and result.status is CheckStatus.OK):
                self._note(result, result.status.value, now)
            elif result.status is CheckStatus.FAILED and now - self._counted_at.get(result.name, 0.0) >= self.repeat_s:
                self._note(result, "still_failed", now)
            elif self._counted_at.get(result.name, 0.0) > now + AHEAD_MAX_S:
                self._counted_at[result.name] = now  # the clock was set back: begin to count anew
        self._last = taken
        self._counted_at = {name: at for name, at in self._counted_at.items() if name in taken}
        return tuple(taken.values())

    def _note(self, result: CheckResult, word: str, now: float) -> None:
        self._counted_at[result.name] = now
        self.events.append(HealthEvent(now, result.name, word, result.reason[:TEXT_MAX]))

    def to_plain(self) -> list[dict[str, Any]]:
        """The events, oldest first."""
        return [event.to_plain() for event in self.events]


def events_of(told: object) -> tuple[HealthEvent, ...]:
    """The events that a file or another host holds; what is malformed is left out, and all but the last 256."""
    if not isinstance(told, list):
        return ()
    found = []
    for each in told[-EVENTS_MAX:]:
        if not isinstance(each, dict) or not is_figure(each.get("at")) or each.get("word") not in WORDS:
            continue
        check, reason = each.get("check"), each.get("reason")
        if isinstance(check, str) and isinstance(reason, str):
            found.append(HealthEvent(float(each["at"]), check[:128], each["word"], reason[:TEXT_MAX]))
    return tuple(found)


def failures_since(events: Iterable[HealthEvent], since: float, now: float) -> tuple[HealthEvent, ...]:
    """The failures after *since*, as of *now*; those of a clock that was ahead count as of now."""
    return tuple(replace(event, at=min(event.at, now)) for event in events if event.counts and event.at > since)
